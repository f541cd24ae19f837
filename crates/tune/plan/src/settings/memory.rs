//! What the buffers of a load take: of the memory of each guest, and of that of this host.

use anyhow::{Result, bail};
use guest::MEMORY_MIB_MIN;

use super::Settings;
use crate::cell::Cell;
use crate::variant::Variant;

/// The memory of a guest: fio with many jobs, and the initramfs it runs from.
pub const MEMORY: u64 = 1 << 30;
/// What is kept of it for all but the buffers of the load, at least.
pub const BESIDE_BUFFERS: u64 = 256 << 20;

impl Settings {
    /// Refuses guests whose memory is too small for the buffers of the load on their disks.
    ///
    /// # Errors
    /// What they take, and how much memory is enough.
    pub(super) fn check_buffers(&self) -> Result<()> {
        let memory = u64::from(self.guest.memory_mib) << 20;
        let buffers = self.buffer_bytes().saturating_mul(self.disks_max().into());
        if self.boots_guests() && memory < buffers.saturating_add(BESIDE_BUFFERS / 2) {
            bail!(
                "--memory: the buffers of the load on the disks of a guest take {}M: give it {}M or more, or take a \
                 smaller --bs, --iodepth or --disks",
                buffers >> 20,
                (buffers + BESIDE_BUFFERS).div_ceil(1 << 20)
            );
        }
        Ok(())
    }

    /// Refuses what this host has no memory for: the buffers of the load on all disks, with the guests that have them.
    ///
    /// # Errors
    /// What is needed, and what there is.
    pub fn check_memory(&self, memory_kib: u64) -> Result<()> {
        let most =
            |number: fn(&Variant) -> u16| self.variants.iter().map(number).max().unwrap_or(1);
        let buffers = self.buffer_bytes().saturating_mul(most(Variant::disks_in_all).into());
        let beside = if self.boots_guests() {
            u64::from(most(|it| it.vms)) * (u64::from(MEMORY_MIB_MIN) << 20)
        } else {
            0
        };
        let (needed, there) = (buffers.saturating_add(beside) >> 20, memory_kib >> 10);
        if memory_kib > 0 && needed > there {
            bail!(
                "the buffers of the load on all disks, and guests, need {needed}M of memory, and this host has {there}M: \
                 take a smaller --bs or --iodepth, or fewer --vms or --disks"
            );
        }
        Ok(())
    }

    /// What all jobs keep in flight on one disk, in the cell where that is most.
    fn buffer_bytes(&self) -> u64 {
        buffer_bytes(&self.cells, (&self.bs, &self.jobs, &self.iodepth))
    }
}

/// What all jobs keep in flight on one disk, in the cell where that is most; of lists all combinations are measured.
pub fn buffer_bytes(cells: &[Cell], (bs, jobs, iodepth): (&[u32], &[u16], &[u16])) -> u64 {
    let of =
        |bs: u32, jobs: u16, iodepth: u16| u64::from(bs) * u64::from(jobs) * u64::from(iodepth);
    let of_cell = |cell: &Cell| {
        let shape = cell.shape();
        of(shape.block().get(), shape.jobs(), shape.iodepth())
    };
    let most = |numbers: &[u16]| numbers.iter().copied().max().unwrap_or(1);
    let of_lists = of(bs.iter().copied().max().unwrap_or(0), most(jobs), most(iodepth));
    cells.iter().map(of_cell).max().unwrap_or(of_lists)
}
