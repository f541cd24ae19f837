//! What the page is shown on: a screen or paper, light or dark, with or without scripts.

use anyhow::Result;
use serde_json::json;

use super::Browser;

/// A screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// In CSS pixels.
    pub width: u32,
    /// In CSS pixels.
    pub height: u32,
    /// Whether it is a phone's, which takes pages that do not name the width of the device for wide ones.
    pub is_phone: bool,
}

impl Screen {
    /// Of a desk.
    pub const DESKTOP: Self = Self { width: 1280, height: 900, is_phone: false };
    /// Of a phone held upright.
    pub const PHONE: Self = Self { width: 390, height: 844, is_phone: true };
    /// The narrowest phone in use.
    pub const NARROW_PHONE: Self = Self { width: 360, height: 740, is_phone: true };
}

/// What the rules of the style sheet are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A screen.
    Screen,
    /// Paper.
    Print,
}

/// The colours that the person prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

/// Medium and colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appearance {
    /// The medium.
    pub medium: Medium,
    /// The colours.
    pub scheme: Scheme,
}

impl Appearance {
    /// As most see it.
    pub const LIGHT: Self = Self { medium: Medium::Screen, scheme: Scheme::Light };
    /// At night.
    pub const DARK: Self = Self { medium: Medium::Screen, scheme: Scheme::Dark };
    /// On paper.
    pub const PRINT: Self = Self { medium: Medium::Print, scheme: Scheme::Light };
}

/// Whether scripts of the page run. Those of the test always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scripts {
    /// They run.
    On,
    /// The person has switched them off.
    Off,
}

impl Browser {
    /// Shows the page on this screen.
    ///
    /// # Errors
    /// If the browser refuses.
    pub fn show_on(&self, screen: Screen) -> Result<()> {
        self.screen.set(screen);
        let Screen { width, height, is_phone } = screen;
        let scale = if is_phone { 2 } else { 1 };
        let metrics = json!({
            "width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics).map(drop)
    }

    /// Lets the style sheet's rules for this medium and these colours hold.
    ///
    /// # Errors
    /// If the browser refuses.
    pub fn appear(&self, appearance: Appearance) -> Result<()> {
        let medium = match appearance.medium {
            // As it is: named, it would also hold where the page is printed.
            Medium::Screen => "",
            Medium::Print => "print",
        };
        let scheme = match appearance.scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        let features = [json!({ "name": "prefers-color-scheme", "value": scheme })];
        let media = json!({ "media": medium, "features": features });
        self.devtools("Emulation.setEmulatedMedia", &media).map(drop)
    }

    /// Switches scripts of pages on or off, for pages that are opened from now on.
    ///
    /// # Errors
    /// If the browser refuses.
    pub fn switch_scripts(&self, scripts: Scripts) -> Result<()> {
        let off = json!({ "value": scripts == Scripts::Off });
        self.devtools("Emulation.setScriptExecutionDisabled", &off).map(drop)
    }
}
