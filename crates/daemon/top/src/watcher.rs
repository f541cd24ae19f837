//! Watches one daemon: asks it once in each interval, carries orders out, comes back when it was gone.
//!
//! Invariants: the monitor's connection is kept, so that the daemon's log has one line for it. Everything that happens is told, and
//! whoever listens may go at any time.
//! Threads: one for each daemon, so that one that hangs holds up nobody.
//! Limits: those of `ctl`'s client for each answer; `RETRY` between two tries to connect.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use ctl::QmpClient;
use serde_json::{Value, json};

use crate::clock;
use crate::fleet::News;
use crate::snapshot::{Replies, Snapshot};

/// How long a daemon that is gone is left alone.
const RETRY: Duration = Duration::from_secs(1);

/// A thread for each daemon has this, which its JSON needs less than half of.
const STACK_BYTES: usize = 512 << 10;

/// What a watcher is told to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Order {
    /// A queue, or all of an export, goes to that iothread.
    Move { export: String, queue: Option<u16>, iothread: String },
    /// A queue stays on the iothread of that number, or `none`.
    Pin { export: String, queue: u16, iothread: String },
    /// A pool places queues, or does not.
    Place { pool: String, mode: String },
    /// Another time between two looks.
    Interval(Duration),
}

/// Whoever listens has gone away.
#[derive(Debug, PartialEq, Eq)]
struct Deaf;

struct Watcher<T> {
    socket: PathBuf,
    interval: Duration,
    began: Instant,
    orders: Receiver<Order>,
    tell: T,
    /// Questions that the daemon does not have.
    unknown: Vec<&'static str>,
}

/// Starts to watch a daemon; gives where orders go. It ends when nobody listens: `tell` says whether somebody does.
pub(crate) fn watch(
    socket: &Path,
    interval: Duration,
    began: Instant,
    tell: impl Fn(News) -> bool + Send + 'static,
) -> io::Result<Sender<Order>> {
    let (sender, orders) = channel();
    let socket = socket.to_owned();
    let mut watcher = Watcher { socket, interval, began, orders, tell, unknown: Vec::new() };
    std::thread::Builder::new()
        .name("watch".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || while watcher.serve() != Err(Deaf) {})?;
    Ok(sender)
}

impl<T: Fn(News) -> bool> Watcher<T> {
    fn say(&self, news: News) -> Result<(), Deaf> {
        if (self.tell)(news) { Ok(()) } else { Err(Deaf) }
    }

    /// From one connection to its end, and until it may be tried again.
    fn serve(&mut self) -> Result<(), Deaf> {
        self.unknown.clear();
        let waits = |sentence: &str| drop(self.say(News::Waits(sentence.to_owned())));
        let error = match QmpClient::connect(&self.socket, waits) {
            Ok(mut client) => self.look(&mut client)?,
            Err(error) => error,
        };
        self.say(News::Gone(format!("{error:#}")))?;
        let end = clock::now() + RETRY;
        while let Some(order) = self.next_order(end)? {
            match order {
                Order::Interval(interval) => self.interval = interval,
                Order::Move { .. } | Order::Pin { .. } | Order::Place { .. } => {
                    self.say(News::Done(Err("the daemon is gone".to_owned())))?;
                }
            }
        }
        Ok(())
    }

    /// Looks at it once in each interval, until it cannot be talked to.
    fn look(&mut self, client: &mut QmpClient) -> Result<anyhow::Error, Deaf> {
        let mut next = clock::now();
        loop {
            match self.ask(client) {
                Ok(snapshot) => self.say(News::Told(Box::new(snapshot)))?,
                Err(error) => return Ok(error),
            }
            next = (next + self.interval).max(clock::now());
            while let Some(order) = self.next_order(next)? {
                if let Order::Interval(interval) = order {
                    next = (next - self.interval + interval).max(clock::now());
                    self.interval = interval;
                    continue;
                }
                let done = carry_out(client, &order).map_err(|error| format!("{error:#}"));
                self.say(News::Done(done))?;
                // What came of it is seen at once.
                break;
            }
        }
    }

    /// The next order before that time.
    fn next_order(&self, end: Instant) -> Result<Option<Order>, Deaf> {
        match self.orders.recv_timeout(end.saturating_duration_since(clock::now())) {
            Ok(order) => Ok(Some(order)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Deaf),
        }
    }

    fn ask(&mut self, client: &mut QmpClient) -> Result<Snapshot> {
        let mut asked = |question: &'static str| -> Result<Option<Vec<Value>>> {
            if self.unknown.contains(&question) {
                return Ok(None);
            }
            let reply = client.list(question, &json!({}))?;
            if reply.is_none() {
                self.unknown.push(question);
            }
            Ok(reply)
        };
        let exports = asked("query-block-exports")?;
        let queues = asked("query-ringloom-queues")?;
        // The sums are those of the moment of the answer, however long it was waited for.
        let at = clock::now().saturating_duration_since(self.began);
        let iothreads = asked("query-ringloom-iothreads")?;
        let pools = asked("query-ringloom-pools")?;
        let jobs = asked("query-jobs")?;
        let block_jobs = asked("query-block-jobs")?;
        let nbd_nodes = asked("query-ringloom-nbd-nodes")?;
        let storage = asked("query-ringloom-storage")?;
        Replies { exports, queues, iothreads, pools, jobs, block_jobs, nbd_nodes, storage }.read(at)
    }
}

/// Carries an order out, in the words of `ringloom ctl`.
fn carry_out(client: &mut QmpClient, order: &Order) -> Result<String> {
    let answer = match order {
        Order::Move { export, queue, iothread } => ctl::move_to(client, export, *queue, iothread)?,
        Order::Pin { export, queue, iothread } => ctl::pin(client, export, Some(*queue), iothread)?,
        Order::Place { pool, mode } => ctl::placement(client, pool, mode)?,
        Order::Interval(_) => return Ok(String::new()),
    };
    Ok(answer.text.trim_end().to_owned())
}
