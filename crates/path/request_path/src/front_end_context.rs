//! What a front end uses of the iothread that serves it.
//!
//! Where it stands in the life of a request: at its end, when the client is told.
//!
//! Threads: only there, and only as long as the call that it was lent for.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use block::{Buffers, RequestSlot};

use crate::{Engine, RouteIndex};

/// What a front end can use of the iothread that serves it: clock, eventfds, timers, its open reads.
#[derive(Debug)]
pub struct FrontEndContext<'a> {
    engine: &'a mut Engine,
    route: RouteIndex,
    /// A read that waits for room in its lane.
    waiting: Option<(RequestSlot, &'a Buffers)>,
    wants_turn: bool,
}

impl<'a> FrontEndContext<'a> {
    pub(crate) fn new(
        engine: &'a mut Engine,
        route: RouteIndex,
        waiting: Option<(RequestSlot, &'a Buffers)>,
    ) -> Self {
        Self { engine, route, waiting, wants_turn: false }
    }

    /// Tells the other side by its eventfd. Does not sleep, whatever that side did to it.
    pub fn signal(&mut self, fd: BorrowedFd<'_>, what: &str) {
        self.engine.signal(fd, what);
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.engine.now()
    }

    /// The CPU time that this thread has used.
    pub fn cpu_time(&self) -> Duration {
        kernel_io::thread_cpu_time()
    }

    /// Has the source given a turn soon: there is something new, and no kick will tell.
    pub fn call(&mut self) {
        self.wants_turn = true;
    }

    /// Has the source given a turn at that time, or a little later.
    pub fn call_at(&mut self, at: Instant) {
        self.engine.call_at(at, self.route);
    }

    /// The reads that were brought and are carried out on this iothread, or wait, and where their data go.
    pub fn open_reads(&self) -> impl Iterator<Item = (RequestSlot, &Buffers)> {
        self.engine.reads_in_flight(self.route).chain(self.waiting)
    }

    pub(crate) fn wants_turn(&self) -> bool {
        self.wants_turn
    }
}
