//! A worker of the cluster as a place where fio runs.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::cluster::Worker;
use agent::{JOB, Start};
use anyhow::Result;
use load::fio::command;
use storage::clock;

use crate::measure::fio::{Ended, Place, Reports};

/// So long after the first of several is told to start all of them do: longer than it takes to tell the last, with so much more for each.
const AHEAD: Duration = Duration::from_secs(2);
const AHEAD_EACH: Duration = Duration::from_millis(20);

/// The moment at which all workers start.
#[derive(Debug)]
pub(super) struct Barrier {
    ahead: Duration,
    at: Cell<Option<SystemTime>>,
}

impl Barrier {
    /// For so many.
    pub(super) fn of(workers: usize) -> Self {
        let each = AHEAD_EACH * u32::try_from(workers).unwrap_or(u32::MAX);
        Self { ahead: AHEAD + each, at: Cell::new(None) }
    }

    /// The same for all that ask before it has come.
    fn moment(&self) -> SystemTime {
        let now = UNIX_EPOCH + clock::since_epoch();
        let at = self.at.get().filter(|at| *at > now).unwrap_or(now + self.ahead);
        self.at.set(Some(at));
        at
    }
}

/// A pod or a virtual machine.
#[derive(Debug)]
pub(super) struct WorkerPlace<'a> {
    pub(super) worker: &'a mut Worker,
    /// None where there is one worker.
    pub(super) barrier: Option<&'a Barrier>,
}

impl Place for WorkerPlace<'_> {
    fn name(&self) -> String {
        let Worker { name, node, .. } = &*self.worker;
        format!("in {name} on {node}")
    }

    fn put(&mut self, job: &str) -> Result<()> {
        self.worker.agent.put(job);
        Ok(())
    }

    fn start(&mut self, reports: Reports) -> Result<Option<u32>> {
        let words = command(JOB, None, reports == Reports::EachSecond);
        let at = self.barrier.map_or(Start::Now, |barrier| Start::At(barrier.moment()));
        self.worker.agent.start(&words, at)?;
        Ok(None)
    }

    fn printed(&mut self) -> Result<Vec<u8>> {
        Ok(self.worker.agent.printed()?)
    }

    fn poll(&mut self) -> Result<Option<Ended>> {
        let ended = self.worker.agent.poll()?;
        Ok(ended.map(|it| Ended { output: it.output, failed: it.failed, ended: it.ended_at }))
    }
}
