//! A measured distribution of latencies, as a text file has it.
//!
//! Each line is a latency in nanoseconds and how often it was seen: `125000 431`. Empty lines and what
//! stands behind `#` are left out. The order of the lines does not matter.
//!
//! Invariants: at least one latency was seen; none is above [`Latency::MAX`].
//! Limits: [`Histogram::BYTES_MAX`], which the reader of the file keeps too.

use super::distribution::{Latency, LatencyTooLong};

/// Latencies, and how often each occurs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// With the number of those up to and including it; never empty.
    latencies: Vec<(Latency, u64)>,
    total: u64,
}

/// A text is no histogram. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistogramError {
    /// It is longer than any histogram.
    #[error("more than {} bytes", Histogram::BYTES_MAX)]
    TooLarge,
    /// It is no text.
    #[error("not UTF-8")]
    NotText,
    /// A line that says something else.
    #[error("line {line}: expected a latency in nanoseconds and a count, not '{text}'")]
    Line {
        /// Which one.
        line: usize,
        /// Its beginning.
        text: String,
    },
    /// A latency out of range.
    #[error("line {line}: latency")]
    TooLong {
        /// Which one.
        line: usize,
        /// What is wrong.
        #[source]
        source: LatencyTooLong,
    },
    /// The counts do not fit 64 bits together.
    #[error("line {line}: the counts add up to more than 2^64 - 1")]
    Overflow {
        /// Where they stop fitting.
        line: usize,
    },
    /// Nothing was ever seen.
    #[error("it has no line with a count above 0")]
    Empty,
}

/// How much of a wrong line a message shows, in characters.
const SHOWN_MAX: usize = 40;

impl Histogram {
    /// The size of the largest file, in bytes.
    pub const BYTES_MAX: usize = 1 << 20;

    /// Reads the content of a file.
    pub fn parse(content: &[u8]) -> Result<Self, HistogramError> {
        if content.len() > Self::BYTES_MAX {
            return Err(HistogramError::TooLarge);
        }
        let Ok(text) = str::from_utf8(content) else { return Err(HistogramError::NotText) };
        let (mut latencies, mut total) = (Vec::new(), 0_u64);
        for (line, text) in (1..).zip(text.lines()) {
            let said = text.split('#').next().unwrap_or_default().trim();
            if said.is_empty() {
                continue;
            }
            let Some((ns, count)) = numbers(said) else {
                let text = said.chars().take(SHOWN_MAX).collect();
                return Err(HistogramError::Line { line, text });
            };
            let latency =
                Latency::from_ns(ns).map_err(|source| HistogramError::TooLong { line, source })?;
            total = total.checked_add(count).ok_or(HistogramError::Overflow { line })?;
            if count > 0 {
                latencies.push((latency, total));
            }
        }
        if latencies.is_empty() {
            return Err(HistogramError::Empty);
        }
        Ok(Self { latencies, total })
    }

    /// How many latencies were counted.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The latency of the one with this number, counted from 0 and below [`Histogram::total`].
    pub(super) fn at(&self, number: u64) -> Latency {
        let place = self.latencies.partition_point(|(_, up_to)| *up_to <= number);
        self.latencies[place].0
    }

    /// The longest of all.
    pub(super) fn longest(&self) -> Latency {
        let latencies = self.latencies.iter().map(|(latency, _)| *latency);
        latencies.max().unwrap_or(Latency::ZERO)
    }
}

fn numbers(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    let numbers = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    words.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(content: &str, expected: &str) {
        let error = Histogram::parse(content.as_bytes()).unwrap_err();
        let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |it| it.source());
        let said: Vec<_> = chain.map(ToString::to_string).collect();
        assert_eq!(said.join(": "), expected, "{content:?}");
    }

    #[test]
    fn each_latency_comes_as_often_as_it_was_counted() {
        let text = "# from fio\n\n 200 3 # often\n100\t1\n300 0\r\n500 2\n";
        let histogram = Histogram::parse(text.as_bytes()).unwrap();
        let all: Vec<_> = (0..histogram.total()).map(|number| histogram.at(number).ns()).collect();
        assert_eq!(all, [200, 200, 200, 100, 500, 500]);
        assert_eq!(histogram.longest().ns(), 500);
    }

    #[test]
    fn what_is_no_histogram_is_refused_with_its_line() {
        let expected = "expected a latency in nanoseconds and a count, not";
        refused("1 1\n2\n", &format!("line 2: {expected} '2'"));
        refused("1 1 1", &format!("line 1: {expected} '1 1 1'"));
        refused("-1 1", &format!("line 1: {expected} '-1 1'"));
        refused("1.5 1", &format!("line 1: {expected} '1.5 1'"));
        refused("99999999999999999999 1", &format!("line 1: {expected} '99999999999999999999 1'"));
        refused(&"x".repeat(1000), &format!("line 1: {expected} '{}'", "x".repeat(40)));
        refused(
            "\n3600000000001 1",
            "line 2: latency: 3600000000001 ns is more than an hour (3600000000000 ns)",
        );
        refused("1 18446744073709551615\n2 1", "line 2: the counts add up to more than 2^64 - 1");
        for empty in ["", "# nothing\n", "1 0\n"] {
            refused(empty, "it has no line with a count above 0");
        }
        assert_eq!(Histogram::parse(b"1 1\n\xff"), Err(HistogramError::NotText));
        let large = vec![b'\n'; Histogram::BYTES_MAX + 1];
        assert_eq!(Histogram::parse(&large), Err(HistogramError::TooLarge));
    }
}
