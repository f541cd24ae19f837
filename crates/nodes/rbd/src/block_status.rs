//! What the bytes of an image are: objects that are not there are zeroes.
//!
//! Where it stands: on a thread of its own for each channel that is asked, because the library waits for the cluster.
//!
//! Invariants: what is not known for sure is data. It is known where the image keeps a map of its objects that is valid
//! (`fast-diff`), has no parent, and its stripes are its objects. The range that the library is asked about begins and ends
//! with objects: versions before 2022 answer wrongly otherwise (Ceph's issue 53784).
//! Limits: [`BYTES_MAX`] in one answer, and as many records as there is room for.

use std::ops::{ControlFlow, Range};
use std::sync::Weak;

use block::{BlockStatus, ByteCount, StatusRuns};
use rustix::io::Errno;

use crate::cluster::CallError;
use crate::disk::Disk;
use crate::request::Request;

/// The most bytes that one answer is about.
const BYTES_MAX: u64 = 1 << 36;

/// Answers a request and ends it. Blocks.
pub(crate) fn answer(disk: &Weak<Disk>, mut request: Box<Request>) {
    let Some(disk) = disk.upgrade() else {
        // The node is gone, and with it whoever has asked.
        return request.end(Err(Errno::CANCELED));
    };
    let range = request.bytes();
    let range = range.start..range.end.min(range.start.saturating_add(BYTES_MAX));
    let room = request.room_for_status();
    let result = find(&disk, range, room, &mut request.runs);
    let image = disk.name().to_owned();
    let result = result.map(|()| 0).map_err(|error| {
        tracing::debug!("disk {image}: block status: {error}");
        error.errno
    });
    // The request keeps the image open until it has ended.
    request.end(result);
}

fn find(
    disk: &Disk,
    range: Range<u64>,
    room: usize,
    runs: &mut StatusRuns,
) -> Result<(), CallError> {
    let (image, object) = (disk.image(), disk.object_bytes);
    let mut told = Told { runs, range, end: 0 };
    told.end = told.range.start;
    if !image.knows_its_objects(object)? {
        told.add(BlockStatus::DATA, told.range.end);
        return Ok(());
    }
    let whole = told.range.start - told.range.start % object
        ..told.range.end.next_multiple_of(object).min(disk.size().0.0.max(told.range.end));
    let mut is_full = false;
    image.for_each_object(whole, |there| {
        told.add(BlockStatus::ZEROES, there.start);
        told.add(BlockStatus::DATA, there.end);
        is_full = told.runs.count() > room;
        if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if !is_full {
        told.add(BlockStatus::ZEROES, told.range.end);
    }
    Ok(())
}

/// What was told of a range so far.
struct Told<'a> {
    runs: &'a mut StatusRuns,
    range: Range<u64>,
    /// Up to where.
    end: u64,
}

impl Told<'_> {
    /// The bytes up to there are that, as far as nothing was told of them.
    fn add(&mut self, status: BlockStatus, until: u64) {
        let until = until.min(self.range.end);
        if until > self.end {
            let skip = self.end - self.range.start;
            self.runs.add(skip, ByteCount(until - self.end), status);
            self.end = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records of a range of which there are these objects.
    #[track_caller]
    fn check(range: Range<u64>, there: &[Range<u64>], expected: &[(u64, BlockStatus)]) {
        let mut runs = StatusRuns::default();
        let end = range.start;
        let mut told = Told { runs: &mut runs, range: range.clone(), end };
        for object in there {
            told.add(BlockStatus::ZEROES, object.start);
            told.add(BlockStatus::DATA, object.end);
        }
        told.add(BlockStatus::ZEROES, range.end);
        let found = runs.in_order().iter().map(|run| (run.record.count.0, run.record.status));
        assert_eq!(found.collect::<Vec<_>>(), expected, "{range:?} {there:?}");
    }

    #[test]
    fn objects_are_cut_to_what_was_asked() {
        const DATA: BlockStatus = BlockStatus::DATA;
        const ZEROES: BlockStatus = BlockStatus::ZEROES;
        check(0..100, &[], &[(100, ZEROES)]);
        check(10..90, &[0..50, 50..100], &[(80, DATA)]);
        check(
            10..90,
            &[0..20, 40..60, 80..100],
            &[(10, DATA), (20, ZEROES), (20, DATA), (20, ZEROES), (10, DATA)],
        );
        check(10..90, &[0..10, 90..100], &[(80, ZEROES)]);
    }
}
