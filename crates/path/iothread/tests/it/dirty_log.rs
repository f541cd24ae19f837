//! Live migration: pages are marked when a request is answered, whatever was switched or moved
//! while it was open.
//!
//! What can go wrong: a request that was begun before the log came, or on an iothread that its ring
//! has left, is answered unmarked; a mark goes to a log that was taken back; marks are set for an
//! answer that the front end has seen before.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use iothread::{Iothread, PlacedFrontEnd};
use kernel_io::FileTable;
use rustix::fs::MemfdFlags;
use virtio::DirtyLog;
use virtio_blk::BlkRing;

use crate::guest::{Ask, BLOCK, Guest};
use crate::open_requests::pipe_node;
use crate::setup::{file_node, iothreads, on_both, place, set_log};

const LOG_BYTES: usize = 4096;

/// A log as its front end sees it.
pub(crate) struct Log {
    file: OwnedFd,
    log: Arc<DirtyLog>,
}

impl Log {
    pub(crate) fn new() -> Self {
        let file = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, LOG_BYTES as u64).unwrap();
        let log =
            DirtyLog::map(file.try_clone().unwrap(), LOG_BYTES as u64, 0, &Arc::default()).unwrap();
        Self { file, log: Arc::new(log) }
    }

    pub(crate) fn shared(&self) -> Arc<DirtyLog> {
        Arc::clone(&self.log)
    }

    /// The marked pages; takes the marks away, while nobody sets any.
    pub(crate) fn take(&self) -> Vec<usize> {
        let mut bytes = [0; LOG_BYTES];
        rustix::io::pread(&self.file, &mut bytes[..], 0).unwrap();
        rustix::io::pwrite(&self.file, &[0; LOG_BYTES], 0).unwrap();
        (0..LOG_BYTES * 8).filter(|page| bytes[page / 8] & 1 << (page % 8) != 0).collect()
    }
}

/// The pages of answers to reads of these slots.
fn answers(slots: &[u16]) -> Vec<usize> {
    let mut pages = Guest::ANSWER_PAGES.to_vec();
    pages.extend(slots.iter().map(|slot| Guest::data_page(*slot)));
    pages.sort_unstable();
    pages
}

/// A guest on a disk whose reads last until the test lets them end.
struct Rig {
    guest: Guest,
    placed: PlacedFrontEnd<BlkRing>,
    pipe: std::fs::File,
    begun: Receiver<()>,
    threads: [Arc<Iothread>; 2],
    log: Log,
}

impl Rig {
    /// Runs a test on both reactors. It says which slots' pages must be marked at its end, and no
    /// other page; none at all if there is no such slot.
    fn on_both(test: impl Fn(&mut Self) -> Vec<u16>) {
        on_both(|reactors| {
            let files = Arc::new(FileTable::default());
            let threads = iothreads::<2>(&files, reactors);
            let (node, pipe, begun) = pipe_node(&files);
            let guest = Guest::new();
            let placed = place(&guest, &node, &threads[0]);
            let mut rig = Self { guest, placed, pipe, begun, threads, log: Log::new() };
            let slots = test(&mut rig);
            // The mark of a used ring may come after the answer that it stands for.
            assert_eq!(rig.placed.stop().in_flight(), 0);
            let expected = if slots.is_empty() { Vec::new() } else { answers(&slots) };
            assert_eq!(rig.log.take(), expected, "{slots:?}");
        });
    }

    fn begin_read(&mut self, slot: u16) {
        self.guest.submit(slot, Ask::Read, 0);
        self.begun.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    /// Lets one read end and waits for its answer.
    fn end_read(&mut self) {
        self.pipe.write_all(&[7; BLOCK]).unwrap();
        for slot in self.guest.completions() {
            assert_eq!((self.guest.status(slot), self.guest.data(slot)[BLOCK - 1]), (0, 7));
        }
    }

    fn log_on(&self) {
        self.log_to(&self.log);
    }

    fn log_to(&self, log: &Log) {
        set_log(&self.placed, Some(self.guest.ring_log(log.shared())));
        log.take();
    }

    fn move_to(&self, thread: usize) {
        self.placed.move_to(&self.threads[thread]).unwrap();
    }
}

#[test]
fn a_read_that_was_begun_before_the_log_came_is_marked() {
    Rig::on_both(|rig| {
        rig.begin_read(3);
        rig.log_on();
        rig.end_read();
        vec![3]
    });
}

#[test]
fn a_read_that_was_answered_before_the_log_came_is_not_marked() {
    Rig::on_both(|rig| {
        rig.begin_read(3);
        rig.end_read();
        rig.log_on();
        rig.begin_read(4);
        rig.end_read();
        vec![4]
    });
}

#[test]
fn a_read_on_an_iothread_that_its_ring_has_left_is_marked() {
    Rig::on_both(|rig| {
        // Left before the log came, and after.
        rig.begin_read(1);
        rig.move_to(1);
        rig.log_on();
        rig.begin_read(2);
        rig.move_to(0);
        rig.begin_read(3);
        for _ in 0..3 {
            rig.end_read();
        }
        vec![1, 2, 3]
    });
}

#[test]
fn a_ring_that_comes_back_marks_what_it_left_behind() {
    Rig::on_both(|rig| {
        rig.begin_read(1);
        rig.move_to(1);
        rig.move_to(0);
        rig.log_on();
        rig.end_read();
        vec![1]
    });
}

#[test]
fn a_log_that_is_switched_off_and_on_again_marks_what_is_open() {
    Rig::on_both(|rig| {
        rig.log_on();
        rig.begin_read(1);
        set_log(&rig.placed, None);
        rig.begin_read(2);
        rig.move_to(1);
        rig.log_on();
        rig.begin_read(3);
        for _ in 0..3 {
            rig.end_read();
        }
        vec![1, 2, 3]
    });
}

#[test]
fn nothing_is_marked_once_the_log_was_switched_off() {
    Rig::on_both(|rig| {
        rig.log_on();
        rig.begin_read(1);
        set_log(&rig.placed, None);
        rig.log.take();
        rig.end_read();
        Vec::new()
    });
}

#[test]
fn a_slot_that_is_used_again_is_marked_for_its_own_read_only() {
    Rig::on_both(|rig| {
        rig.log_on();
        rig.begin_read(5);
        set_log(&rig.placed, None);
        rig.end_read();
        rig.log_on();
        // Nothing of that read is left for the next request of its head, a write that is refused.
        rig.guest.submit(5, Ask::Write, 0);
        rig.guest.completions();
        rig.begin_read(6);
        rig.end_read();
        vec![6]
    });
}

#[test]
fn a_log_is_left_alone_once_another_has_taken_its_place() {
    let old = Log::new();
    Rig::on_both(|rig| {
        rig.log_to(&old);
        rig.begin_read(1);
        rig.log_on();
        assert_eq!(Arc::strong_count(&old.log), 1, "nobody has it any more");
        old.take();
        rig.end_read();
        assert!(old.take().is_empty());
        vec![1]
    });
}

/// Reads go on under moves and a log that is replaced all the time; each answer is found marked in
/// the log that was in use when it was seen, or in the one before it.
#[test]
fn no_answer_is_unmarked_while_rings_move_and_logs_change() {
    const BLOCKS: u64 = 64;
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads = iothreads::<2>(&files, reactors);
        let (node, _image) = file_node(&files, BLOCKS * BLOCK as u64);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &threads[0]);
        let logs = [Log::new(), Log::new()];
        let mut marked = [Vec::new(), Vec::new()];
        let mut answered = Vec::new();
        let mut checked = 0;
        for round in 0..300_usize {
            set_log(&placed, Some(guest.ring_log(logs[round % 2].shared())));
            // Nobody marks in the other one now.
            marked[1 - round % 2] = logs[1 - round % 2].take();
            for slot in answered.drain(..) {
                let page = Guest::data_page(slot);
                let found = marked.iter().any(|marked| marked.contains(&page));
                assert!(found, "round {round}, slot {slot}: {marked:?}");
                checked += 1;
            }
            while let Some(slot) = guest.free_slot() {
                guest.submit(slot, Ask::Read, round as u64 % BLOCKS);
            }
            placed.move_to(&threads[round % 2]).unwrap();
            answered = guest.completions();
        }
        assert!(checked >= 300, "only {checked} answers");
        placed.stop();
    });
}
