//! What a worker brings of a copy: literal cases.

use std::iter;

use bitmaps::{CopyBacklog, DirtyBitmap, Granularity};
use block::{ByteCount, DiskSize, SystemClock};

use super::*;
use crate::backlog::{
    BacklogCopy, BacklogEnd, BacklogLimits, CopyObserver, ErrorAction, ErrorPolicy,
};
use crate::job::{CopySettings, TargetContent};

const GRANULE: u64 = 64 << 10;
const DISK: u64 = 64 << 20;

#[derive(Debug)]
struct Nobody;

impl CopyObserver for Nobody {
    fn is_equal(&self) {}

    fn has_failed(&self, _: CopyError, _: ErrorAction) {}
}

/// A worker of a copy of what is dirty.
fn worker(
    dirty: impl IntoIterator<Item = Range<u64>>,
    bytes_per_second: Option<u64>,
) -> CopyWorker {
    let size = DiskSize(ByteCount(DISK));
    let bitmap = DirtyBitmap::new(size, Granularity::new(GRANULE).unwrap()).unwrap();
    dirty.into_iter().for_each(|bytes| bitmap.set(bytes));
    let settings = CopySettings {
        action: CopyAction::Copy,
        bytes: DISK,
        target_bytes: DISK,
        target: TargetContent::Unknown,
        zero_unit: 4096,
        target_unit: 1,
        copied: CopiedSource::Kept,
        bytes_per_second,
    };
    let backlog = BacklogCopy {
        backlog: CopyBacklog::new(bitmap).unwrap(),
        scan: None,
        end: BacklogEnd::WhenEmpty,
        on_source_error: ErrorPolicy::Report,
        on_target_error: ErrorPolicy::Report,
        limits: BacklogLimits::DEFAULT,
        observer: Arc::new(Nobody),
    };
    CopyWorker::new(&CopyJob::of_backlog(settings, backlog, Arc::new(SystemClock))).unwrap()
}

/// What it brings next: the operation by its name, and how many bytes.
fn next(worker: &mut CopyWorker) -> Option<(&'static str, u64, SourceRequestSlot)> {
    worker.begin_batch();
    let NewRequest { slot, work, .. } = worker.take().unwrap()?;
    let RequestAction::Disk { operation, .. } = work else { panic!("a copy asks of disks alone") };
    let name = operation.name();
    Some((name, operation.extent().map_or(0, |extent| extent.count().0), slot))
}

#[test]
fn what_is_short_is_read_without_a_question() {
    let mut worker = worker([GRANULE..2 * GRANULE, 10 << 20..12 << 20], None);
    let (first, second) = (next(&mut worker).unwrap(), next(&mut worker).unwrap());
    assert_eq!((first.0, first.1), ("read", GRANULE));
    assert_eq!((second.0, second.1), ("block status", 1 << 20));
}

/// How long the first read is of a worker all of whose slots are in use.
#[track_caller]
fn check_read(bytes_per_second: Option<u64>, expected: u64) {
    let mut worker = worker(iter::once(0..16 << 20), bytes_per_second);
    worker.depth = worker.chunks.len();
    let (name, _, slot) = next(&mut worker).unwrap();
    assert_eq!(name, "block status");
    // It cannot say, so that all is data.
    worker.answer(slot, (), Outcome::Failed(FailKind::Unsupported));
    let read = next(&mut worker).unwrap();
    assert_eq!((read.0, read.1), ("read", expected));
}

#[test]
fn a_disk_that_takes_its_time_is_asked_for_more_at_once_unless_the_rate_is_low() {
    check_read(None, 1 << 20);
    check_read(Some(100 << 20), 1 << 20);
    check_read(Some(1 << 20), 256 << 10);
}
