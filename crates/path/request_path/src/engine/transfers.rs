//! Transfers of sources on their sockets.
//!
//! Where it stands: beside the life of a request. A source begins them where it is served; what is over goes the way of
//! outcomes, to the source's route or to its mailbox.
//!
//! Invariants: a transfer stays on the iothread that began it, and its route is kept until it is over.

use std::os::fd::BorrowedFd;

use kernel_io::{EngineKernel, StreamDirection, StreamGoal, StreamTransfer, Tag};

use super::Engine;
use crate::RouteIndex;
use crate::io_request::KernelEventTarget;

impl Engine {
    /// Begins a transfer of the source of that route, which has none of this direction under way.
    pub(crate) fn begin_transfer(
        &mut self,
        route: RouteIndex,
        socket: BorrowedFd<'_>,
        transfer: StreamTransfer,
        (direction, goal): (StreamDirection, StreamGoal),
    ) {
        self.routes.begin_transfer(route);
        self.transfers += 1;
        let tag = KernelEventTarget::Transfer(route, direction).to_tag();
        self.kernel.begin_transfer(socket, transfer, (direction, goal), tag);
    }

    /// Has the transfer of that direction end soon, if it is under way here.
    pub(crate) fn cancel_transfer(&mut self, route: RouteIndex, direction: StreamDirection) {
        self.kernel.cancel_transfer(KernelEventTarget::Transfer(route, direction).to_tag());
    }

    /// Takes the transfers of a route that are over.
    pub(crate) fn take_transfers(&mut self, route: RouteIndex, take: impl FnMut(StreamTransfer)) {
        self.routes.take_transfers(route, take);
    }
}

impl<K: EngineKernel> Engine<K> {
    /// A transfer is over.
    pub(super) fn transfer_over(&mut self, tag: Tag, transfer: StreamTransfer) {
        let KernelEventTarget::Transfer(route, _) = KernelEventTarget::from_tag(tag) else {
            panic!("only sources have transfers")
        };
        self.transfers -= 1;
        self.routes.transfer_over(route, transfer);
    }
}
