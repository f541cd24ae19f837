//! Transfers on stream sockets: by calls that do not wait, and what has to wait by io_uring or a watch of the socket.
//!
//! Where it stands: a front end whose client is behind a socket begins them; what has ended is an
//! [`Event::Transferred`].
//!
//! Invariants: a ring does reads and writes, as it does of files: it needs no operation for sockets, which could also
//! pass descriptors; calls name no room for any. A transfer is over once: done, cancelled or failed. Carried on with after each part, it makes
//! one call for each time that the peer did something, so a peer that sends or takes one byte at a time costs one in a
//! turn. Limits: who begins them bounds them; one that is cancelled ends soon, whatever the peer does.

use std::os::fd::{AsRawFd, BorrowedFd};

use block::{ByteOffset, Tag};
use rustix::io::Errno;

use super::{Event, Kernel};
use crate::blocking_calls::{iovecs, transfer_now};
use crate::completion_kind::errno_of;
use crate::in_flight::{SlotContent, SlotIndex, TransferProgress};
use crate::reactor::Reactor;
use crate::stream::{StreamOp, StreamPhase};
use crate::uring::{UringFd, UringTransfer};
use crate::{StreamDirection, StreamEnd, StreamGoal, StreamTransfer};

/// Who has made a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// This thread, without waiting.
    Thread,
    /// The ring, which waits, unless the socket is in the mode not to.
    Ring,
}

impl Kernel {
    /// Begins a transfer, or goes on with one that ended early. Until [`Event::Transferred`] brings it back the socket stays
    /// open. It may be in whatever mode; nothing waits for it. On one socket, one transfer of each direction is under way
    /// at most, and the socket is not polled.
    pub fn begin_transfer(
        &mut self,
        socket: BorrowedFd<'_>,
        mut transfer: StreamTransfer,
        (direction, goal): (StreamDirection, StreamGoal),
        tag: Tag,
    ) {
        let (socket, phase) = (socket.as_raw_fd(), StreamPhase::InKernel);
        *transfer.op() = StreamOp { direction, goal, socket, tag, phase, is_cancelled: false };
        if transfer.left() == 0 {
            transfer.ended(StreamEnd::Done);
            return self.events.push_back(Event::Transferred { tag, transfer });
        }
        let index = self.in_flight.park_transfer(transfer);
        self.call(index);
    }

    /// Has the transfer of that tag end soon, if it is not over: with what was transferred until then.
    pub fn cancel_transfer(&mut self, tag: Tag) {
        if let Some(index) = self.in_flight.find_transfer(|known| known == tag) {
            self.cancel_at(index);
        }
    }

    /// The same for all.
    pub(super) fn cancel_transfers(&mut self) {
        let mut cancelled = Vec::new();
        while let Some(index) = self.in_flight.find_transfer(|tag| !cancelled.contains(&tag)) {
            cancelled.push(self.transfer(index).tag());
            self.cancel_at(index);
        }
    }

    fn cancel_at(&mut self, index: SlotIndex) {
        let op = self.transfer(index).op();
        op.is_cancelled = true;
        let (socket, direction) = (op.socket, op.direction);
        match &mut *self.reactor {
            Reactor::Uring(uring) => uring.push_cancel(index),
            Reactor::Epoll(epoll) => epoll.unwatch_stream(socket, direction),
        }
    }

    fn transfer(&mut self, index: SlotIndex) -> &mut StreamTransfer {
        match self.in_flight.get(index) {
            Some(SlotContent::Transfer(transfer)) => transfer,
            other => panic!("slot {} holds no transfer: {other:?}", index.0),
        }
    }

    /// Transfers what can be transferred at once, which costs less than a way through the ring.
    fn call(&mut self, index: SlotIndex) {
        let op = self.transfer(index).op();
        op.phase = StreamPhase::InKernel;
        let (direction, socket) = (op.direction, op.socket);
        let memory = iovecs(self.in_flight.memory(index));
        // SAFETY: the list of segments is the slot's, and the memory is the transfer's, which is parked there.
        let result = unsafe { transfer_now(direction, socket, memory) };
        self.called(index, result, Caller::Thread);
    }

    /// Has the transfer go on when its socket can do something.
    fn call_later(&mut self, index: SlotIndex) {
        let op = self.transfer(index).op();
        op.phase = StreamPhase::InKernel;
        let (direction, socket) = (op.direction, op.socket);
        let memory = iovecs(self.in_flight.memory(index));
        match &mut *self.reactor {
            Reactor::Uring(uring) => {
                let (transfer, place) =
                    (UringTransfer::of_stream(direction), UringFd::Descriptor(socket));
                // SAFETY: the list of segments is the slot's, and stays untouched until the completion; the memory is
                // the transfer's, which is parked there.
                unsafe { uring.push_transfer(index, transfer, place, ByteOffset(0), memory) };
            }
            Reactor::Epoll(_) => self.watch_stream(index),
        }
    }

    /// A transfer's call, or the watch of its socket, is over.
    pub(super) fn complete_transfer(&mut self, index: SlotIndex, result: i64) {
        let StreamOp { phase, is_cancelled, .. } = *self.transfer(index).op();
        match phase {
            StreamPhase::InKernel => self.called(index, result, Caller::Ring),
            StreamPhase::Watched if is_cancelled => self.transfer_over(index, StreamEnd::Cancelled),
            StreamPhase::Watched if result < 0 => {
                self.transfer_over(index, StreamEnd::Failed(errno_of(result)))
            }
            StreamPhase::Watched => self.call(index),
        }
    }

    /// A call has had this result.
    fn called(&mut self, index: SlotIndex, result: i64, caller: Caller) {
        let StreamOp { direction, goal, is_cancelled, .. } = *self.transfer(index).op();
        let rest = if is_cancelled { Some(StreamEnd::Cancelled) } else { None };
        let end = match usize::try_from(result) {
            Ok(0) if direction == StreamDirection::Receive => Some(StreamEnd::EndOfStream),
            Ok(0) => Some(StreamEnd::Failed(Errno::IO)),
            Ok(count) => {
                self.transfer(index).advance(count);
                match (self.in_flight.advance(index, count), goal) {
                    (TransferProgress::Complete, _) | (_, StreamGoal::Some) => {
                        Some(StreamEnd::Done)
                    }
                    (TransferProgress::Partial, StreamGoal::All) => rest,
                }
            }
            Err(_negative) => match errno_of(result) {
                Errno::AGAIN if !is_cancelled => match caller {
                    Caller::Thread => return self.call_later(index),
                    // Its socket is in the mode not to wait.
                    Caller::Ring => return self.watch_stream(index),
                },
                Errno::INTR | Errno::AGAIN => rest,
                Errno::CANCELED if is_cancelled => rest,
                errno => Some(StreamEnd::Failed(errno)),
            },
        };
        match end {
            Some(end) => self.transfer_over(index, end),
            // Not at once: a peer that takes as fast as it can would keep the thread here.
            None => self.call_later(index),
        }
    }

    fn watch_stream(&mut self, index: SlotIndex) {
        let op = self.transfer(index).op();
        op.phase = StreamPhase::Watched;
        let (socket, direction) = (op.socket, op.direction);
        match &mut *self.reactor {
            Reactor::Uring(uring) => uring.push_stream_poll(index, socket, direction),
            Reactor::Epoll(epoll) => epoll.watch_stream(index, socket, direction),
        }
    }

    fn transfer_over(&mut self, index: SlotIndex, end: StreamEnd) {
        let mut transfer = self.in_flight.take_transfer(index);
        transfer.ended(end);
        self.events.push_back(Event::Transferred { tag: transfer.tag(), transfer });
    }
}
