//! The host as far as it bends figures: CPUs, kernel, programs and the disk below the disk.
//!
//! The header of the results records it; `differences` decides whether two results may be mixed.
//!
//! Invariants: what the system does not tell is missing, never guessed. Of the kernel's command line
//! only the flags of a fixed list are kept, since others may be nobody's business.

mod cpu;
mod disk;
mod kernel;
mod tree;
mod warnings;

use std::path::Path;

use disk::DiskPlace;
use serde::{Deserialize, Serialize};
use tree::Tree;

pub use cpu::{Cpu, NumaNode};
pub use disk::{BlockDevice, DiskBelow};
pub use kernel::{Kernel, chosen};

/// Everything around a measurement that is not the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Its CPUs.
    pub cpu: Cpu,
    /// Its NUMA nodes.
    pub numa: Vec<NumaNode>,
    /// All of its memory.
    pub memory_kib: Option<u64>,
    /// What is set in its kernel.
    pub kernel: Kernel,
    /// What was used to measure.
    pub programs: Programs,
    /// What is below the file or device.
    pub disk: DiskBelow,
}

/// Versions as the programs tell them; missing for those that take no part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Programs {
    /// That serves.
    pub ringloom: Option<String>,
    /// That runs guests.
    pub qemu: Option<String>,
    /// That loads the host.
    pub fio: Option<String>,
}

impl Environment {
    /// Reads this host; `disk` is the file or block device that is measured, or the directory in
    /// which its file will be.
    pub fn read(disk: &Path, programs: Programs) -> Self {
        let mut environment = Self::read_from(&Tree::of_this_host(), &DiskPlace::of(disk));
        environment.programs = programs;
        environment.cpu.allowed = std::thread::available_parallelism().ok().map(Into::into);
        environment
    }

    fn read_from(tree: &Tree, place: &DiskPlace) -> Self {
        Self {
            cpu: Cpu::read(tree),
            numa: NumaNode::read_all(tree),
            memory_kib: tree.field("proc/meminfo", "MemTotal").and_then(|text| kibibytes(&text)),
            kernel: Kernel::read(tree),
            programs: Programs::default(),
            disk: DiskBelow::read(tree, place),
        }
    }

    /// What forbids to mix runs of `self` with older ones, one sentence each.
    pub fn differences(&self, old: &Self) -> Vec<String> {
        let differ = |(name, told): &(&str, Wording)| {
            let (new, old) = (told(self), told(old));
            (new != old).then(|| format!("{name} is {new}, was {old}"))
        };
        let mut differences: Vec<String> = COMPARED.iter().filter_map(differ).collect();
        differences.extend(memory_differs(self.memory_kib, old.memory_kib));
        differences.extend(self.cpu.protection_differs(&old.cpu));
        differences
    }

    /// What the user should know before trusting the figures, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        warnings::of(self)
    }
}

/// What must be the same, and how it is told.
type Wording = fn(&Environment) -> String;
const COMPARED: [(&str, Wording); 20] = [
    ("CPU", |it| told(it.cpu.model.as_ref())),
    ("number of cores", |it| told(it.cpu.cores.as_ref())),
    ("number of CPUs", |it| told(it.cpu.threads.as_ref())),
    ("number of usable CPUs", |it| told(it.cpu.allowed.as_ref())),
    ("CPU frequency governor", |it| listed(&it.cpu.governors)),
    ("CPU frequency driver", |it| told(it.cpu.frequency_driver.as_ref())),
    ("turbo", |it| told(it.cpu.turbo.map(on_or_off).as_ref())),
    ("CPU idle driver", |it| told(it.cpu.idle_driver.as_ref())),
    ("CPU idle governor", |it| told(it.cpu.idle_governor.as_ref())),
    ("list of NUMA nodes", |it| listed(&it.numa)),
    ("kernel", |it| told(it.kernel.release.as_ref())),
    ("list of kernel flags", |it| listed(&it.kernel.flags)),
    ("transparent huge pages", |it| told(it.kernel.transparent_hugepages.as_ref())),
    ("clock source", |it| told(it.kernel.clock_source.as_ref())),
    ("io_uring_disabled", |it| told(it.kernel.io_uring_disabled.as_ref())),
    ("ringloom", |it| told(it.programs.ringloom.as_ref())),
    ("QEMU", |it| told(it.programs.qemu.as_ref())),
    ("fio", |it| told(it.programs.fio.as_ref())),
    ("file system", |it| it.disk.mounted_on.as_ref().map_or_else(unknown, ToString::to_string)),
    ("storage", |it| listed(&it.disk.devices)),
];

/// A kernel keeps a few percent for itself, which are not the same after each boot.
const MEMORY_SHARE: u64 = 32;

/// Another machine, or the same with another memory.
fn memory_differs(new: Option<u64>, old: Option<u64>) -> Option<String> {
    let is_same = match (new, old) {
        (Some(new), Some(old)) => new.abs_diff(old) <= new.max(old) / MEMORY_SHARE,
        (new, old) => new == old,
    };
    let told = |kib: Option<u64>| kib.map_or_else(unknown, |kib| format!("{} MiB", kib >> 10));
    (!is_same).then(|| format!("memory is {}, was {}", told(new), told(old)))
}

fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn told<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(unknown, T::to_string)
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn listed<T: ToString>(values: &[T]) -> String {
    if values.is_empty() {
        return unknown();
    }
    values.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

/// `24683656 kB`, with or without the unit.
fn kibibytes(text: &str) -> Option<u64> {
    text.trim_end_matches("kB").trim().parse().ok()
}

#[cfg(test)]
mod tests;
