//! How right the figures of a session are: the answer, the intervals, n90, drift and unsteady cells.

use std::ops::AddAssign;

use findings::answer::{Certainty, answer};
use findings::bottleneck::Bottleneck;
use findings::drift::flagged;
use findings::stats::Estimate;
use findings::summary::{CellSummary, Row, summarise};
use plan::contender::{Contender, Iothreads};
use plan::question::Question;
use records::results::Run;
use records::steady::UnsteadyRuns;
use testkit::machines::{Limit, Load, Machine};

use super::session::{SUBJECT, Session, asked, vm};

/// As good as the best: what may be lost to it.
pub(super) const LOSS_MAX: f64 = 0.05;
/// As cheap as the cheapest: what may be taken too much.
pub(super) const CPU_MAX: f64 = 0.1;
/// What brings so much of the most is a bottleneck too.
const NEARLY: f64 = 0.6;
/// Enough that busy threads never exceed it: here the machine is simulated.
const CORES: usize = 64;

/// How many of those that were asked are right.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    right: usize,
    of: usize,
}

impl Tally {
    pub(super) fn note(&mut self, right: bool) {
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
    /// The same of those that are sure of it, say that it is likely, or are in doubt.
    pub(super) sure: Tally,
    pub(super) likely: Tally,
    pub(super) doubtful: Tally,
    /// Sessions that are sure, and that are sure or say that it is likely.
    pub(super) is_sure: Tally,
    pub(super) is_told: Tally,
    /// Sessions whose number takes at most `CPU_MAX` more CPU than the cheapest that is good enough.
    pub(super) cpu: Tally,
    /// What each lost in IOPS, and how much CPU it took too many.
    losses: Vec<f64>,
    excesses: Vec<f64>,
    /// Cells whose bottleneck, with the number that is told, is named rightly.
    pub(super) bottleneck: Tally,
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
        let iothreads = score.rate_answer(machine, session, &cells);
        for summary in &cells {
            let (_, load) = session.cells.iter().find(|(cell, _)| *cell == summary.cell).unwrap();
            for row in &summary.rows {
                score.rate_row(machine, *load, row);
            }
            score.rate_bottleneck(machine, *load, summary, iothreads);
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
        self.sure += other.sure;
        self.likely += other.likely;
        self.doubtful += other.doubtful;
        self.is_sure += other.is_sure;
        self.is_told += other.is_told;
        self.cpu += other.cpu;
        self.bottleneck += other.bottleneck;
        self.losses.extend(&other.losses);
        self.excesses.extend(&other.excesses);
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
        most_of_95(&self.losses)
    }

    /// How much CPU 95 % of the sessions take too much at most, as a share.
    pub(super) fn excess_95(&self) -> f64 {
        most_of_95(&self.excesses)
    }

    /// Returns the number that is told.
    fn rate_answer(
        &mut self,
        machine: &Machine,
        session: &Session,
        cells: &[CellSummary],
    ) -> Iothreads {
        let loads: Vec<Load> = session.cells.iter().map(|(_, load)| *load).collect();
        let found = answer(SUBJECT, cells, &Question::default(), &[]).unwrap();
        let loss = machine.shortfall(found.iothreads.count(), &loads) - machine.best(&loads).1;
        let is_right = loss <= LOSS_MAX;
        self.answer.note(is_right);
        let certainty = found.recommends().then(|| found.certainty());
        match certainty {
            Some(Certainty::Sure) => self.sure.note(is_right),
            Some(Certainty::Likely) => self.likely.note(is_right),
            Some(Certainty::Doubtful) | None => self.doubtful.note(is_right),
        }
        self.is_sure.note(certainty == Some(Certainty::Sure));
        self.is_told.note(certainty >= Some(Certainty::Likely));
        self.losses.push(loss);
        let cheapest = machine.cheapest(&loads, LOSS_MAX);
        let cpu = |iothreads| machine.cpu_truth(iothreads, &loads);
        let excess = cpu(found.iothreads.count()) / cpu(cheapest) - 1.0;
        self.cpu.note(excess <= CPU_MAX);
        self.excesses.push(excess);
        found.iothreads
    }

    /// Right is what would bring most if there were more of it, or nearly as much as that.
    fn rate_bottleneck(
        &mut self,
        machine: &Machine,
        load: Load,
        summary: &CellSummary,
        iothreads: Iothreads,
    ) {
        let limits = machine.limits(iothreads.count(), load);
        let contender = Contender::new(SUBJECT, iothreads);
        let row = summary.rows.iter().find(|row| row.contender == contender);
        let (Some(row), false) = (row, limits.is_empty()) else { return };
        let most = limits.iter().map(|(_, gain)| *gain).fold(0.0, f64::max);
        let named = Bottleneck::of(summary, row).map(|found| match found {
            Bottleneck::Disk => Limit::Disk,
            Bottleneck::Latency => Limit::InFlight,
            Bottleneck::Iothread | Bottleneck::Queues => Limit::Iothread,
            Bottleneck::GuestCpu | Bottleneck::ClientCpu => Limit::GuestCpu,
            Bottleneck::HostCpu | Bottleneck::OtherPrograms => Limit::HostCpu,
        });
        let is_right = |limit: Limit| {
            limits.iter().any(|(other, gain)| *other == limit && *gain >= NEARLY * most)
        };
        self.bottleneck.note(named.is_some_and(is_right));
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

fn most_of_95(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() * 95 / 100).copied().unwrap_or(0.0)
}
