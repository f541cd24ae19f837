//! The hysteresis probe in numbers: low, high, low again, and whether the second low is the first. Pure functions.
//!
//! The two lows are compared inside a repeat, so that slow drift of the machine cancels. Whether they differ is
//! decided by all repeats: noise of the machine must not be called memory.

use std::time::Duration;

use plan::cell::Cell;
use plan::contender::Contender;
use plan::lists::sorted;
use plan::runs::{PROBE_PHASES, Purpose, pair_of};
use plan::variant::Variant;
use records::results::Run;

use super::{cpus, median, merged};
use crate::stats::Estimate;

/// Lows that differ by less are called equal even if all repeats agree: machines drift as much.
pub const REMEMBERS_FROM: f64 = 0.05;
/// Noise alone gives so many repeats the same sign once in 32 times; two every second time.
const REMEMBERS_REPEATS: usize = 6;

/// One contender that went up and came down again.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// The storage below.
    pub variant: Variant,
    /// What serves the disk.
    pub contender: Contender,
    /// The guest's CPUs were emulated.
    pub emulated: bool,
    /// Low, high, low again; one that failed in all repeats is missing.
    pub phases: Vec<Phase>,
    /// Whether it stays slow.
    pub memory: Memory,
}

/// One level of load.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// 0 is low, 1 high, 2 low again.
    pub step: u32,
    /// The load.
    pub cell: Cell,
    /// Requests that the load keeps in flight on all disks together.
    pub in_flight: u64,
    /// Requests per second.
    pub iops: Estimate,
    /// Of all repeats together.
    pub mean: Option<Duration>,
    /// 99 of 100 requests took at most so long.
    pub p99: Option<Duration>,
    /// IOPS by Little's law: requests in flight ÷ mean latency, median of the repeats.
    pub little: Option<f64>,
    /// The IOPS relative to those by Little's law, likewise; 1 is equal.
    pub to_little: Option<f64>,
    /// CPUs of the host in use, and how many it has.
    pub cpus: Option<(f64, usize)>,
}

/// Whether a contender remembers the high load. The ratios are the second low relative to the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    /// No repeat has both lows.
    Unknown,
    /// One repeat cannot tell memory from noise.
    Once(f64),
    /// The repeats do not agree which low is faster.
    InsideSpread(Estimate),
    /// They agree, but the difference is less than `REMEMBERS_FROM`.
    Small(Estimate),
    /// They agree, but so few, this many, agree by chance too.
    MayRemember(Estimate, usize),
    /// They agree.
    Remembers(Estimate),
}

/// All probes in the order in which they first appear. `jobs` are those of the settings: low, high, low, high.
pub fn probes(runs: &[Run], jobs: &[u16]) -> Vec<Probe> {
    let mut all: Vec<Vec<&Run>> = Vec::new();
    for run in runs.iter().filter(|run| run.key.purpose == Purpose::Probe) {
        match all.iter_mut().find(|probe| same(probe[0], run, jobs)) {
            Some(probe) => probe.push(run),
            None => all.push(vec![run]),
        }
    }
    all.iter().map(|runs| probe(runs)).collect()
}

/// Whether two runs are phases of the same probe.
fn same(a: &Run, b: &Run, jobs: &[u16]) -> bool {
    let place = |run: &Run| {
        let shape = run.key.cell.shape();
        (shape.operation(), shape.block().get(), shape.iodepth(), pair_of(&run.key.cell, jobs))
    };
    a.key.variant == b.key.variant && a.key.contender == b.key.contender && place(a) == place(b)
}

fn probe(runs: &[&Run]) -> Probe {
    let first = runs[0];
    Probe {
        variant: first.key.variant,
        contender: first.key.contender,
        emulated: runs.iter().any(|run| run.emulated),
        phases: (0..PROBE_PHASES).filter_map(|step| phase(step, runs)).collect(),
        memory: memory(runs),
    }
}

fn phase(step: u32, runs: &[&Run]) -> Option<Phase> {
    let own: Vec<&Run> = runs.iter().copied().filter(|run| run.key.step == step).collect();
    let key = &own.first()?.key;
    let shape = key.cell.shape();
    let in_flight = u64::from(shape.jobs())
        * u64::from(shape.iodepth())
        * u64::from(key.variant.vms)
        * u64::from(key.variant.disks);
    let latency = merged(own.iter().map(|run| run.latency()));
    let little = |run: &Run| {
        let mean = run.latency().mean()?.as_secs_f64();
        (mean > 0.0).then(|| in_flight as f64 / mean)
    };
    Some(Phase {
        step,
        cell: key.cell,
        in_flight,
        iops: Estimate::of(own.iter().map(|run| run.iops()))?,
        mean: latency.mean(),
        p99: latency.percentile(99.0),
        little: median(own.iter().filter_map(|run| little(run))),
        to_little: median(own.iter().filter_map(|run| Some(run.iops() / little(run)?))),
        cpus: cpus(&own),
    })
}

fn memory(runs: &[&Run]) -> Memory {
    let low = |step: u32, repeat: u16| {
        let run = runs.iter().find(|run| run.key.step == step && run.key.repeat == repeat)?;
        Some(run.iops()).filter(|&iops| iops > 0.0)
    };
    let repeats = sorted(runs.iter().map(|run| run.key.repeat));
    let last = PROBE_PHASES - 1;
    let ratio = |&repeat: &u16| Some(low(last, repeat)? / low(0, repeat)?);
    judge(&repeats.iter().filter_map(ratio).collect::<Vec<f64>>())
}

fn judge(ratios: &[f64]) -> Memory {
    let Some(spread) = Estimate::of(ratios.iter().copied()) else { return Memory::Unknown };
    if ratios.len() == 1 {
        return Memory::Once(spread.median);
    }
    if spread.lowest <= 1.0 && spread.highest >= 1.0 {
        return Memory::InsideSpread(spread);
    }
    if (spread.median - 1.0).abs() < REMEMBERS_FROM {
        return Memory::Small(spread);
    }
    if ratios.len() < REMEMBERS_REPEATS {
        return Memory::MayRemember(spread, ratios.len());
    }
    Memory::Remembers(spread)
}

#[cfg(test)]
mod tests {
    use plan::testing::{cell, client};
    use records::testing::probe_runs;

    use super::*;

    #[track_caller]
    fn check(ratios: &[f64], expected: fn(Estimate) -> Memory) {
        let spread = Estimate::of(ratios.iter().copied()).unwrap();
        assert_eq!(judge(ratios), expected(spread));
    }

    #[test]
    fn only_what_all_repeats_show_is_called_memory() {
        check(&[1.9, 2.1, 2.3, 1.9, 2.1, 2.3], Memory::Remembers);
        check(&[0.4, 0.5, 0.4, 0.5, 0.4, 0.5, 0.4], Memory::Remembers);
        check(&[1.9, 2.1, 2.3, 1.9, 2.1], |spread| Memory::MayRemember(spread, 5));
        check(&[0.4, 0.5], |spread| Memory::MayRemember(spread, 2));
        check(&[0.97, 1.02, 1.08], Memory::InsideSpread);
        check(&[1.0, 1.5, 1.6], Memory::InsideSpread);
        check(&[1.01, 1.02, 1.2], Memory::Small);
        check(&[0.98, 0.96], Memory::Small);
        assert_eq!(judge(&[2.0]), Memory::Once(2.0));
        assert_eq!(judge(&[]), Memory::Unknown);
    }

    #[test]
    fn lows_are_compared_inside_a_repeat() {
        // The machine is twice as fast in the second repeat, and the contender remembers in both.
        let runs =
            [probe_runs(client(1), 0, [100, 500, 200]), probe_runs(client(1), 1, [200, 900, 400])];
        let probes = probes(&runs.concat(), &[4, 40]);
        let expected = Estimate::of([2.0; 2]).unwrap();
        assert_eq!(probes[0].memory, Memory::MayRemember(expected, 2));
    }

    #[test]
    fn a_repeat_without_both_lows_does_not_count() {
        let mut runs = probe_runs(client(1), 0, [100, 500, 200]);
        runs.extend(probe_runs(client(1), 1, [200, 900, 400]).into_iter().take(2));
        assert_eq!(probes(&runs, &[4, 40])[0].memory, Memory::Once(2.0));
        runs.remove(0);
        let probe = &probes(&runs[..1], &[4, 40])[0];
        assert_eq!((probe.memory, probe.phases.len()), (Memory::Unknown, 1));
    }

    #[test]
    fn probes_are_told_apart_by_contender_and_pair() {
        let mut runs = probe_runs(client(0), 0, [1, 2, 1]);
        runs.extend(probe_runs(client(1), 0, [1, 2, 1]));
        for mut run in probe_runs(client(1), 0, [1, 2, 1]) {
            let jobs = run.key.cell.shape().jobs() * 2;
            run.key.cell = cell("randread", 4096, jobs, 1);
            runs.push(run);
        }
        let probes = probes(&runs, &[4, 40, 8, 80]);
        let in_flight =
            |probe: &Probe| probe.phases.iter().map(|p| p.in_flight).collect::<Vec<_>>();
        let all: Vec<_> = probes.iter().map(|p| (p.contender, in_flight(p))).collect();
        let (low, high) = (vec![4, 40, 4], vec![8, 80, 8]);
        assert_eq!(all, [(client(0), low.clone()), (client(1), low), (client(1), high)]);
    }

    #[test]
    fn littles_law_is_requests_in_flight_over_latency() {
        let mut runs = probe_runs(client(1), 0, [40_000, 100, 40_000]);
        for run in &mut runs {
            (run.key.variant.vms, run.key.variant.disks) = (2, 3);
        }
        let phase = &probes(&runs, &[4, 40])[0].phases[0];
        assert_eq!(phase.in_flight, 24);
        // 24 in flight for 100 µs each are 240,000 per second.
        assert!((phase.little.unwrap() / 240_000.0 - 1.0).abs() < 0.01, "{phase:?}");
        assert!((phase.to_little.unwrap() * 6.0 - 1.0).abs() < 0.01, "{phase:?}");
    }
}
