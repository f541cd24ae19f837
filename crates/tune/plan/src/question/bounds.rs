//! What a number of iothreads must keep: `--p99-max 2ms`, `--iops-min 50k`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Figures;
use crate::units::{BadValue, grouped, stored_as_text};

/// Ten seconds and a billion requests per second: more than anybody asks for.
const P99_US_MAX: u64 = 10_000_000;
const IOPS_MAX: u64 = 1_000_000_000;
const TIMES: [(&str, u64); 3] = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
const RATES: [(&str, u64); 3] = [("", 1), ("k", 1000), ("M", 1_000_000)];

/// The highest p99 that is allowed: `2ms`, `500us`, `1s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct P99Max {
    us: u64,
}

/// The fewest requests per second that are wanted: `50k`, `50000`, `1M`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IopsMin(u64);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// 99 of 100 requests take at most so long.
    P99Max(P99Max),
    /// At least so many requests per second.
    IopsMin(IopsMin),
}

impl Bound {
    /// How much of the bound a run makes use of: above 1 it does not keep it. What was not measured keeps nothing.
    pub fn used(self, figures: &Figures) -> f64 {
        let used = match self {
            Self::P99Max(P99Max { us }) => figures.p99_us.map(|p99| p99 / us as f64),
            Self::IopsMin(IopsMin(least)) => Some(least as f64 / figures.iops),
        };
        used.filter(|used| !used.is_nan()).unwrap_or(f64::INFINITY)
    }

    /// `p99 1.9 ms`, `54,321 IOPS`: what a run has that makes so much use of the bound.
    pub fn reached(self, used: f64) -> String {
        match self {
            Self::P99Max(P99Max { us }) => {
                let us = us as f64 * used;
                if us < 999.5 {
                    format!("p99 {us:.0} µs")
                } else {
                    format!("p99 {:.1} ms", us / 1e3)
                }
            }
            Self::IopsMin(IopsMin(least)) => format!("{} IOPS", grouped(least as f64 / used)),
        }
    }
}

/// `p99 of at most 2ms`, `at least 50,000 IOPS`.
impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::P99Max(most) => write!(f, "a p99 of at most {most}"),
            Self::IopsMin(IopsMin(least)) => write!(f, "at least {} IOPS", grouped(*least as f64)),
        }
    }
}

impl FromStr for P99Max {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let us = whole(text, &TIMES, P99_US_MAX);
        let valid = "write a whole number of us, ms or s up to 10s, such as 2ms or 500us";
        us.map(|us| Self { us }).ok_or_else(|| BadValue::new(text, "latency", valid))
    }
}

impl FromStr for IopsMin {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let iops = whole(text, &RATES, IOPS_MAX);
        let valid = "write requests per second, such as 50000 or 50k (k is 1000, M a million)";
        iops.map(Self).ok_or_else(|| BadValue::new(text, "rate", valid))
    }
}

/// A number above 0 with one of these units, in the smallest of them.
fn whole(text: &str, units: &[(&str, u64)], most: u64) -> Option<u64> {
    let (digits, unit) =
        text.split_at(text.find(|it: char| !it.is_ascii_digit()).unwrap_or(text.len()));
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let number = digits.parse::<u64>().ok()?.checked_mul(*factor)?;
    (1..=most).contains(&number).then_some(number)
}

/// With the largest unit of which it is a whole number.
fn text(number: u64, units: &[(&str, u64)]) -> String {
    let exact = units.iter().rev().find(|(_, factor)| number.is_multiple_of(*factor));
    exact.map(|(unit, factor)| format!("{}{unit}", number / factor)).unwrap_or_default()
}

impl fmt::Display for P99Max {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self.us, &TIMES))
    }
}

impl fmt::Display for IopsMin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self.0, &RATES))
    }
}

stored_as_text!(P99Max, IopsMin);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_have_units_and_are_printed_as_they_are_read() {
        for (text, us) in [("2ms", 2000), ("500us", 500), ("1500us", 1500), ("10s", 10_000_000)] {
            let read: P99Max = text.parse().unwrap();
            assert_eq!((read.us, read.to_string()), (us, text.to_owned()));
        }
        for (text, iops) in [("50k", 50_000), ("1500", 1500), ("2M", 2_000_000)] {
            let read: IopsMin = text.parse().unwrap();
            assert_eq!((read.0, read.to_string()), (iops, text.to_owned()));
        }
        assert_eq!("50000".parse::<IopsMin>().unwrap().to_string(), "50k");
        for text in ["", "2", "0ms", "11s", "-1ms", "2.5ms", "2 ms", "99999999999999999999s"] {
            assert!(
                text.parse::<P99Max>().unwrap_err().to_string().contains("such as 2ms"),
                "{text}"
            );
        }
        for text in ["", "0", "k", "-5", "50K", "2G", "99999999999999999999M"] {
            assert!(text.parse::<IopsMin>().unwrap_err().to_string().contains("or 50k"), "{text}");
        }
    }

    #[test]
    fn what_is_used_of_a_bound_says_whether_it_is_kept() {
        let figures = Figures { iops: 40_000.0, p99_us: Some(1500.0), cpu_us: None };
        let p99 = Bound::P99Max("2ms".parse().unwrap());
        let iops = Bound::IopsMin("50k".parse().unwrap());
        assert_eq!([p99, iops].map(|it| it.used(&figures)), [0.75, 1.25]);
        assert_eq!([p99.reached(0.75), iops.reached(1.25)], ["p99 1.5 ms", "40,000 IOPS"]);
        assert_eq!(p99.used(&Figures { p99_us: None, ..figures }), f64::INFINITY);
        assert_eq!(iops.used(&Figures { iops: 0.0, ..figures }), f64::INFINITY);
    }
}
