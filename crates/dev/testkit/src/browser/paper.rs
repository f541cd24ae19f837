//! Pictures and print-outs of the page.
//!
//! Limits: pictures are at most `HEIGHT_MAX` high.

use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::{Browser, Screen};

const CM_PER_INCH: f64 = 2.54;
/// What is below is left out of pictures, in CSS pixels.
const HEIGHT_MAX: u32 = 8000;

/// A sheet, upright.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paper {
    /// In cm.
    pub width: f64,
    /// In cm.
    pub height: f64,
    /// On each side, in cm, where the page does not say otherwise.
    pub margin: f64,
}

impl Paper {
    /// With the margins of a usual printer.
    pub const A4: Self = Self { width: 21.0, height: 29.7, margin: 1.0 };
}

/// A print-out.
#[derive(Clone, Debug)]
pub struct Pdf {
    /// The file.
    pub bytes: Vec<u8>,
}

impl Pdf {
    /// How many sheets it has.
    pub fn pages(&self) -> usize {
        // Chromium writes dictionaries as plain text; `/Type /Pages` is the list of them.
        const PAGE: &[u8] = b"/Type /Page";
        let starts = self.bytes.windows(PAGE.len() + 1);
        starts.filter(|it| it.starts_with(PAGE) && it.last() != Some(&b's')).count()
    }
}

impl Browser {
    /// Takes a picture of the page from its top, also of what one must scroll to, and writes it as PNG.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn picture(&self, file: &Path) -> Result<()> {
        let height = self.value("document.documentElement.scrollHeight")?;
        let height = height.as_u64().and_then(|it| u32::try_from(it).ok()).context("a height")?;
        let screen = self.screen.get();
        // On a screen that shows all of it: what nobody sees yet may not be drawn.
        self.show_on(Screen { height: height.clamp(screen.height, HEIGHT_MAX), ..screen })?;
        let taken = self.devtools(
            "Page.captureScreenshot",
            &json!({ "format": "png", "optimizeForSpeed": true }),
        );
        self.show_on(screen)?;
        std::fs::write(file, decode(&taken?["data"])?).with_context(|| file.display().to_string())
    }

    /// Prints the page, with its own rules for paper.
    ///
    /// # Errors
    /// If the browser cannot.
    pub fn print(&self, paper: Paper) -> Result<Pdf> {
        let Paper { width, height, margin } = paper;
        let inches = |cm: f64| cm / CM_PER_INCH;
        // Tags tell readers of screens what is a table; for a long page they take ten times as long as its sheets.
        let parameters = json!({
            "paperWidth": inches(width), "paperHeight": inches(height), "preferCSSPageSize": true,
            "generateTaggedPDF": false,
            "marginTop": inches(margin), "marginBottom": inches(margin),
            "marginLeft": inches(margin), "marginRight": inches(margin),
        });
        let printed = self.devtools("Page.printToPDF", &parameters)?;
        Ok(Pdf { bytes: decode(&printed["data"])? })
    }
}

fn decode(text: &Value) -> Result<Vec<u8>> {
    BASE64_STANDARD.decode(text.as_str().context("base64 is text")?).context("decode base64")
}
