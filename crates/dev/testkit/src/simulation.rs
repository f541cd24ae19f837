//! Iothreads, files and channels that exist in memory alone: real engines on a kernel whose operations go on one step at a
//! time, by one seed, on a clock that stands still until it is moved.
//!
//! Where it stands: under the pure form of the conformance suite ([`crate::conformance::play`]) and under the rig of
//! qcow2 ([`crate::qcow2rig`]). Those decide what is asked and judge what comes of it; here is what happens between: a
//! `machine::Machine` chooses who goes on, `iothread` runs an engine, `kernel` and `channel` begin operations,
//! `disk` remembers what is durable.
//!
//! Invariants: nobody holds the world while an engine is called. All that is random comes from the world's own numbers.
//! Threads: one, for all of it.

pub(crate) mod channel;
pub mod child;
pub mod clock;
pub mod disk;
pub(crate) mod iothread;
pub(crate) mod kernel;
pub(crate) mod log;
pub(crate) mod machine;
mod memory;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{FileId, Outcome};

use crate::rng::Rng;
use channel::Port;
use kernel::{Kernel, Told};
use log::Log;

/// A request that is over.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) number: u64,
    pub(crate) outcome: Outcome,
    /// Its memory.
    pub(crate) data: Vec<u8>,
}

/// What iothreads use besides their own.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) kernel: Kernel,
    pub(crate) log: Log,
    pub(crate) rng: Rng,
    pub(crate) ended: Vec<Ended>,
    /// What the kernel has told each iothread.
    events: Vec<VecDeque<Told>>,
    /// The channels that were opened, also those that are closed.
    ports: Vec<Port>,
    /// The iothread that opens its lane now, unless a control thread does.
    opening: Option<usize>,
    /// Whether an iothread has heard of a sync that failed: no flush that begins now may succeed.
    has_failed_sync: bool,
    /// The first breach of a contract.
    pub(crate) wrong: Option<anyhow::Error>,
    /// Whether the process is dead: nothing that it begins reaches the disk.
    pub(crate) is_dead: bool,
}

impl World {
    pub(crate) fn new(kernel: Kernel, rng: Rng) -> Self {
        Self {
            kernel,
            log: Log::default(),
            rng,
            ended: Vec::new(),
            events: Vec::new(),
            ports: Vec::new(),
            opening: None,
            has_failed_sync: false,
            wrong: None,
            is_dead: false,
        }
    }

    /// Notes a breach of a contract.
    pub(crate) fn note(&mut self, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.wrong.get_or_insert(error);
        }
    }

    /// Whoever has begun an operation hears of its end.
    fn tell(&mut self, told: Told) {
        match told.to.port {
            None => self.events[told.to.thread].push_back(told),
            Some(port) => {
                self.has_failed_sync |= told.is_failed_sync && !self.is_dead;
                self.ports[port].tell(told);
            }
        }
    }

    /// Fails if a contract was broken.
    fn check(&mut self) -> anyhow::Result<()> {
        self.wrong.take().map_or(Ok(()), |wrong| Err(wrong.context(self.log.last())))
    }

    /// The process and all of it are gone.
    fn forget_process(&mut self) {
        self.events.clear();
        self.ports.clear();
        (self.has_failed_sync, self.is_dead) = (false, false);
        self.kernel.forget_connections();
    }

    /// Whether that file is there.
    pub(crate) fn has_file(&self, file: FileId) -> bool {
        self.kernel.disk.has(file)
    }
}

/// All of it, for those who live in it.
#[derive(Clone, Debug)]
pub(crate) struct SharedWorld(Arc<Mutex<World>>);

impl SharedWorld {
    pub(crate) fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
