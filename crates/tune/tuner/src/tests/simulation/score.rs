//! How right the figures of a session are: the answer, the intervals, n90, drift and unsteady cells.

use std::ops::AddAssign;

use testkit::machines::{Load, Machine};

use super::session::{SUBJECT, Session, asked, vm};
use crate::answer::answer;
use crate::contender::Contender;
use crate::drift::flagged;
use crate::results::Run;
use crate::stats::Estimate;
use crate::steady::UnsteadyRuns;
use crate::summary::{CellSummary, Row, summarise};

/// As good as the best: what may be lost to it.
pub(super) const LOSS_MAX: f64 = 0.05;
/// Enough that busy threads never exceed it: here the machine is simulated.
const CORES: usize = 64;

/// How many of those that were asked are right.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    right: usize,
    of: usize,
}

impl Tally {
    fn note(&mut self, right: bool) {
        self.right += usize::from(right);
        self.of += 1;
    }

    /// In percent, if there are any.
    pub(super) fn percent(self) -> Option<f64> {
        (self.of > 0).then(|| 100.0 * self.right as f64 / self.of as f64)
    }

    /// By how many percentage points this share may be missed by chance: four standard deviations, since what is counted is
    /// not quite independent.
    pub(super) fn chance(self, percent: f64) -> f64 {
        let share = percent / 100.0;
        400.0 * (share * (1.0 - share) / self.of.max(1) as f64).sqrt()
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.right += other.right;
        self.of += other.of;
    }
}

/// The score of one or several sessions on a machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Score {
    /// Sessions whose number is within `LOSS_MAX` of the best.
    pub(super) answer: Tally,
    /// Sessions that recommend their number, and those of them whose number is within `LOSS_MAX`.
    pub(super) told: Tally,
    pub(super) told_answer: Tally,
    /// What each lost.
    losses: Vec<f64>,
    /// Intervals that contain the truth: of IOPS, gain over none, ratio to the host.
    pub(super) iops: Tally,
    pub(super) gain: Tally,
    pub(super) to_host: Tally,
    /// Cells whose n90 is right, and whose spread of n90 contains it.
    pub(super) n90: Tally,
    pub(super) n90_spread: Tally,
    /// Sessions whose drift was flagged.
    pub(super) flagged: Tally,
    /// Cells of which most runs are unsteady.
    pub(super) unsteady: Tally,
    runs: usize,
}

impl Score {
    /// Compares a session with what is true on its machine.
    pub(super) fn of(machine: &Machine, session: &Session) -> Self {
        let cells = summarise(&session.runs, CORES);
        let mut score = Self { runs: session.runs.len(), ..Self::default() };
        score.rate_answer(machine, session, &cells);
        for summary in &cells {
            let (_, load) = session.cells.iter().find(|(cell, _)| *cell == summary.cell).unwrap();
            for row in &summary.rows {
                score.rate_row(machine, *load, row);
            }
            score.rate_n90(machine, *load, summary);
            let own = session.runs.iter().filter(|run| run.key.cell == summary.cell);
            let unsteady: UnsteadyRuns = own.map(Run::steadiness).collect();
            score.unsteady.note(unsteady.are_most());
        }
        score.flagged.note(!flagged(&session.runs).is_empty());
        score
    }

    /// Takes in another session.
    pub(super) fn add(&mut self, other: &Self) {
        self.answer += other.answer;
        self.told += other.told;
        self.told_answer += other.told_answer;
        self.losses.extend(&other.losses);
        self.iops += other.iops;
        self.gain += other.gain;
        self.to_host += other.to_host;
        self.n90 += other.n90;
        self.n90_spread += other.n90_spread;
        self.flagged += other.flagged;
        self.unsteady += other.unsteady;
        self.runs += other.runs;
    }

    /// How many runs a session has.
    pub(super) fn runs_of_one(&self) -> usize {
        self.runs / self.losses.len().max(1)
    }

    /// What 95 % of the sessions lose at most.
    pub(super) fn loss_95(&self) -> f64 {
        let mut losses = self.losses.clone();
        losses.sort_by(f64::total_cmp);
        losses.get(losses.len() * 95 / 100).copied().unwrap_or(0.0)
    }

    fn rate_answer(&mut self, machine: &Machine, session: &Session, cells: &[CellSummary]) {
        let loads: Vec<Load> = session.cells.iter().map(|(_, load)| *load).collect();
        let found = answer(SUBJECT, cells, &[], &[]).unwrap();
        let loss = machine.shortfall(found.iothreads.count(), &loads) - machine.best(&loads).1;
        self.answer.note(loss <= LOSS_MAX);
        self.told.note(found.recommends());
        if found.recommends() {
            self.told_answer.note(loss <= LOSS_MAX);
        }
        self.losses.push(loss);
    }

    fn rate_row(&mut self, machine: &Machine, load: Load, row: &Row) {
        let truth = |contender: Contender| {
            let (subject, iothreads) = asked(contender);
            machine.truth(subject, iothreads, load)
        };
        let own = truth(row.contender);
        let mut rate = |tally: fn(&mut Self) -> &mut Tally, of: Option<Estimate>, truth: f64| {
            if let Some(interval) = of.and_then(|estimate| estimate.interval) {
                tally(self).note(interval.low <= truth && truth <= interval.high);
            }
        };
        rate(|it| &mut it.iops, Some(row.iops), own);
        if row.contender != vm(0) {
            rate(|it| &mut it.gain, row.to_none, own / truth(vm(0)));
        }
        if row.contender != Contender::HOST {
            rate(|it| &mut it.to_host, row.to_host, own / truth(Contender::HOST));
        }
    }

    fn rate_n90(&mut self, machine: &Machine, load: Load, summary: &CellSummary) {
        let truth = machine.n90(load);
        for (_, verdict) in &summary.verdicts {
            self.n90.note(verdict.n90.count() == truth);
            if let Some((low, high)) = verdict.n90_spread {
                self.n90_spread.note(low.count() <= truth && truth <= high.count());
            }
        }
    }
}
