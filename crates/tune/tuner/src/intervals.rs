//! Lines about each interval of a run while it runs, in the form of vdbench. Pure functions.
//!
//! Whoever runs a load, fio or our own, feeds what it learnt about each second.
//!
//! Invariants: columns are those of vdbench 5.04, three of them one narrower, so that a line fits 100 characters; a title
//! stands above every 20 lines; the average leaves the first interval out, as vdbench does. Times are UTC, latencies ms.

use std::time::Duration;

use records::calendar::{Date, exact_time_of_day};
use records::meter::HostCpu;

/// As vdbench does.
const LINES_PER_TITLE: usize = 20;
const MEGABYTE: f64 = 1e6;

/// One interval of a load.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Interval {
    /// 1 for the first.
    pub(crate) number: u32,
    /// When it ended.
    pub(crate) ended_unix_ms: u64,
    pub(crate) elapsed: Duration,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    /// Those of the operations that read.
    pub(crate) reads: u64,
    pub(crate) mean: Duration,
    pub(crate) max: Duration,
    pub(crate) deviation: Duration,
    pub(crate) host: Option<HostCpu>,
}

/// What has been printed of a run.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    lines: usize,
    /// Without the first interval.
    sum: Sum,
    last: Option<(u32, u64)>,
}

impl Intervals {
    /// The line of an interval, below a title where one is due.
    pub(crate) fn line(&mut self, interval: &Interval) -> String {
        let mut text = String::new();
        if self.lines.is_multiple_of(LINES_PER_TITLE) {
            text = title(interval.ended_unix_ms);
        }
        self.lines += 1;
        if self.lines > 1 {
            self.sum.add(interval);
        }
        self.last = Some((interval.number, interval.ended_unix_ms));
        let mut one = Sum::default();
        one.add(interval);
        text + &row(interval.ended_unix_ms, &interval.number.to_string(), &one)
    }

    /// The line `avg_2-N`; `None` for fewer than two intervals.
    pub(crate) fn average(&self) -> Option<String> {
        let (number, ended) = self.last.filter(|_| self.lines > 1)?;
        Some(row(ended, &format!("avg_2-{number}"), &self.sum))
    }
}

fn title(unix_ms: u64) -> String {
    let day = Date::of(unix_ms / 1000).in_words();
    columns([
        &day, "interval", "i/o", "MB/sec", "bytes", "read", "resp", "resp", "resp", "queue",
        "cpu%", "cpu%",
    ]) + &columns([
        "", "", "rate", "1000**2", "i/o", "pct", "time", "max", "stddev", "depth", "sys+u", "sys",
    ])
}

fn row(ended_unix_ms: u64, label: &str, sum: &Sum) -> String {
    let seconds = sum.elapsed.as_secs_f64();
    let rate = share(sum.operations as f64, seconds);
    let operations = sum.operations as f64;
    let mean = sum.mean();
    let cpu = |part: Option<f64>| match part {
        Some(part) => format!("{:.1}", 100.0 * share(part, seconds)),
        None => "n/a".to_owned(),
    };
    columns([
        &exact_time_of_day(ended_unix_ms),
        label,
        &format!("{rate:.1}"),
        &format!("{:.2}", share(sum.bytes as f64 / MEGABYTE, seconds)),
        &format!("{:.0}", share(sum.bytes as f64, operations)),
        &format!("{:.2}", 100.0 * share(sum.reads as f64, operations)),
        &format!("{:.3}", mean * 1e3),
        &format!("{:.3}", sum.max.as_secs_f64() * 1e3),
        &format!("{:.3}", sum.deviation() * 1e3),
        // Little's law: what is under way is the rate times the time each takes.
        &format!("{:.1}", rate * mean),
        &cpu(sum.busy),
        &cpu(sum.kernel),
    ])
}

/// A line of twelve columns in 100 characters; a value too wide moves the rest.
fn columns(values: [&str; 12]) -> String {
    const WIDTHS: [usize; 12] = [12, 8, 9, 8, 7, 6, 8, 8, 7, 6, 5, 5];
    let padded = values.iter().zip(WIDTHS).map(|(value, width)| format!("{value:>width$}"));
    padded.collect::<Vec<_>>().join(" ").trim_end().to_owned() + "\n"
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Several intervals as one.
#[derive(Debug)]
struct Sum {
    elapsed: Duration,
    operations: u64,
    bytes: u64,
    reads: u64,
    /// Seconds, over all operations.
    latency: f64,
    /// Squares of seconds, over all operations.
    squares: f64,
    max: Duration,
    /// Share of all CPUs times seconds; missing as soon as it is missing once.
    busy: Option<f64>,
    kernel: Option<f64>,
}

impl Default for Sum {
    fn default() -> Self {
        Self {
            elapsed: Duration::ZERO,
            operations: 0,
            bytes: 0,
            reads: 0,
            latency: 0.0,
            squares: 0.0,
            max: Duration::ZERO,
            busy: Some(0.0),
            kernel: Some(0.0),
        }
    }
}

impl Sum {
    fn add(&mut self, interval: &Interval) {
        let (mean, deviation) = (interval.mean.as_secs_f64(), interval.deviation.as_secs_f64());
        let operations = interval.operations as f64;
        self.elapsed += interval.elapsed;
        self.operations += interval.operations;
        self.bytes += interval.bytes;
        self.reads += interval.reads;
        self.latency += mean * operations;
        self.squares += (deviation * deviation + mean * mean) * operations;
        self.max = self.max.max(interval.max);
        let seconds = interval.elapsed.as_secs_f64();
        let part = |sum: Option<f64>, of: fn(&HostCpu) -> f64| {
            let host = interval.host.as_ref()?;
            Some(sum? + of(host) / host.of as f64 * seconds)
        };
        self.busy = part(self.busy, |host| host.cpus_in_use);
        self.kernel = part(self.kernel, |host| host.cpus_in_kernel);
    }

    /// Seconds.
    fn mean(&self) -> f64 {
        share(self.latency, self.operations as f64)
    }

    /// Seconds.
    fn deviation(&self) -> f64 {
        let mean = self.mean();
        // Rounding may leave a little less than nothing.
        (share(self.squares, self.operations as f64) - mean * mean).max(0.0).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(cpus_in_use: f64, cpus_in_kernel: f64) -> Option<HostCpu> {
        Some(HostCpu {
            cpus_in_use,
            cpus_in_kernel,
            of: 4,
            cpus_stolen: 0.0,
            per_cpu_busy: vec![cpus_in_use / 4.0; 4],
            context_switches_per_s: 0.0,
        })
    }

    fn interval(number: u32) -> Interval {
        Interval {
            number,
            ended_unix_ms: 1_795_356_000_051 + 1000 * u64::from(number),
            elapsed: Duration::from_secs(1),
            operations: 25_000,
            bytes: 25_000 * 4096,
            reads: 20_000,
            mean: Duration::from_micros(640),
            max: Duration::from_micros(12_345),
            deviation: Duration::from_micros(71),
            host: host(2.0, 1.0),
        }
    }

    const TITLE: &str = "\
Nov 22, 2026 interval       i/o   MB/sec   bytes   read     resp     resp    resp  queue  cpu%  cpu%
                           rate  1000**2     i/o    pct     time      max  stddev  depth sys+u   sys
";

    #[test]
    fn a_run_looks_like_one_of_vdbench() {
        let mut intervals = Intervals::default();
        let mut second = interval(2);
        (second.operations, second.bytes, second.reads) = (50_000, 50_000 * 4096, 50_000);
        second.elapsed = Duration::from_millis(2000);
        let mut third = interval(3);
        third.mean = Duration::from_micros(1280);
        third.max = Duration::from_millis(20);
        third.host = host(4.0, 0.0);
        let text = [&interval(1), &second, &third].map(|it| intervals.line(it)).concat();
        let expected = "\
14:00:01.051        1   25000.0   102.40    4096  80.00    0.640   12.345   0.071   16.0  50.0  25.0
14:00:02.051        2   25000.0   102.40    4096 100.00    0.640   12.345   0.071   16.0  50.0  25.0
14:00:03.051        3   25000.0   102.40    4096  80.00    1.280   20.000   0.071   32.0 100.0   0.0
";
        assert_eq!(text, format!("{TITLE}{expected}"));
        let average = "\
14:00:03.051  avg_2-3   25000.0   102.40    4096  93.33    0.853   20.000   0.310   21.3  66.7  16.7
";
        assert_eq!(intervals.average().unwrap(), average);
    }

    #[test]
    fn what_is_missing_is_said_and_nothing_is_divided_by_zero() {
        let mut empty = interval(1);
        (empty.operations, empty.bytes, empty.reads, empty.host) = (0, 0, 0, None);
        (empty.mean, empty.max, empty.deviation) = Default::default();
        let expected = "\
14:00:01.051        1       0.0     0.00       0   0.00    0.000    0.000   0.000    0.0   n/a   n/a
";
        assert_eq!(Intervals::default().line(&empty), format!("{TITLE}{expected}"));
        empty.elapsed = Duration::ZERO;
        assert_eq!(Intervals::default().line(&empty), format!("{TITLE}{expected}"));
    }

    #[test]
    fn every_20_lines_have_a_title() {
        let mut intervals = Intervals::default();
        let titled: Vec<u32> =
            (1..=45).filter(|&it| intervals.line(&interval(it)).contains("rate")).collect();
        assert_eq!(titled, [1, 21, 41]);
    }

    #[test]
    fn one_interval_has_no_average() {
        let mut intervals = Intervals::default();
        assert_eq!(intervals.average(), None);
        intervals.line(&interval(1));
        assert_eq!(intervals.average(), None);
        let second = intervals.line(&interval(2));
        let average = intervals.average().unwrap();
        assert_eq!(average, second.replace("      2 ", "avg_2-2 "));
    }

    #[test]
    fn a_missing_cpu_is_missing_in_the_average() {
        let mut intervals = Intervals::default();
        for number in 1..=3 {
            let host = host(1.0, 1.0).filter(|_| number != 2);
            intervals.line(&Interval { host, ..interval(number) });
        }
        assert!(intervals.average().unwrap().ends_with("  n/a   n/a\n"));
    }
}
