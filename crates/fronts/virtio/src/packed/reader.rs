//! From a chain of a packed ring to the memory it names.
//!
//! Invariants: a descriptor is copied once and checked after; a chain is no longer than the part of
//! the ring that the driver may write, so it ends.

use super::areas::PackedAreas;
use crate::inflight::PackedTracker;
use crate::ring::{Chain, ChainBuilder, ChainProblem, Descriptor};

/// Reads a chain's descriptors and gathers the memory that they name.
pub(super) struct PackedChainReader<'a> {
    pub(super) areas: &'a PackedAreas,
    pub(super) builder: ChainBuilder<'a>,
    /// Gets a copy of every descriptor of the ring.
    pub(super) tracker: Option<&'a mut PackedTracker>,
    /// How many descriptors the driver can have made available.
    pub(super) free: u16,
}

/// The buffer id of a chain, and how many descriptors of the ring it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChainSpan {
    /// The driver's name for it.
    pub(super) id: u16,
    /// How many descriptors it has, from 1 on.
    pub(super) descriptors: u16,
}

impl PackedChainReader<'_> {
    /// Adds the memory of the chain that begins in `slot` to `chain`. `flags` are those of its first descriptor, by which
    /// it was found available.
    pub(super) fn read(
        mut self,
        mut slot: u16,
        flags: u16,
        chain: &mut Chain,
    ) -> Result<ChainSpan, ChainProblem> {
        let (areas, free) = (self.areas, self.free);
        let mut tracker = self.tracker.take();
        if let Some(tracker) = &mut tracker {
            tracker.begin_chain();
        }
        self.gather(chain, |place| {
            if place == free {
                return Err(ChainProblem::TooLong { free });
            }
            let mut descriptor = Descriptor::packed(areas.descriptor(slot));
            if place == 0 {
                // What was checked counts, not what stands there now.
                descriptor.flags = flags;
            }
            if let Some(tracker) = &mut tracker {
                tracker.copy(descriptor);
            }
            slot = if slot + 1 == areas.size() { 0 } else { slot + 1 };
            Ok(descriptor)
        })
    }

    /// Adds the memory of a chain that was copied while it was in flight before. The ring has not
    /// got it any more.
    pub(super) fn read_saved(
        mut self,
        saved: &[Descriptor],
        chain: &mut Chain,
    ) -> Result<(), ChainProblem> {
        let descriptors = u16::try_from(saved.len()).expect("at most the ring size");
        let too_long = ChainProblem::TooLong { free: descriptors };
        let read =
            self.gather(chain, |place| saved.get(usize::from(place)).copied().ok_or(too_long))?;
        if read.descriptors == descriptors { Ok(()) } else { Err(too_long) }
    }

    /// Adds the memory of a chain whose descriptors `fetch` gives, counted from 0.
    fn gather(
        &mut self,
        chain: &mut Chain,
        mut fetch: impl FnMut(u16) -> Result<Descriptor, ChainProblem>,
    ) -> Result<ChainSpan, ChainProblem> {
        let mut descriptors = 0;
        loop {
            let descriptor = fetch(descriptors)?;
            descriptors += 1;
            // The last descriptor has the chain's id (virtio 1.2, 2.8.6).
            let span = ChainSpan { id: descriptor.next_or_id, descriptors };
            if descriptor.is_indirect() {
                return self.read_table(descriptor, span, chain);
            }
            self.builder.add(descriptor, chain)?;
            if !descriptor.has_next() {
                return Ok(span);
            }
        }
    }

    /// A chain has plain descriptors only or is one indirect one. In the table the writable flag
    /// is the only one that counts, and all descriptors belong to the chain (virtio 1.2, 2.8.7).
    fn read_table(
        &mut self,
        indirect: Descriptor,
        span: ChainSpan,
        chain: &mut Chain,
    ) -> Result<ChainSpan, ChainProblem> {
        let mixed = (span.descriptors != 1).then_some(ChainProblem::IndirectMixed);
        for index in 0..self.builder.table_entries(indirect, mixed)? {
            let bytes = self.builder.table_entry(indirect.address, index)?;
            self.builder.add(Descriptor::packed(bytes), chain)?;
        }
        Ok(span)
    }
}
