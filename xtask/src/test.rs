//! `cargo xtask test`: everything a change must pass; CI runs this and nothing of its own. With `--changed` what a change
//! can break.
//!
//! Installs what the tests need, runs what `check` runs before its unit tests, then every test of the workspace,
//! the daemon that kills itself, the loom models and every fuzz target for a short time. A test that cannot run
//! prints `skipped: <reason>`; the skips are counted and told at the end.
//!
//! Invariants: as root a skip that `ALLOWED_SKIPS` does not name fails the command, since root
//! can install whatever is missing; for others it is a warning.
//! Not here: how lines are understood (`test::tally`), how a command is watched (`test::watch`).

mod changed;
mod tally;
mod watch;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::steps::{Workspace, cargo_step, step};
use crate::test::changed::{Affected, BINARY, BinaryTests, Selection};
use crate::test::tally::{Show, Skip, Tally};
use crate::{check, fuzz, install};

/// Skips that are accepted even in CI: the name of the test as libtest prints it.
const ALLOWED_SKIPS: &[&str] = &[];

/// Crates with loom models: unit tests whose names start with `loom_`, built with `--cfg loom`.
const LOOM_CRATES: &[&str] = &["layers", "request_path"];

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
    for (arguments, log) in commands(selection).iter().zip(["test.log", "test-crates.log"]) {
        let log = log_dir.join(log);
        step("tests", &format!("cargo {}", arguments.join(" ")), || {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let mut command = workspace.cargo(&arguments);
            watch::run(&mut command, &log, |line| show(tally.feed(line), line))
        })?;
    }
    if selection.has(BINARY) {
        tally.add(fault_points(workspace, &log_dir.join("fault-points.log"))?);
    }
    let modelled: Vec<&str> =
        LOOM_CRATES.iter().copied().filter(|name| selection.has(name)).collect();
    if !modelled.is_empty() {
        tally.add(loom(workspace, &modelled, &log_dir.join("loom.log"))?);
    }
    Ok(())
}

/// The arguments of cargo that run the selected tests, in at most two commands.
fn commands(selection: &Selection) -> Vec<Vec<String>> {
    let command = |what: &[&str], filters: &[&str]| {
        let words = [&["test"], what, &["--no-fail-fast", "--", "--show-output"], filters].concat();
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let Affected { crates, binary } = match selection {
        Selection::Everything => return vec![command(&["--workspace"], &[])],
        Selection::Some(affected) => affected,
    };
    let mut commands = Vec::new();
    let mut whole: Vec<&str> = crates.iter().map(String::as_str).collect();
    match binary {
        BinaryTests::All => whole.push(BINARY),
        BinaryTests::Modules(modules) if modules.is_empty() => {}
        BinaryTests::Modules(modules) => {
            let filters: Vec<&str> = modules.iter().map(String::as_str).collect();
            commands.push(command(&["--package", BINARY, "--test", "it"], &filters));
        }
    }
    if !whole.is_empty() {
        let packages: Vec<&str> = whole.into_iter().flat_map(|name| ["--package", name]).collect();
        commands.push(command(&packages, &[]));
    }
    commands
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
    let target_dir = workspace.target_dir().join("loom");
    let target_dir = target_dir.to_string_lossy();
    let packages = crates.iter().flat_map(|&name| ["--package", name]);
    let rest = ["--profile", "loom", "--lib", "--target-dir", &target_dir, "loom_"];
    let arguments: Vec<&str> = ["test"].into_iter().chain(packages).chain(rest).collect();
    let (mut tally, mut with_models) = (Tally::default(), 0);
    step("loom models", &format!("RUSTFLAGS='--cfg loom' cargo {}", arguments.join(" ")), || {
        let mut command = workspace.cargo(&arguments);
        command.env("RUSTFLAGS", "--cfg loom");
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
            commands(selection).iter().map(|it| it.join(" ")).collect::<Vec<_>>()
        };
        let whole = "test --workspace --no-fail-fast -- --show-output";
        assert_eq!(words(&Selection::Everything), [whole]);
        assert!(words(&Selection::Some(Affected::default())).is_empty());
        let modules = ["page::".to_owned()].into();
        let affected =
            Affected { crates: ["load".to_owned()].into(), binary: BinaryTests::Modules(modules) };
        assert_eq!(
            words(&Selection::Some(affected)),
            [
                "test --package ringloom --test it --no-fail-fast -- --show-output page::",
                "test --package load --no-fail-fast -- --show-output",
            ]
        );
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
