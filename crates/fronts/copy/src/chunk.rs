//! A part of the disk while it is copied or compared: what has to be done next for it.
//!
//! Where it stands in the life of a request: each step of a chunk is a request of its slot; when that was answered, the
//! next one is decided here.
//!
//! Invariants: a chunk has one request at a time. Not here: who brings it (`worker`).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bitmaps::CopyClaim;
use block::{
    BlockStatus, ByteCount, ByteOffset, DiskSize, Durability, Extent, Operation, RequestMemory,
    StatusRecord, ZeroTerms, is_zero,
};
use request_path::LogicalUnitIndex;

use crate::job::{CopySettings, CopySide};

/// What is done next for a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask the source what these bytes are.
    Status(Range<u64>),
    /// Read the chunk from a side, into its own memory of that side.
    Read(CopySide),
    /// Write these bytes of the chunk to the target.
    Write(Range<usize>),
    /// Make these bytes of the disk zeroes on the target.
    Zero(Range<u64>, ZeroTerms),
    /// Discard the chunk on the source: it was copied.
    Discard,
}

/// A part of the disk that is worked on.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Which bytes of the disk.
    pub(crate) bytes: Range<u64>,
    /// Steps that are left, without the one that is under way.
    pub(crate) steps: VecDeque<Step>,
    /// The step that is under way, or due.
    pub(crate) step: Step,
    /// Memory for what is read from the source, or what it says of its bytes.
    pub(crate) source: Option<RequestMemory>,
    /// Memory for what is read from the target.
    pub(crate) target: Option<RequestMemory>,
    /// How often the job had paused when it was begun.
    pub(crate) pauses: u64,
    /// What it is a part of, if it is of a backlog.
    pub(crate) claim: Option<Arc<CopyClaim>>,
}

/// Bytes of the source of one status.
#[derive(Debug)]
pub(crate) struct SourceRun {
    pub(crate) bytes: Range<u64>,
    pub(crate) status: BlockStatus,
    /// What they are a part of, if they are of a backlog.
    pub(crate) claim: Option<Arc<CopyClaim>>,
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.bytes.end - self.bytes.start).expect("a chunk fits memory")
    }

    /// The memory that a step uses.
    pub(crate) fn memory_of(&mut self, step: &Step) -> Option<&mut RequestMemory> {
        match step {
            Step::Status(_) | Step::Read(CopySide::Source) | Step::Write(_) => self.source.as_mut(),
            Step::Read(CopySide::Target) => self.target.as_mut(),
            Step::Zero(..) | Step::Discard => None,
        }
    }
}

/// The first byte in which the memories of a chunk differ; without a source that is zeroes.
pub(crate) fn first_difference(chunk: &mut Chunk) -> Option<usize> {
    let count = chunk.len();
    let target = &chunk.target.as_mut().expect("it was read into memory").bytes()[..count];
    match chunk.source.as_mut().map(|source| &source.bytes()[..count]) {
        None if is_zero(target) => None,
        None => target.iter().position(|byte| *byte != 0),
        Some(source) if source == target => None,
        Some(source) => source.iter().zip(target).position(|(one, other)| one != other),
    }
}

/// The granules of a chunk in which its memories differ.
pub(crate) fn differing_parts(chunk: &mut Chunk, granule: u64) -> Vec<Range<u64>> {
    let (disk, count) = (chunk.bytes.clone(), chunk.len());
    let target = &chunk.target.as_mut().expect("it was read into memory").bytes()[..count];
    let source = chunk.source.as_mut().map(|source| &source.bytes()[..count]);
    let (mut parts, mut at) = (Vec::new(), disk.start);
    while at < disk.end {
        let end = (at / granule + 1).saturating_mul(granule).min(disk.end);
        let place = |byte: u64| usize::try_from(byte - disk.start).expect("a chunk fits memory");
        let part = place(at)..place(end);
        let is_equal = match source {
            Some(source) => source[part.clone()] == target[part],
            None => is_zero(&target[part]),
        };
        if !is_equal {
            parts.push(at..end);
        }
        at = end;
    }
    parts
}

/// Which disk a step works on, and what it asks of it.
pub(crate) fn request_of(chunk: &Chunk, settings: &CopySettings) -> (LogicalUnitIndex, Operation) {
    let on = |side, range: &Range<u64>| -> Extent {
        let range = settings.on(side, range);
        let count = ByteCount(range.end - range.start);
        let checked = DiskSize(ByteCount(range.end)).check(ByteOffset(range.start), count);
        checked.expect("it ends where the range does")
    };
    let (source, target) = (LogicalUnitIndex(0), LogicalUnitIndex(1));
    match &chunk.step {
        Step::Status(range) => (source, Operation::Status(on(CopySide::Source, range))),
        Step::Read(CopySide::Source) => {
            (source, Operation::Read(on(CopySide::Source, &chunk.bytes)))
        }
        Step::Read(CopySide::Target) => {
            (target, Operation::Read(on(CopySide::Target, &chunk.bytes)))
        }
        Step::Write(part) => {
            let start = chunk.bytes.start;
            let range = start + part.start as u64..start + part.end as u64;
            (target, Operation::Write(on(CopySide::Target, &range), Durability::Cached))
        }
        Step::Zero(range, terms) => {
            let extent = on(CopySide::Target, range);
            (target, Operation::WriteZeroes(extent, *terms, Durability::Cached))
        }
        Step::Discard => {
            let extent = on(CopySide::Source, &chunk.bytes);
            (source, Operation::Discard(extent, Durability::Cached))
        }
    }
}

/// What the source has said of bytes, in order, and the first byte of which it has said nothing. What it does not say at all is
/// taken for data.
pub(crate) fn runs_of(range: &Range<u64>, memory: &[u8]) -> (Vec<(Range<u64>, BlockStatus)>, u64) {
    let (mut at, mut runs) = (range.start, Vec::new());
    for StatusRecord { count, status } in StatusRecord::read_all(memory) {
        let end = at.saturating_add(count.0).min(range.end);
        if at == end {
            break;
        }
        runs.push((at..end, status));
        at = end;
    }
    if at == range.start {
        runs.push((range.clone(), BlockStatus::DATA));
        at = range.end;
    }
    (runs, at)
}

/// What was said of the first of these bytes, which begin with a unit, such that each unit is zeroes or data: one that is not all
/// zeroes is data. And the first byte of which nothing is said then.
pub(crate) fn whole_units(
    range: &Range<u64>,
    told: &[(Range<u64>, BlockStatus)],
    unit: u64,
) -> (Vec<(Range<u64>, BlockStatus)>, u64) {
    let mut units: Vec<(Range<u64>, BlockStatus)> = Vec::new();
    let mut at = range.start;
    let mut add = |end: u64, status: BlockStatus| {
        if end > at {
            match units.last_mut() {
                Some((last, same)) if *same == status => last.end = end,
                Some(_) | None => units.push((at..end, status)),
            }
            at = end;
        }
    };
    let up = |byte: u64| byte.next_multiple_of(unit).min(range.end);
    for (run, status) in told {
        match status.is_zero {
            false => add(up(run.end), BlockStatus::DATA),
            // What its last unit has besides, the next run says.
            true if run.end < range.end => add(run.end - run.end % unit, BlockStatus::ZEROES),
            true => add(run.end, BlockStatus::ZEROES),
        }
    }
    if units.is_empty() {
        // Zeroes, and less than a unit of them: whoever is asked again may say the same.
        let end = told.last().map_or(range.start, |(run, _)| run.end);
        return (vec![(range.start..up(end), BlockStatus::DATA)], up(end));
    }
    (units, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(range: Range<u64>, told: &[(u64, bool)], expected: &[(Range<u64>, bool)]) {
        let mut start = range.start;
        let mut runs = Vec::new();
        for (end, is_zero) in told {
            let status = if *is_zero { BlockStatus::ZEROES } else { BlockStatus::DATA };
            runs.push((start..*end, status));
            start = *end;
        }
        let (found, at) = whole_units(&range, &runs, 64);
        let found: Vec<_> = found.into_iter().map(|(run, status)| (run, status.is_zero)).collect();
        assert_eq!(found, expected);
        assert_eq!(at, expected.last().expect("something is said").0.end);
    }

    #[test]
    fn units_are_zeroes_or_data_and_nothing_is_left_out() {
        check(0..256, &[(256, true)], &[(0..256, true)]);
        check(0..256, &[(10, false), (256, true)], &[(0..64, false), (64..256, true)]);
        check(0..256, &[(10, true), (20, false), (256, true)], &[(0..64, false), (64..256, true)]);
        check(0..256, &[(70, true), (80, true), (256, false)], &[(0..64, true), (64..256, false)]);
        check(64..256, &[(130, true), (200, true), (256, true)], &[(64..256, true)]);
        check(
            0..256,
            &[(63, false), (65, false), (256, true)],
            &[(0..128, false), (128..256, true)],
        );
        // The disk ends inside a unit.
        check(0..200, &[(190, true), (200, false)], &[(0..128, true), (128..200, false)]);
        check(128..200, &[(200, true)], &[(128..200, true)]);
    }

    #[test]
    fn what_is_not_told_to_the_end_of_a_unit_is_asked_again_or_taken_for_data() {
        check(0..256, &[(100, true)], &[(0..64, true)]);
        check(0..256, &[(70, false)], &[(0..128, false)]);
        check(0..256, &[(10, true)], &[(0..64, false)]);
        check(192..200, &[(195, true)], &[(192..200, false)]);
    }
}
