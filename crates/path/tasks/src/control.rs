//! How a thread that owns no ring uses lanes.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use block::{Clock, Due, ErrandRunner, LaneError, LaneIo, Node, SystemClock};

use crate::storage::Storage;
use crate::task::block_on;

/// The longest pause before a child that holds a request is asked again.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// A thread's handle on lanes: it carries their errands out itself.
#[derive(Debug)]
pub struct Control {
    io: LaneIo,
    /// Whether lanes have something to do besides.
    called: Arc<Called>,
    runner: Arc<dyn ErrandRunner>,
}

#[derive(Debug, Default)]
struct Called(AtomicBool);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Control {
    /// Of a thread whose errands that carries out.
    pub fn new(runner: &Arc<dyn ErrandRunner>) -> Self {
        Self::with(runner, LaneIo::new)
    }

    /// For nodes that may not be claimed yet.
    pub fn before_claim(runner: &Arc<dyn ErrandRunner>) -> Self {
        Self::with(runner, LaneIo::before_claim)
    }

    fn with(runner: &Arc<dyn ErrandRunner>, io: impl FnOnce(Waker) -> LaneIo) -> Self {
        let called = Arc::new(Called::default());
        let io = io(Waker::from(Arc::clone(&called)));
        Self { io, called, runner: Arc::clone(runner) }
    }

    /// Opens a lane on a node, for this thread.
    pub fn open(&self, node: &Arc<dyn Node>) -> Result<Storage, LaneError> {
        let alignment = node.limits().request_alignment.get();
        Ok(Storage::new(node.open_lane(&self.io)?, &self.io, alignment.into()))
    }

    /// Runs a future to its end, and what the lanes have begun meanwhile for themselves. Those are the
    /// lanes that it uses.
    pub fn run<T>(&self, storages: &[&Storage], future: impl Future<Output = T>) -> T {
        let idle = Cell::new(false);
        let result = block_on(future, || {
            if self.work(storages) {
                idle.set(false);
            } else if idle.replace(true) {
                std::thread::park_timeout(PAUSE_MAX);
            }
        });
        while self.work(storages) {}
        result
    }

    /// Carries errands out and calls the lanes, which may hold what they were asked; whether there was
    /// anything to do.
    fn work(&self, storages: &[&Storage]) -> bool {
        let was_called = self.called.0.swap(false, Ordering::Acquire);
        let mut errands = Vec::new();
        self.io.take_submitted(&mut errands);
        let has_begun = !errands.is_empty();
        for errand in errands {
            self.runner.run(errand);
        }
        let now = SystemClock.now();
        storages.iter().for_each(|storage| storage.resume(now));
        let is_due = |due: Due| due.at <= now;
        was_called || has_begun || storages.iter().any(|it| it.due().is_some_and(is_due))
    }
}
