//! The options of `ringloom tune` as the command line gives them.
//!
//! `ringloom` flattens `TuneArgs`; `settings` turns it into `Settings`, in which every default is filled in.

mod cluster;
pub mod defaults;
mod domain;
mod guest;
mod question;
mod report;
mod stack;

use std::path::PathBuf;

use clap::{Args, FromArgMatches as _, Subcommand};
use load::{BlockBytes, Operation};

pub use self::cluster::ClusterArgs;
pub use self::domain::DomainArgs;
pub use self::guest::{GuestArgs, QUEUES_MAX, VCPUS_MAX};
pub use self::question::QuestionArgs;
pub use self::report::ReportArgs;
pub use self::stack::StackArgs;
use crate::contender::{Iothreads, Subject};
use crate::job::JobFile;
use crate::profile::Profile;
use crate::repeats::Repeats;
use crate::settings::{GuestEngine, LoadKind, Mode};
use crate::units::{BadValue, Bytes, Seconds, Span};

/// Another question than how many iothreads to use.
#[derive(Clone, Debug, Subcommand)]
pub enum OtherQuestion {
    /// Whether a disk that was overloaded stays slow: few jobs, many, few again
    Probe(Box<MeasureArgs>),
    /// Latency at fixed rates of 50, 70 and 90 % of the maximum
    Curve(Box<MeasureArgs>),
    /// Throughput by block size, 512 to 4M: in all, of each guest and of each disk
    Sizes(Box<MeasureArgs>),
    /// Pods of a Kubernetes cluster, on claims of its storage classes
    Cluster(Box<ClusterArgs>),
}

/// Options of `ringloom tune`.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct TuneArgs {
    /// Instead of it the one of the other question is used, if one is asked.
    #[command(flatten)]
    measure: MeasureArgs,

    /// Time for everything, such as 90s, 10m or 2h; an interval that is not narrow by then stays wide
    /// [default: what six repeats take]
    #[arg(long, value_name = "TIME")]
    pub budget: Option<Span>,

    /// Measure the published matrix, all of it: 2k to 1M, 1 to 16 jobs, iodepth 1 to 16, four operations,
    /// none to 16 iothreads, without leaving numbers out. Takes hours
    #[arg(long, conflicts_with_all = ["profile", "job"])]
    pub full: bool,

    /// What is asked of the figures.
    #[command(flatten)]
    pub question: QuestionArgs,

    #[command(subcommand)]
    other: Option<OtherQuestion>,
}

impl TuneArgs {
    /// What these words are as options of a command line, without `tune` itself.
    ///
    /// # Errors
    /// What the command line says of them.
    pub fn of_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let command = Self::augment_args(clap::Command::new("tune"));
        let words = std::iter::once("tune").chain(words);
        let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
        Self::from_arg_matches(&matches).map_err(|error| error.to_string())
    }

    /// What is measured and how.
    pub fn measure(&self) -> &MeasureArgs {
        match &self.other {
            Some(
                OtherQuestion::Probe(measure)
                | OtherQuestion::Curve(measure)
                | OtherQuestion::Sizes(measure),
            ) => measure,
            Some(OtherQuestion::Cluster(_)) | None => &self.measure,
        }
    }

    /// The same, to be filled in.
    pub fn measure_mut(&mut self) -> &mut MeasureArgs {
        match &mut self.other {
            Some(
                OtherQuestion::Probe(measure)
                | OtherQuestion::Curve(measure)
                | OtherQuestion::Sizes(measure),
            ) => measure,
            Some(OtherQuestion::Cluster(_)) | None => &mut self.measure,
        }
    }

    /// What is asked.
    pub fn mode(&self) -> Mode {
        match self.other {
            Some(OtherQuestion::Probe(_)) => Mode::Hysteresis,
            Some(OtherQuestion::Curve(_)) => Mode::Curve,
            Some(OtherQuestion::Sizes(_)) => Mode::Sizes,
            Some(OtherQuestion::Cluster(_)) | None => Mode::Sweep,
        }
    }

    /// The options of `tune cluster`, if that is asked for; then the others have no meaning.
    pub fn cluster(&self) -> Option<&ClusterArgs> {
        match &self.other {
            Some(OtherQuestion::Cluster(cluster)) => Some(cluster),
            Some(OtherQuestion::Probe(_) | OtherQuestion::Curve(_) | OtherQuestion::Sizes(_))
            | None => None,
        }
    }
}

/// What is measured and how, whatever is asked.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "a switch of the command line is a bool to clap")]
pub struct MeasureArgs {
    /// Disk to measure: a file or block device. It is only read unless --destructive is given.
    /// Without it, a scratch file in the current directory is made, measured and removed
    #[arg(value_parser = disk)]
    pub path: Option<PathBuf>,

    /// What to measure [default: host,vm:qemu where a guest comes up under KVM within 10 s, else client,host;
    /// vm:ringloom with --daemon and --iothreads auto; vm:given with --guest]
    #[arg(long, value_delimiter = ',', value_enum)]
    pub subject: Vec<Subject>,

    /// Numbers of iothreads to compare; none is the disk without an iothread, auto as many as ringloom
    /// finds to pay
    /// [default: none,1,2,3,4,6,8,12,16 up to cores, jobs and queues, searched in stages;
    /// none,1,2,4,8,16 with a plain --repeats N; auto beside them where ringloom serves;
    /// none with probe and curve, auto with sizes]
    #[arg(long, value_delimiter = ',', value_name = "none,1,2,…,auto")]
    pub iothreads: Vec<Iothreads>,

    /// Operations: randread, randwrite, read, write, or a random mix such as 80/20 (80 % reads)
    /// [default: randread,randwrite; probe, curve and sizes: randread]
    #[arg(long, value_delimiter = ',')]
    pub op: Vec<Operation>,

    /// Block sizes, with k or M [default: 4k,64k; probe and curve: 4k; sizes: 512,1k,2k,…,4M]
    #[arg(long, value_delimiter = ',', value_parser = block_size)]
    pub bs: Vec<BlockBytes>,

    /// Jobs: threads of the load [default: the cores, between 2 and 4; probe: 48,480; sizes: 1]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Vec<u16>,

    /// Requests each job keeps in flight [default: 16; probe: 1]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    pub iodepth: Vec<u16>,

    /// A named load instead of op, bs, jobs and iodepth: cells and their weights
    #[arg(long, value_enum, conflicts_with_all = ["job", "op", "bs", "jobs", "iodepth"])]
    pub profile: Option<Profile>,

    /// A fio job file instead of op, bs, jobs and iodepth: each job of it is a cell
    #[arg(long, value_name = "FILE", value_parser = JobFile::read,
          conflicts_with_all = ["op", "bs", "jobs", "iodepth"])]
    pub job: Option<JobFile>,

    /// Measured seconds of one run [default: 1; 5 with fio, but 2 with sizes]
    #[arg(long, value_name = "SECONDS", value_parser = runtime)]
    pub runtime: Option<Seconds>,

    /// Seconds of load before the measured ones [default: 0.3; 1 with fio]
    #[arg(long, value_name = "SECONDS")]
    pub ramp: Option<Seconds>,

    /// How often what may be the answer is measured: at least and at most, until it is known to 3 %;
    /// a plain number measures everything so often, without a search
    /// [default: 3-12; probe: 6; curve and sizes: 3]
    #[arg(long, value_name = "LEAST-MOST")]
    pub repeats: Option<Repeats>,

    /// Load of the subject host [default: fio, but the client's own where only client and host are
    /// measured, so that both have the same]
    #[arg(long, value_enum)]
    pub load: Option<LoadKind>,

    /// How fio hands requests to the kernel in guests; on the host that is --aio [default: that of --job,
    /// else io_uring]
    #[arg(long, value_enum)]
    pub engine: Option<GuestEngine>,

    /// Write, read back and compare some of the disk before each run that writes
    #[arg(long)]
    pub verify: bool,

    /// Before anything is measured write the disk twice, and run each cell that writes until five runs in a row are
    /// steady, 25 at most (SNIA PTS): an SSD is fast until it has been written
    #[arg(long)]
    pub precondition: bool,

    /// Print a line per second of each run, as vdbench does
    #[arg(long)]
    pub interval: bool,

    /// Repeat one baseline run after every so many runs, to show drift; 0 is never
    #[arg(long, default_value_t = 20, value_name = "RUNS")]
    pub sentinel: u16,

    /// An existing domain of libvirt as the baseline.
    #[command(flatten)]
    pub domain: DomainArgs,

    /// What lies below the disk.
    #[command(flatten)]
    pub stack: StackArgs,

    /// The guests.
    #[command(flatten)]
    pub guest: GuestArgs,

    /// Size of a scratch file
    #[arg(long, default_value = "1G", conflicts_with = "path")]
    pub size: Bytes,

    /// Allow write cells to overwrite PATH and the disk of --guest; all their data is lost
    #[arg(long)]
    pub destructive: bool,

    /// Directory of the results [default: the first free of ringloom-report, ringloom-report-2, …]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Print the report as a line of JSON, for programs
    #[arg(long)]
    pub json: bool,

    /// Go on with an interrupted run: same options, same directory (by default the newest)
    #[arg(long)]
    pub resume: bool,

    /// Say what would be measured and how long that takes, and measure nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Seed of the offsets and of the order of the runs [default: random, printed]
    #[arg(long)]
    pub seed: Option<u64>,

    /// Daemon to start instead of this program: one that takes the options of ringloom serve, or
    /// qemu-storage-daemon
    #[arg(long, value_name = "PROGRAM")]
    pub daemon: Option<PathBuf>,
}

impl MeasureArgs {
    /// With what was asked in the place of what a domain says of guests: nothing is said of them where none is booted.
    pub fn without_guests(&mut self, asked: &Self) {
        self.stack.device.clone_from(&asked.stack.device);
        self.guest.pin_vcpus.clone_from(&asked.guest.pin_vcpus);
        self.guest.pin_iothreads.clone_from(&asked.guest.pin_iothreads);
        self.guest.numa_node = asked.guest.numa_node;
    }

    /// Refuses what the settings cannot tell any more.
    ///
    /// # Errors
    /// If an option says something else than the job file.
    pub fn check(&self) -> anyhow::Result<()> {
        let of_job = self.job.as_ref().and_then(|job| job.engine);
        match (self.engine, of_job) {
            (Some(own), Some(other)) if own != other => anyhow::bail!(
                "--engine {}: the file of --job says ioengine={}",
                own.name(),
                other.name()
            ),
            _ => Ok(()),
        }
    }
}

/// A word that is another question is not taken for a disk.
fn disk(text: &str) -> Result<PathBuf, String> {
    let mut questions = OtherQuestion::augment_subcommands(clap::Command::new("tune"));
    if questions.find_subcommand_mut(text).is_some() {
        return Err(format!("{text} comes before its options; a disk of that name is ./{text}"));
    }
    Ok(text.into())
}

fn runtime(text: &str) -> Result<Seconds, String> {
    let seconds: Seconds = text.parse().map_err(|error: BadValue| error.to_string())?;
    if seconds.duration().is_zero() {
        return Err(format!("'{text}' measures nothing: write seconds above 0"));
    }
    Ok(seconds)
}

fn block_size(text: &str) -> Result<BlockBytes, String> {
    let bytes: Bytes = text.parse().map_err(|error: BadValue| error.to_string())?;
    BlockBytes::try_from(bytes.0).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parse;

    #[track_caller]
    fn check_refused(line: &str, expected: &[&str]) {
        let message = parse(line).unwrap_err();
        for part in expected {
            assert!(message.contains(part), "'{part}' is missing in: {message}");
        }
    }

    #[test]
    fn wrong_values_are_refused_with_the_valid_ones() {
        check_refused("--op randrw", &["'randrw'", "--op", "randread, randwrite, read, write"]);
        check_refused("--subject vm", &["'vm'", "client", "host", "vm:qemu", "vm:ringloom"]);
        check_refused("--iothreads 0", &["'0'", "none, 1 to 256 and auto"]);
        check_refused("--bs 4095", &["4095", "multiple of 512"]);
        check_refused("--bs 4q", &["4q", "such as 4k"]);
        check_refused("--jobs 0", &["0", "1..=1024"]);
        check_refused("--iodepth 257", &["257", "1..=256"]);
        check_refused("--runtime=-1", &["--runtime", "between 0 and 86400"]);
        check_refused("--runtime 0", &["--runtime", "'0'", "seconds above 0"]);
        check_refused("--runtime 1e-12", &["--runtime", "seconds above 0"]);
        check_refused("--ssh-config c", &["--guest"]);
        check_refused("--size 1G disk.img", &["--size", "[PATH]"]);
        check_refused("--iothread 2", &["--iothread", "--iothreads"]);
        check_refused("--op read probe", &["comes before its options", "./probe"]);
        check_refused("probe curve", &["curve"]);
        check_refused("curve --budget 1m", &["--budget"]);
        check_refused("probe --want cpu", &["--want"]);
        check_refused("sizes --want cpu", &["--want"]);
        check_refused("sizes --weights read=1", &["--weights"]);
        check_refused("sizes --bs 513", &["513", "multiple of 512"]);
        check_refused("sizes --vms 17", &["17", "1..=16"]);
        check_refused("--device scsi", &["'scsi'", "virtio-scsi"]);
        check_refused("--disk vda", &["--domain"]);
        check_refused("--vms 0", &["0", "1..=16"]);
    }

    #[test]
    fn the_disk_of_another_question_is_named_after_it() {
        let args = parse("probe disk.img --op read").unwrap();
        assert_eq!(
            (args.mode(), &args.measure().path),
            (Mode::Hysteresis, &Some("disk.img".into()))
        );
        let args = parse("./probe").unwrap();
        assert_eq!((args.mode(), &args.measure().path), (Mode::Sweep, &Some("./probe".into())));
    }

    #[test]
    fn a_run_may_have_no_ramp_and_be_short() {
        let args = parse("--runtime 0.05 --ramp 0").unwrap();
        let args = args.measure();
        assert_eq!((args.runtime, args.ramp), (Some(Seconds::new(0.05)), Some(Seconds::new(0.0))));
    }
}
