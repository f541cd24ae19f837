//! A ring's guest is interrupted, and some guests not so often ([`crate::tempo`]).
//!
//! Where it stands in the life of a request: when its ring has published what is answered.
//!
//! Invariants: an interrupt that is put off is owed by the ring, which gets a turn when the pause is over.

use std::os::fd::{AsFd, OwnedFd};

use request_path::Port;
use virtio::reached;

use crate::tempo::{Pace, Tempo};

/// The way to interrupt a guest.
#[derive(Debug)]
pub(crate) struct Interrupts {
    call: Option<OwnedFd>,
    /// The guest is interrupted on arrival, or as soon as that is not too often.
    owed: bool,
    tempo: Tempo,
}

impl Interrupts {
    pub(crate) fn new(call: Option<OwnedFd>, owed: bool) -> Self {
        Self { call, owed, tempo: Tempo::default() }
    }

    /// Whether the guest waits for one.
    pub(crate) fn are_owed(&self) -> bool {
        self.owed
    }

    /// Interrupts the guest, whether it asked or not, or owes it that.
    pub(crate) fn send(&mut self, port: &mut Port<'_>) {
        self.owed = !self.try_send(port);
        if !self.owed {
            reached(virtio::Step::Interrupted);
        }
    }

    /// Interrupts through another descriptor from now on, and once at once: whatever was signalled on the old one may
    /// have been lost on the way.
    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>, port: &mut Port<'_>) {
        self.call = call;
        self.send(port);
    }

    /// The ring is served on another iothread.
    pub(crate) fn arrive(&mut self, port: &mut Port<'_>) {
        self.tempo.arrive();
        if self.owed {
            self.send(port);
        }
    }

    /// The ring leaves its iothread, and nobody may serve it any more.
    pub(crate) fn leave(&mut self, port: &mut Port<'_>) {
        if let Some(call) = self.call.as_ref().filter(|_| self.owed) {
            port.signal(call.as_fd(), "call");
        }
        self.owed = false;
    }

    /// Interrupts the guest, or has its ring get a turn when it is time. Returns whether it did.
    fn try_send(&mut self, port: &mut Port<'_>) -> bool {
        let Some(call) = &self.call else { return true };
        let tempo = &mut self.tempo;
        match tempo.pace() {
            Pace::Ring => port.signal(call.as_fd(), "call"),
            Pace::Timed => {
                let start = port.now();
                port.signal(call.as_fd(), "call");
                tempo.timed(port.now().saturating_duration_since(start));
            }
            Pace::Measured => {
                let now = port.now();
                if let Some(at) = tempo.pause(now) {
                    if tempo.note() {
                        port.call_at(at);
                    }
                    return false;
                }
                let start = port.cpu_time();
                port.signal(call.as_fd(), "call");
                let took = port.cpu_time().saturating_sub(start);
                tempo.measured(took, port.now());
            }
        }
        true
    }
}
