//! Iothreads and disks for tests.

use std::error::Error;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use block::{Access, Capacity, Clock, DiscardPolicy, Durability, Node, SystemClock};
use disk::FileNode;
use iothread::{
    Iothread, PlacedFrontEnd, PollSettings, ProcessResources, SourceName, SourceObserver,
    SourceRegistry,
};
use kernel_io::{Caching, FileTable, OpenOptions, ReactorChoice};
use request_path::{FrontEnd, FrontEndSource};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use virtio::{BlkRules, Ring, RingDirtyLog};
use virtio_blk::{BlkRing, BlkRingSetup};

use crate::guest::Guest;

/// A test's guest keeps the rules.
#[derive(Debug)]
pub(crate) struct NoFault;

impl SourceObserver for NoFault {
    fn broken(&self, fault: &(dyn Error + 'static)) {
        panic!("a well-behaved ring was found broken: {fault}");
    }

    fn kicked_while_empty(&self) {}
}

/// What a source of the test is called.
pub(crate) fn name(queue: u16) -> SourceName {
    SourceName { export: "test".to_owned(), queue }
}

/// Has this log, or none, mark what is written from now on.
pub(crate) fn set_log(placed: &PlacedFrontEnd<BlkRing>, log: Option<RingDirtyLog>) {
    placed.visit(|ring, port| ring.set_log(log, port)).unwrap();
}

/// Waits until a client is told that some of its requests are answered; says how many are not, if that takes a minute.
pub(crate) fn wait_for_answer(call: BorrowedFd<'_>, in_flight: usize) {
    let mut fds = [PollFd::from_borrowed_fd(call, PollFlags::IN)];
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    let ready = poll(&mut fds, Some(&limit)).unwrap();
    assert!(ready > 0, "no answer for a minute, {in_flight} in flight");
}

/// Runs a test on both reactors.
pub(crate) fn on_both(test: impl Fn(ReactorChoice)) {
    test(ReactorChoice::Any);
    test(ReactorChoice::EpollOnly);
}

/// What the iothreads of a process share, and nothing that a test has not asked for.
pub(crate) fn process_resources() -> ProcessResources {
    ProcessResources {
        files: Arc::new(FileTable::default()),
        clock: Arc::new(SystemClock),
        sources: Arc::new(SourceRegistry::default()),
        reactors: ReactorChoice::Any,
        spare_rings: Arc::default(),
        confine: None,
        alarm: None,
    }
}

pub(crate) fn iothreads<const N: usize>(
    files: &Arc<FileTable>,
    reactors: ReactorChoice,
) -> [Arc<Iothread>; N] {
    iothreads_with(files, reactors, &(Arc::new(SystemClock) as Arc<dyn Clock>))
}

pub(crate) fn iothreads_with<const N: usize>(
    files: &Arc<FileTable>,
    reactors: ReactorChoice,
    clock: &Arc<dyn Clock>,
) -> [Arc<Iothread>; N] {
    let sources = Arc::new(SourceRegistry::default());
    std::array::from_fn(|i| {
        let name = format!("t{i}");
        let (files, clock) = (Arc::clone(files), Arc::clone(clock));
        let sources = Arc::clone(&sources);
        let host = ProcessResources { files, clock, sources, reactors, ..process_resources() };
        // One of them never looks, as `none` does not.
        let settings = if i == 1 { PollSettings::OFF } else { PollSettings::default() };
        Arc::new(Iothread::spawn(&name, host, settings).unwrap())
    })
}

/// One more iothread of the process that this one belongs to.
pub(crate) fn another_iothread(
    name: &str,
    beside: &Iothread,
    files: &Arc<FileTable>,
    reactors: ReactorChoice,
) -> Arc<Iothread> {
    let host = ProcessResources {
        files: Arc::clone(files),
        sources: Arc::clone(beside.sources()),
        reactors,
        ..process_resources()
    };
    Arc::new(Iothread::spawn(name, host, PollSettings::default()).unwrap())
}

/// A file of that many bytes in the target directory, whose file system has asynchronous I/O.
pub(crate) fn file_node(files: &Arc<FileTable>, bytes: u64) -> (Arc<dyn Node>, tempfile::TempPath) {
    cached_file_node(files, bytes, Caching::Direct)
}

/// The same, past the page cache or not.
pub(crate) fn cached_file_node(
    files: &Arc<FileTable>,
    bytes: u64,
    caching: Caching,
) -> (Arc<dyn Node>, tempfile::TempPath) {
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len(bytes).unwrap();
    let options = OpenOptions { caching, ..OpenOptions::regular(image.path(), Access::ReadWrite) };
    let node = FileNode::open("disk", &options, DiscardPolicy::Unmap, files).unwrap();
    (Arc::new(node), image.into_temp_path())
}

pub(crate) fn source(guest: &Guest, node: &Arc<dyn Node>) -> FrontEndSource<BlkRing> {
    served(ring(guest, node), node)
}

pub(crate) fn ring(guest: &Guest, node: &Arc<dyn Node>) -> BlkRing {
    let ring = Ring::new(guest.memory(), guest.setup()).unwrap();
    blk_ring(ring, guest, node, Durability::Cached)
}

/// The source of a ring of the guest that was started already.
pub(crate) fn source_of(
    ring: Ring,
    guest: &Guest,
    node: &Arc<dyn Node>,
) -> FrontEndSource<BlkRing> {
    served(blk_ring(ring, guest, node, Durability::Cached), node)
}

/// A front end whose requests go to one node.
pub(crate) fn served<F: FrontEnd>(front: F, node: &Arc<dyn Node>) -> FrontEndSource<F> {
    let owner = Arc::new(kernel_io::Notifier::new().unwrap());
    FrontEndSource::new(front, vec![Arc::clone(node)], owner)
}

fn blk_ring(ring: Ring, guest: &Guest, node: &Arc<dyn Node>, durability: Durability) -> BlkRing {
    blk_ring_with(ring, guest.kick_fd(), guest.call_fd(), node, durability)
}

/// A ring with these descriptors.
pub(crate) fn blk_ring_with(
    ring: Ring,
    kick: OwnedFd,
    call: OwnedFd,
    node: &Arc<dyn Node>,
    durability: Durability,
) -> BlkRing {
    let rules = BlkRules {
        size: node.size(),
        access: node.access(),
        durability,
        discard: true,
        write_zeroes: true,
    };
    BlkRing::new(BlkRingSetup {
        ring,
        rules,
        capacity: Arc::new(Capacity::new(node.size())),
        serial: "test".to_owned(),
        kick,
        call: Some(call),
        error: None,
    })
}

pub(crate) fn place(
    guest: &Guest,
    node: &Arc<dyn Node>,
    on: &Arc<Iothread>,
) -> PlacedFrontEnd<BlkRing> {
    place_source(source(guest, node), on)
}

/// A ring whose changes are durable when they are answered.
pub(crate) fn place_stable(
    guest: &Guest,
    node: &Arc<dyn Node>,
    on: &Arc<Iothread>,
) -> PlacedFrontEnd<BlkRing> {
    let ring = Ring::new(guest.memory(), guest.setup()).unwrap();
    place_source(served(blk_ring(ring, guest, node, Durability::Stable), node), on)
}

pub(crate) fn place_source<F: FrontEnd>(
    source: FrontEndSource<F>,
    on: &Arc<Iothread>,
) -> PlacedFrontEnd<F> {
    PlacedFrontEnd::on(on, name(0), source, Arc::new(NoFault)).unwrap()
}
