//! Tests that failed beside others, run again with the machine for themselves.
//!
//! Tests with clocks in them fail now and then where two processors do the work of eight tests, their guests and servers. That
//! tells nothing of a change, and a change that broke something fails here as well.
//!
//! Invariants: each is run [`RUNS`] times, and one failure among them is a failure. Those that pass are named at the end of the
//! whole: a test that is named there again and again wants mending, and its first failure is in the log.
//! Limits: [`TESTS_MAX`]; with more of them something is wrong with the change or the machine.

use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::steps::{Workspace, step};
use crate::test::programs::{self, FailedTest};
use crate::test::watch::Log;

/// How often a test must pass.
const RUNS: usize = 3;

/// How many tests are run again.
const TESTS_MAX: usize = 10;

/// Runs these again, one at a time; returns their names.
pub(crate) fn run(workspace: &Workspace, failed: &[FailedTest], log: &Path) -> Result<Vec<String>> {
    if failed.is_empty() {
        return Ok(Vec::new());
    }
    let name = |test: &FailedTest| format!("{}: {}", test.program.package, test.name);
    let names: Vec<String> = failed.iter().map(name).collect();
    ensure!(
        failed.len() <= TESTS_MAX,
        "tests failed, too many to be run alone: {}",
        names.join(", ")
    );
    step("tests alone", &format!("those that failed beside others, {RUNS} times each"), || {
        let mut log = Log::create(log)?;
        let mut broken = Vec::new();
        for (test, name) in failed.iter().zip(&names) {
            let words = ["--exact", &test.name, "--show-output"].map(str::to_owned);
            for _ in 0..RUNS {
                let again = programs::run(workspace, &[&test.program], &words, &mut log, |_| {})?;
                if !again.is_empty() {
                    broken.push(name.as_str());
                    break;
                }
            }
        }
        if !broken.is_empty() {
            bail!("tests failed, alone as well: {}", broken.join(", "));
        }
        Ok(())
    })?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;
    use crate::test::programs::TestProgram;

    const FAILS: &str = "printf 'failures:\n\nfailures:\n    a::b\n\n'; exit 101";

    /// A program that is that script; each run adds a line to the file beside it.
    fn failed(place: &Path, script: &str) -> FailedTest {
        let path = place.join("program");
        let runs = place.join("runs");
        fs::write(&path, format!("#!/bin/sh\necho \"$*\" >> {}\n{script}\n", runs.display()))
            .expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let program = TestProgram { package: "disk".to_owned(), directory: "/".into(), path };
        FailedTest { program, name: "a::b".to_owned() }
    }

    fn run_again(name: &str, count: usize, script: &str) -> (Result<Vec<String>>, usize) {
        let place: PathBuf =
            std::env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(&place).expect("a directory");
        let tests = vec![failed(&place, script); count];
        let workspace = Workspace { root: "/".into(), cargo: "cargo".into() };
        let result = run(&workspace, &tests, &place.join("log"));
        let runs = fs::read_to_string(place.join("runs")).unwrap_or_default();
        assert!(runs.lines().all(|line| line == "--exact a::b --show-output"), "{runs}");
        fs::remove_dir_all(place).expect("it is there");
        (result, runs.lines().count())
    }

    #[test]
    fn a_test_must_pass_each_time() {
        let (result, runs) = run_again("passes", 1, "exit 0");
        assert_eq!(result.expect("it passes"), ["disk: a::b"]);
        assert_eq!(runs, RUNS);
        let (result, runs) = run_again("fails", 1, FAILS);
        let text = format!("{:#}", result.expect_err("it fails"));
        assert!(text.contains("alone as well: disk: a::b"), "{text}");
        assert_eq!(runs, 1);
        let script = format!("[ $(wc -l < $(dirname $0)/runs) -lt 3 ] || {{ {FAILS}; }}");
        let (result, runs) = run_again("fails-at-last", 1, &script);
        result.expect_err("it fails the third time");
        assert_eq!(runs, 3);
    }

    #[test]
    fn many_failures_are_failures() {
        let (result, runs) = run_again("many", TESTS_MAX + 1, "exit 0");
        let text = format!("{:#}", result.expect_err("there are too many"));
        assert!(text.contains("too many"), "{text}");
        assert_eq!(runs, 0);
    }
}
