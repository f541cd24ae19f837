//! What a client has sent and nobody has taken yet.
//!
//! Where it stands in the life of a request: at its beginning. Requests lie here one behind the other, as they were
//! received; what is still missing of the data of a write is received into the memory of the request itself.
//!
//! Invariants: one receive at a time; bytes are taken in order.
//! Limits: [`INPUT_BYTES`] ahead of what was taken, [`IDLE_INPUT_BYTES`] while little comes.

use std::os::fd::BorrowedFd;

use block::{HostMemory, RequestMemory, SourceRequestSlot};
use request_path::{FrontEndContext, StreamEnd, StreamGoal, StreamTransfer};

/// How much is received ahead of what was taken, of a client that sends much.
pub(crate) const INPUT_BYTES: usize = 64 << 10;

/// The same of one that does not.
pub(crate) const IDLE_INPUT_BYTES: usize = 4 << 10;

/// Data of that many bytes that are missing are received without anything behind them, in one go.
const ALONE_BYTES: usize = 64 << 10;

/// What was received, and what is expected next.
#[derive(Debug)]
pub(crate) struct Input {
    /// Not there while it is received into.
    memory: Option<HostMemory>,
    /// How large it is.
    room: usize,
    /// Which of its bytes were not taken.
    from: usize,
    to: usize,
    transfer: Option<StreamTransfer>,
    /// Whether its first part is the rest of a payload.
    has_payload: bool,
    pub(crate) expected: Expected,
    next_room: NextRoom,
    /// The client sends nothing any more.
    pub(crate) is_over: bool,
}

/// Into how much memory the next receive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextRoom {
    Same,
    /// The last one has filled all that there was.
    More,
    /// Nothing came for a while.
    Less,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    Header,
    /// What follows the header of a request that needs it: how much is there, and how much is needed.
    Payload {
        slot: SourceRequestSlot,
        arrived: usize,
        total: usize,
    },
    /// What follows the header of a request that is refused.
    Refused {
        slot: SourceRequestSlot,
        left: u64,
    },
}

impl Input {
    /// What a client has sent already.
    pub(crate) fn new(received: &[u8]) -> Self {
        let room = received.len().max(IDLE_INPUT_BYTES);
        let mut memory = HostMemory::zeroed(room);
        memory[..received.len()].copy_from_slice(received);
        Self {
            memory: Some(memory),
            room,
            from: 0,
            to: received.len(),
            transfer: Some(StreamTransfer::default()),
            has_payload: false,
            expected: Expected::Header,
            next_room: NextRoom::Same,
            is_over: false,
        }
    }

    /// What is there.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[self.from..self.to])
    }

    /// How much memory it has.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// So many of them were taken.
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.to - self.from, "only what is there is taken");
        self.from += count;
    }

    /// Whether it takes more room than an idle connection needs.
    pub(crate) fn may_shrink(&self) -> bool {
        self.room > IDLE_INPUT_BYTES
    }

    /// Nothing came for a while: the next receive is into less memory.
    pub(crate) fn shrink(&mut self) {
        self.next_room = NextRoom::Less;
    }

    /// Has more received: the rest of a payload into `payload`, behind so many bytes, and what comes after it.
    pub(crate) fn begin(
        &mut self,
        port: &mut FrontEndContext<'_>,
        socket: BorrowedFd<'_>,
        payload: Option<(HostMemory, std::ops::Range<usize>)>,
    ) -> Option<HostMemory> {
        let mut transfer = self.transfer.take().expect("one receive at a time");
        let missing = payload.as_ref().map_or(0, |(_, bytes)| bytes.len());
        self.has_payload = payload.is_some();
        payload.into_iter().for_each(|(memory, bytes)| transfer.push(memory, bytes));
        let goal = if missing >= ALONE_BYTES {
            StreamGoal::All
        } else {
            self.make_room();
            let memory = self.memory.take().expect("it is in no receive");
            let room = self.to..memory.len();
            transfer.push(memory, room);
            StreamGoal::Some
        };
        // It moves or stops if that is refused.
        port.receive(socket, transfer, goal).err().and_then(|refused| self.put_back(refused))
    }

    /// Room for bytes that come in another way than by [`Input::begin`].
    pub(crate) fn room_for_more(&mut self) -> &mut [u8] {
        self.make_room();
        let memory = self.memory.as_mut().expect("it is in no receive");
        &mut memory[self.to..]
    }

    /// So many of them came.
    pub(crate) fn came(&mut self, count: usize) {
        self.to += count;
        if count > 0 && self.to == self.room {
            self.next_room = NextRoom::More;
        }
    }

    /// Makes room behind what was not taken, and as much as is worth it.
    fn make_room(&mut self) {
        let memory = self.memory.as_mut().expect("it is in no receive");
        memory.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        let wanted = match std::mem::replace(&mut self.next_room, NextRoom::Same) {
            NextRoom::Same => memory.len(),
            NextRoom::More => INPUT_BYTES,
            NextRoom::Less => IDLE_INPUT_BYTES,
        };
        if wanted != memory.len() && self.to <= wanted {
            let mut other = HostMemory::zeroed(wanted);
            other[..self.to].copy_from_slice(&memory[..self.to]);
            (*memory, self.room) = (other, wanted);
        }
    }

    /// Takes the memory out of a receive that is over or was not begun; returns that of a payload.
    fn put_back(&mut self, mut transfer: StreamTransfer) -> Option<HostMemory> {
        let mut parts = transfer.take_parts();
        let has_payload = std::mem::take(&mut self.has_payload);
        let payload = if has_payload { parts.next().map(|(memory, _)| memory) } else { None };
        if let Some((memory, _)) = parts.next() {
            self.memory = Some(memory);
        }
        drop(parts);
        self.transfer = Some(transfer);
        payload
    }

    /// A receive is over; returns the memory of the payload that it was for, if it was for one, and how it ended.
    pub(crate) fn received(&mut self, transfer: StreamTransfer) -> (Option<HostMemory>, StreamEnd) {
        let (mut count, end) = (transfer.transferred(), transfer.end());
        let is_full = transfer.left() == 0;
        if self.has_payload {
            match &mut self.expected {
                Expected::Payload { arrived, total, .. } => {
                    let part = count.min(*total - *arrived);
                    *arrived += part;
                    count -= part;
                }
                // Its request was given up meanwhile, and so is what came.
                Expected::Header | Expected::Refused { .. } => count = 0,
            }
        }
        let payload = self.put_back(transfer);
        self.to += count;
        if is_full && count > 0 {
            self.next_room = NextRoom::More;
        }
        self.is_over |= end == StreamEnd::EndOfStream;
        (payload, end)
    }

    /// Takes what is there of a payload or of what nobody wants; whether all of it is.
    pub(crate) fn fill(&mut self, payload: Option<&mut RequestMemory>, at: usize) -> bool {
        if self.has_payload {
            return false;
        }
        let found = self.bytes().len();
        match (&mut self.expected, payload) {
            (Expected::Payload { arrived, total, .. }, Some(payload)) => {
                let count = found.min(*total - *arrived);
                let place = at + *arrived;
                *arrived += count;
                let is_there = arrived == total;
                payload.bytes()[place..place + count].copy_from_slice(&self.bytes()[..count]);
                self.consume(count);
                is_there
            }
            (Expected::Refused { left, .. }, _) => {
                let count = found.min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                let is_there = *left == 0;
                self.consume(count);
                is_there
            }
            (Expected::Header | Expected::Payload { .. }, _) => panic!("nothing is expected"),
        }
    }

    /// Whether [`Input::fill`] would take something, or has taken all.
    pub(crate) fn fills(&self) -> bool {
        match self.expected {
            Expected::Header => false,
            Expected::Payload { .. } if self.has_payload => false,
            Expected::Payload { arrived, total, .. } => {
                arrived == total || !self.bytes().is_empty()
            }
            Expected::Refused { left, .. } => left == 0 || !self.bytes().is_empty(),
        }
    }
}
