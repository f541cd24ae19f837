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
use std::sync::atomic::{Ordering, fence};

use block::Segment;

use crate::fault_point::{FaultPoint, reached};
use crate::inflight::SplitTracker;
use crate::ring::{
    Chain, ChainBuilder, DirtyMarker, Head, Interrupt, RingBase, RingDirtyLog, RingError,
    RingLayout, RingOrigin, RingSetup, TranslationHints, UsedBatch, publish,
};
use crate::{GuestMemory, InflightFault, InflightQueue};
use areas::Areas;
use heads::HeadSet;
use reader::ChainReader;

/// VIRTQ_USED_F_NO_NOTIFY: the device does not want kicks.
const NO_NOTIFY: u16 = 1;
/// VIRTQ_AVAIL_F_NO_INTERRUPT: the driver does not want interrupts.
const NO_INTERRUPT: u16 = 1;

/// Whether, and from which available index on, the driver shall kick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KickRequest {
    /// For the first chain from this available index on.
    Requested { at: u16 },
    /// It should not.
    Suppressed,
}

/// Whether a split ring can lie where it is said to. Touches nothing.
pub(crate) fn check(memory: &GuestMemory, setup: &RingSetup) -> Result<(), RingError> {
    Areas::find(memory, &setup.addresses, setup.size).map(|_found| ())
}

/// The available index of the first chain to serve.
pub(crate) fn next_available(setup: &RingSetup) -> Result<u16, RingError> {
    let RingSetup { size, base, .. } = *setup;
    match u16::try_from(base.0) {
        Ok(next_available) => Ok(next_available),
        Err(_) => Err(RingError::Base { base, layout: RingLayout::Split, size }),
    }
}

/// The device side of a split virtqueue.
#[derive(Debug)]
pub struct SplitRing {
    areas: Areas,
    memory: Arc<GuestMemory>,
    hits: TranslationHints,
    marks: DirtyMarker,
    in_flight: HeadSet,
    next_available: u16,
    /// The available index as last read; entries before it may be popped.
    seen_available: u16,
    /// Where the next used element goes.
    next_used: u16,
    /// The used index as the driver sees it.
    published_used: u16,
    tracker: Option<SplitTracker>,
    /// Heads that were in flight when somebody else served the ring, the oldest last.
    pending: Vec<u16>,
    origin: RingOrigin,
    kicks: KickRequest,
    /// Whether an interrupt was decided upon since the start. The first is always wanted: who
    /// served the ring before may have left the driver waiting.
    decided: bool,
    event_idx: bool,
    indirect: bool,
}

impl SplitRing {
    /// Starts to serve a ring, with kicks requested. The used index is taken from the ring itself,
    /// as it was left by whoever served it before (vhost-user, "Starting and stopping rings").
    pub fn new(memory: Arc<GuestMemory>, setup: RingSetup) -> Result<Self, RingError> {
        let mut ring = Self::at_base(memory, setup)?;
        ring.begin()?;
        Ok(ring)
    }

    /// Starts to serve a ring that is tracked in an in-flight region. See
    /// [`Ring::tracked`](crate::Ring::tracked).
    pub fn tracked(
        memory: Arc<GuestMemory>,
        setup: RingSetup,
        inflight: &InflightQueue,
    ) -> Result<Self, RingError> {
        let mut ring = Self::at_base(memory, setup)?;
        // Believed by the region only if the memory it was read from is there.
        ring.check_memory()?;
        let (tracker, past) = SplitTracker::open(inflight, setup.size, ring.published_used)?;
        ring.tracker = Some(tracker);
        if let Some(past) = past {
            for &head in &past.heads {
                ring.in_flight.insert(head);
            }
            // Whatever was popped is either used or in flight.
            let in_flight = u16::try_from(past.heads.len()).expect("each head once");
            ring.next_available = ring.published_used.wrapping_add(in_flight);
            ring.seen_available = ring.next_available;
            ring.pending = past.heads;
            ring.origin = RingOrigin::Inherited;
        }
        ring.begin()?;
        Ok(ring)
    }

    /// A ring that goes on at its base and was not touched yet.
    fn at_base(memory: Arc<GuestMemory>, setup: RingSetup) -> Result<Self, RingError> {
        let areas = Areas::find(&memory, &setup.addresses, setup.size)?;
        let next_available = next_available(&setup)?;
        let used = areas.used_index();
        Ok(Self {
            in_flight: HeadSet::none(setup.size),
            areas,
            memory,
            hits: TranslationHints::default(),
            marks: DirtyMarker::default(),
            next_available,
            seen_available: next_available,
            next_used: used,
            published_used: used,
            tracker: None,
            pending: Vec::new(),
            origin: RingOrigin::Base,
            kicks: KickRequest::Suppressed,
            decided: false,
            event_idx: setup.event_idx,
            indirect: setup.indirect,
        })
    }

    fn begin(&mut self) -> Result<(), RingError> {
        self.set_used_flags(0);
        // Chains that wait already are seen by the caller's first pop.
        let _waiting = self.request_kicks();
        self.check_memory()
    }

    /// The number of descriptors.
    pub fn size(&self) -> u16 {
        self.areas.size()
    }

    /// Takes the next available chain, if there is one, and puts its memory in `chain`, which is
    /// cleared first. After an error the ring must not be served any further.
    pub fn pop(&mut self, chain: &mut Chain) -> Result<Option<Head>, RingError> {
        let popped = self.pop_unchecked(chain);
        // Lost memory reads as zero, which can look like anything.
        self.check_memory()?;
        popped
    }

    /// Like `pop`, without a look at whether the memory it has read is still there.
    fn pop_unchecked(&mut self, chain: &mut Chain) -> Result<Option<Head>, RingError> {
        chain.clear();
        if !self.pending.is_empty() {
            return self.pop_pending(chain);
        }
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
        reached(FaultPoint::Popped);
        if let Some(tracker) = &mut self.tracker {
            tracker.mark(head);
            reached(FaultPoint::Marked);
        }
        Ok(Some(Head(head)))
    }

    /// Hands out a chain that is in flight and marked already.
    #[cold]
    fn pop_pending(&mut self, chain: &mut Chain) -> Result<Option<Head>, RingError> {
        let Some(head) = self.pending.pop() else { return Ok(None) };
        self.read(head, chain)?;
        Ok(Some(Head(head)))
    }

    #[inline]
    fn read(&mut self, head: u16, chain: &mut Chain) -> Result<(), RingError> {
        ChainReader {
            areas: &self.areas,
            gather: ChainBuilder { memory: &self.memory, hits: &mut self.hits, head },
            indirect: self.indirect,
        }
        .read(chain)
    }

    /// Stages the completion of a popped chain; `written` is the number of bytes written to its
    /// memory from the start. The driver sees it after [`SplitRing::publish`].
    ///
    /// Panics if the chain is not in flight: a request was completed twice.
    pub fn push_used(&mut self, head: Head, written: u32) {
        assert!(
            self.in_flight.remove(head.0),
            "chain {} was returned without being in flight",
            head.0
        );
        self.areas.set_used_element(self.next_used, head.0, written);
        self.next_used = self.next_used.wrapping_add(1);
        if let Some(tracker) = &mut self.tracker {
            tracker.stage(head.0);
        }
    }

    /// Shows the driver all that was staged, and says whether it wants an interrupt for it.
    pub fn publish(&mut self) -> Interrupt {
        let (old, new) = (self.published_used, self.next_used);
        if old == new {
            return Interrupt::Suppressed;
        }
        publish(self);
        let size = self.size();
        self.marks.used_elements(old & (size - 1), new.wrapping_sub(old), size);
        // The index must be visible before the driver's wish is read: the driver writes its wish
        // first and looks at the index after (virtio 1.2, 2.7.7.2 and 2.7.10).
        fence(Ordering::SeqCst);
        let first = !std::mem::replace(&mut self.decided, true);
        let wanted = if self.event_idx {
            first || has_passed(self.areas.used_event(), old, new)
        } else {
            self.areas.available_flags() & NO_INTERRUPT == 0
        };
        if wanted { Interrupt::Wanted } else { Interrupt::Suppressed }
    }

    /// Asks the driver not to kick, as long as the caller looks by itself. A hint: kicks may still
    /// come.
    pub fn suppress_kicks(&mut self) {
        let KickRequest::Requested { at } = self.kicks else {
            return;
        };
        self.kicks = KickRequest::Suppressed;
        if !self.event_idx {
            self.set_used_flags(NO_NOTIFY);
        } else if self.areas.available_index() == at {
            // The driver has not passed the event yet. One behind it, it is passed again only
            // after 65535 more chains.
            self.set_available_event(at.wrapping_sub(1));
        }
    }

    /// Asks the driver to kick for the next chain. `true` if chains have arrived meanwhile, for
    /// which no kick may come: the caller must pop again. Also if memory is lost: `pop` says so.
    #[must_use = "chains that arrived meanwhile come without a kick"]
    pub fn request_kicks(&mut self) -> bool {
        let at = self.next_available;
        if self.event_idx {
            if self.kicks != (KickRequest::Requested { at }) {
                self.set_available_event(at);
            }
        } else if self.kicks == KickRequest::Suppressed {
            self.set_used_flags(0);
        }
        self.kicks = KickRequest::Requested { at };
        // The wish must be visible before the index is read: the driver stores its index first
        // and reads the wish after (virtio 1.2, 2.7.13.4.1).
        fence(Ordering::SeqCst);
        self.has_available() || self.memory.is_lost()
    }

    /// Whether there is something to pop: one look at the index, nothing is checked. What was seen
    /// once stays available, also if the index goes back.
    pub fn has_available(&self) -> bool {
        self.next_available != self.seen_available
            || !self.pending.is_empty()
            || self.areas.available_index() != self.next_available
    }

    /// How many chains are available, as far as the index says: one look, nothing is checked.
    pub fn available(&self) -> u16 {
        self.areas.available_index().wrapping_sub(self.next_available).min(self.size())
    }

    /// The available index of the next chain to pop (vhost-user, GET_VRING_BASE).
    pub fn base(&self) -> RingBase {
        RingBase(self.next_available.into())
    }

    /// Whether somebody has served the ring before and left it in an in-flight region.
    pub fn is_inherited(&self) -> bool {
        self.origin == RingOrigin::Inherited
    }

    /// How many chains that were in flight before are still to be popped.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// See [`crate::Ring::set_log`].
    pub fn set_log(&mut self, log: Option<RingDirtyLog>) {
        self.marks.set(log);
    }

    /// See [`crate::Ring::marks_buffers`].
    pub fn marks_buffers(&self) -> bool {
        self.marks.wants_buffers()
    }

    /// See [`crate::Ring::mark_buffer`].
    pub fn mark_buffer(&mut self, segment: Segment) {
        self.marks.buffer(&self.memory, segment);
    }

    /// See [`crate::Ring::check_log`].
    pub fn check_log(&self) -> Result<(), RingError> {
        if self.marks.are_lost() { Err(RingError::LogLost) } else { Ok(()) }
    }

    fn check_memory(&self) -> Result<(), RingError> {
        if self.memory.is_lost() {
            return Err(RingError::MemoryLost);
        }
        match &self.tracker {
            Some(tracker) if tracker.is_lost() => Err(InflightFault::Lost.into()),
            Some(_) | None => Ok(()),
        }
    }

    fn set_used_flags(&self, flags: u16) {
        self.areas.set_used_flags(flags);
        self.marks.used(0, 2);
    }

    fn set_available_event(&self, index: u16) {
        let offset = self.areas.set_available_event(index);
        self.marks.used(offset, 2);
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

impl UsedBatch for SplitRing {
    fn is_tracked(&self) -> bool {
        self.tracker.is_some()
    }

    fn link(&mut self) {
        if let Some(tracker) = &mut self.tracker {
            tracker.link();
        }
    }

    fn show(&mut self) {
        self.areas.set_used_index(self.next_used);
        self.published_used = self.next_used;
    }

    fn unmark(&mut self) {
        if let Some(tracker) = &mut self.tracker {
            tracker.unmark();
        }
    }

    fn commit(&mut self) {
        if let Some(tracker) = &mut self.tracker {
            tracker.commit(self.published_used);
        }
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
