//! Block status: from the records that a disk leaves, and from dirty bitmaps, to the extents that a client is told.
//!
//! Where it stands in the life of a request: at the end of a block status request.
//!
//! Invariants: extents follow each other from the first byte that was asked about and end with the last one at most;
//! neighbours differ. Limits: as many extents as there were records.

use std::ops::Range;

use bitmaps::BusyBitmap;
use block::StatusRecord;

use super::reply::ReplyTo;
use super::request::StatusQuestion;
use crate::wire::{chunk, chunk_flag, state};
use crate::{HeaderStyle, MetaContext};

/// The most runs that one reply tells of.
pub(crate) const RECORDS_MAX: usize = 1024;

/// How many granules of a bitmap one reply looks at: 256 GiB with a granularity of 64 KiB. Of what is behind them a client
/// asks again.
const GRANULES_MAX: u64 = 1 << 22;

/// The room for so many records, and for the reply to them in so many contexts.
pub(crate) fn room(records: usize, contexts: usize) -> (usize, usize) {
    let chunk = EXTENDED_CHUNK_BYTES + records * EXTENDED_EXTENT_BYTES;
    (records * StatusRecord::BYTES, chunk * contexts)
}

/// Its header, the number of the context and that of the extents.
const EXTENDED_CHUNK_BYTES: usize = 32 + 8;
const EXTENDED_EXTENT_BYTES: usize = 16;

impl ReplyTo {
    /// Writes the reply to a block status request into its memory, behind a head and the records of the disk; where it is.
    pub(crate) fn of_status(
        self,
        question: &StatusQuestion,
        bitmaps: &[BusyBitmap],
        memory: &mut [u8],
        head: usize,
    ) -> Range<usize> {
        let start = head + room(question.records(), 0).0;
        let (records, reply) = memory.split_at_mut(start);
        let count = write_reply(self, question, &records[head..], bitmaps, reply);
        start..start + count
    }
}

/// Writes the reply to a block status request, a chunk for each context; returns its length.
fn write_reply(
    to: ReplyTo,
    question: &StatusQuestion,
    records: &[u8],
    bitmaps: &[BusyBitmap],
    bytes: &mut [u8],
) -> usize {
    let mut used = 0;
    let mut contexts = question.contexts.iter().peekable();
    while let Some(context) = contexts.next() {
        let flags = if contexts.peek().is_some() { 0 } else { chunk_flag::DONE };
        let room = &mut bytes[used..];
        used += write_chunk(to, (context, flags), room, |tell| match context {
            MetaContext::DirtyBitmap(number) => {
                each_marked(bitmaps.get(usize::from(number)), question, tell);
            }
            MetaContext::BaseAllocation | MetaContext::AllocationDepth => {
                each_extent(context, question, records, tell);
            }
        });
    }
    used
}

fn write_chunk(
    to: ReplyTo,
    (context, flags): (MetaContext, u16),
    bytes: &mut [u8],
    each: impl FnOnce(&mut dyn FnMut(u64, u32)),
) -> usize {
    let is_long = to.style == HeaderStyle::Extended;
    let kind = if is_long { chunk::BLOCK_STATUS_EXT } else { chunk::BLOCK_STATUS };
    let head = to.write_chunk_header(bytes, flags, kind, 0);
    bytes[head..head + 4].copy_from_slice(&context.id().to_be_bytes());
    let first = if is_long { head + 8 } else { head + 4 };
    let (mut end, mut count) = (first, 0_u32);
    each(&mut |length, status| {
        count += 1;
        if is_long {
            bytes[end..end + 8].copy_from_slice(&length.to_be_bytes());
            bytes[end + 8..end + 16].copy_from_slice(&u64::from(status).to_be_bytes());
            end += 16;
        } else {
            // A compact request cannot ask about more.
            let length = u32::try_from(length).expect("no longer than the request");
            bytes[end..end + 4].copy_from_slice(&length.to_be_bytes());
            bytes[end + 4..end + 8].copy_from_slice(&status.to_be_bytes());
            end += 8;
        }
    });
    if is_long {
        bytes[head + 4..head + 8].copy_from_slice(&count.to_be_bytes());
    }
    // Now its payload is known.
    to.write_chunk_header(bytes, flags, kind, end - head);
    end
}

/// The runs of bytes of one status in that context.
fn each_extent(
    context: MetaContext,
    question: &StatusQuestion,
    records: &[u8],
    tell: &mut dyn FnMut(u64, u32),
) {
    let (mut skip, mut left) = (question.window.skip, question.window.count);
    let mut last: Option<(u64, u32)> = None;
    for StatusRecord { count, status } in StatusRecord::read_all(records) {
        let skipped = skip.min(count.0);
        skip -= skipped;
        let length = (count.0 - skipped).min(left);
        left -= length;
        if length == 0 {
            continue;
        }
        let value = match context {
            MetaContext::BaseAllocation => {
                let hole = if status.is_data { 0 } else { state::HOLE };
                hole | if status.is_zero { state::ZERO } else { 0 }
            }
            MetaContext::AllocationDepth if status.is_allocated => u32::from(status.depth) + 1,
            MetaContext::AllocationDepth | MetaContext::DirtyBitmap(_) => 0,
        };
        match &mut last {
            Some((sum, same)) if *same == value => *sum += length,
            Some((sum, before)) => {
                tell(*sum, *before);
                last = Some((length, value));
            }
            None => last = Some((length, value)),
        }
    }
    if let Some((length, value)) = last {
        tell(length, value);
    }
}

/// The runs of bytes that are dirty, and of those that are not. What cannot be known is dirty.
fn each_marked(
    bitmap: Option<&BusyBitmap>,
    question: &StatusQuestion,
    tell: &mut dyn FnMut(u64, u32),
) {
    let start = question.window.extent.start().0 + question.window.skip;
    let end = start + question.window.count;
    let Some(bits) = bitmap.and_then(|bitmap| bitmap.bits().ok()) else {
        return tell(end - start, state::DIRTY);
    };
    let end = end.min(start.saturating_add(GRANULES_MAX * bits.granularity().bytes()));
    let (mut at, mut room) = (start, question.records());
    let mut tell = |length: u64, status| {
        if length > 0 && room > 0 {
            room -= 1;
            tell(length, status);
        }
        room
    };
    while at < end {
        let dirty = bits.next_dirty(at..end).unwrap_or(end..end);
        if tell(dirty.start - at, 0) == 0 || tell(dirty.end - dirty.start, state::DIRTY) == 0 {
            return;
        }
        at = dirty.end;
    }
}
