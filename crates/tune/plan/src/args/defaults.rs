//! The settings of a command line: every default filled in.

use anyhow::Result;

use super::{MeasureArgs, QuestionArgs, TuneArgs};
use crate::cell::Cell;
use crate::contender::{Iothreads, Subject};
use crate::lists::unique;
use crate::profile::Profile;
use crate::repeats::Repeats;
use crate::settings::{
    BESIDE_BUFFERS, GuestEngine, GuestSettings, LoadKind, MEMORY, Mode, Settings, Thoroughness,
    buffer_bytes,
};
use crate::units::Seconds;
use crate::variant::Variant;
use crate::weights::Weight;

/// CPUs of a guest unless the user says otherwise, at most.
const VCPUS_MAX: usize = 16;

/// Numbers of iothreads that are compared where nothing is left out.
pub const DOUBLED: [u16; 6] = [0, 1, 2, 4, 8, 16];
/// Those that are searched; 0 is none.
pub const SEARCHED: [u16; 9] = [0, 1, 2, 3, 4, 6, 8, 12, 16];

/// Jobs, and requests in flight of each, of the published sweep.
const PUBLISHED_LOAD: [u16; 3] = [1, 4, 16];

/// All powers of two from 512 bytes to 4 MiB.
const SIZES: std::ops::RangeInclusive<u32> = 9..=22;

impl Settings {
    /// Fills in what depends on the machine. `subjects` are those of the user or what can be measured here. `seed` is used if the user gave none.
    pub fn new(tune: &TuneArgs, subjects: &[Subject], cores: usize, seed: u64) -> Self {
        let (args, mode) = (tune.measure(), tune.mode());
        let subject = unique(subjects.iter().copied());
        let cells = cells(args, jobs(tune, cores)[0]);
        let Lists { op, bs, jobs, iodepth } = Lists::new(tune, cores, &cells);
        let variants = variants(args);
        let guest = GuestSettings::new(tune, cores);
        let load = args.load.unwrap_or_else(|| default_load(&subject, &variants));
        let fio = load == LoadKind::Fio && subject.contains(&Subject::Host)
            || subject.iter().any(|subject| subject.is_vm());
        let (runtime, ramp) = times(fio, mode);
        let repeats = args.repeats.unwrap_or(match mode {
            Mode::Sweep => Repeats::DEFAULT,
            // The fewest that tell memory from noise.
            Mode::Hysteresis => Repeats::Fixed(6),
            Mode::Curve | Mode::Sizes => Repeats::Fixed(3),
        });
        let until = matches!(repeats, Repeats::Until { .. });
        let mut iothreads = match (&args.iothreads[..], mode) {
            ([], Mode::Sweep) if tune.full => SEARCHED.map(Iothreads::new).to_vec(),
            ([], Mode::Sweep) if until => up_to(&SEARCHED, useful(&subject, &jobs, &guest, cores)),
            ([], Mode::Sweep) => up_to(&DOUBLED, useful(&subject, &jobs, &guest, cores)),
            ([], Mode::Hysteresis | Mode::Curve) => {
                vec![args.domain.today.unwrap_or(Iothreads::NONE)]
            }
            // Another daemon knows no `auto`.
            ([], Mode::Sizes) if args.daemon.is_some() => vec![Iothreads::new(1)],
            ([], Mode::Sizes) => vec![args.domain.today.unwrap_or(Iothreads::AUTO)],
            (given, _) => unique(given.iter().copied()),
        };
        if args.iothreads.is_empty() && mode == Mode::Sweep && has_auto(args, &subject, &iothreads)
        {
            iothreads.push(Iothreads::AUTO);
        }
        let today = args.domain.today.filter(|_| mode == Mode::Sweep);
        iothreads.extend(today.filter(|it| !iothreads.contains(it)));
        iothreads.sort_unstable();
        Self {
            mode,
            iothreads,
            today,
            op,
            bs,
            iodepth,
            profile: args.profile,
            runtime: args.runtime.unwrap_or_else(|| Seconds::new(runtime)),
            ramp: args.ramp.unwrap_or_else(|| Seconds::new(ramp)),
            repeats,
            search: match (tune.full, mode) {
                (true, _) => Thoroughness::Full,
                (false, Mode::Sweep) if until && args.iothreads.is_empty() => Thoroughness::Stages,
                (false, _) => Thoroughness::Listed,
            },
            budget: tune.budget,
            want: tune.question.want.unwrap_or_default(),
            p99_max: tune.question.p99_max,
            iops_min: tune.question.iops_min,
            weights: weights(tune),
            tolerance: tune.question.tolerance.unwrap_or_default(),
            predict: unique(tune.question.predict.iter().copied()),
            load,
            engine: engine(args),
            cells,
            verify: args.verify,
            precondition: args.precondition,
            sentinel: args.sentinel,
            destructive: args.destructive,
            seed: args.seed.unwrap_or(seed),
            variants,
            subject,
            jobs,
            guest,
        }
    }

    /// Asks another question of what was measured; bounds are those of the new one if it says what is wanted.
    ///
    /// # Errors
    /// If nothing can be asked of this, or not this.
    pub fn ask(&mut self, args: &QuestionArgs) -> Result<()> {
        if let Some(want) = args.want {
            (self.want, self.p99_max, self.iops_min) = (want, None, None);
        }
        self.p99_max = args.p99_max.or(self.p99_max);
        self.iops_min = args.iops_min.or(self.iops_min);
        self.tolerance = args.tolerance.unwrap_or(self.tolerance);
        if !args.weights.is_empty() {
            self.weights.clone_from(&args.weights);
        }
        if !args.predict.is_empty() {
            self.predict = unique(args.predict.iter().copied());
        }
        self.check_question()
    }
}

/// The memory of a guest, unless the user says otherwise.
fn memory_of_guest(tune: &TuneArgs, cores: usize) -> u64 {
    let args = tune.measure();
    let cells = cells(args, jobs(tune, cores)[0]);
    let disks = args.stack.disks.iter().max().map_or(1, |disks| u64::from(*disks));
    let Lists { bs, jobs, iodepth, .. } = Lists::new(tune, cores, &cells);
    let buffers = buffer_bytes(&cells, (&bs, &jobs, &iodepth)).saturating_mul(disks);
    MEMORY.max(buffers.saturating_add(BESIDE_BUFFERS).next_multiple_of(1 << 20))
}

impl GuestSettings {
    /// What the options leave open, on a host with so many cores.
    pub fn new(tune: &TuneArgs, cores: usize) -> Self {
        let args = tune.measure();
        let guest = &args.guest;
        let memory = guest.memory.map_or_else(|| memory_of_guest(tune, cores), |memory| memory.0);
        let vcpus = guest
            .vcpus
            .unwrap_or_else(|| u16::try_from(cores.clamp(1, VCPUS_MAX)).expect("at most 16"));
        Self {
            guest: guest.guest.clone(),
            vcpus,
            queues: guest.queues.unwrap_or(vcpus),
            memory_mib: u32::try_from(memory >> 20).unwrap_or(u32::MAX),
            accel: guest.accel,
            guest_kernel: guest.guest_kernel.as_ref().map(|path| path.display().to_string()),
            pin_vcpus: guest.pin_vcpus.clone(),
            pin_iothreads: guest.pin_iothreads.clone(),
            numa_node: guest.numa_node,
        }
    }
}

fn jobs(tune: &TuneArgs, cores: usize) -> Vec<u16> {
    match (&tune.measure().jobs[..], tune.mode()) {
        ([], Mode::Hysteresis) => vec![48, 480],
        ([], Mode::Sizes) => vec![1],
        ([], Mode::Sweep) if tune.full => PUBLISHED_LOAD.to_vec(),
        ([], Mode::Sweep | Mode::Curve) => {
            vec![u16::try_from(cores.clamp(2, 4)).expect("at most 4")]
        }
        // Pairs, not a list.
        (given, Mode::Hysteresis) => given.to_vec(),
        (given, Mode::Sweep | Mode::Curve | Mode::Sizes) => unique(given.iter().copied()),
    }
}

fn iodepth(tune: &TuneArgs) -> Vec<u16> {
    match (&tune.measure().iodepth[..], tune.mode()) {
        ([], Mode::Hysteresis) => vec![1],
        ([], Mode::Sweep) if tune.full => PUBLISHED_LOAD.to_vec(),
        ([], Mode::Sweep | Mode::Curve | Mode::Sizes) => vec![16],
        (given, _) => unique(given.iter().copied()),
    }
}

/// What is measured where no guest can be: needs no QEMU.
pub fn without_guests(mode: Mode) -> Vec<Subject> {
    match mode {
        Mode::Sweep | Mode::Hysteresis | Mode::Sizes => vec![Subject::Client, Subject::Host],
        // A client has no fixed rates.
        Mode::Curve => vec![Subject::Host],
    }
}

/// Measured seconds of a run, and those before them.
fn times(fio: bool, mode: Mode) -> (f64, f64) {
    match (fio, mode) {
        (false, _) => (1.0, 0.3),
        // There are many block sizes, and no two of them are told apart by a percent.
        (true, Mode::Sizes) => (2.0, 1.0),
        (true, Mode::Sweep | Mode::Hysteresis | Mode::Curve) => (5.0, 1.0),
    }
}

/// Those that are named together.
fn cells(args: &MeasureArgs, jobs: u16) -> Vec<Cell> {
    let of_job = || args.job.as_ref().map(|job| job.cells.clone()).unwrap_or_default();
    args.profile.map_or_else(of_job, |profile| profile.cells(jobs))
}

/// What is in the cells.
struct Lists {
    op: Vec<String>,
    bs: Vec<u32>,
    jobs: Vec<u16>,
    iodepth: Vec<u16>,
}

impl Lists {
    /// Of cells that are named together, or else those of the options.
    fn new(tune: &TuneArgs, cores: usize, cells: &[Cell]) -> Self {
        if cells.is_empty() {
            let (op, bs) = (operations(tune), blocks(tune));
            return Self { op, bs, jobs: jobs(tune, cores), iodepth: iodepth(tune) };
        }
        Self {
            op: each_of(cells, |it| it.shape().operation().to_string()),
            bs: each_of(cells, |it| it.shape().block().get()),
            jobs: each_of(cells, |it| it.shape().jobs()),
            iodepth: each_of(cells, |it| it.shape().iodepth()),
        }
    }
}

fn each_of<T: PartialEq>(cells: &[Cell], figure: fn(&Cell) -> T) -> Vec<T> {
    unique(cells.iter().map(figure))
}

/// Those of a profile, unless others were given or nothing counts.
fn weights(tune: &TuneArgs) -> Vec<Weight> {
    let given = &tune.question.weights;
    let counts = given.is_empty() && tune.mode() == Mode::Sweep;
    let profile = tune.measure().profile.filter(|_| counts);
    profile.map_or_else(|| given.clone(), Profile::weights)
}

fn engine(args: &MeasureArgs) -> GuestEngine {
    let of_job = || args.job.as_ref().and_then(|job| job.engine);
    args.engine.or_else(of_job).unwrap_or(GuestEngine::IoUring)
}

fn operations(tune: &TuneArgs) -> Vec<String> {
    let names: &[&str] = match (&tune.measure().op[..], tune.mode()) {
        ([], Mode::Sweep) if tune.full => &["read", "randread", "write", "randwrite"],
        ([], Mode::Sweep) => &["randread", "randwrite"],
        ([], Mode::Hysteresis | Mode::Curve | Mode::Sizes) => &["randread"],
        (given, _) => return unique(given.iter().map(ToString::to_string)),
    };
    names.iter().map(ToString::to_string).collect()
}

/// In bytes.
fn blocks(tune: &TuneArgs) -> Vec<u32> {
    match (&tune.measure().bs[..], tune.mode()) {
        ([], Mode::Sweep) if tune.full => vec![2 << 10, 4 << 10, 32 << 10, 1 << 20],
        ([], Mode::Sweep) => vec![4 << 10, 64 << 10],
        ([], Mode::Hysteresis | Mode::Curve) => vec![4 << 10],
        ([], Mode::Sizes) => SIZES.map(|power| 1 << power).collect(),
        (given, _) => unique(given.iter().map(|bytes| bytes.get())),
    }
}

/// The host has the load of what it is compared with; no client drives several disks.
fn default_load(subjects: &[Subject], variants: &[Variant]) -> LoadKind {
    let client = subjects.contains(&Subject::Client)
        && variants.iter().any(|variant| variant.disks_in_all() == 1);
    let vm = subjects.iter().any(|subject| subject.is_vm());
    if client && !vm { LoadKind::Own } else { LoadKind::Fio }
}

/// Whether `auto` is beside these numbers: where ringloom serves, which another daemon need not be, and more than one
/// iothread can be of use.
fn has_auto(args: &MeasureArgs, subjects: &[Subject], numbers: &[Iothreads]) -> bool {
    let is_served = |subject: &Subject| matches!(subject, Subject::Client | Subject::VmRingloom);
    let is_one_of_several = numbers.iter().any(|it| it.count() > 1);
    args.daemon.is_none() && subjects.iter().any(is_served) && is_one_of_several
}

/// How many iothreads can be of use: a client's job has one queue; a guest's disk has its own number of them.
fn useful(subjects: &[Subject], jobs: &[u16], guest: &GuestSettings, cores: usize) -> usize {
    let by_jobs = jobs.iter().map(|&jobs| usize::from(jobs)).max().unwrap_or(1);
    let by_queues = usize::from(guest.queues);
    let vm = subjects.iter().any(|subject| subject.is_booted());
    let most = if vm { by_queues.max(by_jobs) } else { by_jobs };
    cores.min(most)
}

/// Those of `counts` up to `most`.
fn up_to(counts: &[u16], most: usize) -> Vec<Iothreads> {
    let useful = counts.iter().filter(|&&count| usize::from(count) <= most);
    useful.map(|&count| Iothreads::new(count)).collect()
}

/// All combinations, each once.
pub fn variants(args: &MeasureArgs) -> Vec<Variant> {
    let stack = &args.stack;
    let usual = Variant::default();
    let mut variants = vec![usual];
    variants = each(&variants, or(&stack.device, &[usual.device]), |variant, value| {
        variant.device = *value
    });
    variants =
        each(&variants, or(&stack.image, &[usual.image]), |variant, value| variant.image = *value);
    variants = each(&variants, or(&stack.aio, &[usual.aio]), |variant, value| variant.aio = *value);
    variants = each(&variants, &stack.fs, |variant, value| variant.fs = *value);
    variants = each(&variants, &stack.stripe, |variant, value| variant.stripe = *value);
    variants = each(&variants, &stack.delay, |variant, value| variant.delay = *value);
    variants = each(&variants, &stack.vms, |variant, value| variant.vms = *value);
    each(&variants, &stack.disks, |variant, value| variant.disks = *value)
}

/// What was given, or else this.
fn or<'a, T>(given: &'a [T], usual: &'a [T]) -> &'a [T] {
    if given.is_empty() { usual } else { given }
}

fn each<T>(variants: &[Variant], values: &[T], set: impl Fn(&mut Variant, &T)) -> Vec<Variant> {
    unique(variants.iter().flat_map(|variant| {
        values.iter().map(|value| {
            let mut variant = *variant;
            set(&mut variant, value);
            variant
        })
    }))
}
