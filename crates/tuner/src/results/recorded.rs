//! The runs and failures of a results file, in the order in which they were written.
//!
//! Not here: reading and writing them (`results`), and what may be summarised together (`lenient`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Failure, Line, Run};
use crate::plan::{PlannedRun, RunKey};

/// All lines but the header.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Recorded {
    lines: Vec<Line>,
}

impl From<Vec<Line>> for Recorded {
    fn from(lines: Vec<Line>) -> Self {
        Self { lines }
    }
}

impl Recorded {
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    #[cfg(test)]
    pub(crate) fn into_lines(self) -> Vec<Line> {
        self.lines
    }

    pub(super) fn push(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// All measured runs; of one that was done again the last.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut places: HashMap<&RunKey, usize> = HashMap::new();
        for line in &self.lines {
            let Line::Run(run) = line else { continue };
            match places.entry(&run.key) {
                Entry::Occupied(place) => runs[*place.get()] = Run::clone(run),
                Entry::Vacant(place) => {
                    place.insert(runs.len());
                    runs.push(Run::clone(run));
                }
            }
        }
        runs
    }

    /// The runs that failed and were not measured since.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        self.failures_from(0)
    }

    /// Those of the lines from this one on.
    pub(super) fn failures_from(&self, first: usize) -> Vec<Failure> {
        let mut failures: Vec<Failure> = Vec::new();
        for line in self.lines.iter().skip(first) {
            failures.retain(|failure| failure.key != *line.key());
            if let Line::Failure(failure) = line {
                failures.push(failure.clone());
            }
        }
        failures
    }

    /// The measured run with this key.
    pub(crate) fn run(&self, key: &RunKey) -> Option<&Run> {
        self.last(|it| it == key)
    }

    /// The measured run of another step of the same contender, variant, repeat and cell, but for the jobs.
    pub(crate) fn before(&self, key: &RunKey, step: u32) -> Option<&Run> {
        let wanted = |other: &RunKey| {
            (other.purpose, other.repeat, other.step) == (key.purpose, key.repeat, step)
                && (other.contender, other.variant) == (key.contender, key.variant)
                && other.cell.is_alike(&key.cell)
        };
        self.last(wanted)
    }

    /// The measured run that was written last of those whose keys are wanted.
    fn last(&self, wanted: impl Fn(&RunKey) -> bool) -> Option<&Run> {
        self.lines.iter().rev().find_map(|line| match line {
            Line::Run(run) if wanted(&run.key) => Some(&**run),
            Line::Run(_) | Line::Failure(_) => None,
        })
    }

    pub(crate) fn has(&self, planned: &PlannedRun) -> bool {
        self.run(&planned.key).is_some()
    }
}
