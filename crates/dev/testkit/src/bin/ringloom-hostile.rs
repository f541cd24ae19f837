//! The hostile campaign as a program: `cargo xtask hostile` builds and starts it.
//!
//! Not here: what is done and checked (`testkit::hostile`).

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool")]

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use testkit::hostile::campaign::{self, Event, Plan};
use testkit::process::Program;

/// Attack ringloom in all ways at once, beside clients whose data and times are checked
#[derive(Debug, Parser)]
#[command(name = "cargo xtask hostile")]
struct Args {
    /// How long there are attackers
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Repeats the attacks and events of an earlier run; default: a new one
    #[arg(long)]
    seed: Option<u64>,
    /// Attackers at once
    #[arg(long, default_value_t = 3)]
    attackers: usize,
    /// Only attacks with this in their name
    #[arg(long, default_value = "", value_name = "TEXT")]
    only: String,
    /// What happens to the daemon
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "upgrade,stopped-upgrade,killed-upgrade,wrong-upgrade,kill"
    )]
    events: Vec<Happening>,
    /// The ringloom under test
    #[arg(long, default_value = "target/release/ringloom", value_name = "PATH")]
    ringloom: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Happening {
    /// A new process takes over
    Upgrade,
    /// One that is stopped at some moment
    StoppedUpgrade,
    /// One that is killed at some moment
    KilledUpgrade,
    /// One with a line that serves other bytes
    WrongUpgrade,
    /// The daemon is killed
    Kill,
    /// Nothing
    Nothing,
}

impl Happening {
    fn event(self) -> Option<Event> {
        match self {
            Self::Upgrade => Some(Event::Upgrade),
            Self::StoppedUpgrade => Some(Event::StoppedUpgrade),
            Self::KilledUpgrade => Some(Event::KilledUpgrade),
            Self::WrongUpgrade => Some(Event::WrongUpgrade),
            Self::Kill => Some(Event::Kill),
            Self::Nothing => None,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    println!("seed {seed} (--seed {seed} repeats the attacks and events, and their order)");
    let program = Program::ringloom(&args.ringloom);
    let events = args.events.iter().filter_map(|it| it.event()).collect();
    let Ok(time) = Duration::try_from_secs_f64(args.minutes * 60.0) else {
        eprintln!("hostile: --minutes {} is no time", args.minutes);
        return ExitCode::from(2);
    };
    let Args { attackers, only, .. } = args;
    let plan = Plan { attackers, only, events, ..Plan::new(seed, time) };
    let mut tell = |line: &str| println!("{line}");
    match campaign::run(&program, &plan, &mut tell) {
        Ok(summary) => {
            for line in &summary.lines {
                println!("{line}");
            }
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hostile: seed {seed}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
