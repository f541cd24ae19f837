//! The guests that ringloom boots: prepared once, booted when the first run needs them, kept from run to run.
//!
//! Disks come and go while a guest runs, so that every number of iothreads is compared inside one boot. A guest that no
//! run needs at the moment is stopped, so that it uses no CPU.
//!
//! Invariants: no guest outlives its `Fleet`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use guest::{
    Accelerator, ColdDisk, Guest, Initramfs, Kernel, KernelSource, MachineSpec, QemuProgram,
    try_kvm,
};
use plan::settings::Accel;
use plan::settings::GuestSettings;
use records::pinning::{CpuList, pin_each};
use serde_json::{Value, json};
use storage::clock;
use storage::interrupt::Interrupt;
use tempfile::TempDir;

use crate::progress::say;

/// How long a QEMU may take to stop its guest's CPUs, or to let them run.
const OBEY_LIMIT: Duration = Duration::from_secs(20);

/// A boot that failed after so long has hung.
const HANGS: Duration = Duration::from_secs(60);

/// How guests are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions<'a> {
    /// The program that the user named.
    pub(crate) qemu: Option<&'a Path>,
    /// The most disks of a guest.
    pub(crate) slots: u16,
    /// Where consoles are kept.
    pub(crate) logs: &'a Path,
    /// What a guest under KVM may take to come up.
    pub(crate) kvm_limit: Duration,
}

/// What guests are booted from, and the guests.
#[derive(Debug)]
pub(crate) struct Fleet {
    settings: GuestSettings,
    qemu: QemuProgram,
    kernel: Kernel,
    initramfs: Initramfs,
    /// Whether QEMU can use io_uring for files here.
    io_uring: bool,
    accelerator: Accelerator,
    emulated_because: Option<String>,
    pins: Pins,
    /// The most disks of a guest.
    slots: u16,
    /// Consoles and QEMU's own messages.
    logs: PathBuf,
    guests: Vec<Guest>,
    /// How often a guest was booted, for the names of the logs.
    boots: u32,
    _cache: TempDir,
}

/// CPUs of the host for threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins {
    pub(crate) vcpus: Option<CpuList>,
    pub(crate) iothreads: Option<CpuList>,
}

impl Fleet {
    /// Finds QEMU and the kernel, makes the initramfs, tries KVM.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub(crate) fn prepare(
        settings: &GuestSettings,
        conditions: Conditions<'_>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let Conditions { qemu, slots, logs, kvm_limit } = conditions;
        let pins = Pins::new(settings)?;
        spec(settings, Accelerator::Tcg, slots).check()?;
        if let Some(node) = settings.numa_node {
            CpuList::of_node(node).with_context(|| format!("--numa-node {node}"))?;
        }
        let qemu = QemuProgram::find(qemu)?;
        let source = match &settings.guest_kernel {
            None => KernelSource::Host,
            Some(path) => KernelSource::Path(PathBuf::from(path)),
        };
        let kernel = Kernel::open(&source)?;
        let cache = tempfile::Builder::new().prefix("ringloom-tune-").tempdir()?;
        let initramfs = Initramfs::make(&kernel, cache.path())?;
        std::fs::create_dir_all(logs).with_context(|| format!("create {}", logs.display()))?;
        let watch = &mut || Ok(interrupt.check()?);
        let kvm = match settings.accel {
            Accel::Tcg => Err("--accel tcg".to_owned()),
            Accel::Auto | Accel::Kvm => {
                say("Trying KVM with a small guest.");
                try_kvm(&qemu, (&kernel, &initramfs), logs, kvm_limit, watch)?
            }
        };
        let (accelerator, emulated_because) = match kvm {
            Ok(()) => (Accelerator::Kvm, None),
            Err(reason) if settings.accel == Accel::Kvm => {
                bail!("KVM does not work here: {reason} (--accel auto would emulate)")
            }
            Err(reason) => (Accelerator::Tcg, Some(reason)),
        };
        let io_uring = load::host::available().is_ok() && qemu.has_io_uring()?;
        Ok(Self {
            settings: settings.clone(),
            io_uring,
            qemu,
            kernel,
            initramfs,
            accelerator,
            emulated_because,
            pins,
            slots,
            logs: logs.to_path_buf(),
            guests: Vec::new(),
            boots: 0,
            _cache: cache,
        })
    }

    pub(crate) fn qemu_version(&self) -> &str {
        self.qemu.version()
    }

    /// Whether QEMU can use io_uring for files here.
    pub(crate) fn qemu_has_io_uring(&self) -> bool {
        self.io_uring
    }

    pub(crate) fn kernel_version(&self) -> &str {
        self.kernel.version()
    }

    pub(crate) fn is_emulated(&self) -> bool {
        self.accelerator == Accelerator::Tcg
    }

    /// Why the guests are emulated, if they are.
    pub(crate) fn emulated_because(&self) -> Option<&str> {
        self.emulated_because.as_deref()
    }

    pub(crate) fn pins(&self) -> &Pins {
        &self.pins
    }

    /// So many running guests; others are stopped.
    ///
    /// # Errors
    /// If a guest does not come up, with the end of its console; `Interrupted`.
    pub(crate) fn take(&mut self, count: u16, interrupt: &Interrupt) -> Result<&mut [Guest]> {
        let count = usize::from(count);
        self.let_run(count, interrupt)?;
        while self.guests.len() < count {
            let guest = self.boot(None, interrupt)?;
            self.guests.push(guest);
        }
        Ok(&mut self.guests[..count])
    }

    /// Stops all guests' CPUs, for runs that have nothing to do with them.
    ///
    /// # Errors
    /// `Interrupted`.
    pub(crate) fn rest(&mut self, interrupt: &Interrupt) -> Result<()> {
        self.let_run(0, interrupt)
    }

    /// Lets the first so many guests run and stops the others. One that does not obey is ended: it may have died since
    /// the last run.
    fn let_run(&mut self, count: usize, interrupt: &Interrupt) -> Result<()> {
        let mut index = 0;
        while let Some(guest) = self.guests.get_mut(index) {
            let command = if index < count { "cont" } else { "stop" };
            let watch = &mut || Ok(interrupt.check()?);
            let obeyed = guest.monitor().command_within(command, json!({}), OBEY_LIMIT, watch);
            match obeyed {
                Ok(_) => index += 1,
                Err(error) => {
                    interrupt.check()?;
                    let name = guest.name();
                    say(&format!("Note: guest {name} is ended, it does not obey: {error:#}."));
                    drop(self.guests.remove(index));
                }
            }
        }
        Ok(())
    }

    /// A guest for one run, with a disk that cannot be plugged. All others are stopped.
    ///
    /// # Errors
    /// As `take`.
    pub(crate) fn boot_cold(&mut self, blockdev: Value, interrupt: &Interrupt) -> Result<Guest> {
        self.boot(Some(ColdDisk { blockdev }), interrupt)
    }

    /// Ends all guests; the next run boots new ones.
    pub(crate) fn end_all(&mut self) {
        self.guests.clear();
    }

    /// Boots a guest; one that hangs for long is given up, and another one booted. An emulated guest may lose a timer's
    /// interrupt on a busy machine, and waits for it for ever.
    fn boot(&mut self, cold_disk: Option<ColdDisk>, interrupt: &Interrupt) -> Result<Guest> {
        let begun = clock::now();
        let first = self.boot_once(cold_disk.clone(), interrupt);
        let Err(error) = first else { return first };
        interrupt.check()?;
        if !self.is_emulated() || begun.elapsed() < HANGS {
            return Err(error);
        }
        let reason = error.to_string();
        let line = reason.lines().next().unwrap_or_default();
        say(&format!("Note: {line}; another guest is booted."));
        self.boot_once(cold_disk, interrupt)
    }

    fn boot_once(&mut self, cold_disk: Option<ColdDisk>, interrupt: &Interrupt) -> Result<Guest> {
        self.boots += 1;
        let name = format!("guest-{}", self.boots);
        let spec = spec(&self.settings, self.accelerator, self.slots);
        let spec = MachineSpec { cold_disk, name, ..spec };
        let watch = &mut || Ok(interrupt.check()?);
        let Self { qemu, kernel, initramfs, logs, .. } = self;
        Guest::boot(qemu, kernel, initramfs, &spec, logs, watch)
    }
}

/// The machine of every guest.
fn spec(settings: &GuestSettings, accelerator: Accelerator, slots: u16) -> MachineSpec {
    let GuestSettings { vcpus, memory_mib, numa_node, .. } = *settings;
    MachineSpec {
        cpus: vcpus,
        memory_mib,
        accelerator,
        slots,
        numa_node,
        cold_disk: None,
        name: "guest".to_owned(),
    }
}

impl Pins {
    fn new(settings: &GuestSettings) -> Result<Self> {
        let list = |name: &str, text: &Option<String>| -> Result<Option<CpuList>> {
            let Some(text) = text else { return Ok(None) };
            let cpus: CpuList = text.parse().with_context(|| format!("{name} {text}"))?;
            cpus.check(&CpuList::online()?, &CpuList::allowed(None)?)
                .with_context(|| format!("{name} {text}"))?;
            Ok(Some(cpus))
        };
        Ok(Self {
            vcpus: list("--pin-vcpus", &settings.pin_vcpus)?,
            iothreads: list("--pin-iothreads", &settings.pin_iothreads)?,
        })
    }

    /// Gives each thread one CPU of its list, in turn over all guests.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn apply(&self, vcpus: &[u32], iothreads: &[u32]) -> Result<()> {
        if let Some(cpus) = &self.vcpus {
            pin_each(vcpus, cpus)?;
        }
        if let Some(cpus) = &self.iothreads {
            pin_each(iothreads, cpus)?;
        }
        Ok(())
    }
}
