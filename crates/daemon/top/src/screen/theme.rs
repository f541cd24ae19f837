//! Colours: the sixteen of the terminal, so that they suit its background; with NO_COLOR none, and weights instead.

use ratatui::style::{Color, Modifier, Style};

/// Whether colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Theme {
    Colours,
    Plain,
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
    /// As the environment has it: `NO_COLOR` with any text in it.
    pub(crate) fn of_environment() -> Self {
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
        if is_plain { Self::Plain } else { Self::Colours }
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
        match (self, colour) {
            (Self::Colours, Some(colour)) => style.fg(colour),
            (Self::Colours, None) | (Self::Plain, _) => style,
        }
    }
}
