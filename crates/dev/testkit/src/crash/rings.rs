//! A driver's side of a ring, split or packed, with the strictness of a guest.
//!
//! Invariants: a completion is handed out only for a chain that was offered and not completed yet (`Chains`); anything
//! else is an error that says what the device did.

use anyhow::{Result, bail};

use crate::rawring::{Bells, Piece};

/// The pieces of a chain that stand in a table of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    /// Where it is in the shared memory.
    pub(super) offset: usize,
    /// The same as the device addresses it.
    pub(super) address: u64,
}

/// The features of VIRTIO_F_EVENT_IDX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notification {
    /// Both sides name an index.
    EventIndex,
    /// Both sides have a flag.
    Flags,
}

/// A driver's ring.
pub(super) trait DriverRing: std::fmt::Debug {
    /// Makes a chain available; false if there is no room for it now.
    fn offer(&mut self, slot: u16, pieces: &[Piece], table: Option<Table>) -> Result<bool>;
    /// Whether the device asked for a kick for what was offered since the last call.
    fn wants_kick(&mut self) -> bool;
    /// The slot of the next completed chain.
    fn take_used(&mut self) -> Result<Option<u16>>;
    /// Asks to be interrupted at the next completion. The caller looks for completions once more.
    fn ask_for_call(&mut self);
    /// Asks for no interrupts, as far as the device cares.
    fn refuse_calls(&mut self);
    /// How many completions lie in the ring and were not taken yet.
    fn published(&self) -> usize;
    /// The base that a front end sends which knows only the ring (split), or what it sent before (packed).
    fn base(&self) -> u32;
    /// Takes the base over that the device told when it was stopped in order; it must be where the driver is.
    fn stopped_at(&mut self, base: u32) -> Result<()>;
    /// Offsets of the three areas in the order of SET_VRING_ADDR.
    fn areas(&self) -> [usize; 3];
    /// Descriptors of the ring.
    fn size(&self) -> u16;
    /// Kick and call.
    fn bells(&self) -> &Bells;
    /// Plays a device that completes this chain, whether it is in flight or not.
    #[cfg(test)]
    fn forge_used(&mut self, slot: u16);
}

/// The chains that are in flight: how many descriptors each slot holds.
#[derive(Debug)]
pub(super) struct Chains {
    lengths: Vec<u16>,
}

impl Chains {
    pub(super) fn new(slots: u16) -> Self {
        Self { lengths: vec![0; usize::from(slots)] }
    }

    /// The descriptors of a chain that is in flight.
    pub(super) fn length(&self, slot: u16) -> Option<u16> {
        self.lengths.get(usize::from(slot)).copied().filter(|length| *length > 0)
    }

    /// A chain is in flight from here on.
    pub(super) fn start(&mut self, slot: u16, length: u16) {
        let place = &mut self.lengths[usize::from(slot)];
        assert!(*place == 0 && length > 0, "slot {slot} is free");
        *place = length;
    }

    /// The device says that the chain is completed.
    pub(super) fn end(&mut self, slot: u32) -> Result<(u16, u16)> {
        let found = usize::try_from(slot).ok().and_then(|slot| self.lengths.get_mut(slot));
        match found {
            None => bail!("completion of chain {slot}, which there is not"),
            Some(0) => bail!("completion of chain {slot}, which is not in flight: done twice"),
            Some(length) => {
                let slot = u16::try_from(slot).expect("an index of a list with at most 2^16");
                Ok((slot, std::mem::take(length)))
            }
        }
    }
}

/// Whether `new` has passed the index the other side wants to hear of, coming from `old` (virtio 1.2, section 2.7.10).
pub(super) fn has_passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
