//! The terminal: waits for keys, signals and news of daemons, and draws.
//!
//! Invariants: the terminal is given back before the process ends or stops, by whatever signal. A signal that ends it does so as if
//! nobody had caught it, so that whoever started it sees that.
//! Threads: this one; `keys` and `signals` wait for theirs and send them here. Limits: keys are drawn at once, news at most every
//! `FRAME`, however many daemons there are.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ratatui::crossterm::event::{self, Event as TerminalEvent};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::app::{Action, App};
use crate::arguments::TopArgs;
use crate::clock;
use crate::fault_point::pressed;
use crate::fleet::{Link, News};
use crate::screen::{Theme, draw};
use crate::sources::{SOCKETS_MAX, Sources};
use crate::terminal::Screen;
use crate::views::Wanted;
use crate::watcher::{Order, watch};

/// News are drawn together that come within a quarter of an interval, and these times.
const FRAME: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(500)];
/// Without news it is drawn so often, for the ages that are shown.
const IDLE: Duration = Duration::from_secs(1);
/// How often new daemons are looked for.
const RESCAN: Duration = Duration::from_secs(2);
/// For so long a daemon is shown as gone whose socket has gone too, if nobody named it.
const FORGET: Duration = Duration::from_secs(60);

/// What it waits for.
#[derive(Debug)]
enum Event {
    Terminal(TerminalEvent),
    /// Nothing can be typed any more.
    NoKeys(std::io::Error),
    Signal(i32),
    News(usize, News),
}

/// Whether it goes on.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    On,
    /// A person has seen enough.
    Leave,
    /// This signal ends it.
    Die(i32),
}

struct Live {
    app: App,
    screen: Screen,
    theme: Theme,
    began: Instant,
    sources: Sources,
    /// Where orders for each daemon go.
    orders: BTreeMap<usize, Sender<Order>>,
    events: Sender<Event>,
    rescan: Instant,
}

/// Shows it until a person leaves.
pub(crate) fn run(arguments: &TopArgs, sources: Sources, wanted: Wanted) -> Result<()> {
    let (events, received) = channel();
    // Before the terminal is taken: nothing may end this process unheard after that.
    hear_signals(events.clone())?;
    let app = App::new(wanted, arguments.interval, sources.nothing());
    let screen = Screen::open()?;
    hear_keys(events.clone())?;
    let began = clock::now();
    let (theme, orders, rescan) = (Theme::of_environment(), BTreeMap::new(), began);
    let mut live = Live { app, screen, theme, began, sources, orders, events, rescan };
    let step = live.serve(&received);
    live.screen.close();
    match step? {
        Step::Die(signal) => emulate_default_handler(signal).context("end by a signal"),
        Step::On | Step::Leave => Ok(()),
    }
}

fn hear_signals(events: Sender<Event>) -> Result<()> {
    let all = [SIGTERM, SIGHUP, SIGINT, SIGTSTP, SIGCONT];
    let mut signals = Signals::new(all).context("catch signals")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            // Nobody listens any more if it cannot be sent.
            let _ended = signals.forever().try_for_each(|it| events.send(Event::Signal(it)));
        })
        .context("start a thread")?;
    Ok(())
}

fn hear_keys(events: Sender<Event>) -> Result<()> {
    let hear = move || loop {
        let (event, is_last) = match event::read() {
            Ok(event) => (Event::Terminal(event), false),
            Err(error) => (Event::NoKeys(error), true),
        };
        if events.send(event).is_err() || is_last {
            return;
        }
    };
    let thread = std::thread::Builder::new().name("keys".to_owned());
    thread.spawn(hear).context("start a thread")?;
    Ok(())
}

impl Live {
    fn serve(&mut self, received: &Receiver<Event>) -> Result<Step> {
        self.look_for_daemons()?;
        self.draw()?;
        let (mut drawn, mut is_new) = (clock::now(), false);
        loop {
            let frame = (self.app.interval / 4).clamp(FRAME[0], FRAME[1]);
            let wait = if is_new { frame } else { IDLE };
            let end = drawn + wait;
            let is_urgent = match received.recv_timeout(end.saturating_duration_since(clock::now()))
            {
                Ok(Event::News(daemon, news)) => {
                    let is_answer = matches!(news, News::Done(_));
                    self.app.hear(daemon, news, self.now());
                    is_new = true;
                    is_answer
                }
                Ok(event) => match self.take(event)? {
                    Step::On => true,
                    step @ (Step::Leave | Step::Die(_)) => return Ok(step),
                },
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => bail!("nothing is heard any more"),
            };
            if clock::now() >= self.rescan {
                self.look_for_daemons()?;
            }
            if is_urgent || clock::now() >= drawn + frame {
                self.draw()?;
                (drawn, is_new) = (clock::now(), false);
            }
        }
    }

    /// The time since the start.
    fn now(&self) -> Duration {
        clock::now().saturating_duration_since(self.began)
    }

    fn draw(&mut self) -> Result<()> {
        let (now, theme) = (self.now(), self.theme);
        let app = &mut self.app;
        self.screen.draw(|frame| draw(frame, app, now, theme))
    }

    fn take(&mut self, event: Event) -> Result<Step> {
        match event {
            Event::News(..) => {}
            Event::NoKeys(error) => return Err(error).context("read from the terminal"),
            Event::Signal(SIGTSTP) => self.suspend()?,
            Event::Signal(SIGCONT) => self.screen.reopen()?,
            Event::Signal(signal) => return Ok(Step::Die(signal)),
            Event::Terminal(event) => {
                // Another size needs nothing but to be drawn.
                let TerminalEvent::Key(key) = event else { return Ok(Step::On) };
                pressed(key);
                let action = self.app.press(key, self.now());
                return self.act(action);
            }
        }
        Ok(Step::On)
    }

    fn act(&mut self, action: Action) -> Result<Step> {
        match action {
            Action::Nothing => {}
            Action::Quit => return Ok(Step::Leave),
            Action::Suspend => self.suspend()?,
            Action::Redraw => self.screen.reopen()?,
            Action::Order(daemon, order) => {
                let is_sent = self.orders.get(&daemon).is_some_and(|it| it.send(order).is_ok());
                if !is_sent {
                    let news = News::Done(Err("the daemon is not watched any more".to_owned()));
                    self.app.hear(daemon, news, self.now());
                }
            }
            Action::Interval(interval) => {
                for orders in self.orders.values() {
                    // A watcher that has ended looks at nothing.
                    drop(orders.send(Order::Interval(interval)));
                }
            }
        }
        Ok(Step::On)
    }

    /// Stops the process as if nobody had caught the signal; goes on when it is continued.
    fn suspend(&mut self) -> Result<()> {
        self.screen.close();
        emulate_default_handler(SIGTSTP).context("stop")?;
        self.screen.reopen()
    }

    /// Watches what is there and is not watched yet; forgets what has been gone for long.
    fn look_for_daemons(&mut self) -> Result<()> {
        self.rescan = clock::now() + RESCAN;
        let found = self.sources.find();
        let now = self.now();
        let is_forgotten = |it: &&crate::fleet::Daemon| {
            let Link::Gone { since, .. } = it.link else { return false };
            let is_over = now.saturating_sub(since) > FORGET;
            is_over && !self.sources.names(&it.socket) && !found.contains(&it.socket)
        };
        let forgotten: Vec<usize> =
            self.app.fleet.all().iter().filter(is_forgotten).map(|it| it.number).collect();
        for number in forgotten {
            self.app.fleet.remove(number);
            self.orders.remove(&number);
        }
        for socket in found {
            if self.app.fleet.is_watched(&socket) || self.app.fleet.all().len() >= SOCKETS_MAX {
                continue;
            }
            let number = self.app.fleet.add(socket.clone());
            let events = self.events.clone();
            let tell = move |news| events.send(Event::News(number, news)).is_ok();
            let orders = watch(&socket, self.app.interval, self.began, tell);
            self.orders.insert(number, orders.context("start a thread")?);
        }
        Ok(())
    }
}
