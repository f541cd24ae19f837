//! The device side of a split virtqueue (virtio 1.2, 2.7).
//!
//! Where it stands in the life of a request: its first and its last stop. `virtio_blk` pops
//! chains in batches, and stages and publishes their completions in batches.
//!
//! Invariants: a head is popped only while it is not in flight and returned exactly once; staged
//! elements become visible only with the index that `publish` stores; no chain is handed out that
//! was read from memory the front end had taken away.
//! Threads: owned by one iothread at a time, moved as a value between them. Nothing blocks.
//! Limits: at most `size` chains are in flight; a chain has at most `SEGMENTS_MAX` segments.
//! Not here: the kick and call descriptors (`virtio_blk`).

mod areas;
mod heads;
mod reader;

use std::sync::Arc;

use crate::inflight::SplitTracker;
use crate::ring::{Chain, Head, RingBase, RingCore, RingError, RingSetup};
use crate::{GuestMemory, InflightQueue};
use areas::SplitAreas;
use heads::HeadSet;
use reader::SplitChainReader;

/// VIRTQ_USED_F_NO_NOTIFY: the device does not want kicks.
const NO_NOTIFY: u16 = 1;
/// VIRTQ_AVAIL_F_NO_INTERRUPT: the driver does not want interrupts.
const NO_INTERRUPT: u16 = 1;

/// The device side of a split virtqueue.
#[derive(Debug)]
pub(crate) struct SplitRing {
    areas: SplitAreas,
    pub(crate) core: RingCore<SplitTracker, Head>,
    in_flight: HeadSet,
    next_available: u16,
    /// The available index as last read; entries before it may be popped.
    seen_available: u16,
    /// Where the next used element goes.
    next_used: u16,
    /// The used index as the driver sees it.
    published_used: u16,
    /// The available index from which on the driver shall kick; `None` if it should not.
    kicks_from: Option<u16>,
}

impl SplitRing {
    /// Whether such a ring can lie where it is said to. Touches nothing.
    pub(crate) fn check(memory: &GuestMemory, setup: &RingSetup) -> Result<(), RingError> {
        SplitAreas::find(memory, &setup.addresses, setup.size).map(drop)
    }

    /// The available index of the first chain to serve.
    pub(crate) fn next_available(setup: &RingSetup) -> Result<u16, RingError> {
        let RingSetup { size, base, layout, .. } = *setup;
        u16::try_from(base.0).map_err(|_too_large| RingError::Base { base, layout, size })
    }

    /// A ring that goes on at its base and was not touched yet.
    pub(crate) fn at_base(memory: Arc<GuestMemory>, setup: &RingSetup) -> Result<Self, RingError> {
        let areas = SplitAreas::find(&memory, &setup.addresses, setup.size)?;
        let next_available = Self::next_available(setup)?;
        let used = areas.used_index();
        Ok(Self {
            in_flight: HeadSet::none(setup.size),
            areas,
            core: RingCore::new(memory, setup),
            next_available,
            seen_available: next_available,
            next_used: used,
            published_used: used,
            kicks_from: None,
        })
    }

    /// Tracks the ring in an in-flight region, which says where it goes on if it was used before.
    pub(crate) fn track(&mut self, inflight: &InflightQueue) -> Result<(), RingError> {
        // Believed by the region only if the memory it was read from is there.
        self.core.check_memory()?;
        let (tracker, heads) = SplitTracker::open(inflight, self.size(), self.published_used)?;
        self.core.tracker = Some(tracker);
        if let Some(heads) = heads {
            for &head in &heads {
                self.in_flight.insert(head);
            }
            // Whatever was popped is either used or in flight.
            let in_flight = u16::try_from(heads.len()).expect("each head once");
            self.next_available = self.published_used.wrapping_add(in_flight);
            self.seen_available = self.next_available;
            self.core.inherit(heads.into_iter().map(Head).collect());
        }
        Ok(())
    }

    pub(crate) fn size(&self) -> u16 {
        self.areas.size()
    }

    /// Takes the next available chain, without a look at whether the memory it has read is still there.
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Result<Option<Head>, RingError> {
        if self.next_available == self.seen_available {
            self.look()?;
            if self.next_available == self.seen_available {
                return Ok(None);
            }
        }
        let size = self.size();
        let head = self.areas.available_entry(self.next_available);
        if head >= size {
            return Err(RingError::HeadOutOfRange { head, size });
        }
        if !self.in_flight.insert(head) {
            return Err(RingError::HeadInFlight { head });
        }
        self.read(head, chain)?;
        self.next_available = self.next_available.wrapping_add(1);
        self.core.mark_popped(head);
        Ok(Some(Head(head)))
    }

    /// Hands out a chain that is in flight and marked already.
    #[cold]
    pub(crate) fn pop_pending(
        &mut self,
        &head: &Head,
        chain: &mut Chain,
    ) -> Result<Head, RingError> {
        self.read(head.0, chain)?;
        Ok(head)
    }

    #[inline]
    fn read(&mut self, head: u16, chain: &mut Chain) -> Result<(), RingError> {
        let (builder, _) = self.core.chain_builder();
        let read = SplitChainReader { areas: &self.areas, builder }.read(head, chain);
        read.map_err(|problem| RingError::Chain { head, problem })
    }

    /// See [`crate::Ring::push_used`].
    pub(crate) fn push_used(&mut self, head: Head, written: u32) {
        assert!(
            self.in_flight.remove(head.0),
            "chain {} was returned without being in flight",
            head.0
        );
        self.areas.set_used_element(self.next_used, head.0, written);
        self.next_used = self.next_used.wrapping_add(1);
        self.core.stage(head.0);
    }

    /// Shows the driver all that was staged, and says whether it wants an interrupt for it.
    pub(crate) fn publish(&mut self) -> bool {
        let (old, new) = (self.published_used, self.next_used);
        if old == new {
            return false;
        }
        self.core.publish(new, || self.areas.set_used_index(new));
        self.published_used = new;
        let size = self.size();
        self.core.marks.used_elements(old & (size - 1), new.wrapping_sub(old), size);
        let first = self.core.begin_decision();
        if self.core.setup.event_idx {
            first || has_passed(self.areas.used_event(), old, new)
        } else {
            self.areas.available_flags() & NO_INTERRUPT == 0
        }
    }

    /// See [`crate::Ring::suppress_kicks`].
    pub(crate) fn suppress_kicks(&mut self) {
        let Some(at) = self.kicks_from.take() else { return };
        if !self.core.setup.event_idx {
            self.set_used_flags(NO_NOTIFY);
        } else if self.areas.available_index() == at {
            // The driver has not passed the event yet. One behind it, it is passed again only
            // after 65535 more chains.
            self.set_available_event(at.wrapping_sub(1));
        }
    }

    /// Asks the driver to kick for the next chain.
    pub(crate) fn request_kicks(&mut self) {
        let at = self.next_available;
        let asked = self.kicks_from.replace(at);
        if self.core.setup.event_idx {
            if asked != Some(at) {
                self.set_available_event(at);
            }
        } else if asked.is_none() {
            self.set_used_flags(0);
        }
    }

    /// Whether there is something to pop: one look at the index, nothing is checked. What was seen
    /// once stays available, also if the index goes back.
    pub(crate) fn has_available(&self) -> bool {
        self.next_available != self.seen_available
            || !self.core.pending.is_empty()
            || self.areas.available_index() != self.next_available
    }

    /// How many chains are available, as far as the index says: one look, nothing is checked.
    pub(crate) fn available(&self) -> u16 {
        self.areas.available_index().wrapping_sub(self.next_available).min(self.size())
    }

    /// The available index of the next chain to pop (vhost-user, GET_VRING_BASE).
    pub(crate) fn base(&self) -> RingBase {
        RingBase(self.next_available.into())
    }

    pub(crate) fn set_used_flags(&self, flags: u16) {
        self.areas.set_used_flags(flags);
        self.core.marks.used(0, 2);
    }

    fn set_available_event(&self, index: u16) {
        let offset = self.areas.set_available_event(index);
        self.core.marks.used(offset, 2);
    }

    /// Reads the available index and believes it only if that many chains fit in the ring.
    fn look(&mut self) -> Result<(), RingError> {
        let (next, found, size) = (self.next_available, self.areas.available_index(), self.size());
        if found.wrapping_sub(next) > size {
            return Err(RingError::AvailableJump { next, found, size });
        }
        self.seen_available = found;
        Ok(())
    }
}

/// Whether an index that went from `old` to `new` has passed `event` (virtio 1.2, 2.7.10.1).
fn has_passed(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(event: u16, old: u16, new: u16, expected: bool) {
        assert_eq!(
            has_passed(event, old, new),
            expected,
            "event {event}, index from {old} to {new}"
        );
    }

    #[test]
    fn an_event_is_passed_when_the_index_steps_over_it() {
        check(5, 5, 6, true);
        check(6, 5, 6, false);
        check(4, 5, 6, false);
        check(7, 5, 9, true);
        check(9, 5, 9, false);
    }

    #[test]
    fn an_event_is_passed_across_the_wrap_at_65535() {
        check(65535, 65535, 0, true);
        check(65535, 65534, 65535, false);
        check(0, 65535, 0, false);
        check(0, 65535, 1, true);
        check(65534, 65535, 3, false);
        check(2, 65530, 3, true);
        check(3, 65530, 3, false);
    }
}
