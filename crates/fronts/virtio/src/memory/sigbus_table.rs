//! The table of mapped regions that the SIGBUS handler reads.
//!
//! Where it stands in the life of a request: beside it. `Region` takes a slot while it is mapped;
//! `sigbus` looks an address up when its memory is gone; `GuestMemory` asks whether that happened.
//!
//! Invariants: a reader sees a slot as a whole or not at all (`WatchSlot::covering`); only the [`SigbusWatch`]
//! of a slot describes or frees it.
//! Threads: any, also inside a signal handler: nothing here locks, allocates or panics there.
//! Limits: [`WATCHES_MAX`] regions in the process; of a region that is lost, [`WINDOWS`] windows can be written.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// The most regions the process maps at a time: eight sessions with all the regions that each may
/// have, or thousands of the usual kind. The handler looks at each of them.
pub(crate) const WATCHES_MAX: usize = 4096;

/// How many parts of a lost region can be written at a time: more threads than that rarely write to one region, and when
/// they do, each of them has a window for long enough to go on.
pub(super) const WINDOWS: usize = 4;

/// The size of such a part.
pub(super) const WINDOW_BYTES: usize = 64 << 10;

/// No region.
const FREE: usize = 0;
/// A region to come. No mapping starts here: mappings start at a page.
const CLAIMED: usize = 1;

static SLOTS: [WatchSlot; WATCHES_MAX] = [const { WatchSlot::free() }; WATCHES_MAX];

/// How often memory was found lost in this process.
static LOSSES: AtomicU64 = AtomicU64::new(0);

/// How often memory was found lost so far. Whoever has read from lost memory sees a number that
/// counts it, and after that number the marks of the regions it stands for.
pub(super) fn losses() -> u64 {
    // Keeps what was read of guest memory before this line before it. Nothing on x86.
    fence(Ordering::Acquire);
    LOSSES.load(Ordering::Acquire)
}

/// What there is of the region around this address from the page of the address on, if a region
/// is there. Whoever asks because of an access to a region keeps that region mapped meanwhile.
pub(super) fn find(address: usize) -> Option<MappingTail> {
    SLOTS.iter().find_map(|slot| slot.covering(address))
}

/// The registration of a mapped region with the SIGBUS handler; dropped before the region is unmapped.
#[derive(Debug)]
pub(super) struct SigbusWatch {
    slot: &'static WatchSlot,
}

impl SigbusWatch {
    /// A slot for a region to come; `None` if all are taken.
    pub(super) fn claim() -> Option<Self> {
        Self::claim_in(&SLOTS)
    }

    fn claim_in(slots: &'static [WatchSlot]) -> Option<Self> {
        slots.iter().find(|slot| slot.claim()).map(|slot| Self { slot })
    }

    /// Watches this mapping, which is never touched before. `page` is its unit of mapping.
    pub(super) fn cover(&mut self, start: usize, bytes: usize, page: usize) {
        assert!(start > CLAIMED && page > 0, "a mapping starts at a page");
        self.slot.describe(start, bytes, page);
    }

    /// Whether a part of the mapping was found lost.
    pub(super) fn is_lost(&self) -> bool {
        self.slot.lost.load(Ordering::Relaxed)
    }
}

impl Drop for SigbusWatch {
    fn drop(&mut self) {
        self.slot.start.store(FREE, Ordering::Release);
    }
}

/// The end of a mapping, from the page of a fault on.
#[derive(Debug)]
pub(super) struct MappingTail {
    pub(super) start: usize,
    pub(super) bytes: usize,
    slot: &'static WatchSlot,
}

impl MappingTail {
    /// Notes that its memory is gone. To be called before zeroes take its place: whoever reads
    /// those must be able to find out.
    pub(super) fn mark_lost(&self) {
        self.slot.lost_from.fetch_min(self.start, Ordering::Relaxed);
        self.slot.lost.store(true, Ordering::Relaxed);
        // Also when it was marked before: whoever did that may not have come this far.
        LOSSES.fetch_add(1, Ordering::Release);
    }

    /// Has a window around this address of it opened, and the oldest one closed if there are too many; nothing if
    /// the memory there is not lost. What either of them does is done before another thread does it.
    pub(super) fn move_window(
        &self,
        address: usize,
        open: impl FnOnce(WritableWindow) -> bool,
        close: impl FnOnce(WritableWindow),
    ) -> bool {
        let slot = self.slot;
        let lost_from = slot.lost_from.load(Ordering::Relaxed);
        if !slot.lost.load(Ordering::Relaxed) || address < lost_from {
            return false;
        }
        let end = self.start + self.bytes;
        let window = |start: usize| WritableWindow { start, bytes: WINDOW_BYTES.min(end - start) };
        let new = (address - address % WINDOW_BYTES).max(lost_from);
        while slot.is_moving.swap(true, Ordering::Acquire) {
            // Whoever moves it may wait for a CPU. A system call, and nothing else.
            std::thread::yield_now();
        }
        let place = slot.moves.fetch_add(1, Ordering::Relaxed) % WINDOWS;
        let old = slot.windows[place].swap(new, Ordering::Relaxed);
        if old != NO_WINDOW && old != new {
            close(window(old));
        }
        let opened = open(window(new));
        slot.is_moving.store(false, Ordering::Release);
        opened
    }
}

/// A part of a lost region that was made writable again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WritableWindow {
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// No window starts here.
const NO_WINDOW: usize = 0;

/// A slot of the SIGBUS handler's table: one mapped region, read in signal handlers.
#[derive(Debug)]
struct WatchSlot {
    /// [`FREE`], [`CLAIMED`] or the first address of a mapping.
    start: AtomicUsize,
    bytes: AtomicUsize,
    page: AtomicUsize,
    lost: AtomicBool,
    /// From where on nothing is left.
    lost_from: AtomicUsize,
    /// Where what can be written starts, and how often that has changed.
    windows: [AtomicUsize; WINDOWS],
    moves: AtomicUsize,
    /// Whether a thread changes that just now.
    is_moving: AtomicBool,
}

impl WatchSlot {
    const fn free() -> Self {
        Self {
            start: AtomicUsize::new(FREE),
            bytes: AtomicUsize::new(0),
            page: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
            lost_from: AtomicUsize::new(usize::MAX),
            windows: [const { AtomicUsize::new(NO_WINDOW) }; WINDOWS],
            moves: AtomicUsize::new(0),
            is_moving: AtomicBool::new(false),
        }
    }

    fn claim(&self) -> bool {
        self.start.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The start is stored last, so whoever sees it sees the rest.
    fn describe(&self, start: usize, bytes: usize, page: usize) {
        // Whoever sees one of the next values no longer sees the start of the region before.
        fence(Ordering::Release);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
        self.lost.store(false, Ordering::Relaxed);
        self.lost_from.store(usize::MAX, Ordering::Relaxed);
        self.windows.iter().for_each(|window| window.store(NO_WINDOW, Ordering::Relaxed));
        self.start.store(start, Ordering::Release);
    }

    fn covering(&'static self, address: usize) -> Option<MappingTail> {
        let start = self.start.load(Ordering::Acquire);
        if start <= CLAIMED {
            return None;
        }
        let skip = address.checked_sub(start)?;
        let (bytes, page) = (self.bytes.load(Ordering::Relaxed), self.page.load(Ordering::Relaxed));
        // If they belong to the next region in this slot, its claim is seen now.
        fence(Ordering::Acquire);
        if self.start.load(Ordering::Relaxed) != start || skip >= bytes {
            return None;
        }
        let skip = skip - skip.checked_rem(page)?;
        Some(MappingTail { start: start + skip, bytes: bytes - skip, slot: self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// The places of a table of two with one mapping of three pages.
    #[track_caller]
    fn check(address: usize, expected: Option<(usize, usize)>) {
        let slots: &'static [WatchSlot] =
            Box::leak(Box::new([WatchSlot::free(), WatchSlot::free()]));
        let _first = SigbusWatch::claim_in(slots).expect("a free slot");
        let mut second = SigbusWatch::claim_in(slots).expect("a free slot");
        second.cover(10 * PAGE, 3 * PAGE, PAGE);
        let found = slots.iter().find_map(|slot| slot.covering(address));
        assert_eq!(found.map(|tail| (tail.start, tail.bytes)), expected, "address {address}");
    }

    #[test]
    fn an_address_is_found_with_the_rest_of_its_region_from_its_page_on() {
        check(10 * PAGE - 1, None);
        check(10 * PAGE, Some((10 * PAGE, 3 * PAGE)));
        check(11 * PAGE + 7, Some((11 * PAGE, 2 * PAGE)));
        check(13 * PAGE - 1, Some((12 * PAGE, PAGE)));
        check(13 * PAGE, None);
        check(0, None);
        check(1, None);
        check(usize::MAX, None);
    }

    #[test]
    fn a_slot_is_taken_once_and_comes_back_unmarked() {
        let slots: &'static [WatchSlot] = Box::leak(Box::new([WatchSlot::free()]));
        let mut watch = SigbusWatch::claim_in(slots).expect("a free slot");
        assert!(SigbusWatch::claim_in(slots).is_none());
        watch.cover(10 * PAGE, PAGE, PAGE);
        slots[0].covering(10 * PAGE).expect("it is watched").mark_lost();
        assert!(watch.is_lost());
        drop(watch);
        assert!(slots[0].covering(10 * PAGE).is_none());
        let mut watch = SigbusWatch::claim_in(slots).expect("the slot is free again");
        assert!(slots[0].covering(10 * PAGE).is_none());
        watch.cover(20 * PAGE, PAGE, PAGE);
        assert!(!watch.is_lost());
    }
}
