//! Guest memory that an input fills, reached through its file as a guest does.
//!
//! Invariants: the two small regions are zero when a run starts, so that a run depends on its
//! input alone; nothing is ever written to the large region.
//! Threads: one memory for each thread, mapped once.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use block::{Buffers, Segment};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio::{GuestAddress, GuestMemory, Region, RegionSpec};

/// Where guest memory starts.
pub(crate) const GUEST: u64 = 0x10_0000;
/// The size of each of the two small regions, which are neighbours for the guest.
pub(crate) const REGION: u64 = 0x2000;
/// Where the first region lies in the front end.
pub(crate) const USER: u64 = 0x7f00_0000_0000;
/// Where the second region lies in the front end.
const USER_HIGH: u64 = USER + 4 * REGION;
/// Where the large region starts, for the guest and in the front end.
pub(crate) const LARGE: u64 = 0x4000_0000;
/// Its size: twice of it is more than a request may carry.
const LARGE_BYTES: u64 = 1 << 30;

/// What a small region has at the start of a run.
const ZEROES: [u8; 0x2000] = [0; 0x2000];

/// Memory of one guest.
pub(crate) struct Guest {
    file: File,
    pub(crate) memory: Arc<GuestMemory>,
    /// Where the small regions and the large one lie in this process.
    mapped: [Range<usize>; 3],
}

thread_local! {
    static THIS: Guest = Guest::new();
}

pub(crate) fn memfd(bytes: u64) -> OwnedFd {
    let fd = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory is available");
    ftruncate(&fd, bytes).expect("the file may grow");
    fd
}

impl Guest {
    fn new() -> Self {
        let small = memfd(2 * REGION);
        let region = |fd: &OwnedFd, guest, bytes, user_address, file_offset| {
            let fd = fd.try_clone().expect("descriptors are available");
            let spec = RegionSpec { guest: GuestAddress(guest), bytes, user_address, file_offset };
            Arc::new(Region::map(fd, spec, &Arc::default()).expect("the region lies in the file"))
        };
        let memory = GuestMemory::new(vec![
            region(&small, GUEST, REGION, USER, REGION),
            region(&small, GUEST + REGION, REGION, USER_HIGH, 0),
            region(&memfd(LARGE_BYTES), LARGE, LARGE_BYTES, LARGE, 0),
        ])
        .expect("the regions do not overlap");
        let mapped = [(USER, REGION), (USER_HIGH, REGION), (LARGE, LARGE_BYTES)].map(
            |(user_address, bytes)| {
                let base = memory.at_user_address(user_address, bytes).expect("a region of ours");
                let bytes = usize::try_from(bytes).expect("it is mapped");
                base.addr().get()..base.addr().get() + bytes
            },
        );
        Self { file: small.into(), memory: Arc::new(memory), mapped }
    }

    /// Runs with the memory of this thread, cleared.
    pub(crate) fn with(run: impl FnOnce(&Self)) {
        THIS.with(|guest| {
            for at in [0, REGION] {
                guest.file.write_all_at(&ZEROES, at).expect("the file is memory");
            }
            run(guest);
        });
    }

    /// Writes at a guest address, up to the end of the small regions.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        let Some(offset) = address.checked_sub(GUEST).filter(|it| *it < 2 * REGION) else {
            return;
        };
        let room = usize::try_from(2 * REGION - offset).expect("the regions are small");
        let bytes = &bytes[..bytes.len().min(room)];
        let below = usize::try_from(REGION.saturating_sub(offset)).expect("it is small");
        let (low, high) = bytes.split_at(bytes.len().min(below));
        // The regions are swapped in the file.
        for (bytes, at) in [(low, offset + REGION), (high, offset.saturating_sub(REGION))] {
            self.file.write_all_at(bytes, at).expect("the file is memory");
        }
    }

    /// The field at a front-end address of the first small region.
    pub(crate) fn u16_at_user(&self, user_address: u64) -> Option<u16> {
        let offset = user_address.checked_sub(USER).filter(|it| *it <= REGION - 2)?;
        let mut bytes = [0; 2];
        self.file.read_exact_at(&mut bytes, REGION + offset).expect("the file is memory");
        Some(u16::from_le_bytes(bytes))
    }

    /// Writes at a front-end address if it lies in the first small region.
    pub(crate) fn write_user(&self, user_address: u64, bytes: &[u8]) {
        if let Some(offset) = user_address.checked_sub(USER).filter(|it| *it < REGION) {
            self.write(GUEST + offset, bytes);
        }
    }

    /// Checks that all of it lies in guest memory and that its count is right.
    pub(crate) fn check(&self, buffers: &Buffers) {
        let mut count = 0;
        for segment in buffers.segments() {
            assert!(segment.count() > 0, "a segment without a byte");
            assert!(
                self.mapped.iter().any(|range| contains(range, *segment)),
                "{segment:?} is not in guest memory"
            );
            count += segment.count();
        }
        assert_eq!(count, buffers.count(), "the count is the sum of the segments");
    }

    /// Whether all of it lies in the small regions.
    pub(crate) fn is_small(&self, buffers: &Buffers) -> bool {
        let small = &self.mapped[..2];
        buffers.segments().iter().all(|segment| small.iter().any(|range| contains(range, *segment)))
    }
}

fn contains(range: &Range<usize>, segment: Segment) -> bool {
    let start = segment.base().addr().get();
    let end = start.checked_add(segment.count()).expect("a segment does not wrap");
    range.start <= start && end <= range.end
}
