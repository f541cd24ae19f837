//! An element of the page, used as a person uses it.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::driver::Session;

/// The name under which WebDriver gives elements (W3C WebDriver, section 12.2).
const IDENTIFIER: &str = "element-6066-11e4-a52e-4f735466cecf";

/// An element of the page that was open when it was found.
#[derive(Debug)]
pub struct Element<'a> {
    session: &'a Session,
    id: String,
}

impl<'a> Element<'a> {
    pub(super) fn new(session: &'a Session, found: &Value) -> Result<Self> {
        let id = found[IDENTIFIER].as_str().with_context(|| format!("no element: {found}"))?;
        Ok(Self { session, id: id.to_owned() })
    }

    /// Scrolls to it and clicks it where a mouse would.
    ///
    /// # Errors
    /// If it is hidden, or something lies above it.
    pub fn click(&self) -> Result<()> {
        self.session.command(&format!("element/{}/click", self.id))
    }

    /// Picks the option with this value of a `select`.
    ///
    /// # Errors
    /// If it has none.
    pub fn select(&self, value: &str) -> Result<()> {
        let selector = format!("option[value={value:?}]");
        let found = self.session.post(
            &format!("element/{}/element", self.id),
            &json!({ "using": "css selector", "value": selector }),
        )?;
        Element::new(self.session, &found)?.click()
    }

    /// Sends keys to it.
    ///
    /// # Errors
    /// If it takes none.
    pub fn press(&self, keys: &str) -> Result<()> {
        self.session.post(&format!("element/{}/value", self.id), &json!({ "text": keys }))?;
        Ok(())
    }

    /// Its text as it is shown.
    ///
    /// # Errors
    /// If it is no longer on the page.
    pub fn text(&self) -> Result<String> {
        let text = self.session.get(&format!("element/{}/text", self.id))?;
        Ok(text.as_str().context("a text")?.to_owned())
    }

    /// An attribute as it stands in the page; none if it does not.
    ///
    /// # Errors
    /// If the element is no longer on the page.
    pub fn attribute(&self, name: &str) -> Result<Option<String>> {
        let value = self.session.get(&format!("element/{}/attribute/{name}", self.id))?;
        Ok(value.as_str().map(str::to_owned))
    }

    /// Whether a person sees it.
    ///
    /// # Errors
    /// If it is no longer on the page.
    pub fn is_displayed(&self) -> Result<bool> {
        let shown = self.session.get(&format!("element/{}/displayed", self.id))?;
        shown.as_bool().context("yes or no")
    }
}
