//! Which key does what; the help is made of the same table.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::views::View;

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Quit,
    Help,
    Show(View),
    NextView,
    LastView,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Open,
    Back,
    Sort,
    SortBack,
    Reverse,
    Filter,
    Freeze,
    Faster,
    Slower,
    Move,
    Pin,
    Place,
    Suspend,
    Redraw,
}

/// Keys that do the same.
#[derive(Debug)]
pub(crate) struct Binding {
    keys: &'static [(KeyCode, KeyModifiers)],
    command: Command,
    /// The keys, for people; nothing if it is said with another binding.
    pub(crate) shown: &'static str,
    pub(crate) help: &'static str,
}

const fn plain(key: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(key), KeyModifiers::NONE)
}

const fn control(key: char) -> (KeyCode, KeyModifiers) {
    (KeyCode::Char(key), KeyModifiers::CONTROL)
}

const fn named(code: KeyCode) -> (KeyCode, KeyModifiers) {
    (code, KeyModifiers::NONE)
}

const fn binding(
    keys: &'static [(KeyCode, KeyModifiers)],
    command: Command,
    shown: &'static str,
    help: &'static str,
) -> Binding {
    Binding { keys, command, shown, help }
}

/// All keys.
pub(crate) const BINDINGS: &[Binding] = &[
    binding(&[plain('q'), control('c')], Command::Quit, "q", "leave (also Ctrl-C)"),
    binding(&[plain('?'), plain('h'), named(KeyCode::F(1))], Command::Help, "?", "this help"),
    binding(&[plain('1')], Command::Show(View::Exports), "1 … 5", "exports, queues, iothreads …"),
    binding(&[plain('2')], Command::Show(View::Queues), "", ""),
    binding(&[plain('3')], Command::Show(View::Iothreads), "", ""),
    binding(&[plain('4')], Command::Show(View::Jobs), "", ""),
    binding(&[plain('5')], Command::Show(View::Placement), "", ""),
    binding(&[named(KeyCode::Tab)], Command::NextView, "Tab", "the next of these"),
    binding(&[named(KeyCode::BackTab)], Command::LastView, "", ""),
    binding(&[named(KeyCode::Up), plain('k')], Command::Up, "↑ ↓", "choose a row"),
    binding(&[named(KeyCode::Down), plain('j')], Command::Down, "", ""),
    binding(&[named(KeyCode::PageUp)], Command::PageUp, "PgUp PgDn", "a page of rows"),
    binding(&[named(KeyCode::PageDown)], Command::PageDown, "", ""),
    binding(&[named(KeyCode::Home), plain('g')], Command::First, "Home End", "first, last row"),
    binding(&[named(KeyCode::End), plain('G')], Command::Last, "", ""),
    binding(&[named(KeyCode::Enter)], Command::Open, "Enter", "the queues of the export"),
    binding(&[named(KeyCode::Esc)], Command::Back, "Esc", "back; no filter"),
    binding(&[plain('s')], Command::Sort, "s S", "sort by the next, the last"),
    binding(&[plain('S')], Command::SortBack, "", ""),
    binding(&[plain('r')], Command::Reverse, "r", "the other way round"),
    binding(&[plain('/')], Command::Filter, "/", "only names with a text"),
    binding(&[plain(' '), plain('f')], Command::Freeze, "space", "freeze what is shown"),
    binding(&[plain('+'), plain('=')], Command::Faster, "+ -", "look more, less often"),
    binding(&[plain('-')], Command::Slower, "", ""),
    binding(&[plain('m')], Command::Move, "m", "move to another iothread"),
    binding(&[plain('p')], Command::Pin, "p", "pin a queue in its pool"),
    binding(&[plain('F')], Command::Place, "F", "freeze placement, or not"),
    binding(&[control('z')], Command::Suspend, "Ctrl-Z", "suspend (fg: back)"),
    binding(&[control('l')], Command::Redraw, "Ctrl-L", "draw all of it anew"),
];

/// What a key asks for, if anything.
pub(crate) fn command(key: KeyEvent) -> Option<Command> {
    let pressed = (key.code, key.modifiers.difference(KeyModifiers::SHIFT));
    BINDINGS.iter().find(|it| it.keys.contains(&pressed)).map(|it| it.command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_does_two_things() {
        let mut all: Vec<_> = BINDINGS.iter().flat_map(|it| it.keys).collect();
        let count = all.len();
        all.sort_by_key(|it| format!("{it:?}"));
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn capitals_come_with_shift_or_without() {
        for modifiers in [KeyModifiers::NONE, KeyModifiers::SHIFT] {
            let key = KeyEvent::new(KeyCode::Char('S'), modifiers);
            assert_eq!(command(key), Some(Command::SortBack));
        }
        let key = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(command(key), Some(Command::Quit));
        assert_eq!(command(KeyEvent::from(KeyCode::Char('c'))), None);
    }
}
