//! Operations that are done at once, on the iothread, because nothing else would be faster: on
//! files that live in memory, where io_uring hands each operation to a kernel worker.
//!
//! Where it stands in the life of a request: [`crate::Kernel`] asks for the next one of a turn, does
//! it with a plain call, and makes its completion an event.
//!
//! What `request_path` does by hand, with memory alone, has an [`InlineBudget`] of its own, of the same size.
//!
//! Limits: [`TURN_OPERATIONS_MAX`] and [`TURN_BYTES_MAX`], [`TURN_BYTES_LONG`] or [`TURN_BYTES_BESIDE`], per turn
//! of the event loop; what is more waits, in order, for the next turns, so that the other rings of the
//! iothread get theirs. What has at most [`SHORT_BYTES_MAX`] waits for nothing longer: small
//! requests of one ring do not queue behind large ones of another. A range larger than
//! [`ALLOCATION_BYTES_MAX`] is not punched inline at all.

use std::collections::VecDeque;

use block::Segment;

use crate::allocation::{DiscardOrZeroAttempt, DiscardOrZeroMethod};
use crate::in_flight::{IoKind, SlotIndex};

/// The most operations of a turn: four rings' worth of new requests.
const TURN_OPERATIONS_MAX: u32 = 256;

/// The most bytes of a turn: about 100 µs of copying.
const TURN_BYTES_MAX: usize = 1 << 20;

/// The same while several rings are served, of which one has short requests: about as long as a few of those.
const TURN_BYTES_BESIDE: usize = 16 << 10;

/// The same while several are served that have nothing but long requests, each of which would take many such turns. A
/// short one that comes after a pause waits that long, about 30 µs, once.
const TURN_BYTES_LONG: usize = 256 << 10;

/// The most bytes of a transfer that does not wait for longer ones: of short ones a turn has `TURN_BYTES_MAX` besides.
pub const SHORT_BYTES_MAX: usize = 16 << 10;

/// The largest range punched inline: about a millisecond of freeing pages.
const ALLOCATION_BYTES_MAX: u64 = 16 << 20;

/// Whether the work is short enough to be done inline on a file in memory.
pub(crate) fn suits(work: IoKind) -> bool {
    match work {
        // A turn's bound cuts transfers; there is nothing to sync in memory.
        IoKind::Read | IoKind::Write(_) | IoKind::Sync => true,
        // Pages that are filled take as long as a transfer.
        IoKind::Space(DiscardOrZeroAttempt {
            method: DiscardOrZeroMethod::Fill, count, ..
        }) => count <= TURN_BYTES_MAX as u64,
        IoKind::Space(DiscardOrZeroAttempt { count, .. }) => count <= ALLOCATION_BYTES_MAX,
        // Nobody knows how much of the file it looks at.
        IoKind::Extent(_) => false,
    }
}

/// Whether an iothread serves one ring or several: beside others, less is done inline in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServedRings {
    /// One: it can have all of the turn.
    One,
    /// Several: each waits for what is done for the others.
    Several,
    /// Several, none of which has brought a short transfer of late.
    SeveralLong,
}

/// How much one iothread may still do by itself in this turn.
#[derive(Debug)]
pub struct InlineBudget {
    share: ServedRings,
    operations_left: u32,
    bytes_left: usize,
    /// For what is short.
    short_bytes_left: usize,
}

impl Default for InlineBudget {
    fn default() -> Self {
        let share = ServedRings::One;
        Self {
            share,
            operations_left: TURN_OPERATIONS_MAX,
            bytes_left: TURN_BYTES_MAX,
            short_bytes_left: TURN_BYTES_MAX,
        }
    }
}

impl InlineBudget {
    /// A new turn of the event loop.
    pub fn begin(&mut self) {
        self.operations_left = TURN_OPERATIONS_MAX;
        self.short_bytes_left = TURN_BYTES_MAX;
        self.bytes_left = match self.share {
            ServedRings::One => TURN_BYTES_MAX,
            ServedRings::Several => TURN_BYTES_BESIDE,
            ServedRings::SeveralLong => TURN_BYTES_LONG,
        };
    }

    /// How long turns are from the next on.
    pub fn share(&mut self, share: ServedRings) {
        self.share = share;
    }

    /// Takes something off the turn that would move so many bytes; returns how many of them may be moved now. What is
    /// short is not cut.
    pub fn charge(&mut self, bytes: u64) -> u64 {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes <= SHORT_BYTES_MAX {
            return if self.takes_short(bytes) { bytes as u64 } else { 0 };
        }
        let now = if self.operations_left == 0 { 0 } else { bytes.min(self.bytes_left) };
        self.operations_left -= u32::from(now > 0);
        self.bytes_left -= now;
        now as u64
    }

    /// Takes something short off the turn, if there is room for it.
    fn takes_short(&mut self, bytes: usize) -> bool {
        if self.operations_left == 0 || self.short_bytes_left < bytes {
            return false;
        }
        self.operations_left -= 1;
        self.short_bytes_left -= bytes;
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        true
    }
}

/// Operations that wait to be done inline, and how much of that this turn still has room for.
#[derive(Debug, Default)]
pub(crate) struct InlineQueue {
    waiting: VecDeque<SlotIndex>,
    budget: InlineBudget,
    /// The memory of a transfer that this turn's bound cuts.
    cut: Vec<Segment>,
}

impl InlineQueue {
    /// What there is for this turn.
    pub(crate) fn budget(&mut self) -> &mut InlineBudget {
        &mut self.budget
    }

    /// Whether the work is so short that it is done now although longer work waits. If so, it has
    /// been taken off the turn.
    pub(crate) fn overtakes(&mut self, work: IoKind, memory: &[Segment]) -> bool {
        let bytes: usize = memory.iter().map(|segment| segment.count()).sum();
        let short = match work {
            IoKind::Read | IoKind::Write(_) => bytes <= SHORT_BYTES_MAX,
            // It is about what is completed, and nothing that waits is.
            IoKind::Sync => true,
            IoKind::Space(_) | IoKind::Extent(_) => false,
        };
        short && self.budget.takes_short(bytes)
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many operations wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Queues an operation, or what is left of it.
    pub(crate) fn push(&mut self, index: SlotIndex) {
        self.waiting.push_back(index);
    }

    /// The next operation that this turn has room for.
    pub(crate) fn next(&mut self) -> Option<SlotIndex> {
        if self.budget.operations_left == 0 || self.budget.bytes_left == 0 {
            return None;
        }
        let index = self.waiting.pop_front()?;
        self.budget.operations_left -= 1;
        Some(index)
    }

    /// Takes what the work costs off the turn, and returns the memory for one call: all that is
    /// left of it, or as much as the turn has room for.
    pub(crate) fn charge<'a>(&'a mut self, work: IoKind, memory: &'a [Segment]) -> &'a [Segment] {
        let Self { budget: InlineBudget { bytes_left, .. }, cut, .. } = self;
        if let IoKind::Space(DiscardOrZeroAttempt { count, .. }) = work {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            *bytes_left = bytes_left.saturating_sub(count);
            return memory;
        }
        for (place, segment) in memory.iter().enumerate() {
            if segment.count() > *bytes_left {
                cut.clear();
                cut.extend_from_slice(&memory[..place]);
                if *bytes_left > 0 {
                    cut.push(segment.part(0, *bytes_left));
                }
                *bytes_left = 0;
                return cut;
            }
            *bytes_left -= segment.count();
        }
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_does_not_wait_for_what_is_long_and_has_a_bound_of_its_own() {
        let mut budget = InlineBudget::default();
        assert_eq!(budget.charge(1 << 30), TURN_BYTES_MAX as u64);
        assert_eq!(budget.charge(1 << 30), 0);
        let short = SHORT_BYTES_MAX as u64;
        let done: u64 = (0..TURN_OPERATIONS_MAX).map(|_| budget.charge(short)).sum();
        assert_eq!(done, TURN_BYTES_MAX as u64);
        budget.begin();
        assert_eq!(budget.charge(short), short);
        assert_eq!(budget.charge(1 << 30), (TURN_BYTES_MAX - SHORT_BYTES_MAX) as u64);
    }
}
