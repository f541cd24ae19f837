//! `cargo xtask migrate`: migrates guests from daemon to daemon for many rounds.
//!
//! Not here: what a round is (`live_migration` in the tests of `ringloom`, which run a few of them always).

use anyhow::Result;

use crate::steps::{Workspace, must_succeed, step};

/// What a developer's run takes, if nothing else is said.
const ROUNDS: u32 = 20;
/// Read by the tests; with it a test that cannot run fails.
const VARIABLE: &str = "RINGLOOM_MIGRATION_ROUNDS";
/// The tests with rounds; one at a time, so that the guests get the processors.
const TESTS: &str = "live_migration::rounds";

/// Understands `[--rounds N]`.
pub(crate) fn parse(arguments: &[String]) -> Result<u32, String> {
    match arguments {
        [] => Ok(ROUNDS),
        [name, number] if name == "--rounds" => {
            let rounds = number.parse().ok().filter(|it| *it > 0);
            rounds.ok_or_else(|| format!("`--rounds` needs a number above 0, not `{number}`"))
        }
        [name] if name == "--rounds" => Err("`--rounds` needs a number above 0".to_owned()),
        [other, ..] => Err(format!("`migrate` takes `--rounds N`, not `{other}`")),
    }
}

/// Runs them, with their output on the terminal.
pub(crate) fn run(workspace: &Workspace, rounds: u32) -> Result<()> {
    let arguments = "test -p ringloom --test it -- --nocapture --test-threads 1".split(' ');
    let arguments: Vec<&str> = arguments.chain([TESTS]).collect();
    step("migrate", &format!("{VARIABLE}={rounds} cargo {}", arguments.join(" ")), || {
        must_succeed(workspace.cargo(&arguments).env(VARIABLE, rounds.to_string()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &[&str], expected: Result<u32, &str>) {
        let arguments: Vec<String> = input.iter().map(|&it| it.to_owned()).collect();
        assert_eq!(parse(&arguments), expected.map_err(str::to_owned));
    }

    #[test]
    fn a_number_of_rounds_is_above_zero() {
        check(&[], Ok(20));
        check(&["--rounds", "7"], Ok(7));
        check(&["--rounds"], Err("`--rounds` needs a number above 0"));
        check(&["--rounds", "0"], Err("`--rounds` needs a number above 0, not `0`"));
        check(&["--round", "7"], Err("`migrate` takes `--rounds N`, not `--round`"));
    }
}
