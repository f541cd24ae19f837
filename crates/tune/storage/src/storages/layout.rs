//! Which storage the variants need: how many disks of each kind, and how much room.
//!
//! Variants that differ only above the files (device, engine, tables in memory, which machine has the
//! disk) share their disks, so that nothing is filled twice.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use plan::units::{Bytes, counted};
use plan::variant::{Content, Delay, FileSystem, Image, Layers, Qcow2, Stripe, Variant};

use super::Workshop;
use super::container::{check, container_bytes};
use super::qcow2;
use super::tools::{LOSETUP, QEMU_IMG};
use crate::scratch::{check_room, free_bytes};

/// A loop device and its file count in whole MiB.
const FILE_UNIT_BYTES: u64 = 1 << 20;

/// What is below a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageKey {
    pub(super) image: Image,
    pub(super) fs: FileSystem,
    pub(super) stripe: Stripe,
    pub(super) delay: Delay,
}

impl StorageKey {
    /// Of a variant.
    pub fn of(variant: &Variant) -> Self {
        let Variant { image, fs, stripe, delay, .. } = *variant;
        // How much of its tables a program keeps in memory does not change the image.
        let image = match image {
            Image::Raw => Image::Raw,
            Image::Qcow2(image) => Image::Qcow2(Qcow2 { cache: None, ..image }),
        };
        Self { image, fs, stripe, delay }
    }

    /// How many files a disk has and how long each is, if they hold so many bytes.
    pub(super) fn members(&self, bytes: u64) -> (u16, u64) {
        match self.stripe {
            Stripe::None => (1, bytes.next_multiple_of(FILE_UNIT_BYTES)),
            Stripe::Of(stripe) => {
                let unit = stripe.chunk().0.max(FILE_UNIT_BYTES);
                let share = bytes.div_ceil(u64::from(stripe.count()));
                (stripe.count(), share.next_multiple_of(unit))
            }
        }
    }
}

/// Every storage with the most disks that a variant wants of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoragePlan {
    pub(super) storages: BTreeMap<StorageKey, u16>,
}

impl StoragePlan {
    /// Of all of these, each storage once.
    pub fn new(variants: &[Variant]) -> Self {
        let mut storages = BTreeMap::new();
        for variant in variants {
            let disks = storages.entry(StorageKey::of(variant)).or_insert(0);
            *disks = variant.disks_in_all().max(*disks);
        }
        Self { storages }
    }

    /// Whether it is one file.
    pub fn is_plain(&self) -> bool {
        let files = self.storages.iter().map(|(key, disks)| (key.members(1).0 * disks, key));
        matches!(&files.collect::<Vec<_>>()[..], [(1, key)] if key.image == Image::Raw)
    }

    /// How much is written before the first run, for the estimate and the bar.
    pub fn fill_bytes(&self, size: Bytes) -> u64 {
        let of_one = |key: &StorageKey| match key.image {
            Image::Raw => {
                let (count, member) = key.members(size.0);
                u64::from(count) * member
            }
            // Once raw, once as an image.
            Image::Qcow2(Qcow2 { content: Content::Full, .. }) => 2 * size.0,
            Image::Qcow2(Qcow2 { content: Content::Empty, .. }) => 0,
        };
        self.storages.iter().map(|(key, disks)| of_one(key) * u64::from(*disks)).sum()
    }

    /// Fails before anything is made if a program, a right or room is missing.
    ///
    /// # Errors
    /// What is missing; `Interrupted` after a signal.
    pub fn check(&self, workshop: &Workshop<'_>) -> Result<()> {
        let (mut kept, mut temporary) = (0, 0);
        for (key, disks) in &self.storages {
            check(key.fs, workshop.tools)?;
            if workshop.is_mapped(key) {
                workshop.tools.find(LOSETUP)?;
            }
            if key.image != Image::Raw {
                workshop.tools.find(QEMU_IMG)?;
            }
            let room = Room::of(key, workshop)?;
            let content = room.kept * u64::from(*disks);
            kept += match key.fs {
                FileSystem::Here => content,
                FileSystem::Ext4 | FileSystem::Xfs => container_bytes(content),
            };
            temporary = room.temporary.max(temporary);
        }
        let all = Bytes((kept + temporary).next_multiple_of(FILE_UNIT_BYTES));
        let free = free_bytes(workshop.directory)?;
        let what = match self.storages.values().collect::<Vec<_>>()[..] {
            _ if all == workshop.size => format!("a scratch file of {all}"),
            [disks] => {
                format!(
                    "storage of {all} for {} of {}",
                    counted((*disks).into(), "disk"),
                    workshop.size
                )
            }
            _ => format!("storage of {all} for all variants"),
        };
        check_room(&what, all, free, workshop.directory)
    }
}

/// Bytes that one disk needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// As long as it exists.
    pub(super) kept: u64,
    /// While it is made.
    temporary: u64,
    /// What its files can hold.
    pub(super) capacity: u64,
}

impl Room {
    pub(super) fn of(key: &StorageKey, workshop: &Workshop<'_>) -> Result<Self> {
        let size = workshop.size.0;
        ensure!(
            size >= FILE_UNIT_BYTES && size.is_multiple_of(FILE_UNIT_BYTES),
            "--size {}: must be a multiple of {}",
            workshop.size,
            Bytes(FILE_UNIT_BYTES)
        );
        let (capacity, source, image_copy) = match key.image {
            Image::Raw => (size, 0, 0),
            Image::Qcow2(image) => {
                let largest = qcow2::largest(&image, size, workshop.tools, workshop.interrupt)?;
                let source = if image.content == Content::Full { size } else { 0 };
                let spread = key.stripe != Stripe::None;
                (largest, source, if spread { largest } else { 0 })
            }
        };
        let (count, member) = key.members(capacity);
        Ok(Self { kept: u64::from(count) * member, temporary: source + image_copy, capacity })
    }
}

impl Workshop<'_> {
    /// Whether the kernel makes layers of this storage.
    pub(super) fn is_mapped(&self, key: &StorageKey) -> bool {
        let layered = key.stripe != Stripe::None || !key.delay.is_none();
        layered && self.mapper.layers(key.stripe, key.delay) == Layers::Kernel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(image: &str, stripe: &str, disks: u16) -> Variant {
        let (image, stripe) = (image.parse().unwrap(), stripe.parse().unwrap());
        Variant { image, stripe, disks, ..Variant::default() }
    }

    #[test]
    fn variants_share_what_is_below_them() {
        let nvme = Variant { device: "nvme".parse().unwrap(), vms: 2, ..variant("raw", "none", 2) };
        let plan = StoragePlan::new(&[
            variant("raw", "none", 1),
            nvme,
            variant("qcow2:cache=1M", "none", 1),
            variant("qcow2", "none", 3),
            variant("qcow2:empty", "none", 1),
        ]);
        let disks: Vec<_> = plan.storages.values().copied().collect();
        assert_eq!(disks, [4, 3, 1]);
        assert_eq!(plan.fill_bytes(Bytes(8 << 20)), (4 * 8 + 3 * 2 * 8) << 20);
    }

    #[test]
    fn members_hold_whole_chunks() {
        let members = |stripe, bytes| StorageKey::of(&variant("raw", stripe, 1)).members(bytes);
        assert_eq!(members("none", 8 << 20), (1, 8 << 20));
        assert_eq!(members("none", (8 << 20) + 512), (1, 9 << 20));
        assert_eq!(members("3x64k", 8 << 20), (3, 3 << 20));
        assert_eq!(members("2x16M", 8 << 20), (2, 16 << 20));
    }
}
