//! What the daemon has, held against bounds: throughout, and when the attackers have left.
//!
//! Threads: one that looks again and again; whoever judges the rest asks it afterwards.
//! Limits: [`Bounds`]; a look that falls into a change of processes is left out.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::service::{Phase, Service};
use crate::deadline::poll_until;
use crate::holdings::{Holdings, anonymous_kib, mapped_kib};

/// Between two looks at memory.
const LOOK: Duration = Duration::from_millis(20);
/// Every so many of them everything is looked at, which takes longer.
const LOOKS: u32 = 10;

/// What the daemon may have beyond what it had with its bystanders alone.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Memory of its own at any time, in KiB.
    pub memory_kib: u64,
    /// The same when the attackers have left.
    pub memory_left_kib: u64,
    /// Descriptors at any time.
    pub descriptors: usize,
    /// The same when the attackers have left: an iothread keeps what it has made for a disk when that was first used.
    pub descriptors_left: usize,
    /// Threads at any time; none is left.
    pub threads: usize,
    /// Addresses at any time, in KiB.
    pub mapped_kib: u64,
    /// How long it may take to let go of what attackers have left.
    pub release: Duration,
    /// Lines of the log in any case.
    pub lines: u64,
    /// And for each second.
    pub lines_per_second: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            memory_kib: 512 << 10,
            memory_left_kib: 64 << 10,
            descriptors: 400,
            descriptors_left: 24,
            threads: 100,
            mapped_kib: 64 << 30,
            release: Duration::from_secs(20),
            lines: 1000,
            lines_per_second: 100,
        }
    }
}

/// What there was at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peaks {
    /// Memory of its own, in KiB.
    pub memory_kib: u64,
    /// Descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
}

/// What the daemon had with its bystanders alone.
#[derive(Clone, Debug)]
pub(super) struct Watch<'a> {
    service: &'a Service,
    bounds: Bounds,
    memory_kib: u64,
    mapped_kib: u64,
    holdings: Holdings,
}

impl<'a> Watch<'a> {
    pub(super) fn new(service: &'a Service, bounds: Bounds) -> Result<Self> {
        let process = service.process();
        let memory_kib = anonymous_kib(process)?;
        let holdings = Holdings::of(process)?;
        Ok(Self { service, bounds, memory_kib, mapped_kib: mapped_kib(process)?, holdings })
    }

    /// Looks as long as there are attackers.
    pub(super) fn work(&self) -> Result<Peaks> {
        let mut peaks = Peaks::default();
        let mut looks = 0;
        while self.service.goes_on(Phase::Attack) {
            let process = self.service.process();
            // What cannot be looked at is gone; whether it should be is the operator's to say.
            if let Ok(memory) = anonymous_kib(process) {
                self.judge_memory(memory)?;
                peaks.memory_kib = peaks.memory_kib.max(memory);
            }
            if looks % LOOKS == 0
                && let Ok(holdings) = Holdings::of(process)
            {
                self.judge_holdings(&holdings)?;
                peaks.descriptors = peaks.descriptors.max(holdings.descriptors);
                peaks.threads = peaks.threads.max(holdings.threads);
                if let Ok(mapped) = mapped_kib(process) {
                    let most = self.mapped_kib + self.bounds.mapped_kib;
                    ensure!(mapped <= most, "the daemon has mapped {} GiB", mapped >> 20);
                }
            }
            looks += 1;
            self.service.rest(LOOK, Phase::Attack);
        }
        Ok(peaks)
    }

    fn judge_memory(&self, memory: u64) -> Result<()> {
        let most = self.memory_kib + self.bounds.memory_kib;
        ensure!(memory <= most, "the daemon grew from {} to {memory} KiB", self.memory_kib);
        Ok(())
    }

    fn judge_holdings(&self, now: &Holdings) -> Result<()> {
        let Holdings { descriptors, threads, .. } = self.holdings;
        let (most, threads) =
            (descriptors + self.bounds.descriptors, threads + self.bounds.threads);
        ensure!(now.descriptors <= most, "the daemon has {} descriptors", now.descriptors);
        ensure!(now.threads <= threads, "the daemon has {} threads", now.threads);
        Ok(())
    }

    /// Nothing of the attackers is left.
    pub(super) fn judge_rest(&self) -> Result<()> {
        let process = self.service.process();
        let mut allowed = self.holdings.clone();
        allowed.descriptors += self.bounds.descriptors_left;
        let most = self.memory_kib + self.bounds.memory_left_kib;
        let mut last = None;
        let back = poll_until("the daemon to give back what it held", self.bounds.release, || {
            let (now, memory) = (Holdings::of(process)?, anonymous_kib(process)?);
            let is_back = now.is_within(&allowed) && memory <= most;
            last = Some((now, memory));
            Ok(is_back.then_some(()))
        });
        let before = (&self.holdings, self.memory_kib);
        back.with_context(|| format!("before, with KiB: {before:?}, now: {last:?}"))
    }
}
