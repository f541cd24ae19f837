//! What is asked of the figures: what the number of iothreads is to be good for, what it must keep, which cells count, and
//! what a cheaper number may lack.
//!
//! `settings` makes it from the options, `answer` and `search` ask it of the `Figures` of each run.
//!
//! Invariants: of two runs the one with the higher merit answers the question better, whatever it is; so shares, resamplings
//! and the words of certainty are the same for all. A bound is never on what is wanted anyhow (`Question::check`).
//! Not here: latency at a rate that is not the highest, which a sweep does not measure (`tune curve`).

mod bounds;

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use self::bounds::{Bound, IopsMin, P99Max};
use crate::contender::Iothreads;
use crate::units::{BadValue, stored_as_text};
use crate::weights::Weight;

/// What the number of iothreads is to be good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Want {
    /// The most IOPS
    #[default]
    Throughput,
    /// The lowest p99
    Latency,
    /// The least CPU time per request
    Cpu,
}

/// What questions are asked of: the figures of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Requests per second.
    pub iops: f64,
    /// Missing where no latency was recorded.
    pub p99_us: Option<f64>,
    /// CPU time per request of everything that takes part.
    pub cpu_us: Option<f64>,
}

impl Figures {
    /// The higher, the better: of latency and CPU time the reciprocal. Missing where it was not measured.
    pub fn merit(&self, want: Want) -> Option<f64> {
        let per_second = |us: Option<f64>| us.filter(|us| *us > 0.0).map(|us| 1e6 / us);
        match want {
            Want::Throughput => Some(self.iops),
            Want::Latency => per_second(self.p99_us),
            Want::Cpu => per_second(self.cpu_us),
        }
    }
}

/// What a number of iothreads that takes less CPU may lack of the best, in percent: 1 to 50.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tolerance(u8);

impl Tolerance {
    /// As a share: 0.05 is 5 %.
    pub fn share(self) -> f64 {
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
pub struct Question {
    /// What the number is to be good for.
    pub want: Want,
    /// What every cell that counts must keep.
    pub bounds: Vec<Bound>,
    /// How much cells count; none if all count alike and the worst one decides.
    pub weights: Vec<Weight>,
    /// What a cheaper number may lack.
    pub tolerance: Tolerance,
    /// The number that is in use, which is compared with the answer whatever it reaches.
    pub today: Option<Iothreads>,
}

impl Question {
    /// Refuses a bound on what is made good anyhow.
    ///
    /// # Errors
    /// The option and what it is for.
    pub fn check(&self) -> Result<()> {
        for bound in &self.bounds {
            match (self.want, bound) {
                (Want::Throughput, Bound::IopsMin(_)) => bail!(
                    "--iops-min is for --want cpu and latency: --want throughput asks for the most IOPS anyhow"
                ),
                (Want::Latency, Bound::P99Max(_)) => bail!(
                    "--p99-max is for --want throughput and cpu: --want latency asks for the lowest p99 anyhow"
                ),
                (Want::Throughput | Want::Cpu, Bound::P99Max(_))
                | (Want::Latency | Want::Cpu, Bound::IopsMin(_)) => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_on_what_is_wanted_is_refused() {
        let bounds = |texts: &[&str]| -> Vec<Bound> {
            let bound = |text: &&str| match text.parse() {
                Ok(p99) => Bound::P99Max(p99),
                Err(_) => Bound::IopsMin(text.parse().unwrap()),
            };
            texts.iter().map(bound).collect()
        };
        for (want, texts, refused) in [
            (Want::Throughput, &["2ms"][..], None),
            (Want::Throughput, &["50k"], Some("--iops-min is for --want cpu and latency")),
            (Want::Latency, &["50k"], None),
            (Want::Latency, &["2ms"], Some("--p99-max is for --want throughput and cpu")),
            (Want::Cpu, &["2ms", "50k"], None),
        ] {
            let question = Question { want, bounds: bounds(texts), ..Question::default() };
            let error = question.check().err().map(|error| error.to_string());
            assert_eq!(error.is_some(), refused.is_some(), "{want:?} {texts:?}");
            assert!(error.zip(refused).is_none_or(|(error, part)| error.starts_with(part)));
        }
    }
}
