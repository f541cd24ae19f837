//! The page `report.html` as a person sees it: in a browser, on a desk, on a phone, on paper, in the dark. That of results;
//! `others` has that of a comparison.
//!
//! The children are the tests; this is what they share. Pages are made by `ringloom report` from made-up results, one by
//! a real run. `rig` shows that what is looked for would be found.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use testkit::browser::{Browser, Fault};
use testkit::process::{Bench, Program};
use testkit::report::skipped;
use testkit::results::{Figures, Outcome, Plan, Point, Results};
use testkit::rng::Rng;

mod filters;
mod looks;
mod made;
mod mistakes;
mod others;
mod rig;
mod whole;

/// No command of these tests takes a tenth of it on a quiet machine.
const LIMIT: Duration = Duration::from_secs(180);

/// A browser, and a directory for pages.
struct Desk {
    bench: Bench,
    browser: Browser,
}

impl Desk {
    /// Writes a page and opens it.
    fn open(&self, page: &str) -> Result<PathBuf> {
        let path = self.bench.path("page.html");
        std::fs::write(&path, page).context("write the page")?;
        self.browser.open(&path)?;
        Ok(path)
    }

    /// Has ringloom make the page of these results, and opens it.
    fn open_report(&self, results: &Results) -> Result<PathBuf> {
        let page = make_report(&self.bench, results)?;
        self.browser.open(&page)?;
        Ok(page)
    }

    /// Nothing in the console and no request but for the page itself since it was opened.
    fn check_quiet(&self, page: &Path) -> Result<()> {
        let complaints = self.browser.console()?;
        ensure!(complaints.is_empty(), "the console says: {complaints:?}");
        let mut requests = self.browser.requests()?;
        // The page itself carries what a data: address names.
        requests.retain(|it| !it.starts_with("data:"));
        ensure!(requests == [format!("file://{}", page.display())], "requests: {requests:?}");
        Ok(())
    }

    /// Unfolds all that can be unfolded.
    fn unfold(&self) -> Result<()> {
        self.browser
            .script("document.querySelectorAll('details').forEach(it => it.open = true);", &[])?;
        Ok(())
    }
}

/// Runs a behaviour with a browser, or says why there is none.
#[track_caller]
fn with_browser(behaviour: impl FnOnce(&Desk) -> Result<()>) {
    if let Some(reason) = Browser::missing() {
        skipped(&reason);
        return;
    }
    let run = || behaviour(&Desk { bench: Bench::new()?, browser: Browser::start()? });
    if let Err(error) = run() {
        panic!("{error:#}");
    }
}

/// Runs a subcommand in the directory of a bench, with words that have no blanks; it must succeed.
fn run(bench: &Bench, subcommand: &'static str, line: &str) -> Result<()> {
    let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let mut process = Program::named(subcommand, env!("CARGO_BIN_EXE_ringloom"), &[subcommand])
        .in_directory(bench.path(""))
        .spawn(&arguments)?;
    let status = process.wait(LIMIT)?;
    ensure!(status.success(), "{subcommand} {line}: {status}: {}", process.log());
    Ok(())
}

/// Has ringloom make the page of these results.
fn make_report(bench: &Bench, results: &Results) -> Result<PathBuf> {
    results.write(&bench.path("report"))?;
    run(bench, "report", "report")?;
    Ok(bench.path("report/report.html"))
}

/// A machine where the best number of iothreads depends on the cell: a thread serves so many requests a second, a lock
/// costs the more the more of them there are, and the disk has an end. Noise of 2 %.
fn machine(point: &Point) -> Outcome {
    let size = f64::from(point.block_size);
    let load = f64::from(point.jobs) * f64::from(point.depth);
    let disk = (4e9 / size).min(900e3) * if point.operation.contains("write") { 0.6 } else { 1.0 };
    let threads = f64::from(point.iothreads.unwrap_or(16).clamp(1, point.jobs.max(1)));
    let own = if point.iothreads == Some(0) { 0.8 } else { 1.0 };
    let each = match point.subject {
        "host" => 500e3,
        "vm:qemu" => 90e3,
        _ => 140e3,
    } / (1.0 + size / 40e3);
    let served = own * each * threads / (1.0 + 0.03 * threads * threads);
    let mean = 1.0 / (1.0 / disk + 1.0 / served + 60e-6 / load);
    let noise = f64::from(u32::try_from(seed(point).next_u64() % 1000).expect("below 1000"));
    let maximum = mean * (0.98 + 0.04 * noise / 1000.0);
    let cpu_us = 1e6 / each * (0.8 + 0.05 * threads);
    // Of a curve: the rate that was asked for, and the less of the latency that is waiting.
    let share = if point.step > 2 { f64::from(point.step) / 100.0 } else { 1.0 };
    let median_us = load / maximum * 1e6 * (0.1 + 0.85 * share.powi(4));
    Outcome::Measured(Figures { iops: maximum * share, median_us, cpu_us })
}

/// The noise of a run is always the same, also for the points of its curve.
fn seed(point: &Point) -> Rng {
    let text = format!("{:?}", Point { step: point.step.min(2), ..*point });
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Rng::new(text.bytes().fold(0xcbf2_9ce4_8422_2325, add))
}

/// The page of the 144 cells of a full sweep. It takes a while to make, so the tests share it.
fn full() -> Result<&'static str> {
    static PAGE: OnceLock<Result<String, String>> = OnceLock::new();
    let page = PAGE.get_or_init(|| {
        let bench = Bench::new().map_err(|error| format!("{error:#}"))?;
        let page = make_report(&bench, &Results::of(Plan::full(), machine));
        let text = page.and_then(|page| Ok(std::fs::read_to_string(page)?));
        text.map_err(|error| format!("{error:#}"))
    });
    page.as_deref().map_err(|error| anyhow!("{error}"))
}

/// Four cells, of which two have failures.
fn usual() -> Results {
    Results::of(Plan::usual(), |point| match (point.operation, point.iothreads) {
        ("randwrite", Some(4)) => Outcome::Failed("the disk answered with an error".to_owned()),
        _ => machine(point),
    })
}

#[track_caller]
fn none(what: &str, faults: &[Fault]) -> Result<()> {
    let lines: Vec<String> = faults
        .iter()
        .take(8)
        .map(|Fault { element, what, by }| format!("{element} {what} ({by:.1})"))
        .collect();
    ensure!(lines.is_empty(), "{what}: {} faults: {}", faults.len(), lines.join("; "));
    Ok(())
}
