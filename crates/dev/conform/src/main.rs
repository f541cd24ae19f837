//! The program `ringloom-conform`, which `cargo xtask conform` builds and starts: the suite for as long as one likes.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks to its user on the terminal"
)]

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use conform::campaign::{End, Form, run};
use testkit::ceph::{Cluster, Store};

/// Stack nodes and layers at random, run random requests through them and check every byte
#[derive(Debug, Parser)]
#[command(name = "cargo xtask conform")]
struct Args {
    /// How long to go on, a sixth of it in each form
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// Repeats the stacks and images from this one on; default: new ones
    #[arg(long, value_parser = number)]
    seed: Option<u64>,
    /// So many stacks or images of each form, however long that takes
    #[arg(long, conflicts_with = "minutes")]
    stacks: Option<u64>,
    /// Only this form
    #[arg(long)]
    form: Option<FormName>,
    /// Directories for the files of stacks on iothreads
    #[arg(long, value_delimiter = ',', default_value = "target,/dev/shm", value_name = "PATH")]
    directories: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FormName {
    /// Files in memory, and a clock that jumps
    Pure,
    /// Iothreads, and files of the host
    Live,
    /// Iothreads, and images of a Ceph cluster of its own; only if it is asked for
    Cluster,
    /// qcow2 images in memory, whose power goes at any step
    Images,
    /// qcow2 images on iothreads, and files of the host
    LiveImages,
    /// Disks in memory that are kept as they were at an instant
    Instants,
    /// Disks in memory that are copied while guests change them
    Mirrors,
}

/// Decimal, or with `0x`, as seeds are printed.
fn number(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

fn main() -> ExitCode {
    match conform(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conform: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn conform(args: &Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one("conform"));
    println!("seed {seed:#x}");
    if args.form == Some(FormName::Cluster) {
        let directory = args.directories.first().context("no directory for files")?.clone();
        let cluster = Arc::new(Cluster::start(Store::Memory)?);
        return play(args, seed, FormName::Cluster, &Form::Cluster(directory, cluster), 60);
    }
    for (name, form) in [
        (FormName::Pure, Form::Pure),
        (FormName::Live, Form::Live(args.directories.clone())),
        (FormName::Images, Form::Images),
        (FormName::LiveImages, Form::LiveImages(args.directories.clone())),
        (FormName::Instants, Form::Instants),
        (FormName::Mirrors, Form::Mirrors),
    ] {
        let (is_wanted, share) = match args.form {
            None => (true, 10),
            Some(wanted) => (wanted == name, 60),
        };
        if is_wanted {
            play(args, seed, name, &form, share)?;
        }
    }
    Ok(())
}

/// Plays one form, for so many seconds of each minute.
fn play(args: &Args, seed: u64, name: FormName, form: &Form, share: u64) -> Result<()> {
    let time = End::Time(Duration::from_secs(args.minutes * share));
    let summary = run(form, seed, args.stacks.map_or(time, End::Stacks))?;
    println!("{name:?}: {summary:?}");
    Ok(())
}
