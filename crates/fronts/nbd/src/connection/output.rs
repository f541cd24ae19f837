//! Replies that the client was not sent yet.
//!
//! Where it stands in the life of a request: at its end. All replies that there are go into one send: those without data
//! one behind the other in memory of their own, each of the others with its header in front of its data.
//!
//! Invariants: a slot is in use until its reply was sent, so a client that reads nothing has as many replies here as there
//! are slots. Limits: [`SHORT_MEMORY_BYTES`] of replies without data in a send; the others wait for the next one.
//! Behind [`UNSENT_BYTES_MAX`] of data no request is taken.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use block::{HostMemory, SourceRequestSlot};
use request_path::{FrontEndContext, StreamEnd, StreamTransfer};

use super::memory::MemoryPool;
use super::slots::Slots;
use crate::transmission::reply::SHORT_BYTES_MAX;

/// The memory for replies without data in one send: one for each slot if all goes well.
const SHORT_MEMORY_BYTES: usize = 4096;

/// The data that wait for a client before nothing more is begun for it: what a fast client reads within a millisecond.
const UNSENT_BYTES_MAX: usize = 2 << 20;

/// A reply.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Without data.
    Short(SourceRequestSlot, u32),
    /// These bytes of the memory of its slot.
    Long(SourceRequestSlot, Range<usize>),
}

/// The replies of a connection.
#[derive(Debug)]
pub(crate) struct Output {
    /// Without data: what went wrong, if something did.
    short: VecDeque<(SourceRequestSlot, u32)>,
    /// With data: where header and data lie in the memory of their slot.
    long: VecDeque<(SourceRequestSlot, Range<usize>)>,
    /// An empty one, kept for its room; not there while it is under way.
    transfer: Option<StreamTransfer>,
    /// A send that was cancelled.
    unsent: Option<StreamTransfer>,
    /// The bytes of replies with data that were not sent.
    bytes: usize,
    /// The slots whose replies are in a send.
    sending: Vec<SourceRequestSlot>,
    /// Whether the first part of that are replies without data.
    sends_short: bool,
    short_memory: Option<HostMemory>,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            short: VecDeque::new(),
            long: VecDeque::new(),
            transfer: Some(StreamTransfer::default()),
            unsent: None,
            bytes: 0,
            sending: Vec::new(),
            sends_short: false,
            short_memory: None,
        }
    }
}

impl Output {
    /// How many replies were not sent.
    pub(crate) fn unsent(&self) -> usize {
        self.short.len() + self.long.len() + self.sending.len()
    }

    /// How much memory it has of its own.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.short_memory.as_ref().map_or(0, |memory| memory.len())
    }

    /// A reply without data.
    pub(crate) fn push_short(&mut self, slot: SourceRequestSlot, error: u32) {
        self.short.push_back((slot, error));
    }

    /// A reply whose header and data are these bytes of its slot's memory.
    pub(crate) fn push_long(&mut self, slot: SourceRequestSlot, bytes: Range<usize>) {
        self.bytes += bytes.len();
        self.long.push_back((slot, bytes));
    }

    /// Whether so many data wait for the client that nothing is begun before it has read some: it would not be sent any
    /// sooner, and the CPU forget it meanwhile.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= UNSENT_BYTES_MAX
    }

    /// Whether there are replies that are in no send.
    pub(crate) fn has_replies(&self) -> bool {
        !self.short.is_empty() || !self.long.is_empty()
    }

    /// Takes a reply out, for a send of another kind.
    pub(crate) fn pop(&mut self) -> Option<Reply> {
        let short = self.short.pop_front().map(|(slot, error)| Reply::Short(slot, error));
        short.or_else(|| {
            let (slot, bytes) = self.long.pop_front()?;
            self.bytes -= bytes.len();
            Some(Reply::Long(slot, bytes))
        })
    }

    /// Has replies sent: what is left of those before first. None is under way.
    pub(crate) fn begin(
        &mut self,
        port: &mut FrontEndContext<'_>,
        socket: BorrowedFd<'_>,
        slots: &mut Slots,
    ) {
        let Some(transfer) = self.unsent.take().or_else(|| self.next(slots)) else { return };
        // It moves or stops otherwise.
        self.unsent = port.send(socket, transfer).err();
    }

    /// All replies there are, as one send.
    fn next(&mut self, slots: &mut Slots) -> Option<StreamTransfer> {
        if !self.has_replies() {
            return None;
        }
        let mut transfer = self.transfer.take()?;
        self.sends_short = !self.short.is_empty();
        if self.sends_short {
            self.add_short(slots, &mut transfer);
        }
        for (slot, bytes) in self.long.drain(..) {
            let memory = slots.get(slot).memory.take().expect("its data are in it");
            transfer.push(memory.into_memory(), bytes);
            self.sending.push(slot);
        }
        Some(transfer)
    }

    fn add_short(&mut self, slots: &mut Slots, transfer: &mut StreamTransfer) {
        let memory = self.short_memory.take();
        let mut memory = memory.unwrap_or_else(|| HostMemory::zeroed(SHORT_MEMORY_BYTES));
        let mut used = 0;
        while used + SHORT_BYTES_MAX <= memory.len()
            && let Some((slot, error)) = self.short.pop_front()
        {
            used += slots.get(slot).write_short(&mut memory[used..], error);
            self.sending.push(slot);
        }
        transfer.push(memory, 0..used);
    }

    /// A send is over: its slots are free, unless it was cancelled. Returns how it ended.
    pub(crate) fn sent(
        &mut self,
        mut transfer: StreamTransfer,
        slots: &mut Slots,
        pool: &mut MemoryPool,
    ) -> StreamEnd {
        let end = transfer.end();
        if end == StreamEnd::Cancelled {
            self.unsent = Some(transfer);
            return end;
        }
        let mut parts = transfer.take_parts();
        if std::mem::take(&mut self.sends_short) {
            self.short_memory = parts.next().map(|(memory, _)| memory);
        }
        for (memory, bytes) in parts {
            self.bytes -= bytes.len();
            pool.give_back(memory);
        }
        self.transfer = Some(transfer);
        for slot in self.sending.drain(..) {
            slots.free(slot);
        }
        end
    }

    /// Nobody will ever read a reply: all are dropped that are in no send that is under way.
    pub(crate) fn give_up(&mut self, slots: &mut Slots, pool: &mut MemoryPool) {
        if let Some(mut transfer) = self.unsent.take() {
            transfer.take_parts().skip(usize::from(self.sends_short)).for_each(
                |(memory, bytes)| {
                    self.bytes -= bytes.len();
                    pool.give_back(memory);
                },
            );
            self.sends_short = false;
            self.transfer = Some(transfer);
            self.sending.drain(..).for_each(|slot| drop(slots.free(slot)));
        }
        // What is left is under way.
        self.bytes -= self.long.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let short = self.short.drain(..).map(|(slot, _)| slot);
        for slot in short.chain(self.long.drain(..).map(|(slot, _)| slot)) {
            let memory = slots.free(slot).memory;
            memory.into_iter().for_each(|memory| pool.give_back(memory.into_memory()));
        }
    }

    /// Keeps no memory.
    pub(crate) fn shrink(&mut self) {
        self.short_memory = None;
        self.sending.shrink_to(0);
        self.short.shrink_to(0);
        self.long.shrink_to(0);
    }

    /// Whether it keeps some.
    pub(crate) fn may_shrink(&self) -> bool {
        self.short_memory.is_some()
    }
}
