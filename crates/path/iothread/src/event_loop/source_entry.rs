//! A source as its loop sees it: what is done with it, and which of the loop's lists it is in.
//!
//! Invariants: a life never goes back to `Serving`, and one that departs or stops does so to its end.
//! Not here: what a turn does (`Source::turn`), when it gets one (the loop).

use std::sync::{Arc, mpsc};
use std::time::Instant;

use request_path::{LaneIndex, Source};

use crate::command::{Inbox, SourceBundle};
use crate::polling::AdaptivePolling;

/// What an iothread does with a source: serves it, or stops serving it and why.
#[derive(Debug)]
pub(super) enum SourceState {
    /// Serves it.
    Serving,
    /// Does not take anything from it: its guest broke the rules.
    Broken,
    /// Hands it over once its poll is cancelled.
    Departing { to: Arc<Inbox>, lanes: Vec<LaneIndex>, reply: mpsc::Sender<()> },
    /// Gives it back once its poll is cancelled and nothing is in flight.
    Stopping { reply: mpsc::Sender<Box<dyn Source>> },
}

impl SourceState {
    pub(super) fn is_serving(&self) -> bool {
        matches!(self, Self::Serving)
    }
}

/// Whether the kernel watches a source's kick descriptor, does not, or is about to stop watching it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KickWatchState {
    On,
    Ending,
    Off,
}

/// A source in the event loop's table, with which of the loop's lists it is in.
#[derive(Debug)]
pub(crate) struct SourceEntry {
    pub(super) bundle: SourceBundle,
    pub(super) state: SourceState,
    pub(super) watch: KickWatchState,
    /// It is in `ready` already.
    pub(super) called: bool,
    /// It is in `full`: it has more to do, and there was no room for it.
    pub(super) full: bool,
    /// It is in `awake`: new requests may come without a kick.
    pub(super) awake: bool,
    /// How long it is worth looking for.
    pub(super) adaptive: AdaptivePolling,
    /// When it last had something new, as far as the loop has looked at the clock.
    pub(super) last_new: Instant,
    /// When its last turn ended that was timed.
    pub(super) turn_ended: Instant,
    /// What its first disk is told by: the address of its node.
    pub(super) disk: usize,
    /// In which round (`disk_rounds`) it had its last turn, if that brought a step of requests or more, or left some.
    pub(super) busy_in: Option<u64>,
    /// How often it was kicked since it came, up to [`KICKS_IN_VAIN`].
    pub(super) kicks: u8,
}

/// A source that was kicked so often has something in it. The first kick may come with the descriptor, as QEMU's does.
pub(super) const KICKS_IN_VAIN: u8 = 2;

impl SourceEntry {
    /// Counts a kick; whether it is the one with which there must have been something in the source, and there never was.
    pub(super) fn is_kicked_while_empty(&mut self) -> bool {
        if self.kicks == KICKS_IN_VAIN {
            return false;
        }
        self.kicks += 1;
        let source = &self.bundle.source;
        self.kicks == KICKS_IN_VAIN
            && self.state.is_serving()
            && !source.has_new()
            && source.in_flight() == 0
            && !source.has_had_requests()
    }

    /// Whether it has something new that it was not called for yet.
    pub(crate) fn has_new(&self) -> bool {
        !self.called && !self.full && self.state.is_serving() && self.bundle.source.has_new()
    }
}
