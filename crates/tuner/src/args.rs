//! The options of `ringloom tune` and the settings that follow from them.
//!
//! `cli` flattens `TuneArgs`; `run` turns it into `Settings`, in which every default is filled in.
//! Settings are what a resumed run must agree with; the seed is among them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use load::{BlockBytes, Operation};
use serde::{Deserialize, Serialize};

use crate::cell::Iothreads;
use crate::units::{Bytes, Seconds};

/// More repeats than anybody waits for.
const REPEATS_MAX: i64 = 100;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Subject {
    /// A vhost-user client of the daemon: one thread and one queue per job, sleeping for completions
    Client,
    /// The same load straight on the file, with io_uring
    Host,
}

/// Options of `ringloom tune`.
#[derive(Args, Clone, Debug)]
pub struct TuneArgs {
    /// Disk to measure: a file or block device. It is only read unless --destructive is given.
    /// Without it, a scratch file in the current directory is made, measured and removed
    pub(crate) path: Option<PathBuf>,

    /// What to measure
    #[arg(long, value_delimiter = ',', value_enum, default_value = "client,host")]
    pub(crate) subject: Vec<Subject>,

    /// Numbers of iothreads to compare; none is the export without an iothread
    /// [default: none,1,2,4,… as far as cores and jobs go]
    #[arg(long, value_delimiter = ',', value_name = "none,1,2,…")]
    pub(crate) iothreads: Vec<Iothreads>,

    /// Operations: randread, randwrite, read, write, or a random mix such as 80/20 (80 % reads)
    #[arg(long, value_delimiter = ',', default_value = "randread,randwrite")]
    pub(crate) op: Vec<Operation>,

    /// Block sizes, with k or M
    #[arg(long, value_delimiter = ',', default_value = "4k,64k", value_parser = block_size)]
    pub(crate) bs: Vec<BlockBytes>,

    /// Jobs: threads of the load, each on a queue of its own [default: the cores, between 2 and 4]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) jobs: Vec<u16>,

    /// Requests each job keeps in flight
    #[arg(long, value_delimiter = ',', default_value = "16",
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) iodepth: Vec<u16>,

    /// Measured seconds of one run
    #[arg(long, default_value = "1.5", value_name = "SECONDS")]
    pub(crate) runtime: Seconds,

    /// Seconds of load before the measured ones
    #[arg(long, default_value = "0.5", value_name = "SECONDS")]
    pub(crate) ramp: Seconds,

    /// How often everything is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=REPEATS_MAX))]
    pub(crate) repeats: u16,

    /// Size of the scratch file
    #[arg(long, default_value = "1G", conflicts_with = "path")]
    pub(crate) size: Bytes,

    /// Allow write cells to overwrite PATH; all its data is lost
    #[arg(long, requires = "path")]
    pub(crate) destructive: bool,

    /// Directory of the results [default: the first free of ringloom-report, ringloom-report-2, …]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Go on with an interrupted run: same options, same directory (by default the newest)
    #[arg(long)]
    pub(crate) resume: bool,

    /// Seed of the offsets and of the order of the runs [default: random, printed]
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// Daemon to start instead of this program
    #[arg(long, hide = true, value_name = "PROGRAM")]
    pub(crate) daemon: Option<PathBuf>,
}

fn block_size(text: &str) -> Result<BlockBytes, String> {
    let bytes: Bytes = text.parse().map_err(|error: crate::units::BadSize| error.to_string())?;
    BlockBytes::try_from(bytes.0).map_err(|error| error.to_string())
}

/// Everything that decides what is measured and how, with the defaults filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) subject: Vec<Subject>,
    pub(crate) iothreads: Vec<Iothreads>,
    pub(crate) op: Vec<String>,
    pub(crate) bs: Vec<u32>,
    pub(crate) jobs: Vec<u16>,
    pub(crate) iodepth: Vec<u16>,
    pub(crate) runtime: Seconds,
    pub(crate) ramp: Seconds,
    pub(crate) repeats: u16,
    pub(crate) destructive: bool,
    pub(crate) seed: u64,
}

impl Settings {
    /// Fills in what depends on the machine. `seed` is used if the user gave none.
    pub(crate) fn new(args: &TuneArgs, cores: usize, seed: u64) -> Self {
        let jobs = if args.jobs.is_empty() {
            vec![u16::try_from(cores.clamp(2, 4)).expect("at most 4")]
        } else {
            unique(&args.jobs)
        };
        let mut iothreads = if args.iothreads.is_empty() {
            let useful = jobs.iter().map(|&jobs| usize::from(jobs)).max().unwrap_or(1);
            default_iothreads(cores.min(useful))
        } else {
            unique(&args.iothreads)
        };
        iothreads.sort_unstable();
        Self {
            subject: unique(&args.subject),
            iothreads,
            op: unique(&args.op).iter().map(ToString::to_string).collect(),
            bs: unique(&args.bs).into_iter().map(BlockBytes::get).collect(),
            jobs,
            iodepth: unique(&args.iodepth),
            runtime: args.runtime,
            ramp: args.ramp,
            repeats: args.repeats,
            destructive: args.destructive,
            seed: args.seed.unwrap_or(seed),
        }
    }

    /// The names of the options in which `self` and `other` differ.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let values = |settings| match serde_json::to_value(settings) {
            Ok(serde_json::Value::Object(map)) => map,
            other => unreachable!("settings are always an object, not {other:?}"),
        };
        let (mine, theirs) = (values(self), values(other));
        let differing = mine.iter().filter(|(name, value)| theirs.get(*name) != Some(value));
        differing
            .map(|(name, value)| {
                let old = theirs.get(name).unwrap_or(&serde_json::Value::Null);
                format!("--{name} is {value}, was {old}")
            })
            .collect()
    }
}

/// none, 1, 2, 4, 8 … up to `most`.
fn default_iothreads(most: usize) -> Vec<Iothreads> {
    let counts = (0..=4_u32).map(|power| 2_u16.pow(power));
    let useful = counts.filter(|&count| usize::from(count) <= most).map(Iothreads::new);
    std::iter::once(Iothreads::NONE).chain(useful).collect()
}

/// Drops values that were named before, keeping the order.
fn unique<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut kept: Vec<T> = Vec::with_capacity(values.len());
    for value in values {
        if !kept.contains(value) {
            kept.push(*value);
        }
    }
    kept
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        tune: TuneArgs,
    }

    pub(crate) fn parse(line: &str) -> Result<TuneArgs, String> {
        let words = std::iter::once("tune").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.tune).map_err(|error| error.to_string())
    }

    pub(crate) fn settings(line: &str, cores: usize) -> Settings {
        Settings::new(&parse(line).unwrap(), cores, 42)
    }

    #[track_caller]
    fn check_refused(line: &str, expected: &[&str]) {
        let message = parse(line).unwrap_err();
        for part in expected {
            assert!(message.contains(part), "'{part}' is missing in: {message}");
        }
    }

    #[test]
    fn defaults_are_bounded_by_the_cores() {
        for (cores, jobs, iothreads) in [
            (1, 2, "none,1"),
            (2, 2, "none,1,2"),
            (3, 3, "none,1,2"),
            (4, 4, "none,1,2,4"),
            (64, 4, "none,1,2,4"),
        ] {
            let settings = settings("", cores);
            let counts: Vec<_> = settings.iothreads.iter().map(ToString::to_string).collect();
            assert_eq!((settings.jobs, counts.join(",").as_str()), (vec![jobs], iothreads));
        }
    }

    #[test]
    fn lists_are_split_sorted_and_freed_of_repetitions() {
        let settings =
            settings("--iothreads 4,none,2,4 --op read,80/20 --bs 1M,4k,4096 --jobs 8", 2);
        let counts: Vec<_> = settings.iothreads.iter().map(|n| n.count()).collect();
        assert_eq!(counts, [0, 2, 4]);
        assert_eq!(settings.op, ["read", "80/20"]);
        assert_eq!(settings.bs, [1 << 20, 4096]);
        assert_eq!(settings.jobs, [8]);
    }

    #[test]
    fn more_jobs_allow_more_default_iothreads() {
        let counts: Vec<_> =
            settings("--jobs 1,16", 8).iothreads.iter().map(|n| n.count()).collect();
        assert_eq!(counts, [0, 1, 2, 4, 8]);
    }

    #[test]
    fn wrong_values_are_refused_with_the_valid_ones() {
        check_refused("--op randrw", &["'randrw'", "--op", "randread, randwrite, read, write"]);
        check_refused("--subject vm", &["'vm'", "client", "host"]);
        check_refused("--iothreads 0", &["'0'", "none and 1 to 256"]);
        check_refused("--bs 4095", &["4095", "multiple of 512"]);
        check_refused("--bs 4q", &["4q", "such as 4k"]);
        check_refused("--jobs 0", &["0", "1..=256"]);
        check_refused("--iodepth 257", &["257", "1..=256"]);
        check_refused("--runtime=-1", &["--runtime", "between 0 and 86400"]);
        check_refused("--destructive", &["<PATH>"]);
        check_refused("--size 1G disk.img", &["--size", "[PATH]"]);
        check_refused("--iothread 2", &["--iothread", "--iothreads"]);
    }

    #[test]
    fn differences_name_the_options() {
        let old = settings("--jobs 2 --seed 1", 2);
        let new = settings("--jobs 3 --runtime 9", 2);
        let expected =
            ["--jobs is [3], was [2]", "--runtime is 9.0, was 1.5", "--seed is 42, was 1"];
        assert_eq!(new.differences(&old), expected);
        assert!(old.differences(&old).is_empty());
    }
}
