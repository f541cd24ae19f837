//! The driver's side of a split ring (virtio 1.2, section 2.7).
//!
//! Invariants: slot n owns the descriptors from n × `CHAIN_MAX` on, so a chain always finds room.

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::rings::{Chains, DriverRing, Notification, Table, has_passed};
use crate::memory::SharedMemory;
use crate::rawring::ring::chain;
use crate::rawring::{Bells, Descriptor, Piece, RawRing, flag};

/// Descriptors of a slot.
const CHAIN_MAX: u16 = 4;

#[derive(Debug)]
pub(super) struct SplitRing {
    ring: RawRing,
    memory: Arc<SharedMemory>,
    chains: Chains,
    notification: Notification,
    available_next: u16,
    /// Where `available_next` was when a kick was last thought about.
    considered: u16,
}

impl SplitRing {
    /// A ring for so many slots in the memory from `offset` on, a multiple of 4096.
    pub(super) fn new(
        memory: &Arc<SharedMemory>,
        offset: usize,
        slots: u16,
        notification: Notification,
    ) -> Result<Self> {
        let size = (slots * CHAIN_MAX).next_power_of_two();
        let ring = RawRing::new(memory, offset, size)?;
        let (memory, chains) = (Arc::clone(memory), Chains::new(slots));
        Ok(Self { ring, memory, chains, notification, available_next: 0, considered: 0 })
    }

    /// Bytes a ring of so many slots needs at most.
    pub(super) fn room(slots: u16) -> usize {
        RawRing::room((slots * CHAIN_MAX).next_power_of_two()).next_multiple_of(4096)
    }
}

impl DriverRing for SplitRing {
    fn offer(&mut self, slot: u16, pieces: &[Piece], table: Option<Table>) -> Result<bool> {
        let head = slot * CHAIN_MAX;
        if let Some(table) = table {
            let bytes: Vec<u8> = chain(0, pieces).iter().flat_map(Descriptor::bytes).collect();
            self.memory.write(table.offset, &bytes);
            let length = u32::try_from(bytes.len())?;
            let piece = Piece { address: table.address, length, flags: flag::INDIRECT };
            self.ring.set_chain(head, &[piece]);
        } else {
            ensure!(pieces.len() <= usize::from(CHAIN_MAX), "a chain of {}", pieces.len());
            self.ring.set_chain(head, pieces);
        }
        self.chains.start(slot, 1);
        self.ring.offer(head);
        self.available_next = self.available_next.wrapping_add(1);
        Ok(true)
    }

    fn wants_kick(&mut self) -> bool {
        let (new, old) = (self.available_next, self.considered);
        self.considered = new;
        new != old
            && match self.notification {
                Notification::EventIndex => has_passed(self.ring.available_event(), new, old),
                Notification::Flags => self.ring.used_flags() & 1 == 0,
            }
    }

    fn take_used(&mut self) -> Result<Option<u16>> {
        let Some(used) = self.ring.take_used() else { return Ok(None) };
        let head = used.head;
        ensure!(head.is_multiple_of(CHAIN_MAX.into()), "completion of head {head}, never offered");
        let (slot, _) = self.chains.end(head / u32::from(CHAIN_MAX))?;
        Ok(Some(slot))
    }

    fn ask_for_call(&mut self) {
        match self.notification {
            Notification::EventIndex => self.ring.set_used_event(self.ring.used_next()),
            Notification::Flags => {
                self.ring.set_available_flags(0);
                std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            }
        }
    }

    fn refuse_calls(&mut self) {
        if self.notification == Notification::Flags {
            self.ring.set_available_flags(1);
        }
    }

    fn published(&self) -> usize {
        self.ring.used_index().wrapping_sub(self.ring.used_next()).into()
    }

    /// What QEMU restores when the back end is gone: the index in the used ring.
    fn base(&self) -> u32 {
        self.ring.used_index().into()
    }

    fn stopped_at(&mut self, base: u32) -> Result<()> {
        let used = self.ring.used_index();
        ensure!(base == u32::from(used), "drained to {used}, but stopped at {base}");
        Ok(())
    }

    fn areas(&self) -> [usize; 3] {
        self.ring.offsets()
    }

    fn size(&self) -> u16 {
        self.ring.size()
    }

    fn bells(&self) -> &Bells {
        self.ring.bells()
    }

    #[cfg(test)]
    fn forge_used(&mut self, slot: u16) {
        let [_, used, _] = self.ring.offsets();
        let index = self.ring.used_index();
        let place = used + 4 + usize::from(index % self.ring.size()) * 8;
        let head = u32::from(slot * CHAIN_MAX);
        self.memory.write(place, &head.to_le_bytes());
        self.memory.store_u16(used + 2, index.wrapping_add(1));
    }
}
