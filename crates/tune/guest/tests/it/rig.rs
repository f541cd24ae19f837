//! What every test needs: kernel, initramfs, QEMU, a directory, and images of a known pattern.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use guest::{
    Accelerator, ColdDisk, Controller, Guest, Initramfs, Kernel, MachineSpec, Plug, QemuProgram,
    Source,
};
use serde_json::{Value, json};
use testkit::process::Bench;
use testkit::report::skipped;

/// How long anything may take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// Bytes of an image.
pub(crate) const IMAGE_BYTES: u64 = 4 << 20;

pub(crate) struct Rig {
    pub(crate) bench: Bench,
    pub(crate) qemu: QemuProgram,
    pub(crate) kernel: Kernel,
    pub(crate) equipment: Initramfs,
}

/// Nobody is impatient.
pub(crate) fn patient() -> Result<()> {
    Ok(())
}

impl Rig {
    /// None if something is not installed here; it says what.
    pub(crate) fn new() -> Option<Self> {
        if let Some(reason) = testkit::guest::missing() {
            skipped(&reason);
            return None;
        }
        let kernel = testkit::guest::kernel().unwrap();
        let cache = testkit::guest::guest_directory();
        let equipment = Initramfs::make(&kernel, &cache).unwrap();
        let qemu = QemuProgram::find(None).unwrap();
        Some(Self { bench: Bench::new().unwrap(), qemu, kernel, equipment })
    }

    pub(crate) fn spec(&self, name: &str, slots: u16) -> MachineSpec {
        MachineSpec {
            cpus: 2,
            memory_mib: 512,
            accelerator: Accelerator::Tcg,
            slots,
            numa_node: None,
            cold_disk: None,
            name: name.to_owned(),
        }
    }

    /// Where the logs are.
    pub(crate) fn logs(&self) -> PathBuf {
        self.bench.path("logs")
    }

    pub(crate) fn boot(&self, name: &str, slots: u16) -> Result<Guest> {
        self.boot_spec(&self.spec(name, slots))
    }

    pub(crate) fn boot_with_cold_disk(&self, name: &str) -> Result<Guest> {
        let cold_disk = Some(ColdDisk { blockdev: file(&self.image("cold.img", b'c')) });
        self.boot_spec(&MachineSpec { cold_disk, ..self.spec(name, 0) })
    }

    pub(crate) fn boot_spec(&self, spec: &MachineSpec) -> Result<Guest> {
        let Self { qemu, kernel, equipment, .. } = self;
        Guest::boot(qemu, kernel, equipment, spec, &self.logs(), &mut patient)
    }

    /// An image that begins with a line of this letter.
    pub(crate) fn image(&self, name: &str, letter: u8) -> PathBuf {
        let path = self.bench.path(name);
        let mut bytes = vec![letter; 511];
        bytes.push(b'\n');
        bytes.resize(usize::try_from(IMAGE_BYTES).unwrap(), 0);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

/// An image as a graph of QEMU's.
pub(crate) fn file(image: &Path) -> Value {
    json!({"driver": "raw", "file": {"driver": "file", "filename": image}})
}

/// A disk that QEMU serves.
pub(crate) fn plug(controller: Controller, slot: u16, image: &Path) -> Plug {
    let source = Source::Blockdev(file(image));
    Plug { controller, source, queues: 2, iothreads: 0, read_only: false, slot }
}

/// Whether there is no such process.
pub(crate) fn has_ended(pid: u32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

/// Process ids of programs whose arguments name this path.
pub(crate) fn processes_naming(path: &Path) -> Vec<String> {
    let path = path.to_str().unwrap();
    let names = |pid: &String| {
        // A process may end meanwhile.
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(path)
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    let ids = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
    ids.filter(|it| it.parse::<u32>().is_ok()).filter(names).collect()
}
