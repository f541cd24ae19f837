//! Screens of several sizes, as a person sees them; whole ones are in `tests/*.txt`.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::style::{Color, Modifier};

use super::theme::Colours;
use super::*;
use crate::app::tests::app;
use crate::fleet::News;
use crate::snapshot::Queue;
use crate::views::tests::snapshot;

const NOW: Duration = Duration::from_secs(2);

const COLOURS: Theme = Theme { colours: Colours::Some, letters: Letters::Utf8 };
const PLAIN: Theme = Theme { colours: Colours::None, letters: Letters::Ascii };

fn buffer(app: &mut App, (width, height): (u16, u16), now: Duration, theme: Theme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
    terminal.draw(|frame| draw(frame, app, now, theme)).expect("memory");
    terminal.backend().buffer().clone()
}

/// The lines of a screen, without blanks at their ends.
fn lines(app: &mut App, size: (u16, u16)) -> Vec<String> {
    let buffer = buffer(app, size, NOW, COLOURS);
    let line = |row| {
        let cells = (0..size.0).map(|column| buffer[(column, row)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..size.1).map(line).collect()
}

#[track_caller]
fn check(app: &mut App, size: (u16, u16), expected: &str) {
    let found = lines(app, size).join("\n");
    assert_eq!(found.trim_end(), expected.trim_end(), "\n{found}");
}

/// A daemon whose second export has a queue that does not answer.
fn hung() -> App {
    let mut app = app(&["vm"]);
    for second in 3..=14 {
        let mut told = snapshot(second);
        let queue = Queue {
            export: "vm2".to_owned(),
            queue: 3,
            iothread: "t1".to_owned(),
            in_flight: 16,
            ..Queue::default()
        };
        told.queues.as_mut().expect("queues").push(queue);
        app.hear(0, News::Told(Box::new(told)), Duration::from_secs(second));
    }
    app
}

#[test]
fn a_usual_terminal_has_room_for_what_matters() {
    check(&mut app(&["vm"]), (80, 24), include_str!("tests/usual.txt"));
}

#[test]
fn a_high_one_shows_iothreads_jobs_and_placement_as_well() {
    check(&mut app(&["vm"]), (120, 40), include_str!("tests/high.txt"));
}

#[test]
fn a_wide_one_is_used() {
    check(&mut app(&["vm-a", "vm-b"]), (200, 50), include_str!("tests/wide.txt"));
}

#[test]
fn in_too_small_a_terminal_it_is_said() {
    let text = "ringloom top needs 60 × 10 characters;\nhere are 40 × 8. q leaves";
    check(&mut app(&["vm"]), (40, 8), text);
    for size in [(1, 1), (59, 10), (60, 9), (5, 100)] {
        lines(&mut app(&["vm"]), size);
    }
    let smallest = lines(&mut hung(), (WIDTH_MIN, HEIGHT_MIN));
    assert!(smallest[3].starts_with("!! export vm2: queue 3: 16 requests"), "{smallest:?}");
}

#[test]
fn what_is_wrong_is_seen_first() {
    let now = Duration::from_secs(14);
    let mut app = hung();
    let buffer = buffer(&mut app, (80, 24), now, COLOURS);
    let row = |row: u16| (0..80).map(|column| buffer[(column, row)].symbol()).collect::<String>();
    assert!(row(0).contains("1 BAD"), "{}", row(0));
    let told = "!! export vm2: queue 3: 16 requests open, none answered for 12 s";
    assert_eq!(row(3).trim_end(), told);
    assert_eq!(buffer[(0, 3)].fg, Color::Red);
    // The first row of the table is the export that has it.
    assert!(row(5).starts_with("!! vm2 "), "{}", row(5));
    assert_eq!(buffer[(3, 5)].fg, Color::Red);
}

#[test]
fn without_colours_it_is_told_as_well() {
    let buffer = buffer(&mut hung(), (80, 24), Duration::from_secs(14), PLAIN);
    let is_coloured = |it: &ratatui::buffer::Cell| it.fg != Color::Reset || it.bg != Color::Reset;
    assert!(!buffer.content().iter().any(is_coloured));
    assert!(buffer[(0, 3)].modifier.contains(Modifier::BOLD));
    assert_eq!(buffer[(0, 3)].symbol(), "!");
    assert!(buffer.content().iter().all(|it| it.symbol().is_ascii()));
}

#[test]
fn prompts_messages_and_help_are_shown() {
    let press = |app: &mut App, keys: &str| {
        for key in keys.chars() {
            app.press(KeyEvent::from(KeyCode::Char(key)), NOW);
        }
    };
    let mut app = app(&["vm"]);
    press(&mut app, "2mt");
    let last = lines(&mut app, (100, 24)).pop().unwrap_or_default();
    let asked = "move queue 1 of vm1, until its client leaves, to iothread: t    (t0, t1; Tab goes";
    assert!(last.starts_with(asked), "{last}");
    app.press(KeyEvent::from(KeyCode::Esc), NOW);
    app.hear(0, News::Done(Err("this monitor is read-only".to_owned())), NOW);
    let last = lines(&mut app, (80, 24)).pop().unwrap_or_default();
    assert_eq!(last, "refused: this monitor is read-only");
    // What is long has more rows, and nothing of it is lost.
    let desc = "The command x-blockdev-set-iothread is not available: this monitor is read-only";
    app.hear(0, News::Done(Err(desc.to_owned())), NOW);
    let shown = lines(&mut app, (80, 24));
    assert_eq!(shown[22..].join(" "), format!("refused: {desc}"));
    app.press(KeyEvent::from(KeyCode::Esc), NOW);
    press(&mut app, "2mt");
    let shown = lines(&mut app, (80, 24));
    assert_eq!(shown[22], "move queue 1 of vm1, until its client leaves, to iothread: t");
    assert_eq!(shown[23], "(t0, t1; Tab goes through them)");
    app.press(KeyEvent::from(KeyCode::Esc), NOW);
    press(&mut app, "p1");
    let shown = lines(&mut app, (60, 24)).split_off(21);
    assert_eq!(shown[0], "pin queue 1 of vm1, also after a restart, to iothread");
    assert_eq!(shown[1], "number:");
    assert!(shown[2].starts_with("1 "), "{shown:?}");
    app.press(KeyEvent::from(KeyCode::Esc), NOW);
    press(&mut app, "?");
    let help = lines(&mut app, (80, 24));
    assert!(help[0].starts_with("ringloom top: keys"), "{help:?}");
    let keys = crate::keys::BINDINGS.iter().map(|it| it.help.chars().count());
    assert!(keys.max() <= Some(80 / 2 - 12), "a help that has no room in half a screen");
    let meanings = help[1..].iter().map(|it| it.chars().count());
    assert!(meanings.max() < Some(80), "{help:?}");
    for text in ["leave (also Ctrl-C)", "pin a queue in its pool", "P50, P99", "any key: back"] {
        assert!(help.iter().any(|line| line.contains(text)), "{text} in {help:?}");
    }
}

#[test]
fn a_daemon_that_says_nothing_of_queues_is_told() {
    let mut app = app(&["vm"]);
    let mut told = snapshot(3);
    (told.queues, told.iothreads, told.pools) = (None, None, Vec::new());
    app.hear(0, News::Gone("another one comes".to_owned()), NOW);
    app.hear(0, News::Told(Box::new(told)), NOW);
    let shown = lines(&mut app, (80, 24));
    let note = "qmp.sock: no query-ringloom-queues there, so exports and jobs without figures";
    assert_eq!(shown[3], note);
}

#[test]
fn without_daemons_it_says_what_it_looks_for() {
    let mut app = app(&[]);
    let shown = lines(&mut app, (80, 24)).join("\n");
    assert!(shown.contains("no monitors; they are looked for every 2 s"), "{shown}");
}

#[test]
fn what_is_too_long_is_seen_to_go_on() {
    assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
    assert_eq!(wrapped("abcdefghij", 4), ["abcd", "efgh", "ij"]);
    assert_eq!(wrapped("abcdefghijklmnop", 4), ["abcd", "efgh", "ijk…"]);
    assert_eq!(wrapped("", 4), [""]);
    let mut app = app(&["vm"]);
    app.wanted.filter = "vm-with-a-long-name".to_owned();
    app.wanted.is_reversed = true;
    let shown = lines(&mut app, (80, 24));
    assert!(shown[2].ends_with(" /vm-with-a-long-nam…"), "{}", shown[2]);
    assert!(lines(&mut app, (100, 24))[2].ends_with("/vm-with-a-long-name  by trouble ↑"));
}
