//! `ringloom report` from its command line to its files: sound results, damaged ones, and two of them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::process::{Bench, Program};
use testkit::results::{Figures, Outcome, Plan, Point, Results};

/// No command of these tests takes a tenth of it on a quiet machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A directory to run the command in.
struct Rig {
    bench: Bench,
}

/// What a command left.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Rig {
    fn new() -> Result<Self> {
        Ok(Self { bench: Bench::new()? })
    }

    /// Runs `ringloom report` with these words.
    fn run(&self, words: &[&str]) -> Result<Ran> {
        let words: Vec<String> = words.iter().map(|it| (*it).to_owned()).collect();
        let mut server =
            Program::named("ringloom report", env!("CARGO_BIN_EXE_ringloom"), &["report"])
                .in_directory(self.bench.path(""))
                .spawn(&words)?;
        let status = server.wait(LIMIT)?;
        let (stdout, stderr) = (server.stdout(), server.log());
        Ok(Ran { code: status.code(), stdout, stderr })
    }

    /// Runs a command that must succeed; what it printed, with lines unbroken.
    fn report(&self, words: &[&str]) -> Result<String> {
        let ran = self.run(words)?;
        ensure!(ran.code == Some(0) && ran.stderr.is_empty(), "{words:?}: {ran:?}");
        Ok(unbroken(&ran.stdout))
    }

    /// Runs a command that must be refused in these words.
    fn refuse(&self, words: &[&str], expected: &[&str]) -> Result<()> {
        let ran = self.run(words)?;
        ensure!(ran.code == Some(1), "{words:?}: {ran:?}");
        contains(&ran.stderr, expected)
    }

    fn read(&self, name: &str) -> Result<String> {
        std::fs::read_to_string(self.bench.path(name)).with_context(|| name.to_owned())
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.bench.path(name);
        std::fs::create_dir_all(path.parent().context("a file is in a directory")?)?;
        std::fs::write(path, text).with_context(|| name.to_owned())
    }

    fn names(&self, directory: &str) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(self.bench.path(directory))?;
        let mut names: Vec<String> = entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        names.sort_unstable();
        Ok(names)
    }
}

/// A text in which the lines of sentences are joined.
fn unbroken(text: &str) -> String {
    text.replace("\n  ", " ")
}

#[track_caller]
fn contains(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "{part:?} is missing in: {text}");
    }
    Ok(())
}

/// Figures of a machine that likes two iothreads, with some noise.
fn figures(point: &Point) -> Figures {
    let gain = match point.iothreads {
        None => 2.0,
        Some(0) => 0.5,
        Some(2) => 1.0,
        Some(_) => 0.7,
    };
    let noise = 1.0 + 0.01 * f64::from(point.repeat % 3);
    Figures { iops: 50_000.0 * gain * noise, median_us: 100.0, cpu_us: 5.0 }
}

fn measured(point: &Point) -> Outcome {
    Outcome::Measured(figures(point))
}

fn plan() -> Plan {
    Plan { repeats: 6, ..Plan::usual() }
}

const FILES: [&str; 5] = ["config", "report.csv", "report.html", "report.jsonl", "report.md"];

#[test]
fn results_are_rendered_again_and_not_touched() -> Result<()> {
    let rig = Rig::new()?;
    let path = Results::of(plan(), measured).write(&rig.bench.path("a"))?;
    let before = (rig.read("a/results.jsonl")?, std::fs::metadata(&path)?.modified()?);
    let text = rig.report(&["a"])?;
    contains(&text, &["randread 4k, 4 jobs × iodepth 16", "client 2", "best: 2", "a/report.md"])?;
    ensure!(!text.contains("cannot be read"), "{text}");
    let after = (rig.read("a/results.jsonl")?, std::fs::metadata(&path)?.modified()?);
    ensure!(before == after, "the results were changed");
    let names = rig.names("a")?;
    ensure!(names == [&FILES[..], &["results.jsonl"]].concat(), "{names:?}");
    contains(&rig.read("a/report.md")?, &["# ringloom tune", "## Recommendation"])?;
    contains(&rig.read("a/report.html")?, &["<!DOCTYPE html>", "client"])?;
    // The same from the file, elsewhere.
    let again = rig.report(&["a/results.jsonl", "--out", "b/c"])?;
    ensure!(again.replace("b/c/", "a/") == text, "{again}");
    ensure!(rig.names("b/c")? == FILES, "{:?}", rig.names("b/c")?);
    ensure!(rig.read("b/c/report.csv")? == rig.read("a/report.csv")?, "another CSV");
    Ok(())
}

#[test]
fn what_is_wrong_with_results_is_named_in_every_file() -> Result<()> {
    let rig = Rig::new()?;
    let mut results = Results::of(plan(), |point| {
        if point.operation == "randwrite" && point.block_size == 65_536 {
            return Outcome::Failed("write 64k: the disk <b>is</b> full".to_owned());
        }
        measured(point)
    });
    results.lines[0]["elapsed_ns"] = json!(0);
    results.lines[1]["operations"] = json!(0);
    results.lines[2]["operations"] = json!(u64::MAX);
    results.lines[3]["rate_iops"] = json!("NaN");
    let mut lines: Vec<String> = results.text().lines().map(str::to_owned).collect();
    lines[7] = lines[7].replacen("\"bytes\":", "\"bytes\":NaN,\"b\":", 1);
    lines.insert(9, "what is this?".to_owned());
    lines.push(lines[5].clone());
    let torn = lines[6][..lines[6].len() / 2].to_owned();
    rig.write("a/results.jsonl", &format!("{}\n{torn}", lines.join("\n")))?;
    let text = rig.report(&["a"])?;
    let named = [
        "3 lines cannot be read and are left out: line 5 (",
        "; line 8 (expected value",
        "; line 10 (expected value at column 1)",
        "the last line is cut off and left out: line",
        "1 run was of no time, so without a rate, and is left out: line 2 (",
        "1 run has figures that cannot be and is left out: line 4 (",
        "1 run did not one request, which counts as a rate of 0: line 3 (",
        "1 run is there more than once, of which the last counts: line",
        "nothing was measured:",
        "randwrite 64k, 4 jobs × iodepth 16",
    ];
    contains(&text, &named)?;
    contains(&text, &["client 2: 6 runs failed: write 64k: the disk <b>is</b> full"])?;
    contains(&rig.read("a/report.md")?, &named[..8])?;
    contains(&rig.read("a/report.html")?, &named[..8])
}

#[test]
fn runs_of_two_machines_have_reports_of_their_own() -> Result<()> {
    let rig = Rig::new()?;
    let first = Results::of(plan(), measured);
    let mut second = first.clone();
    second.header["environment"]["kernel"]["release"] = json!("9.9.9");
    rig.write("a/results.jsonl", &(first.text() + &second.text()))?;
    let text = rig.report(&["a"])?;
    contains(
        &text,
        &[
            "the file holds 2 kinds of runs that do not compare with each other",
            "this is number 2",
            "what differs from number 1: kernel is 9.9.9, was",
        ],
    )?;
    let names = rig.names("a")?;
    for name in ["report.md", "report-2.md", "report-2.html"] {
        ensure!(names.iter().any(|it| it == name), "{name} is missing: {names:?}");
    }
    Ok(())
}

#[test]
fn what_holds_no_results_is_refused() -> Result<()> {
    let rig = Rig::new()?;
    rig.write("empty.jsonl", "")?;
    rig.write("text.jsonl", "hello\n")?;
    rig.write("a/notes.txt", "hello\n")?;
    let mut old = Results::of(plan(), measured);
    old.header["format"] = json!(1);
    for line in &mut old.lines {
        line["format"] = json!(1);
    }
    old.write(&rig.bench.path("old"))?;
    rig.refuse(&["nothing"], &["nothing", "No such file"])?;
    rig.refuse(&["empty.jsonl"], &["empty.jsonl", "it is empty"])?;
    rig.refuse(&["text.jsonl"], &["nothing of it can be used", "line 1 (expected value"])?;
    rig.refuse(&["a"], &["a has no results.jsonl"])?;
    rig.refuse(&["/dev/zero"], &["read /dev/zero: it is a device"])?;
    rig.refuse(&["old"], &["of format 1, which this version of ringloom does not read"])?;
    rig.refuse(&[], &["<DIR>", "Usage: ringloom report"])?;
    // The name of one of the files that would be written.
    let source = Results::of(plan(), measured).text();
    rig.write("b/report.jsonl", &source)?;
    rig.refuse(&["b/report.jsonl"], &["report.jsonl holds the results: name another --out"])?;
    ensure!(rig.read("b/report.jsonl")? == source, "the results were written over");
    Ok(())
}

#[test]
fn a_line_of_100_megabytes_is_passed_over() -> Result<()> {
    let rig = Rig::new()?;
    let text = Results::of(plan(), measured).text();
    let (header, rest) = text.split_once('\n').context("there is a header")?;
    let long = "x".repeat(100 << 20);
    rig.write("a/results.jsonl", &format!("{header}\n{long}\n{rest}"))?;
    let text = rig.report(&["a"])?;
    contains(&text, &["1 line is longer than any result and left out: line 2", "best: 2"])
}

#[test]
fn two_runs_are_compared() -> Result<()> {
    let rig = Rig::new()?;
    Results::of(plan(), measured).write(&rig.bench.path("a"))?;
    let again = |point: &Point| {
        let noise = 1.0 + 0.01 * f64::from((point.repeat + 1) % 3);
        let Figures { iops, .. } = figures(&Point { repeat: 0, ..*point });
        Outcome::Measured(Figures { iops: iops * noise, ..figures(point) })
    };
    Results::of(plan(), again).write(&rig.bench.path("again"))?;
    let text = rig.report(&["a", "again"])?;
    let hint = "Nothing is written; --out DIR keeps this as compare.md and as a page, report.html.";
    contains(&text, &["Of 20 rows: 20 noise.", "client: both recommend 2 iothreads", hint])?;
    ensure!(rig.names("a")? == ["results.jsonl"] && rig.names("again")? == ["results.jsonl"]);
    let changed = |point: &Point| {
        let Figures { iops, median_us, cpu_us } = figures(point);
        let change = match (point.operation, point.iothreads) {
            ("randread", Some(4)) => 2.0,
            ("randwrite", None) => 0.7,
            _ => 1.0,
        };
        Outcome::Measured(Figures { iops: iops * change, median_us, cpu_us })
    };
    let mut other = Results::of(plan(), changed);
    other.header["environment"]["kernel"]["release"] = json!("9.9.9");
    other.write(&rig.bench.path("b"))?;
    let text = rig.report(&["a", "b", "--out", "c"])?;
    let parts = [
        "Of 20 rows: 2 faster in B, 2 slower in B, 16 noise.",
        "Warning: the two were not measured alike",
        "kernel is 9.9.9, was",
        "client: B has 1.09 × the IOPS of A (geometric mean of 16 rows, 2 of them changed).",
    ];
    contains(&text, &parts)?;
    contains(&rig.read("c/compare.md")?, &parts)?;
    contains(&rig.read("c/report.html")?, &[&["<!DOCTYPE html>"], &parts[..]].concat())?;
    ensure!(rig.names("c")? == ["compare.md", "report.html"], "{:?}", rig.names("c")?);
    rig.refuse(&["a", "b", "--out", "a"], &["a has results, and so a report.html of its own"])?;
    ensure!(rig.names("a")? == ["results.jsonl"], "{:?}", rig.names("a")?);
    rig.refuse(&["a", "nothing"], &["nothing", "No such file"])
}
