//! The order of the runs: blocks of one cell, one variant and one repeat, shuffled inside from the seed.
//!
//! A block contains every contender once, close together in time, so that the ratios formed inside it are free of
//! slow drift. The blocks of a repeat are a round: before it guests are booted and scratch files filled anew. Between the
//! blocks of a sweep stand sentinels: the same runs again and again, which show drift and what differs from round to round.
//!
//! Invariants: seed and matrix alone decide the plan, so a resumed run continues the same one; all runs of a block have
//! the same offsets; no two runs of a plan have the same key.

use std::fmt;

use load::{Random, Timing};
use serde::{Deserialize, Serialize};

use crate::cell::Cell;
use crate::contender::Contender;
use crate::lists::unique;
use crate::matrix::{Entry, Matrix};
use crate::settings::{Mode, Settings};
use crate::variant::Variant;

/// Shares of the maximum at which a curve measures latency, in percent.
pub const CURVE_PERCENT: [u32; 3] = [50, 70, 90];
/// The share that stands for the maximum itself.
pub const CURVE_MAXIMUM: u32 = 100;
/// The phases of the hysteresis probe: low, high, low again.
pub const PROBE_PHASES: u32 = 3;
/// How much longer runs take where shorter ones were not steady.
pub const STRETCH: u32 = 2;
/// The first stream of the sentinels' seeds, apart from those of the blocks; the next are below.
const SENTINEL_STREAM: u64 = u64::MAX;
/// The first of those of deeper runs; the next are below.
const DEEPER_STREAM: u64 = SENTINEL_STREAM - (1 << 32);

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// Writing until the rate has settled, before anything is measured; `step` counts.
    Precondition,
    /// One contender in one cell.
    Sweep,
    /// Measured again, because it is best or close to the 90 % line: the figures that count.
    Confirm,
    /// The host, or else what is compared first, with more requests in flight than in a cell (`Cell::deeper`): whether the disk
    /// has more to give.
    Deeper,
    /// The host or the first of what is compared once more; `step` counts.
    Sentinel,
    /// A phase of the hysteresis probe; `step` is 0, 1 or 2.
    Probe,
    /// A point of a curve; `step` is the percentage of the maximum, 100 the maximum itself.
    Curve,
}

impl Purpose {
    /// Whether contenders are compared by such runs.
    pub fn is_compared(self) -> bool {
        matches!(self, Self::Sweep | Self::Confirm)
    }
}

/// What tells one run of a plan from all others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunKey {
    /// What it is for.
    pub purpose: Purpose,
    /// Which repeat, from 0 on; a repeat is a round of all cells.
    pub repeat: u16,
    /// Which of the several runs that a purpose has in a repeat, such as the phases of a probe.
    pub step: u32,
    /// What serves the disk.
    #[serde(flatten)]
    pub contender: Contender,
    /// The storage below.
    #[serde(flatten)]
    pub variant: Variant,
    /// The load.
    #[serde(flatten)]
    pub cell: Cell,
}

/// `randread 4k jobs=2 iodepth=16, client 2`, with the variant and the purpose where they are not the usual ones.
impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cell)?;
        let variant = self.variant.to_string();
        if !variant.is_empty() {
            write!(f, ", {variant}")?;
        }
        write!(f, ", {}", self.contender)?;
        self.purpose_name().map_or(Ok(()), |name| write!(f, ", {name}"))
    }
}

impl RunKey {
    /// Whether the next run goes on with the same attached disk: a probe must not forget what went before.
    pub fn keeps_disk(&self) -> bool {
        self.purpose == Purpose::Probe && self.step < PROBE_PHASES - 1
    }

    /// Whether it is the phase after `before`; `jobs` are those of the settings.
    pub fn follows(&self, before: &Self, jobs: &[u16]) -> bool {
        before.keeps_disk() && self.step == before.step + 1 && self.is_same_probe(before, jobs)
    }

    /// Whether both are phases of one probe; `jobs` are those of the settings.
    pub fn is_same_probe(&self, other: &Self, jobs: &[u16]) -> bool {
        (self.purpose, self.repeat) == (other.purpose, other.repeat)
            && (self.contender, self.variant) == (other.contender, other.variant)
            && self.cell.is_alike(&other.cell)
            && pair_of(&self.cell, jobs) == pair_of(&other.cell, jobs)
    }

    /// Which run of its kind it is, where that is not the plain sweep.
    pub fn purpose_name(&self) -> Option<String> {
        match (self.purpose, self.step) {
            (Purpose::Sweep, _) => None,
            (Purpose::Precondition, _) => Some("before".to_owned()),
            (Purpose::Confirm, _) => Some("again".to_owned()),
            (Purpose::Deeper, _) => Some("deeper".to_owned()),
            (Purpose::Sentinel, step) => Some(format!("sentinel {}", step.saturating_add(1))),
            (Purpose::Probe, 0) => Some("low".to_owned()),
            (Purpose::Probe, 1) => Some("high".to_owned()),
            (Purpose::Probe, _) => Some("low again".to_owned()),
            (Purpose::Curve, CURVE_MAXIMUM) => Some("maximum".to_owned()),
            (Purpose::Curve, percent) => Some(format!("{percent} % of the maximum")),
        }
    }
}

/// One attach of the disk and one cell: the unit of replication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRun {
    /// Which run it is.
    pub key: RunKey,
    /// The most jobs of the runs that share its disk: all phases of a probe, else its own.
    pub jobs_max: u16,
    /// The seed of the offsets, the same for all of a block.
    pub seed: u64,
    /// The round that it belongs to; none if any will do.
    pub round: Option<u16>,
    /// How many times as long as the settings say the ramp and the measured time are: 1, or `STRETCH` where a cell was not
    /// steady.
    pub stretch: u32,
}

impl PlannedRun {
    /// How long it ramps up and is measured.
    pub fn timing(&self, settings: &Settings) -> Timing {
        let Settings { ramp, runtime, .. } = settings;
        Timing {
            ramp: ramp.duration().saturating_mul(self.stretch),
            runtime: runtime.duration().saturating_mul(self.stretch),
        }
    }
}

/// Which pair of a probe a cell belongs to, of the numbers of jobs of the settings: low, high, low, high. No number is in two
/// pairs (`Settings::check`).
pub fn pair_of(cell: &Cell, jobs: &[u16]) -> Option<usize> {
    jobs.chunks(2).position(|pair| pair.contains(&cell.shape().jobs()))
}

/// All runs in their order. `sentinel` is after how many runs of a sweep the baseline is repeated; 0 is never.
pub fn plan(
    matrix: &Matrix,
    mode: Mode,
    repeats: u16,
    seed: u64,
    sentinel: u16,
) -> Vec<PlannedRun> {
    match mode {
        Mode::Sweep | Mode::Sizes => {
            with_sentinels(matrix, sweep(matrix, repeats, seed), sentinel, seed)
        }
        Mode::Hysteresis => blocks(matrix, repeats, seed, probe_block),
        Mode::Curve => blocks(matrix, repeats, seed, curve_block),
    }
}

fn sweep(matrix: &Matrix, repeats: u16, seed: u64) -> Vec<PlannedRun> {
    blocks(matrix, repeats, seed, |entry, contender, runs| {
        runs.push((Purpose::Sweep, 0, contender, entry.cells[0]));
    })
}

/// All runs of a sweep where what serves is started anew for each number of iothreads, so that its cells are measured one after the
/// other: in each round all contenders of a variant in turn, in an order of its own.
pub fn by_contender(matrix: &Matrix, repeats: u16, seed: u64) -> Vec<PlannedRun> {
    let mut runs = Vec::new();
    for (stream, repeat) in (0_u64..).zip(0..repeats) {
        let mut random = Random::stream(seed, stream);
        let mut variants = unique(matrix.entries.iter().map(|entry| entry.variant));
        random.shuffle(&mut variants);
        for variant in variants {
            let entries = matrix.entries.iter().filter(|entry| entry.variant == variant);
            // All contenders have the same offsets in a cell.
            let mut cells: Vec<(&Entry, u64)> =
                entries.map(|entry| (entry, random.next_u64())).collect();
            let all = cells.iter().flat_map(|(entry, _)| &entry.contenders);
            let mut contenders = unique(all.copied());
            random.shuffle(&mut contenders);
            for contender in contenders {
                random.shuffle(&mut cells);
                let own = cells.iter().filter(|(entry, _)| entry.contenders.contains(&contender));
                runs.extend(own.map(|&(entry, seed)| {
                    let (purpose, cell) = (Purpose::Sweep, entry.cells[0]);
                    let key = RunKey { purpose, repeat, step: 0, contender, variant, cell };
                    let (jobs_max, round) = (entry.jobs_max(), Some(repeat));
                    PlannedRun { key, jobs_max, seed, round, stretch: 1 }
                }));
            }
        }
    }
    runs
}

type Step = (Purpose, u32, Contender, Cell);

/// Low, high, low again: the cells of the entry are the low and the high one.
fn probe_block(entry: &Entry, contender: Contender, steps: &mut Vec<Step>) {
    for phase in 0..PROBE_PHASES {
        let high = usize::from(phase == 1);
        steps.push((Purpose::Probe, phase, contender, entry.cells[high]));
    }
}

/// The maximum first: the rates are shares of it.
fn curve_block(entry: &Entry, contender: Contender, steps: &mut Vec<Step>) {
    for percent in std::iter::once(CURVE_MAXIMUM).chain(CURVE_PERCENT) {
        steps.push((Purpose::Curve, percent, contender, entry.cells[0]));
    }
}

fn blocks(
    matrix: &Matrix,
    repeats: u16,
    seed: u64,
    steps: impl Fn(&Entry, Contender, &mut Vec<Step>),
) -> Vec<PlannedRun> {
    let mut runs = Vec::new();
    for (block, (repeat, entry)) in (0_u64..).zip(
        (0..repeats).flat_map(|repeat| matrix.entries.iter().map(move |entry| (repeat, entry))),
    ) {
        let mut random = Random::stream(seed, block);
        let mut contenders = entry.contenders.clone();
        random.shuffle(&mut contenders);
        let seed = random.next_u64();
        let mut block = Vec::new();
        for contender in contenders {
            steps(entry, contender, &mut block);
        }
        let run = |(purpose, step, contender, cell)| {
            let variant = entry.variant;
            let key = RunKey { purpose, repeat, step, contender, variant, cell };
            let round = Some(repeat);
            PlannedRun { key, jobs_max: entry.jobs_max(), seed, round, stretch: 1 }
        };
        runs.extend(block.into_iter().map(run));
    }
    runs
}

/// Puts sentinels before each round, after every `every` runs of it, and at the end.
fn with_sentinels(
    matrix: &Matrix,
    runs: Vec<PlannedRun>,
    every: u16,
    seed: u64,
) -> Vec<PlannedRun> {
    let every = usize::from(every);
    let entry = matrix.entries.first().filter(|_| every > 0 && runs.len() > every);
    let Some(entry) = entry else { return runs };
    let mut all = Vec::new();
    let (mut step, mut since, mut round) = (0, 0, None);
    for run in runs {
        if run.round != round || since >= every {
            all.extend(sentinels(entry, step, run.round, seed));
            step += 1;
            (since, round) = (0, run.round);
        }
        since += 1;
        all.push(run);
    }
    all.extend(sentinels(entry, step, None, seed));
    all
}

/// The host, or else what is compared first, with more requests in flight than in the cell at this place of the matrix, unless
/// that is a cell of its own.
pub fn deeper(matrix: &Matrix, place: usize, repeat: u16, seed: u64) -> Option<PlannedRun> {
    let entry = &matrix.entries[place];
    let (cell, contender) = (entry.cells[0].deeper()?, watched(entry).next()?);
    let variant = entry.variant;
    let is_other = |it: &Entry| it.variant == variant && it.cells[0] == cell;
    let number = u64::try_from(place).expect("places are few");
    let stream = DEEPER_STREAM - (u64::from(repeat) << 32 | number);
    let seed = Random::stream(seed, stream).next_u64();
    let key = RunKey { purpose: Purpose::Deeper, repeat, step: 0, contender, variant, cell };
    let run = PlannedRun { key, jobs_max: entry.jobs_max(), seed, round: None, stretch: 1 };
    (!matrix.entries.iter().any(is_other)).then_some(run)
}

/// What is measured as sentinels: the host, and the first of what is compared.
pub fn watched(entry: &Entry) -> impl Iterator<Item = Contender> {
    let baseline = entry.contenders.iter().find(|it| it.is_baseline());
    let compared = entry.contenders.iter().find(|it| !it.is_baseline());
    baseline.into_iter().chain(compared).copied()
}

/// The sentinels of the time `step` in a round, each time on other offsets; `seed` is that of the command.
pub fn sentinels(
    entry: &Entry,
    step: u32,
    round: Option<u16>,
    seed: u64,
) -> impl Iterator<Item = PlannedRun> {
    let seed = Random::stream(seed, SENTINEL_STREAM - u64::from(step)).next_u64();
    watched(entry).map(move |contender| {
        let (variant, cell) = (entry.variant, entry.cells[0]);
        let key = RunKey { purpose: Purpose::Sentinel, repeat: 0, step, contender, variant, cell };
        PlannedRun { key, jobs_max: entry.jobs_max(), seed, round, stretch: 1 }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::matrix::Writes;
    use crate::repeats::Repeats;
    use crate::testing::runs_per_repeat;
    use crate::testing::settings;
    use crate::variant::Layers;

    fn planned(line: &str, seed: u64) -> (Matrix, Vec<PlannedRun>) {
        let settings = settings(line, 2);
        let matrix = Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
        let Repeats::Fixed(repeats) = settings.repeats else { panic!("{line} is a search") };
        let runs = plan(&matrix, settings.mode, repeats, seed, settings.sentinel);
        (matrix, runs)
    }

    #[test]
    fn where_each_number_is_a_restart_its_cells_stand_together() {
        let settings = settings("--bs 4k,64k --op randread --iothreads none,1,2 --repeats 3", 2);
        let matrix = Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
        let runs = by_contender(&matrix, 3, 7);
        assert_eq!(runs.len(), 3 * runs_per_repeat(&matrix));
        let keys: HashSet<String> = runs.iter().map(|run| format!("{:?}", run.key)).collect();
        assert_eq!(keys.len(), runs.len());
        let group = |run: &PlannedRun| (run.round, run.key.contender);
        let restarts: Vec<_> = runs.chunk_by(|one, next| group(one) == group(next)).collect();
        assert_eq!(restarts.len(), 3 * matrix.entries[0].contenders.len());
        assert!(restarts.iter().all(|cells| cells.len() == matrix.entries.len()));
        let orders: HashSet<Vec<Contender>> = restarts
            .chunks(matrix.entries[0].contenders.len())
            .map(|round| round.iter().map(|cells| cells[0].key.contender).collect())
            .collect();
        assert!(orders.len() > 1, "each round has an order of its own");
        // In a round all contenders have the same offsets in a cell.
        let mut seeds = HashSet::new();
        for run in &runs {
            seeds.insert((run.round, run.key.cell, run.seed));
        }
        assert_eq!(seeds.len(), 3 * matrix.entries.len());
        assert_eq!(by_contender(&matrix, 3, 7), runs);
    }

    #[test]
    fn every_block_holds_every_contender_once() {
        let (matrix, runs) = planned("--repeats 3 --sentinel 0", 1);
        assert_eq!(runs.len(), 3 * runs_per_repeat(&matrix));
        for (index, block) in runs.chunks(5).enumerate() {
            let entry = &matrix.entries[index % matrix.entries.len()];
            let mut contenders: Vec<_> = block.iter().map(|run| run.key.contender).collect();
            contenders.sort_unstable();
            assert_eq!(contenders, entry.contenders);
            assert!(block.iter().all(|run| run.key.cell == entry.cells[0]));
            assert!(block.iter().all(|run| run.seed == block[0].seed));
        }
    }

    #[test]
    fn a_stretched_run_ramps_and_measures_longer() {
        let settings = settings("--ramp 0.5 --runtime 1.5", 2);
        let mut run = planned("--repeats 1", 1).1.swap_remove(0);
        for (stretch, ramp, runtime) in [(1, 500, 1500), (2, 1000, 3000)] {
            run.stretch = stretch;
            let (ramp, runtime) = (Duration::from_millis(ramp), Duration::from_millis(runtime));
            assert_eq!(run.timing(&settings), Timing { ramp, runtime });
        }
    }

    #[test]
    fn the_seed_decides_the_order() {
        assert_eq!(planned("--repeats 3", 1).1, planned("--repeats 3", 1).1);
        let order = |seed| {
            planned("--repeats 3", seed).1.iter().map(|run| run.key.contender).collect::<Vec<_>>()
        };
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn no_two_runs_have_the_same_key() {
        for line in ["--repeats 4", "probe --jobs 2,8,4,16", "curve --iothreads none,1"] {
            let (_, runs) = planned(line, 3);
            let keys: HashSet<_> = runs.iter().map(|run| run.key.clone()).collect();
            assert_eq!(keys.len(), runs.len(), "{line}");
        }
    }

    #[test]
    fn sentinels_stand_at_both_ends_and_every_so_many_runs() {
        let (matrix, runs) = planned("--repeats 3 --sentinel 20", 1);
        let places: Vec<usize> = (0..)
            .zip(&runs)
            .filter(|(_, run)| run.key.purpose == Purpose::Sentinel)
            .map(|(place, _)| place)
            .collect();
        assert_eq!(runs.len(), 3 * runs_per_repeat(&matrix) + places.len());
        // Before each round, and two at a time.
        assert_eq!(places, [0, 1, 22, 23, 44, 45, 66, 67]);
        let hosts = places.iter().filter(|&&place| runs[place].key.contender == Contender::HOST);
        assert_eq!(hosts.count(), 4);
        let seeds: HashSet<u64> = places.iter().map(|&place| runs[place].seed).collect();
        assert_eq!(seeds.len(), 4, "each time on other offsets");
        let (_, runs) = planned("--repeats 3 --sentinel 8", 1);
        let sentinels = runs.iter().filter(|run| run.key.purpose == Purpose::Sentinel);
        assert_eq!(sentinels.count(), 2 * (3 * 3 + 1), "and after every 8 of its runs");
        let few = planned("--repeats 1 --sentinel 20", 1).1;
        assert!(few.iter().all(|run| run.key.purpose != Purpose::Sentinel), "too short to drift");
    }

    #[test]
    fn a_probe_goes_up_and_comes_down_again() {
        let (_, runs) = planned("probe --jobs 2,8 --repeats 1 --subject host", 1);
        let jobs: Vec<_> = runs.iter().map(|run| run.key.cell.shape().jobs()).collect();
        assert_eq!(jobs, [2, 8, 2]);
        assert!(runs.iter().all(|run| run.jobs_max == 8));
        let keys: Vec<_> = runs.iter().map(|run| &run.key).collect();
        let follows = |key: usize, before: usize| keys[key].follows(keys[before], &[2, 8]);
        assert!(follows(1, 0) && follows(2, 1));
        assert!(!follows(2, 0) && !follows(0, 2) && !keys[2].keeps_disk());
    }

    #[test]
    fn phases_of_two_pairs_do_not_follow_each_other() {
        let jobs = [2, 8, 4, 16];
        let (_, runs) = planned("probe --jobs 2,8,4,16 --repeats 1 --subject host", 1);
        let own: Vec<_> = runs.iter().map(|run| run.key.cell.shape().jobs()).collect();
        assert_eq!(own, [2, 8, 2, 4, 16, 4]);
        for (place, run) in runs.iter().enumerate() {
            for (other, before) in runs.iter().enumerate() {
                let (a, b) = (&run.key, &before.key);
                assert_eq!(a.is_same_probe(b, &jobs), place / 3 == other / 3, "{place} {other}");
                assert_eq!(a.follows(b, &jobs), place % 3 > 0 && place == other + 1);
            }
        }
    }

    #[test]
    fn a_key_with_any_step_has_a_name_and_a_place() {
        let (_, runs) = planned("probe --jobs 2,8 --repeats 1 --subject host", 1);
        let mut key = runs[0].key.clone();
        key.step = u32::MAX;
        for purpose in [Purpose::Sweep, Purpose::Confirm, Purpose::Sentinel, Purpose::Probe] {
            key.purpose = purpose;
            assert!(!key.keeps_disk() && !runs[0].key.follows(&key, &[2, 8]));
            assert_eq!(key.purpose_name().is_none(), purpose == Purpose::Sweep);
        }
    }

    #[test]
    fn a_curve_knows_its_maximum_first() {
        let (_, runs) = planned("curve --repeats 1 --subject host", 1);
        let steps: Vec<_> = runs.iter().map(|run| run.key.step).collect();
        assert_eq!(steps, [100, 50, 70, 90]);
    }
}
