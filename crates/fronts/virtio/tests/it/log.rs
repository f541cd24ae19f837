//! The dirty log. What can go wrong: a page that was written is not marked (a migrated guest finds
//! old bytes), a mark is set before the bytes are there or is lost between two that mark at a time
//! or to one that clears, a mark lies beside its page or behind the log's end.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use proptest::prelude::*;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use virtio::{
    Chain, DirtyLog, DirtyLogScope, GuestAddress, LOG_PAGE_BYTES, Ring, RingDirtyLog, RingError,
    RingSetup, catch_lost_memory,
};

use crate::driver::{Driver, WRITE};
use crate::guest::{BUFFERS, END, GUEST, Guest, REGION, memfd};
use crate::packed::driver as packed;

/// A bit for each page below the end of guest memory.
const LOG_BYTES: u64 = END / LOG_PAGE_BYTES / 8;

struct Log {
    file: OwnedFd,
    log: Arc<DirtyLog>,
}

impl Log {
    fn new() -> Self {
        Self::of(LOG_BYTES)
    }

    fn of(bytes: u64) -> Self {
        let file = memfd(bytes);
        let log = DirtyLog::map(file.try_clone().unwrap(), bytes, 0, &Arc::default()).unwrap();
        Self { file, log: Arc::new(log) }
    }

    /// Takes the marks away; the pages' numbers.
    fn take(&self) -> Vec<u64> {
        let mut bytes = vec![0; usize::try_from(self.log.bytes()).unwrap()];
        rustix::io::pread(&self.file, &mut bytes[..], 0).unwrap();
        rustix::io::pwrite(&self.file, &vec![0; bytes.len()], 0).unwrap();
        let marked = |page: &usize| bytes[page / 8] & 1 << (page % 8) != 0;
        (0..bytes.len() * 8).filter(marked).map(|page| page as u64).collect()
    }

    fn for_ring(&self, guest: &Guest, setup: &RingSetup, marking: DirtyLogScope) -> RingDirtyLog {
        RingDirtyLog::new(Arc::clone(&self.log), &guest.memory, setup, marking).unwrap()
    }
}

#[track_caller]
fn check(address: u64, count: u64, expected: &[u64]) {
    let log = Log::new();
    log.log.mark(GuestAddress(address), count);
    assert_eq!(log.take(), expected, "{count} bytes at {address:#x}");
}

#[test]
fn every_page_that_is_touched_is_marked_and_no_other() {
    check(0, 0, &[]);
    check(0, 1, &[0]);
    check(4095, 1, &[0]);
    check(4095, 2, &[0, 1]);
    check(4096, 4096, &[1]);
    check(7 * 4096, 4097, &[7, 8]);
    check(8 * 4096 - 1, 1, &[7]);
    check(5 * 4096, 20 * 4096, &(5..25).collect::<Vec<_>>());
    check(8 * 4096, 8 * 4096, &(8..16).collect::<Vec<_>>());
    check(END - 1, 1, &[END / 4096 - 1]);
}

proptest! {
    #[test]
    fn marks_are_those_of_a_model(ranges in prop::collection::vec((0..END, 1..200_000_u64), 1..6)) {
        let log = Log::new();
        let mut model = std::collections::BTreeSet::new();
        for (address, count) in ranges {
            let count = count.min(END - address);
            log.log.mark(GuestAddress(address), count);
            model.extend((0..END / 4096).filter(|page| {
                page * 4096 < address + count && address < (page + 1) * 4096
            }));
        }
        prop_assert_eq!(log.take(), model.into_iter().collect::<Vec<_>>());
    }
}

/// The log's bytes as the front end sees them.
#[expect(unsafe_code, reason = "a second mapping of the log")]
fn front_end(file: &OwnedFd) -> &'static [AtomicU8; 4096] {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place the kernel chooses overlaps nothing.
    let start = unsafe { mmap(std::ptr::null_mut(), 4096, prot, MapFlags::SHARED, file, 0) };
    // SAFETY: the page is never unmapped, and atomics have no invalid values.
    unsafe { &*start.unwrap().cast::<[AtomicU8; 4096]>() }
}

/// A pre-copy migration in small: who takes a mark away and then reads the page must not have
/// missed what was written before the mark. Eight writers share a byte of the log.
#[test]
fn marks_outlive_others_that_mark_and_a_front_end_that_clears() {
    const ROUNDS: u64 = 20_000;
    let log = Log::of(4096);
    let pages: [AtomicU64; 8] = std::array::from_fn(|_| AtomicU64::new(0));
    let bits = &front_end(&log.file)[0];
    let mut copy = [0; 8];
    let mut sweep = |until: &dyn Fn() -> bool| loop {
        let over = until();
        let taken = bits.swap(0, Ordering::Acquire);
        for (place, (copy, page)) in copy.iter_mut().zip(&pages).enumerate() {
            if taken & 1 << place != 0 {
                *copy = page.load(Ordering::Relaxed);
            }
        }
        if over {
            return;
        }
    };
    let finished = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (place, page) in (0..).zip(&pages) {
            let (log, finished) = (&log.log, &finished);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    page.store(round, Ordering::Relaxed);
                    log.mark(GuestAddress(place * LOG_PAGE_BYTES), 1);
                }
                finished.fetch_add(1, Ordering::Release);
            });
        }
        sweep(&|| finished.load(Ordering::Acquire) == 8);
    });
    assert_eq!(copy, [ROUNDS; 8]);
}

/// Two threads set all marks of a log, each every other one, byte by byte beside each other. Each
/// mark is set once, so one that is lost is missing.
#[test]
fn marks_of_two_threads_in_one_byte_are_both_kept() {
    let log = Log::of(1024);
    let places = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        for thread in 0..2_usize {
            let (log, places) = (&log.log, &places);
            scope.spawn(move || {
                for byte in 0..1024 {
                    places[thread].store(byte, Ordering::Release);
                    let mut looks = 0_u32;
                    while places[1 - thread].load(Ordering::Acquire) < byte {
                        // Both at the same time is what is wanted; the other may have no CPU.
                        looks += 1;
                        if looks.is_multiple_of(10_000) {
                            std::thread::yield_now();
                        }
                        std::hint::spin_loop();
                    }
                    for bit in (thread as u64..8).step_by(2) {
                        log.mark(GuestAddress((byte * 8 + bit) * LOG_PAGE_BYTES), 1);
                    }
                }
                places[thread].store(u64::MAX, Ordering::Release);
            });
        }
    });
    assert_eq!(log.take().len(), 1024 * 8);
}

/// Guest memory page by page.
fn content(guest: &Guest) -> Vec<Vec<u8>> {
    let pages = (GUEST..END).step_by(4096);
    pages.map(|address| guest.read(address, 4096)).collect()
}

/// What of guest memory is not as it was, by page number.
fn changed(guest: &Guest, before: &[Vec<u8>]) -> Vec<u64> {
    let after = content(guest);
    let pages = (GUEST / 4096..).zip(before.iter().zip(&after));
    pages.filter(|(_, (before, after))| before != after).map(|(page, _)| page).collect()
}

/// Checks that all pages the device has changed are marked, and nothing but what may be.
#[track_caller]
fn check_marks(
    guest: &Guest,
    before: &[Vec<u8>],
    log: &Log,
    allowed: std::ops::Range<u64>,
) -> usize {
    let (changed, marked) = (changed(guest, before), log.take());
    for page in &changed {
        assert!(marked.contains(page), "page {page:#x} was changed, marked: {marked:x?}");
    }
    for page in &marked {
        assert!(allowed.contains(page), "page {page:#x} is marked");
    }
    changed.len()
}

/// Splits a used ring of so many entries over pages: 2048 entries have four.
const LARGE: u16 = 2048;

#[test]
fn all_that_is_written_of_a_split_ring_is_marked() {
    for event_idx in [false, true] {
        let mut driver = Driver::new(LARGE, 65_000);
        let setup = RingSetup { event_idx, ..driver.setup() };
        let used = setup.addresses.used - setup.addresses.descriptors + GUEST;
        let pages = used / 4096..(used + 6 + 8 * u64::from(LARGE)).div_ceil(4096);
        let log = Log::new();
        let mut ring = Ring::new(Arc::clone(&driver.memory), setup).unwrap();
        ring.set_log(Some(log.for_ring(&driver, &setup, DirtyLogScope::Ring(GuestAddress(used)))));
        assert_eq!(log.take(), pages.clone().collect::<Vec<_>>(), "something of it may be new");
        let mut chain = Chain::default();
        let mut seen = 0;
        for round in 0..60 {
            // Across both wraps: of the ring and of the index.
            for head in 0..1 + round * 3 {
                driver.offer(head, &[(BUFFERS, 16, 0)]);
            }
            let before = content(&driver);
            ring.suppress_kicks();
            while let Some(head) = ring.pop(&mut chain).unwrap() {
                ring.push_used(head, 0);
            }
            let _wanted = ring.publish();
            seen += check_marks(&driver, &before, &log, pages.clone());
            let before = content(&driver);
            assert!(!ring.request_kicks());
            seen += check_marks(&driver, &before, &log, pages.clone());
        }
        assert!(seen > 150, "the ring was written on {seen} pages");
        ring.set_log(None);
        driver.offer(0, &[(BUFFERS, 16, 0)]);
        let head = ring.pop(&mut chain).unwrap().unwrap();
        ring.push_used(head, 0);
        let _wanted = ring.publish();
        assert!(log.take().is_empty(), "the log was switched off");
    }
}

#[test]
fn all_that_is_written_of_a_packed_ring_is_marked() {
    for event_idx in [false, true] {
        let size = 700;
        let mut driver = packed::Driver::new(size);
        let setup = RingSetup { event_idx, ..driver.setup() };
        let events = setup.addresses.used - setup.addresses.descriptors + GUEST;
        let log = Log::new();
        let mut ring = Ring::new(Arc::clone(&driver.memory), setup).unwrap();
        ring.set_log(Some(log.for_ring(
            &driver,
            &setup,
            DirtyLogScope::Ring(GuestAddress(events)),
        )));
        assert_eq!(log.take(), [GUEST / 4096, GUEST / 4096 + 1, GUEST / 4096 + 2, events / 4096]);
        let mut chain = Chain::default();
        let mut seen = 0;
        for round in 0..60 {
            for id in 0..1 + round * 3 {
                driver.offer(id, &[(BUFFERS, 16, 0), (BUFFERS + 16, 16, WRITE)]);
            }
            let before = content(&driver);
            ring.suppress_kicks();
            while let Some(head) = ring.pop(&mut chain).unwrap() {
                ring.push_used(head, 1);
            }
            let _wanted = ring.publish();
            seen += check_marks(&driver, &before, &log, GUEST / 4096..events / 4096 + 1);
            driver.take_used();
            let before = content(&driver);
            assert!(!ring.request_kicks());
            seen += check_marks(&driver, &before, &log, events / 4096..events / 4096 + 1);
        }
        assert!(seen > 150, "the ring was written on {seen} pages");
    }
}

#[test]
fn buffers_are_marked_where_the_guest_sees_them() {
    let mut driver = Driver::new(8, 0);
    let setup = driver.setup();
    let log = Log::new();
    let mut ring = Ring::new(Arc::clone(&driver.memory), setup).unwrap();
    // From the last page of one region into the first of the next, then one byte far behind.
    driver.offer(0, &[(GUEST + REGION - 100, 5000, WRITE), (END - 4097, 1, WRITE)]);
    let mut chain = Chain::default();
    ring.pop(&mut chain).unwrap().unwrap();
    assert_eq!(chain.writable.segments().len(), 3, "cut at the border of the regions");
    for (marking, expected) in [
        (None, vec![]),
        (Some(DirtyLogScope::Ring(GuestAddress(GUEST))), vec![]),
        (Some(DirtyLogScope::Buffers), vec![-1_i64, 0, 1, 254]),
        (Some(DirtyLogScope::All(GuestAddress(GUEST))), vec![-1, 0, 1, 254]),
    ] {
        let ring_log = marking.map(|marking| log.for_ring(&driver, &setup, marking));
        ring.set_log(ring_log);
        log.take();
        assert_eq!(ring.marks_buffers(), !expected.is_empty());
        for &segment in chain.writable.segments() {
            ring.mark_buffer(segment);
        }
        let border = (GUEST + REGION) / 4096;
        let expected: Vec<u64> =
            expected.iter().map(|page| border.checked_add_signed(*page).unwrap()).collect();
        assert_eq!(log.take(), expected, "{marking:?}");
    }
}

/// A driver that makes more chains available than the ring has, before it is shown any as used.
#[test]
fn more_than_all_of_a_ring_is_marked_once_round() {
    let mut driver = Driver::new(4, 0);
    let setup = driver.setup();
    // The used ring ends with the memory that the log covers.
    let (log, used) = (Log::new(), GuestAddress(END - 38));
    let mut ring = Ring::new(Arc::clone(&driver.memory), setup).unwrap();
    ring.set_log(Some(log.for_ring(&driver, &setup, DirtyLogScope::All(used))));
    log.take();
    let mut chain = Chain::default();
    for _ in 0..9 {
        driver.offer(0, &[(BUFFERS, 16, 0)]);
        let head = ring.pop(&mut chain).unwrap().unwrap();
        ring.push_used(head, 0);
    }
    let _wanted = ring.publish();
    assert_eq!(log.take(), [END / 4096 - 1]);
}

#[test]
fn a_log_must_cover_all_memory_and_the_used_ring() {
    let driver = Driver::new(4, 0);
    let setup = driver.setup();
    let check = |bytes, marking, expected| {
        let log = Log::of(bytes).log;
        let made = RingDirtyLog::new(log, &driver.memory, &setup, marking).map(drop);
        assert_eq!(made, expected, "{bytes} bytes for {marking:?}");
    };
    let missing = |last| {
        let (bytes, last) = (LOG_BYTES, GuestAddress(last));
        Err(RingError::LogTooSmall { bytes, last })
    };
    check(LOG_BYTES, DirtyLogScope::Buffers, Ok(()));
    let last = GuestAddress(END - 1);
    let too_small = RingError::LogTooSmall { bytes: LOG_BYTES - 1, last };
    check(LOG_BYTES - 1, DirtyLogScope::Buffers, Err(too_small));
    check(LOG_BYTES, DirtyLogScope::All(GuestAddress(END - 38)), Ok(()));
    check(LOG_BYTES, DirtyLogScope::Ring(GuestAddress(END - 37)), missing(END));
    check(LOG_BYTES, DirtyLogScope::Ring(GuestAddress(u64::MAX - 3)), missing(u64::MAX));
}

#[test]
fn a_log_that_is_cut_off_breaks_its_ring_and_nothing_else() {
    catch_lost_memory().unwrap();
    let mut driver = Driver::new(4, 0);
    let setup = driver.setup();
    let (cut, whole) = (Log::new(), Log::new());
    let all = DirtyLogScope::All(GuestAddress(GUEST));
    let mut ring = Ring::new(Arc::clone(&driver.memory), setup).unwrap();
    ring.set_log(Some(cut.for_ring(&driver, &setup, all)));
    rustix::fs::ftruncate(&cut.file, 0).unwrap();
    assert_eq!(ring.check_log(), Ok(()), "nobody has touched what is gone");
    driver.offer(0, &[(BUFFERS, 16, 0)]);
    let head = ring.pop(&mut Chain::default()).unwrap().unwrap();
    ring.push_used(head, 0);
    let _wanted = ring.publish();
    assert_eq!(ring.check_log(), Err(RingError::LogLost));
    assert!(!driver.memory.is_lost());
    ring.set_log(Some(whole.for_ring(&driver, &setup, all)));
    assert_eq!(ring.check_log(), Ok(()));
}
