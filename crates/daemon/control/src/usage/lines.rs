//! How the use of iothreads and queues reads.

use std::fmt;
use std::time::Duration;

use crate::placer::PoolExport;

/// What an iothread did in some time.
#[derive(Debug, Clone, Copy)]
pub(super) struct IothreadUse {
    pub(super) passed: Duration,
    pub(super) work: Duration,
    pub(super) poll: Duration,
    /// On a CPU.
    pub(super) cpu: Duration,
    /// Ready to run, while others had the CPU.
    pub(super) run_delay: Duration,
}

/// What a queue did in some time.
#[derive(Debug, Clone)]
pub(super) struct QueueUse {
    pub(super) passed: Duration,
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) errors: u64,
    /// For how long requests were open, summed over all of them, and waited for a turn.
    pub(super) open: Duration,
    pub(super) wait: Duration,
    pub(super) moves: u64,
    pub(super) in_flight: u64,
    /// Upper edge and number of each bucket of latency, in order.
    pub(super) latency: Vec<(Duration, u64)>,
}

impl fmt::Display for IothreadUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, work, poll, cpu, run_delay } = *self;
        // The rest of it was sleep, which counts only when it is over.
        let percent = |part: Duration| percent(part.as_secs_f64(), passed.as_secs_f64());
        write!(f, "{} % working, {} % polling, ", percent(work), percent(poll))?;
        let [cpu, run_delay] = [cpu, run_delay].map(|it| it.as_secs_f64());
        write!(f, "{cpu:.2} s of CPU time, {run_delay:.2} s waiting for a CPU")
    }
}

impl fmt::Display for QueueUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.passed.as_secs_f64().max(f64::MIN_POSITIVE);
        let (requests, bytes) = (float(self.requests), float(self.bytes));
        write!(f, "{} requests/s, ", rate(requests / seconds))?;
        write!(f, "{:.1} MiB/s, ", bytes / seconds / f64::from(1 << 20))?;
        write!(f, "{} in flight", self.in_flight)?;
        if let (Some(half), Some(most)) = (self.percentile(50), self.percentile(99)) {
            write!(f, ", half within {} and 99 % within {}", time(half), time(most))?;
        }
        let (open, wait) = (self.open.as_secs_f64(), self.wait.as_secs_f64());
        write!(f, ", {} % of it waiting for other queues", percent(wait, open + wait))?;
        match self.errors {
            0 => {}
            errors => write!(f, ", {errors} errors")?,
        }
        match self.moves {
            0 => Ok(()),
            moves => write!(f, ", moved {moves} times"),
        }
    }
}

/// How a pool and its exports are placed.
pub(super) fn of_pool(
    name: &str,
    running: usize,
    slots: usize,
    exports: &[PoolExport],
) -> Vec<String> {
    let pool = format!("pool {name}: {running} of {slots} iothreads run");
    let export = |it: &PoolExport| {
        let placed = it.iothreads?;
        let gain = it.gain_max.unwrap_or_default() * 100.0;
        let trial = if it.is_trying { ", being tried" } else { "" };
        let name = &it.name;
        Some(format!(
            "export {name}: placed on {placed}, another would bring {gain:.0} % at most{trial}"
        ))
    };
    std::iter::once(pool).chain(exports.iter().filter_map(export)).collect()
}

impl QueueUse {
    /// The upper edge of the bucket that has that request.
    fn percentile(&self, percent: u64) -> Option<Duration> {
        let all: u64 = self.latency.iter().map(|(_, count)| count).sum();
        let wanted = (all * percent).div_ceil(100);
        let mut seen = 0;
        let has = |(_, count): &&(Duration, u64)| {
            seen += count;
            seen >= wanted && *count > 0
        };
        self.latency.iter().find(has).map(|(to, _)| *to)
    }
}

/// How many hundredths a part is.
fn percent(part: f64, all: f64) -> String {
    format!("{:.0}", if all > 0.0 { part / all * 100.0 } else { 0.0 })
}

/// With three digits.
fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e4 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

fn time(time: Duration) -> String {
    match time {
        time if time < Duration::from_millis(1) => format!("{} µs", time.as_micros()),
        time => format!("{:.1} ms", time.as_secs_f64() * 1e3),
    }
}

/// Sums stay far below 2^53, where doubles lose whole numbers.
#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_iothread_says_what_it_did_with_its_time() {
        let used = IothreadUse {
            passed: 1000 * MS,
            work: 300 * MS,
            poll: 100 * MS,
            cpu: 410 * MS,
            run_delay: 20 * MS,
        };
        let line = "30 % working, 10 % polling, 0.41 s of CPU time, 0.02 s waiting for a CPU";
        assert_eq!(used.to_string(), line);
    }

    #[test]
    fn a_queue_says_what_an_administrator_asks_first() {
        let us = Duration::from_micros;
        let used = QueueUse {
            passed: Duration::from_secs(2),
            requests: 200_000,
            bytes: 200_000 * 4096,
            errors: 0,
            open: Duration::from_secs(9),
            wait: Duration::from_secs(1),
            moves: 0,
            in_flight: 5,
            latency: vec![(us(50), 0), (us(80), 150_000), (us(200), 48_100), (us(1500), 1900)],
        };
        let line = "100.0 k requests/s, 390.6 MiB/s, 5 in flight, half within 80 µs and 99 % within \
                    200 µs, 10 % of it waiting for other queues";
        assert_eq!(used.to_string(), line);
        let used = QueueUse { errors: 3, moves: 2, latency: Vec::new(), requests: 7, ..used };
        let line = "4 requests/s, 390.6 MiB/s, 5 in flight, 10 % of it waiting for other queues, 3 \
                    errors, moved 2 times";
        assert_eq!(used.to_string(), line);
    }
}
