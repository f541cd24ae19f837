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
use std::sync::atomic::{Ordering, fence};

use block::Segment;

use crate::fault_point::{FaultPoint, reached};
use crate::inflight::{PackedRecovery, PackedTracker, SavedChain};
use crate::ring::{
    Chain, ChainBuilder, DirtyMarker, Head, Interrupt, RingBase, RingDirtyLog, RingError,
    RingOrigin, RingSetup, TranslationHints, UsedBatch, publish,
};
use crate::{GuestMemory, InflightFault, InflightQueue};
use areas::{Areas, EventSuppression};
use position::{Position, RingProgress};
use reader::{ChainReader, ChainSpan};

/// Whether, and from which position on, the driver shall kick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KickRequest {
    /// For the first chain from this position on.
    Requested { at: Position },
    /// It should not.
    Suppressed,
}

/// Whether a packed ring can lie where it is said to. Touches nothing.
pub(crate) fn check(memory: &GuestMemory, setup: &RingSetup) -> Result<(), RingError> {
    Areas::find(memory, &setup.addresses, setup.size).map(|_found| ())
}

/// How far the ring has been served.
pub(crate) fn progress(setup: &RingSetup) -> Result<RingProgress, RingError> {
    RingProgress::from_base(setup.base, setup.size)
}

/// The device side of a packed virtqueue.
#[derive(Debug)]
pub struct PackedRing {
    areas: Areas,
    memory: Arc<GuestMemory>,
    hits: TranslationHints,
    marks: DirtyMarker,
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
    tracker: Option<PackedTracker>,
    /// Chains that were in flight when somebody else served the ring, the oldest last.
    pending: Vec<SavedChain>,
    origin: RingOrigin,
    /// Descriptors from `published_used` to `next_available`.
    held: u16,
    kicks: KickRequest,
    /// Whether an interrupt was decided upon since the start. The first is always wanted: who
    /// served the ring before may have left the driver waiting.
    decided: bool,
    event_idx: bool,
    indirect: bool,
}

impl PackedRing {
    /// Starts to serve a ring, with kicks requested.
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
        let areas = &ring.areas;
        let is_available =
            |at| Position::from(at).is_available(areas.flags(Position::from(at).slot));
        let start = ring.published_used.into();
        let (tracker, past) = PackedTracker::open(inflight, setup.size, start, is_available)?;
        // What was decided by lost memory counts for nothing.
        ring.check_memory()?;
        ring.tracker = Some(tracker);
        if let Some(past) = past {
            ring.inherit(past);
        }
        ring.begin()?;
        Ok(ring)
    }

    /// A ring that goes on at its base and was not touched yet.
    fn at_base(memory: Arc<GuestMemory>, setup: RingSetup) -> Result<Self, RingError> {
        let areas = Areas::find(&memory, &setup.addresses, setup.size)?;
        let progress = progress(&setup)?;
        Ok(Self {
            in_flight: vec![0; usize::from(setup.size)].into_boxed_slice(),
            areas,
            memory,
            hits: TranslationHints::default(),
            marks: DirtyMarker::default(),
            next_available: progress.available,
            next_used: progress.used,
            published_used: progress.used,
            staged_flags: None,
            staged: 0,
            tracker: None,
            pending: Vec::new(),
            origin: RingOrigin::Base,
            held: progress.held,
            kicks: KickRequest::Suppressed,
            decided: false,
            event_idx: setup.event_idx,
            indirect: setup.indirect,
        })
    }

    /// Goes on where somebody else was killed: whatever was popped is either used or in flight.
    fn inherit(&mut self, past: PackedRecovery) {
        let size = self.size();
        self.published_used = past.used.into();
        self.next_used = self.published_used;
        self.held = 0;
        for saved in &past.chains {
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
        self.pending = past.chains;
        self.origin = RingOrigin::Inherited;
    }

    fn begin(&mut self) -> Result<(), RingError> {
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
        let start = self.next_available;
        let flags = self.areas.flags(start.slot);
        if !start.is_available(flags) {
            return Ok(None);
        }
        let span = self.reader().read(flags, chain)?;
        self.claim(span)?;
        self.next_available = start.after(span.descriptors, self.size());
        reached(FaultPoint::Popped);
        if let Some(tracker) = &mut self.tracker {
            tracker.mark(span.id);
            reached(FaultPoint::Marked);
        }
        Ok(Some(Head(span.id)))
    }

    /// Hands out a chain that is in flight and marked already.
    #[cold]
    fn pop_pending(&mut self, chain: &mut Chain) -> Result<Option<Head>, RingError> {
        let Some(saved) = self.pending.pop() else { return Ok(None) };
        self.reader().read_saved(&saved.descriptors, chain)?;
        Ok(Some(Head(saved.id)))
    }

    #[inline]
    fn reader(&mut self) -> ChainReader<'_> {
        let head = self.next_available.slot;
        ChainReader {
            areas: &self.areas,
            gather: ChainBuilder { memory: &self.memory, hits: &mut self.hits, head },
            tracker: self.tracker.as_mut(),
            indirect: self.indirect,
            free: self.areas.size() - self.held,
        }
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

    /// Stages the completion of a popped chain; `written` is the number of bytes written to its
    /// memory from the start. The driver sees it after [`PackedRing::publish`].
    ///
    /// Panics if the chain is not in flight: a request was completed twice.
    pub fn push_used(&mut self, head: Head, written: u32) {
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
        if let Some(tracker) = &mut self.tracker {
            tracker.stage(head.0);
        }
    }

    /// Shows the driver all that was staged, and says whether it wants an interrupt for it.
    pub fn publish(&mut self) -> Interrupt {
        if self.staged_flags.is_none() {
            return Interrupt::Suppressed;
        }
        let first_slot = self.published_used.slot;
        publish(self);
        let passed = std::mem::take(&mut self.staged);
        self.marks.slots(first_slot, passed, self.size());
        self.held -= passed;
        // The descriptors must be visible before the driver's wish is read: the driver writes its
        // wish first and looks at the descriptors after (virtio 1.2, 2.8.22).
        fence(Ordering::SeqCst);
        let first = !std::mem::replace(&mut self.decided, true);
        let wanted = match self.areas.driver_events() {
            EventSuppression::None => false,
            EventSuppression::At(event) if self.event_idx => {
                first || self.published_used.has_passed(event, passed, self.size())
            }
            EventSuppression::All | EventSuppression::At(_) => true,
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
        // A driver that has passed the event passes it again only after two rounds: nothing to
        // write.
        if !self.event_idx || !at.is_available(self.areas.flags(at.slot)) {
            self.set_device_events(EventSuppression::None);
        }
    }

    /// Asks the driver to kick for the next chain. `true` if chains have arrived meanwhile, for
    /// which no kick may come: the caller must pop again. Also if memory is lost: `pop` says so.
    #[must_use = "chains that arrived meanwhile come without a kick"]
    pub fn request_kicks(&mut self) -> bool {
        let at = self.next_available;
        if self.event_idx {
            if self.kicks != (KickRequest::Requested { at }) {
                self.set_device_events(EventSuppression::At(at));
            }
        } else if self.kicks == KickRequest::Suppressed {
            self.set_device_events(EventSuppression::All);
        }
        self.kicks = KickRequest::Requested { at };
        // The wish must be visible before the flags are read: the driver stores its flags first
        // and reads the wish after (virtio 1.2, 2.8.21.3.1).
        fence(Ordering::SeqCst);
        self.has_available() || self.memory.is_lost()
    }

    /// Whether there is something to pop: one look at the flags, nothing is checked.
    pub fn has_available(&self) -> bool {
        let at = self.next_available;
        at.is_available(self.areas.flags(at.slot)) || !self.pending.is_empty()
    }

    /// Whether somebody has served the ring before and left it in an in-flight region.
    pub fn is_inherited(&self) -> bool {
        self.origin == RingOrigin::Inherited
    }

    /// How many chains that were in flight before are still to be popped.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Where the next chain and the next used descriptor are (vhost-user, GET_VRING_BASE).
    pub fn base(&self) -> RingBase {
        let [available, used] = [self.next_available, self.published_used].map(Position::to_bits);
        RingBase(u32::from(available) | u32::from(used) << 16)
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

    fn set_device_events(&self, events: EventSuppression) {
        self.areas.set_device_events(events);
        self.marks.used(0, 4);
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
}

impl UsedBatch for PackedRing {
    fn is_tracked(&self) -> bool {
        self.tracker.is_some()
    }

    fn link(&mut self) {
        if let Some(tracker) = &mut self.tracker {
            tracker.link(self.next_used.into());
        }
    }

    fn show(&mut self) {
        let flags = self.staged_flags.take().expect("`publish` has looked");
        self.areas.publish_flags(self.published_used.slot, flags);
        self.published_used = self.next_used;
    }

    fn unmark(&mut self) {
        if let Some(tracker) = &mut self.tracker {
            tracker.unmark();
        }
    }

    fn commit(&mut self) {
        if let Some(tracker) = &mut self.tracker {
            tracker.commit();
        }
    }
}
