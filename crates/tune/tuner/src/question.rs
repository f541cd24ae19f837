//! What is asked of the figures: which cells count, and what a cheaper number of iothreads may lack.
//!
//! `settings` makes it from the options, `answer` and `search` ask it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{BadValue, stored_as_text};
use crate::weights::Weight;

/// What a number of iothreads that takes less CPU may lack of the best, in percent: 1 to 50.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Tolerance(u8);

impl Tolerance {
    /// As a share: 0.05 is 5 %.
    pub(crate) fn share(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl Default for Tolerance {
    fn default() -> Self {
        Self(5)
    }
}

impl FromStr for Tolerance {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent = text.strip_suffix('%').unwrap_or(text).parse().ok();
        let legal = percent.filter(|percent| (1..=50).contains(percent));
        legal.map(Self).ok_or_else(|| BadValue::new(text, "tolerance", "write 1 to 50 percent"))
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

stored_as_text!(Tolerance);

/// What the answer shall be good for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Question {
    /// How much cells count; none if all count alike and the worst one decides.
    pub(crate) weights: Vec<Weight>,
    pub(crate) tolerance: Tolerance,
}
