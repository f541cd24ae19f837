//! `cargo xtask test`: everything a change must pass; CI runs this and nothing of its own. With `--changed` what a change
//! can break.
//!
//! Installs what the tests need, runs what `check` runs before its unit tests, then every test of the workspace,
//! the loom models and every fuzz target for a short time. A test that cannot run
//! prints `skipped: <reason>`; the skips are counted and told at the end. A test that fails beside others is run again
//! alone, and told at the end too.
//!
//! All is built once, with the feature `fault-points`: a program that nobody asks to kill itself is the same without it.
//!
//! Invariants: as root a skip that `ALLOWED_SKIPS` does not name fails the command, since root
//! can install whatever is missing; for others it is a warning.
//! Not here: how tests are built and started (`test::programs`), how lines are understood (`test::tally`), how a command is
//! watched (`test::watch`), how builds run beside the tests (`test::ahead`), how often a failed test is run (`test::alone`).

mod ahead;
mod alone;
mod changed;
mod programs;
mod tally;
mod watch;

use std::collections::BTreeSet;
use std::mem;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::install::null;
use crate::steps::{Workspace, describe, step};
use crate::test::changed::{Affected, BINARY, BinaryTests, Selection};
use crate::test::programs::{FailedTest, TestProgram};
use crate::test::tally::{Show, Skip, Tally};
use crate::test::watch::Log;
use crate::{check, fuzz, install};

/// Skips that are accepted even in CI: the name of the test as libtest prints it.
const ALLOWED_SKIPS: &[&str] = &[];

/// Crates with loom models: unit tests whose names start with `loom_`, built with `--cfg loom`.
const LOOM_CRATES: &[&str] = &["bitmaps", "layers", "request_path"];

/// How many tests of the binary run at once, for each processor: half of them wait for clocks, disks and guests.
const OWN_TESTS_PER_PROCESSOR: usize = 2;

/// Which tests are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    Everything,
    /// What may be broken since this commit, or since the branch left main.
    Changed(Option<String>),
}

impl Scope {
    /// Understands `[--changed [COMMIT]]`.
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        match arguments {
            [] => Ok(Self::Everything),
            [option] if option == "--changed" => Ok(Self::Changed(None)),
            [option, base] if option == "--changed" => Ok(Self::Changed(Some(base.clone()))),
            [extra, ..] => Err(format!("`test` takes `--changed [COMMIT]`, not `{extra}`")),
        }
    }
}

/// Installs, checks, tests; the first step that fails ends it.
pub(crate) fn run(workspace: &Workspace, scope: &Scope) -> Result<()> {
    let selection = match scope {
        Scope::Everything => Selection::Everything,
        Scope::Changed(base) => changed::since(workspace, base.as_deref())?,
    };
    let user = install::run(workspace)?;
    check::read(workspace)?;

    let mut tally = Tally::default();
    let result = run_tests(workspace, &selection, user, &mut tally);
    println!("{}", tally.summary());
    for skip in tally.skips.iter().collect::<BTreeSet<_>>() {
        println!("   skipped: {skip}");
    }
    for test in &tally.passed_alone {
        println!("   failed beside other tests, passed alone: {test}");
    }
    result?;
    match judge(&tally.skips, user) {
        Verdict::Accept => {}
        Verdict::Warn(warning) => println!("   warning: {warning}"),
        Verdict::Refuse(reason) => bail!(reason),
    }
    if selection.has("fuzz") {
        fuzz::run(workspace, &fuzz::Plan::smoke())?;
    }
    Ok(())
}

/// Runs the selected tests and the loom models; the tally has what ran before a failure.
fn run_tests(
    workspace: &Workspace,
    selection: &Selection,
    user: install::User,
    tally: &mut Tally,
) -> Result<()> {
    let log_dir = workspace.target_dir().join("xtask");
    std::fs::create_dir_all(&log_dir).with_context(|| format!("{}", log_dir.display()))?;
    // The tests start `ringloom` as a process: it is built before any of them runs.
    let programs = programs::build(workspace)?;
    let modelled: Vec<&str> =
        LOOM_CRATES.iter().copied().filter(|name| selection.has(name)).collect();
    let selected = |is_selected: &dyn Fn(&str) -> bool| -> Vec<&TestProgram> {
        programs.iter().filter(|program| is_selected(&program.package)).collect()
    };
    let own = of_binary(selection);
    let of_ringloom = selected(&|name| name == BINARY);
    let others = selected(&|name| name != BINARY && selection.has(name));
    let mut examples = documentation(workspace, &programs, selection)?;
    let later = later_builds(workspace, selection, &modelled);
    let (result, beside) = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut run = QuietRun::default();
            let words = ["--show-output".to_owned()];
            run.step(&log_dir.join("test-crates.log"), |log, take| {
                programs::run(workspace, &others, &words, log, take)
            });
            if let Some(examples) = &mut examples {
                run.step(&log_dir.join("test-docs.log"), |log, mut take| {
                    log.run(examples, &mut take).map(|()| Vec::new())
                });
            }
            later.iter().for_each(ahead::build);
            run
        });
        let mut failed = Vec::new();
        let result = own.map_or(Ok(()), |words| {
            step("tests", "those of the binary", || {
                let mut log = Log::create(&log_dir.join("test.log"))?;
                failed = programs::run(workspace, &of_ringloom, &words, &mut log, |line| {
                    show(tally.feed(line), line);
                })?;
                Ok(())
            })
        });
        (result.map(|()| failed), beside.join().expect("it does not panic"))
    });
    tally.add(beside.tally);
    step("tests beside these", "those of all other crates", || {
        beside.lines.iter().for_each(|line| println!("   {line}"));
        beside.result
    })?;
    let failed = [result?, beside.failed].concat();
    // Tests with programs of other users fail without it, whoever has taken it away meanwhile.
    null::repair(user)?;
    let passed = alone::run(workspace, &failed, &log_dir.join("test-alone.log"))?;
    tally.have_passed_alone(passed);
    if !modelled.is_empty() {
        tally.add(loom(workspace, &modelled, &log_dir.join("loom.log"))?);
    }
    Ok(())
}

/// Tests that run beside others: what they print is shown when both are through.
struct QuietRun {
    tally: Tally,
    lines: Vec<String>,
    failed: Vec<FailedTest>,
    result: Result<()>,
}

impl Default for QuietRun {
    fn default() -> Self {
        let tally = Tally::default();
        Self { tally, lines: Vec::new(), failed: Vec::new(), result: Ok(()) }
    }
}

impl QuietRun {
    /// Does a step of it, with a log of its own, which returns the tests that failed; the first error is kept, the next step is
    /// done all the same.
    fn step(
        &mut self,
        log: &Path,
        work: impl FnOnce(&mut Log, &mut dyn FnMut(&str)) -> Result<Vec<FailedTest>>,
    ) {
        let (tally, lines) = (&mut self.tally, &mut self.lines);
        let mut take = |line: &str| {
            if tally.feed(line) == Show::Line {
                lines.push(line.to_owned());
            }
        };
        let failed = &mut self.failed;
        let result = Log::create(log).and_then(|mut log| work(&mut log, &mut take));
        let result = result.map(|tests| failed.extend(tests));
        let before = mem::replace(&mut self.result, Ok(()));
        self.result = before.and(result);
    }
}

/// What builds what the steps after the tests need: in directories of their own, so that the tests keep their binaries.
fn later_builds(workspace: &Workspace, selection: &Selection, modelled: &[&str]) -> Vec<Command> {
    let mut builds = Vec::new();
    if !modelled.is_empty() {
        builds.push(loom_command(workspace, modelled, &["--no-run"]));
    }
    if selection.has("fuzz") {
        builds.push(fuzz::build_command(workspace));
    }
    builds
}

/// What the test programs of `ringloom` are told to run, if anything: these tests wait for clocks, disks and guests.
fn of_binary(selection: &Selection) -> Option<Vec<String>> {
    let modules: Vec<&str> = match selection {
        Selection::Everything => Vec::new(),
        Selection::Some(Affected { binary: BinaryTests::All, .. }) => Vec::new(),
        Selection::Some(Affected { binary: BinaryTests::Modules(modules), .. }) => {
            if modules.is_empty() {
                return None;
            }
            modules.iter().map(String::as_str).collect()
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let threads = format!("--test-threads={}", OWN_TESTS_PER_PROCESSOR * processors);
    let words = [&["--show-output", &threads], &modules[..]].concat();
    Some(words.into_iter().map(str::to_owned).collect())
}

/// The examples in documentation, which cargo itself has to run, of those crates that have some.
fn documentation(
    workspace: &Workspace,
    programs: &[TestProgram],
    selection: &Selection,
) -> Result<Option<Command>> {
    let mut packages = BTreeSet::new();
    for program in programs.iter().filter(|program| selection.has(&program.package)) {
        if program.has_examples()? {
            packages.insert(program.package.as_str());
        }
    }
    let mut command = workspace.cargo(&["test", "--doc", "--no-fail-fast"]);
    command.args(packages.iter().flat_map(|name| ["--package", name]));
    Ok((!packages.is_empty()).then_some(command))
}

fn show(what: Show, line: &str) {
    match what {
        Show::Line => println!("   {line}"),
        Show::LogOnly => {}
    }
}

/// Runs the loom models of these crates; none at all in one of them is an error, since a filter that matches
/// nothing would pass for ever.
fn loom(workspace: &Workspace, crates: &[&str], path: &Path) -> Result<Tally> {
    let mut command = loom_command(workspace, crates, &["loom_"]);
    let (mut tally, mut with_models) = (Tally::default(), 0);
    step("loom models", &format!("RUSTFLAGS='--cfg loom' {}", describe(&command)), || {
        let mut log = Log::create(path)?;
        log.run(&mut command, &mut |line: &str| {
            let before = tally.passed;
            show(tally.feed(line), line);
            // Each crate's library has one line with results.
            with_models += usize::from(tally.passed > before);
        })?;
        if with_models != crates.len() {
            bail!(
                "{with_models} of {crates:?} have a test whose name starts with `loom_`; {}",
                path.display()
            );
        }
        Ok(())
    })?;
    Ok(tally)
}

/// The cargo that builds the loom models of these crates, and runs them unless these words say otherwise.
fn loom_command(workspace: &Workspace, crates: &[&str], words: &[&str]) -> Command {
    let mut command = workspace.cargo(&["test", "--profile", "loom", "--lib", "--target-dir"]);
    command.arg(workspace.target_dir().join("loom")).env("RUSTFLAGS", "--cfg loom");
    command.args(crates.iter().flat_map(|&name| ["--package", name])).args(words);
    command
}

/// What skipped tests mean for the whole command.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Accept,
    Warn(String),
    Refuse(String),
}

fn judge(skips: &[Skip], user: install::User) -> Verdict {
    let unexpected = skips
        .iter()
        .filter(|skip| !skip.test.as_deref().is_some_and(|it| ALLOWED_SKIPS.contains(&it)))
        .count();
    let count = tally::tests(unexpected);
    match (unexpected, user) {
        (0, _) => Verdict::Accept,
        (_, install::User::Other) => Verdict::Warn(format!("{count} skipped; as root this fails")),
        (_, install::User::Root) => Verdict::Refuse(format!(
            "{count} skipped: as root every test must run unless ALLOWED_SKIPS in \
             xtask/src/test.rs names it"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_selected_is_run() {
        let words = |selection: &Selection| of_binary(selection).map(|it| it.join(" "));
        let threads = 2 * thread::available_parallelism().map_or(1, usize::from);
        let all = format!("--show-output --test-threads={threads}");
        assert_eq!(words(&Selection::Everything), Some(all.clone()));
        assert_eq!(words(&Selection::Some(Affected::default())), None);
        let modules = ["page::".to_owned()].into();
        let affected =
            Affected { crates: ["load".to_owned()].into(), binary: BinaryTests::Modules(modules) };
        assert_eq!(words(&Selection::Some(affected)), Some(format!("{all} page::")));
    }

    #[test]
    fn a_skip_fails_for_root_only() {
        let skips = [Skip { test: Some("guest_boots".to_owned()), reason: "no qemu".to_owned() }];
        assert!(matches!(judge(&skips, install::User::Root), Verdict::Refuse(_)));
        assert!(matches!(judge(&skips, install::User::Other), Verdict::Warn(_)));
    }

    #[test]
    fn no_skip_is_fine() {
        assert_eq!(judge(&[], install::User::Root), Verdict::Accept);
    }
}
