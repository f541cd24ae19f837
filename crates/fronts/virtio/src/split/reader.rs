//! From a descriptor chain of a split ring to the memory it names.
//!
//! Invariants: a descriptor is copied once and checked after; a chain visits no more descriptors
//! than its table has, so a loop ends.

use super::areas::SplitAreas;
use crate::ring::{Chain, ChainBuilder, ChainProblem, Descriptor};

/// Reads a chain's descriptors and gathers the memory that they name.
pub(super) struct SplitChainReader<'a> {
    pub(super) areas: &'a SplitAreas,
    pub(super) builder: ChainBuilder<'a>,
}

/// Which table a chain's descriptors come from: the ring's own, or an indirect one at this address.
#[derive(Clone, Copy)]
struct DescriptorTable {
    indirect: Option<u64>,
    entries: u16,
}

impl SplitChainReader<'_> {
    /// Adds the memory of the chain that begins at `head` to `chain`.
    pub(super) fn read(mut self, head: u16, chain: &mut Chain) -> Result<(), ChainProblem> {
        let mut table = DescriptorTable { indirect: None, entries: self.areas.size() };
        let mut index = head;
        let mut visited = 0;
        loop {
            let descriptor = self.descriptor(table, index)?;
            if visited == table.entries {
                return Err(ChainProblem::Loop { entries: table.entries });
            }
            visited += 1;
            if descriptor.is_indirect() {
                // Zero or more plain descriptors may precede one indirect descriptor, which is the last (virtio
                // 1.2, 2.7.5.3).
                let nested = table.indirect.map(|_| ChainProblem::IndirectNested);
                let entries = self.builder.table_entries(descriptor, nested)?;
                table = DescriptorTable { indirect: Some(descriptor.address), entries };
                (index, visited) = (0, 0);
                continue;
            }
            self.builder.add(descriptor, chain)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            index = descriptor.next_or_id;
        }
    }

    fn descriptor(
        &mut self,
        table: DescriptorTable,
        index: u16,
    ) -> Result<Descriptor, ChainProblem> {
        if index >= table.entries {
            return Err(ChainProblem::DescriptorOutOfRange { index, entries: table.entries });
        }
        Ok(Descriptor::split(match table.indirect {
            None => self.areas.descriptor(index),
            Some(address) => self.builder.table_entry(address, index)?,
        }))
    }
}
