//! What the results say of the user's own guest.

use load::probe::CacheMode;
use plan::units::Bytes;
use serde::{Deserialize, Serialize};
use storage::target::cache_name;

use super::header::differences;

/// The guest. What it does not tell is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenGuest {
    /// Its name for itself.
    pub host: String,
    /// Tells it from others: a hash of its machine id, which is nobody's business.
    pub identity: Option<String>,
    /// `Linux 6.1.0 x86_64`.
    pub kernel: String,
    /// The model of its CPUs.
    pub cpu: Option<String>,
    /// How many it has.
    pub cpus: u16,
    /// All of its memory.
    pub memory_kib: Option<u64>,
    /// `kvm`, `xen`, `vmware`, …; `unknown` if there is one that does not say its name.
    pub hypervisor: Option<String>,
    /// Of its hardware.
    pub vendor: Option<String>,
    /// The version of fio there.
    pub fio: String,
    /// What is measured.
    pub disk: GivenDisk,
}

/// The disk in the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenDisk {
    /// Where it is in the guest.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// `block device`, or the file system of a file.
    pub kind: String,
    /// The name that it gives itself.
    pub model: Option<String>,
    /// Hardware queues.
    pub queues: Option<u16>,
    /// The I/O scheduler of the guest.
    pub scheduler: Option<String>,
    /// Whether it says that it spins.
    pub rotational: Option<bool>,
    /// Whether its page cache is gone past.
    pub direct: bool,
    /// A file with holes, which look too fast.
    #[serde(default)]
    pub holes: bool,
}

impl GivenDisk {
    /// `64M on ext4, O_DIRECT`.
    pub fn description(&self) -> String {
        let cache = if self.direct { CacheMode::Direct } else { CacheMode::Buffered };
        let cache = cache_name(cache);
        format!("{} on {} in your guest, {cache}", Bytes(self.bytes), self.kind)
    }
}

impl GivenGuest {
    /// What makes `self` another guest than `old`, or its figures not comparable.
    pub fn differences(&self, old: &Self) -> Vec<String> {
        let unknown = |fact: &Option<String>| fact.clone().unwrap_or_else(|| "unknown".to_owned());
        let names = [
            "name",
            "identity",
            "kernel",
            "CPU",
            "number of CPUs",
            "hypervisor",
            "fio",
            "disk",
            "size of the disk",
        ];
        let facts = |guest: &Self| {
            [
                guest.host.clone(),
                unknown(&guest.identity),
                guest.kernel.clone(),
                unknown(&guest.cpu),
                guest.cpus.to_string(),
                unknown(&guest.hypervisor),
                guest.fio.clone(),
                guest.disk.path.clone(),
                guest.disk.bytes.to_string(),
            ]
        };
        differences(names.map(|name| format!("{name} of your guest")), facts(self), facts(old))
    }

    /// `vm1 (Linux 6.1.0 x86_64, 4 CPUs, kvm)`.
    pub fn description(&self) -> String {
        let Self { host, kernel, cpus, hypervisor, .. } = self;
        let hypervisor = hypervisor.as_deref().unwrap_or("no hypervisor seen");
        format!("{host} ({kernel}, {cpus} CPUs, {hypervisor})")
    }
}
