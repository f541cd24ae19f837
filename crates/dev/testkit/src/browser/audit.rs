//! What is wrong with how a page looks: what does not fit, and what cannot be read.
//!
//! The scripts look at all elements as the browser laid them out; they run in the page as it is shown now.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Browser, Medium};

const OVERFLOW: &str = include_str!("audit/overflow.js");
const CONTRAST: &str = include_str!("audit/contrast.js");

/// Something wrong with an element.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Its name, id, classes and the beginning of its text.
    pub element: String,
    /// What is wrong with it.
    pub what: String,
    /// How many pixels do not fit, or the contrast.
    pub by: f64,
}

impl Fault {
    fn of(found: &Value) -> Result<Self> {
        let text = |name: &str| {
            found[name].as_str().map(str::to_owned).with_context(|| format!("{name} of {found}"))
        };
        let by = found["by"].as_f64().with_context(|| format!("a number in {found}"))?;
        Ok(Self { element: text("element")?, what: text("what")?, by })
    }

    fn all_of(found: &Value) -> Result<Vec<Self>> {
        found.as_array().context("a list of faults")?.iter().map(Self::of).collect()
    }
}

impl Browser {
    /// What does not fit: into the width of the page, into a chart, or beside another text of a chart. What a person can
    /// scroll to inside the page fits on a screen, but not on paper.
    ///
    /// # Errors
    /// If the script fails.
    pub fn misfits(&self, medium: Medium) -> Result<Vec<Fault>> {
        Fault::all_of(&self.script(OVERFLOW, &[json!(medium == Medium::Print)])?)
    }

    /// Shown texts with less contrast than WCAG 2.1 asks for (AA). Looks at plain colours, not at pictures or gradients.
    ///
    /// # Errors
    /// If the script fails, or the page shows no text.
    pub fn faint_texts(&self) -> Result<Vec<Fault>> {
        let found = self.script(CONTRAST, &[])?;
        ensure!(found["texts"].as_u64() > Some(0), "the page shows no text");
        Fault::all_of(&found["faults"])
    }
}
