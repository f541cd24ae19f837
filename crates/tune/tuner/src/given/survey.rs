//! What `survey.sh` prints, read. Pure.
//!
//! Invariants: a guest may print what it likes; what is not understood counts as not told.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use load::fio::FioVersion;
use records::environment::chosen;
use records::results::{GivenDisk, GivenGuest};
use storage::in_use::tables::{device_number, mounts, swaps};
use storage::in_use::{Access, Use};
use storage::target::{HOLES, has_holes};

const SECTOR_BYTES: u64 = 512;
const MOUNTS: &str = "\n@mounts\n";
const SWAPS: &str = "@swaps\n";

/// What the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Block,
    File,
}

/// The facts and tables of a guest.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    facts: Vec<(String, String)>,
    mounts: String,
    swaps: String,
}

/// The disk, or what shares its bytes: a partition of it, the disk it is a partition of.
#[derive(Debug)]
struct Part {
    number: (u32, u32),
    name: String,
}

impl Survey {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let parts = text.split_once(MOUNTS).and_then(|(facts, tables)| {
            // Without a mount there is no line before the next table.
            let (mounts, swaps) = tables.split_once(SWAPS)?;
            Some((facts, mounts.to_owned(), swaps.to_owned()))
        });
        let (facts, mounts, swaps) = parts.context("it did not answer all questions")?;
        let fact = |line: &str| {
            let (name, value) = line.split_once('=')?;
            let value = value.trim();
            (!value.is_empty()).then(|| (name.to_owned(), value.to_owned()))
        };
        Ok(Self { facts: facts.lines().filter_map(fact).collect(), mounts, swaps })
    }

    /// `None` for what is not known.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let found = self.facts.iter().find(|(fact, _)| fact == name);
        found.map(|(_, value)| value.as_str())
    }

    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.facts.iter().filter(move |(fact, _)| fact == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.split_whitespace().next()?.parse().ok()
    }

    fn small(&self, name: &str) -> Option<u16> {
        u16::try_from(self.number(name)?).ok()
    }

    fn text(&self, name: &str) -> Option<String> {
        self.value(name).map(str::to_owned)
    }

    /// `block`, `file`, `directory`, `other`, or nothing.
    pub(super) fn kind(&self) -> Option<&str> {
        self.value("kind")
    }

    pub(super) fn bytes(&self, kind: Kind) -> Option<u64> {
        match kind {
            Kind::Block => self.number("sectors")?.checked_mul(SECTOR_BYTES),
            Kind::File => self.number("bytes"),
        }
    }

    /// Who uses the disk in the guest.
    pub(super) fn uses(&self, device: &str) -> Vec<Use> {
        let parts: Vec<Part> = self.values("part").filter_map(Part::parse).collect();
        let mut uses = self.mounted(&parts);
        let swap = |place: &PathBuf| {
            let known = [Some(device), self.value("real")];
            let is_part = parts.iter().any(|part| *place == part.path());
            is_part || known.into_iter().flatten().any(|name| place == Path::new(name))
        };
        uses.extend(swaps(&self.swaps).iter().filter(|place| swap(place)).map(|_| Use::Swap));
        uses.extend(self.values("holder").filter_map(|words| {
            let (device, name) = words.split_once(' ')?;
            Some(Use::Holder { device: format!("/dev/{device}"), name: name.to_owned() })
        }));
        uses.extend(self.values("loop").filter_map(|words| {
            let (device, read_only) = words.split_once(' ')?;
            let access = if read_only == "1" { Access::Reads } else { Access::Writes };
            Some(Use::Loop { device: device.to_owned(), access })
        }));
        uses
    }

    fn mounted(&self, parts: &[Part]) -> Vec<Use> {
        let mut uses = Vec::new();
        for mount in mounts(&self.mounts) {
            let is_on = |part: &&Part| mount.device == part.number || mount.source == part.path();
            if let Some(part) = parts.iter().find(is_on) {
                let device = format!("/dev/{}", part.name);
                uses.push(Use::Mounted { device, at: mount.at.clone() });
            }
        }
        uses
    }

    /// What bends the numbers.
    pub(super) fn notes(&self, kind: Kind, bytes: u64) -> Vec<String> {
        let mut notes = Vec::new();
        let system = self.value("file_system").unwrap_or("its file system");
        if self.value("direct").is_none() {
            notes.push(format!(
                "in your guest {system} knows no O_DIRECT: the numbers are those of the guest's \
                 memory as far as it reaches"
            ));
        }
        if self.has_holes(kind, bytes) {
            notes.push(format!("the file in your guest has holes: {HOLES}"));
        }
        notes
    }

    fn has_holes(&self, kind: Kind, bytes: u64) -> bool {
        let stored = self.value("stored").and_then(|stored| {
            let (blocks, unit) = stored.split_once(' ')?;
            blocks.parse::<u64>().ok()?.checked_mul(unit.parse().ok()?)
        });
        kind == Kind::File && stored.is_some_and(|stored| has_holes(bytes, stored))
    }

    /// Whether the kernel lets nobody have an io_uring. A level of 1 leaves it to root and a group.
    pub(super) fn forbids_io_uring(&self) -> bool {
        self.number("io_uring_disabled") == Some(2)
    }

    pub(super) fn guest(&self, path: &str, kind: Kind, bytes: u64, fio: FioVersion) -> GivenGuest {
        let holes = self.has_holes(kind, bytes);
        let kind = match kind {
            Kind::Block => "block device".to_owned(),
            Kind::File => self.text("file_system").unwrap_or_else(|| "a file".to_owned()),
        };
        let disk = GivenDisk {
            path: path.to_owned(),
            bytes,
            kind,
            model: self.text("model"),
            queues: self.small("queues"),
            scheduler: self
                .value("scheduler")
                .map(|it| chosen(it).unwrap_or_else(|| it.to_owned())),
            rotational: self.value("rotational").map(|value| value == "1"),
            direct: self.value("direct").is_some(),
            holes,
        };
        GivenGuest {
            host: self.text("host").unwrap_or_default(),
            identity: self.value("machine").map(hash),
            kernel: self.text("kernel").unwrap_or_default(),
            cpu: self.text("cpu"),
            cpus: self.small("cpus").unwrap_or_default(),
            memory_kib: self.number("memory"),
            hypervisor: self.hypervisor(),
            vendor: self.text("vendor"),
            fio: fio.to_string(),
            disk,
        }
    }

    fn hypervisor(&self) -> Option<String> {
        let detected = self.value("detected").filter(|&name| name != "none");
        let named = detected.or_else(|| self.value("xen")).map(str::to_owned);
        let flagged = self.number("flag").is_some_and(|cpus| cpus > 0);
        named.or_else(|| flagged.then(|| "unknown".to_owned()))
    }
}

impl Part {
    /// `254:16 vdb`.
    fn parse(words: &str) -> Option<Self> {
        let (number, name) = words.split_once(' ')?;
        Some(Self { number: device_number(number, 10)?, name: name.to_owned() })
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }
}

/// FNV-1a: half of the bits of an id, which tell it from others and do not give it away.
fn hash(id: &str) -> String {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    format!("{:016x}", id.bytes().fold(BASIS, fold))
}
