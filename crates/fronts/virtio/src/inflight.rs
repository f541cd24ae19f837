//! The in-flight region: what a successor of this process must know to go on with the rings.
//!
//! Where it stands in the life of a request: beside it. The front end keeps the region
//! (vhost-user, "Inflight I/O tracking"); a ring marks a chain there when it pops it and clears
//! the mark when the driver has seen its completion. A ring that starts with a region that was used
//! before (its version is not 0) ignores the base that the front end says:
//!
//! 1. The batch that the death has cut is finished if the driver has seen it, and taken back if not
//!    ([`SplitTracker::open`], [`PackedTracker::open`]). Of a packed ring, used descriptors that an unseen batch has left
//!    are made available ones again (docs/decisions/0004-what-an-unseen-batch-leaves.md).
//! 2. Whatever was popped is either used or marked. So the ring goes on behind the used position by as much as is marked.
//! 3. The marked chains are popped first, in their old order, and then new ones. A ring that is stopped serves them
//!    before it says that it has stopped.
//! 4. The front end interrupts the guest once: it may have been shown completions and not been told.
//!
//! Invariants: whatever single store the process dies after, a successor finds each chain either
//! seen by the driver as used, or marked, or still available: exactly one of the three. Stores to
//! the region are in program order with those to the ring; a process that is killed has made all
//! stores up to some point and none behind it.
//! The region is hostile, as guest memory is: it is read at the start of a ring only, each field
//! once; afterwards it is only written, and what it says is kept on this side.
//! Threads: the mapping is shared by the rings of a session, each of which uses its own part.
//! Limits: [`INFLIGHT_QUEUES_MAX`] queues of [`RING_SIZE_MAX`] descriptors.
//! Behind the parts of the queues lies the cache mode (`session_record`).
//! Not here: messages (`vhost_user`), the order of a publication (`ring::publish`).

mod error;
mod fields;
mod packed;
mod session_record;
mod split;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};

use crate::{GuestAddress, MemoryRules, RING_SIZE_MAX, Region, RegionSpec, RingLayout};
use fields::InflightFields;
use session_record::NOTE_BYTES;

pub use error::{InflightError, InflightFault};
pub(crate) use packed::{PackedTracker, SavedChain};
pub use session_record::CacheModeAndSizeRecord;
pub(crate) use split::SplitTracker;

/// The most queues that one region tracks: as many as a device has.
pub const INFLIGHT_QUEUES_MAX: u16 = 256;

/// Parts start at multiples of this, as those of other back-ends do.
const PART_ALIGNMENT: usize = 64;

/// The version of a region that was used. 0 stands for one that was not.
const VERSION: u16 = 1;

/// Where fields that both layouts have lie in a part.
const FEATURES: usize = 0;
const VERSION_FIELD: usize = 8;
const ENTRIES_FIELD: usize = 10;

/// How many queues an in-flight region tracks, and how large they are at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InflightGeometry {
    queues: u16,
    queue_size: u16,
}

impl InflightGeometry {
    /// A region for so many queues of at most so many descriptors each; neither may be 0.
    pub fn check(queues: u16, queue_size: u16) -> Result<Self, InflightError> {
        if (1..=INFLIGHT_QUEUES_MAX).contains(&queues) && (1..=RING_SIZE_MAX).contains(&queue_size)
        {
            Ok(Self { queues, queue_size })
        } else {
            Err(InflightError::Shape { queues, queue_size })
        }
    }

    /// The bytes of a region of ours: the parts of all queues, in the layout that takes more room,
    /// and the note behind them.
    pub fn region_bytes(self) -> u64 {
        (self.note_offset() + NOTE_BYTES) as u64
    }

    /// Where the note lies: behind all parts, whatever the layout, which is not known when a front
    /// end gives a region back.
    fn note_offset(self) -> usize {
        let parts = [RingLayout::Split, RingLayout::Packed].map(|layout| self.part_bytes(layout));
        parts[0].max(parts[1]) * usize::from(self.queues)
    }

    /// The bytes of the parts of rings of this layout: at most 256 MiB and 16 KiB.
    fn bytes(self, layout: RingLayout) -> u64 {
        self.part_bytes(layout) as u64 * u64::from(self.queues)
    }

    fn part_bytes(self, layout: RingLayout) -> usize {
        let (header, entry) = match layout {
            RingLayout::Split => (split::HEADER_BYTES, split::ENTRY_BYTES),
            RingLayout::Packed => (packed::HEADER_BYTES, packed::ENTRY_BYTES),
        };
        (header + entry * usize::from(self.queue_size)).next_multiple_of(PART_ALIGNMENT)
    }
}

/// A mapped in-flight region (vhost-user, "Inflight I/O tracking"). It stays mapped as long as a ring uses it.
#[derive(Debug)]
pub struct InflightRegion {
    shape: InflightGeometry,
    region: Region,
}

impl InflightRegion {
    /// A new region of which nothing was used, and the descriptor for the front end
    /// (GET_INFLIGHT_FD), of [`InflightGeometry::region_bytes`] bytes. Nobody can cut the file.
    pub fn create(
        shape: InflightGeometry,
        rules: &Arc<MemoryRules>,
    ) -> Result<(Self, OwnedFd), InflightError> {
        let bytes = shape.region_bytes();
        let create = || -> rustix::io::Result<OwnedFd> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = memfd_create("ringloom-inflight", flags)?;
            ftruncate(&fd, bytes)?;
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(fd)
        };
        let failed = |source| InflightError::Create { bytes, source };
        let fd = create().map_err(|errno| failed(errno.into()))?;
        let ours = fd.try_clone().map_err(failed)?;
        Ok((Self::map(ours, shape, bytes, 0, rules)?, fd))
    }

    /// A region that the front end has kept (SET_INFLIGHT_FD): `bytes` bytes of the file from
    /// `offset` on. Whether it is large enough is asked when a ring starts: only then is the
    /// layout certain.
    pub fn map(
        fd: OwnedFd,
        shape: InflightGeometry,
        bytes: u64,
        offset: u64,
        rules: &Arc<MemoryRules>,
    ) -> Result<Self, InflightError> {
        // Before its size is asked for: whoever answers that may never do.
        let file = rules.admit(fd).map_err(|source| InflightError::Map(source.into()))?;
        // A front end that hands over whatever it has must not make us map the address space.
        let wanted = bytes.min(shape.region_bytes());
        let stat = fstat(&file).map_err(|errno| InflightError::Stat(errno.into()))?;
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > file_bytes) {
            return Err(InflightError::BeyondFile { bytes, offset, file_bytes });
        }
        if !offset.is_multiple_of(8) {
            return Err(InflightError::Misaligned { offset });
        }
        let spec = RegionSpec {
            guest: GuestAddress(0),
            bytes: wanted,
            user_address: 0,
            file_offset: offset,
        };
        let region = Region::of(file, spec).map_err(InflightError::Map)?;
        Ok(Self { shape, region })
    }

    /// What it was mapped from, to be mapped again by another process.
    pub fn description(&self) -> std::io::Result<InflightDescription> {
        let InflightGeometry { queues, queue_size } = self.shape;
        let RegionSpec { bytes, file_offset: offset, .. } = self.region.spec();
        let file = self.region.file().try_clone_to_owned()?;
        Ok(InflightDescription { queues, queue_size, bytes, offset, file })
    }

    /// Whether memory of it was found gone when it was touched.
    fn is_lost(&self) -> bool {
        self.region.is_lost()
    }
}

/// An in-flight region as SET_INFLIGHT_FD describes it (vhost-user, "Inflight description").
#[derive(Debug)]
pub struct InflightDescription {
    /// How many queues it tracks.
    pub queues: u16,
    /// How many descriptors each of them has at most.
    pub queue_size: u16,
    /// Its size.
    pub bytes: u64,
    /// Where it starts in its file, in bytes.
    pub offset: u64,
    /// Its file.
    pub file: OwnedFd,
}

/// The part of a region that belongs to one ring.
#[derive(Debug, Clone)]
pub struct InflightQueue {
    /// The region.
    pub region: Arc<InflightRegion>,
    /// Which of its queues, from 0 on.
    pub queue: u16,
}

impl InflightQueue {
    /// Whether a ring of this layout and size has its place in the region. Touches nothing.
    pub fn check(&self, layout: RingLayout, size: u16) -> Result<(), InflightFault> {
        let InflightGeometry { queues, queue_size } = self.region.shape;
        let queue = self.queue;
        if queue >= queues {
            return Err(InflightFault::NoSuchQueue { queue, queues });
        }
        if size > queue_size {
            return Err(InflightFault::RingTooLarge { size, queue_size });
        }
        let bytes = self.region.region.spec().bytes;
        let needed = self.region.shape.bytes(layout);
        if bytes < needed {
            let [bytes, needed] =
                [bytes, needed].map(|it| u32::try_from(it).expect("a region has 256 MiB at most"));
            return Err(InflightFault::TooSmall { bytes, needed });
        }
        Ok(())
    }

    /// The part, for a ring of this layout and size.
    fn fields(&self, layout: RingLayout, size: u16) -> Result<InflightFields, InflightFault> {
        self.check(layout, size)?;
        let bytes = self.region.shape.part_bytes(layout);
        Ok(InflightFields::new(Arc::clone(&self.region), usize::from(self.queue) * bytes, bytes))
    }

    /// How many entries the part has.
    fn entries(&self) -> u16 {
        self.region.shape.queue_size
    }
}

/// Tracks the chains in flight of one ring in its part of the region.
pub(crate) trait InflightTracker {
    /// Where in the used ring the driver is to look next.
    type Used: Copy;

    /// Whether the front end has taken the region away.
    fn is_lost(&self) -> bool;

    /// Marks a chain that was popped, by its head or buffer id.
    fn mark(&mut self, chain: u16);

    /// Adds a chain to the batch.
    fn stage(&mut self, chain: u16);

    /// Names the chains of the batch, before the driver sees it, and where the used ring is after it.
    fn link(&mut self, used: Self::Used);

    /// Clears the marks of the batch, which the driver sees.
    fn unmark(&mut self);

    /// Notes that the batch is over and where the used ring is.
    fn commit(&mut self, used: Self::Used);
}

/// Makes the part one of a ring with nothing in flight. Its version is stored last.
fn begin(fields: &InflightFields, entries: u16, rest: impl FnOnce(&InflightFields)) {
    fields.store_u64(FEATURES, 0);
    fields.store_u16(ENTRIES_FIELD, entries);
    rest(fields);
    fields.store_u16(VERSION_FIELD, VERSION);
}

/// Whether the part was used before, by a back-end that follows the same rules.
fn was_used(fields: &InflightFields, entries: u16) -> Result<bool, InflightFault> {
    let version = fields.load_u16(VERSION_FIELD);
    match version {
        0 => return Ok(false),
        VERSION => {}
        version => return Err(InflightFault::Version { version }),
    }
    let features = fields.load_u64(FEATURES);
    if features != 0 {
        return Err(InflightFault::Features { features });
    }
    let found = fields.load_u16(ENTRIES_FIELD);
    if found != entries {
        return Err(InflightFault::Entries { found, entries });
    }
    Ok(true)
}
