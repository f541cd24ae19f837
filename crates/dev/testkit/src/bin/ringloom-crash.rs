//! The program `ringloom-crash`, which `cargo xtask crash` builds and starts: the crash campaign by hand.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to its user on the terminal"
)]

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use testkit::crash::campaign::{self, Locking, Medium, Moves, Plan, Rings, Steps, Tracking};
use testkit::process::Program;

/// Kill ringloom again and again under load, and look whether anything is lost, comes back or is done twice
#[derive(Debug, Parser)]
#[command(name = "cargo xtask crash")]
#[expect(clippy::struct_excessive_bools, reason = "a switch of the command line is a bool to clap")]
struct Args {
    /// How often to kill
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Repeats the load and the times of the kills of an earlier run; default: a new one
    #[arg(long)]
    seed: Option<u64>,
    /// Disks to use in turn; slow: one whose writes outlive the process (root)
    #[arg(long, value_delimiter = ',', default_value = "file,memory,slow")]
    disks: Vec<Disk>,
    /// Rings to use in turn
    #[arg(long, value_delimiter = ',', default_value = "split,packed")]
    rings: Vec<Ring>,
    /// Give the server no in-flight region: requests are lost, which must be found
    #[arg(long)]
    untracked: bool,
    /// Have the image not locked: on a slow disk old I/O comes late, which must be found
    #[arg(long)]
    unlocked: bool,
    /// Half of the kills are at a step between a request's way from the ring and back; ringloom must be built with the
    /// feature fault-points
    #[arg(long)]
    steps: bool,
    /// Rings are moved at random, on a pool of iothreads that start and end, and servers are taken over; with --steps
    /// half of the kills are at a step
    #[arg(long, requires = "steps")]
    moves: bool,
    /// The ringloom under test
    #[arg(long, default_value = "target/release/ringloom", value_name = "PATH")]
    ringloom: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Disk {
    File,
    Memory,
    Slow,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Ring {
    Split,
    Packed,
}

impl Args {
    fn plan(&self, seed: u64) -> Plan {
        let medium = |disk: &Disk| match disk {
            Disk::File => Medium::File,
            Disk::Memory => Medium::Memory,
            Disk::Slow => Medium::Slow,
        };
        let rings = |ring: &Ring| match ring {
            Ring::Split => Rings::Split,
            Ring::Packed => Rings::Packed,
        };
        Plan {
            media: self.disks.iter().map(medium).collect(),
            rings: self.rings.iter().map(rings).collect(),
            tracking: if self.untracked { Tracking::Nothing } else { Tracking::Region },
            locking: if self.unlocked { Locking::Off } else { Locking::Usual },
            steps: if self.steps { Steps::Known } else { Steps::Unknown },
            moves: if self.moves { Moves::Random } else { Moves::Never },
            ..Plan::new(self.rounds, seed)
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    println!("seed {seed} (--seed {seed} repeats the load and the times of the kills)");
    let program = Program::ringloom(&args.ringloom);
    let mut tell = |line: &str| println!("{line}");
    match campaign::run(&program, &args.plan(seed), &mut tell) {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("crash: seed {seed}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
