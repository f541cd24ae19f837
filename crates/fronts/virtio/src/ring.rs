//! What split and packed rings have in common, and a ring of either layout.
//!
//! Where it stands in the life of a request: `vhost_user` describes a ring in a [`RingSetup`],
//! `virtio_blk` serves the [`Ring`] that is made of it.
//!
//! Invariants: which layout a ring has is decided once, when it is made; every call looks at that
//! with one comparison.
//! Not here: how a layout works (`split`, `packed`).

mod chain;
mod dirty_log;
mod error;
mod publish;

use std::fmt;
use std::sync::Arc;

use block::Segment;

use crate::{Features, GuestMemory, InflightQueue, PackedRing, SplitRing, packed, split};

pub use chain::{Chain, SEGMENTS_MAX};
pub(crate) use chain::{ChainBuilder, DESCRIPTOR_BYTES, TranslationHints, table_entries};
pub(crate) use dirty_log::DirtyMarker;
pub use dirty_log::{DirtyLogScope, RingDirtyLog};
pub use error::{Area, RingError};
pub(crate) use publish::{UsedBatch, publish};

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
            RingLayout::Split => split::check(memory, self),
            RingLayout::Packed => packed::check(memory, self),
        }
    }

    /// Whether the base is one that a ring of this layout and size can have.
    pub fn check_base(&self) -> Result<(), RingError> {
        match self.layout {
            RingLayout::Split => split::next_available(self).map(|_next| ()),
            RingLayout::Packed => packed::progress(self).map(|_progress| ()),
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

/// Whether a ring starts at its base, or resumes from an in-flight region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingOrigin {
    /// Nobody, as far as is known.
    Base,
    /// Somebody who left it in an in-flight region.
    Inherited,
}

/// A ring being served, in the layout that was negotiated. See [`SplitRing`] and [`PackedRing`]
/// for what the methods promise; both promise the same.
#[derive(Debug)]
pub enum Ring {
    /// A split ring.
    Split(SplitRing),
    /// A packed ring.
    Packed(PackedRing),
}

impl Ring {
    /// Starts to serve a ring, with kicks requested.
    pub fn new(memory: Arc<GuestMemory>, setup: RingSetup) -> Result<Self, RingError> {
        Ok(match setup.layout {
            RingLayout::Split => Self::Split(SplitRing::new(memory, setup)?),
            RingLayout::Packed => Self::Packed(PackedRing::new(memory, setup)?),
        })
    }

    /// Starts to serve a ring that is tracked in an in-flight region. If the region was used
    /// before, it decides where the ring goes on, not the base; what is in flight there comes out
    /// of [`Ring::pop`] first.
    pub fn tracked(
        memory: Arc<GuestMemory>,
        setup: RingSetup,
        inflight: &InflightQueue,
    ) -> Result<Self, RingError> {
        Ok(match setup.layout {
            RingLayout::Split => Self::Split(SplitRing::tracked(memory, setup, inflight)?),
            RingLayout::Packed => Self::Packed(PackedRing::tracked(memory, setup, inflight)?),
        })
    }

    /// Whether somebody has served the ring before and left it in an in-flight region. The guest
    /// may wait for an interrupt that never came.
    pub fn is_inherited(&self) -> bool {
        match self {
            Self::Split(ring) => ring.is_inherited(),
            Self::Packed(ring) => ring.is_inherited(),
        }
    }

    /// How many chains that were in flight before are still to be popped.
    pub fn pending(&self) -> usize {
        match self {
            Self::Split(ring) => ring.pending(),
            Self::Packed(ring) => ring.pending(),
        }
    }

    /// The number of descriptors.
    pub fn size(&self) -> u16 {
        match self {
            Self::Split(ring) => ring.size(),
            Self::Packed(ring) => ring.size(),
        }
    }

    /// Takes the next available chain, if there is one, and puts its memory in `chain`, which is
    /// cleared first. After an error the ring must not be served any further.
    pub fn pop(&mut self, chain: &mut Chain) -> Result<Option<Head>, RingError> {
        match self {
            Self::Split(ring) => ring.pop(chain),
            Self::Packed(ring) => ring.pop(chain),
        }
    }

    /// Stages the completion of a popped chain. Panics if it is not in flight.
    pub fn push_used(&mut self, head: Head, written: u32) {
        match self {
            Self::Split(ring) => ring.push_used(head, written),
            Self::Packed(ring) => ring.push_used(head, written),
        }
    }

    /// Shows the driver all that was staged, and says whether it wants an interrupt for it.
    pub fn publish(&mut self) -> Interrupt {
        match self {
            Self::Split(ring) => ring.publish(),
            Self::Packed(ring) => ring.publish(),
        }
    }

    /// Asks the driver not to kick, as long as the caller looks by itself.
    pub fn suppress_kicks(&mut self) {
        match self {
            Self::Split(ring) => ring.suppress_kicks(),
            Self::Packed(ring) => ring.suppress_kicks(),
        }
    }

    /// Asks the driver to kick for the next chain. `true` if the caller must pop again.
    #[must_use = "chains that arrived meanwhile come without a kick"]
    pub fn request_kicks(&mut self) -> bool {
        match self {
            Self::Split(ring) => ring.request_kicks(),
            Self::Packed(ring) => ring.request_kicks(),
        }
    }

    /// Whether there is something to pop: one look, nothing is checked.
    pub fn has_available(&self) -> bool {
        match self {
            Self::Split(ring) => ring.has_available(),
            Self::Packed(ring) => ring.has_available(),
        }
    }

    /// How many chains are available, as far as one look tells: of a packed ring at most one.
    pub fn available(&self) -> u16 {
        match self {
            Self::Split(ring) => ring.available(),
            Self::Packed(ring) => ring.has_available().into(),
        }
    }

    /// How far it has been served (vhost-user, GET_VRING_BASE).
    pub fn base(&self) -> RingBase {
        match self {
            Self::Split(ring) => ring.base(),
            Self::Packed(ring) => ring.base(),
        }
    }

    /// Marks in this log from now on what the device writes; nothing without one. The log must have
    /// been made for this ring and its memory. Before the old log is given up all that was staged
    /// must be published.
    pub fn set_log(&mut self, log: Option<RingDirtyLog>) {
        match self {
            Self::Split(ring) => ring.set_log(log),
            Self::Packed(ring) => ring.set_log(log),
        }
    }

    /// Whether [`Ring::mark_buffer`] marks anything.
    pub fn marks_buffers(&self) -> bool {
        match self {
            Self::Split(ring) => ring.marks_buffers(),
            Self::Packed(ring) => ring.marks_buffers(),
        }
    }

    /// Marks memory of a popped chain that was written. To be done before the chain is returned.
    pub fn mark_buffer(&mut self, segment: Segment) {
        match self {
            Self::Split(ring) => ring.mark_buffer(segment),
            Self::Packed(ring) => ring.mark_buffer(segment),
        }
    }

    /// Whether marks can still be set; an error says that some were lost, and the ring must not be
    /// served any further.
    pub fn check_log(&self) -> Result<(), RingError> {
        match self {
            Self::Split(ring) => ring.check_log(),
            Self::Packed(ring) => ring.check_log(),
        }
    }
}
