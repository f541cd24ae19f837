//! The requests of a connection that are not over: from their header until their reply was sent.
//!
//! Invariants: a slot is used by one request at a time; the last one that became free is used first, whose memory the CPU
//! still knows. Limits: [`SLOTS`].

use block::{RequestMemory, SourceRequestSlot};

use crate::transmission::reply::ReplyTo;
use crate::transmission::request::{Refusal, RequestHeader, StatusQuestion, Steps, Window};
use crate::wire::error;

/// The most requests of a connection that are not over: what Linux's client has at once. Who sends more waits.
pub(crate) const SLOTS: u16 = 128;

/// How much room is kept for slots while nothing happens.
const IDLE_SLOTS: usize = 4;

/// A request.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) to: ReplyTo,
    pub(crate) command: u16,
    pub(crate) work: SlotWork,
    pub(crate) memory: Option<RequestMemory>,
    /// What its header says, for the log.
    pub(crate) length: u64,
}

impl Slot {
    /// Writes a reply without data; returns its length.
    pub(crate) fn write_short(&self, bytes: &mut [u8], error: u32) -> usize {
        match (error, self.work) {
            (error::NONE, SlotWork::ZeroRead(count)) => self.to.write_hole(bytes, count),
            (error::NONE, _) => self.to.write_done(bytes, self.command),
            (error, _) => self.to.write_error(bytes, error),
        }
    }
}

/// What is done for a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SlotWork {
    Read(Window),
    /// A read that has found so many bytes, all of them zero.
    ZeroRead(u32),
    Write(block::Extent, block::Durability),
    Steps(Steps),
    Flush,
    Status(StatusQuestion),
    /// What it asks for is still to come.
    Filter(RequestHeader),
    Nothing,
    Refused(Refusal),
}

/// The slots of a connection.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Option<Slot>>,
    free: Vec<u16>,
    used: usize,
}

impl Slots {
    /// How many are in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Whether there is a free one.
    pub(crate) fn has_free(&self) -> bool {
        self.used < usize::from(SLOTS)
    }

    /// Uses a free one.
    pub(crate) fn enter(&mut self, slot: Slot) -> SourceRequestSlot {
        assert!(self.has_free(), "a request is taken only if there is a slot");
        self.used += 1;
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[usize::from(index)] = Some(slot);
                index
            }
            None => {
                self.slots.push(Some(slot));
                u16::try_from(self.slots.len() - 1).expect("at most SLOTS")
            }
        };
        SourceRequestSlot(index)
    }

    pub(crate) fn get(&mut self, slot: SourceRequestSlot) -> &mut Slot {
        let place = self.slots.get_mut(usize::from(slot.0)).and_then(Option::as_mut);
        place.expect("a slot is used until its reply was sent")
    }

    /// Its request is over.
    pub(crate) fn free(&mut self, slot: SourceRequestSlot) -> Slot {
        let place = self.slots.get_mut(usize::from(slot.0)).and_then(Option::take);
        self.used -= 1;
        self.free.push(slot.0);
        place.expect("a slot is freed once")
    }

    /// Keeps no room for more than a few, if none is in use.
    pub(crate) fn shrink(&mut self) {
        if self.used == 0 {
            self.slots.clear();
            self.free.clear();
            self.slots.shrink_to(IDLE_SLOTS);
            self.free.shrink_to(IDLE_SLOTS);
        }
    }

    /// Whether [`Slots::shrink`] would give something back.
    pub(crate) fn may_shrink(&self) -> bool {
        self.slots.len() > IDLE_SLOTS
    }
}
