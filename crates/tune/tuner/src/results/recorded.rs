//! The runs and failures of a results file, in the order in which they were written.
//!
//! Invariants: of several lines with one key the last counts, be it a run or a failure; a phase of a probe that was
//! measured is done again where the probe was cut, and may fail then.
//! Not here: reading and writing them (`results`), and what may be summarised together (`lenient`).

use super::latest::Latest;
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

    pub(crate) fn push(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// All measured runs that did not fail since; of one that was done again the last.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let latest: Latest<&Line> = self.lines.iter().collect();
        let run = |line: &Line| match line {
            Line::Run(run) => Some(Run::clone(run)),
            Line::Failure(_) => None,
        };
        latest.into_lines().into_iter().filter_map(run).collect()
    }

    /// The runs that failed and were not measured since.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        self.failures_from(0)
    }

    /// Those of the lines from this one on.
    pub(super) fn failures_from(&self, first: usize) -> Vec<Failure> {
        let latest: Latest<&Line> = self.lines.iter().skip(first).collect();
        let failure = |line: &Line| match line {
            Line::Run(_) => None,
            Line::Failure(failure) => Some(failure.clone()),
        };
        latest.into_lines().into_iter().filter_map(failure).collect()
    }

    /// The measured run with this key.
    pub(crate) fn run(&self, key: &RunKey) -> Option<&Run> {
        self.last(|it| it == key)
    }

    /// The run in the last of the lines whose keys are wanted, unless that is a failure.
    pub(crate) fn last(&self, wanted: impl Fn(&RunKey) -> bool) -> Option<&Run> {
        match self.lines.iter().rev().find(|line| wanted(line.key()))? {
            Line::Run(run) => Some(run),
            Line::Failure(_) => None,
        }
    }

    pub(crate) fn has(&self, planned: &PlannedRun) -> bool {
        self.run(&planned.key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::tests::{cell, client};
    use crate::plan::Purpose;
    use crate::results::tests::run;

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
            |recorded: &Recorded| recorded.last(|key| high.key.follows(key, &[2, 8])).cloned();
        let mut recorded = Recorded::from(vec![measured(&low), failure(&high)]);
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
