//! Engines of threads that own no ring: they open images, look at them and close them.
//!
//! Where it stands: the same tasks that run on iothreads run here, on lanes that no client uses, and have their
//! internal I/Os carried out like everywhere else; only that this thread makes the calls itself, and sleeps if one
//! waits.
//!
//! Threads: each engine belongs to the thread that made it, which it blocks.
//! Limits: storage that is no file is given up when it carries nothing out for [`ANSWER_MAX`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use block::{Clock, ControlEngine, EngineFactory, LaneError, LaneOpener, Node};
use kernel_io::{EngineKernel, FileTable, Kernel, Notifier, WaitMode};

use super::Engine;

/// How long storage that is no file may carry nothing out before it is given up: as long as the stop of a source.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The same of storage that was given up before: there is no use in waiting again.
const ANSWER_MAX_AGAIN: Duration = Duration::from_secs(1);

/// Makes the engines of control threads, which own no ring, on the files of one table.
#[derive(Debug)]
pub struct ControlEngineFactory {
    table: Arc<FileTable>,
    clock: Arc<dyn Clock>,
}

impl ControlEngineFactory {
    /// On these files, by this clock.
    pub fn new(table: &Arc<FileTable>, clock: &Arc<dyn Clock>) -> Self {
        Self { table: Arc::clone(table), clock: Arc::clone(clock) }
    }
}

impl EngineFactory for ControlEngineFactory {
    fn make(&self) -> io::Result<Box<dyn ControlEngine>> {
        let notifier = Arc::new(Notifier::new()?);
        let kernel = Kernel::blocking(Arc::clone(&self.table)).map_err(io::Error::other)?;
        Ok(Box::new(Engine::with(kernel, notifier, Arc::clone(&self.clock))))
    }
}

impl<K: EngineKernel> ControlEngine for Engine<K> {
    fn open(&mut self, node: &Arc<dyn Node>, make: &mut LaneOpener<'_>) -> Result<(), LaneError> {
        // Open as long as the engine is there.
        self.lanes.open_with(node, make).map(|_lane| ())
    }

    fn run(&mut self, mut future: Pin<&mut (dyn Future<Output = ()> + '_)>) {
        let called = self.lanes.new_call();
        let waker = Waker::from(Arc::clone(&called));
        let mut context = Context::from_waker(&waker);
        let mut patience = Patience { since: self.clock.now(), carried_out: 0 };
        while future.as_mut().poll(&mut context).is_pending() {
            loop {
                self.turn(&mut patience);
                if called.take() {
                    break;
                }
            }
        }
        // What it has begun last.
        self.lanes.note_all();
        while !self.is_over() {
            self.turn(&mut patience);
        }
    }
}

/// Since when storage that is no file has carried nothing out.
struct Patience {
    since: Instant,
    carried_out: u64,
}

impl<K: EngineKernel> Engine<K> {
    /// Does what there is to do, or waits until there is something.
    fn turn(&mut self, patience: &mut Patience) {
        // The future has used the lanes.
        self.lanes.note_all();
        let now = self.clock.now();
        let wait = match self.due() {
            _ if self.has_own_work() => WaitMode::Poll,
            Some(due) => WaitMode::AtMost(due.at.saturating_duration_since(now)),
            None if self.lanes.channels.is_empty() => WaitMode::Block,
            None => WaitMode::AtMost(ANSWER_MAX_AGAIN),
        };
        self.wait(wait).expect("an epoll of our own can be waited with");
        if self.due().is_some() {
            self.resume(self.clock.now());
        }
        // Nobody kicks, and the notifier was only to wake.
        self.dispatch(&mut Vec::new());
        self.give_up_storage(patience);
    }

    /// Ends what waits for storage that is no file and answers nothing.
    fn give_up_storage(&mut self, patience: &mut Patience) {
        let channels = &self.lanes.channels;
        if channels.is_empty() {
            return;
        }
        let (now, carried_out) = (self.clock.now(), channels.carried_out());
        if patience.carried_out != carried_out {
            *patience = Patience { since: now, carried_out };
            return;
        }
        let limit = if channels.is_unresponsive(None) { ANSWER_MAX_AGAIN } else { ANSWER_MAX };
        if now.saturating_duration_since(patience.since) >= limit {
            self.lanes.all().into_iter().for_each(|lane| self.abandon_lane(lane));
            patience.since = now;
        }
    }
}
