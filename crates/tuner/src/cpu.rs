//! CPU time of a process from the scheduler's own counters, summed over its threads.
//!
//! Invariants: a thread that appears between two readings counts from zero; a thread that ends
//! between them is lost, so the result is a lower bound. Kernels without these counters give `None`.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Run time of each thread, by thread id.
type Reading = HashMap<String, u64>;

/// Measures the CPU time a process uses between two moments.
#[derive(Debug)]
pub(crate) struct CpuMeter {
    tasks: PathBuf,
    start: Option<Reading>,
}

impl CpuMeter {
    /// Measures this process.
    pub(crate) fn of_this_process() -> Self {
        Self { tasks: PathBuf::from("/proc/self/task"), start: None }
    }

    /// Measures the process `pid`.
    pub(crate) fn of_process(pid: u32) -> Self {
        Self { tasks: PathBuf::from(format!("/proc/{pid}/task")), start: None }
    }

    /// Takes the first reading.
    pub(crate) fn start(&mut self) {
        self.start = self.read();
    }

    /// The CPU time since `start`.
    pub(crate) fn elapsed(&self) -> Option<Duration> {
        Some(difference(self.start.as_ref()?, &self.read()?))
    }

    fn read(&self) -> Option<Reading> {
        let mut reading = Reading::new();
        for task in fs::read_dir(&self.tasks).ok()?.flatten() {
            // A thread may end between the listing and the reading.
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else {
                continue;
            };
            reading.insert(task.file_name().to_string_lossy().into_owned(), run_time(&text)?);
        }
        (!reading.is_empty()).then_some(reading)
    }
}

/// The first number of schedstat: nanoseconds on a CPU.
fn run_time(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

fn difference(start: &Reading, end: &Reading) -> Duration {
    let used = |(task, &now): (&String, &u64)| {
        now.saturating_sub(start.get(task).copied().unwrap_or_default())
    };
    Duration::from_nanos(end.iter().map(used).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_may_come_and_go() {
        let reading = |pairs: &[(&str, u64)]| -> Reading {
            pairs.iter().map(|&(task, time)| (task.to_owned(), time)).collect()
        };
        let start = reading(&[("1", 100), ("2", 50)]);
        let end = reading(&[("1", 130), ("3", 7)]);
        assert_eq!(difference(&start, &end), Duration::from_nanos(37));
    }

    #[test]
    fn schedstat_begins_with_the_run_time() {
        assert_eq!(run_time("169052273 10772266 408\n"), Some(169_052_273));
        assert_eq!(run_time(""), None);
    }

    #[test]
    fn a_process_that_is_gone_has_no_reading() {
        let mut meter = CpuMeter::of_process(u32::MAX);
        meter.start();
        assert_eq!(meter.elapsed(), None);
    }
}
