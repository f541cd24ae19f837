//! What split and packed rings have in common, and a ring of either layout.
//!
//! Where it stands in the life of a request: `vhost_user` describes a ring in a [`RingSetup`],
//! `virtio_blk` serves the [`Ring`] that is made of it.
//!
//! Invariants: which layout a ring has is decided once, when it is made; every call looks at that
//! with one comparison.
//! Not here: how a layout works (`split`, `packed`).

mod chain;
mod core;
mod dirty_log;
mod error;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use block::Segment;

use crate::packed::{PackedRing, RingProgress};
use crate::split::SplitRing;
use crate::{Features, GuestMemory, InflightQueue};

pub use chain::{Chain, SEGMENTS_MAX};
pub(crate) use chain::{ChainBuilder, DESCRIPTOR_BYTES, Descriptor, TranslationHints};
pub(crate) use core::RingCore;
pub(crate) use dirty_log::DirtyMarker;
pub use dirty_log::{DirtyLogScope, RingDirtyLog};
pub use error::{Area, ChainProblem, RingError};

/// The largest ring of either layout (virtio 1.2, 2.7 and 2.8.10.1).
pub const RING_SIZE_MAX: u16 = 32768;

/// How a ring lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingLayout {
    /// A table of descriptors and two rings of indices (virtio 1.2, 2.7).
    Split,
    /// One ring of descriptors that both sides write (virtio 1.2, 2.8).
    Packed,
}

impl RingLayout {
    /// The layout that device and driver agreed on.
    pub fn of(features: Features) -> Self {
        if features.contains(Features::RING_PACKED) { Self::Packed } else { Self::Split }
    }
}

impl fmt::Display for RingLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Split => "split",
            Self::Packed => "packed",
        })
    }
}

/// Where a ring lies, in front-end addresses (vhost-user, SET_VRING_ADDR).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingAddresses {
    /// The descriptor table, or the descriptor ring of a packed ring.
    pub descriptors: u64,
    /// The available ring, or the driver's event suppression of a packed ring.
    pub available: u64,
    /// The used ring, or the device's event suppression of a packed ring.
    pub used: u64,
}

/// How far a ring has been served, as SET_VRING_BASE and GET_VRING_BASE carry it (vhost-user,
/// "Vring descriptor indices"). Of a split ring it is the available index of the next chain. Of a
/// packed ring the low half is the slot of the next chain, the high half that of the next used
/// descriptor, each with its wrap counter in bit 15.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingBase(pub u32);

impl RingBase {
    /// Where a ring starts of which nothing has been served.
    pub fn start(layout: RingLayout) -> Self {
        match layout {
            RingLayout::Split => Self(0),
            // Both wrap counters are 1 at first (virtio 1.2, 2.8.1).
            RingLayout::Packed => Self(0x8000_8000),
        }
    }
}

impl fmt::Display for RingBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// All that is needed to serve a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSetup {
    /// Whether VIRTIO_F_RING_PACKED was negotiated.
    pub layout: RingLayout,
    /// The number of descriptors.
    pub size: u16,
    /// Where it lies.
    pub addresses: RingAddresses,
    /// Where to begin (vhost-user, SET_VRING_BASE).
    pub base: RingBase,
    /// Whether VIRTIO_RING_F_EVENT_IDX was negotiated.
    pub event_idx: bool,
    /// Whether VIRTIO_RING_F_INDIRECT_DESC was negotiated.
    pub indirect: bool,
}

impl RingSetup {
    /// Whether the ring has a possible size and lies in this memory, aligned. With
    /// [`RingSetup::check_base`] it says whether [`Ring::new`] would take it. Touches nothing.
    pub fn check(&self, memory: &GuestMemory) -> Result<(), RingError> {
        match self.layout {
            RingLayout::Split => SplitRing::check(memory, self),
            RingLayout::Packed => PackedRing::check(memory, self),
        }
    }

    /// Whether the base is one that a ring of this layout and size can have.
    pub fn check_base(&self) -> Result<(), RingError> {
        match self.layout {
            RingLayout::Split => SplitRing::next_available(self).map(drop),
            RingLayout::Packed => RingProgress::from_base(self).map(drop),
        }
    }
}

/// A popped chain: the head index in a split ring, the buffer id in a packed one; less than the ring size. To be
/// returned with `push_used` of the ring it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Head(pub u16);

/// Whether the guest wants an interrupt for what was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a guest that waits for an interrupt waits for ever without it"]
pub enum Interrupt {
    /// It waits for an interrupt.
    Wanted,
    /// It looks by itself, or there is nothing new.
    Suppressed,
}

/// A ring being served, in the layout that was negotiated.
#[derive(Debug)]
pub struct Ring(LayoutRing);

/// The ring of either layout.
#[derive(Debug)]
enum LayoutRing {
    Split(SplitRing),
    Packed(PackedRing),
}

/// The same for a ring of either layout.
macro_rules! either {
    ($self:ident, $ring:ident => $result:expr) => {
        match &$self.0 {
            LayoutRing::Split($ring) => $result,
            LayoutRing::Packed($ring) => $result,
        }
    };
    (mut $self:ident, $ring:ident => $result:expr) => {
        match &mut $self.0 {
            LayoutRing::Split($ring) => $result,
            LayoutRing::Packed($ring) => $result,
        }
    };
}

impl Ring {
    /// Starts to serve a ring, with kicks requested. The used index of a split ring is taken from the ring itself,
    /// as it was left by whoever served it before (vhost-user, "Starting and stopping rings").
    pub fn new(memory: Arc<GuestMemory>, setup: RingSetup) -> Result<Self, RingError> {
        Self::at_base(memory, setup)?.begin()
    }

    /// Starts to serve a ring that is tracked in an in-flight region. If the region was used
    /// before, it decides where the ring goes on, not the base; what is in flight there comes out
    /// of [`Ring::pop`] first.
    pub fn tracked(
        memory: Arc<GuestMemory>,
        setup: RingSetup,
        inflight: &InflightQueue,
    ) -> Result<Self, RingError> {
        let mut ring = Self::at_base(memory, setup)?;
        either!(mut ring, ring => ring.track(inflight)?);
        ring.begin()
    }

    /// A ring that goes on at its base and was not touched yet.
    fn at_base(memory: Arc<GuestMemory>, setup: RingSetup) -> Result<Self, RingError> {
        Ok(Self(match setup.layout {
            RingLayout::Split => LayoutRing::Split(SplitRing::at_base(memory, &setup)?),
            RingLayout::Packed => LayoutRing::Packed(PackedRing::at_base(memory, &setup)?),
        }))
    }

    fn begin(mut self) -> Result<Self, RingError> {
        if let LayoutRing::Split(ring) = &self.0 {
            ring.set_used_flags(0);
        }
        // Chains that wait already are seen by the caller's first pop.
        let _waiting = self.request_kicks();
        either!(self, ring => ring.core.check_memory()?);
        Ok(self)
    }

    /// Whether somebody has served the ring before and left it in an in-flight region. The guest
    /// may wait for an interrupt that never came.
    pub fn is_inherited(&self) -> bool {
        either!(self, ring => ring.core.is_inherited)
    }

    /// How many chains that were in flight before are still to be popped.
    pub fn pending(&self) -> usize {
        either!(self, ring => ring.core.pending.len())
    }

    /// The number of descriptors.
    pub fn size(&self) -> u16 {
        either!(self, ring => ring.size())
    }

    /// Takes the next available chain, if there is one, and puts its memory in `chain`, which is
    /// cleared first. After an error the ring must not be served any further.
    pub fn pop(&mut self, chain: &mut Chain) -> Result<Option<Head>, RingError> {
        chain.clear();
        either!(mut self, ring => {
            let popped = match ring.core.pending.pop() {
                None => ring.pop(chain),
                Some(pending) => ring.pop_pending(&pending, chain).map(Some),
            };
            // Lost memory reads as zero, which can look like anything.
            ring.core.check_memory()?;
            popped
        })
    }

    /// Stages the completion of a popped chain; `written` is the number of bytes written to its
    /// memory from the start. The driver sees it after [`Ring::publish`].
    ///
    /// Panics if the chain is not in flight: a request was completed twice.
    pub fn push_used(&mut self, head: Head, written: u32) {
        either!(mut self, ring => ring.push_used(head, written));
    }

    /// Shows the driver all that was staged, and says whether it wants an interrupt for it.
    pub fn publish(&mut self) -> Interrupt {
        let is_wanted = either!(mut self, ring => ring.publish());
        if is_wanted { Interrupt::Wanted } else { Interrupt::Suppressed }
    }

    /// Asks the driver not to kick, as long as the caller looks by itself. A hint: kicks may still
    /// come.
    pub fn suppress_kicks(&mut self) {
        either!(mut self, ring => ring.suppress_kicks());
    }

    /// Asks the driver to kick for the next chain. `true` if chains have arrived meanwhile, for
    /// which no kick may come: the caller must pop again. Also if memory is lost: `pop` says so.
    #[must_use = "chains that arrived meanwhile come without a kick"]
    pub fn request_kicks(&mut self) -> bool {
        either!(mut self, ring => {
            ring.request_kicks();
            // The wish must be visible before the ring is read: the driver stores its index or flags first and
            // reads the wish after (virtio 1.2, 2.7.13.4.1 and 2.8.21.3.1).
            fence(Ordering::SeqCst);
            ring.has_available() || ring.core.memory.is_lost()
        })
    }

    /// Whether there is something to pop: one look, nothing is checked.
    pub fn has_available(&self) -> bool {
        either!(self, ring => ring.has_available())
    }

    /// How many chains are available, as far as one look tells: of a packed ring at most one.
    pub fn available(&self) -> u16 {
        match &self.0 {
            LayoutRing::Split(ring) => ring.available(),
            LayoutRing::Packed(ring) => ring.has_available().into(),
        }
    }

    /// How far it has been served (vhost-user, GET_VRING_BASE).
    pub fn base(&self) -> RingBase {
        either!(self, ring => ring.base())
    }

    /// Marks in this log from now on what the device writes; nothing without one. The log must have
    /// been made for this ring and its memory. Before the old log is given up all that was staged
    /// must be published.
    pub fn set_log(&mut self, log: Option<RingDirtyLog>) {
        either!(mut self, ring => ring.core.marks.set(log));
    }

    /// Whether [`Ring::mark_buffer`] marks anything.
    pub fn marks_buffers(&self) -> bool {
        either!(self, ring => ring.core.marks.wants_buffers())
    }

    /// Marks memory of a popped chain that was written. To be done before the chain is returned.
    pub fn mark_buffer(&mut self, segment: Segment) {
        either!(mut self, ring => ring.core.marks.buffer(&ring.core.memory, segment));
    }

    /// Whether marks can still be set; an error says that some were lost, and the ring must not be
    /// served any further.
    pub fn check_log(&self) -> Result<(), RingError> {
        let is_lost = either!(self, ring => ring.core.marks.are_lost());
        if is_lost { Err(RingError::LogLost) } else { Ok(()) }
    }
}
