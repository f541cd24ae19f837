//! Who else uses the disk of the user: mounts, swap, loop devices, device-mapper, virtual machines.
//!
//! `target` asks before it opens PATH. Measuring reads what others change, and with `--destructive`
//! destroys it, so:
//! - A disk that is written is refused if anybody uses it at all.
//! - A disk that is only read is refused if somebody may write it: the figures would be theirs as much
//!   as ours. Readers are allowed, and noted.
//!
//! Invariants: finding (`find`) and judging (`judge`) are apart; judging is pure.
//! Limits: without root, the locks of other users' processes are seen without their names.

pub mod tables;

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use plan::matrix::Writes;
use rustix::fs::{OFlags, major, minor};
use rustix::io::Errno;

use crate::clock;
use tables::{Lock, Mount};

/// The bytes that QEMU and ringloom lock for what they do (100 and up) and what they deny others
/// (200 and up), by the order of QEMU's permissions: consistent read, write, write unchanged, resize.
const USES: u64 = 100;
const DENIES: u64 = 200;
const PERMISSIONS: u64 = 4;
const CONSISTENT_READ: u64 = 0;
const WRITE: u64 = 1;
const RESIZE: u64 = 3;

/// Who has a device for itself for longer than this keeps it.
const PASSING: Duration = Duration::from_secs(2);

/// Where the kernel tells who uses what.
#[derive(Clone, Debug)]
struct Kernel {
    proc: PathBuf,
    sys: PathBuf,
}

/// A process, as far as we may know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pid: u32,
    name: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// What somebody may do with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Reads it.
    Reads,
    /// Writes it.
    Writes,
}

/// One use of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// The device, or a partition of it, is mounted here.
    Mounted {
        /// What is mounted.
        device: String,
        /// Where.
        at: PathBuf,
    },
    /// It holds swapped memory.
    Swap,
    /// Another block device stands on it, by name.
    Holder {
        /// What lies on it.
        device: String,
        /// The name of that.
        name: String,
    },
    /// A loop device shows it.
    Loop {
        /// The loop device.
        device: String,
        /// What that may do.
        access: Access,
    },
    /// A lock of QEMU, qemu-img, qemu-storage-daemon or ringloom.
    Image {
        /// What it may do.
        access: Access,
        /// Which process, where that is known.
        by: Option<Process>,
    },
    /// Somebody has the device for itself, and nothing above tells who.
    Exclusive,
}

impl Use {
    fn access(&self) -> Access {
        match self {
            Self::Mounted { .. } | Self::Swap | Self::Holder { .. } | Self::Exclusive => {
                Access::Writes
            }
            Self::Loop { access, .. } | Self::Image { access, .. } => *access,
        }
    }

    /// What to do to end it.
    fn remedy(&self) -> String {
        match self {
            Self::Mounted { at, .. } => format!("unmount it (umount {})", at.display()),
            Self::Swap => "switch the swap off (swapoff)".to_owned(),
            Self::Holder { name, .. } => format!("take {name} away from it"),
            Self::Loop { device, .. } => format!("detach it (losetup -d {device})"),
            Self::Image { .. } => "stop the virtual machine or program".to_owned(),
            Self::Exclusive => "end that program".to_owned(),
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { device, at } => write!(f, "{device} is mounted on {}", at.display()),
            Self::Swap => f.write_str("it is swap space"),
            Self::Holder { device, name } => write!(f, "{name} stands on {device}"),
            Self::Loop { device, .. } => write!(f, "{device} shows it as a loop device"),
            Self::Image { access, by } => {
                match by {
                    Some(process) => write!(f, "{process}")?,
                    None => f.write_str("a process that is not named")?,
                }
                let what = match access {
                    Access::Reads => "reads it as an image",
                    Access::Writes => "has it as an image, to write it",
                };
                write!(f, " {what}")
            }
            Self::Exclusive => f.write_str("another program has the device for itself"),
        }
    }
}

/// Checks that nobody's data or figures are spoilt by measuring the file or device at `path`.
/// Returns what the user should know all the same.
///
/// # Errors
/// Who uses it and what to do, or that it cannot be found out.
pub fn check(path: &Path, writes: Writes) -> Result<Vec<String>> {
    let kernel = Kernel { proc: PathBuf::from("/proc"), sys: PathBuf::from("/sys") };
    let uses =
        find(&kernel, path).with_context(|| format!("disk {}: who uses it", path.display()))?;
    judge(path, writes, &uses)
}

/// Whether a disk with these uses may be measured; returns what the user should know all the same.
///
/// # Errors
/// Who uses it and what to do.
pub fn judge(path: &Path, writes: Writes, uses: &[Use]) -> Result<Vec<String>> {
    let spoils = |one: &&Use| writes == Writes::Allowed || one.access() == Access::Writes;
    if let Some(one) = uses.iter().find(spoils) {
        let name = path.display();
        let remedy = one.remedy();
        bail!("disk {name}: is in use, {one}: {remedy}, or measure another disk or a scratch file");
    }
    Ok(uses.iter().map(|one| format!("the disk is in use, {one}")).collect())
}

/// All uses that the system tells of.
fn find(kernel: &Kernel, path: &Path) -> Result<Vec<Use>> {
    let metadata = std::fs::metadata(path)?;
    let file = FileId { device: metadata.dev(), inode: metadata.ino() };
    let mut uses = kernel.swap(path, &metadata)?;
    if metadata.file_type().is_block_device() {
        uses.extend(kernel.device_uses(metadata.rdev())?);
        if uses.is_empty() && is_exclusive(path) {
            uses.push(Use::Exclusive);
        }
    } else {
        uses.extend(kernel.loops(file)?);
    }
    uses.extend(kernel.images(file)?);
    Ok(uses)
}

/// Which file it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// `None` if there is no such file, or we may not look.
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// Whether somebody else keeps a block device opened with O_EXCL, as mounts and arrays do.
///
/// Others have it so for a moment only: losetup as it looks for a free device, udev as it looks at a
/// new one, a child between fork and exec.
fn is_exclusive(path: &Path) -> bool {
    let flag = i32::try_from(OFlags::EXCL.bits()).expect("O_EXCL fits the flags of open");
    let is_held = |error: &io::Error| error.raw_os_error() == Some(Errno::BUSY.raw_os_error());
    let open = || OpenOptions::new().read(true).custom_flags(flag).open(path);
    // Other errors are those of whoever opens it next.
    clock::while_held(PASSING, is_held, open).is_err_and(|error| is_held(&error))
}

impl Kernel {
    fn read(&self, name: &str) -> Result<String> {
        let path = self.proc.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    }

    fn swap(&self, path: &Path, metadata: &std::fs::Metadata) -> Result<Vec<Use>> {
        // A kernel without swap has no such file.
        let text = self.read("swaps").unwrap_or_default();
        let is_ours = |place: &PathBuf| {
            if metadata.file_type().is_block_device() {
                let other = std::fs::metadata(place).map(|other| other.rdev());
                return other.is_ok_and(|device| device == metadata.rdev());
            }
            place == path || FileId::of(place).is_some_and(|other| Some(other) == FileId::of(path))
        };
        Ok(tables::swaps(&text).iter().filter(|place| is_ours(place)).map(|_| Use::Swap).collect())
    }

    /// Mounts and holders of a device and its partitions.
    fn device_uses(&self, device: u64) -> Result<Vec<Use>> {
        let mounts = tables::mounts(&self.read("self/mountinfo")?);
        let mut uses = Vec::new();
        for part in self.with_partitions(device) {
            let is_part = |mount: &&Mount| {
                let source = std::fs::metadata(&mount.source);
                mount.device == part.number
                    || source.is_ok_and(|source| {
                        source.file_type().is_block_device() && number(source.rdev()) == part.number
                    })
            };
            let mounted = mounts
                .iter()
                .filter(is_part)
                .map(|mount| Use::Mounted { device: part.name.clone(), at: mount.at.clone() });
            uses.extend(mounted);
            let device = &part.name;
            let holders = entries(&part.directory.join("holders")).into_iter();
            uses.extend(holders.map(|name| Use::Holder { device: device.clone(), name }));
        }
        Ok(uses)
    }

    /// A device and its partitions, as far as sysfs knows it.
    fn with_partitions(&self, device: u64) -> Vec<Part> {
        let (major, minor) = number(device);
        let whole = self.sys.join(format!("dev/block/{major}:{minor}"));
        let Ok(whole) = whole.canonicalize() else {
            let name = format!("the device {major}:{minor}");
            return vec![Part { name, number: (major, minor), directory: whole }];
        };
        let partitions = entries(&whole).into_iter().map(|name| whole.join(name));
        let directories = std::iter::once(whole.clone())
            .chain(partitions.filter(|directory| directory.join("partition").exists()));
        directories.filter_map(Part::read).collect()
    }

    /// Loop devices that show a file.
    fn loops(&self, file: FileId) -> Result<Vec<Use>> {
        let mut uses = Vec::new();
        let block = self.sys.join("block");
        for name in entries(&block).into_iter().filter(|name| name.starts_with("loop")) {
            let directory = block.join(&name);
            // Loop devices that are free have none.
            let Ok(text) = std::fs::read_to_string(directory.join("loop/backing_file")) else {
                continue;
            };
            if FileId::of(Path::new(text.trim_end_matches('\n'))) != Some(file) {
                continue;
            }
            let read_only = std::fs::read_to_string(directory.join("ro"));
            let read_only = read_only.is_ok_and(|text| text.trim() == "1");
            let access = if read_only { Access::Reads } else { Access::Writes };
            uses.push(Use::Loop { device: format!("/dev/{name}"), access });
        }
        Ok(uses)
    }

    /// Locks of image users. A process that we may look into is named; of others the kernel tells
    /// the locks alone.
    fn images(&self, file: FileId) -> Result<Vec<Use>> {
        let mut uses = Vec::new();
        for pid in entries(&self.proc).into_iter().filter_map(|name| name.parse::<u32>().ok()) {
            let locks = self.locks_of(pid, file);
            if let Some(access) = image_access(&locks) {
                let name = self.read(&format!("{pid}/comm")).unwrap_or_default();
                let by = Some(Process { pid, name: name.trim().to_owned() });
                uses.push(Use::Image { access, by });
            }
        }
        if !uses.is_empty() {
            return Ok(uses);
        }
        let (device, inode) = (number(file.device), file.inode);
        let all = tables::locks(&self.read("locks")?);
        let ours: Vec<_> =
            all.into_iter().filter(|lock| (lock.device, lock.inode) == (device, inode)).collect();
        Ok(image_access(&ours).map(|access| Use::Image { access, by: None }).into_iter().collect())
    }

    /// The locks that a process holds through its open files of this file.
    fn locks_of(&self, pid: u32, file: FileId) -> Vec<Lock> {
        let process = self.proc.join(pid.to_string());
        let is_ours = |name: &String| FileId::of(&process.join("fd").join(name)) == Some(file);
        let descriptors = entries(&process.join("fd")).into_iter().filter(is_ours);
        let text = |name: String| {
            std::fs::read_to_string(process.join("fdinfo").join(name)).unwrap_or_default()
        };
        descriptors.flat_map(|name| tables::locks_of_descriptor(&text(name))).collect()
    }
}

/// What the holder of these locks may do; `None` if they are none of an image's.
fn image_access(locks: &[Lock]) -> Option<Access> {
    let has = |byte: u64| locks.iter().any(|lock| lock.covers(byte));
    let writes = [USES + WRITE, USES + RESIZE, DENIES + CONSISTENT_READ].into_iter().any(has);
    let any = (0..PERMISSIONS).any(|bit| has(USES + bit) || has(DENIES + bit));
    any.then_some(if writes { Access::Writes } else { Access::Reads })
}

/// A device or partition in sysfs.
#[derive(Debug)]
struct Part {
    name: String,
    number: (u32, u32),
    directory: PathBuf,
}

impl Part {
    fn read(directory: PathBuf) -> Option<Self> {
        let text = std::fs::read_to_string(directory.join("dev")).ok()?;
        let number = tables::device_number(text.trim(), 10)?;
        let name = format!("/dev/{}", directory.file_name()?.to_string_lossy());
        Some(Self { name, number, directory })
    }
}

fn number(device: u64) -> (u32, u32) {
    (major(device), minor(device))
}

/// The names in a directory; none if it is not there.
fn entries(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests;
