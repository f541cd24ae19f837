//! The made-up results that pages are made of: ringloom takes them for its own.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::process::{Bench, Exit, Program};
use testkit::results::{Figures, Format, Mode, Outcome, Plan, Point, Purpose, Results};

use super::{LIMIT, run};

fn some(point: &Point) -> Outcome {
    if point.repeat == 2 {
        return Outcome::Failed("the disk is gone".to_owned());
    }
    let count = f64::from(point.iothreads.unwrap_or(1).max(1));
    Outcome::Measured(Figures { iops: 1e4 * count, median_us: 100.0 / count, cpu_us: 5.0 })
}

/// A resumed command reads all lines before it compares the header with the machine, which is another one.
fn resume(results: &Results) -> Result<Exit> {
    let bench = Bench::new()?;
    results.write(&bench.path("out"))?;
    let arguments = ["--resume", "--out", "out", "--size", "16M", "--subject", "host"];
    Program::named("ringloom tune", env!("CARGO_BIN_EXE_ringloom"), &["tune"])
        .in_directory(bench.path(""))
        .refusal(&arguments.map(str::to_owned), LIMIT)
}

#[track_caller]
fn check(results: &Results, words: &str) -> Result<()> {
    let Exit { status, stderr, .. } = resume(results)?;
    ensure!(status.code() == Some(1) && stderr.contains(words), "{status}, {words}: {stderr}");
    Ok(())
}

#[test]
fn a_resumed_command_reads_what_the_fixture_writes() -> Result<()> {
    const READ: &str = "its runs would not compare";
    let plan = Plan::usual();
    let mut results = Results::of(plan.clone(), some);
    ensure!(results.lines.len() == 3 * 4 * 5, "{} lines", results.lines.len());
    results.add(Purpose::Confirm, some);
    check(&results, READ)?;
    let probe = Plan { mode: Mode::Hysteresis, jobs: vec![4, 48], ..plan.clone() };
    check(&Results::of(probe, some), READ)?;
    check(&Results::of(Plan { mode: Mode::Curve, ..plan.clone() }, some), READ)?;
    results.lines[7]["operations"] = json!("many");
    check(&results, "line 9")?;
    check(&Results::of(Plan { format: Format::Two, ..plan }, some), "format 2 was written by")
}

/// What a report says where it could not read something.
const TROUBLE: [&str; 4] = ["left out", "cannot be read", "lacks", "line "];

fn report(results: &Results) -> Result<String> {
    let bench = Bench::new()?;
    results.write(&bench.path("report"))?;
    run(&bench, "report", "report")?;
    std::fs::read_to_string(bench.path("report/report.md")).context("read the report")
}

#[test]
fn a_report_has_no_trouble_with_what_the_fixture_writes() -> Result<()> {
    for format in [Format::Two, Format::Three, Format::Four] {
        let plan = Plan { format, ..Plan::usual() };
        let mut results = Results::of(plan, some);
        let said = report(&results)?;
        ensure!(said.contains("client 4"), "{said}");
        let trouble: Vec<_> = TROUBLE.into_iter().filter(|it| said.contains(it)).collect();
        ensure!(trouble.is_empty(), "{trouble:?} in: {said}");
        results.lines[7]["operations"] = json!("many");
        let said = report(&results)?;
        ensure!(said.contains("line 9") && said.contains("left out"), "{said}");
    }
    Ok(())
}
