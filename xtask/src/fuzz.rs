//! `cargo xtask fuzz`: builds the fuzz targets for libFuzzer and runs them.
//!
//! Each target starts from the inputs kept in `fuzz/corpus` and those it found before. What makes
//! it fail is saved below `target/fuzz/crashes`, and so is its log.
//!
//! Invariants: `must_fail` has a planted bug; a run that does not find it fails, since the others
//! would then find nothing either.
//! Limits: as many targets at a time as there are processors; `INPUT_SECONDS_MAX` for one input.
//! Not here: what the targets check (the crate `fuzz`), how a log is read (`fuzz::log`).

mod log;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context as _, Result, ensure};

use crate::fuzz::log::Summary;
use crate::steps::{Workspace, must_succeed, step};

/// Every target, the slowest to show something first.
pub(crate) const TARGETS: &[&str] = &[
    RESULTS_FILE,
    "vhost_user_session",
    "takeover_wire",
    "nbd_client",
    "nbd_negotiation",
    "nbd_transmission",
    "options_keyval",
    "config_file",
    "qmp",
    "packed_ring",
    "split_ring",
    "blk_decode",
    "qcow2_header",
    MUST_FAIL,
];

const RESULTS_FILE: &str = "results_file";

/// Proves that the others would be found out.
const MUST_FAIL: &str = "must_fail";

/// How long the planted bug may take to be found; it takes about one second.
const MUST_FAIL_SECONDS: u64 = 30;

/// What a developer's run takes for each target, if nothing else is said.
pub(crate) const SECONDS: u64 = 20;

/// What `cargo xtask test` takes for each target.
pub(crate) const SMOKE_SECONDS: u64 = 5;

/// An input that takes longer hangs.
const INPUT_SECONDS_MAX: u64 = 10;

/// The longest input that is tried.
const INPUT_BYTES_MAX: u64 = 2048;

/// The same of results: a header and a run alone are longer than other targets' inputs.
const RESULTS_BYTES_MAX: u64 = 10 << 10;

/// What tells libFuzzer which code an input reaches: what `cargo fuzz` sets, which works with the
/// pinned stable compiler too.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// For each target.
    pub(crate) seconds: u64,
    /// Names of `TARGETS`.
    pub(crate) targets: Vec<&'static str>,
}

impl Plan {
    /// The short run of every target.
    pub(crate) fn smoke() -> Self {
        Self { seconds: SMOKE_SECONDS, targets: TARGETS.to_vec() }
    }

    /// Understands `[--seconds N] [TARGET…]`.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut plan = Self { seconds: SECONDS, targets: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if argument == "--seconds" {
                let number = rest.next().and_then(|it| it.parse().ok()).filter(|it| *it > 0);
                plan.seconds = number.ok_or("`--seconds` needs a number above 0")?;
            } else if let Some(name) = TARGETS.iter().find(|name| *name == argument) {
                plan.targets.push(name);
            } else {
                return Err(format!("no fuzz target `{argument}`; there are {TARGETS:?}"));
            }
        }
        if plan.targets.is_empty() {
            plan.targets = TARGETS.to_vec();
        }
        Ok(plan)
    }
}

/// Builds the targets and runs those of the plan; all are run even if one fails.
pub(crate) fn run(workspace: &Workspace, plan: &Plan) -> Result<()> {
    let home = home(workspace);
    step("build fuzz targets", "cargo build --package fuzz, with coverage", || {
        must_succeed(&mut build_command(workspace))
    })?;
    let what = format!("{} targets, {} s each", plan.targets.len(), plan.seconds);
    step("fuzz", &what, || {
        let failures = run_all(workspace, &home, plan);
        ensure!(failures.is_empty(), "{}", failures.join("; "));
        Ok(())
    })
}

/// Where the targets are built, and what they find is kept.
fn home(workspace: &Workspace) -> PathBuf {
    workspace.target_dir().join("fuzz")
}

/// The cargo that builds all targets.
pub(crate) fn build_command(workspace: &Workspace) -> Command {
    // With `--target`, build scripts and macros are built without these flags.
    let arguments = "build --quiet --profile fuzz --package fuzz --bins --target host-tuple";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let mut command = workspace.cargo(&arguments);
    command.arg("--target-dir").arg(home(workspace)).env("RUSTFLAGS", RUSTFLAGS);
    command
}

/// Runs the targets side by side; hands back what went wrong.
fn run_all(workspace: &Workspace, home: &Path, plan: &Plan) -> Vec<String> {
    let left = Mutex::new(plan.targets.iter().rev().copied().collect::<Vec<_>>());
    let failures = Mutex::new(Vec::new());
    let next = || left.lock().expect("no thread panics with it").pop();
    let work = || {
        while let Some(name) = next() {
            let target = Target { name, workspace, home };
            let result = target.run(plan.seconds);
            if let Err(error) = result {
                failures.lock().expect("no thread panics with it").push(format!("{error:#}"));
            }
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..processors.min(plan.targets.len()) {
            scope.spawn(work);
        }
    });
    failures.into_inner().expect("no thread panics with it")
}

fn input_bytes_max(target: &str) -> u64 {
    if target == RESULTS_FILE { RESULTS_BYTES_MAX } else { INPUT_BYTES_MAX }
}

/// One target and where its things are.
struct Target<'a> {
    name: &'static str,
    workspace: &'a Workspace,
    home: &'a Path,
}

impl Target<'_> {
    fn run(&self, seconds: u64) -> Result<()> {
        let seconds = if self.name == MUST_FAIL { MUST_FAIL_SECONDS } else { seconds };
        let log = self.directory("logs")?.with_extension("log");
        let found = self.directory("corpus")?;
        if self.name == MUST_FAIL {
            // What was found before would make it too easy.
            fs::remove_dir_all(&found).with_context(|| format!("{}", found.display()))?;
            fs::create_dir_all(&found).with_context(|| format!("{}", found.display()))?;
        }
        let output = File::create(&log).with_context(|| format!("{}", log.display()))?;
        let mut command = self.command(seconds, &found)?;
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).status();
        let status = status.with_context(|| format!("fuzz target {}: cannot start", self.name))?;
        let text = fs::read(&log).with_context(|| format!("{}", log.display()))?;
        let summary = Summary::of(&String::from_utf8_lossy(&text));
        println!("   {}: {summary}", self.name);
        self.judge(status.success(), &summary, &log)
    }

    /// Whether it ended as it should.
    fn judge(&self, passed: bool, summary: &Summary, log: &Path) -> Result<()> {
        let (name, log) = (self.name, log.display());
        let panic = summary.panic.as_deref().unwrap_or("no panic");
        if name == MUST_FAIL {
            // Not any failure: an overflow is told only where those are checked.
            ensure!(
                !passed && panic.contains("overflow"),
                "fuzz target {name}: its planted bug was not found, so nothing would be; all \
                 output is in {log}"
            );
        } else {
            ensure!(passed, "fuzz target {name} failed: {panic}; all output is in {log}");
        }
        Ok(())
    }

    fn command(&self, seconds: u64, found: &Path) -> Result<Command> {
        let mut crashes = self.directory("crashes")?.into_os_string();
        crashes.push("/");
        let mut prefix = std::ffi::OsString::from("-artifact_prefix=");
        prefix.push(crashes);
        let mut command = Command::new(self.binary()?);
        // The targets that may open files do so here, where there are none.
        command.current_dir(self.directory("empty")?).arg(prefix).args([
            format!("-max_total_time={seconds}"),
            format!("-timeout={INPUT_SECONDS_MAX}"),
            format!("-max_len={}", input_bytes_max(self.name)),
            "-print_final_stats=1".to_owned(),
        ]);
        if seconds <= SMOKE_SECONDS {
            // The gate of every change tries the same inputs; longer runs try new ones.
            command.arg("-seed=1");
        }
        let sources = self.workspace.root.join("fuzz");
        let dictionary = sources.join(format!("dictionaries/{}.dict", self.name));
        if dictionary.exists() {
            let mut argument = std::ffi::OsString::from("-dict=");
            argument.push(dictionary);
            command.arg(argument);
        }
        command.arg(found).arg(sources.join("corpus").join(self.name));
        Ok(command)
    }

    /// The directory of this target among those of a kind.
    fn directory(&self, kind: &str) -> Result<PathBuf> {
        let directory = self.home.join(kind).join(self.name);
        fs::create_dir_all(&directory).with_context(|| format!("{}", directory.display()))?;
        Ok(directory)
    }

    /// Where cargo put it: below a directory with the name of the host.
    fn binary(&self) -> Result<PathBuf> {
        let hosts = fs::read_dir(self.home).with_context(|| format!("{}", self.home.display()))?;
        hosts
            .filter_map(Result::ok)
            .map(|host| host.path().join("fuzz").join(self.name))
            .find(|path| path.is_file())
            .with_context(|| format!("fuzz target {} was not built", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &[&str], seconds: u64, targets: &[&'static str]) {
        let arguments: Vec<String> = input.iter().map(|&it| it.to_owned()).collect();
        let expected = Plan { seconds, targets: targets.to_vec() };
        assert_eq!(Plan::parse(&arguments), Ok(expected));
    }

    #[test]
    fn all_targets_are_run_unless_some_are_named() {
        check(&[], SECONDS, TARGETS);
        check(&["--seconds", "7"], 7, TARGETS);
        check(&["blk_decode", "--seconds", "7", "must_fail"], 7, &["blk_decode", MUST_FAIL]);
    }

    #[test]
    fn what_is_no_target_and_no_number_is_refused() {
        for wrong in [&["--seconds"][..], &["--seconds", "0"], &["--seconds", "x"], &["qcow2"]] {
            let arguments: Vec<String> = wrong.iter().map(|&it| it.to_owned()).collect();
            assert!(Plan::parse(&arguments).is_err(), "{wrong:?}");
        }
    }
}
