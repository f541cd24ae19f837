//! Everything that decides what is measured and how, with the defaults filled in.
//!
//! `run` makes it from the command line; it is recorded in the results, and a resumed run must agree with it. The
//! seed is among it.
//!
//! Invariants: fields are named as the options are.

use anyhow::{Result, bail};
use load::BlockBytes;
use serde::{Deserialize, Serialize};

use crate::args::{Accel, GuestEngine, LoadKind, Probe, TuneArgs};
use crate::contender::{Iothreads, Subject};
use crate::units::Seconds;
use crate::variant::Variant;

/// CPUs of a guest unless the user says otherwise, at most.
const VCPUS_MAX: usize = 16;

/// What kind of answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// All cells with all contenders.
    Sweep,
    /// Few jobs, many, few again.
    Hysteresis,
    /// The maximum, then fixed shares of it.
    Curve,
}

/// The options with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) subject: Vec<Subject>,
    pub(crate) iothreads: Vec<Iothreads>,
    pub(crate) op: Vec<String>,
    pub(crate) bs: Vec<u32>,
    pub(crate) jobs: Vec<u16>,
    pub(crate) iodepth: Vec<u16>,
    pub(crate) runtime: Seconds,
    pub(crate) ramp: Seconds,
    pub(crate) repeats: u16,
    /// Of the subject host.
    pub(crate) load: LoadKind,
    /// Of fio in guests.
    pub(crate) engine: GuestEngine,
    pub(crate) verify: bool,
    pub(crate) sentinel: u16,
    pub(crate) destructive: bool,
    pub(crate) seed: u64,
    /// All combinations of the options device, image, aio, fs, stripe, delay, vms and disks.
    pub(crate) variants: Vec<Variant>,
    pub(crate) guest: GuestSettings,
}

/// The guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct GuestSettings {
    /// Where the user's own guest is, if one was named.
    pub(crate) guest: Option<String>,
    pub(crate) vcpus: u16,
    pub(crate) queues: u16,
    /// MiB.
    pub(crate) memory_mib: u32,
    pub(crate) accel: Accel,
    pub(crate) guest_kernel: Option<String>,
    pub(crate) pin_vcpus: Option<String>,
    pub(crate) pin_iothreads: Option<String>,
    pub(crate) numa_node: Option<u32>,
}

impl Settings {
    /// Fills in what depends on the machine. `seed` is used if the user gave none.
    pub(crate) fn new(args: &TuneArgs, cores: usize, seed: u64) -> Self {
        let mode = mode(args);
        let subject = unique(&args.subject);
        let jobs = jobs(args, mode, cores);
        let guest = GuestSettings::new(args, cores);
        let load = args.load.unwrap_or_else(|| default_load(&subject));
        let fio = load == LoadKind::Fio && subject.contains(&Subject::Host)
            || subject.iter().any(|subject| subject.is_vm());
        let (runtime, ramp) = if fio { (5.0, 1.0) } else { (1.5, 0.5) };
        let mut iothreads = match (&args.iothreads[..], mode) {
            ([], Mode::Sweep) => default_iothreads(useful(&subject, &jobs, &guest, cores)),
            ([], Mode::Hysteresis | Mode::Curve) => vec![Iothreads::NONE],
            (given, _) => unique(given),
        };
        iothreads.sort_unstable();
        Self {
            mode,
            iothreads,
            op: operations(args, mode),
            bs: blocks(args, mode),
            iodepth: iodepth(args, mode),
            runtime: args.runtime.unwrap_or_else(|| Seconds::new(runtime)),
            ramp: args.ramp.unwrap_or_else(|| Seconds::new(ramp)),
            repeats: args.repeats,
            load,
            engine: args.engine,
            verify: args.verify,
            sentinel: args.sentinel,
            destructive: args.destructive,
            seed: args.seed.unwrap_or(seed),
            variants: variants(args),
            subject,
            jobs,
            guest,
        }
    }

    /// Whether any run needs fio on this host or in a guest that ringloom boots.
    pub(crate) fn needs_fio(&self) -> bool {
        let host = self.load == LoadKind::Fio && self.subject.contains(&Subject::Host);
        host || self.boots_guests()
    }

    /// Whether guests are booted.
    pub(crate) fn boots_guests(&self) -> bool {
        self.subject.iter().any(|subject| subject.is_booted())
    }

    /// The most disks of a guest.
    pub(crate) fn disks_max(&self) -> u16 {
        self.variants.iter().map(|variant| variant.disks).max().unwrap_or(1)
    }

    /// Refuses what cannot be together.
    ///
    /// # Errors
    /// The options that do not fit and what to do.
    pub(crate) fn check(&self) -> Result<()> {
        let own = self.load == LoadKind::Own && self.subject.contains(&Subject::Host);
        let client = self.subject.contains(&Subject::Client);
        if self.verify && (own || client) {
            bail!("--verify is done by fio: measure client, or host with --load own, without it");
        }
        if self.mode == Mode::Curve && (own || client) {
            bail!("--curve needs fio for its fixed rates: --subject host,vm:qemu,vm:ringloom");
        }
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

    /// The names of the options in which `self` and `other` differ.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        compare("", &json(self), &json(other), &mut differences);
        differences
    }
}

impl GuestSettings {
    fn new(args: &TuneArgs, cores: usize) -> Self {
        let guest = &args.guest;
        let vcpus = guest
            .vcpus
            .unwrap_or_else(|| u16::try_from(cores.clamp(1, VCPUS_MAX)).expect("at most 16"));
        Self {
            guest: guest.guest.clone(),
            vcpus,
            queues: guest.queues.unwrap_or(vcpus),
            memory_mib: u32::try_from(guest.memory.0 >> 20).unwrap_or(u32::MAX),
            accel: guest.accel,
            guest_kernel: guest.guest_kernel.as_ref().map(|path| path.display().to_string()),
            pin_vcpus: guest.pin_vcpus.clone(),
            pin_iothreads: guest.pin_iothreads.clone(),
            numa_node: guest.numa_node,
        }
    }
}

fn mode(args: &TuneArgs) -> Mode {
    match (args.probe, args.curve) {
        (Some(Probe::Hysteresis), _) => Mode::Hysteresis,
        (None, true) => Mode::Curve,
        (None, false) => Mode::Sweep,
    }
}

fn jobs(args: &TuneArgs, mode: Mode, cores: usize) -> Vec<u16> {
    match (&args.jobs[..], mode) {
        ([], Mode::Hysteresis) => vec![48, 480],
        ([], Mode::Sweep | Mode::Curve) => {
            vec![u16::try_from(cores.clamp(2, 4)).expect("at most 4")]
        }
        (given, _) => unique(given),
    }
}

fn iodepth(args: &TuneArgs, mode: Mode) -> Vec<u16> {
    match (&args.iodepth[..], mode) {
        ([], Mode::Hysteresis) => vec![1],
        ([], Mode::Sweep | Mode::Curve) => vec![16],
        (given, _) => unique(given),
    }
}

fn operations(args: &TuneArgs, mode: Mode) -> Vec<String> {
    let names: &[&str] = match (&args.op[..], mode) {
        ([], Mode::Sweep) => &["randread", "randwrite"],
        ([], Mode::Hysteresis | Mode::Curve) => &["randread"],
        (given, _) => return unique(given).iter().map(ToString::to_string).collect(),
    };
    names.iter().map(ToString::to_string).collect()
}

/// In bytes.
fn blocks(args: &TuneArgs, mode: Mode) -> Vec<u32> {
    match (&args.bs[..], mode) {
        ([], Mode::Sweep) => vec![4 << 10, 64 << 10],
        ([], Mode::Hysteresis | Mode::Curve) => vec![4 << 10],
        (given, _) => unique(given).into_iter().map(BlockBytes::get).collect(),
    }
}

/// The host has the load of what it is compared with.
fn default_load(subjects: &[Subject]) -> LoadKind {
    let client = subjects.contains(&Subject::Client);
    let vm = subjects.iter().any(|subject| subject.is_vm());
    if client && !vm { LoadKind::Own } else { LoadKind::Fio }
}

/// How many iothreads can be of use: a client's job has one queue; a guest's disk has its own number of them.
fn useful(subjects: &[Subject], jobs: &[u16], guest: &GuestSettings, cores: usize) -> usize {
    let by_jobs = jobs.iter().map(|&jobs| usize::from(jobs)).max().unwrap_or(1);
    let by_queues = usize::from(guest.queues);
    let vm = subjects.iter().any(|subject| subject.is_booted());
    let most = if vm { by_queues.max(by_jobs) } else { by_jobs };
    cores.min(most)
}

/// none, 1, 2, 4, 8, 16 up to `most`.
fn default_iothreads(most: usize) -> Vec<Iothreads> {
    let counts = (0..=4_u32).map(|power| 2_u16.pow(power));
    let useful = counts.filter(|&count| usize::from(count) <= most).map(Iothreads::new);
    std::iter::once(Iothreads::NONE).chain(useful).collect()
}

/// All combinations, each once.
fn variants(args: &TuneArgs) -> Vec<Variant> {
    let stack = &args.stack;
    let mut variants = vec![Variant::default()];
    variants = each(&variants, &stack.device, |variant, value| variant.device = *value);
    variants = each(&variants, &stack.image, |variant, value| variant.image = *value);
    variants = each(&variants, &stack.aio, |variant, value| variant.aio = *value);
    variants = each(&variants, &stack.fs, |variant, value| variant.fs = *value);
    variants = each(&variants, &stack.stripe, |variant, value| variant.stripe = *value);
    variants = each(&variants, &stack.delay, |variant, value| variant.delay = *value);
    variants = each(&variants, &stack.vms, |variant, value| variant.vms = *value);
    each(&variants, &stack.disks, |variant, value| variant.disks = *value)
}

fn each<T>(variants: &[Variant], values: &[T], set: impl Fn(&mut Variant, &T)) -> Vec<Variant> {
    let mut all = Vec::new();
    for variant in variants {
        for value in values {
            let mut variant = *variant;
            set(&mut variant, value);
            if !all.contains(&variant) {
                all.push(variant);
            }
        }
    }
    all
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
    use crate::args::tests::parse;

    pub(crate) fn settings(line: &str, cores: usize) -> Settings {
        Settings::new(&parse(line).unwrap(), cores, 42)
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
    fn guests_have_a_queue_per_cpu_and_iothreads_up_to_the_queues() {
        let settings = settings("--subject host,vm:qemu --jobs 1", 64);
        assert_eq!((settings.guest.vcpus, settings.guest.queues), (16, 16));
        let counts: Vec<_> = settings.iothreads.iter().map(|n| n.count()).collect();
        assert_eq!(counts, [0, 1, 2, 4, 8, 16]);
    }

    #[test]
    fn the_host_has_the_load_of_what_it_is_compared_with() {
        for (line, load, runtime) in [
            ("", LoadKind::Own, 1.5),
            ("--subject host", LoadKind::Fio, 5.0),
            ("--subject host,vm:qemu", LoadKind::Fio, 5.0),
            ("--subject host,client,vm:ringloom", LoadKind::Fio, 5.0),
            ("--subject host --load own --runtime 2", LoadKind::Own, 2.0),
        ] {
            let settings = settings(line, 2);
            assert_eq!((settings.load, settings.runtime), (load, Seconds::new(runtime)), "{line}");
        }
    }

    #[test]
    fn all_combinations_are_variants() {
        let settings = settings("--device virtio-blk,nvme,nvme --vms 1,2 --image raw", 2);
        let names: Vec<_> = settings
            .variants
            .iter()
            .map(|variant| format!("{} {}", variant.device, variant.vms))
            .collect();
        assert_eq!(names, ["virtio-blk 1", "virtio-blk 2", "nvme 1", "nvme 2"]);
    }

    #[test]
    fn a_probe_has_its_own_defaults() {
        let settings = settings("--probe hysteresis --subject host", 2);
        assert_eq!((settings.jobs, settings.iodepth), (vec![48, 480], vec![1]));
        assert_eq!(settings.mode, Mode::Hysteresis);
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
    fn differences_name_the_options() {
        let old = settings("--jobs 2 --seed 1", 2);
        let new = settings("--jobs 3 --runtime 9 --vcpus 7 --queues 2", 2);
        let expected = [
            "--jobs is [3], was [2]",
            "--runtime is 9.0, was 1.5",
            "--seed is 42, was 1",
            "--vcpus is 7, was 2",
        ];
        let mut differences = new.differences(&old);
        differences.sort_unstable();
        assert_eq!(differences, expected);
        assert!(old.differences(&old).is_empty());
    }
}
