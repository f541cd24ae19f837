//! One mapped run of guest memory.
//!
//! Invariants: a region is mapped readable and writable from `map` to drop, its file was admitted before it was asked
//! for anything (`rules`) and long enough for the region when that was mapped, and it is watched as long as it can be used.
//! Not here: a front end that cuts its file afterwards; that raises SIGBUS (`sigbus`).

#![expect(unsafe_code, reason = "maps and unmaps guest memory")]

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::param::page_size;

use super::rules::{ByteReservation, GuestMemoryFile, MemoryRules};
use super::sigbus_table::SigbusWatch;
use super::{GuestAddress, MemoryError};

/// A region as the front end describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSpec {
    /// Its first guest physical address.
    pub guest: GuestAddress,
    /// Its size.
    pub bytes: u64,
    /// Its first address in the front end's own address space.
    pub user_address: u64,
    /// Where it starts in its file.
    pub file_offset: u64,
}

impl RegionSpec {
    /// Whether both name the same memory, wherever it lies in its file.
    pub(super) fn is_same_place(&self, other: &Self) -> bool {
        (self.guest, self.bytes, self.user_address)
            == (other.guest, other.bytes, other.user_address)
    }

    /// The byte of the file behind the region, if no address wraps.
    fn file_end(&self) -> Option<u64> {
        self.guest.0.checked_add(self.bytes)?;
        self.user_address.checked_add(self.bytes)?;
        self.file_offset.checked_add(self.bytes)
    }
}

/// A mapped region of guest memory; unmapped when dropped.
#[derive(Debug)]
pub struct Region {
    spec: RegionSpec,
    slack: usize,
    /// Kept to be handed over with the session.
    file: OwnedFd,
    // Dropped before the mapping, in this order: once unmapped, the addresses may become those of
    // another region.
    watch: SigbusWatch,
    mapping: Mmap,
}

impl Region {
    /// Maps the region of this file if the rules admit it. The descriptor is kept as long as the region.
    pub fn map(
        fd: OwnedFd,
        spec: RegionSpec,
        rules: &Arc<MemoryRules>,
    ) -> Result<Self, MemoryError> {
        Self::of(rules.admit(fd)?, spec)
    }

    /// Maps the region of a file that was admitted.
    pub(crate) fn of(file: GuestMemoryFile, spec: RegionSpec) -> Result<Self, MemoryError> {
        let guest = spec.guest;
        let failed =
            |errno: Errno| MemoryError::Map { guest, bytes: spec.bytes, source: errno.into() };
        let stat = fstat(&file).map_err(failed)?;
        let place = MmapRange::check(&spec, &stat)?;
        let mut watch = SigbusWatch::claim().ok_or(MemoryError::TooManyInProcess { guest })?;
        let counted = file.count(guest, place.mapped as u64)?;
        let file = file.into_file();
        let mapping = Mmap::new(&file, &place, counted).map_err(failed)?;
        watch.cover(mapping.start.as_ptr().expose_provenance(), mapping.bytes, place.page);
        Ok(Self { spec, slack: place.slack, file, watch, mapping })
    }

    /// What the front end said of it.
    pub fn spec(&self) -> RegionSpec {
        self.spec
    }

    /// The file that it was mapped from.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether memory of it was found gone when it was touched: the front end has truncated its
    /// file. What was lost reads as zero.
    pub fn is_lost(&self) -> bool {
        self.watch.is_lost()
    }

    /// Its first byte in this process.
    pub(crate) fn base(&self) -> NonNull<u8> {
        // SAFETY: the slack is less than the mapping's length.
        unsafe { self.mapping.start.cast::<u8>().add(self.slack) }
    }
}

/// A memory mapping; unmapped when dropped.
#[derive(Debug)]
struct Mmap {
    start: NonNull<c_void>,
    bytes: usize,
    /// There is one until it is unmapped.
    counted: Option<ByteReservation>,
}

// SAFETY: the mapping belongs to the process; any thread may use and unmap it.
unsafe impl Send for Mmap {}

// SAFETY: a shared mapping hands out its address and nothing else.
unsafe impl Sync for Mmap {}

impl Mmap {
    fn new(fd: &OwnedFd, place: &MmapRange, counted: ByteReservation) -> Result<Self, Errno> {
        // SAFETY: a null hint lets the kernel choose the place, so no mapping of ours is touched.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                place.mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                place.file_offset,
            )
        }?;
        // SAFETY: the range was mapped just now and DONTDUMP changes no content. A core dump with
        // the guest's memory is no use, so a kernel that cannot leave it out is no error.
        let _kept_out_of_dumps = unsafe { madvise(start, place.mapped, Advice::LinuxDontDump) };
        let start = NonNull::new(start).expect("mmap without MAP_FIXED never returns page 0");
        Ok(Self { start, bytes: place.mapped, counted: Some(counted) })
    }
}

impl Drop for Mmap {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `new` mapped (zeroes may have taken the place of a
        // part). Whoever made a segment of it kept the region until the request had completed
        // (`WatchSlot::segment`), so nobody uses it now.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        if unmapped.is_err() {
            // The kernel has merged it with its neighbours in the same file, and has no room for what is left of
            // them (vm.max_map_count). Nobody touches it again, and it stays counted.
            let _counted_for_ever = ManuallyDrop::new(self.counted.take());
        }
    }
}

/// The page-aligned range of the file that is mapped for a region. Files on huge pages are mapped only by whole pages,
/// and they say how large those are in `st_blksize`.
struct MmapRange {
    file_offset: u64,
    slack: usize,
    mapped: usize,
    /// The unit of mapping.
    page: usize,
}

impl MmapRange {
    fn check(spec: &RegionSpec, stat: &Stat) -> Result<Self, MemoryError> {
        let RegionSpec { guest, bytes, user_address, file_offset } = *spec;
        if bytes == 0 {
            return Err(MemoryError::Empty { guest });
        }
        let wraps = || MemoryError::Wraps { guest, bytes, user_address, file_offset };
        let end = spec.file_end().ok_or_else(wraps)?;
        // Devices (/dev/dax) have no size here; the kernel checks theirs.
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && end > file_bytes {
            return Err(MemoryError::BeyondFile { guest, end, file_bytes });
        }
        let page = page_granule(stat);
        let slack = file_offset % page;
        let mapped = (slack + bytes).checked_next_multiple_of(page).ok_or_else(wraps)?;
        match (usize::try_from(slack), usize::try_from(mapped), usize::try_from(page)) {
            (Ok(slack), Ok(mapped), Ok(page)) => {
                Ok(Self { file_offset: file_offset - slack as u64, slack, mapped, page })
            }
            (Err(_), _, _) | (_, Err(_), _) | (_, _, Err(_)) => Err(wraps()),
        }
    }
}

/// The unit of mapping: a page, or a huge page.
fn page_granule(stat: &Stat) -> u64 {
    let page = page_size() as u64;
    match u64::try_from(stat.st_blksize) {
        Ok(block) if block.is_power_of_two() => block.max(page),
        Ok(_) | Err(_) => page,
    }
}
