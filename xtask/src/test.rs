//! `cargo xtask test`: everything a change must pass; CI runs this and nothing of its own. With `--changed` what a change
//! can break.
//!
//! Installs what the tests need, runs what `check` runs before its unit tests, then every test of the workspace,
//! the daemon that kills itself, the loom models and every fuzz target for a short time. A test that cannot run
//! prints `skipped: <reason>`; the skips are counted and told at the end.
//!
//! Invariants: as root a skip that `ALLOWED_SKIPS` does not name fails the command, since root
//! can install whatever is missing; for others it is a warning.
//! Not here: how lines are understood (`test::tally`), how a command is watched (`test::watch`), how builds run beside the
//! tests (`test::ahead`).

mod ahead;
mod changed;
mod tally;
mod watch;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::steps::{Workspace, cargo_step, describe, step};
use crate::test::changed::{Affected, BINARY, BinaryTests, Selection};
use crate::test::tally::{Show, Skip, Tally};
use crate::{check, fuzz, install};

/// Skips that are accepted even in CI: the name of the test as libtest prints it.
const ALLOWED_SKIPS: &[&str] = &[];

/// Crates with loom models: unit tests whose names start with `loom_`, built with `--cfg loom`.
const LOOM_CRATES: &[&str] = &["bitmaps", "layers", "request_path"];

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
    let result = run_tests(workspace, &selection, &mut tally);
    println!("{}", tally.summary());
    for skip in tally.skips.iter().collect::<BTreeSet<_>>() {
        println!("   skipped: {skip}");
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

/// Runs the selected tests, those of a daemon that kills itself and the loom models; the tally has what ran before a
/// failure.
fn run_tests(workspace: &Workspace, selection: &Selection, tally: &mut Tally) -> Result<()> {
    let log_dir = workspace.target_dir().join("xtask");
    std::fs::create_dir_all(&log_dir).with_context(|| format!("{}", log_dir.display()))?;
    // The tests start `ringloom` as a process. Cargo builds it only for the tests of its own
    // package, so it is built for all; compiler output stays out of the log of the tests. In one
    // step, since whoever links last would leave processors idle in each.
    let build = ["build", "--quiet", "--workspace", "--bins", "--tests"];
    cargo_step(workspace, "binaries and tests", &build, &[])?;
    let modelled: Vec<&str> =
        LOOM_CRATES.iter().copied().filter(|name| selection.has(name)).collect();
    let (own, others) = (of_binary(selection), of_crates(selection));
    let later = later_builds(workspace, selection, &modelled);
    let (result, beside) = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut run = QuietRun::default();
            if let Some(arguments) = &others {
                let log = log_dir.join("test-crates.log");
                let print = |line: &str| run.lines.push(line.to_owned());
                run.result = test(workspace, arguments, &log, &mut run.tally, print);
            }
            later.iter().for_each(ahead::build);
            run
        });
        let result = own.as_ref().map_or(Ok(()), |arguments| {
            step("tests", &format!("cargo {}", arguments.join(" ")), || {
                let print = |line: &str| println!("   {line}");
                test(workspace, arguments, &log_dir.join("test.log"), tally, print)
            })
        });
        (result, beside.join().expect("it does not panic"))
    });
    tally.add(beside.tally);
    if let Some(arguments) = others {
        step("tests beside these", &format!("cargo {}", arguments.join(" ")), || {
            beside.lines.iter().for_each(|line| println!("   {line}"));
            beside.result
        })?;
    }
    result?;
    if selection.has(BINARY) {
        tally.add(fault_points(workspace, &log_dir.join("fault-points.log"))?);
    }
    if !modelled.is_empty() {
        tally.add(loom(workspace, &modelled, &log_dir.join("loom.log"))?);
    }
    Ok(())
}

/// Tests that run beside others: what they print is shown when both are through.
struct QuietRun {
    tally: Tally,
    lines: Vec<String>,
    result: Result<()>,
}

impl Default for QuietRun {
    fn default() -> Self {
        Self { tally: Tally::default(), lines: Vec::new(), result: Ok(()) }
    }
}

/// Runs cargo with these arguments and counts the tests; `print` has the lines that a person waits for.
fn test(
    workspace: &Workspace,
    arguments: &[String],
    log: &Path,
    tally: &mut Tally,
    mut print: impl FnMut(&str),
) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    watch::run(&mut workspace.cargo(&arguments), log, |line| {
        if tally.feed(line) == Show::Line {
            print(line);
        }
    })
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

/// The arguments of cargo that run the selected tests of `ringloom` as a whole: they wait for clocks, disks and guests.
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
    Some(cargo_test(&["--package", BINARY], &modules))
}

/// The same of all other packages: they compute.
fn of_crates(selection: &Selection) -> Option<Vec<String>> {
    match selection {
        Selection::Everything => Some(cargo_test(&["--workspace", "--exclude", BINARY], &[])),
        Selection::Some(Affected { crates, .. }) if crates.is_empty() => None,
        Selection::Some(Affected { crates, .. }) => {
            let packages = crates.iter().flat_map(|name| ["--package", name]);
            Some(cargo_test(&packages.collect::<Vec<_>>(), &[]))
        }
    }
}

fn cargo_test(what: &[&str], filters: &[&str]) -> Vec<String> {
    let words = [&["test"], what, &["--no-fail-fast", "--", "--show-output"], filters].concat();
    words.into_iter().map(str::to_owned).collect()
}

fn show(what: Show, line: &str) {
    match what {
        Show::Line => println!("   {line}"),
        Show::LogOnly => {}
    }
}

/// Runs the tests of a daemon that kills itself at a step (`virtio::FaultPoint`) or does what it must not; none at all is an error.
fn fault_points(workspace: &Workspace, log: &Path) -> Result<Tally> {
    // After the other tests: it leaves a binary with the feature behind.
    let arguments = ["test", "--package", "ringloom", "--features", "fault-points", "--test", "it"];
    let filters = [
        "--",
        "--show-output",
        "crash::",
        "campaign::nothing_is_lost_or_done_twice_when_the_server_is_killed_between",
        "campaign::nothing_is_lost_or_done_twice_when_rings_are_moved",
        "placement::moved",
        "control::killed",
        "takeover::hangs::a_write_before_the_word",
    ];
    let arguments = [&arguments[..], &filters].concat();
    let mut tally = Tally::default();
    step("fault points", &format!("cargo {}", arguments.join(" ")), || {
        watch::run(&mut workspace.cargo(&arguments), log, |line| show(tally.feed(line), line))?;
        if tally.passed == 0 {
            bail!("no test of a daemon that kills itself");
        }
        Ok(())
    })?;
    Ok(tally)
}

/// Runs the loom models of these crates; none at all in one of them is an error, since a filter that matches
/// nothing would pass for ever.
fn loom(workspace: &Workspace, crates: &[&str], log: &Path) -> Result<Tally> {
    let mut command = loom_command(workspace, crates, &["loom_"]);
    let (mut tally, mut with_models) = (Tally::default(), 0);
    step("loom models", &format!("RUSTFLAGS='--cfg loom' {}", describe(&command)), || {
        watch::run(&mut command, log, |line| {
            let before = tally.passed;
            show(tally.feed(line), line);
            // Each crate's library has one line with results.
            with_models += usize::from(tally.passed > before);
        })?;
        if with_models != crates.len() {
            bail!(
                "{with_models} of {crates:?} have a test whose name starts with `loom_`; {}",
                log.display()
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
        let words = |selection: &Selection| {
            [of_binary(selection), of_crates(selection)].map(|it| it.map(|it| it.join(" ")))
        };
        let end = "--no-fail-fast -- --show-output";
        let own = |filters| Some(format!("test --package ringloom {end}{filters}"));
        let whole = Some(format!("test --workspace --exclude ringloom {end}"));
        assert_eq!(words(&Selection::Everything), [own(""), whole]);
        assert_eq!(words(&Selection::Some(Affected::default())), [None, None]);
        let modules = ["page::".to_owned()].into();
        let affected =
            Affected { crates: ["load".to_owned()].into(), binary: BinaryTests::Modules(modules) };
        let load = Some(format!("test --package load {end}"));
        assert_eq!(words(&Selection::Some(affected)), [own(" page::"), load]);
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
