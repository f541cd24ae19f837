//! What the user sees while it runs, on standard error: a bar on a terminal, plain lines elsewhere.
//!
//! Standard output is left to the report.
//!
//! Invariants: a bar is one line, cut where the terminal ends, so that what is said while it is shown (`say`) stands above
//! it whole. Other lines are broken by the terminal.

use std::borrow::Cow;
use std::cell::{Cell as Shared, RefCell};
use std::io::{self, IsTerminal};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle, WeakProgressBar};
use plan::units::{Bytes, grouped, human_time};
use records::meter::Meter;
use storage::clock;

use crate::intervals::{Interval, Intervals};
use crate::output;

/// Steps of the bar per run, so that it moves inside a run too.
const STEPS_PER_RUN: u64 = 100;
/// Steps of the bar where only the time is known.
const STEPS: u64 = 1000;
const RUNS: &str = "{prefix} [{bar:10}] {percent:>3} %  {wide_msg}";
/// Narrower than 60 columns.
const FILLING: &str = "filling [{bar:10}] {percent:>3} %  {bytes_per_sec}, {eta} left";

/// The bar that was made last, if it is still there.
static SHOWN: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemainingRuns {
    /// So many runs.
    Runs(usize),
    /// As many as fit until then.
    Until(Instant),
}

/// The progress of all runs.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    to_do: RemainingRuns,
    began: Instant,
    done: Shared<usize>,
    /// What the run that began last should take.
    expected: Shared<Duration>,
    /// What it and those after it should take.
    left: Shared<Duration>,
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
    /// With `intervals` there is no bar, but a line for each second.
    pub(crate) fn new(to_do: RemainingRuns, intervals: bool) -> Self {
        let bar = (io::stderr().is_terminal() && !intervals).then(|| {
            let steps = match to_do {
                RemainingRuns::Runs(runs) => u64::try_from(runs).unwrap_or(0) * STEPS_PER_RUN,
                RemainingRuns::Until(_) => STEPS,
            };
            shown(steps, RUNS)
        });
        let started = Shared::new(clock::now());
        let (expected, left) = (Shared::default(), Shared::default());
        let intervals = RefCell::new(intervals.then(Watcher::new));
        let (began, done) = (clock::now(), Shared::new(0));
        Self { bar, to_do, began, done, expected, left, run_started: started, intervals }
    }

    /// A run begins that should take so long; it and those after it should take `left`.
    pub(crate) fn begin(&self, name: &str, expected: Duration, left: Duration) {
        self.run_started.set(clock::now());
        self.expected.set(expected);
        self.left.set(left);
        if let Some(watcher) = &mut *self.intervals.borrow_mut() {
            say(&format!("\n{name}"));
            *watcher = Watcher::new();
        }
        if let Some(bar) = &self.bar {
            bar.set_prefix(self.number(self.done.get() + 1));
            bar.set_message(self.message(name));
        }
    }

    /// What is done before the next run.
    pub(crate) fn before(&self, what: impl Into<Cow<'static, str>>) {
        if let Some(bar) = &self.bar {
            bar.set_message(what);
        }
    }

    /// Some time of the run `name` has passed.
    pub(crate) fn tick(&self, name: &str) {
        if let Some(watcher) = &mut *self.intervals.borrow_mut() {
            watcher.host.sample(clock::now());
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.position());
            bar.set_message(self.message(name));
        }
    }

    /// The run `name` has ended with so many requests per second.
    pub(crate) fn end(&self, name: &str, iops: f64) {
        if let Some(average) = self.intervals.borrow().as_ref().and_then(|it| it.lines.average()) {
            say(average.trim_end());
        }
        let done = self.done.get() + 1;
        self.done.set(done);
        self.left.set(self.left.get().saturating_sub(self.expected.replace(Duration::ZERO)));
        if self.bar.is_none() {
            let (number, left) = (self.number(done), human_time(self.left()));
            say(&format!("{number}  {name}: {} IOPS, {left} left", grouped(iops)));
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

    /// ` 12/48`, or ` 12` where nobody knows how many there will be.
    fn number(&self, number: usize) -> String {
        match self.to_do {
            RemainingRuns::Runs(runs) => format!("{number:>3}/{runs}"),
            RemainingRuns::Until(_) => format!("{number:>3}"),
        }
    }

    /// Steps of the bar.
    fn position(&self) -> u64 {
        let share = |passed: Duration, whole: Duration, steps: u64| {
            let share = passed.as_secs_f64() / whole.as_secs_f64().max(f64::MIN_POSITIVE);
            (0..steps).rev().find(|&step| step as f64 / steps as f64 <= share).unwrap_or(0)
        };
        match self.to_do {
            RemainingRuns::Runs(_) => {
                let running = self.run_started.get().elapsed();
                let done = u64::try_from(self.done.get()).unwrap_or(0) * STEPS_PER_RUN;
                done + share(running, self.expected.get(), STEPS_PER_RUN)
            }
            RemainingRuns::Until(end) => {
                share(self.began.elapsed(), end.saturating_duration_since(self.began), STEPS)
            }
        }
    }

    /// The name is last, as a narrow terminal cuts the end.
    fn message(&self, name: &str) -> String {
        format!("{} left: {name}", human_time(self.left()))
    }

    /// A run that takes longer than it should does not shorten those after it.
    fn left(&self) -> Duration {
        match self.to_do {
            RemainingRuns::Runs(_) => {
                let running = self.run_started.get().elapsed().min(self.expected.get());
                self.left.get().saturating_sub(running)
            }
            RemainingRuns::Until(end) => end.saturating_duration_since(clock::now()),
        }
    }
}

/// A bar for filling the scratch file.
#[derive(Debug)]
pub(crate) struct FillProgress(Option<ProgressBar>);

impl FillProgress {
    pub(crate) fn new(size: Bytes) -> Self {
        Self(io::stderr().is_terminal().then(|| shown(size.0, FILLING)))
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

/// A bar of so many steps, which is known to `say`.
fn shown(steps: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    bar.set_style(style(template));
    *shown_now() = Some(bar.downgrade());
    bar
}

fn shown_now() -> MutexGuard<'static, Option<WeakProgressBar>> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    style.progress_chars("#>-")
}

/// A line on standard error, above the bar if there is one. Nobody can be told when that fails.
pub(crate) fn say(line: &str) {
    let bar = shown_now().as_ref().and_then(WeakProgressBar::upgrade);
    match bar {
        Some(bar) => bar.suspend(|| print(line)),
        None => print(line),
    }
}

fn print(line: &str) {
    output::write(&mut io::stderr().lock(), &format!("{line}\n")).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use indicatif::{ProgressDrawTarget, TermLike};

    use super::*;

    #[test]
    fn the_time_left_shrinks_but_never_below_that_of_later_runs() {
        let progress = Progress::new(RemainingRuns::Runs(4), false);
        let (expected, later) = (Duration::from_millis(1), Duration::from_secs(30));
        progress.begin("a", expected, expected + later);
        assert!((later..=expected + later).contains(&progress.left()));
        progress.tick("a");
        while progress.run_started.get().elapsed() <= expected {}
        assert_eq!(progress.left(), later);
        progress.end("a", 1.0);
        assert_eq!(progress.left(), later);
    }

    #[test]
    fn a_search_ends_at_its_time() {
        let end = clock::now() + Duration::from_secs(4000);
        let progress = Progress::new(RemainingRuns::Until(end), false);
        progress.begin("a", Duration::from_secs(1), Duration::from_secs(2));
        // Whatever stalls between the two lines is shorter than this; what `begin` was told is not looked at.
        assert!((3000..=4000).contains(&progress.left().as_secs()));
    }

    /// A terminal of one line with 60 columns.
    #[derive(Clone, Debug, Default)]
    struct Narrow(Arc<Mutex<String>>);

    impl TermLike for Narrow {
        fn width(&self) -> u16 {
            60
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(&format!("{text}\n"))
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What a bar at half of its way looks like, with the longest texts it may have.
    fn drawn(template: &str) -> String {
        let terminal = Narrow::default();
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = ProgressBar::with_draw_target(Some(2 << 30), target);
        bar.set_style(style(template));
        bar.set_position(1 << 30);
        bar.set_prefix("100/480");
        bar.set_message("23 h 59 min left: randread 64k jobs=16 iodepth=16, vm:ringloom none");
        bar.tick();
        terminal.0.lock().unwrap().trim_end().to_owned()
    }

    #[test]
    fn a_bar_fits_a_narrow_terminal_and_shows_the_time_left() {
        let expected = "100/480 [#####>----]  50 %  23 h 59 min left: randread 64k j";
        assert_eq!((drawn(RUNS).as_str(), expected.len()), (expected, 60));
        let filling = drawn(FILLING);
        assert!(filling.starts_with("filling [#####>----]  50 %  "), "{filling}");
        assert!(filling.ends_with(" left") && filling.chars().count() < 60, "{filling}");
    }
}
