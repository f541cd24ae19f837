//! What the results say of the user's own guest.

use serde::{Deserialize, Serialize};

use super::header::differences;

/// The guest. What it does not tell is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GivenGuest {
    /// Its name for itself.
    pub(crate) host: String,
    /// Tells it from others: a hash of its machine id, which is nobody's business.
    pub(crate) identity: Option<String>,
    /// `Linux 6.1.0 x86_64`.
    pub(crate) kernel: String,
    pub(crate) cpu: Option<String>,
    pub(crate) cpus: u16,
    pub(crate) memory_kib: Option<u64>,
    /// `kvm`, `xen`, `vmware`, …; `unknown` if there is one that does not say its name.
    pub(crate) hypervisor: Option<String>,
    /// Of its hardware.
    pub(crate) vendor: Option<String>,
    pub(crate) fio: String,
    pub(crate) disk: GivenDisk,
}

/// The disk in the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GivenDisk {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// `block device`, or the file system of a file.
    pub(crate) kind: String,
    pub(crate) model: Option<String>,
    /// Hardware queues.
    pub(crate) queues: Option<u16>,
    pub(crate) scheduler: Option<String>,
    pub(crate) rotational: Option<bool>,
    /// Whether its page cache is gone past.
    pub(crate) direct: bool,
    /// A file with holes, which look too fast.
    #[serde(default)]
    pub(crate) holes: bool,
}

impl GivenGuest {
    /// What makes `self` another guest than `old`, or its figures not comparable.
    pub(crate) fn differences(&self, old: &Self) -> Vec<String> {
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
    pub(crate) fn description(&self) -> String {
        let Self { host, kernel, cpus, hypervisor, .. } = self;
        let hypervisor = hypervisor.as_deref().unwrap_or("no hypervisor seen");
        format!("{host} ({kernel}, {cpus} CPUs, {hypervisor})")
    }
}
