//! The runs of a command in their order, one block after the other: listed beforehand, or found by a search.
//!
//! `run` asks for blocks and reports what became of each run. Between the blocks of a search stand sentinels, as in a listed
//! sweep.
//!
//! Invariants: a run that is recorded already is not asked for again, but for a probe that was cut off: it has forgotten
//! what went before, and begins anew.

use std::collections::{BTreeMap, BTreeSet};

use plan::contender::Contender;
use plan::matrix::{Entry, Matrix};
use plan::repeats::Repeats;
use plan::runs::{self, PlannedRun, Purpose, RunKey, watched};
use plan::settings::Settings;
use records::results::{RecordedRuns, Run};

use crate::search::Search;

/// Where a command is in its runs.
#[derive(Clone, Debug)]
pub(crate) enum Course<'a> {
    /// All runs are known.
    Listed(Vec<PlannedRun>),
    /// The next block depends on those before.
    Searched(Box<Searched<'a>>),
}

/// A search with its sentinels.
#[derive(Clone, Debug)]
pub(crate) struct Searched<'a> {
    search: Search<'a>,
    sentinels: Option<Sentinels<'a>>,
}

/// The host and the first of what is compared, again and again.
#[derive(Clone, Debug)]
struct Sentinels<'a> {
    entry: &'a Entry,
    seed: u64,
    every: usize,
    /// Runs since the last ones; nothing before the first of this command.
    since: Option<usize>,
    /// The round of the last ones.
    round: Option<u16>,
    /// Those that were measured, or asked for by this command: at which time, and what.
    tried: BTreeSet<(u32, Contender)>,
    /// Those that failed in an earlier command.
    owed: BTreeSet<(u32, Contender)>,
}

impl<'a> Course<'a> {
    /// The course of a command that goes on with what is recorded.
    pub(crate) fn new(matrix: &'a Matrix, settings: &Settings, recorded: &RecordedRuns) -> Self {
        if !settings.adapts() {
            return Self::Listed(left(&listed(matrix, settings), &settings.jobs, recorded));
        }
        let mut course = Searched::new(matrix, settings);
        for run in recorded.runs() {
            course.measured(&run);
        }
        if let Some(sentinels) = &mut course.sentinels {
            let failed = recorded.failures().into_iter().map(|failure| failure.key);
            let failed = failed.filter(|key| key.purpose == Purpose::Sentinel);
            sentinels.owed = failed.map(|key| (key.step, key.contender)).collect();
        }
        Self::Searched(Box::new(course))
    }

    /// The next runs, which belong together; `fits` says whether there is time for them.
    pub(crate) fn next(&mut self, fits: &dyn Fn(&[PlannedRun]) -> bool) -> Option<Vec<PlannedRun>> {
        match self {
            Self::Listed(runs) if runs.is_empty() => None,
            Self::Listed(runs) => Some(std::mem::take(runs)),
            Self::Searched(course) => course.next(fits),
        }
    }

    /// A run was measured.
    pub(crate) fn measured(&mut self, run: &Run) {
        if let Self::Searched(course) = self {
            course.measured(run);
        }
    }

    /// A run failed.
    pub(crate) fn failed(&mut self, key: &RunKey) {
        if let Self::Searched(course) = self {
            course.search.failed(key);
        }
    }

    /// All runs that a command will do, or what a search will do if `repeats` are enough; without any, those that it
    /// should have.
    pub(crate) fn outlook(&self, repeats: Option<u16>) -> Vec<PlannedRun> {
        match self {
            Self::Listed(runs) => runs.clone(),
            Self::Searched(course) => course.outlook(repeats),
        }
    }
}

impl<'a> Searched<'a> {
    fn new(matrix: &'a Matrix, settings: &Settings) -> Self {
        let search = Search::new(matrix, settings);
        let every = usize::from(settings.sentinel);
        let is_long = every > 0 && search.outlook(search.wanted()).len() > every;
        let sentinels = matrix.entries.first().filter(|_| is_long).map(|entry| Sentinels {
            entry,
            seed: settings.seed,
            every,
            since: None,
            round: None,
            tried: BTreeSet::new(),
            owed: BTreeSet::new(),
        });
        Self { search, sentinels }
    }

    fn next(&mut self, fits: &dyn Fn(&[PlannedRun]) -> bool) -> Option<Vec<PlannedRun>> {
        let block = self.search.next(fits);
        let Some(sentinels) = &mut self.sentinels else { return block };
        match (block, sentinels.since) {
            // The search asks for the block again when these are done.
            (Some(block), since) if sentinels.are_due(since, block[0].round) => {
                Some(sentinels.next(block[0].round))
            }
            (Some(block), since) => {
                sentinels.since = Some(since.unwrap_or(0) + block.len());
                Some(block)
            }
            // Some after everything.
            (None, Some(1..)) => Some(sentinels.next(None)),
            (None, _) => sentinels.next_owed(fits),
        }
    }

    fn measured(&mut self, run: &Run) {
        if run.key.purpose != Purpose::Sentinel {
            return self.search.measured(run);
        }
        if let Some(sentinels) = &mut self.sentinels {
            sentinels.tried.insert((run.key.step, run.key.contender));
        }
    }

    fn outlook(&self, repeats: Option<u16>) -> Vec<PlannedRun> {
        let mut runs = self.search.outlook(repeats.unwrap_or_else(|| self.search.wanted()));
        if let Some(sentinels) = self.sentinels.as_ref().filter(|_| !runs.is_empty()) {
            let mut rounds = BTreeMap::<_, usize>::new();
            for round in runs.iter().filter_map(|run| run.round) {
                *rounds.entry(round).or_default() += 1;
            }
            let times = rounds.into_values().map(|runs| runs.div_ceil(sentinels.every));
            let times = times.sum::<usize>() + 1;
            let each = || runs::sentinels(sentinels.entry, 0, None, sentinels.seed);
            runs.extend((0..times).flat_map(|_| each()));
        }
        runs
    }
}

impl Sentinels<'_> {
    /// Whether some stand before a block of this round; the last ones were so many runs ago.
    fn are_due(&self, since: Option<usize>, round: Option<u16>) -> bool {
        since.is_none_or(|since| since >= self.every)
            || round.is_some_and(|it| self.round != Some(it))
    }

    /// The first that are missing, which may be some that failed in an earlier command.
    fn next(&mut self, round: Option<u16>) -> Vec<PlannedRun> {
        self.round = round.or(self.round);
        let mut steps = 0..;
        let is_missing =
            |step: &u32| watched(self.entry).any(|it| !self.tried.contains(&(*step, it)));
        let step = steps.find(is_missing).expect("fewer sentinels than numbers were measured");
        self.ask(step, round)
    }

    /// Those that failed in an earlier command and were not asked for by this one, if there is time for them.
    fn next_owed(&mut self, fits: &dyn Fn(&[PlannedRun]) -> bool) -> Option<Vec<PlannedRun>> {
        let (step, _) = *self.owed.difference(&self.tried).next()?;
        fits(&self.of_step(step, None)).then(|| self.ask(step, None))
    }

    fn ask(&mut self, step: u32, round: Option<u16>) -> Vec<PlannedRun> {
        self.since = Some(0);
        let runs = self.of_step(step, round);
        self.tried.extend(runs.iter().map(|run| (run.key.step, run.key.contender)));
        runs
    }

    /// What is missing of those of a time.
    fn of_step(&self, step: u32, round: Option<u16>) -> Vec<PlannedRun> {
        let of_step = runs::sentinels(self.entry, step, round, self.seed);
        of_step.filter(|run| !self.tried.contains(&(step, run.key.contender))).collect()
    }
}

/// What is not decided while it is measured.
fn listed(matrix: &Matrix, settings: &Settings) -> Vec<PlannedRun> {
    let repeats = match settings.repeats {
        Repeats::Fixed(repeats) | Repeats::Until { least: repeats, .. } => repeats,
    };
    runs::plan(matrix, settings.mode, repeats, settings.seed, settings.sentinel)
}

/// What has not been measured yet; `jobs` are those of the settings.
fn left(all: &[PlannedRun], jobs: &[u16], recorded: &RecordedRuns) -> Vec<PlannedRun> {
    let cut = |run: &PlannedRun| {
        run.key.purpose == Purpose::Probe
            && all.iter().any(|it| it.key.is_same_probe(&run.key, jobs) && !recorded.has(it))
    };
    all.iter().filter(|run| !recorded.has(run) || cut(run)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use plan::matrix::Writes;
    use plan::testing::settings;
    use plan::variant::Layers;
    use records::results::{Failure, Line};
    use records::testing::run;

    use super::*;

    /// What became of the runs of a command that goes on with these lines.
    fn command(lines: &mut Vec<Line>, works: impl Fn(&RunKey) -> bool) -> Vec<RunKey> {
        let settings = settings("--op randread --bs 4k --sentinel 5", 2);
        let matrix = Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
        let recorded = RecordedRuns::from_iter(std::mem::take(lines));
        let mut course = Course::new(&matrix, &settings, &recorded);
        let mut asked = Vec::new();
        *lines = recorded.into_lines();
        while let Some(block) = course.next(&|_| true) {
            for PlannedRun { key, .. } in block {
                if works(&key) {
                    let mut run = run(key.cell, key.contender, key.repeat, 1000);
                    run.key = key.clone();
                    course.measured(&run);
                    lines.push(Line::Run(Box::new(run)));
                } else {
                    course.failed(&key);
                    let failure = Failure::new(key.clone(), &anyhow::anyhow!("it hangs"));
                    lines.push(Line::Failure(failure));
                }
                asked.push(key);
            }
        }
        asked
    }

    #[test]
    fn only_a_probe_that_was_cut_begins_anew() {
        let line = "probe --jobs 2,8,4,16 --subject host --repeats 2";
        let settings = settings(line, 2);
        let matrix = Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
        let left = |done: &[usize]| -> Vec<RunKey> {
            let all = Course::new(&matrix, &settings, &RecordedRuns::default()).outlook(None);
            let measured = |place: &usize| {
                let key = all[*place].key.clone();
                Line::Run(Box::new(Run { key, ..run(all[0].key.cell, Contender::HOST, 0, 1000) }))
            };
            let recorded = RecordedRuns::from_iter(done.iter().map(measured));
            let left = Course::new(&matrix, &settings, &recorded).outlook(None);
            left.into_iter().map(|run| run.key).collect()
        };
        let all = left(&[]);
        assert_eq!(all.len(), 12);
        // The first pair is done, the second one got as far as its high phase.
        assert_eq!(left(&[0, 1, 2, 3, 4]), all[3..]);
        assert_eq!(left(&[3, 4, 5, 6, 7]), [&all[..3], &all[6..]].concat());
    }

    /// The times of the sentinels, each of which is the host and the first of what is compared.
    #[track_caller]
    fn sentinels(keys: &[RunKey]) -> Vec<u32> {
        let own = keys.iter().filter(|key| key.purpose == Purpose::Sentinel);
        let own: Vec<&RunKey> = own.collect();
        let time = |pair: &[&RunKey]| {
            let hosts = pair.iter().filter(|key| key.contender == Contender::HOST).count();
            assert_eq!((pair.len(), hosts, pair[0].step), (2, 1, pair[1].step));
            pair[0].step
        };
        own.chunks(2).map(time).collect()
    }

    #[test]
    fn sentinels_stand_before_each_round() {
        let settings = settings("--op randread --bs 4k --repeats 3-4 --sentinel 12", 2);
        let matrix = Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
        let mut course = Course::new(&matrix, &settings, &RecordedRuns::default());
        let mut last = None;
        let mut rounds = Vec::new();
        while let Some(block) = course.next(&|_| true) {
            for planned in block {
                let is_sentinel = planned.key.purpose == Purpose::Sentinel;
                if planned.round.is_some_and(|round| last.replace(round) != Some(round)) {
                    assert!(is_sentinel, "{} begins a round", planned.key);
                    rounds.extend(planned.round);
                }
                let key = planned.key;
                course.measured(&Run { key: key.clone(), ..run(key.cell, key.contender, 0, 1000) });
            }
        }
        assert_eq!(rounds, [0, 1, 2, 3, 4], "one of exploring, four of measuring again");
    }

    #[test]
    fn a_sentinel_stands_before_and_after_everything_and_is_asked_for_once() {
        let asked = command(&mut Vec::new(), |_| true);
        let steps = sentinels(&asked);
        assert_eq!(steps, (0..u32::try_from(steps.len()).unwrap()).collect::<Vec<_>>());
        assert!(steps.len() > 4, "{steps:?}");
        let ends = [asked.first(), asked.last()].map(|key| key.unwrap().purpose);
        assert_eq!(ends, [Purpose::Sentinel; 2]);
    }

    #[test]
    fn a_command_that_is_done_asks_for_nothing() {
        let mut lines = Vec::new();
        command(&mut lines, |_| true);
        assert_eq!(command(&mut lines, |_| true), []);
    }

    #[test]
    fn sentinels_that_failed_are_tried_again_by_the_next_command() {
        let is_one_of = |key: &RunKey, steps: &[u32]| {
            key.purpose == Purpose::Sentinel && steps.contains(&key.step)
        };
        let mut lines = Vec::new();
        let steps = sentinels(&command(&mut lines, |key| !is_one_of(key, &[1, 3])));
        assert_eq!(steps.iter().filter(|step| [1, 3].contains(step)).count(), 2, "once each");
        // One fails again.
        assert_eq!(sentinels(&command(&mut lines, |key| !is_one_of(key, &[1]))), [1, 3]);
        let settings = settings("--op randread --bs 4k --sentinel 5", 2);
        let matrix = Matrix::new(&settings, &|_| Layers::Kernel, 1 << 30, Writes::Allowed).unwrap();
        let mut course = Course::new(&matrix, &settings, &RecordedRuns::from_iter(lines.clone()));
        assert!(course.next(&|_| false).is_none(), "without time for it");
        assert_eq!(sentinels(&command(&mut lines, |_| true)), [1]);
        assert_eq!(command(&mut lines, |_| true), []);
        // The runs end early: what is missing comes first.
        let mut lines = Vec::new();
        command(&mut lines, |key| !is_one_of(key, &[1]));
        let is_third = |line: &Line| is_one_of(line.key(), &[2]);
        lines.truncate(lines.iter().position(is_third).unwrap() + 2);
        let steps = sentinels(&command(&mut lines, |_| true));
        assert_eq!(steps[..2], [1, 3], "{steps:?}");
    }

    #[test]
    fn any_number_of_a_sentinel_can_be_gone_on_with() {
        let mut lines = Vec::new();
        command(&mut lines, |_| true);
        let is_sentinel = |line: &Line| line.key().purpose == Purpose::Sentinel;
        let mut far = lines.iter().find(|line| is_sentinel(line)).unwrap().clone();
        if let Line::Run(run) = &mut far {
            run.key.step = u32::MAX;
        }
        let mut lines = vec![far];
        assert_eq!(sentinels(&command(&mut lines, |_| true))[..2], [0, 1]);
    }
}
