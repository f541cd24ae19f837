//! Everything that decides what is measured and how, with the defaults filled in.
//!
//! `run` makes it from the command line; it is recorded in the results, and a resumed run must agree with it. The
//! seed is among it.
//!
//! Invariants: fields are named as the options are.

mod memory;

use anyhow::{Result, bail};
use guest::MEMORY_MIB_MIN;
use serde::{Deserialize, Serialize};

use crate::args::{Accel, GuestEngine, LoadKind, MeasureArgs, QuestionArgs, TuneArgs};
use crate::cell::Cell;
use crate::contender::{Iothreads, Subject};
use crate::lists::unique;
use crate::prediction::Step;
use crate::profile::Profile;
use crate::question::{Bound, IopsMin, P99Max, Question, Tolerance, Want};
use crate::repeats::Repeats;
use crate::units::{Seconds, Span};
use crate::variant::Variant;
use crate::weights::Weight;

/// CPUs of a guest unless the user says otherwise, at most.
const VCPUS_MAX: usize = 16;

/// Numbers of iothreads that are compared where nothing is left out.
const DOUBLED: [u16; 6] = [0, 1, 2, 4, 8, 16];
/// Those that are searched; 0 is none.
const SEARCHED: [u16; 9] = [0, 1, 2, 3, 4, 6, 8, 12, 16];

/// Jobs, and requests in flight of each, of the published sweep.
const PUBLISHED_LOAD: [u16; 3] = [1, 4, 16];

/// All powers of two from 512 bytes to 4 MiB.
const SIZES: std::ops::RangeInclusive<u32> = 9..=22;

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
    /// All block sizes, as one picture.
    Sizes,
}

/// How numbers of iothreads are looked through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Thoroughness {
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
pub(crate) struct Settings {
    pub(crate) mode: Mode,
    pub(crate) subject: Vec<Subject>,
    pub(crate) iothreads: Vec<Iothreads>,
    /// How many the disk of `--domain` has.
    #[serde(default)]
    pub(crate) today: Option<Iothreads>,
    #[serde(default)]
    pub(crate) profile: Option<Profile>,
    /// Those of `--profile` or `--job`; none where all combinations of the next four are measured, which else tell what is in
    /// these.
    #[serde(default)]
    pub(crate) cells: Vec<Cell>,
    pub(crate) op: Vec<String>,
    pub(crate) bs: Vec<u32>,
    pub(crate) jobs: Vec<u16>,
    pub(crate) iodepth: Vec<u16>,
    pub(crate) runtime: Seconds,
    pub(crate) ramp: Seconds,
    pub(crate) repeats: Repeats,
    /// How numbers of iothreads are looked through.
    #[serde(default)]
    pub(crate) search: Thoroughness,
    /// Only the time that the user gave.
    #[serde(default)]
    pub(crate) budget: Option<Span>,
    /// What the number of iothreads is to be good for, and what it must keep.
    #[serde(default)]
    pub(crate) want: Want,
    #[serde(default)]
    pub(crate) p99_max: Option<P99Max>,
    #[serde(default)]
    pub(crate) iops_min: Option<IopsMin>,
    #[serde(default)]
    pub(crate) weights: Vec<Weight>,
    /// What a number of iothreads that takes less CPU may lack.
    #[serde(default)]
    pub(crate) tolerance: Tolerance,
    /// What more than is measured would bring.
    #[serde(default)]
    pub(crate) predict: Vec<Step>,
    /// Of the subject host.
    pub(crate) load: LoadKind,
    /// Of fio in guests.
    pub(crate) engine: GuestEngine,
    pub(crate) verify: bool,
    /// Whether the disk is written before it is measured until its rate has settled.
    #[serde(default)]
    pub(crate) precondition: bool,
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
    /// Fills in what depends on the machine. `subjects` are those of the user or what can be measured here. `seed` is used if the user gave none.
    pub(crate) fn new(tune: &TuneArgs, subjects: &[Subject], cores: usize, seed: u64) -> Self {
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

    /// Refuses what cannot be, or not together.
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

    fn check_question(&self) -> Result<()> {
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
    pub(crate) fn question(&self) -> Question {
        let p99 = self.p99_max.map(Bound::P99Max);
        Question {
            want: self.want,
            bounds: p99.into_iter().chain(self.iops_min.map(Bound::IopsMin)).collect(),
            weights: self.weights.clone(),
            tolerance: self.tolerance,
            today: self.today,
        }
    }

    /// Asks another question of what was measured; bounds are those of the new one if it says what is wanted.
    ///
    /// # Errors
    /// If nothing can be asked of this, or not this.
    pub(crate) fn ask(&mut self, args: &QuestionArgs) -> Result<()> {
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

    /// Whether the course is decided while it is measured.
    pub(crate) fn adapts(&self) -> bool {
        self.mode == Mode::Sweep && matches!(self.repeats, Repeats::Until { .. })
    }

    /// The names of the options in which `self` and `other` differ; the time does not bend any figure.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        let other = Self { budget: self.budget, ..other.clone() };
        compare("", &json(self), &json(&other), &mut differences);
        differences
    }
}

impl GuestSettings {
    pub(crate) fn new(tune: &TuneArgs, cores: usize) -> Self {
        let args = tune.measure();
        let guest = &args.guest;
        let memory = guest.memory.map_or_else(|| memory::of_guest(tune, cores), |memory| memory.0);
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
pub(crate) fn without_guests(mode: Mode) -> Vec<Subject> {
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
pub(crate) fn variants(args: &MeasureArgs) -> Vec<Variant> {
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
pub(crate) mod tests;
