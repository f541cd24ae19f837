//! What lies below the measured disk: the file system and the block devices, from the top down.
//!
//! Limits: `DEPTH_MAX` devices on top of each other. File systems without a block device of their
//! own (tmpfs, overlay, network) end the walk; btrfs is followed by the source of its mount.

use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use storage::in_use::tables::{Mount, mounts};

use super::kernel::chosen;
use super::told;
use super::tree::{Tree, names, text};

/// Encryption on LVM on RAID on partitions is 4.
const DEPTH_MAX: u32 = 16;

/// All that is below a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskBelow {
    /// Missing for a block device.
    pub mounted_on: Option<MountedOn>,
    /// Partitions count as their disk.
    pub devices: Vec<BlockDevice>,
}

/// A file system in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountedOn {
    /// `ext4`.
    pub kind: String,
    /// `rw,relatime,discard`.
    pub options: String,
}

/// A block device as /sys/block tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockDevice {
    /// `nvme0n1`.
    pub name: String,
    /// The name that its maker gave it.
    pub model: Option<String>,
    /// `loop`, `md raid0`, `dm CRYPT` for a device that lies on others.
    pub layer: Option<String>,
    /// Whether it spins.
    pub rotational: Option<bool>,
    /// The I/O scheduler.
    pub scheduler: Option<String>,
    /// Requests that the kernel queues.
    pub nr_requests: Option<u32>,
    /// Requests that a SCSI device takes at once.
    pub queue_depth: Option<u32>,
    /// Queues of the device.
    pub hardware_queues: Option<usize>,
    /// `write back` or `write through`.
    pub write_cache: Option<String>,
    /// The unit of addresses.
    pub logical_block_bytes: Option<u32>,
    /// What it writes at once.
    pub physical_block_bytes: Option<u32>,
}

impl fmt::Display for MountedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.kind, self.options)
    }
}

impl fmt::Display for BlockDevice {
    /// Without the name, which changes when a loop device is made again, and without the depth of a SCSI device, which the
    /// kernel lowers and raises while it is used.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.model.as_ref().or(self.layer.as_ref()).unwrap_or(&self.name);
        let scheduler = told(self.scheduler.as_ref());
        let cache = told(self.write_cache.as_ref());
        let requests = told(self.nr_requests.as_ref());
        let queues = told(self.hardware_queues.as_ref());
        let bytes = told(self.logical_block_bytes.as_ref());
        write!(
            f,
            "{label} (scheduler {scheduler}, {requests} requests, {queues} queues, blocks of {bytes} bytes, write \
             cache {cache})"
        )
    }
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DiskPlace {
    /// A file or directory, by its true path.
    Path(PathBuf),
    /// A block device, by major and minor number.
    Device(u32, u32),
    /// What cannot be found.
    Nowhere,
}

impl DiskPlace {
    pub(super) fn of(disk: &Path) -> Self {
        match fs::metadata(disk) {
            Ok(metadata) if metadata.file_type().is_block_device() => {
                let device = metadata.rdev();
                Self::Device(rustix::fs::major(device), rustix::fs::minor(device))
            }
            Ok(_) => fs::canonicalize(disk).map_or(Self::Nowhere, Self::Path),
            Err(_) => Self::Nowhere,
        }
    }
}

impl DiskBelow {
    pub(super) fn read(tree: &Tree, place: &DiskPlace) -> Self {
        let mut below = Self::default();
        match place {
            DiskPlace::Path(path) => {
                let mounts = tree.text("proc/self/mountinfo").unwrap_or_default();
                let mount = mount_of(&mounts, path);
                if let Some(device) = mount.as_ref().and_then(|mount| sysfs_of(mount, tree)) {
                    below.follow(tree, &device, DEPTH_MAX);
                }
                below.mounted_on = mount.map(|it| MountedOn { kind: it.kind, options: it.options });
            }
            DiskPlace::Device(major, minor) => {
                below.follow(tree, &format!("sys/dev/block/{major}:{minor}"), DEPTH_MAX);
            }
            DiskPlace::Nowhere => {}
        }
        below
    }

    /// Adds the device and those below it.
    fn follow(&mut self, tree: &Tree, device: &str, depth: u32) {
        let Some(directory) = fs::canonicalize(tree.path(device)).ok().and_then(whole_disk) else {
            return;
        };
        let Some(name) = directory.file_name().and_then(|name| name.to_str()) else { return };
        let known = self.devices.iter().any(|device| device.name == name);
        if known || depth == 0 {
            return;
        }
        self.devices.push(BlockDevice::read(name, &directory));
        if let Some(file) = text(&directory.join("loop/backing_file")) {
            let mounts = tree.text("proc/self/mountinfo").unwrap_or_default();
            let mount = mount_of(&mounts, Path::new(&file));
            if let Some(device) = mount.and_then(|mount| sysfs_of(&mount, tree)) {
                self.follow(tree, &device, depth - 1);
            }
        }
        for name in names(&directory.join("slaves")) {
            self.follow(tree, &format!("sys/class/block/{name}"), depth - 1);
        }
    }
}

/// The directory of the disk to which a partition belongs, or the directory itself.
fn whole_disk(directory: PathBuf) -> Option<PathBuf> {
    if directory.join("partition").exists() {
        return directory.parent().map(Path::to_path_buf);
    }
    Some(directory)
}

impl BlockDevice {
    fn read(name: &str, directory: &Path) -> Self {
        let get = |path: &str| text(&directory.join(path));
        let number = |path: &str| get(path)?.parse().ok();
        let hardware_queues = names(&directory.join("mq")).len();
        Self {
            name: name.to_owned(),
            model: get("device/model"),
            layer: layer(directory),
            rotational: get("queue/rotational").map(|text| text == "1"),
            scheduler: get("queue/scheduler").map(|text| chosen(&text).unwrap_or(text)),
            nr_requests: number("queue/nr_requests"),
            queue_depth: number("device/queue_depth"),
            hardware_queues: (hardware_queues > 0).then_some(hardware_queues),
            write_cache: get("queue/write_cache"),
            logical_block_bytes: number("queue/logical_block_size"),
            physical_block_bytes: number("queue/physical_block_size"),
        }
    }
}

fn layer(directory: &Path) -> Option<String> {
    if directory.join("loop").exists() {
        return Some("loop".to_owned());
    }
    if let Some(level) = text(&directory.join("md/level")) {
        return Some(format!("md {level}"));
    }
    if !directory.join("dm").exists() {
        return None;
    }
    // The identifier begins with the maker: `LVM-…`, `CRYPT-…`.
    let identifier = text(&directory.join("dm/uuid"));
    let maker = identifier.as_deref().and_then(|text| Some(text.split_once('-')?.0.to_owned()));
    Some(maker.map_or_else(|| "dm".to_owned(), |maker| format!("dm {maker}")))
}

/// The mount that holds a path: of the longest mount point the newest.
fn mount_of(mountinfo: &str, path: &Path) -> Option<Mount> {
    let mounts = mounts(mountinfo).into_iter().filter(|mount| path.starts_with(&mount.at));
    mounts.max_by_key(|mount| mount.at.components().count())
}

/// Where sysfs tells about the block device of a mount.
fn sysfs_of(mount: &Mount, tree: &Tree) -> Option<String> {
    let (major, minor) = mount.device;
    if major != 0 {
        return Some(format!("sys/dev/block/{major}:{minor}"));
    }
    let source = mount.source.strip_prefix("/dev").ok()?;
    let source = fs::canonicalize(tree.path("dev").join(source)).ok()?;
    Some(format!("sys/class/block/{}", source.file_name()?.to_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
27 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw,discard
28 27 0:25 / /tmp rw,nosuid shared:4 - tmpfs tmpfs rw,size=4k
29 27 8:1 / /srv/my\\040disks rw,noatime shared:5 master:1 - xfs /dev/sda1 rw,noquota
30 27 8:17 / /srv/my\\040disks rw - ext4 /dev/sdb1 rw
damaged line
";

    #[track_caller]
    fn check(path: &str, expected: &str, device: (u32, u32)) {
        let mount = mount_of(MOUNTS, Path::new(path)).unwrap();
        let found = format!("{} ({})", mount.kind, mount.options);
        assert_eq!((found.as_str(), mount.device), (expected, device));
    }

    #[test]
    fn the_longest_and_newest_mount_holds_a_path() {
        check("/var/a", "ext4 (rw,relatime,discard)", (259, 2));
        check("/tmp/x/y", "tmpfs (rw,nosuid,size=4k)", (0, 25));
        check("/tmpfoo", "ext4 (rw,relatime,discard)", (259, 2));
        check("/srv/my disks/d", "ext4 (rw)", (8, 17));
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn what_is_not_there_has_no_place() {
        assert_eq!(DiskPlace::of(Path::new("/nonexistent/disk")), DiskPlace::Nowhere);
    }
}
