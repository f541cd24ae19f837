//! Colours: the sixteen of the terminal, so that they suit its background; with NO_COLOR none, and weights instead. Letters: UTF-8,
//! or ASCII where the locale does not say that.

use ratatui::style::{Color, Modifier, Style};

use super::ascii::is_utf8;

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Theme {
    pub(super) colours: Colours,
    pub(super) letters: Letters,
}

/// Whether colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colours {
    Some,
    None,
}

/// Which letters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Letters {
    Utf8,
    Ascii,
}

/// What a text says by its look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Bad,
    Warning,
    Good,
    Title,
    Faint,
    Picture,
    Chosen,
}

impl Theme {
    /// As the environment has it: `NO_COLOR` with any text in it, and the locale.
    pub(crate) fn of_environment() -> Self {
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
        let colours = if is_plain { Colours::None } else { Colours::Some };
        let letters = if is_utf8() { Letters::Utf8 } else { Letters::Ascii };
        Self { colours, letters }
    }

    pub(super) fn style(self, tone: Tone) -> Style {
        let colour = match tone {
            Tone::Bad => Some(Color::Red),
            Tone::Warning => Some(Color::Yellow),
            Tone::Good => Some(Color::Green),
            Tone::Picture => Some(Color::Cyan),
            Tone::Title | Tone::Faint | Tone::Chosen => None,
        };
        let weight = match tone {
            Tone::Bad | Tone::Title => Modifier::BOLD,
            Tone::Faint => Modifier::DIM,
            Tone::Chosen => Modifier::REVERSED,
            Tone::Warning | Tone::Good | Tone::Picture => Modifier::empty(),
        };
        let style = Style::new().add_modifier(weight);
        match (self.colours, colour) {
            (Colours::Some, Some(colour)) => style.fg(colour),
            (Colours::Some, None) | (Colours::None, _) => style,
        }
    }
}
