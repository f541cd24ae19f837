//! The files and channels of an iothread, for those who carry pieces out on either.
//!
//! Where it stands in the life of a request: `submit`, `bounce_transfer` and the syncs begin operations here, which end
//! as events of the kernel or of the channels.

use block::{
    ByteCount, ByteOffset, ChannelId, DiskSize, Durability, Extent, Medium, Operation, Segment,
    StorageId, Tag,
};
use kernel_io::{BounceBuffer, DiscardOrZeroGoal, EngineKernel};

use crate::channels::Channels;
use crate::io_request::IoRequest;

/// The two ways of an iothread to storage: kernel files and channels.
#[derive(Debug)]
pub(crate) struct FileAndChannelBackends<'a, K> {
    pub(crate) kernel: &'a mut K,
    pub(crate) channels: &'a mut Channels,
}

impl<K: EngineKernel> FileAndChannelBackends<'_, K> {
    /// What does not depend on the kind of storage.
    pub(crate) fn medium(&mut self, storage: StorageId) -> &Medium {
        match storage {
            StorageId::File(file) => self.kernel.medium(file),
            StorageId::Channel(channel) => self.channels.medium(channel),
        }
    }

    /// Whether the memory of a request may be lent to it. If not, it is given memory of the engine.
    pub(crate) fn takes_guest_memory(&self, storage: StorageId) -> bool {
        match storage {
            StorageId::File(_) => true,
            StorageId::Channel(channel) => self.channels.takes_guest_memory(channel),
        }
    }

    /// Of what a job is about, what must not be used now.
    pub(crate) fn unfenced(&self, job: &IoRequest) -> Option<StorageId> {
        if self.channels.is_empty() {
            return None;
        }
        let is_unfenced = |channel: &ChannelId| self.channels.medium(*channel).is_unfenced();
        job.channels().find(is_unfenced).map(StorageId::Channel)
    }

    /// Reads into the memory of a request; returns how many operations that is.
    pub(crate) fn read(
        &mut self,
        (storage, offset): (StorageId, ByteOffset),
        memory: impl Iterator<Item = Segment>,
        tag: Tag,
    ) -> u32 {
        match storage {
            StorageId::File(file) => {
                self.kernel.read(file, offset, memory, tag);
                1
            }
            StorageId::Channel(channel) => {
                self.channels.transfer(channel, offset, memory, tag, Operation::Read)
            }
        }
    }

    /// Writes the memory of a request; returns how many operations that is.
    pub(crate) fn write(
        &mut self,
        (storage, offset): (StorageId, ByteOffset),
        durability: Durability,
        memory: impl Iterator<Item = Segment>,
        tag: Tag,
    ) -> u32 {
        match storage {
            StorageId::File(file) => {
                self.kernel.write(file, offset, durability, memory, tag);
                1
            }
            StorageId::Channel(channel) => {
                let write = |extent| Operation::Write(extent, durability);
                self.channels.transfer(channel, offset, memory, tag, write)
            }
        }
    }

    /// Reads `count` bytes into a bounce buffer, which comes back with the end.
    pub(crate) fn read_bounce(
        &mut self,
        (storage, offset): (StorageId, ByteOffset),
        count: usize,
        buffer: BounceBuffer,
        tag: Tag,
    ) {
        match storage {
            StorageId::File(file) => self.kernel.read_bounce(file, offset, count, buffer, tag),
            StorageId::Channel(channel) => {
                let operation = Operation::Read(extent(offset, count as u64));
                self.channels.begin_bounce(channel, operation, count, buffer, tag);
            }
        }
    }

    /// Writes the first `count` bytes of a bounce buffer, which comes back with the end.
    pub(crate) fn write_bounce(
        &mut self,
        (storage, offset): (StorageId, ByteOffset),
        durability: Durability,
        count: usize,
        buffer: BounceBuffer,
        tag: Tag,
    ) {
        match storage {
            StorageId::File(file) => {
                self.kernel.write_bounce(file, offset, durability, count, buffer, tag);
            }
            StorageId::Channel(channel) => {
                let operation = Operation::Write(extent(offset, count as u64), durability);
                self.channels.begin_bounce(channel, operation, count, buffer, tag);
            }
        }
    }

    /// Makes durable what was written.
    pub(crate) fn sync(&mut self, storage: StorageId, tag: Tag) {
        match storage {
            StorageId::File(file) => self.kernel.sync(file, tag),
            StorageId::Channel(channel) => self.channels.begin(channel, Operation::Flush, tag),
        }
    }

    /// Discards or zeroes a range.
    pub(crate) fn allocate(
        &mut self,
        (storage, offset): (StorageId, ByteOffset),
        count: ByteCount,
        how: DiscardOrZeroGoal,
        tag: Tag,
    ) {
        match storage {
            StorageId::File(file) => self.kernel.allocate(file, offset, count, how, tag),
            StorageId::Channel(channel) => {
                let extent = extent(offset, count.0);
                let operation = match how {
                    DiscardOrZeroGoal::Discard => Operation::Discard(extent, Durability::Cached),
                    DiscardOrZeroGoal::Zeroes(terms) => {
                        Operation::WriteZeroes(extent, terms, Durability::Cached)
                    }
                };
                self.channels.begin(channel, operation, tag);
            }
        }
    }
}

/// Bytes of storage, as an operation names them.
pub(crate) fn extent(offset: ByteOffset, count: u64) -> Extent {
    let all = DiskSize(ByteCount(u64::MAX));
    all.check(offset, ByteCount(count)).expect("pieces end before 2^64")
}
