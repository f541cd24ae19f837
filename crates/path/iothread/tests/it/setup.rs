//! Iothreads and disks for tests.

use std::sync::Arc;

use block::{Access, Durability, Node, SystemClock};
use disk::{DiscardPolicy, FileNode};
use iothread::{Host, Iothread, Placed, PollSettings, Polling, Watcher};
use kernel_io::{Caching, FileTable, OpenOptions, Reactors};
use request_path::{Capacity, Fault, RingSource, RingSourceSetup, Source};
use virtio::{BlkRules, Ring};

use crate::guest::Guest;

/// A test's guest keeps the rules.
#[derive(Debug)]
struct NoFault;

impl Watcher for NoFault {
    fn broken(&self, fault: &Fault) {
        panic!("a well-behaved ring was found broken: {fault}");
    }

    fn kicked_in_vain(&self) {}
}

/// Runs a test on both reactors.
pub(crate) fn on_both(test: impl Fn(Reactors)) {
    test(Reactors::Any);
    test(Reactors::EpollOnly);
}

pub(crate) fn iothreads<const N: usize>(
    files: &Arc<FileTable>,
    reactors: Reactors,
) -> [Arc<Iothread>; N] {
    let polling = Arc::new(Polling::of_process().unwrap());
    std::array::from_fn(|i| {
        let name = format!("t{i}");
        let (files, clock) = (Arc::clone(files), Arc::new(SystemClock));
        let polling = Arc::clone(&polling);
        let host = Host { files, clock, polling, reactors, confine: None };
        // One of them never looks, as `none` does not.
        let settings = if i == 1 { PollSettings::OFF } else { PollSettings::default() };
        Arc::new(Iothread::spawn(&name, host, settings).unwrap())
    })
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

pub(crate) fn source(guest: &Guest, node: &Arc<dyn Node>) -> Box<dyn Source> {
    Box::new(ring(guest, node))
}

pub(crate) fn ring(guest: &Guest, node: &Arc<dyn Node>) -> RingSource {
    let ring = Ring::new(guest.memory(), guest.setup()).unwrap();
    ring_source(ring, guest, node, Durability::Cached)
}

/// The source of a ring of the guest that was started already.
pub(crate) fn source_of(ring: Ring, guest: &Guest, node: &Arc<dyn Node>) -> Box<dyn Source> {
    Box::new(ring_source(ring, guest, node, Durability::Cached))
}

fn ring_source(
    ring: Ring,
    guest: &Guest,
    node: &Arc<dyn Node>,
    durability: Durability,
) -> RingSource {
    let rules = BlkRules {
        size: node.size(),
        access: node.access(),
        durability,
        discard: true,
        write_zeroes: true,
    };
    RingSource::new(RingSourceSetup {
        ring,
        rules,
        capacity: Arc::new(Capacity::new(node.size())),
        node: Arc::clone(node),
        serial: "test".to_owned(),
        kick: guest.kick_fd(),
        call: Some(guest.call_fd()),
        error: None,
        owner: Arc::new(kernel_io::Notifier::new().unwrap()),
    })
}

pub(crate) fn place(guest: &Guest, node: &Arc<dyn Node>, on: &Arc<Iothread>) -> Placed {
    place_source(source(guest, node), on)
}

/// A ring whose changes are durable when they are answered.
pub(crate) fn place_stable(guest: &Guest, node: &Arc<dyn Node>, on: &Arc<Iothread>) -> Placed {
    let ring = Ring::new(guest.memory(), guest.setup()).unwrap();
    place_source(Box::new(ring_source(ring, guest, node, Durability::Stable)), on)
}

pub(crate) fn place_source(source: Box<dyn Source>, on: &Arc<Iothread>) -> Placed {
    Placed::on(on, source, Arc::new(NoFault)).unwrap()
}
