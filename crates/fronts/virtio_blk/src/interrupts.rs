//! A ring's guest is interrupted, and some guests not so often ([`crate::interrupt_moderation`]).
//!
//! Where it stands in the life of a request: when its ring has published what is answered.
//!
//! Invariants: an interrupt that is put off is owed by the ring, which gets a turn when the pause is over.

use std::os::fd::{AsFd, OwnedFd};

use request_path::FrontEndContext;
use virtio::reached;

use crate::interrupt_moderation::{InterruptMeasurement, InterruptModeration};

/// Sends a ring's interrupts through the call eventfd, moderated.
#[derive(Debug)]
pub(crate) struct InterruptSender {
    call: Option<OwnedFd>,
    /// The guest is interrupted on arrival, or as soon as that is not too often.
    is_pending: bool,
    moderation: InterruptModeration,
}

impl InterruptSender {
    pub(crate) fn new(call: Option<OwnedFd>, is_pending: bool) -> Self {
        Self { call, is_pending, moderation: InterruptModeration::default() }
    }

    /// Whether the guest waits for one.
    pub(crate) fn are_pending(&self) -> bool {
        self.is_pending
    }

    /// Interrupts the guest, whether it asked or not, or owes it that.
    pub(crate) fn send(&mut self, port: &mut FrontEndContext<'_>) {
        self.is_pending = !self.try_send(port);
        if !self.is_pending {
            reached(virtio::FaultPoint::Interrupted);
        }
    }

    /// Interrupts through another descriptor from now on, and once at once: whatever was signalled on the old one may
    /// have been lost on the way.
    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>, port: &mut FrontEndContext<'_>) {
        self.call = call;
        self.send(port);
    }

    /// The ring is served on another iothread.
    pub(crate) fn arrive(&mut self, port: &mut FrontEndContext<'_>) {
        self.moderation.arrive();
        if self.is_pending {
            self.send(port);
        }
    }

    /// The ring leaves its iothread, and nobody may serve it any more.
    pub(crate) fn leave(&mut self, port: &mut FrontEndContext<'_>) {
        if let Some(call) = self.call.as_ref().filter(|_| self.is_pending) {
            port.signal(call.as_fd(), "call");
        }
        self.is_pending = false;
    }

    /// Interrupts the guest, or has its ring get a turn when it is time. Returns whether it did.
    fn try_send(&mut self, port: &mut FrontEndContext<'_>) -> bool {
        let Some(call) = &self.call else { return true };
        let moderation = &mut self.moderation;
        match moderation.next_timing() {
            InterruptMeasurement::Ring => port.signal(call.as_fd(), "call"),
            InterruptMeasurement::Timed => {
                let start = port.now();
                port.signal(call.as_fd(), "call");
                moderation.timed(port.now().saturating_duration_since(start));
            }
            InterruptMeasurement::Measured => {
                let now = port.now();
                if let Some(at) = moderation.pause(now) {
                    if moderation.note() {
                        port.call_at(at);
                    }
                    return false;
                }
                let start = port.cpu_time();
                port.signal(call.as_fd(), "call");
                let took = port.cpu_time().saturating_sub(start);
                moderation.measured(took, port.now());
            }
        }
        true
    }
}
