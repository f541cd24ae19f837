//! The program `rehearsal`: policies on machines of a file, or on the families that the bars are held on.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to its user on the terminal"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use placement::{Fault, Preference};
use rehearsal::families::{many, moving, published, still};
use rehearsal::input::File;
use rehearsal::parameters::Parameters;
use rehearsal::policies::{NAMES, Name};

/// Try the placement of rings on simulated machines
#[derive(Debug, Parser)]
#[command(name = "rehearsal", after_help = format!("Policies: {NAMES}"))]
struct Args {
    /// Machines, in the format of docs/placement-machines.md; without it, the families that the bars are held on
    #[arg(long, value_name = "FILE")]
    machines: Option<PathBuf>,
    /// Policies to run on each machine
    #[arg(long, value_delimiter = ',', default_value = "auto,best-fixed")]
    policy: Vec<Name>,
    /// Where results go as JSON; the terminal by default
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// First seed of the families
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    match rehearse(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rehearsal: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn rehearse(args: &Args) -> Result<()> {
    let Some(path) = &args.machines else {
        families(args.seed);
        return Ok(());
    };
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let file: File = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let mut lines = Vec::new();
    for machine in &file.machines {
        lines.extend(machine.results(&args.policy)?);
    }
    let text = serde_json::to_string_pretty(&serde_json::json!({ "results": lines }))? + "\n";
    match &args.output {
        Some(path) => std::fs::write(path, text).with_context(|| path.display().to_string()),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

fn families(seed: u64) {
    let fitted = Parameters::fitted;
    let machines = [
        ("as fitted", fitted(), false),
        ("noise 8 %, drift 2 %", Parameters { noise: 0.08, drift: 0.02, ..fitted() }, false),
        ("waits wrong by a factor 2", Parameters { wait_error: 0.7, ..fitted() }, false),
        ("waits x 0.3", Parameters { wait_factor: 0.3, ..fitted() }, false),
        ("waits x 3", Parameters { wait_factor: 3.0, ..fitted() }, false),
        ("falls", Parameters { coherence: 0.01, contention: 0.02, ..fitted() }, false),
        ("falls steeply", Parameters { coherence: 0.05, contention: 0.02, ..fitted() }, false),
        ("20 CPUs", Parameters { cpus: 20.0, ..fitted() }, false),
        ("stalls", Parameters { stalls_per_s: 0.5, ..fitted() }, false),
        ("fitted otherwise", Parameters::fitted_otherwise(), false),
    ];
    let between = (0_u32..8).map(|at| {
        let share = f64::from(at) / 7.0;
        ("near, published gains", Parameters::between(share), true)
    });
    for (name, parameters, has_published_gains) in machines.into_iter().chain(between) {
        let setup =
            published::Setup { has_published_gains, ..published::Setup::long(parameters, seed) };
        println!("{name:26} {}", published::summary(&published::outcomes(&setup)));
    }
    for at in seed..seed + 4 {
        let found = still::four_of_sixteen(&fitted(), at, Fault::None, 1.0, 600.0);
        println!("four of sixteen: {:.3} of 16 fixed, at most {} iothreads", found.0, found.1);
    }
    for per_s in [0.05, 0.2, 1.0, 5.0] {
        let found = moving::wander(per_s, seed, 60.0, Fault::None);
        println!("four jobs that wander {per_s}/s: {found:.3} of the best fixed");
    }
    for (on, off) in [(0.2, 0.2), (1.0, 1.0), (5.0, 5.0), (1.0, 9.0), (20.0, 40.0)] {
        let found = moving::bursts(on, off, seed, 120.0, Fault::None);
        println!("bursts of {on} s every {} s: {found:.3} of the best fixed", on + off);
    }
    for game in [still::Game::Sulk, still::Game::Lure, still::Game::Hop, still::Game::Blink] {
        for threads in [4, 16] {
            let found = still::least_beside(game, threads, seed);
            println!("beside a guest that plays {game:?} on {threads} iothreads: {found:.3}");
        }
    }
    for threads in [64, 8] {
        for mix in [many::MOSTLY_IDLE, many::BUSY, many::ALL_HEAVY] {
            let setup = many::Setup::long(threads, mix, seed + 5);
            let auto = Name::Auto(Preference::Throughput);
            for name in [auto, Name::SpdkDynamic].into_iter().chain(many::STATIC) {
                let found = many::outcome(&setup, name, Fault::None);
                println!(
                    "90 disks on {threads}, {mix:?}, {name}: {:.0} k/s, least {:.2} of alone, {:.2} of fair, {:.1} iothreads, {:.0} moves/s",
                    found.requests_per_s / 1e3,
                    found.least_of_alone,
                    found.least_of_fair,
                    found.iothreads,
                    found.moves_per_s,
                );
            }
        }
    }
}
