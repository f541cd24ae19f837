//! Everything that decides what is measured and how, with the defaults filled in.
//!
//! `run` makes it from the command line; it is recorded in the results, and a resumed run must agree with it. The
//! seed is among it.
//!
//! Invariants: fields are named as the options are.

mod kinds;
mod memory;
mod step;

use anyhow::{Result, bail};
use guest::MEMORY_MIB_MIN;
use serde::{Deserialize, Serialize};

pub use self::kinds::{Accel, GuestEngine, LoadKind};
pub use self::memory::{BESIDE_BUFFERS, MEMORY, buffer_bytes};
pub use self::step::Step;
use crate::cell::Cell;
use crate::contender::{Iothreads, Subject};
use crate::profile::Profile;
use crate::question::{Bound, IopsMin, P99Max, Question, Tolerance, Want};
use crate::repeats::Repeats;
use crate::units::{Seconds, Span};
use crate::variant::Variant;
use crate::weights::Weight;

/// What kind of answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// All cells with all contenders.
    Sweep,
    /// Few jobs, many, few again.
    Hysteresis,
    /// The maximum, then fixed shares of it.
    Curve,
    /// All block sizes, as one picture.
    Sizes,
}

/// How numbers of iothreads are looked through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thoroughness {
    /// Those that were named, all.
    #[default]
    Listed,
    /// Far apart first, then where it matters.
    Stages,
    /// All there are (`--full`).
    Full,
}

/// The options with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Settings {
    /// Which question is asked.
    pub mode: Mode,
    /// What is measured.
    pub subject: Vec<Subject>,
    /// The numbers that are compared.
    pub iothreads: Vec<Iothreads>,
    /// How many the disk of `--domain` has.
    #[serde(default)]
    pub today: Option<Iothreads>,
    /// The load profile by name, if one was asked for.
    #[serde(default)]
    pub profile: Option<Profile>,
    /// Those of `--profile` or `--job`; none where all combinations of the next four are measured, which else tell what is in
    /// these.
    #[serde(default)]
    pub cells: Vec<Cell>,
    /// Operations, as fio names them.
    pub op: Vec<String>,
    /// Block sizes in bytes.
    pub bs: Vec<u32>,
    /// Numbers of jobs.
    pub jobs: Vec<u16>,
    /// Requests in flight of each job.
    pub iodepth: Vec<u16>,
    /// How long each run is measured.
    pub runtime: Seconds,
    /// How long it runs before that.
    pub ramp: Seconds,
    /// How often each run is repeated.
    pub repeats: Repeats,
    /// How numbers of iothreads are looked through.
    #[serde(default)]
    pub search: Thoroughness,
    /// Only the time that the user gave.
    #[serde(default)]
    pub budget: Option<Span>,
    /// What the number of iothreads is to be good for, and what it must keep.
    #[serde(default)]
    pub want: Want,
    /// The p99 that must be kept.
    #[serde(default)]
    pub p99_max: Option<P99Max>,
    /// The rate that must be kept.
    #[serde(default)]
    pub iops_min: Option<IopsMin>,
    /// How much each cell counts.
    #[serde(default)]
    pub weights: Vec<Weight>,
    /// What a number of iothreads that takes less CPU may lack.
    #[serde(default)]
    pub tolerance: Tolerance,
    /// What more than is measured would bring.
    #[serde(default)]
    pub predict: Vec<Step>,
    /// Of the subject host.
    pub load: LoadKind,
    /// Of fio in guests.
    pub engine: GuestEngine,
    /// Whether what was written is read back and compared.
    pub verify: bool,
    /// Whether the disk is written before it is measured until its rate has settled.
    #[serde(default)]
    pub precondition: bool,
    /// After how many runs a sentinel follows.
    pub sentinel: u16,
    /// Whether a disk of the user may be written.
    pub destructive: bool,
    /// What random offsets and orders come from.
    pub seed: u64,
    /// All combinations of the options device, image, aio, fs, stripe, delay, vms and disks.
    pub variants: Vec<Variant>,
    /// Of the guests.
    pub guest: GuestSettings,
}

/// The guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GuestSettings {
    /// Where the user's own guest is, if one was named.
    pub guest: Option<String>,
    /// CPUs of each guest.
    pub vcpus: u16,
    /// Queues of each disk of a guest.
    pub queues: u16,
    /// MiB.
    pub memory_mib: u32,
    /// What runs the guests' CPUs.
    pub accel: Accel,
    /// The kernel they boot, if not the usual one.
    pub guest_kernel: Option<String>,
    /// CPUs of the host for those of the guests.
    pub pin_vcpus: Option<String>,
    /// CPUs of the host for iothreads.
    pub pin_iothreads: Option<String>,
    /// The NUMA node of the guests' memory.
    pub numa_node: Option<u32>,
}

impl Settings {
    /// Whether any run needs fio on this host or in a guest that ringloom boots.
    pub fn needs_fio(&self) -> bool {
        let host = self.load == LoadKind::Fio && self.subject.contains(&Subject::Host);
        host || self.boots_guests()
    }

    /// Whether guests are booted.
    pub fn boots_guests(&self) -> bool {
        self.subject.iter().any(|subject| subject.is_booted())
    }

    /// The most disks of a guest.
    pub fn disks_max(&self) -> u16 {
        self.variants.iter().map(|variant| variant.disks).max().unwrap_or(1)
    }

    /// Refuses what cannot be, or not together.
    ///
    /// # Errors
    /// The options that do not fit and what to do.
    pub fn check(&self) -> Result<()> {
        let own = self.load == LoadKind::Own && self.subject.contains(&Subject::Host);
        let client = self.subject.contains(&Subject::Client);
        if self.verify && (own || client) {
            bail!("--verify is done by fio: measure client, or host with --load own, without it");
        }
        if self.mode == Mode::Curve && (own || client) {
            bail!("tune curve needs fio for its fixed rates: --subject host,vm:qemu,vm:ringloom");
        }
        if self.engine == GuestEngine::Psync && self.iodepth.iter().any(|&iodepth| iodepth > 1) {
            bail!("--engine psync: blocking calls keep one request in flight: --iodepth 1");
        }
        if self.mode == Mode::Sizes && !self.cells.is_empty() {
            bail!("tune sizes varies the block size: give it --op, --bs, --jobs and --iodepth");
        }
        self.check_pairs()?;
        self.check_guest()?;
        self.check_repeats()?;
        self.check_question()
    }

    /// Whether the question can be answered by what is measured.
    pub fn check_question(&self) -> Result<()> {
        let asked = [
            (!self.weights.is_empty(), "--weights"),
            (self.want != Want::default(), "--want"),
            (self.p99_max.is_some(), "--p99-max"),
            (self.iops_min.is_some(), "--iops-min"),
        ];
        if let Some((_, option)) = asked.iter().find(|(is_asked, _)| *is_asked)
            && self.mode != Mode::Sweep
        {
            bail!(
                "{option} is for the answer of a sweep: tune probe, tune curve and tune sizes give none"
            );
        }
        self.question().check()
    }

    /// A probe has pairs of jobs. A number in two pairs would leave it open of which of them a run is.
    fn check_pairs(&self) -> Result<()> {
        if self.mode != Mode::Hysteresis {
            return Ok(());
        }
        if !self.cells.is_empty() {
            bail!("tune probe varies the jobs: give it --op, --bs, --jobs and --iodepth");
        }
        let is_pair = |pair: &[u16]| matches!(pair, [low, high] if low < high);
        if !self.jobs.chunks(2).all(is_pair) {
            bail!(
                "tune probe needs pairs of numbers of jobs, the low one first; each comes \
                 down again by itself: --jobs 48,480 runs 48, 480 and 48"
            );
        }
        let pairs: Vec<&[u16]> = self.jobs.chunks(2).collect();
        for (index, pair) in pairs.iter().enumerate() {
            let shared = |other: &&[u16]| pair.iter().find(|jobs| other.contains(jobs)).copied();
            let twice = pairs[..index].iter().find_map(|other| Some((*other, shared(other)?)));
            let Some((other, jobs)) = twice else { continue };
            let [other, pair] = [other, pair].map(|it| format!("{},{}", it[0], it[1]));
            if other == pair {
                bail!("tune probe: the pair {pair} is there twice: --repeats repeats it");
            }
            bail!(
                "tune probe: {jobs} jobs are in two pairs, {other} and {pair}, whose runs \
                 could not be told apart: leave one out here, and measure it with --jobs {pair} in \
                 a command of its own"
            );
        }
        Ok(())
    }

    fn check_guest(&self) -> Result<()> {
        let GuestSettings { pin_vcpus, pin_iothreads, numa_node, .. } = &self.guest;
        let unused = if self.boots_guests() {
            None
        } else if pin_iothreads.is_some() {
            Some("--pin-iothreads pins those")
        } else if pin_vcpus.is_some() {
            Some("--pin-vcpus pins those")
        } else {
            numa_node.map(|_| "--numa-node is for the memory")
        };
        if let Some(unused) = unused {
            bail!("{unused} of guests: add --subject vm:qemu or vm:ringloom");
        }
        let memory_mib = self.guest.memory_mib;
        if self.boots_guests() && memory_mib < MEMORY_MIB_MIN {
            bail!("--memory: a guest with {memory_mib}M does not boot: {MEMORY_MIB_MIN}M or more");
        }
        self.check_buffers()?;
        let given = self.subject.contains(&Subject::VmGiven);
        match (&self.guest.guest, given) {
            (None, true) => {
                bail!("--subject vm:given needs --guest ssh://[USER@]HOST[:PORT]/DEVICE")
            }
            (Some(_), false) => {
                bail!("--guest is measured as the subject vm:given: add it to --subject")
            }
            (None, false) | (Some(_), true) => Ok(()),
        }
    }

    fn check_repeats(&self) -> Result<()> {
        match (self.mode, self.repeats) {
            (Mode::Hysteresis | Mode::Curve | Mode::Sizes, Repeats::Until { .. }) => {
                bail!(
                    "--repeats {}: tune probe, tune curve and tune sizes have a plain number of them",
                    self.repeats
                )
            }
            (_, Repeats::Fixed(_)) if self.budget.is_some() => bail!(
                "--budget is for repeats that end when enough is known, such as --repeats 3-12"
            ),
            _ => Ok(()),
        }
    }

    /// What the answer shall be good for.
    pub fn question(&self) -> Question {
        let p99 = self.p99_max.map(Bound::P99Max);
        Question {
            want: self.want,
            bounds: p99.into_iter().chain(self.iops_min.map(Bound::IopsMin)).collect(),
            weights: self.weights.clone(),
            tolerance: self.tolerance,
            today: self.today,
        }
    }

    /// Whether the course is decided while it is measured.
    pub fn adapts(&self) -> bool {
        self.mode == Mode::Sweep && matches!(self.repeats, Repeats::Until { .. })
    }

    /// The names of the options in which `self` and `other` differ; the time does not bend any figure.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        let other = Self { budget: self.budget, ..other.clone() };
        compare("", &json(self), &json(&other), &mut differences);
        differences
    }
}

fn json(settings: &Settings) -> serde_json::Value {
    serde_json::to_value(settings).expect("settings are plain data")
}

/// Goes down into objects, so that the option itself is named.
fn compare(name: &str, new: &serde_json::Value, old: &serde_json::Value, found: &mut Vec<String>) {
    match (new, old) {
        (serde_json::Value::Object(new), serde_json::Value::Object(old)) => {
            for (name, value) in new {
                compare(name, value, old.get(name).unwrap_or(&serde_json::Value::Null), found);
            }
        }
        (new, old) if new != old => found.push(format!("--{name} is {new}, was {old}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
