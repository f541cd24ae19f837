//! Files of the simulated disk, and channels to them: the ends of stacks in the pure form of the suite, and the disks of its
//! other forms.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use block::{Access, ByteCount, ByteOffset, Clock, DiskSize, Extent, FileId, Node};

use super::stack::{Chosen, Home, Parts, Shape, Subject};
use super::stamp::{SECTOR_BYTES, Stamp};
use super::{index, number};
use crate::rng::Rng;
use crate::simulation::SharedWorld;
use crate::simulation::channel::{ChannelHabits, ChannelNode};
use crate::simulation::child::{FileChild, Life};
use crate::simulation::disk::Disk;
use crate::simulation::kernel::{KernelHabits, KernelMischief};

/// How the bytes of an end are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    AsFile,
    ByChannel,
}

/// A file on the simulated disk as the end of a stack.
#[derive(Clone, Debug)]
pub(super) struct SimulatedEnd {
    pub(super) disk: Arc<Disk>,
    pub(super) world: SharedWorld,
    /// At most so many sectors.
    pub(super) sectors_max: u64,
    /// Its size is a multiple of so many bytes.
    pub(super) block: u32,
    pub(super) reached: Reached,
}

impl Subject for SimulatedEnd {
    fn name(&self) -> &'static str {
        match self.reached {
            Reached::AsFile => "memory",
            Reached::ByChannel => "remote",
        }
    }

    fn choose(&self, rng: &mut Rng, _: &Shape) -> Option<Arc<dyn Chosen>> {
        let ceiling = self.sectors_max >> rng.below(4);
        let size = (1 + rng.below(ceiling)) * number(SECTOR_BYTES);
        let channel =
            (self.reached == Reached::ByChannel).then(|| ChannelHabits::choose(rng, 4096));
        let block = channel.map_or(self.block, |habits| habits.alignment);
        let size = size.next_multiple_of(block.into());
        Some(Arc::new(ChosenEnd { end: self.clone(), channel, size }))
    }
}

#[derive(Debug)]
struct ChosenEnd {
    end: SimulatedEnd,
    channel: Option<ChannelHabits>,
    size: u64,
}

impl Chosen for ChosenEnd {
    fn describe(&self) -> String {
        match self.channel {
            None => format!("{} B in blocks of {}", self.size, self.end.block),
            Some(habits) => format!("{} B, {habits:?}", self.size),
        }
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::File(at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let file = FileId(u32::try_from(parts.file).context("the number of a file")?);
        let SimulatedEnd { disk, world, .. } = &self.end;
        if disk.bytes(file) == 0 {
            let mut content = vec![0; usize::try_from(self.size)?];
            for (sector, bytes) in content.chunks_exact_mut(SECTOR_BYTES).enumerate() {
                Stamp::of_file(parts.file, number(sector)).fill(bytes);
            }
            disk.make(file, &content);
        }
        let child = FileChild {
            name: parts.name.to_owned(),
            disk: Arc::clone(disk),
            file,
            access: Access::ReadWrite,
            discards: true,
            life: Life::new(u64::MAX),
        };
        Ok(match self.channel {
            None => Arc::new(child),
            Some(habits) => {
                Arc::new(ChannelNode::new(child, habits, world, Arc::clone(parts.clock)))
            }
        })
    }
}

/// A kernel whose operations fail one time in so many, or never if that is 0, on a disk whose syncs do not.
pub(super) fn failing_habits(rng: &mut Rng, failures: u64) -> KernelHabits {
    KernelHabits {
        failures,
        sync_failures: 0,
        idle_discards: 2,
        zeroes: !rng.one_in(4),
        mischief: KernelMischief::None,
    }
}

/// These bytes of a disk of so many.
pub(super) fn extent_of(bytes: Range<u64>, size: u64) -> Extent {
    let count = ByteCount(bytes.end - bytes.start);
    let checked = DiskSize(ByteCount(size)).check(ByteOffset(bytes.start), count);
    checked.expect("it lies inside the disk")
}

/// Random bytes, none of which is zero.
pub(super) fn any_content(rng: &mut Rng, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; index(size)];
    rng.fill(&mut bytes);
    bytes.iter_mut().for_each(|byte| *byte |= 1);
    bytes
}

/// A file of the disk, or a channel to it.
pub(super) fn any_end(
    name: &str,
    file: FileId,
    disk: &Arc<Disk>,
    (world, clock): (&SharedWorld, &Arc<dyn Clock>),
    rng: &mut Rng,
) -> Arc<dyn Node> {
    let child = FileChild {
        name: name.to_owned(),
        disk: Arc::clone(disk),
        file,
        access: Access::ReadWrite,
        discards: true,
        life: Life::new(u64::MAX),
    };
    if rng.one_in(3) {
        let habits = ChannelHabits::choose(rng, 4096);
        return Arc::new(ChannelNode::new(child, habits, world, Arc::clone(clock)));
    }
    Arc::new(child)
}
