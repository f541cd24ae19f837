//! A disk whose I/O never ends keeps what it has, and leaves every other disk of its iothread its share of all that
//! they have in common.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use block::{Access, ByteCount, DiskSize, Node};
use disk::{NullNode, ReadContent};
use iothread::PlacedFrontEnd;
use kernel_io::{Aio, FileTable, OpenFile};
use virtio_blk::BlkRing;

use crate::guest::{Ask, BLOCK, BULKS, Guest, SLOTS};
use crate::open_requests::OneFile;
use crate::setup::{iothreads, on_both, place, set_log};

/// A file as one of the disks has it.
#[derive(Debug, Clone, Copy)]
struct Shape {
    aio: Aio,
    /// What its places and lengths must be multiples of.
    alignment: u32,
    /// The pieces of an answer.
    pieces: usize,
}

const PLAIN: Shape = Shape { aio: Aio::Automatic, alignment: 1, pieces: 1 };

impl Shape {
    /// A disk that is this file, and what tells of each read that has begun.
    fn node(self, file: OwnedFd, files: &FileTable) -> (Arc<dyn Node>, mpsc::Receiver<()>) {
        let (begun, beginnings) = mpsc::channel();
        let file = OpenFile::adopt(file, "disk".into(), 1 << 20, self.aio);
        let file = files.insert(Arc::new(file.with_alignment(self.alignment)));
        (OneFile { file, begun, others: self.pieces - 1 }.node(), beginnings)
    }
}

/// A file with data to read.
fn healthy_file() -> OwnedFd {
    let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(&[7; 4 * BLOCK]).unwrap();
    file.into()
}

/// Has a disk that hangs begin so many reads, as many as it may, of those that are wanted of it, and then asks
/// another disk of the same iothread.
fn check(reads: usize, hung: Shape, healthy: impl Fn(&FileTable) -> Arc<dyn Node>) {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [iothread] = iothreads::<1>(&files, reactors);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (node, beginnings) = hung.node(reader, &files);
        let mut crowd: Vec<(Guest, PlacedFrontEnd<BlkRing>)> = Vec::new();
        for _ in 0..=reads / usize::from(SLOTS) {
            let mut guest = Guest::new();
            let placed = place(&guest, &node, &iothread);
            (0..SLOTS).for_each(|slot| guest.submit(slot, Ask::Read, 0));
            crowd.push((guest, placed));
        }
        for read in 0..reads {
            let begun = beginnings.recv_timeout(Duration::from_secs(60));
            begun.unwrap_or_else(|_| panic!("only {read} reads have begun"));
        }
        let mut guest = Guest::new();
        let placed = place(&guest, &healthy(&files), &iothread);
        for _ in 0..100 {
            (0..SLOTS).for_each(|slot| guest.submit(slot, Ask::Read, 0));
            while guest.in_flight() > 0 {
                for slot in guest.completions() {
                    assert_eq!(guest.status(slot), 0);
                }
            }
        }
        placed.stop();
        // All that hangs meets the end of the pipe.
        drop(writer);
        for (_guest, placed) in crowd {
            assert_eq!(placed.stop().in_flight(), 0);
        }
    });
}

fn null(_: &FileTable) -> Arc<dyn Node> {
    let size = DiskSize(ByteCount(1 << 20));
    Arc::new(NullNode::new("null", size, Access::ReadWrite, ReadContent::Zeroes))
}

/// The disk in the same shape, of a file that can be read.
fn same(shape: Shape) -> impl Fn(&FileTable) -> Arc<dyn Node> {
    move |files| shape.node(healthy_file(), files).0
}

#[test]
fn a_disk_that_hangs_leaves_others_requests() {
    check(4096, PLAIN, null);
}

#[test]
fn a_disk_that_hangs_leaves_others_pieces() {
    check(256, Shape { pieces: 4096, ..PLAIN }, same(PLAIN));
}

#[test]
fn a_disk_that_hangs_leaves_others_bounce_buffers() {
    // Two blocks: no read is a whole one.
    let staged = Shape { alignment: 8192, ..PLAIN };
    check(64, staged, same(staged));
}

#[test]
fn a_disk_that_hangs_leaves_others_workers() {
    let threads = Shape { aio: Aio::Threads, ..PLAIN };
    check(64, threads, same(threads));
}

/// Whoever stops a ring waits for what is in flight: not for terabytes, however large the requests.
#[test]
fn only_so_many_bytes_are_in_flight() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [iothread] = iothreads::<1>(&files, reactors);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (node, beginnings) = PLAIN.node(reader, &files);
        let mut guest = Guest::with_bulk(512 << 20);
        let placed = place(&guest, &node, &iothread);
        (0..BULKS).for_each(|slot| guest.submit(slot, Ask::BulkRead, 0));
        for _ in 0..2 {
            beginnings.recv_timeout(Duration::from_secs(60)).expect("two reads begin");
        }
        // Each is answered in a round of its own.
        (0..5).for_each(|_| set_log(&placed, None));
        assert_eq!(beginnings.try_iter().count(), 0, "two of 512 MiB are in flight already");
        // They meet the end of the pipe.
        drop(writer);
        assert_eq!(placed.stop().in_flight(), 0);
    });
}
