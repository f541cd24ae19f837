//! What the browser noted while the page was used: messages of the console, and requests.
//!
//! Invariants: each note is given once; the next question has only what came after.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Browser;

/// A message in the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `SEVERE`, `WARNING`, `INFO` or `DEBUG`.
    pub level: String,
    /// Where it comes from, and what it says.
    pub text: String,
}

impl Message {
    /// Whether it tells of a mistake in the page.
    pub fn is_complaint(&self) -> bool {
        matches!(self.level.as_str(), "SEVERE" | "WARNING")
    }
}

impl Browser {
    /// The messages in the console: of the page's scripts, and of the browser about the page.
    ///
    /// # Errors
    /// If the browser has ended.
    pub fn console(&self) -> Result<Vec<Message>> {
        let text = |entry: &Value, name: &str| {
            entry[name].as_str().map(str::to_owned).with_context(|| format!("{name} of {entry}"))
        };
        let message = |entry: &Value| {
            Ok(Message { level: text(entry, "level")?, text: text(entry, "message")? })
        };
        self.entries("browser")?.iter().map(message).collect()
    }

    /// The addresses that were asked for, whether they answered or not: the pages themselves and what they load.
    ///
    /// # Errors
    /// If the browser has ended.
    pub fn requests(&self) -> Result<Vec<String>> {
        let mut requests = Vec::new();
        for entry in self.entries("performance")? {
            let text = entry["message"].as_str().context("a message is text")?;
            let event: Value = serde_json::from_str(text).with_context(|| text.to_owned())?;
            let parameters = &event["message"]["params"];
            let url = match event["message"]["method"].as_str() {
                Some("Network.requestWillBeSent") => &parameters["request"]["url"],
                Some("Network.webSocketCreated" | "Network.webTransportCreated") => {
                    &parameters["url"]
                }
                Some(_) | None => continue,
            };
            requests.push(url.as_str().with_context(|| format!("no address: {event}"))?.to_owned());
        }
        Ok(requests)
    }

    fn entries(&self, kind: &str) -> Result<Vec<Value>> {
        let entries = self.session.post("se/log", &json!({ "type": kind }))?;
        Ok(entries.as_array().context("a list of entries")?.clone())
    }
}
