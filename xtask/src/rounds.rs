//! `cargo xtask migrate`, `jobs` and `databases`: tests of `ringloom` with many rounds.
//!
//! Not here: what a round is (`live_migration`, `jobs::campaign` and `jobs::databases` in the tests of `ringloom`, which run a
//! few of the first two always).

use anyhow::Result;

use crate::steps::{Workspace, must_succeed, step};

/// Tests that can have many rounds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RoundsCampaign {
    /// The command.
    pub(crate) name: &'static str,
    /// What a developer's run takes, if nothing else is said.
    rounds: u32,
    /// Read by the tests; with it a test that cannot run fails.
    variable: &'static str,
    /// The tests with rounds; one at a time, so that the guests get the processors.
    tests: &'static str,
}

/// All of them.
pub(crate) static CAMPAIGNS: [RoundsCampaign; 3] = [
    // Guests go from daemon to daemon.
    RoundsCampaign {
        name: "migrate",
        rounds: 20,
        variable: "RINGLOOM_MIGRATION_ROUNDS",
        tests: "live_migration::rounds",
    },
    // Random jobs on random chains.
    RoundsCampaign {
        name: "jobs",
        rounds: 100,
        variable: "RINGLOOM_JOB_ROUNDS",
        tests: "jobs::campaign",
    },
    // Databases in guests, whose disks have a snapshot, a backup and a mirror.
    RoundsCampaign {
        name: "databases",
        rounds: 1,
        variable: "RINGLOOM_DATABASE_ROUNDS",
        tests: "jobs::databases",
    },
];

impl RoundsCampaign {
    /// Understands `[--rounds N]`.
    pub(crate) fn parse(&self, arguments: &[String]) -> Result<u32, String> {
        match arguments {
            [] => Ok(self.rounds),
            [name, number] if name == "--rounds" => {
                let rounds = number.parse().ok().filter(|it| *it > 0);
                rounds.ok_or_else(|| format!("`--rounds` needs a number above 0, not `{number}`"))
            }
            [name] if name == "--rounds" => Err("`--rounds` needs a number above 0".to_owned()),
            [other, ..] => Err(format!("`{}` takes `--rounds N`, not `{other}`", self.name)),
        }
    }

    /// Runs them, with their output on the terminal.
    pub(crate) fn run(&self, workspace: &Workspace, rounds: u32) -> Result<()> {
        let arguments = "test -p ringloom --test it -- --nocapture --test-threads 1".split(' ');
        let arguments: Vec<&str> = arguments.chain([self.tests]).collect();
        let line = format!("{}={rounds} cargo {}", self.variable, arguments.join(" "));
        step(self.name, &line, || {
            must_succeed(workspace.cargo(&arguments).env(self.variable, rounds.to_string()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &[&str], expected: Result<u32, &str>) {
        let arguments: Vec<String> = input.iter().map(|&it| it.to_owned()).collect();
        assert_eq!(CAMPAIGNS[0].parse(&arguments), expected.map_err(str::to_owned));
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
