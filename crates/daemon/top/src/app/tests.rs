//! What keys and news make of what is shown.

use ratatui::crossterm::event::{KeyCode, KeyModifiers};

use super::*;
use crate::arguments::SortKey;
use crate::views::tests::{fleet, snapshot, wanted};

/// With daemons of those names after two seconds.
pub(crate) fn app(daemons: &[&str]) -> App {
    let mut app = App::new(wanted(), Duration::from_secs(1), "no monitors".to_owned());
    app.fleet = fleet(daemons, 2);
    app.page = 10;
    app
}

const NOW: Duration = Duration::from_secs(2);

fn press(app: &mut App, keys: &[KeyCode]) -> Action {
    let press = |key: &KeyCode| app.press(KeyEvent::from(*key), NOW);
    keys.iter().map(press).last().unwrap_or(Action::Nothing)
}

fn type_text(app: &mut App, text: &str) -> Action {
    press(app, &text.chars().map(KeyCode::Char).collect::<Vec<_>>())
}

fn chosen(app: &mut App) -> (String, Option<u64>) {
    let key = app.chosen(NOW).expect("a row");
    (key.name, key.queue)
}

#[test]
fn rows_are_chosen_and_followed() {
    let mut app = app(&["vm"]);
    type_text(&mut app, "2");
    assert_eq!(chosen(&mut app), ("vm1".to_owned(), Some(1)));
    press(&mut app, &[KeyCode::Down]);
    assert_eq!(chosen(&mut app), ("vm1".to_owned(), Some(0)));
    press(&mut app, &[KeyCode::Down, KeyCode::PageDown]);
    assert_eq!(chosen(&mut app), ("vm1".to_owned(), Some(0)));
    // The other order has it in another place.
    type_text(&mut app, "r");
    assert_eq!((chosen(&mut app), app.place), (("vm1".to_owned(), Some(0)), 0));
    press(&mut app, &[KeyCode::End]);
    assert_eq!(app.place, 1);
}

#[test]
fn rows_that_have_no_room_are_scrolled_to() {
    let mut app = app(&["a", "b", "c"]);
    app.page = 2;
    press(&mut app, &[KeyCode::End]);
    let table = app.table(View::Exports, NOW);
    assert_eq!((app.follow(&table), app.offset), (Some(5), 4));
    press(&mut app, &[KeyCode::Home]);
    assert_eq!((app.follow(&table), app.offset), (Some(0), 0));
    app.page = 10;
    press(&mut app, &[KeyCode::End]);
    assert_eq!((app.follow(&table), app.offset), (Some(5), 0));
}

#[test]
fn an_export_is_opened_and_left() {
    let mut app = app(&["vm"]);
    press(&mut app, &[KeyCode::Enter]);
    assert_eq!((app.view, app.table(View::Queues, NOW).rows.len()), (View::Queues, 2));
    press(&mut app, &[KeyCode::Esc, KeyCode::Down, KeyCode::Enter]);
    assert_eq!((app.view, app.table(View::Queues, NOW).rows.len()), (View::Queues, 0));
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!((app.view, chosen(&mut app).0.as_str()), (View::Exports, "vm2"));
    press(&mut app, &[KeyCode::Tab, KeyCode::Tab]);
    assert_eq!(app.view, View::Iothreads);
}

#[test]
fn a_filter_works_while_it_is_typed() {
    let mut app = app(&["vm"]);
    let rows = |app: &App| app.table(View::Exports, NOW).rows.len();
    type_text(&mut app, "/2");
    assert_eq!(rows(&app), 1);
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!(rows(&app), 2);
    type_text(&mut app, "/vm1");
    press(&mut app, &[KeyCode::Enter]);
    assert_eq!((rows(&app), app.prompt.is_none()), (1, true));
    press(&mut app, &[KeyCode::Esc]);
    assert_eq!(rows(&app), 2);
}

#[test]
fn keys_sort_change_the_interval_and_leave() {
    let mut app = app(&["vm"]);
    type_text(&mut app, "ss");
    assert_eq!(app.wanted.sort, SortKey::Iops);
    type_text(&mut app, "S");
    assert_eq!(app.wanted.sort, SortKey::Name);
    assert_eq!(type_text(&mut app, "-"), Action::Interval(Duration::from_secs(2)));
    assert_eq!(type_text(&mut app, "++"), Action::Interval(Duration::from_millis(500)));
    assert_eq!(type_text(&mut app, "+++"), Action::Nothing);
    assert_eq!(type_text(&mut app, "?"), Action::Nothing);
    assert!(app.is_help);
    assert_eq!(type_text(&mut app, "s"), Action::Nothing);
    assert_eq!((app.is_help, app.wanted.sort), (false, SortKey::Name));
    assert_eq!(type_text(&mut app, "q"), Action::Quit);
    let suspend = KeyEvent::new(KeyCode::Char('z'), KeyModifiers::CONTROL);
    assert_eq!(app.press(suspend, NOW), Action::Suspend);
}

#[test]
fn what_is_frozen_stays_and_does_not_age() {
    let mut app = app(&["vm"]);
    type_text(&mut app, " ");
    app.hear(0, News::Gone("it has ended".to_owned()), NOW);
    let later = Duration::from_secs(60);
    assert_eq!(app.troubles(later), []);
    assert_eq!(app.table(View::Exports, later).rows.len(), 2);
    type_text(&mut app, " ");
    assert_eq!(app.troubles(later).len(), 1);
    assert_eq!(app.table(View::Exports, later).rows.len(), 0);
}

#[test]
fn queues_are_moved_and_pinned_after_a_question() {
    let mut app = app(&["vm"]);
    type_text(&mut app, "2m");
    assert_eq!(app.prompt.as_ref().map(|it| it.choices.join(" ")), Some("t0 t1".to_owned()));
    press(&mut app, &[KeyCode::Tab]);
    let export = || "vm1".to_owned();
    let order = Order::Move { export: export(), queue: Some(1), iothread: "t0".to_owned() };
    assert_eq!(press(&mut app, &[KeyCode::Enter]), Action::Order(0, order));
    type_text(&mut app, "p3");
    let order = Order::Pin { export: export(), queue: 1, iothread: "3".to_owned() };
    assert_eq!(press(&mut app, &[KeyCode::Enter]), Action::Order(0, order));
    type_text(&mut app, "1mp");
    let order = Order::Move { export: export(), queue: None, iothread: "p".to_owned() };
    assert_eq!(press(&mut app, &[KeyCode::Enter]), Action::Order(0, order));
    // Nothing is done without an answer.
    type_text(&mut app, "m");
    assert_eq!(press(&mut app, &[KeyCode::Enter]), Action::Nothing);
    type_text(&mut app, "m");
    assert_eq!(press(&mut app, &[KeyCode::Esc]), Action::Nothing);
    assert_eq!(app.prompt, None);
    // What is not so is offered first.
    type_text(&mut app, "1F");
    assert_eq!(app.prompt.as_ref().map(|it| it.choices.join(" ")), Some("frozen auto".to_owned()));
    press(&mut app, &[KeyCode::Tab]);
    let order = Order::Place { pool: "p".to_owned(), mode: "frozen".to_owned() };
    assert_eq!(press(&mut app, &[KeyCode::Enter]), Action::Order(0, order));
    for keys in ["p", "3m", "4p", "4F"] {
        type_text(&mut app, keys);
        assert!(app.message.as_ref().is_some_and(|it| it.text.starts_with("choose ")), "{keys}");
    }
}

#[test]
fn what_came_of_an_order_is_said_until_the_next_key() {
    let mut app = app(&["vm"]);
    let done = "export vm1: queue 0 is served by t1".to_owned();
    app.hear(0, News::Done(Ok(done.clone())), NOW);
    assert_eq!(app.message, Some(Message { text: done, is_bad: false }));
    app.hear(0, News::Done(Err("this monitor is read-only".to_owned())), NOW);
    let text = "refused: this monitor is read-only".to_owned();
    assert_eq!(app.message, Some(Message { text, is_bad: true }));
    app.hear(0, News::Told(Box::new(snapshot(3))), NOW);
    assert!(app.message.is_some());
    press(&mut app, &[KeyCode::Down]);
    assert_eq!(app.message, None);
}
