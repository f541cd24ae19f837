//! What the in-flight region knows of a split ring (vhost-user, "Inflight I/O tracking").
//!
//! Where it stands in the life of a request: `split` marks a chain here when it pops it; the
//! publication of a batch goes link, used ring, used index, unmark, commit.
//!
//! Invariants: outside a publication the noted used index is that of the ring, and the marked heads
//! are those in flight. If the ring's index is ahead, the driver has seen the last batch, whose
//! heads hang on `last_batch_head`, as many as the index is ahead.

use super::fields::InflightFields;
use super::{InflightFault, InflightQueue, InflightTracker};
use crate::RingLayout;
use crate::fault_point::{FaultPoint, reached};

pub(super) const HEADER_BYTES: usize = 16;
pub(super) const ENTRY_BYTES: usize = 16;

const LAST_BATCH_HEAD: usize = 12;
const USED_INDEX: usize = 14;

/// Fields of an entry.
const MARK: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// Tracks the chains in flight of a split ring in the in-flight region.
#[derive(Debug)]
pub(crate) struct SplitTracker {
    fields: InflightFields,
    /// The place in line of the next chain.
    counter: u64,
    /// The head of the last batch that was linked.
    last_batch: u16,
    /// The heads of the batch that is being staged.
    batch: Vec<u16>,
}

fn entry(head: u16, field: usize) -> usize {
    HEADER_BYTES + ENTRY_BYTES * usize::from(head) + field
}

impl SplitTracker {
    /// Tracks a ring of this size whose used index is `used`. If the region was used before, the
    /// batch that a crash has cut is finished, and the heads in flight are handed back, the oldest last.
    pub(crate) fn open(
        queue: &InflightQueue,
        size: u16,
        used: u16,
    ) -> Result<(Self, Option<Vec<u16>>), InflightFault> {
        let entries = queue.entries();
        let fields = queue.fields(RingLayout::Split, size)?;
        let batch = Vec::with_capacity(size.into());
        let mut tracker = Self { fields, counter: 0, last_batch: 0, batch };
        let past = if super::was_used(&tracker.fields, entries)? {
            Some(tracker.recover(entries, size, used)?)
        } else {
            tracker.begin(entries, used);
            None
        };
        if tracker.is_lost() { Err(InflightFault::Lost) } else { Ok((tracker, past)) }
    }

    /// Makes the part one of a ring with nothing in flight. Its version is stored last.
    fn begin(&mut self, entries: u16, used: u16) {
        self.fields.clear(HEADER_BYTES..entry(entries, 0));
        super::begin(&self.fields, entries, |fields| {
            fields.store_u16(LAST_BATCH_HEAD, 0);
            fields.store_u16(USED_INDEX, used);
        });
    }

    fn recover(&mut self, entries: u16, size: u16, used: u16) -> Result<Vec<u16>, InflightFault> {
        let mut marks: Vec<bool> =
            (0..entries).map(|head| self.fields.load_u8(entry(head, MARK)) != 0).collect();
        for head in self.last_batch(&marks, size, used)? {
            marks[usize::from(head)] = false;
            self.fields.store_u8(entry(head, MARK), 0);
        }
        self.fields.store_u16(USED_INDEX, used);
        reached(FaultPoint::BatchRepaired);
        let mut line = Vec::new();
        for (head, _) in (0..entries).zip(marks).filter(|(_, marked)| *marked) {
            if head >= size {
                return Err(InflightFault::Head { head, size });
            }
            line.push((self.fields.load_u64(entry(head, COUNTER)), head));
        }
        line.sort_unstable_by(|one, other| other.cmp(one));
        self.counter = line.first().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(line.into_iter().map(|(_, head)| head).collect())
    }

    /// The heads of the batch that the driver has seen although the region does not know it.
    fn last_batch(
        &mut self,
        marks: &[bool],
        size: u16,
        used: u16,
    ) -> Result<Vec<u16>, InflightFault> {
        let noted = self.fields.load_u16(USED_INDEX);
        self.last_batch = self.fields.load_u16(LAST_BATCH_HEAD);
        // With nothing in flight there is nothing to repair, wherever the ring stands: the driver
        // may have started it anew.
        let ahead = if marks.contains(&true) { used.wrapping_sub(noted) } else { 0 };
        if ahead > size {
            return Err(InflightFault::Stale { noted, found: used, size });
        }
        let mut batch = Vec::with_capacity(usize::from(ahead));
        let mut head = self.last_batch;
        for _ in 0..ahead {
            if head >= size {
                return Err(InflightFault::List { entry: head });
            }
            batch.push(head);
            head = self.fields.load_u16(entry(head, NEXT));
        }
        Ok(batch)
    }
}

impl InflightTracker for SplitTracker {
    type Used = u16;

    fn is_lost(&self) -> bool {
        self.fields.is_lost()
    }

    fn mark(&mut self, head: u16) {
        self.fields.store_u64(entry(head, COUNTER), self.counter);
        self.counter = self.counter.wrapping_add(1);
        reached(FaultPoint::Noted);
        self.fields.store_u8(entry(head, MARK), 1);
    }

    fn stage(&mut self, head: u16) {
        self.batch.push(head);
    }

    fn link(&mut self, _: u16) {
        for &head in &self.batch {
            self.fields.store_u16(entry(head, NEXT), self.last_batch);
            self.last_batch = head;
        }
        self.fields.store_u16(LAST_BATCH_HEAD, self.last_batch);
    }

    fn unmark(&mut self) {
        for head in self.batch.drain(..) {
            self.fields.store_u8(entry(head, MARK), 0);
        }
    }

    fn commit(&mut self, used: u16) {
        self.fields.store_u16(USED_INDEX, used);
    }
}
