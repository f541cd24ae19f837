//! The runs and failures of a results file, in the order in which their keys first came.
//!
//! Invariants: of several lines with one key the last counts, be it a run or a failure; a phase of a probe that was
//! measured is done again where the probe was cut, and may fail then.
//! Not here: reading and writing them (`results`), and what may be summarised together (`lenient`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use plan::runs::{PlannedRun, RunKey};

use super::{Failure, Line, Run};

/// The lines of a file that count, but for the header.
#[derive(Debug, Default, PartialEq)]
pub struct RecordedRuns {
    /// With the number of lines before each.
    lines: Vec<(usize, Line)>,
    places: HashMap<RunKey, usize>,
    /// How many there are, with those that count no more.
    count: usize,
}

impl FromIterator<Line> for RecordedRuns {
    fn from_iter<I: IntoIterator<Item = Line>>(lines: I) -> Self {
        let mut recorded = Self::default();
        for line in lines {
            recorded.push(line);
        }
        recorded
    }
}

impl RecordedRuns {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// All of them, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn into_lines(self) -> Vec<Line> {
        self.lines.into_iter().map(|(_, line)| line).collect()
    }

    /// Adds a line; the one with its key, which counts no more.
    pub fn push(&mut self, line: Line) -> Option<Line> {
        let key = line.key().clone();
        let line = (self.count, line);
        self.count += 1;
        match self.places.entry(key) {
            Entry::Occupied(place) => {
                Some(std::mem::replace(&mut self.lines[*place.get()], line).1)
            }
            Entry::Vacant(place) => {
                place.insert(self.lines.len());
                self.lines.push(line);
                None
            }
        }
    }

    /// The measured runs and the failures that count.
    pub(super) fn into_parts(self) -> (Vec<Run>, Vec<Failure>) {
        let (mut runs, mut failures) = (Vec::new(), Vec::new());
        for (_, line) in self.lines {
            match line {
                Line::Run(run) => runs.push(*run),
                Line::Failure(failure) => failures.push(failure),
            }
        }
        (runs, failures)
    }

    /// All measured runs that did not fail since; of one that was done again the last.
    pub fn runs(&self) -> Vec<Run> {
        self.lines.iter().filter_map(|(_, line)| line.run().cloned()).collect()
    }

    /// The runs that failed and were not measured since.
    pub fn failures(&self) -> Vec<Failure> {
        self.failures_from(0)
    }

    /// Those of the lines from this one on.
    pub(super) fn failures_from(&self, first: usize) -> Vec<Failure> {
        let failure = |(number, line): &(usize, Line)| match line {
            Line::Failure(failure) if *number >= first => Some(failure.clone()),
            Line::Failure(_) | Line::Run(_) => None,
        };
        self.lines.iter().filter_map(failure).collect()
    }

    /// The measured run with this key.
    pub fn run(&self, key: &RunKey) -> Option<&Run> {
        self.places.get(key).and_then(|place| self.lines[*place].1.run())
    }

    /// The run in the last of the lines whose keys are wanted, unless that is a failure.
    pub fn last(&self, wanted: impl Fn(&RunKey) -> bool) -> Option<&Run> {
        let wanted = self.lines.iter().filter(|(_, line)| wanted(line.key()));
        wanted.max_by_key(|(number, _)| *number)?.1.run()
    }

    /// Whether it was measured.
    pub fn has(&self, planned: &PlannedRun) -> bool {
        self.run(&planned.key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use plan::runs::Purpose;
    use plan::testing::{cell, client};

    use super::*;
    use crate::testing::run;

    /// Phase `step` of the probe of one repeat.
    fn phase(step: u32) -> Run {
        let jobs = if step == 1 { 8 } else { 2 };
        let mut run = run(cell("randread", 4096, jobs, 1), client(1), 0, 100);
        (run.key.purpose, run.key.step) = (Purpose::Probe, step);
        run
    }

    fn measured(run: &Run) -> Line {
        Line::Run(Box::new(run.clone()))
    }

    fn failure(run: &Run) -> Line {
        Line::Failure(Failure::new(run.key.clone(), &anyhow::anyhow!("it hangs")))
    }

    #[test]
    fn a_run_that_failed_when_it_was_done_again_is_not_measured() {
        let (low, high) = (phase(0), phase(1));
        let before =
            |recorded: &RecordedRuns| recorded.last(|key| high.key.follows(key, &[2, 8])).cloned();
        let mut recorded = RecordedRuns::from_iter(vec![measured(&low), failure(&high)]);
        assert_eq!(before(&recorded), Some(low.clone()));
        recorded.push(failure(&low));
        assert_eq!((before(&recorded), recorded.run(&low.key)), (None, None));
        let failed: Vec<RunKey> = recorded.failures().into_iter().map(|it| it.key).collect();
        assert_eq!((recorded.runs(), failed), (vec![], vec![low.key.clone(), high.key.clone()]));
        recorded.push(measured(&low));
        assert_eq!(before(&recorded), Some(low.clone()));
        assert_eq!((recorded.runs(), recorded.failures().len()), (vec![low], 1));
    }
}
