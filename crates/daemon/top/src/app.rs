//! What a person sees and has chosen: view, order, filter, row, prompt; and what keys make of it.
//!
//! Where it stands: between keys and news on one side and the screen on the other. It decides; `live` does what it decides.
//!
//! Invariants: what is frozen stays as it was at that moment, ages included, while daemons are watched on. The chosen row is kept by
//! its key; if that is gone, the row that is in its place is chosen.

use std::time::Duration;

use ratatui::crossterm::event::{KeyEvent, KeyEventKind};

use crate::fleet::{Daemon, Fleet, News};
use crate::keys::{Command, command};
use crate::prompt::{Prompt, Question, Typed};
use crate::troubles::{Trouble, troubles};
use crate::views::{RowKey, Table, View, Wanted, table};
use crate::watcher::Order;

/// The intervals that keys choose among, in milliseconds.
const INTERVALS_MS: [u64; 6] = [250, 500, 1000, 2000, 5000, 10_000];

/// What is to be done after a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Nothing,
    Quit,
    Suspend,
    Redraw,
    /// Told to one daemon.
    Order(usize, Order),
    /// Told to all.
    Interval(Duration),
}

/// What is said on the last line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) text: String,
    pub(crate) is_bad: bool,
}

/// The state of the screen.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) fleet: Fleet,
    /// What is shown instead, and its time.
    frozen: Option<(Fleet, Duration)>,
    pub(crate) view: View,
    pub(crate) wanted: Wanted,
    selected: Option<RowKey>,
    /// Where the chosen row is or was.
    pub(crate) place: usize,
    /// The first row that is shown.
    pub(crate) offset: usize,
    /// How many rows are.
    pub(crate) page: usize,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) is_help: bool,
    pub(crate) message: Option<Message>,
    pub(crate) interval: Duration,
    /// What is said while there are no daemons.
    pub(crate) nothing: String,
}

impl App {
    pub(crate) fn new(wanted: Wanted, interval: Duration, nothing: String) -> Self {
        Self {
            fleet: Fleet::default(),
            frozen: None,
            view: View::Exports,
            wanted,
            selected: None,
            place: 0,
            offset: 0,
            page: 1,
            prompt: None,
            is_help: false,
            message: None,
            interval,
            nothing,
        }
    }

    /// What is shown, and the time that it is of.
    pub(crate) fn shown(&self, now: Duration) -> (&Fleet, Duration) {
        match &self.frozen {
            Some((fleet, at)) => (fleet, *at),
            None => (&self.fleet, now),
        }
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// All that is wrong in what is shown.
    pub(crate) fn troubles(&self, now: Duration) -> Vec<Trouble> {
        let (fleet, at) = self.shown(now);
        troubles(fleet, at, self.interval)
    }

    /// The table of a view, for whoever knows what is wrong.
    pub(crate) fn table_with(&self, view: View, now: Duration, troubles: &[Trouble]) -> Table {
        table(view, self.shown(now).0, troubles, &self.wanted)
    }

    /// The table of a view.
    pub(crate) fn table(&self, view: View, now: Duration) -> Table {
        self.table_with(view, now, &self.troubles(now))
    }

    /// Has the chosen row stay the same; gives its place.
    pub(crate) fn follow(&mut self, table: &Table) -> Option<usize> {
        let found = table.rows.iter().position(|row| Some(&row.key) == self.selected.as_ref());
        let last = table.rows.len().checked_sub(1)?;
        self.place = found.unwrap_or(self.place.min(last));
        self.offset = self.offset.min(self.place).min(last.saturating_sub(self.page - 1));
        if self.place >= self.offset + self.page {
            self.offset = self.place + 1 - self.page;
        }
        Some(self.place)
    }

    /// Takes what was told of a daemon.
    pub(crate) fn hear(&mut self, daemon: usize, news: News, now: Duration) {
        if let News::Done(done) = &news {
            let (text, is_bad) = match done {
                Ok(text) => (text.clone(), false),
                Err(text) => (format!("refused: {text}"), true),
            };
            self.message = Some(Message { text, is_bad });
        }
        self.fleet.hear(daemon, news, now);
    }

    /// Takes a key.
    pub(crate) fn press(&mut self, key: KeyEvent, now: Duration) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Nothing;
        }
        self.message = None;
        if self.prompt.is_some() {
            return self.type_key(key);
        }
        let Some(command) = command(key) else { return Action::Nothing };
        if self.is_help && !matches!(command, Command::Quit | Command::Suspend | Command::Redraw) {
            self.is_help = false;
            return Action::Nothing;
        }
        self.run(command, now)
    }

    fn run(&mut self, command: Command, now: Duration) -> Action {
        match command {
            Command::Quit => return Action::Quit,
            Command::Suspend => return Action::Suspend,
            Command::Redraw => return Action::Redraw,
            Command::Faster => return self.change_interval(-1),
            Command::Slower => return self.change_interval(1),
            Command::Help => self.is_help = true,
            Command::Show(view) => self.show(view),
            Command::NextView => self.show(self.view.next(1)),
            Command::LastView => self.show(self.view.next(-1)),
            Command::Up => self.choose(now, |place, _| place.saturating_sub(1)),
            Command::Down => self.choose(now, |place, _| place + 1),
            Command::PageUp => self.choose(now, |place, page| place.saturating_sub(page)),
            Command::PageDown => self.choose(now, |place, page| place + page),
            Command::First => self.choose(now, |_, _| 0),
            Command::Last => self.choose(now, |_, _| usize::MAX),
            Command::Open => self.open(now),
            Command::Back => self.go_back(),
            Command::Sort => self.wanted.sort = self.wanted.sort.next(1),
            Command::SortBack => self.wanted.sort = self.wanted.sort.next(-1),
            Command::Reverse => self.wanted.is_reversed = !self.wanted.is_reversed,
            Command::Filter => {
                let before = self.wanted.filter.clone();
                let question = Question::Filter { before: before.clone() };
                self.prompt = Some(Prompt::new(question, before, Vec::new()));
            }
            Command::Freeze => {
                self.frozen = match self.frozen.take() {
                    Some(_) => None,
                    None => Some((self.fleet.clone(), now)),
                }
            }
            Command::Move => self.ask_move(now),
            Command::Pin => self.ask_pin(now),
            Command::Place => self.ask_placement(now),
        }
        Action::Nothing
    }

    fn show(&mut self, view: View) {
        (self.view, self.wanted.export) = (view, None);
        (self.selected, self.place, self.offset) = (None, 0, 0);
    }

    fn choose(&mut self, now: Duration, to: impl FnOnce(usize, usize) -> usize) {
        let table = self.table(self.view, now);
        let Some(place) = self.follow(&table) else { return };
        self.place = to(place, self.page).min(table.rows.len() - 1);
        self.selected = Some(table.rows[self.place].key.clone());
    }

    /// The chosen row.
    fn chosen(&mut self, now: Duration) -> Option<RowKey> {
        let table = self.table(self.view, now);
        let place = self.follow(&table)?;
        Some(table.rows[place].key.clone())
    }

    fn open(&mut self, now: Duration) {
        if !matches!(self.view, View::Exports | View::Placement) {
            return;
        }
        let Some(key) = self.chosen(now) else { return };
        self.show(View::Queues);
        self.wanted.export = Some(key);
    }

    fn go_back(&mut self) {
        match self.wanted.export.take() {
            Some(key) => {
                self.show(View::Exports);
                self.selected = Some(key);
            }
            None => self.wanted.filter.clear(),
        }
    }

    fn change_interval(&mut self, step: isize) -> Action {
        let now = self.interval.as_millis();
        let mut all = INTERVALS_MS.iter();
        let next = match step {
            ..0 => all.rfind(|it| u128::from(**it) < now),
            _ => all.find(|it| u128::from(**it) > now),
        };
        let Some(next) = next else { return Action::Nothing };
        self.interval = Duration::from_millis(*next);
        Action::Interval(self.interval)
    }

    fn say(&mut self, text: &str) {
        self.message = Some(Message { text: text.to_owned(), is_bad: true });
    }

    /// The export or queue that is chosen, and its daemon.
    fn chosen_queue(&mut self, now: Duration) -> Option<(RowKey, Option<u16>, &Daemon)> {
        let is_right = matches!(self.view, View::Exports | View::Queues | View::Placement);
        let key = if is_right { self.chosen(now) } else { None }?;
        let queue = key.queue.and_then(|it| u16::try_from(it).ok());
        let daemon = self.fleet.get(key.daemon)?;
        Some((key, queue, daemon))
    }

    fn ask_move(&mut self, now: Duration) {
        let Some((key, queue, daemon)) = self.chosen_queue(now) else {
            return self.say("choose an export or a queue first (1, 2)");
        };
        let iothreads = daemon.last.iter().flat_map(|it| it.iothreads.iter().flatten());
        let mut choices: Vec<String> = iothreads.map(|it| it.name.clone()).collect();
        if queue.is_none() {
            let pools = daemon.last.iter().flat_map(|it| &it.pools);
            choices.extend(pools.map(|it| it.name.clone()));
            choices.push("none".to_owned());
        }
        let question = Question::Move { daemon: key.daemon, export: key.name, queue };
        self.prompt = Some(Prompt::new(question, String::new(), choices));
    }

    fn ask_pin(&mut self, now: Duration) {
        let Some((key, Some(queue), daemon)) = self.chosen_queue(now) else {
            return self.say("choose a queue first (2, or Enter on an export)");
        };
        let pools = daemon.last.iter().flat_map(|it| &it.pools);
        let mut pools = pools.filter(|it| it.exports.iter().any(|of| of.export == key.name));
        let Some(pool) = pools.next() else {
            return self.say("no pool places this export, so its queues stay where they are moved");
        };
        let numbers = (0..pool.max).map(|it| it.to_string());
        let choices = numbers.chain(["none".to_owned()]).collect();
        let question = Question::Pin { daemon: key.daemon, export: key.name, queue };
        self.prompt = Some(Prompt::new(question, String::new(), choices));
    }

    fn ask_placement(&mut self, now: Duration) {
        let Some((key, _, daemon)) = self.chosen_queue(now) else {
            return self.say("choose an export or a queue first (1, 2)");
        };
        let mut pools = daemon.last.iter().flat_map(|it| &it.pools);
        let pool = pools.find(|it| it.exports.iter().any(|of| of.export == key.name));
        let Some(pool) = pool else {
            return self.say(&format!("choose another one: no pool places {}", key.name));
        };
        let (pool, mode) = (pool.name.clone(), pool.mode.clone());
        // What would be a change comes first.
        let mut choices = ["frozen", "auto"].map(str::to_owned).to_vec();
        choices.sort_by_key(|choice| mode.as_ref() == Some(choice));
        let question = Question::Place { daemon: key.daemon, pool };
        self.prompt = Some(Prompt::new(question, String::new(), choices));
    }

    /// Takes a key of a line that is typed.
    fn type_key(&mut self, key: KeyEvent) -> Action {
        let Some(mut prompt) = self.prompt.take() else { return Action::Nothing };
        let typed = prompt.press(key);
        if let Question::Filter { before } = &prompt.question {
            // What it leaves is seen while it is typed.
            let is_given_up = typed == Typed::Never;
            self.wanted.filter = if is_given_up { before.clone() } else { prompt.text.clone() };
        }
        match typed {
            Typed::More => self.prompt = Some(prompt),
            Typed::Done if !prompt.text.is_empty() => return order(prompt),
            Typed::Done | Typed::Never => {}
        }
        Action::Nothing
    }
}

fn order(prompt: Prompt) -> Action {
    let answer = prompt.text;
    match prompt.question {
        Question::Place { daemon, pool } => {
            Action::Order(daemon, Order::Place { pool, mode: answer })
        }
        Question::Filter { .. } => Action::Nothing,
        Question::Move { daemon, export, queue } => {
            Action::Order(daemon, Order::Move { export, queue, iothread: answer })
        }
        Question::Pin { daemon, export, queue } => {
            Action::Order(daemon, Order::Pin { export, queue, iothread: answer })
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
