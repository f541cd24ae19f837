//! The commands of the project: `cargo xtask check`, `test`, `bench`, `cluster`, `conform`, `crash`, `dist`, `fuzz`,
//! `hostile`, `tidy`, `install` and those of `rounds`.
//!
//! Limits: `check`, `tidy` and `install` take no arguments; what CI runs is what a developer runs.
//! Not here: the steps of each command, which stand in the module of its name.

#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to its user on the terminal"
)]

mod bench;
mod check;
mod cluster;
mod conform;
mod crash;
mod dist;
mod fuzz;
mod hostile;
mod install;
mod rounds;
mod steps;
mod test;
mod tidy;

use std::process::ExitCode;

use anyhow::Result;

use crate::steps::Workspace;

const USAGE: &str = "usage: cargo xtask <command> [<argument>…]

commands:
  check    the quick gate: fmt, tidy, clippy, docs, unit tests; installs nothing
  bench    compare with qemu-storage-daemon and the bare host; --help shows its options
  cluster  up|test|down  a Kubernetes of two nodes on this machine, started, tried, ended
  conform  stack nodes at random and check every byte; --help shows its options
  databases [--rounds N] databases in guests whose disks are kept, copied and moved, N times (1)
  crash    kill ringloom under load and check every byte; --help shows its options
  dist     make the Debian package and what belongs to it; --help shows its options
  test     install what the tests need, then check and every test; what CI runs
           [--changed [COMMIT]]  only what a change since COMMIT (where the branch left main) can break
  fuzz     [--seconds N] [TARGET…]  run fuzz targets, N seconds each (20)
  hostile  attack ringloom in all ways at once beside clients that are checked; --help shows its options
  jobs     [--rounds N]  random jobs on chains of images, N times (100)
  migrate  [--rounds N]  take guests from daemon to daemon, N times (20)
  tidy     the rules of the project that no other tool checks
  install  only install what the tests need
  help     print this text";

/// What the user asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Command {
    /// With the arguments of the bench.
    Bench(Vec<String>),
    Check,
    /// With the arguments of the program that runs it.
    Cluster(Vec<String>),
    /// With the arguments of the suite.
    Conform(Vec<String>),
    /// With the arguments of the campaign.
    Crash(Vec<String>),
    Test(test::Scope),
    /// With the arguments of the program that makes packages.
    Dist(Vec<String>),
    Fuzz(fuzz::Plan),
    /// With the arguments of the campaign.
    Hostile(Vec<String>),
    /// Tests with so many rounds.
    Rounds(&'static rounds::RoundsCampaign, u32),
    Tidy,
    Install,
    Help,
}

/// Understands the arguments after the program's name, or says what is wrong with them.
fn parse(arguments: &[String]) -> Result<Command, String> {
    let (name, rest) = match arguments {
        [] => return Err("no command given".to_owned()),
        [name, rest @ ..] => (name.as_str(), rest),
    };
    let command = match name {
        "bench" => return Ok(Command::Bench(rest.to_vec())),
        "check" => Command::Check,
        "cluster" => return Ok(Command::Cluster(rest.to_vec())),
        "conform" => return Ok(Command::Conform(rest.to_vec())),
        "crash" => return Ok(Command::Crash(rest.to_vec())),
        "dist" => return Ok(Command::Dist(rest.to_vec())),
        "test" => return test::Scope::parse(rest).map(Command::Test),
        "fuzz" => return fuzz::Plan::parse(rest).map(Command::Fuzz),
        "hostile" => return Ok(Command::Hostile(rest.to_vec())),
        "tidy" => Command::Tidy,
        "install" => Command::Install,
        "help" | "--help" | "-h" => Command::Help,
        other => {
            let campaign = rounds::CAMPAIGNS.iter().find(|campaign| campaign.name == other);
            let campaign = campaign.ok_or_else(|| format!("unknown command `{other}`"))?;
            return campaign.parse(rest).map(|number| Command::Rounds(campaign, number));
        }
    };
    match rest {
        [] => Ok(command),
        [extra, ..] => Err(format!("`{name}` takes no argument, not `{extra}`")),
    }
}

fn run(command: Command) -> Result<()> {
    let workspace = Workspace::find()?;
    match command {
        Command::Bench(arguments) => bench::run(&workspace, &arguments),
        Command::Check => check::run(&workspace),
        Command::Cluster(arguments) => cluster::run(&workspace, &arguments),
        Command::Conform(arguments) => conform::run(&workspace, &arguments),
        Command::Crash(arguments) => crash::run(&workspace, &arguments),
        Command::Dist(arguments) => dist::run(&workspace, &arguments),
        Command::Test(scope) => test::run(&workspace, &scope),
        Command::Fuzz(plan) => fuzz::run(&workspace, &plan),
        Command::Hostile(arguments) => hostile::run(&workspace, &arguments),
        Command::Rounds(campaign, number) => campaign.run(&workspace, number),
        Command::Tidy => tidy::run(&workspace),
        Command::Install => install::run(&workspace).map(drop),
        Command::Help => {
            println!("{USAGE}");
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned()).collect();
    match parse(&arguments) {
        Err(problem) => {
            eprintln!("xtask: {problem}\n\n{USAGE}");
            ExitCode::from(2)
        }
        Ok(command) => match run(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("xtask: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &[&str], expected: Result<Command, &str>) {
        let arguments: Vec<String> = input.iter().map(|&it| it.to_owned()).collect();
        assert_eq!(parse(&arguments), expected.map_err(str::to_owned));
    }

    #[test]
    fn every_command_is_known_by_its_name() {
        check(&["check"], Ok(Command::Check));
        check(&["bench", "--quick"], Ok(Command::Bench(vec!["--quick".to_owned()])));
        check(&["cluster", "up"], Ok(Command::Cluster(vec!["up".to_owned()])));
        check(&["conform", "--minutes", "9"], {
            Ok(Command::Conform(vec!["--minutes".to_owned(), "9".to_owned()]))
        });
        check(&["crash", "--rounds", "9"], {
            Ok(Command::Crash(vec!["--rounds".to_owned(), "9".to_owned()]))
        });
        check(&["dist", "--images"], Ok(Command::Dist(vec!["--images".to_owned()])));
        check(&["test"], Ok(Command::Test(test::Scope::Everything)));
        check(&["test", "--changed", "v1"], {
            Ok(Command::Test(test::Scope::Changed(Some("v1".to_owned()))))
        });
        check(&["hostile", "--minutes", "9"], {
            Ok(Command::Hostile(vec!["--minutes".to_owned(), "9".to_owned()]))
        });
        check(&["fuzz"], Ok(Command::Fuzz(fuzz::Plan::parse(&[]).expect("nothing is wrong"))));
        check(&["migrate", "--rounds", "5"], Ok(Command::Rounds(&rounds::CAMPAIGNS[0], 5)));
        check(&["tidy"], Ok(Command::Tidy));
        check(&["install"], Ok(Command::Install));
        check(&["--help"], Ok(Command::Help));
    }

    #[test]
    fn wrong_arguments_are_named() {
        check(&[], Err("no command given"));
        check(&["tset"], Err("unknown command `tset`"));
        check(&["test", "--fast"], Err("`test` takes `--changed [COMMIT]`, not `--fast`"));
    }
}
