//! `ringloom tune` from its command line to what it leaves: real guests, real fio, real disks.
//!
//! The children are the tests; this is what they share. Guests are emulated but for one test, so that all of it runs
//! without KVM; each boot costs some six seconds of both CPUs of a small machine, so a test does much with one.
//!
//! Invariants: every command runs in a directory of its own, which is also the current directory of all that it starts:
//! so whatever it leaves behind is found.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::guest;
use testkit::process::{Bench, Program, Server, Signal};
use testkit::report::skipped;

mod answers;
mod cluster;
mod domain;
mod interrupts;
mod probes;
mod refusals;
mod rows;
mod sizes;
mod sweep;
mod trouble;

/// No command of these tests takes a quarter of it on a quiet machine.
const LIMIT: Duration = Duration::from_secs(300);
/// How soon a command that was interrupted has ended, but for what holds it up.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(10);
/// How long it waits for a daemon to stop: `STOP_LIMIT` of its `daemon`.
const DAEMON_LIMIT: Duration = Duration::from_secs(20);
/// How long it waits for a file system that is in use: `BUSY_LIMIT` of its `storage::undo`.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(10);
/// Guests alike on every host: by default they have as many CPUs as it has, and disks as many queues.
const TWO_CPUS: &str = "--vcpus 2 --queues 2";
/// The directory of the results unless a test names another.
const OUT: &str = "ringloom-report";
/// One small cell, briefly.
const BRIEF: &str =
    "--op randread --bs 4k --size 16M --repeats 1 --runtime 0.5 --ramp 0.2 --seed 1";

/// A directory to run the command in.
struct Rig {
    bench: Bench,
    variables: Vec<(&'static str, String)>,
}

impl Rig {
    fn new() -> Result<Self> {
        let bench = Bench::new()?;
        std::fs::create_dir(bench.path("tmp")).context("make a directory for temporary files")?;
        let variables = vec![("TMPDIR", bench.text("tmp"))];
        Ok(Self { bench, variables })
    }

    /// The same, where programs are looked for in these directories.
    fn with_search_path(mut self, directories: &[&str]) -> Self {
        self.variables.push(("PATH", directories.join(":")));
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.bench.path(name)
    }

    /// Starts `ringloom tune` with these options, which have no blanks.
    fn start(&self, line: &str) -> Result<Tuning> {
        self.start_in("", line)
    }

    /// The same in a directory below.
    fn start_in(&self, directory: &str, line: &str) -> Result<Tuning> {
        let mut program =
            Program::named("ringloom tune", env!("CARGO_BIN_EXE_ringloom"), &["tune"])
                .in_directory(self.path(directory));
        for (name, value) in &self.variables {
            program = program.with_variable(name, value);
        }
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Ok(Tuning { server: program.spawn(&words)? })
    }

    fn run(&self, line: &str) -> Result<Ran> {
        self.start(line)?.end(LIMIT)
    }

    /// Runs a command that must succeed, and leave nothing but its results.
    fn measure(&self, line: &str) -> Result<Ran> {
        let ran = self.run(line)?;
        ensure!(ran.status.code() == Some(0), "{line}: {ran:?}");
        self.check_nothing_left(&[OUT])?;
        Ok(ran)
    }

    /// Runs a command that must be refused in these words.
    fn refuse(&self, line: &str, words: &[&str]) -> Result<()> {
        let ran = self.run(line)?;
        ensure!(ran.status.code() == Some(1), "{line}: {ran:?}");
        for words in words {
            ensure!(ran.stderr.contains(words), "{words:?} is missing in: {}", ran.stderr);
        }
        Ok(())
    }

    /// No process, loop device or mount, and no file but these.
    fn check_nothing_left(&self, kept: &[&str]) -> Result<()> {
        let here = self.bench.text("");
        let here = here.trim_end_matches('/');
        let processes = processes_in(here)?;
        ensure!(processes.is_empty(), "processes are left: {processes:?}");
        let mounts = std::fs::read_to_string("/proc/self/mounts").context("list the mounts")?;
        ensure!(!mounts.contains(here), "mounts are left: {mounts}");
        let loops = loop_files()?;
        ensure!(!loops.iter().any(|it| it.starts_with(here)), "loop devices are left: {loops:?}");
        ensure!(names(&self.path("tmp"))?.is_empty(), "{:?} are left", names(&self.path("tmp"))?);
        let kept: BTreeSet<&str> = kept.iter().copied().chain(["tmp"]).collect();
        let left = names(&self.path(""))?;
        let more: Vec<_> = left.iter().filter(|name| !kept.contains(name.as_str())).collect();
        ensure!(more.is_empty(), "files are left: {more:?}");
        Ok(())
    }

    /// The lines of the results, without the first.
    fn lines(&self) -> Result<Vec<Value>> {
        Ok(self.results()?.split_off(1))
    }

    /// The first line of the results.
    fn header(&self) -> Result<Value> {
        Ok(self.results()?.swap_remove(0))
    }

    fn results(&self) -> Result<Vec<Value>> {
        let path = self.path(OUT).join("results.jsonl");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let line = |it: &str| serde_json::from_str(it).with_context(|| it.to_owned());
        text.lines().map(line).collect()
    }

    fn report(&self) -> Result<String> {
        std::fs::read_to_string(self.path(OUT).join("report.md")).context("read the report")
    }
}

/// A command that runs.
struct Tuning {
    server: Server,
}

/// What a command left.
#[derive(Debug)]
struct Ran {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Tuning {
    fn end(mut self, limit: Duration) -> Result<Ran> {
        let status = self.server.wait(limit)?;
        let (stdout, stderr) = (self.server.stdout(), self.server.log());
        Ok(Ran { status, stdout, stderr })
    }

    /// Interrupts it as Ctrl-C does; it must end in time and say so. What may hold it up is named, each with its limit.
    fn interrupt(self, held_up: &[Duration]) -> Result<Ran> {
        self.server.signal(Signal::INT)?;
        let ran = self.end(INTERRUPT_LIMIT + held_up.iter().sum::<Duration>())?;
        ensure!(ran.status.code() == Some(130), "{ran:?}");
        Ok(ran)
    }

    /// Waits until this gives something; an error if the command ends before.
    fn wait_until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let Self { server } = self;
        testkit::deadline::poll_until(what, LIMIT, || {
            let found = look()?;
            ensure!(found.is_some() || server.is_alive()?, "it has ended: {}", server.log());
            Ok(found)
        })
    }

    /// Waits for a child of this name, with this word in its command line, other than this one.
    fn wait_for_child(&mut self, name: &str, word: &str, other: Option<u32>) -> Result<u32> {
        let parent = self.server.pid();
        self.wait_until(&format!("a child {name} {word}"), || {
            Ok(child(parent, name, word)?.filter(|pid| Some(*pid) != other))
        })
    }
}

/// A child of this process, if there is one of this name with this word in its command line.
fn child(parent: u32, name: &str, word: &str) -> Result<Option<u32>> {
    for pid in processes()? {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some((before, after)) = stat.rsplit_once(')') else { continue };
        let is_child = after.split_whitespace().nth(1) == Some(&parent.to_string());
        if is_child && before.contains(name) && command_line(pid).contains(word) {
            return Ok(Some(pid));
        }
    }
    Ok(None)
}

fn processes() -> Result<Vec<u32>> {
    let entries = std::fs::read_dir("/proc").context("list the processes")?;
    let pid =
        |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(pid).collect())
}

/// Empty for a process that has gone.
fn command_line(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// The processes that work in a directory, or were told of it.
fn processes_in(directory: &str) -> Result<Vec<String>> {
    let is_in = |pid: u32| {
        // One that has gone meanwhile works nowhere.
        let current = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
        current.starts_with(directory) || command_line(pid).contains(directory)
    };
    let found = processes()?.into_iter().filter(|&pid| is_in(pid));
    Ok(found.map(|pid| format!("{pid}: {}", command_line(pid))).collect())
}

/// The files behind all loop devices.
fn loop_files() -> Result<Vec<String>> {
    let entries = std::fs::read_dir("/sys/block").context("list the block devices")?;
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(entry.ok()?.path().join("loop/backing_file")).ok()
    };
    Ok(entries.filter_map(file).collect())
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// The options of emulated guests.
fn emulated() -> String {
    format!("--accel tcg {}", with_kernel())
}

/// The options of guests.
fn with_kernel() -> String {
    // A guest that cannot boot it cannot boot the other one either, and says why.
    let kernel = guest::uncompressed_kernel().unwrap_or(guest::guest_directory().join("kernel"));
    format!("--memory 512M --guest-kernel {}", kernel.display())
}

/// Runs a test that boots guests, or says why it cannot.
#[track_caller]
fn with_guest(test: impl FnOnce(&Rig) -> Result<()>) {
    match guest::missing() {
        Some(reason) => skipped(&reason),
        None => with_rig(test),
    }
}

#[track_caller]
fn with_rig(test: impl FnOnce(&Rig) -> Result<()>) {
    if let Err(error) = Rig::new().and_then(|rig| test(&rig)) {
        panic!("{error:#}");
    }
}

/// A field that is a number.
fn number(line: &Value, name: &str) -> Result<f64> {
    line[name].as_f64().with_context(|| format!("no number {name} in {line}"))
}

fn text<'a>(line: &'a Value, name: &str) -> Result<&'a str> {
    line[name].as_str().with_context(|| format!("no text {name} in {line}"))
}

fn list<'a>(line: &'a Value, name: &str) -> Result<&'a [Value]> {
    let list = line[name].as_array().with_context(|| format!("no list {name} in {line}"))?;
    Ok(list)
}

/// Requests in the histogram of latencies.
fn counted(line: &Value) -> Result<f64> {
    let pairs = list(line, "latency_ns")?;
    pairs.iter().map(|pair| pair[1].as_f64().context("a number of requests")).sum()
}

/// Mean latency in seconds, from the histogram.
fn mean_latency_s(line: &Value) -> Result<f64> {
    let pairs = list(line, "latency_ns")?;
    let product = |pair: &Value| Some(pair[0].as_f64()? * pair[1].as_f64()?);
    let sum: Option<f64> = pairs.iter().map(product).sum();
    Ok(sum.context("pairs of numbers")? / counted(line)? / 1e9)
}

fn iops(line: &Value) -> Result<f64> {
    Ok(number(line, "operations")? / (number(line, "elapsed_ns")? / 1e9))
}

/// Subject and iothreads: `vm:qemu none`.
fn contender(line: &Value) -> String {
    let words = [&line["subject"], &line["iothreads"]].map(|it| it.as_str().unwrap_or_default());
    words.join(" ").trim().to_owned()
}

/// The lines of this kind: `run` or `failure`.
fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

/// Every line is a run that is sound in itself.
fn check_sound(lines: &[Value]) -> Result<()> {
    for line in lines {
        ensure!(line["kind"] == "run", "{line}");
        let operations = number(line, "operations")?;
        ensure!(operations > 0.0, "nothing was done: {line}");
        ensure!(
            counted(line)? == operations,
            "the histogram has {} requests: {line}",
            counted(line)?
        );
        let bytes = operations * number(line, "bs")?;
        ensure!(number(line, "bytes")? == bytes, "{bytes} bytes: {line}");
    }
    Ok(())
}
