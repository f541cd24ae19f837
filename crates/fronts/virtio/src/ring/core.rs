//! What a served ring has whatever its layout: the guest's memory, the dirty log, the in-flight region.
//!
//! Where it stands in the life of a request: `split` and `packed` each keep a [`RingCore`]. At the end of a
//! request they stage completions, each in a used entry that the driver does not look at yet, and publish them
//! together.
//!
//! Invariants: the driver sees nothing of a batch before the one store of [`RingCore::publish`] and all of it
//! after. The order there is the one of vhost-user's "Inflight I/O tracking": whatever single store the process
//! dies after, the in-flight region tells a successor whether the batch was seen.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{ChainBuilder, DirtyMarker, RingError, RingSetup, TranslationHints};
use crate::fault_point::{FaultPoint, reached};
use crate::inflight::InflightTracker;
use crate::{GuestMemory, InflightFault};

/// What a served ring has whatever its layout. `C` is a chain that its predecessor left in flight.
#[derive(Debug)]
pub(crate) struct RingCore<T, C> {
    pub(crate) memory: Arc<GuestMemory>,
    hints: TranslationHints,
    pub(crate) marks: DirtyMarker,
    pub(crate) tracker: Option<T>,
    /// Chains that were in flight when somebody else served the ring, the oldest last.
    pub(crate) pending: Vec<C>,
    pub(crate) is_inherited: bool,
    /// Whether an interrupt was decided upon since the start.
    has_decided: bool,
    pub(crate) setup: RingSetup,
}

impl<T: InflightTracker, C> RingCore<T, C> {
    pub(crate) fn new(memory: Arc<GuestMemory>, setup: &RingSetup) -> Self {
        Self {
            memory,
            hints: TranslationHints::default(),
            marks: DirtyMarker::default(),
            tracker: None,
            pending: Vec::new(),
            is_inherited: false,
            has_decided: false,
            setup: *setup,
        }
    }

    /// Goes on with the chains that somebody else left in flight.
    pub(crate) fn inherit(&mut self, chains: Vec<C>) {
        self.pending = chains;
        self.is_inherited = true;
    }

    pub(crate) fn check_memory(&self) -> Result<(), RingError> {
        if self.memory.is_lost() {
            return Err(RingError::MemoryLost);
        }
        match &self.tracker {
            Some(tracker) if tracker.is_lost() => Err(InflightFault::Lost.into()),
            Some(_) | None => Ok(()),
        }
    }

    /// Collects the memory of a chain. Who tracks its descriptors gets the tracker, too.
    #[inline]
    pub(crate) fn chain_builder(&mut self) -> (ChainBuilder<'_>, Option<&mut T>) {
        let Self { memory, hints, setup, tracker, .. } = self;
        let builder = ChainBuilder { memory, hints, is_indirect_allowed: setup.indirect };
        (builder, tracker.as_mut())
    }

    /// Marks a chain that was popped as in flight.
    #[inline]
    pub(crate) fn mark_popped(&mut self, chain: u16) {
        reached(FaultPoint::Popped);
        if let Some(tracker) = &mut self.tracker {
            tracker.mark(chain);
            reached(FaultPoint::Marked);
        }
    }

    /// Adds a chain to the batch that is published next.
    #[inline]
    pub(crate) fn stage(&mut self, chain: u16) {
        if let Some(tracker) = &mut self.tracker {
            tracker.stage(chain);
        }
    }

    /// Shows the driver what was staged: `show` makes it visible with one store, and then the ring is at `used`.
    #[inline]
    pub(crate) fn publish(&mut self, used: T::Used, show: impl FnOnce()) {
        let Some(tracker) = &mut self.tracker else { return show() };
        tracker.link(used);
        reached(FaultPoint::BatchLinked);
        show();
        reached(FaultPoint::UsedPublished);
        tracker.unmark();
        reached(FaultPoint::MarksCleared);
        tracker.commit(used);
        reached(FaultPoint::BatchCommitted);
    }

    /// To be called between publishing and reading what the driver wishes: it writes its wish first and looks at
    /// the used entries after (virtio 1.2, 2.7.7.2, 2.7.10 and 2.8.22). Whether the driver is to be interrupted
    /// whatever event it waits for: who served the ring before may have left it waiting.
    #[inline]
    pub(crate) fn begin_decision(&mut self) -> bool {
        fence(Ordering::SeqCst);
        !std::mem::replace(&mut self.has_decided, true)
    }
}
