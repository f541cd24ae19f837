//! The device side of a packed virtqueue (virtio 1.2, 2.8).
//!
//! Where it stands in the life of a request: its first and its last stop, as `split` for the other
//! layout.
//!
//! Invariants: a buffer id is popped only while it is not in flight and returned exactly once; from
//! the first staged descriptor on nothing is visible to the driver before `publish` stores that
//! one's flags; from the first published used descriptor to the next available one there are never
//! more descriptors than the ring has; no chain is handed out that was read from memory the front
//! end had taken away.
//! Threads: owned by one iothread at a time, moved as a value between them. Nothing blocks.
//! Limits: at most `size` chains are in flight; a chain has at most `SEGMENTS_MAX` segments.
//! Not here: the kick and call descriptors (`virtio_blk`).

mod areas;
mod position;
mod reader;

use std::sync::Arc;

use crate::inflight::{PackedTracker, SavedChain};
use crate::ring::{Chain, Head, RingBase, RingCore, RingError, RingSetup};
use crate::{GuestMemory, InflightQueue};
use areas::{EventSuppression, PackedAreas};
pub(crate) use position::{Position, RingProgress};
use reader::{ChainSpan, PackedChainReader};

/// The device side of a packed virtqueue.
#[derive(Debug)]
pub(crate) struct PackedRing {
    areas: PackedAreas,
    pub(crate) core: RingCore<PackedTracker, SavedChain>,
    /// How many descriptors the chain of each buffer id has; 0 if it is not in flight.
    in_flight: Box<[u16]>,
    /// Where the next chain is looked for.
    next_available: Position,
    /// Where the next used descriptor goes.
    next_used: Position,
    /// The next used descriptor as the driver sees it.
    published_used: Position,
    /// The flags of the descriptor at `published_used`, once one was staged.
    staged_flags: Option<u16>,
    /// Descriptors that were staged.
    staged: u16,
    /// Descriptors from `published_used` to `next_available`.
    held: u16,
    /// The position from which on the driver shall kick; `None` if it should not.
    kicks_from: Option<Position>,
}

impl PackedRing {
    /// Whether such a ring can lie where it is said to. Touches nothing.
    pub(crate) fn check(memory: &GuestMemory, setup: &RingSetup) -> Result<(), RingError> {
        PackedAreas::find(memory, &setup.addresses, setup.size).map(drop)
    }

    /// A ring that goes on at its base and was not touched yet.
    pub(crate) fn at_base(memory: Arc<GuestMemory>, setup: &RingSetup) -> Result<Self, RingError> {
        let areas = PackedAreas::find(&memory, &setup.addresses, setup.size)?;
        let progress = RingProgress::from_base(setup)?;
        Ok(Self {
            in_flight: vec![0; usize::from(setup.size)].into_boxed_slice(),
            areas,
            core: RingCore::new(memory, setup),
            next_available: progress.available,
            next_used: progress.used,
            published_used: progress.used,
            staged_flags: None,
            staged: 0,
            held: progress.held,
            kicks_from: None,
        })
    }

    /// Tracks the ring in an in-flight region, which says where it goes on if it was used before.
    pub(crate) fn track(&mut self, inflight: &InflightQueue) -> Result<(), RingError> {
        let is_available = |at: Position| at.is_available(self.areas.flags(at.slot));
        let (tracker, past) =
            PackedTracker::open(inflight, self.size(), self.published_used, is_available)?;
        // What was decided by lost memory counts for nothing.
        self.core.check_memory()?;
        let used = tracker.used();
        self.core.tracker = Some(tracker);
        past.into_iter().for_each(|chains| self.inherit(used, chains));
        Ok(())
    }

    /// Goes on where somebody else was killed: whatever was popped is either used or in flight.
    fn inherit(&mut self, used: Position, chains: Vec<SavedChain>) {
        let size = self.size();
        (self.published_used, self.next_used) = (used, used);
        self.held = 0;
        for saved in &chains {
            let descriptors =
                u16::try_from(saved.descriptors.len()).expect("at most the ring size");
            self.in_flight[usize::from(saved.id)] = descriptors;
            self.held += descriptors;
        }
        self.next_available = self.published_used.after(self.held, size);
        // A batch that was not shown may have left used descriptors behind the first. The driver
        // would take them for new ones as soon as it comes there.
        let mut at = self.published_used;
        for _ in 0..self.held {
            if !at.is_available(self.areas.flags(at.slot)) {
                self.areas.set_flags(at.slot, at.available_flags());
            }
            at = at.after(1, size);
        }
        self.core.inherit(chains);
    }

    pub(crate) fn size(&self) -> u16 {
        self.areas.size()
    }

    /// Takes the next available chain, without a look at whether the memory it has read is still there.
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Result<Option<Head>, RingError> {
        let start = self.next_available;
        let flags = self.areas.flags(start.slot);
        if !start.is_available(flags) {
            return Ok(None);
        }
        let head = start.slot;
        let span = self.reader().read(head, flags, chain);
        let span = span.map_err(|problem| RingError::Chain { head, problem })?;
        self.claim(span)?;
        self.next_available = start.after(span.descriptors, self.size());
        self.core.mark_popped(span.id);
        Ok(Some(Head(span.id)))
    }

    /// Hands out a chain that is in flight and marked already.
    #[cold]
    pub(crate) fn pop_pending(
        &mut self,
        saved: &SavedChain,
        chain: &mut Chain,
    ) -> Result<Head, RingError> {
        let head = self.next_available.slot;
        let read = self.reader().read_saved(&saved.descriptors, chain);
        read.map_err(|problem| RingError::Chain { head, problem })?;
        Ok(Head(saved.id))
    }

    #[inline]
    fn reader(&mut self) -> PackedChainReader<'_> {
        let (builder, tracker) = self.core.chain_builder();
        let (areas, free) = (&self.areas, self.areas.size() - self.held);
        PackedChainReader { areas, builder, tracker, free }
    }

    /// Notes that a chain is in flight.
    fn claim(&mut self, ChainSpan { id, descriptors }: ChainSpan) -> Result<(), RingError> {
        let size = self.size();
        let Some(in_flight) = self.in_flight.get_mut(usize::from(id)) else {
            return Err(RingError::IdOutOfRange { id, size });
        };
        if *in_flight != 0 {
            return Err(RingError::IdInFlight { id });
        }
        *in_flight = descriptors;
        self.held += descriptors;
        Ok(())
    }

    /// See [`crate::Ring::push_used`].
    pub(crate) fn push_used(&mut self, head: Head, written: u32) {
        let in_flight = self.in_flight.get_mut(usize::from(head.0));
        let descriptors = in_flight.map_or(0, std::mem::take);
        assert!(descriptors != 0, "chain {} was returned without being in flight", head.0);
        let at = self.next_used;
        let flags = at.used_flags(written);
        self.areas.set_used(at.slot, head.0, written);
        if self.staged_flags.is_none() {
            // Written last, by `publish`: the driver looks at no descriptor behind it before.
            self.staged_flags = Some(flags);
        } else {
            self.areas.set_flags(at.slot, flags);
        }
        // The used descriptor stands for the whole chain; the driver knows how many it skips
        // (virtio 1.2, 2.8.6).
        self.next_used = at.after(descriptors, self.size());
        self.staged += descriptors;
        self.core.stage(head.0);
    }

    /// Shows the driver all that was staged, and says whether it wants an interrupt for it.
    pub(crate) fn publish(&mut self) -> bool {
        let Some(flags) = self.staged_flags.take() else { return false };
        let (used, first_slot) = (self.next_used, self.published_used.slot);
        self.core.publish(used, || self.areas.publish_flags(first_slot, flags));
        self.published_used = used;
        let passed = std::mem::take(&mut self.staged);
        self.core.marks.slots(first_slot, passed, self.size());
        self.held -= passed;
        let first = self.core.begin_decision();
        match self.areas.driver_events() {
            EventSuppression::None => false,
            EventSuppression::At(event) if self.core.setup.event_idx => {
                first || used.has_passed(event, passed, self.size())
            }
            EventSuppression::All | EventSuppression::At(_) => true,
        }
    }

    /// See [`crate::Ring::suppress_kicks`].
    pub(crate) fn suppress_kicks(&mut self) {
        let Some(at) = self.kicks_from.take() else { return };
        // A driver that has passed the event passes it again only after two rounds: nothing to
        // write.
        if !self.core.setup.event_idx || !at.is_available(self.areas.flags(at.slot)) {
            self.set_device_events(EventSuppression::None);
        }
    }

    /// Asks the driver to kick for the next chain.
    pub(crate) fn request_kicks(&mut self) {
        let at = self.next_available;
        let asked = self.kicks_from.replace(at);
        if self.core.setup.event_idx {
            if asked != Some(at) {
                self.set_device_events(EventSuppression::At(at));
            }
        } else if asked.is_none() {
            self.set_device_events(EventSuppression::All);
        }
    }

    /// Whether there is something to pop: one look at the flags, nothing is checked.
    pub(crate) fn has_available(&self) -> bool {
        let at = self.next_available;
        at.is_available(self.areas.flags(at.slot)) || !self.core.pending.is_empty()
    }

    /// Where the next chain and the next used descriptor are (vhost-user, GET_VRING_BASE).
    pub(crate) fn base(&self) -> RingBase {
        let [available, used] = [self.next_available, self.published_used].map(Position::to_bits);
        RingBase(u32::from(available) | u32::from(used) << 16)
    }

    fn set_device_events(&self, events: EventSuppression) {
        self.areas.set_device_events(events);
        self.core.marks.used(0, 4);
    }
}
