//! A front end whose client is behind a stream socket, with a protocol of its own: frames with requests, and with answers.
//!
//! Where it stands: beside the front ends of protocols, so that what `request_path` promises to those with sockets is seen
//! without any. Several disks, data both ways, moves and stops with transfers under way.
//!
//! Invariants: a slot belongs to its request until its answer was sent, so a peer that reads nothing has as many requests as
//! there are slots; what breaks the protocol is a fault. Threads: the front end belongs to that which serves it. Limits:
//! `INPUT_BYTES` received ahead, and the memory of the slots. Not here: the peer ([`client`]).

#![expect(unsafe_code, reason = "names the memory of slots for requests")]

pub mod client;
pub mod frame;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use anyhow::Result;
use block::{
    Buffers, ByteCount, ByteOffset, DiskSize, HostMemory, Operation, Outcome, Segment,
    SourceRequestSlot,
};
use request_path::{
    FrontEnd, FrontEndContext, Interest, NewRequest, RequestAction, SleepDecision, StreamDirection,
    StreamEnd, StreamGoal, StreamTransfer,
};
use rustix::event::{EventfdFlags, eventfd};

use self::frame::{ANSWER_BYTES, Answer, FrameKind, REQUEST_BYTES, RequestFrame, Rubbish};
use crate::conformance::workload::CANARY;

/// How much is received ahead of what was taken.
const INPUT_BYTES: usize = 4096;

/// The side that is served. It survives a stop: what was received and what was not sent stays in it.
#[derive(Debug)]
pub struct StreamFront {
    socket: UnixStream,
    /// Nobody rings it: what comes, comes by the socket.
    kick: OwnedFd,
    /// By unit.
    disks: Vec<DiskSize>,
    slots: Box<[Slot]>,
    slot_bytes: usize,
    input: Input,
    /// Idle ones, for their room; each is empty.
    receive: Option<StreamTransfer>,
    send: Option<StreamTransfer>,
    /// A send that was cancelled.
    unsent: Option<StreamTransfer>,
    /// The slots whose answers are in a send.
    sending: Vec<SourceRequestSlot>,
    /// Answered and not in a send yet.
    answers: VecDeque<(SourceRequestSlot, Outcome)>,
    /// Kept for its room.
    memory: Buffers,
}

/// What belongs to a slot while its request is open: memory for its data, and for the frame of its answer.
#[derive(Debug, Default)]
struct Slot {
    request: Option<RequestFrame>,
    data: Option<HostMemory>,
    answer: Option<HostMemory>,
}

/// What was received and not taken.
#[derive(Debug)]
struct Input {
    memory: Option<HostMemory>,
    /// Which of its bytes were not taken.
    from: usize,
    to: usize,
    /// A request whose data are arriving, and how many have.
    arriving: Option<(RequestFrame, usize)>,
    /// The peer sends nothing any more.
    is_over: bool,
    /// Nothing is sent or received any more: the connection has failed.
    is_gone: bool,
}

impl StreamFront {
    /// A front end of this end of a socket, for disks of these sizes, with so many slots of so many bytes.
    pub fn new(
        socket: UnixStream,
        disks: Vec<DiskSize>,
        slots: u16,
        slot_bytes: usize,
    ) -> Result<Self> {
        let input = Input {
            memory: Some(HostMemory::zeroed(INPUT_BYTES)),
            from: 0,
            to: 0,
            arriving: None,
            is_over: false,
            is_gone: false,
        };
        Ok(Self {
            socket,
            kick: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            disks,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            slot_bytes,
            input,
            receive: Some(StreamTransfer::default()),
            send: Some(StreamTransfer::default()),
            unsent: None,
            sending: Vec::with_capacity(usize::from(slots)),
            answers: VecDeque::with_capacity(usize::from(slots)),
            memory: Buffers::default(),
        })
    }

    /// Whether its peer has ended the connection, or it has failed.
    pub fn is_over(&self) -> bool {
        self.input.is_over || self.input.is_gone
    }

    /// Where the data of a slot lie in its memory: not all aligned in the same way.
    fn lead(slot: SourceRequestSlot) -> usize {
        [0, 512, 77, 4095][usize::from(slot.0) % 4]
    }

    /// Takes the next request out of what was received, if it is there with all its data.
    fn next(&mut self) -> Result<Option<RequestFrame>, Rubbish> {
        let (mut request, mut arrived) = match self.input.arriving.take() {
            Some(arriving) => arriving,
            None if self.next_waits_for_send() => return Ok(None),
            None => match self.input.frame() {
                Some(frame) => (self.check(RequestFrame::parse(&frame)?)?, 0),
                None => return Ok(None),
            },
        };
        let wanted = request.data_bytes();
        let (lead, slot) = (Self::lead(request.slot), usize::from(request.slot.0));
        if let Some(data) = &mut self.slots[slot].data
            && arrived < wanted
        {
            arrived += self.input.take_into(&mut data[lead + arrived..lead + wanted]);
        }
        if arrived < wanted {
            self.input.arriving = Some((request, arrived));
            return Ok(None);
        }
        request.operation = self.operation(&request)?;
        Ok(Some(request))
    }

    /// Whether the next frame's slot has its last answer in a send: its peer may have read that before the end of the send
    /// is known here.
    fn next_waits_for_send(&self) -> bool {
        let frame = self.input.bytes().first_chunk().filter(|_| self.input.arriving.is_none());
        let request = frame.and_then(|frame| RequestFrame::parse(frame).ok());
        request.is_some_and(|request| self.sending.contains(&request.slot))
    }

    /// A request that may be brought: its slot is free, and has memory.
    fn check(&mut self, request: RequestFrame) -> Result<RequestFrame, Rubbish> {
        let bytes = usize::try_from(request.count).ok().ok_or(Rubbish::Count(request.count))?;
        if request.has_memory() && bytes > self.slot_bytes {
            return Err(Rubbish::Count(request.count));
        }
        let slot = self.slots.get_mut(usize::from(request.slot.0));
        let slot = slot.ok_or(Rubbish::Slot(request.slot.0))?;
        if slot.request.is_some() {
            return Err(Rubbish::Slot(request.slot.0));
        }
        slot.answer.get_or_insert_with(|| HostMemory::zeroed(ANSWER_BYTES));
        slot.data.get_or_insert_with(|| HostMemory::zeroed(self.slot_bytes + 4096));
        slot.request = Some(request);
        Ok(request)
    }

    fn operation(&self, request: &RequestFrame) -> Result<Option<Operation>, Rubbish> {
        let unit = usize::from(request.unit.0);
        let disk = self.disks.get(unit).ok_or(Rubbish::Unit(request.unit.0))?;
        let extent = disk.check(ByteOffset(request.offset), ByteCount(request.count));
        Ok(Some(request.kind.operation(extent.ok().ok_or(Rubbish::Count(request.count))?)))
    }

    /// The connection has failed: nobody will ever read the answers.
    fn give_up(&mut self) {
        self.input.is_gone = true;
        self.answers.clear();
        self.unsent = None;
    }

    /// A send is over, or given up: its memory goes back to the slots.
    fn sent(&mut self, mut transfer: StreamTransfer) {
        if transfer.end() == StreamEnd::Cancelled {
            self.unsent = Some(transfer);
            return;
        }
        let is_done = transfer.end() == StreamEnd::Done;
        let mut parts = transfer.take_parts();
        for slot in self.sending.drain(..) {
            let Slot { request, data, answer } = &mut self.slots[usize::from(slot.0)];
            *answer = parts.next().map(|(memory, _)| memory);
            *data = parts.next().map(|(memory, _)| memory);
            *request = None;
        }
        drop(parts);
        self.send = Some(transfer);
        if !is_done {
            self.give_up();
        }
    }

    fn received(&mut self, mut transfer: StreamTransfer) {
        let (count, end) = (transfer.transferred(), transfer.end());
        let memory = transfer.take_parts().next().map(|(memory, _)| memory);
        self.receive = Some(transfer);
        match &mut self.input.arriving {
            Some((request, arrived)) => {
                *arrived += count;
                self.slots[usize::from(request.slot.0)].data = memory;
            }
            None => {
                self.input.to += count;
                self.input.memory = memory;
            }
        }
        match end {
            StreamEnd::Done | StreamEnd::Cancelled => {}
            StreamEnd::EndOfStream => self.input.is_over = true,
            StreamEnd::Failed(_) => self.give_up(),
        }
    }

    /// Has what comes next received: data into their slot, frames ahead.
    fn begin_receive(&mut self, port: &mut FrontEndContext<'_>) {
        if self.has_new() || self.next_waits_for_send() || self.is_over() {
            return;
        }
        let Some(mut transfer) = self.receive.take() else { return };
        let goal = match self.input.arriving {
            Some((request, arrived)) => {
                let memory = self.slots[usize::from(request.slot.0)].data.take();
                let lead = Self::lead(request.slot);
                let bytes = lead + arrived..lead + request.data_bytes();
                transfer.push(memory.expect("it is nowhere else"), bytes);
                StreamGoal::All
            }
            None => {
                self.input.move_to_front();
                let memory = self.input.memory.take().expect("it is nowhere else");
                transfer.push(memory, self.input.to..INPUT_BYTES);
                StreamGoal::Some
            }
        };
        if let Err(mut refused) = port.receive(self.socket.as_fd(), transfer, goal) {
            let memory = refused.take_parts().next().map(|(memory, _)| memory);
            match self.input.arriving {
                Some((request, _)) => self.slots[usize::from(request.slot.0)].data = memory,
                None => self.input.memory = memory,
            }
            self.receive = Some(refused);
        }
    }

    /// Has answers sent: what is left of those before first.
    fn begin_send(&mut self, port: &mut FrontEndContext<'_>) {
        let Some(transfer) = self.unsent.take().or_else(|| self.next_send()) else { return };
        if let Err(refused) = port.send(self.socket.as_fd(), transfer) {
            self.unsent = Some(refused);
        }
    }

    /// All answers there are, as one send.
    fn next_send(&mut self) -> Option<StreamTransfer> {
        if self.answers.is_empty() || self.input.is_gone {
            return None;
        }
        let mut transfer = self.send.take()?;
        for (slot, outcome) in self.answers.drain(..) {
            let Slot { request, data, answer } = &mut self.slots[usize::from(slot.0)];
            let request = request.expect("its request is open");
            let count = if outcome == Outcome::Done { request.answer_bytes() } else { 0 };
            let (Some(mut frame), Some(data)) = (answer.take(), data.take()) else {
                panic!("the memory of {slot:?} is in use")
            };
            Answer { slot, outcome, count }.write_to(&mut frame);
            transfer.push(frame, 0..ANSWER_BYTES);
            let lead = Self::lead(slot);
            transfer.push(data, lead..lead + count);
            self.sending.push(slot);
        }
        Some(transfer)
    }
}

impl Input {
    fn bytes(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[self.from..self.to])
    }

    /// Takes a whole frame, if there is one.
    fn frame(&mut self) -> Option<[u8; REQUEST_BYTES]> {
        let frame = *self.bytes().first_chunk()?;
        self.from += REQUEST_BYTES;
        Some(frame)
    }

    /// Takes as much as there is, or is wanted.
    fn take_into(&mut self, to: &mut [u8]) -> usize {
        let found = self.bytes();
        let count = found.len().min(to.len());
        to[..count].copy_from_slice(&found[..count]);
        self.from += count;
        count
    }

    /// Makes room behind what was not taken.
    fn move_to_front(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
    }
}

impl FrontEnd for StreamFront {
    type Reply = ();
    type Fault = Rubbish;

    fn kick(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    fn interest(&self) -> Interest {
        Interest::Read
    }

    fn slots(&self) -> u16 {
        u16::try_from(self.slots.len()).expect("made of so many")
    }

    fn begin_batch(&mut self) {}

    fn take(&mut self) -> Result<Option<NewRequest<'_, ()>>, Rubbish> {
        let Some(request) = self.next()? else { return Ok(None) };
        let (slot, unit) = (request.slot, request.unit);
        let operation = request.operation.expect("a whole request has one");
        self.memory.clear();
        if request.has_memory() {
            let data = self.slots[usize::from(slot.0)].data.as_mut().expect("it is in no transfer");
            let (lead, count) =
                (Self::lead(slot), usize::try_from(request.count).expect("checked"));
            let data = &mut data[lead..lead + count];
            if request.kind == FrameKind::Read {
                // A disk may leave it as it is, and nobody is to see what was there.
                data.fill(CANARY);
            }
            let data = NonNull::from(data).cast();
            // SAFETY: the bytes are the slot's, and nothing touches them until the request was answered.
            self.memory.push(unsafe { Segment::new(data, count) });
        }
        let work = RequestAction::Disk { unit, operation, memory: &mut self.memory };
        Ok(Some(NewRequest { slot, reply: (), work }))
    }

    fn answer(&mut self, slot: SourceRequestSlot, (): (), outcome: Outcome) {
        if !self.input.is_gone {
            self.answers.push_back((slot, outcome));
        }
    }

    fn publish(&mut self, port: &mut FrontEndContext<'_>) {
        if !port.has_transfer(StreamDirection::Send) {
            self.begin_send(port);
        }
        if !port.has_transfer(StreamDirection::Receive) {
            self.begin_receive(port);
        }
    }

    fn unpublished(&self) -> usize {
        self.answers.len() + self.sending.len()
    }

    fn transfer_over(&mut self, transfer: StreamTransfer) {
        match transfer.direction() {
            StreamDirection::Receive => self.received(transfer),
            StreamDirection::Send => self.sent(transfer),
        }
    }

    fn check(&self) -> Result<(), Rubbish> {
        Ok(())
    }

    fn report_fault(&self, _: &mut FrontEndContext<'_>) {}

    fn has_new(&self) -> bool {
        match self.input.arriving {
            // Its first data may lie behind its frame.
            Some((request, arrived)) => {
                arrived >= request.data_bytes() || !self.input.bytes().is_empty()
            }
            None => self.input.bytes().len() >= REQUEST_BYTES && !self.next_waits_for_send(),
        }
    }

    fn waiting(&self) -> u32 {
        self.has_new().into()
    }

    fn rest(&mut self) -> SleepDecision {
        if self.has_new() { SleepDecision::MoreWork } else { SleepDecision::MaySleep }
    }

    fn inherited(&self) -> usize {
        0
    }

    fn stays(&self) -> Option<&'static str> {
        None
    }

    fn arrive(&mut self, _: &mut FrontEndContext<'_>) {}

    fn leave(&mut self, _: &mut FrontEndContext<'_>) {}
}
