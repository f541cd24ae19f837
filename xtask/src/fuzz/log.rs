//! What a log of libFuzzer says.

use std::fmt;

/// What a run did. What the log does not say is 0.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Inputs that were run.
    runs: u64,
    /// Inputs per second.
    rate: u64,
    /// Edges of the code that were reached.
    edges: u64,
    /// The sentence of the panic that ended it.
    pub(crate) panic: Option<String>,
}

impl Summary {
    pub(crate) fn of(log: &str) -> Self {
        let mut summary = Self::default();
        let mut after_panic = false;
        for line in log.lines() {
            if after_panic && summary.panic.is_none() {
                summary.panic = Some(line.to_owned());
            }
            after_panic = line.contains("' panicked at ") || line.contains(") panicked at ");
            if line.starts_with("==") && line.contains("ERROR: libFuzzer: timeout") {
                summary.panic.get_or_insert_with(|| "an input takes too long".to_owned());
            }
            if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
                summary.runs = number.trim().parse().unwrap_or(0);
            } else if let Some(number) = line.strip_prefix("stat::average_exec_per_sec:") {
                summary.rate = number.trim().parse().unwrap_or(0);
            } else if let Some((_, rest)) = line.split_once(" cov: ") {
                let number = rest.split(' ').next().unwrap_or_default();
                summary.edges = number.parse().unwrap_or(summary.edges);
            }
        }
        summary
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, rate, edges, panic } = self;
        write!(f, "{runs} inputs, {rate} per second, {edges} edges")?;
        match panic {
            Some(panic) => write!(f, "; found: {panic}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_found_nothing_has_its_numbers() {
        let log = "#2\tINITED cov: 17 ft: 18 corp: 1/1b exec/s: 0 rss: 39Mb\n\
                   #900\tDONE   cov: 25 ft: 30 corp: 4/9b lim: 4 exec/s: 450 rss: 40Mb\n\
                   stat::number_of_executed_units: 900\n\
                   stat::average_exec_per_sec:     450\n";
        let expected = Summary { runs: 900, rate: 450, edges: 25, panic: None };
        assert_eq!(Summary::of(log), expected);
    }

    #[test]
    fn a_panic_is_told_by_its_sentence() {
        let log = "#2\tINITED cov: 17 ft: 18\n\
                   thread '<unnamed>' (7) panicked at fuzz/src/must_fail.rs:19:27:\n\
                   attempt to add with overflow\n\
                   stack backtrace:\n";
        let panic = Some("attempt to add with overflow".to_owned());
        assert_eq!(Summary::of(log), Summary { edges: 17, panic, ..Summary::default() });
    }
}
