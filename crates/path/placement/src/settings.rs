//! What an administrator sets for a pool of iothreads, checked.

/// More iothreads than this has no pool.
pub const IOTHREADS_MAX: u16 = 64;

/// How much one more iothread must bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// 3 % for a step up.
    #[default]
    Throughput,
    /// 10 % for a step up, and for each doubling.
    Balanced,
    /// 25 % for a step up, and for each doubling.
    Cpu,
}

impl Preference {
    /// The gain that a step up must bring, as a share.
    pub(crate) fn gain_min(self) -> f64 {
        match self {
            Self::Throughput => 0.03,
            Self::Balanced => 0.10,
            Self::Cpu => 0.25,
        }
    }

    /// What all steps down since the last step up may cost together.
    pub(crate) fn loss_max(self) -> f64 {
        self.gain_min() / 2.0
    }
}

/// A mechanism that is left out, for tests which show that it is needed.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is left out.
    #[default]
    None,
    /// A refused step is tried again at once.
    NoBackOff,
    /// What was refused is remembered by the rate with the new placement.
    BackOffByNewRate,
    /// Each step down may lose, however many there are.
    LossPerStep,
    /// Polling counts as work.
    PollsAreWork,
    /// Rings are balanced by what they use now, not by what they would use alone.
    BalanceByUseNow,
    /// A trial goes on when the load has changed.
    TrialAcrossLoads,
}

/// Settings that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// `max` is 0 or above [`IOTHREADS_MAX`].
    Max(u16),
    /// `min` is above `max`.
    MinAboveMax {
        /// What was wanted for `min`.
        min: u16,
        /// What was wanted for `max`.
        max: u16,
    },
    /// `budget` is not above 0.
    Budget,
}

impl std::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Max(max) => write!(f, "max={max}: a pool has 1 to {IOTHREADS_MAX} iothreads"),
            Self::MinAboveMax { min, max } => write!(f, "min={min} is above max={max}"),
            Self::Budget => write!(f, "budget: must be above 0 CPUs"),
        }
    }
}

impl std::error::Error for SettingsError {}

/// What a pool may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolSettings {
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) budget_cpus: Option<f64>,
    pub(crate) prefer: Preference,
    pub(crate) fault: Fault,
}

impl PoolSettings {
    /// So many iothreads at least and at most, of 1 to [`IOTHREADS_MAX`]; CPUs that they may use together, polls included.
    ///
    /// # Errors
    /// If the numbers are out of range or contradict each other.
    pub fn new(
        min: u16,
        max: u16,
        budget_cpus: Option<f64>,
        prefer: Preference,
    ) -> Result<Self, SettingsError> {
        if max == 0 || max > IOTHREADS_MAX {
            return Err(SettingsError::Max(max));
        }
        if min > max {
            return Err(SettingsError::MinAboveMax { min, max });
        }
        if budget_cpus.is_some_and(|it| it.is_nan() || it <= 0.0) {
            return Err(SettingsError::Budget);
        }
        let (min, max) = (usize::from(min.max(1)), usize::from(max));
        Ok(Self { min, max, budget_cpus, prefer, fault: Fault::None })
    }

    /// The most iothreads.
    pub fn max(&self) -> usize {
        self.max
    }

    /// So many stay.
    pub fn min(&self) -> usize {
        self.min
    }

    /// The same without a mechanism.
    #[doc(hidden)]
    #[must_use = "it is a copy"]
    pub fn with_fault(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_contradict_each_other_are_refused_with_a_sentence() {
        let refused = |min, max, budget| {
            let settings = PoolSettings::new(min, max, budget, Preference::Throughput);
            settings.expect_err("it cannot be").to_string()
        };
        assert_eq!(refused(1, 65, None), "max=65: a pool has 1 to 64 iothreads");
        assert_eq!(refused(1, 0, None), "max=0: a pool has 1 to 64 iothreads");
        assert_eq!(refused(9, 8, None), "min=9 is above max=8");
        assert_eq!(refused(1, 8, Some(0.0)), "budget: must be above 0 CPUs");
        assert!(PoolSettings::new(0, 64, Some(0.5), Preference::Cpu).is_ok());
    }
}
