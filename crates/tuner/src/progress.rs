//! What the user sees while it runs, on standard error: a bar on a terminal, plain lines elsewhere.
//!
//! Standard output is left to the report.

use std::cell::{Cell as Shared, RefCell};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::clock;
use crate::intervals::{Interval, Intervals};
use crate::meter::Meter;
use crate::units::{Bytes, grouped, human_time};

/// Steps of the bar per run, so that it moves inside a run too.
const STEPS_PER_RUN: u64 = 100;

/// The progress of all runs.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    runs: usize,
    done: Shared<usize>,
    /// What one run takes, measured as soon as there is one.
    per_run: Shared<Duration>,
    run_started: Shared<Instant>,
    /// If every second of a run is to be shown.
    intervals: RefCell<Option<Watcher>>,
}

/// Shows the seconds of a run.
#[derive(Debug)]
struct Watcher {
    lines: Intervals,
    host: Meter,
}

impl Watcher {
    fn new() -> Self {
        let mut host = Meter::new(Vec::new());
        host.close(clock::now());
        Self { lines: Intervals::default(), host }
    }

    fn show(&mut self, interval: &load::Interval) {
        let now = clock::now();
        self.host.close(now);
        // The ramp before the first interval is not in it.
        let opened = now.checked_sub(interval.elapsed).unwrap_or(now);
        let host = self.host.between(opened, now).host;
        let load::Interval { second, operations, bytes, reads, elapsed, latency } = interval;
        let line = self.lines.line(&Interval {
            number: *second,
            ended_unix_ms: u64::try_from(clock::since_epoch().as_millis()).unwrap_or(0),
            elapsed: *elapsed,
            operations: *operations,
            bytes: *bytes,
            reads: *reads,
            mean: latency.mean().unwrap_or_default(),
            max: latency.max().unwrap_or_default(),
            deviation: latency.stddev().unwrap_or_default(),
            host,
        });
        say(line.trim_end());
    }
}

impl Progress {
    /// `expected` is the time one run should take; with `intervals` there is no bar, but a line for each second.
    pub(crate) fn new(runs: usize, expected: Duration, intervals: bool) -> Self {
        let bar = (io::stderr().is_terminal() && !intervals).then(|| {
            let bar = ProgressBar::new(u64::try_from(runs).unwrap_or(0) * STEPS_PER_RUN);
            bar.set_style(style("{prefix} [{bar:24}] {percent:>3} %  {msg}"));
            bar
        });
        let started = Shared::new(clock::now());
        let (done, per_run) = (Shared::new(0), Shared::new(expected));
        let intervals = RefCell::new(intervals.then(Watcher::new));
        Self { bar, runs, done, per_run, run_started: started, intervals }
    }

    /// A run begins.
    pub(crate) fn begin(&self, name: &str) {
        self.run_started.set(clock::now());
        if let Some(watcher) = &mut *self.intervals.borrow_mut() {
            say(&format!("\n{name}"));
            *watcher = Watcher::new();
        }
        if let Some(bar) = &self.bar {
            bar.set_prefix(format!("{:>3}/{}", self.done.get() + 1, self.runs));
            bar.set_message(self.message(name));
        }
    }

    /// Some time of the run `name` has passed.
    pub(crate) fn tick(&self, name: &str) {
        if let Some(watcher) = &mut *self.intervals.borrow_mut() {
            watcher.host.sample(clock::now());
        }
        if let Some(bar) = &self.bar {
            let share = self.run_started.get().elapsed().as_secs_f64()
                / self.per_run.get().as_secs_f64().max(f64::MIN_POSITIVE);
            let percent = (0..STEPS_PER_RUN).rev().find(|&step| step as f64 / 100.0 <= share);
            let done = u64::try_from(self.done.get()).unwrap_or(0) * STEPS_PER_RUN;
            bar.set_position(done + percent.unwrap_or(0));
            bar.set_message(self.message(name));
        }
    }

    /// The run `name` has ended with so many requests per second.
    pub(crate) fn end(&self, name: &str, iops: f64) {
        if let Some(average) = self.intervals.borrow().as_ref().and_then(|it| it.lines.average()) {
            say(average.trim_end());
        }
        let took = self.run_started.get().elapsed();
        let done = self.done.get() + 1;
        self.done.set(done);
        // A moving mean: the first runs say more than the guess, the last more than the first.
        let weight = f64::midpoint(1.0 / done as f64, 0.2);
        let mean = self.per_run.get().mul_f64(1.0 - weight) + took.mul_f64(weight);
        self.per_run.set(mean);
        if self.bar.is_none() {
            let (number, runs) = (format!("{done:>3}"), self.runs);
            let left = human_time(self.left());
            say(&format!("{number}/{runs}  {name}: {} IOPS, {left} left", grouped(iops)));
        }
    }

    /// A second of the run has passed.
    pub(crate) fn interval(&self, interval: &load::Interval) {
        if let Some(watcher) = &mut *self.intervals.borrow_mut() {
            watcher.show(interval);
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn message(&self, name: &str) -> String {
        let running = self.run_started.get().elapsed().min(self.per_run.get());
        let left = self.left().saturating_sub(running);
        format!("{name}, {} left", human_time(left))
    }

    fn left(&self) -> Duration {
        let runs = u32::try_from(self.runs.saturating_sub(self.done.get())).unwrap_or(u32::MAX);
        self.per_run.get().saturating_mul(runs)
    }
}

/// A bar for filling the scratch file.
#[derive(Debug)]
pub(crate) struct FillProgress(Option<ProgressBar>);

impl FillProgress {
    pub(crate) fn new(size: Bytes) -> Self {
        Self(io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(size.0);
            bar.set_style(style("filling [{bar:24}] {percent:>3} %  {bytes_per_sec}, {eta} left"));
            bar
        }))
    }

    pub(crate) fn written(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(bytes);
        }
    }
}

impl Drop for FillProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    style.progress_chars("#>-")
}

/// A line on standard error. Nobody can be told when that fails.
pub(crate) fn say(line: &str) {
    writeln!(io::stderr().lock(), "{line}").unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_valid_and_the_time_left_shrinks() {
        let progress = Progress::new(4, Duration::from_secs(10), false);
        assert_eq!(progress.left(), Duration::from_secs(40));
        progress.begin("a");
        progress.tick("a");
        progress.end("a", 1.0);
        assert!(progress.left() < Duration::from_secs(30));
        drop(style("{prefix} [{bar:24}] {percent:>3} %  {msg}"));
        drop(style("filling [{bar:24}] {percent:>3} %  {bytes_per_sec}, {eta} left"));
    }
}
