//! What is settled before anything is measured: settings, programs, the disk, the matrix.
//!
//! Everything that can be refused is refused here, before anything is filled; the guests' ingredients are tried here too.

mod announce;
mod record;
mod subjects;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::{fio, host};
use plan::args::{MeasureArgs, TuneArgs};
use plan::contender::{Contender, Subject};
use plan::lists::unique;
use plan::matrix::Matrix;
use plan::matrix::Writes;
use plan::settings::LoadKind;
use plan::settings::Settings;
use plan::settings::Step;
use plan::units::Bytes;
use plan::variant::Variant;
use records::domain::Domain;
use records::environment::Environment;
use records::results::{Programs, StoredResults, check_same};
use storage::clock;
use storage::interrupt::Interrupt;
use storage::machine::Machine;
use storage::storages::{Mapper, StoragePlan, Storages, Tools, Workshop, stays};
use storage::target::{Origin, Target};

use crate::baseline::Baseline;
use crate::daemon::Daemon;
use crate::fleet::{Conditions, Fleet};
use crate::given::{Given, Terms};
use crate::measure::fio::Fio;
use crate::precondition;
use crate::progress::{FillProgress, say};

/// What a guest under KVM may take to come up on a busy host.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// What is settled before the first run.
#[derive(Debug)]
pub(super) struct PreparedCommand {
    pub(super) daemon: Daemon,
    pub(super) tools: Tools,
    pub(super) matrix: Matrix,
    pub(super) fio: Option<Fio>,
    pub(super) fleet: Option<Fleet>,
    pub(super) given: Option<Given>,
    /// What bends the numbers.
    pub(super) notes: Vec<String>,
    pub(super) settings: Settings,
    machine: Machine,
    programs: Programs,
    environment: Environment,
    domain: Option<Domain>,
    pub(super) mapper: Mapper,
    /// The disk of the user, if one was named.
    target: Option<Target>,
    /// Where scratch files go.
    pub(super) directory: PathBuf,
    pub(super) size: Bytes,
}

impl PreparedCommand {
    /// Settles everything; `out` is where the results are and guests leave their consoles.
    ///
    /// # Errors
    /// Whatever cannot be met, in the words of the user's options.
    pub(super) fn new(
        asked: &TuneArgs,
        stored: Option<&StoredResults>,
        out: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (machine, tools) = (Machine::read(), Tools::of_system());
        let tune = &mut asked.clone();
        let baseline = Baseline::read(tune.measure_mut(), &machine, &tools, interrupt)?;
        // A resumed run keeps its seed unless the user insists on another, which is then refused.
        let seed = stored.map_or_else(new_seed, |stored| stored.header.settings.seed);
        let args = tune.measure();
        args.check()?;
        let daemon = daemon(args)?;
        let mut programs = Programs { daemon: daemon.version()?, ..Programs::default() };
        let target = args.path.as_deref().map(|path| user_target(path, args)).transpose()?;
        let (subjects, fleet) = match (&args.subject[..], stored) {
            ([], Some(stored)) => (stored.header.settings.subject.clone(), None),
            ([], None) => subjects::of_this_host(tune, machine.cores, out, interrupt)?,
            (given, _) => (given.to_vec(), None),
        };
        if !subjects.iter().any(|subject| subject.is_booted()) {
            tune.measure_mut().without_guests(asked.measure());
        }
        let args = tune.measure();
        let settings = Settings::new(tune, &subjects, machine.cores, seed);
        settings.check()?;
        Step::check_all(&settings, machine.cores)?;
        settings.check_memory(machine.memory_kib)?;
        if let Some(stored) = stored {
            check_same(out, &settings.differences(&stored.header.settings))?;
        }
        check_path(args, &settings)?;
        check_precondition(args, &settings)?;
        let mapper = match &args.path {
            None => Mapper::for_variants(&settings.variants, &tools, interrupt)?,
            Some(_) => Mapper::for_path(),
        };
        let mut notes = baseline.as_ref().map_or_else(Vec::new, |it| it.notes.clone());
        if let Some(target) = &target {
            notes.extend(target.notes.clone());
        }
        notes.extend(mapper.notes(&settings.variants, clock::kernel_tick()));
        let given = given(&settings, args, interrupt)?;
        notes.extend(given.iter().flat_map(|given| given.notes.clone()));
        let matrix = matrix(&settings, &mapper, (target.as_ref(), given.as_ref()), args)?;
        let directory = std::env::current_dir().context("find the current directory")?;
        let fio = fio_program(&settings)?;
        programs.fio = fio.as_ref().map(|fio| fio.version.to_string());
        let prepared = Self {
            daemon,
            tools,
            matrix,
            fio,
            fleet,
            given,
            notes,
            settings,
            machine,
            programs,
            environment: Environment::default(),
            domain: baseline.map(|it| it.domain),
            mapper,
            target,
            directory,
            size: args.size,
        };
        if prepared.may_go_on(stored) {
            prepared.check_room(interrupt)?;
        }
        let prepared = prepared.with_fleet(args, out, interrupt)?.with_environment();
        if let Some(stored) = stored {
            check_same(out, &prepared.differences(&stored.header))?;
        }
        Ok(prepared)
    }

    fn check_room(&self, interrupt: &Interrupt) -> Result<()> {
        if self.target.is_some() || !self.has_storage() {
            return Ok(());
        }
        self.storage_plan().check(&self.workshop(interrupt, &|_| {}))
    }

    fn with_fleet(mut self, args: &MeasureArgs, out: &Path, interrupt: &Interrupt) -> Result<Self> {
        let booted = self.matrix.has(Subject::VmQemu) || self.matrix.has(Subject::VmRingloom);
        if !booted {
            return Ok(self);
        }
        let (slots, logs) = (self.settings.disks_max(), &out.join("guests"));
        let qemu = args.guest.qemu.as_deref();
        let conditions = Conditions { qemu, slots, logs, kvm_limit: BOOT_LIMIT };
        let prepare = || Fleet::prepare(&self.settings.guest, conditions, interrupt);
        let fleet = self.fleet.take().map_or_else(prepare, Ok)?;
        self.programs.qemu = Some(fleet.qemu_version().to_owned());
        self.programs.qemu_io_uring = Some(fleet.qemu_has_io_uring());
        self.programs.guest_kernel = Some(fleet.kernel_version().to_owned());
        let accelerator = if fleet.is_emulated() { "tcg" } else { "kvm" };
        self.programs.accelerator = Some(accelerator.to_owned());
        self.programs.emulated_because = fleet.emulated_because().map(str::to_owned);
        self.fleet = Some(fleet);
        Ok(self)
    }

    /// Makes what the variants need below.
    ///
    /// # Errors
    /// The step that failed; `Interrupted`.
    pub(super) fn storages(&self, interrupt: &Interrupt) -> Result<Storages> {
        if let Some(target) = &self.target {
            return Storages::of_user(target, &self.variants());
        }
        if !self.has_storage() {
            return Ok(Storages::default());
        }
        let progress = FillProgress::new(Bytes(self.fill_bytes()));
        let report = |bytes| progress.written(bytes);
        Storages::prepare(&self.storage_plan(), &self.workshop(interrupt, &report))
    }

    /// What is made anew before each round, if it took so long to make; where it stays, a note says why.
    pub(super) fn renewed(&mut self, fill: Duration) -> Option<StoragePlan> {
        if self.target.is_some() || !self.has_storage() {
            return None;
        }
        match stays(fill, self.settings.precondition) {
            Some(note) => {
                self.notes.push(note);
                None
            }
            None => Some(self.storage_plan()),
        }
    }

    /// Tells what bends the numbers.
    pub(super) fn tell_notes(&self) {
        self.notes.iter().for_each(|note| say(&format!("Note: {note}.")));
    }

    /// Those that some contender is measured on with a disk of this host.
    fn variants(&self) -> Vec<Variant> {
        let is_here = |contender: &Contender| *contender != Contender::VM_GIVEN;
        let entries = self.matrix.entries.iter();
        let here = entries.filter(|entry| entry.contenders.iter().any(is_here));
        unique(here.map(|entry| entry.variant))
    }

    /// Whether anything is measured on a disk of this host.
    fn has_storage(&self) -> bool {
        !self.variants().is_empty()
    }

    fn storage_plan(&self) -> StoragePlan {
        StoragePlan::new(&self.variants())
    }

    fn fill_bytes(&self) -> u64 {
        if self.target.is_some() { 0 } else { self.storage_plan().fill_bytes(self.size) }
    }

    fn workshop<'a>(&'a self, interrupt: &'a Interrupt, report: &'a dyn Fn(u64)) -> Workshop<'a> {
        Workshop {
            directory: &self.directory,
            size: self.size,
            seed: self.settings.seed,
            tools: &self.tools,
            mapper: &self.mapper,
            interrupt,
            report,
        }
    }
}

pub(crate) fn new_seed() -> u64 {
    let now = clock::since_epoch();
    // Short enough to type; the order of runs and the offsets need no more.
    u64::from(now.subsec_nanos()) ^ (now.as_secs() & 0xffff)
}

fn user_target(path: &Path, args: &MeasureArgs) -> Result<Target> {
    let path = std::path::absolute(path).with_context(|| format!("disk {}", path.display()))?;
    Target::open(&path, Origin::User, writes(args))
}

fn daemon(args: &MeasureArgs) -> Result<Daemon> {
    match &args.daemon {
        Some(program) => Ok(Daemon::at(program.clone())),
        None => Daemon::this_program().context("find this program"),
    }
}

/// Refuses a PATH that nobody measures, and the permission to destroy nothing.
fn check_path(args: &MeasureArgs, settings: &Settings) -> Result<()> {
    let is_given = |subject: &Subject| *subject == Subject::VmGiven;
    match &args.path {
        Some(path) if settings.subject.iter().all(is_given) => bail!(
            "disk {}: vm:given measures the disk that --guest names: leave PATH out or add host to \
             --subject",
            path.display()
        ),
        None if args.destructive && settings.guest.guest.is_none() => bail!(
            "--destructive is for PATH or the disk of --guest: name one; a scratch file is written \
             without it"
        ),
        Some(_) | None => Ok(()),
    }
}

/// Whether the disk may and can be written beforehand.
fn check_precondition(args: &MeasureArgs, settings: &Settings) -> Result<()> {
    if !settings.precondition {
        return Ok(());
    }
    if args.path.is_some() && !args.destructive {
        bail!("--precondition writes over PATH: --destructive allows it");
    }
    if settings.subject.contains(&Subject::VmGiven) {
        bail!(
            "--precondition writes disks of this host, not that of your own guest: leave vm:given out"
        );
    }
    precondition::check(&settings.variants)
}

fn writes(args: &MeasureArgs) -> Writes {
    if args.destructive { Writes::Allowed } else { Writes::Skipped }
}

/// The user's own guest, logged in to.
fn given(settings: &Settings, args: &MeasureArgs, interrupt: &Interrupt) -> Result<Option<Given>> {
    let Some(address) = &settings.guest.guest else { return Ok(None) };
    let terms = Terms {
        address: address.parse()?,
        config: args.guest.ssh_config.clone(),
        writes: writes(args),
        engine: settings.engine,
    };
    let given = Given::reach(terms, &mut || Ok(interrupt.check()?))?;
    say(&format!("Your guest: {}.", given.guest.description()));
    Ok(Some(given))
}

fn matrix(
    settings: &Settings,
    mapper: &Mapper,
    (target, given): (Option<&Target>, Option<&Given>),
    args: &MeasureArgs,
) -> Result<Matrix> {
    let is_here = settings.subject.iter().any(|subject| *subject != Subject::VmGiven);
    let here = match target {
        Some(target) => Some(target.bytes),
        None => is_here.then_some(args.size.0),
    };
    let sizes = here.into_iter().chain(given.map(|given| given.guest.disk.bytes));
    let bytes = sizes.min().context("there is a disk to measure")?;
    // What must not be written here or there is written nowhere, so that all rows have the same cells.
    let writes = match (target, given) {
        (None, None) => Writes::Allowed,
        (Some(target), _) => target.writes,
        (None, Some(_)) => writes(args),
    };
    let layers = |variant: &Variant| mapper.layers(variant.stripe, variant.delay);
    let mut matrix = Matrix::new(settings, &layers, bytes, writes)?;
    drop_impossible_host(settings, &mut matrix)?;
    Ok(matrix)
}

/// Without io_uring there is no own load on the host to compare with; the rest can still be measured.
fn drop_impossible_host(settings: &Settings, matrix: &mut Matrix) -> Result<()> {
    if settings.load == LoadKind::Fio || !matrix.has(Subject::Host) {
        return Ok(());
    }
    let Err(error) = host::available() else {
        return Ok(());
    };
    if !matrix.without_host() {
        return Err(error).context("the subject host needs io_uring, which this host forbids");
    }
    say(&format!("Note: the subject host is left out, this host forbids io_uring ({error})."));
    Ok(())
}

fn fio_program(settings: &Settings) -> Result<Option<Fio>> {
    if !settings.needs_fio() {
        return Ok(None);
    }
    let (program, version) = fio::program()?;
    Ok(Some(Fio { program, version }))
}
