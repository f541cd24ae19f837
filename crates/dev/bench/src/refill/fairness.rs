//! What a saturated ring does to rings of depth 1 on the same iothread.
//!
//! The saturated ring refills itself, so it needs no client and never has nothing. The guests of the
//! quiet rings are this thread, on a CPU of its own: it makes a request available, spins until it
//! is used, and makes the next available at once.
//!
//! The latency of a request goes from just before it is made available to when its used index is
//! seen. A request without an answer when the window closes counts with its age: a ring that is not
//! served at all shows.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use iothread::{Iothread, PlacedFrontEnd};
use load::Latency;
use rustix::event::{EventfdFlags, eventfd};
use virtio_blk::BlkRing;

use crate::clock;
use crate::cpus::ProcessCpus;
use crate::disks::{DISK_BYTES, DiskFile};
use crate::measure::{Values, as_f64, percentiles};
use crate::refill::guest::{Direction, Guest, Shape};
use crate::refill::{Answers, RAMP, Refilling, SATURATED, Stage};
use crate::results::{Contender, Metric};
use crate::rows::Disk;

const QUIET: Shape = Shape { direction: Direction::Read, depth: 1, block: 4096 };
const SEED_OF_SATURATED: u64 = 1 << 32;
/// How many looks at used rings without an answer there are between two at the clock.
const LOOKS_PER_CLOCK: u32 = 1024;

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fairness {
    pub(crate) disk: Disk,
    /// So many rings of depth 1.
    pub(crate) quiet: u16,
    /// The bytes that each request of the saturated ring reads.
    pub(crate) block: usize,
}

/// Who is on the iothread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    Quiet,
    Saturated,
    Both,
}

impl Fairness {
    /// One sample: the iothread on the servers' CPUs, the guests of the quiet rings on this thread.
    pub(crate) fn measure(
        self,
        company: Company,
        file: Option<DiskFile<'_>>,
        cpus: &ProcessCpus,
        runtime: Duration,
    ) -> Result<Vec<(Contender, Values)>> {
        let (stage, iothread) = cpus.as_server(|| -> Result<_> {
            let stage = Stage::new(file)?;
            let iothread = stage.iothread("t")?;
            Ok((stage, iothread))
        })??;
        let busy = match company {
            Company::Quiet => None,
            Company::Saturated | Company::Both => {
                let shape = Shape { block: self.block, ..SATURATED };
                Some(stage.saturate(shape, SEED_OF_SATURATED, &iothread)?)
            }
        };
        let quiet = match company {
            Company::Saturated => 0,
            Company::Quiet | Company::Both => self.quiet,
        };
        let quiet = (0..quiet).map(|ring| Quiet::new(&stage, u64::from(ring), &iothread));
        let mut quiet = quiet.collect::<Result<Vec<_>>>()?;
        let answers = busy.as_ref().map(|(_, answers)| Arc::clone(answers));
        let served = move || answers.as_ref().map_or(0, |it| it.0.load(Ordering::Relaxed));
        spin(&mut quiet, RAMP)?;
        let (opened, before) = (clock::now(), served());
        let latency = spin(&mut quiet, runtime)?;
        let (elapsed, served) = (opened.elapsed(), served() - before);
        let rate = |count| (Metric::RequestsPerS, as_f64(count) / elapsed.as_secs_f64());

        let mut values = Vec::new();
        if !quiet.is_empty() {
            let mut own = percentiles(&latency);
            own.extend([rate(latency.count())]);
            let alone = company == Company::Quiet;
            let who = if alone { Contender::QuietAlone } else { Contender::QuietBeside };
            values.push((who, own));
        }
        if busy.is_some() {
            let alone = company == Company::Saturated;
            let who = if alone { Contender::SaturatedAlone } else { Contender::SaturatedBeside };
            values.push((who, Values::from([rate(served)])));
        }
        stop(busy, quiet)?;
        Ok(values)
    }
}

fn stop(busy: Option<(PlacedFrontEnd<Refilling>, Arc<Answers>)>, quiet: Vec<Quiet>) -> Result<()> {
    let busy = busy.into_iter().map(|(placed, _)| placed.stop().counters());
    let quiet = quiet.into_iter().map(|quiet| quiet.placed.stop().counters());
    let errors: u64 = busy.chain(quiet).map(|counters| counters.errors).sum();
    anyhow::ensure!(errors == 0, "{errors} requests failed");
    Ok(())
}

/// A ring of depth 1 and its guest.
#[derive(Debug)]
struct Quiet {
    guest: Guest,
    kick: OwnedFd,
    placed: PlacedFrontEnd<BlkRing>,
    /// When its request was made available.
    since: Instant,
}

impl Quiet {
    fn new(stage: &Stage, seed: u64, on: &Arc<Iothread>) -> Result<Self> {
        let guest = Guest::new(QUIET, seed, DISK_BYTES).context("make a guest")?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC)?;
        let ring = stage.ring(&guest, kick.try_clone()?)?;
        let placed = stage.place(ring, on)?;
        Ok(Self { guest, kick, placed, since: clock::now() })
    }

    /// Takes its answer, if there is one, and makes the next request available.
    fn go_on(&mut self) -> Result<Option<(Instant, Duration)>> {
        if self.guest.answers() == 0 {
            return Ok(None);
        }
        let now = clock::now();
        self.guest.refill();
        if self.guest.wants_kick() {
            rustix::io::write(&self.kick, &1_u64.to_ne_bytes())?;
        }
        let latency = now - std::mem::replace(&mut self.since, now);
        Ok(Some((now, latency)))
    }
}

/// Plays the guests for so long.
fn spin(quiet: &mut [Quiet], runtime: Duration) -> Result<Latency> {
    let mut latency = Latency::default();
    let end = clock::now() + runtime;
    if quiet.is_empty() {
        clock::pause(runtime);
        return Ok(latency);
    }
    let (mut now, mut looks) = (clock::now(), 0);
    while now < end {
        for ring in &mut *quiet {
            if let Some((seen, waited)) = ring.go_on()? {
                latency.record(waited);
                (now, looks) = (seen, 0);
            }
        }
        std::hint::spin_loop();
        looks += 1;
        if looks == LOOKS_PER_CLOCK {
            (now, looks) = (clock::now(), 0);
        }
    }
    quiet.iter().for_each(|ring| latency.record(now.saturating_duration_since(ring.since)));
    Ok(latency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_companies_give_values() {
        let cpus = ProcessCpus::split(None, None).unwrap();
        let fairness = Fairness { disk: Disk::Null, quiet: 2, block: 4096 };
        let measure = |company| {
            let values = fairness.measure(company, None, &cpus, Duration::from_millis(50));
            values.unwrap().into_iter().map(|(who, values)| (who, values.len())).collect::<Vec<_>>()
        };
        assert_eq!(measure(Company::Quiet), [(Contender::QuietAlone, 3)]);
        assert_eq!(measure(Company::Saturated), [(Contender::SaturatedAlone, 1)]);
        let both = [(Contender::QuietBeside, 3), (Contender::SaturatedBeside, 1)];
        assert_eq!(measure(Company::Both), both);
    }
}
