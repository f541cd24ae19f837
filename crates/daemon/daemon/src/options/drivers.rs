//! The drivers of `--blockdev`: one entry each, with its keys and what reads them.
//!
//! A new driver is a file in `drivers/`, an entry in [`TABLE`], a variant of
//! [`Driver`](super::plan::Driver) and an arm where the graph makes nodes.
//!
//! Not here: the keys that all drivers have (`blockdev`).

pub(super) mod delay;
pub(super) mod file;
mod null;
mod qcow2;
mod raw;
mod stripe;
mod throttle;

use super::blockdev::Reader;
use super::fault::Fault;
use super::fields::{Fields, Keys};
use super::plan::Driver;

/// A driver that works.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Its name, as in `driver=`.
    pub(super) name: &'static str,
    /// All its keys.
    pub(super) keys: Keys,
    /// Reads the keys that only this driver has, and its children.
    pub(super) read: fn(&mut Reader) -> Result<Driver, Fault>,
}

/// The drivers that work, in the order in which messages name them.
pub(super) const TABLE: &[Entry] = &[
    file::REGULAR,
    file::HOST_DEVICE,
    raw::ENTRY,
    qcow2::ENTRY,
    null::ENTRY,
    throttle::ENTRY,
    delay::ENTRY,
    stripe::ENTRY,
];

/// The drivers that qemu-storage-daemon has and ringloom does not have yet.
const LATER: &[&str] = &[
    "blkdebug",
    "blklogwrites",
    "blkreplay",
    "blkverify",
    "bochs",
    "cloop",
    "compress",
    "copy-before-write",
    "copy-on-read",
    "dmg",
    "ftp",
    "ftps",
    "gluster",
    "host_cdrom",
    "http",
    "https",
    "io_uring",
    "iscsi",
    "luks",
    "nbd",
    "nfs",
    "null-aio",
    "nvme",
    "nvme-io_uring",
    "parallels",
    "preallocate",
    "qcow",
    "qed",
    "quorum",
    "rbd",
    "replication",
    "snapshot-access",
    "ssh",
    "vdi",
    "vhdx",
    "virtio-blk-vfio-pci",
    "virtio-blk-vhost-user",
    "virtio-blk-vhost-vdpa",
    "vmdk",
    "vpc",
    "vvfat",
];

/// The driver of that name. What is not there yet and what nobody knows are told apart.
pub(super) fn find(fields: &Fields, name: String) -> Result<&'static Entry, Fault> {
    if let Some(entry) = TABLE.iter().find(|entry| entry.name == name) {
        return Ok(entry);
    }
    let accepted: Vec<&str> = TABLE.iter().map(|entry| entry.name).collect();
    if LATER.contains(&name.as_str()) {
        return Err(Fault::ValueNotYet { key: fields.path("driver"), value: name, accepted });
    }
    Err(fields.unknown_value("driver", name, &accepted))
}
