//! The first line of a results file: what all its runs have in common.
//!
//! Not here: the reading of the host (`run::prepare`).

use std::fmt;
use std::path::PathBuf;

use load::probe::CacheMode;
use plan::cell::Cell;
use plan::settings::Settings;
use serde::{Deserialize, Deserializer, Serialize};
use storage::clock;
use storage::machine::Machine;
use storage::target::{Kind, Origin};

use super::FORMAT;
use super::cluster::Cluster;
use super::given::GivenGuest;
use crate::domain::Domain;
use crate::environment::Environment;
use crate::host_load::HostLoad;

/// The disk of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Whose it is.
    pub origin: Origin,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// What it lies on and how it is opened, for the report.
    pub description: String,
    /// Files of earlier versions have it in `description` only; of a guest's own disk it is not known.
    #[serde(default)]
    pub opened: Option<DiskAccess>,
    /// The image format as whose images the bytes begin: then the raw file is no disk to give to a guest.
    #[serde(default, alias = "looks_like_qcow2", deserialize_with = "format_or_flag")]
    pub looks_like: Option<String>,
    /// The file has holes, which look too fast.
    #[serde(default)]
    pub holes: bool,
}

/// A format, where earlier files say only whether it is qcow2.
fn format_or_flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Said {
        Flag(bool),
        Format(String),
    }
    Ok(match Option::deserialize(deserializer)? {
        Some(Said::Format(format)) => Some(format),
        Some(Said::Flag(true)) => Some("qcow2".to_owned()),
        Some(Said::Flag(false)) | None => None,
    })
}

/// How the disk was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskAccess {
    /// A block device, not a file.
    pub block_device: bool,
    /// Past the page cache.
    pub direct: bool,
}

impl DiskAccess {
    /// Of how a disk is opened.
    pub fn new(kind: Kind, cache: CacheMode) -> Self {
        Self { block_device: kind == Kind::BlockDevice, direct: cache == CacheMode::Direct }
    }
}

/// The programs that take part, as they name themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// The first line of the daemon's `--version`.
    pub daemon: String,
    /// Missing where no guest is booted.
    pub qemu: Option<String>,
    /// Whether QEMU could use io_uring for files: then `aio=auto` was that.
    pub qemu_io_uring: Option<bool>,
    /// Missing where it is not the load.
    pub fio: Option<String>,
    /// The kernel that guests boot.
    pub guest_kernel: Option<String>,
    /// `kvm` or `tcg`.
    pub accelerator: Option<String>,
    /// Why it is not KVM.
    pub emulated_because: Option<String>,
}

/// The first line: what all runs of the file have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The format of all lines.
    pub format: u32,
    /// What tells a header from a run.
    pub kind: HeaderKind,
    /// The version of this program.
    pub ringloom: String,
    /// What was used to measure.
    pub programs: Programs,
    /// When the command began.
    pub started_unix_s: u64,
    /// The host, so far as figures are comparable by it.
    pub machine: Machine,
    /// The host, so far as it explains figures.
    pub environment: Environment,
    /// What ran on the host before the start.
    pub load_before: Option<HostLoad>,
    /// What was measured.
    pub disk: Disk,
    /// The user's own guest, if it is measured.
    pub given: Option<GivenGuest>,
    /// What was asked.
    pub settings: Settings,
    /// The domain of libvirt that is the baseline, if there is one.
    #[serde(default)]
    pub domain: Option<Domain>,
    /// The cluster, if one was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
    /// What was known before the first run.
    #[serde(default)]
    pub known: StartNotes,
}

/// What the tuner told before the first run: sentences without their full stop, and cells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartNotes {
    /// What bends the figures.
    pub notes: Vec<String>,
    /// What else is not measured, and why.
    pub left_out: Vec<String>,
    /// Cells that write, where that is not allowed.
    pub skipped: Vec<Cell>,
}

/// Tells the header line from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderKind {
    /// The only value.
    #[default]
    Header,
}

/// What a header says of the host.
#[derive(Clone, Debug)]
pub struct Host {
    /// So far as figures are comparable by it.
    pub machine: Machine,
    /// So far as it explains figures.
    pub environment: Environment,
    /// What others did on it before.
    pub load_before: Option<HostLoad>,
}

impl Header {
    /// Of a command that begins now.
    pub fn new(programs: Programs, host: Host, disk: Disk, settings: Settings) -> Self {
        let Host { machine, environment, load_before } = host;
        Self {
            format: FORMAT,
            kind: HeaderKind::Header,
            ringloom: env!("CARGO_PKG_VERSION").to_owned(),
            programs,
            started_unix_s: clock::since_epoch().as_secs(),
            machine,
            environment,
            load_before,
            disk,
            given: None,
            settings,
            domain: None,
            cluster: None,
            known: StartNotes::default(),
        }
    }

    /// Whether it stands for one that is missing.
    pub fn is_unknown(&self) -> bool {
        self.ringloom.is_empty()
    }

    /// With what was told before the first run.
    pub fn with_known(self, known: StartNotes) -> Self {
        Self { known, ..self }
    }

    /// With what is known of the user's own guest.
    pub fn with_given(self, given: Option<GivenGuest>) -> Self {
        Self { given, ..self }
    }

    /// What forbids to append runs under `self` to a file that began with `old`.
    pub fn differences(&self, old: &Self) -> Vec<String> {
        let mut differences = self.settings.differences(&old.settings);
        differences.extend(self.programs.differences(&old.programs));
        differences.extend(self.disk.differences(&old.disk));
        if let (Some(given), Some(old)) = (&self.given, &old.given) {
            differences.extend(given.differences(old));
        }
        if let (Some(cluster), Some(old)) = (&self.cluster, &old.cluster) {
            differences.extend(cluster.differences(old));
        }
        differences.extend(self.environment.differences(&old.environment));
        differences.extend(Domain::difference(self.domain.as_ref(), old.domain.as_ref()));
        differences
    }
}

impl Programs {
    /// What of them forbids to mix runs; versions are compared with the environment.
    pub fn differences(&self, old: &Self) -> Vec<String> {
        let compared = |Self { daemon, guest_kernel, accelerator, qemu_io_uring, .. }: &Self| {
            let io_uring = qemu_io_uring.map(|it| if it { "usable" } else { "not usable" });
            let io_uring = io_uring.map(str::to_owned);
            let known = [Some(daemon.clone()), guest_kernel.clone(), accelerator.clone(), io_uring];
            known.map(|program| program.unwrap_or_else(|| "not used".to_owned()))
        };
        differences(
            ["daemon", "kernel of the guests", "accelerator", "io_uring of QEMU"],
            compared(self),
            compared(old),
        )
    }
}

/// What is not as it was, by name.
pub(super) fn differences<const N: usize>(
    names: [impl fmt::Display; N],
    new: [String; N],
    old: [String; N],
) -> Vec<String> {
    let differ = |(name, (new, old))| (new != old).then(|| format!("{name} is {new}, was {old}"));
    names.into_iter().zip(new.into_iter().zip(old)).filter_map(differ).collect()
}

impl Disk {
    /// What of it forbids to mix runs.
    pub fn differences(&self, old: &Self) -> Vec<String> {
        let compared = |disk: &Self| [disk.name(), disk.bytes.to_string()];
        differences(["disk", "size of the disk"], compared(self), compared(old))
    }

    /// The path, but for a scratch file, whose name changes, its directory.
    fn name(&self) -> String {
        match self.origin {
            Origin::User | Origin::Guest => self.path.display().to_string(),
            Origin::Scratch => {
                let directory = self.path.parent().unwrap_or(&self.path);
                format!("a scratch file in {}", directory.display())
            }
        }
    }
}
