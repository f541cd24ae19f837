//! A trial: a disk's rings go to and fro between two placements, and the difference of its progress decides.
//!
//! Invariants: only the disk's own progress is judged. Samples alternate such that a linear drift cancels.
//! Limits: 24 pairs; a sample lasts until 200 requests are answered, 1 s at most.

use crate::IothreadSlot;
use crate::balance::Placement;
use crate::refusals::Direction;

/// Pairs before a verdict, unless it is hopeless.
const PAIRS_MIN: usize = 4;
/// In doubt after so many: the fewer iothreads.
const PAIRS_MAX: usize = 40;
/// So many standard errors make sure.
const SURE: f64 = 3.0;
/// The least standard error that is believed.
const ERROR_MIN: f64 = 0.003;
/// A loss that ends a trial with its first pair.
const HOPELESS: f64 = -0.15;
/// A gain that needs no proper trial.
const QUICK_GAIN: f64 = 0.08;
/// How much the requirement must be exceeded for that.
const QUICK_MARGIN: f64 = 0.05;
/// Samples with the new placement before a quick verdict.
const QUICK_SAMPLES: usize = 2;
/// A sample has so many requests, or takes so many seconds.
const SAMPLE_REQUESTS: f64 = 200.0;
const SAMPLE_SECONDS: f64 = 1.0;
/// Whether a sample is of the new placement, again and again.
const PATTERN: [bool; 4] = [true, false, false, true];

/// How a trial goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The new placement against what was before: something is so crowded that the gain will be plain.
    Quick,
    /// To and fro.
    Proper,
}

/// What a trial compares.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) direction: Direction,
    pub(crate) old: Placement,
    pub(crate) new: Placement,
    pub(crate) old_threads: Vec<IothreadSlot>,
    pub(crate) new_threads: Vec<IothreadSlot>,
    /// Busy rings when it began.
    pub(crate) busy: usize,
    /// Progress per second before it began.
    pub(crate) before: f64,
    /// The gain that the closed network says, as a share.
    pub(crate) predicted: f64,
    /// What it must bring, as a logarithm; below 0 what it may cost.
    pub(crate) need: f64,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Nothing yet.
    Open,
    /// The new placement stays; the gain as a logarithm.
    Keep { gain: f64 },
    /// The old one does; and its progress per second.
    Refuse { gain: f64, rate: f64 },
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    seconds: f64,
    requests: f64,
    progress: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) comparison: Comparison,
    pub(crate) stage: Stage,
    /// The stage in which it began.
    pub(crate) began: Stage,
    /// The first sample counts not: caches are cold there.
    settles: bool,
    sample: Sample,
    old: Vec<f64>,
    new: Vec<f64>,
}

impl Trial {
    pub(crate) fn new(comparison: Comparison, stage: Stage) -> Self {
        let sample = Sample::default();
        Self {
            comparison,
            stage,
            began: stage,
            settles: true,
            sample,
            old: Vec::new(),
            new: Vec::new(),
        }
    }

    /// The placement of the sample that is being taken.
    pub(crate) fn placement(&self) -> &Placement {
        if self.stage == Stage::Quick || self.settles || self.is_next_new() {
            &self.comparison.new
        } else {
            &self.comparison.old
        }
    }

    fn is_next_new(&self) -> bool {
        PATTERN[(self.old.len() + self.new.len()) % PATTERN.len()]
    }

    /// What was counted of the sample so far is worthless.
    pub(crate) fn throw_away(&mut self) {
        self.sample = Sample::default();
    }

    /// A window is over, with the placement that was wanted.
    pub(crate) fn observe(&mut self, seconds: f64, requests: f64, rate: f64) -> Verdict {
        self.sample.seconds += seconds;
        self.sample.requests += requests;
        self.sample.progress += rate * seconds;
        let Sample { seconds, requests, progress } = self.sample;
        if requests < SAMPLE_REQUESTS && seconds < SAMPLE_SECONDS {
            return Verdict::Open;
        }
        self.sample = Sample::default();
        if std::mem::take(&mut self.settles) {
            return Verdict::Open;
        }
        let rate = (progress / seconds).max(1e-9);
        match self.stage {
            Stage::Quick => self.quick(rate),
            Stage::Proper => self.proper(rate),
        }
    }

    fn quick(&mut self, rate: f64) -> Verdict {
        self.new.push(rate);
        if self.new.len() < QUICK_SAMPLES {
            return Verdict::Open;
        }
        let mean = self.new.iter().sum::<f64>() / self.new.len() as f64;
        let gain = (mean / self.comparison.before).ln();
        if gain >= QUICK_GAIN.max(self.comparison.need + QUICK_MARGIN) {
            return Verdict::Keep { gain };
        }
        self.new.clear();
        self.stage = Stage::Proper;
        Verdict::Open
    }

    fn proper(&mut self, rate: f64) -> Verdict {
        let samples = if self.is_next_new() { &mut self.new } else { &mut self.old };
        samples.push(rate.ln());
        if self.new.len() != self.old.len() {
            return Verdict::Open;
        }
        let count = self.old.len();
        let pairs = || self.new.iter().zip(&self.old).map(|(new, old)| new - old);
        let gain = pairs().sum::<f64>() / count as f64;
        let rate = (self.old.iter().sum::<f64>() / count as f64).exp();
        let keep = Verdict::Keep { gain };
        let refuse = Verdict::Refuse { gain, rate };
        if count < PAIRS_MIN {
            return if gain < HOPELESS { refuse } else { Verdict::Open };
        }
        let squares: f64 = pairs().map(|it| (it - gain) * (it - gain)).sum();
        let error = (squares / (count - 1) as f64 / count as f64).sqrt().max(ERROR_MIN);
        let need = self.comparison.need;
        let (low, high) = (gain - SURE * error, gain + SURE * error);
        let in_doubt = match self.comparison.direction {
            Direction::Up => need + error / 2.0,
            Direction::Down => need,
        };
        if low >= need || (count >= PAIRS_MAX && high > need && gain >= in_doubt) {
            keep
        } else if high <= need || count >= PAIRS_MAX {
            refuse
        } else {
            Verdict::Open
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(direction: Direction, need: f64, stage: Stage) -> Trial {
        let none = (Placement::new(), Vec::new());
        let comparison = Comparison {
            direction,
            old: none.0.clone(),
            new: none.0,
            old_threads: none.1.clone(),
            new_threads: none.1,
            busy: 4,
            before: 1000.0,
            predicted: 0.5,
            need,
        };
        Trial::new(comparison, stage)
    }

    /// The verdict, and after how many windows of 50 ms, if the new placement brings so much beside a drift.
    fn verdict(mut trial: Trial, gain: f64, drift: f64) -> (Verdict, usize) {
        for window in 1..200 {
            let at_new = trial.stage == Stage::Quick || trial.settles || trial.is_next_new();
            let factor = if at_new { 1.0 + gain } else { 1.0 };
            let rate = 100_000.0 * factor * (drift * f64::from(window)).exp();
            let verdict = trial.observe(0.05, rate * 0.05, rate);
            if verdict != Verdict::Open {
                return (verdict, usize::try_from(window).expect("it is small"));
            }
        }
        panic!("a trial ends");
    }

    #[test]
    fn a_plain_gain_is_kept_and_a_plain_loss_ends_with_the_first_pair() {
        let up = || trial(Direction::Up, 0.03, Stage::Proper);
        assert!(matches!(verdict(up(), 0.1, 0.0), (Verdict::Keep { .. }, 9)));
        assert!(matches!(verdict(up(), -0.3, 0.0), (Verdict::Refuse { .. }, 3)));
        assert!(matches!(verdict(up(), 0.01, 0.0), (Verdict::Refuse { .. }, 9)));
    }

    #[test]
    fn a_drift_that_is_as_large_as_a_gain_is_none() {
        let (found, _) = verdict(trial(Direction::Up, 0.03, Stage::Proper), 0.0, 0.01);
        let Verdict::Refuse { gain, .. } = found else { panic!("{found:?}") };
        assert!(gain.abs() < 1e-9, "{gain}");
    }

    #[test]
    fn a_sample_has_enough_requests() {
        let mut trial = trial(Direction::Down, -0.015, Stage::Proper);
        for _ in 0..19 {
            assert_eq!(trial.observe(0.05, 1.0, 20.0), Verdict::Open);
        }
        assert!(trial.settles);
        assert_eq!(trial.observe(0.05, 1.0, 20.0), Verdict::Open);
        assert!(!trial.settles, "after a second");
    }
}
