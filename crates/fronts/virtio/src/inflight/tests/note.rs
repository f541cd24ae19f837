//! The cache mode in the region: kept, spoilt, cut, or not there.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use block::{ByteCount, DiskSize};

use crate::inflight::{CacheModeAndSizeRecord, InflightGeometry, InflightRegion};
use crate::{CacheMode, RingLayout};

const BOTH: [CacheMode; 2] = [CacheMode::WriteBack, CacheMode::WriteThrough];

fn shape() -> InflightGeometry {
    InflightGeometry::check(super::QUEUES, super::ENTRIES).expect("possible")
}

/// Where the note of the shape lies: two parts of 256 bytes come before, as packed rings need.
const NOTE: u64 = 512;

/// The file of a region of ours, with this mode noted.
fn noted(mode: CacheMode) -> OwnedFd {
    let (region, fd) = InflightRegion::create(shape(), &Arc::default()).expect("memory");
    let _note = CacheModeAndSizeRecord::begin(&Arc::new(region), mode);
    fd
}

fn map(fd: &OwnedFd, bytes: u64) -> Arc<InflightRegion> {
    let fd = fd.try_clone().expect("descriptors are available");
    InflightRegion::map(fd, shape(), bytes, 0, &Arc::default()).expect("it lies in the file").into()
}

fn said(fd: &OwnedFd) -> Option<CacheMode> {
    CacheModeAndSizeRecord::open(&map(fd, shape().region_bytes())).map(|(_note, mode)| mode)
}

fn put(fd: &OwnedFd, offset: u64, bytes: &[u8]) {
    let put = rustix::io::pwrite(fd, bytes, NOTE + offset).expect("it lies in the file");
    assert_eq!(put, bytes.len());
}

fn content(fd: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(shape().region_bytes()).expect("small")];
    let read = rustix::io::pread(fd, &mut bytes[..], 0).expect("it is readable");
    assert_eq!(read, bytes.len());
    bytes
}

#[test]
fn the_size_that_was_told_is_kept_unless_the_note_is_not_understood() {
    let fd = noted(CacheMode::WriteBack);
    let open =
        || CacheModeAndSizeRecord::open(&map(&fd, shape().region_bytes())).expect("it is there").0;
    assert_eq!(open().announced_size(), None);
    for bytes in [1 << 20, 3 << 30] {
        let size = DiskSize(ByteCount(bytes));
        open().store_announced_size(size);
        assert_eq!(open().announced_size(), Some(size));
        assert_eq!(said(&fd), Some(CacheMode::WriteBack));
    }
    put(&fd, 8, &2_u16.to_ne_bytes());
    assert_eq!(open().announced_size(), None);
}

#[test]
fn a_region_says_what_was_noted_last() {
    for first in BOTH {
        let fd = noted(first);
        assert_eq!(said(&fd), Some(first));
        for next in BOTH {
            let region = map(&fd, shape().region_bytes());
            let (mut note, _) = CacheModeAndSizeRecord::open(&region).expect("it is there");
            note.store(next);
            assert_eq!(said(&fd), Some(next));
        }
    }
}

#[test]
fn the_note_lies_behind_the_parts_of_either_layout() {
    let bytes = content(&noted(CacheMode::WriteBack));
    let note = usize::try_from(NOTE).expect("small");
    assert!(bytes[..note].iter().all(|byte| *byte == 0));
    assert_eq!(bytes[note..note + 8], *b"ringloom");
    assert_eq!(bytes.len(), note + 64);
    for layout in [RingLayout::Split, RingLayout::Packed] {
        assert!(shape().bytes(layout) <= NOTE);
    }
}

/// A region for one layout only, as others make it: it ends where the note would begin, or before.
#[test]
fn a_region_of_another_back_end_says_nothing() {
    let fd = noted(CacheMode::WriteThrough);
    for bytes in [shape().bytes(RingLayout::Split), shape().bytes(RingLayout::Packed)] {
        assert!(CacheModeAndSizeRecord::open(&map(&fd, bytes)).is_none(), "{bytes} bytes");
    }
    // A front end may have rounded the size up.
    put(&fd, 0, &[0; 64]);
    assert_eq!(said(&fd), None);
    assert!(content(&fd).iter().all(|byte| *byte == 0), "it was written to");
}

#[test]
fn a_truncated_note_says_nothing() {
    let fd = noted(CacheMode::WriteThrough);
    for bytes in NOTE..NOTE + 64 {
        assert!(CacheModeAndSizeRecord::open(&map(&fd, bytes)).is_none(), "{bytes} bytes");
    }
}

#[test]
fn another_magic_number_says_nothing() {
    for place in 0..8 {
        let fd = noted(CacheMode::WriteThrough);
        put(&fd, place, b"R");
        assert_eq!(said(&fd), None, "byte {place}");
    }
}

#[test]
fn what_is_not_understood_says_write_through() {
    for (place, value) in [(8, 0), (8, 2), (9, 1), (10, 2), (10, 0xff)] {
        let fd = noted(CacheMode::WriteBack);
        put(&fd, place, &[value]);
        assert_eq!(said(&fd), Some(CacheMode::WriteThrough), "{value} at byte {place}");
        // Whoever has opened it makes it its own.
        let region = map(&fd, shape().region_bytes());
        let (mut note, _) = CacheModeAndSizeRecord::open(&region).expect("it is there");
        note.store(CacheMode::WriteBack);
        assert_eq!(said(&fd), Some(CacheMode::WriteBack), "{value} at byte {place}");
    }
}

/// Only the file of another process can be cut; ours is sealed.
#[test]
fn a_note_that_is_taken_away_says_nothing_and_harms_nobody() {
    crate::catch_lost_memory().expect("the handler is installed");
    let ours = noted(CacheMode::WriteThrough);
    let theirs = super::Image::new(&content(&ours));
    let region = InflightRegion::map(theirs.fd(), shape(), theirs.bytes(), 0, &Arc::default())
        .expect("mapped");
    let region = Arc::new(region);
    let (mut note, _) = CacheModeAndSizeRecord::open(&region).expect("it is there");
    theirs.cut(0);
    note.store(CacheMode::WriteBack);
    assert!(region.is_lost());
    assert!(CacheModeAndSizeRecord::open(&region).is_none());
}
