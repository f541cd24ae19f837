//! Guest memory: which guest address lies where in this process.
//!
//! Where it stands in the life of a request: a ring translates every buffer of every chain here.
//! `vhost_user` makes a new table for every change the front end asks for and hands it to the
//! rings; the old one lives until the last ring has let go of it.
//!
//! Invariants: a table never changes; its regions are sorted and overlap neither in guest nor in
//! front-end addresses; every segment it hands out lies inside one region.
//! Threads: a table is shared by all rings of a session. Nothing blocks.
//! Limits: [`REGIONS_MAX`] regions, what vhost-user's GET_MAX_MEM_SLOTS answers; all tables of the
//! process have at most `WATCHES_MAX`.

#![expect(
    unsafe_code,
    reason = "turns guest addresses into pointers into the mappings that `Region` owns"
)]

mod dirty_log;
mod region;
mod rules;
mod sigbus;
mod sigbus_table;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::Segment;

use sigbus_table::WATCHES_MAX;

pub use dirty_log::{DirtyLog, DirtyLogError, LOG_PAGE_BYTES};
pub use region::{Region, RegionSpec};
pub use rules::{
    ForeignFileError, GuestMemoryFilePolicy, MemoryRules, SESSION_BYTES_MAX, mappable_bytes,
};
pub use sigbus::catch_lost_memory;

/// The most regions a guest's memory has: as many as QEMU's vhost-user front end can use.
pub const REGIONS_MAX: usize = 509;

/// A guest physical address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddress(pub u64);

impl fmt::Display for GuestAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The region in which the last address was found: a cache of one entry for translations. Any value gives right
/// answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct TranslationHint(usize);

/// The memory table of a guest: its regions, sorted by guest address.
#[derive(Debug, Default)]
pub struct GuestMemory {
    slots: Vec<MemorySlot>,
    /// The losses in the process up to which this memory is known to be whole.
    whole_at: AtomicU64,
}

/// A region of the table, with what a translation needs beside it.
#[derive(Debug, Clone)]
struct MemorySlot {
    guest: u64,
    bytes: u64,
    base: NonNull<u8>,
    region: Arc<Region>,
}

// SAFETY: `base` points into the mapping that `region` owns and keeps until this slot is dropped;
// a mapping belongs to the process, not to a thread.
unsafe impl Send for MemorySlot {}

// SAFETY: as above; a shared slot only hands out copies of its pointer.
unsafe impl Sync for MemorySlot {}

impl GuestMemory {
    /// A table of these regions, in any order.
    pub fn new(regions: Vec<Arc<Region>>) -> Result<Self, MemoryError> {
        let mut slots: Vec<MemorySlot> = regions.into_iter().map(MemorySlot::new).collect();
        if slots.len() > REGIONS_MAX {
            return Err(MemoryError::TooManyRegions { count: slots.len() });
        }
        slots.sort_by_key(|slot| slot.guest);
        refuse_overlap(&slots)?;
        Ok(Self { slots, whole_at: AtomicU64::default() })
    }

    /// Whether the guest has no memory (yet).
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Whether memory of a region was found gone when it was touched (`Region::is_lost`). To be
    /// asked after reading: what was read before may be zeroes that the guest never wrote.
    /// As long as no session of the process loses memory this is a comparison.
    pub fn is_lost(&self) -> bool {
        let losses = sigbus_table::losses();
        // A hint of this table alone, no order needed: any old value leads to a look.
        if losses == self.whole_at.load(Ordering::Relaxed) {
            return false;
        }
        let lost = self.slots.iter().any(|slot| slot.region.is_lost());
        if !lost {
            self.whole_at.store(losses, Ordering::Relaxed);
        }
        lost
    }

    /// This table and one more region.
    pub fn with(&self, region: Region) -> Result<Self, MemoryError> {
        let mut regions = self.regions();
        regions.push(Arc::new(region));
        Self::new(regions)
    }

    /// This table without the region of this guest address, size and front-end address
    /// (vhost-user, REM_MEM_REG). The file offset is not looked at.
    pub fn without(&self, spec: &RegionSpec) -> Result<Self, MemoryError> {
        let mut regions = self.regions();
        let place = regions.iter().position(|region| region.spec().is_same_place(spec)).ok_or(
            MemoryError::NoSuchRegion {
                guest: spec.guest,
                bytes: spec.bytes,
                user_address: spec.user_address,
            },
        )?;
        regions.remove(place);
        Self::new(regions)
    }

    /// Hands the memory of `count` bytes at `address` to `push`, in one segment for each region it
    /// touches. On an error some segments may have been handed over already: drop them.
    ///
    /// The segments stay valid as long as this table (or another with the same regions) lives.
    pub fn translate(
        &self,
        address: GuestAddress,
        count: u32,
        hit: &mut TranslationHint,
        mut push: impl FnMut(Segment),
    ) -> Result<(), UnmappedAddress> {
        let mut at = address.0;
        let mut left = u64::from(count);
        while left > 0 {
            let slot = self.find(at, hit).ok_or(UnmappedAddress::new(address, count.into()))?;
            let skip = at - slot.guest;
            let part = left.min(slot.bytes - skip);
            push(slot.segment(skip, part));
            left -= part;
            // No wrap: the end of a region is a `u64` (`Region::map`).
            at += part;
        }
        Ok(())
    }

    /// The `bytes` bytes at an address of the front end's own address space, if they lie in one
    /// region. Rings are named this way (vhost-user, SET_VRING_ADDR).
    pub fn at_user_address(&self, user_address: u64, bytes: u64) -> Option<NonNull<u8>> {
        let (slot, skip) = self.find_user(user_address, bytes)?;
        Some(slot.segment(skip, bytes).base())
    }

    /// The guest address of the `bytes` bytes at an address of the front end's own address space, if
    /// they lie in one region.
    pub(crate) fn guest_at_user_address(
        &self,
        user_address: u64,
        bytes: u64,
    ) -> Option<GuestAddress> {
        let (slot, skip) = self.find_user(user_address, bytes)?;
        Some(GuestAddress(slot.guest + skip))
    }

    /// The region that has these bytes, and what lies before them there.
    fn find_user(&self, user_address: u64, bytes: u64) -> Option<(&MemorySlot, u64)> {
        self.slots.iter().find_map(|slot| {
            let skip = user_address.checked_sub(slot.region.spec().user_address)?;
            let end = skip.checked_add(bytes)?;
            (end <= slot.bytes).then_some((slot, skip))
        })
    }

    /// The guest address of a segment that a table with the same regions has handed out.
    pub(crate) fn guest_address(
        &self,
        segment: Segment,
        hit: &mut TranslationHint,
    ) -> GuestAddress {
        let address = segment.base().addr().get();
        let inside = |slot: &MemorySlot| {
            let skip = (address as u64).checked_sub(slot.base.addr().get() as u64)?;
            (skip < slot.bytes).then(|| GuestAddress(slot.guest + skip))
        };
        if let Some(found) = self.slots.get(hit.0).and_then(inside) {
            return found;
        }
        let found = self.slots.iter().enumerate().find_map(|(place, slot)| {
            let found = inside(slot)?;
            hit.0 = place;
            Some(found)
        });
        found.expect("a segment lies in a region of the table it came from")
    }

    /// The last guest address; none if the guest has no memory.
    pub fn last_address(&self) -> Option<GuestAddress> {
        // No region is empty, and none wraps (`Region::map`).
        self.slots.last().map(|slot| GuestAddress(slot.guest + (slot.bytes - 1)))
    }

    /// Copies a descriptor of guest memory, once: the compiler cannot read it a second time.
    pub(crate) fn read_descriptor(
        &self,
        address: GuestAddress,
        hit: &mut TranslationHint,
    ) -> Result<[u8; 16], UnmappedAddress> {
        let mut bytes = [0; 16];
        let mut done = 0;
        self.translate(address, 16, hit, |segment| {
            read_volatile(segment, &mut bytes[done..done + segment.count()]);
            done += segment.count();
        })
        .map(|()| bytes)
    }

    /// Its regions, by guest address.
    pub fn regions(&self) -> Vec<Arc<Region>> {
        self.slots.iter().map(|slot| Arc::clone(&slot.region)).collect()
    }

    /// How many regions it has.
    pub fn regions_count(&self) -> usize {
        self.slots.len()
    }

    fn find(&self, address: u64, hit: &mut TranslationHint) -> Option<&MemorySlot> {
        if let Some(slot) = self.slots.get(hit.0)
            && slot.contains(address)
        {
            return Some(slot);
        }
        let place = self.slots.partition_point(|slot| slot.guest <= address).checked_sub(1)?;
        let slot = &self.slots[place];
        slot.contains(address).then(|| {
            hit.0 = place;
            slot
        })
    }
}

impl MemorySlot {
    fn new(region: Arc<Region>) -> Self {
        Self {
            guest: region.spec().guest.0,
            bytes: region.spec().bytes,
            base: region.base(),
            region,
        }
    }

    fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.guest).is_some_and(|skip| skip < self.bytes)
    }

    /// The callers have checked that `skip + count` is at most the region's size.
    fn segment(&self, skip: u64, count: u64) -> Segment {
        assert!(skip <= self.bytes && count <= self.bytes - skip, "the caller checked");
        let skip = usize::try_from(skip).expect("a mapping is smaller than the address space");
        let count = usize::try_from(count).expect("a mapping is smaller than the address space");
        // SAFETY: `skip` bytes from `base` lie inside the mapping of `region` (checked above),
        // which this slot keeps alive.
        let base = unsafe { self.base.add(skip) };
        // SAFETY: the bytes lie inside one mapping, readable and writable. Whoever carries the
        // segment keeps a table with this region until its request has completed: a ring holds
        // its table, and is dropped or given another one only when nothing is in flight.
        unsafe { Segment::new(base, count) }
    }
}

/// Copies a segment with one volatile read for each byte, or for all of a descriptor at once.
fn read_volatile(from: Segment, to: &mut [u8]) {
    let start = from.base();
    if let Ok(whole) = <&mut [u8; 16]>::try_from(&mut *to) {
        // SAFETY: the segment is mapped and readable for its length, which is that of `to`.
        *whole = unsafe { read_descriptor(start) };
        return;
    }
    for (place, byte) in to.iter_mut().enumerate() {
        // SAFETY: `place` is less than the segment's length, which is that of `to`.
        let at = unsafe { start.add(place) };
        // SAFETY: the byte lies in the segment, which is mapped and readable.
        *byte = unsafe { at.read_volatile() };
    }
}

/// A copy of the 16 bytes of a descriptor, each read once. In two words, as drivers align them:
/// bytes that are put together again cost a fifth of the time that a request takes.
///
/// # Safety
/// The bytes must be mapped and readable.
#[inline]
pub(crate) unsafe fn read_descriptor(at: NonNull<u8>) -> [u8; 16] {
    let words = at.cast::<u64>();
    if !words.is_aligned() {
        // SAFETY: by the caller's promise; an array of bytes has no alignment.
        return unsafe { at.cast::<[u8; 16]>().read_volatile() };
    }
    // SAFETY: by the caller's promise, and aligned; any content is valid.
    let [low, high] = unsafe { words.cast::<[u64; 2]>().read_volatile() };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&low.to_ne_bytes());
    bytes[8..].copy_from_slice(&high.to_ne_bytes());
    bytes
}

/// `slots` are sorted by guest address.
fn refuse_overlap(slots: &[MemorySlot]) -> Result<(), MemoryError> {
    for pair in slots.windows(2) {
        if pair[0].guest + pair[0].bytes > pair[1].guest {
            return Err(MemoryError::GuestOverlap {
                first: GuestAddress(pair[0].guest),
                second: GuestAddress(pair[1].guest),
            });
        }
    }
    let mut specs: Vec<RegionSpec> = slots.iter().map(|slot| slot.region.spec()).collect();
    specs.sort_by_key(|spec| spec.user_address);
    for pair in specs.windows(2) {
        if pair[0].user_address + pair[0].bytes > pair[1].user_address {
            return Err(MemoryError::UserOverlap {
                first: pair[0].user_address,
                second: pair[1].user_address,
            });
        }
    }
    Ok(())
}

/// A guest address that no region covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{count} bytes at guest address {address} are not in guest memory")]
pub struct UnmappedAddress {
    address: GuestAddress,
    count: u64,
}

impl UnmappedAddress {
    fn new(address: GuestAddress, count: u64) -> Self {
        Self { address, count }
    }
}

impl MemoryError {
    /// Whether this process takes no more of it, by a limit of its own.
    pub fn is_want_of_room(&self) -> bool {
        matches!(
            self,
            Self::TooMuch { .. } | Self::TooMuchInProcess { .. } | Self::TooManyInProcess { .. }
        )
    }
}

/// Guest memory could not be mapped as the front end describes it.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A region without a byte.
    #[error("memory region at guest address {guest} is empty")]
    Empty {
        /// Where it should start.
        guest: GuestAddress,
    },
    /// A region that ends beyond the last address.
    #[error(
        "memory region of {bytes} bytes wraps: guest address {}, front-end address {user_address:#x}, file offset {file_offset}",
        guest
    )]
    Wraps {
        /// Its first guest address.
        guest: GuestAddress,
        /// Its size.
        bytes: u64,
        /// Its first address in the front end.
        user_address: u64,
        /// Its place in the file.
        file_offset: u64,
    },
    /// A region that would fault when touched.
    #[error(
        "memory region at guest address {guest} ends at byte {end} of a file of {file_bytes} bytes"
    )]
    BeyondFile {
        /// Its first guest address.
        guest: GuestAddress,
        /// Where it ends in the file.
        end: u64,
        /// The size of the file.
        file_bytes: u64,
    },
    /// The system refused the mapping.
    #[error("cannot map the memory region of {bytes} bytes at guest address {guest}")]
    Map {
        /// Its first guest address.
        guest: GuestAddress,
        /// Its size.
        bytes: u64,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file whose pages may be kept from this process.
    #[error(transparent)]
    Foreign(#[from] ForeignFileError),
    /// More than a session of the export may map.
    #[error(
        "no room for the memory region of {bytes} bytes at guest address {guest}: a session may map {max} bytes in all (see --max-guest-memory)"
    )]
    TooMuch {
        /// Its first guest address.
        guest: GuestAddress,
        /// Its size in whole pages.
        bytes: u64,
        /// What may be mapped.
        max: u64,
    },
    /// More than the process may map.
    #[error(
        "no room for the memory region of {bytes} bytes at guest address {guest}: all sessions together may map {max} bytes"
    )]
    TooMuchInProcess {
        /// Its first guest address.
        guest: GuestAddress,
        /// Its size in whole pages.
        bytes: u64,
        /// What may be mapped.
        max: u64,
    },
    /// More regions than the table takes.
    #[error("{count} memory regions, at most {REGIONS_MAX} are possible")]
    TooManyRegions {
        /// How many there were.
        count: usize,
    },
    /// More regions than the process keeps watch over.
    #[error(
        "no room for the memory region at guest address {guest}: {WATCHES_MAX} regions of all sessions are mapped"
    )]
    TooManyInProcess {
        /// Its first guest address.
        guest: GuestAddress,
    },
    /// Two regions claim the same guest address.
    #[error("memory regions at guest addresses {first} and {second} overlap")]
    GuestOverlap {
        /// The region below.
        first: GuestAddress,
        /// The region above.
        second: GuestAddress,
    },
    /// Two regions claim the same address of the front end.
    #[error("memory regions at front-end addresses {first:#x} and {second:#x} overlap")]
    UserOverlap {
        /// The region below.
        first: u64,
        /// The region above.
        second: u64,
    },
    /// A region to be removed that is not there.
    #[error(
        "no memory region of {bytes} bytes at guest address {guest} and front-end address {user_address:#x}"
    )]
    NoSuchRegion {
        /// The guest address named.
        guest: GuestAddress,
        /// The size named.
        bytes: u64,
        /// The front-end address named.
        user_address: u64,
    },
}
