//! What the in-flight region knows of a packed ring (vhost-user, "Inflight I/O tracking").
//!
//! Where it stands in the life of a request: `packed` copies the descriptors of a chain here while
//! it reads them, because used descriptors overwrite them, and marks the chain; the publication of
//! a batch goes link, used descriptors, their first flags, unmark, commit.
//!
//! Invariants: entries hang on the free list or belong to one marked chain. A pop counts once
//! `old_free_head` has moved past its entries; a batch counts once the driver sees it, which is
//! looked up in the ring. Until the commit the free list from `old_free_head` on stays whole, so
//! that everything can be taken back.
//! Limits: as many entries as the region was made for, at least the ring size.

use super::fields::InflightFields;
use super::{InflightFault, InflightQueue, InflightTracker};
use crate::RingLayout;
use crate::fault_point::{FaultPoint, reached};
use crate::packed::Position;
use crate::ring::Descriptor;

pub(super) const HEADER_BYTES: usize = 32;
pub(super) const ENTRY_BYTES: usize = 32;

const FREE_HEAD: usize = 12;
const OLD_FREE_HEAD: usize = 14;
/// Used index, old used index, and both wrap counters behind them: one store changes them all.
const USED_STATE: usize = 16;

/// Fields of an entry.
const MARK: usize = 0;
const NEXT: usize = 2;
const LAST: usize = 4;
const COUNT: usize = 6;
const COUNTER: usize = 8;
const ID: usize = 16;
const FLAGS: usize = 18;
const LENGTH: usize = 20;
const ADDRESS: usize = 24;

/// Tracks the chains in flight of a packed ring in the in-flight region.
#[derive(Debug)]
pub(crate) struct PackedTracker {
    fields: InflightFields,
    counter: u64,
    /// The entry behind each entry: in the free list or in its chain. One that does not exist ends
    /// the free list.
    next: Box<[u16]>,
    free_head: u16,
    /// The first and the last entry of the chain of each buffer id in flight.
    chains: Box<[(u16, u16)]>,
    used: Position,
    draft: ChainDraft,
    /// The buffer ids of the batch that is being staged.
    batch: Vec<u16>,
}

/// The copy of a chain's descriptors while they are read.
#[derive(Debug, Clone, Copy)]
struct ChainDraft {
    /// The entry for the next descriptor.
    next: u16,
    last: u16,
    descriptors: u16,
}

/// The descriptors of a chain that was in flight, as they were copied to the region.
#[derive(Debug)]
pub(crate) struct SavedChain {
    pub(crate) id: u16,
    pub(crate) descriptors: Vec<Descriptor>,
}

fn entry(index: u16, field: usize) -> usize {
    HEADER_BYTES + ENTRY_BYTES * usize::from(index) + field
}

/// The four fields as they lie in memory.
fn used_state(used: Position, old: Position) -> u64 {
    let ([u0, u1], [o0, o1]) = (used.slot.to_ne_bytes(), old.slot.to_ne_bytes());
    u64::from_ne_bytes([u0, u1, o0, o1, used.wrap.into(), old.wrap.into(), 0, 0])
}

/// The position that two of these fields name in a ring of this size.
fn position(slot: [u8; 2], wrap: u8, size: u16) -> Result<Position, InflightFault> {
    let slot = u16::from_ne_bytes(slot);
    if slot < size && wrap <= 1 {
        Ok(Position { slot, wrap: wrap == 1 })
    } else {
        Err(InflightFault::Position { slot, wrap, size })
    }
}

impl PackedTracker {
    /// Tracks a ring of this size. One of which nothing is known starts at `start`; otherwise the
    /// batch that a crash has cut is finished or taken back, and what is in flight is handed
    /// back, the oldest last; all ids differ and are less than the ring size, and all descriptors together are no
    /// more than that. `is_available` says whether the driver's descriptor in a slot is still there.
    pub(crate) fn open(
        queue: &InflightQueue,
        size: u16,
        start: Position,
        is_available: impl Fn(Position) -> bool,
    ) -> Result<(Self, Option<Vec<SavedChain>>), InflightFault> {
        let entries = queue.entries();
        let mut tracker = Self {
            fields: queue.fields(RingLayout::Packed, size)?,
            counter: 0,
            next: (1..=entries).collect(),
            free_head: 0,
            chains: vec![(0, 0); usize::from(size)].into_boxed_slice(),
            used: start,
            draft: ChainDraft { next: 0, last: 0, descriptors: 0 },
            batch: Vec::with_capacity(size.into()),
        };
        let past = if super::was_used(&tracker.fields, entries)? {
            tracker.repair(size, is_available)?;
            Some(tracker.recover(size)?)
        } else {
            tracker.begin(entries);
            None
        };
        if tracker.is_lost() { Err(InflightFault::Lost) } else { Ok((tracker, past)) }
    }

    /// Makes the part one of a ring with nothing in flight. Its version is stored last.
    fn begin(&mut self, entries: u16) {
        self.fields.clear(HEADER_BYTES..entry(entries, 0));
        for index in 0..entries {
            self.fields.store_u16(entry(index, NEXT), index + 1);
        }
        super::begin(&self.fields, entries, |fields| {
            fields.store_u16(FREE_HEAD, 0);
            fields.store_u16(OLD_FREE_HEAD, 0);
            fields.store_u64(USED_STATE, used_state(self.used, self.used));
        });
    }

    /// Finishes a batch that the driver has seen; takes back one that it has not, and a pop that
    /// did not count yet.
    fn repair(
        &mut self,
        size: u16,
        is_available: impl Fn(Position) -> bool,
    ) -> Result<(), InflightFault> {
        let [u0, u1, o0, o1, wrap, old_wrap, ..] = self.fields.load_u64(USED_STATE).to_ne_bytes();
        let used = position([u0, u1], wrap, size)?;
        let old = position([o0, o1], old_wrap, size)?;
        if used == old || is_available(old) {
            self.free_head = self.fields.load_u16(OLD_FREE_HEAD);
            self.fields.store_u16(FREE_HEAD, self.free_head);
            self.used = old;
        } else {
            self.free_head = self.fields.load_u16(FREE_HEAD);
            self.fields.store_u16(OLD_FREE_HEAD, self.free_head);
            self.used = used;
        }
        self.fields.store_u64(USED_STATE, used_state(self.used, self.used));
        reached(FaultPoint::BatchRepaired);
        Ok(())
    }

    /// Clears the marks of free entries and reads the chains of all others that are marked.
    fn recover(&mut self, size: u16) -> Result<Vec<SavedChain>, InflightFault> {
        let entries = self.next.len();
        let links: Vec<u16> =
            (0..).take(entries).map(|at| self.fields.load_u16(entry(at, NEXT))).collect();
        self.next = links.into_boxed_slice();
        let mut taken = vec![false; entries];
        let mut take = |at: u16| match taken.get_mut(usize::from(at)) {
            Some(taken) if !*taken => {
                *taken = true;
                Ok(())
            }
            Some(_) | None => Err(InflightFault::List { entry: at }),
        };
        let mut free = 0_u32;
        let mut at = self.free_head;
        while usize::from(at) < entries {
            take(at)?;
            free += 1;
            if self.fields.load_u8(entry(at, MARK)) != 0 {
                self.fields.store_u8(entry(at, MARK), 0);
            }
            at = self.next[usize::from(at)];
        }
        let mut line = Vec::new();
        let mut marked = 0_u32;
        for head in (0..).take(entries) {
            if self.fields.load_u8(entry(head, MARK)) == 0 {
                continue;
            }
            let count = self.fields.load_u16(entry(head, COUNT));
            marked += u32::from(count);
            if count == 0 || marked > size.into() {
                return Err(InflightFault::Room { marked, free, size });
            }
            let saved = self.read_chain(head, count, &mut take)?;
            line.push((self.fields.load_u64(entry(head, COUNTER)), saved));
        }
        if marked + free < size.into() {
            return Err(InflightFault::Room { marked, free, size });
        }
        self.in_order(line, size)
    }

    /// Copies a chain of so many entries.
    fn read_chain(
        &mut self,
        head: u16,
        count: u16,
        take: &mut impl FnMut(u16) -> Result<(), InflightFault>,
    ) -> Result<(u16, u16, SavedChain), InflightFault> {
        let mut saved = SavedChain { id: 0, descriptors: Vec::with_capacity(count.into()) };
        let (mut at, mut last) = (head, head);
        for _ in 0..count {
            take(at)?;
            let descriptor = Descriptor {
                address: self.fields.load_u64(entry(at, ADDRESS)),
                bytes: self.fields.load_u32(entry(at, LENGTH)),
                flags: self.fields.load_u16(entry(at, FLAGS)),
                next_or_id: self.fields.load_u16(entry(at, ID)),
            };
            saved.descriptors.push(descriptor);
            saved.id = descriptor.next_or_id;
            last = at;
            at = self.next[usize::from(at)];
        }
        Ok((head, last, saved))
    }

    /// Gives the chains their buffer ids and puts the oldest last.
    fn in_order(
        &mut self,
        mut line: Vec<(u64, (u16, u16, SavedChain))>,
        size: u16,
    ) -> Result<Vec<SavedChain>, InflightFault> {
        line.sort_by_key(|(counter, _)| std::cmp::Reverse(*counter));
        self.counter = line.first().map_or(0, |(counter, _)| counter.wrapping_add(1));
        let mut known = vec![false; usize::from(size)];
        let mut chains = Vec::with_capacity(line.len());
        for (_, (head, last, saved)) in line {
            let id = usize::from(saved.id);
            match known.get_mut(id) {
                Some(known) if !*known => *known = true,
                Some(_) | None => return Err(InflightFault::Id { id: saved.id }),
            }
            self.chains[id] = (head, last);
            chains.push(saved);
        }
        Ok(chains)
    }

    /// Begins to copy the descriptors of a chain.
    pub(crate) fn begin_chain(&mut self) {
        self.draft = ChainDraft { next: self.free_head, last: self.free_head, descriptors: 0 };
    }

    /// Copies the next descriptor of the chain, as it lies in the ring.
    pub(crate) fn copy(&mut self, descriptor: Descriptor) {
        let Descriptor { address, bytes, flags, next_or_id: id } = descriptor;
        let at = self.draft.next;
        self.fields.store_u64(entry(at, ADDRESS), address);
        self.fields.store_u32(entry(at, LENGTH), bytes);
        self.fields.store_u16(entry(at, FLAGS), flags);
        self.fields.store_u16(entry(at, ID), id);
        // There is one: the ring holds no more descriptors than the part has entries.
        self.draft.next = self.next[usize::from(at)];
        self.draft.last = at;
        self.draft.descriptors += 1;
    }

    /// Where the ring goes on: the next used descriptor, as the driver sees it.
    pub(crate) fn used(&self) -> Position {
        self.used
    }
}

impl InflightTracker for PackedTracker {
    type Used = Position;

    fn is_lost(&self) -> bool {
        self.fields.is_lost()
    }

    /// The chain is the one that was copied.
    fn mark(&mut self, id: u16) {
        let ChainDraft { next, last, descriptors } = self.draft;
        let head = self.free_head;
        self.fields.store_u16(entry(head, LAST), last);
        self.fields.store_u16(entry(head, COUNT), descriptors);
        self.fields.store_u64(entry(head, COUNTER), self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.fields.store_u8(entry(head, MARK), 1);
        self.chains[usize::from(id)] = (head, last);
        self.free_head = next;
        self.fields.store_u16(FREE_HEAD, next);
        reached(FaultPoint::Noted);
        self.fields.store_u16(OLD_FREE_HEAD, next);
    }

    fn stage(&mut self, id: u16) {
        self.batch.push(id);
    }

    fn link(&mut self, used: Position) {
        for &id in &self.batch {
            let (head, last) = self.chains[usize::from(id)];
            self.fields.store_u16(entry(last, NEXT), self.free_head);
            self.next[usize::from(last)] = self.free_head;
            self.free_head = head;
        }
        self.fields.store_u16(FREE_HEAD, self.free_head);
        self.fields.store_u64(USED_STATE, used_state(used, self.used));
        self.used = used;
    }

    fn unmark(&mut self) {
        for id in self.batch.drain(..) {
            let (head, _) = self.chains[usize::from(id)];
            self.fields.store_u8(entry(head, MARK), 0);
        }
    }

    fn commit(&mut self, used: Position) {
        self.fields.store_u16(OLD_FREE_HEAD, self.free_head);
        self.fields.store_u64(USED_STATE, used_state(used, used));
    }
}
