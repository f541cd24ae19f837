//! Memory for the data of requests and for replies, kept while a connection is busy.
//!
//! Where it stands in the life of a request: taken when its header was read, named for the request, sent with the header
//! of its reply in front of its data, and given back.
//!
//! Invariants: memory that a request uses is touched by nobody else, and is leaked if its owner is dropped meanwhile.
//! Limits: [`MEMORY_BYTES_MAX`] for all that is in use or kept; nothing is kept of an idle connection.

use block::{HostMemory, RequestMemory};

use crate::BlockSizes;

/// The most memory of a connection for data, in use or kept: requests are not taken without it.
pub(crate) const MEMORY_BYTES_MAX: usize = 64 << 20;

/// What lies before the data: they are aligned for direct I/O, with the header of their reply in front.
pub(crate) const HEAD_BYTES: usize = 4096;

/// The least room for data.
const SMALLEST: usize = 4096;

/// Sizes of memory: each twice as large as the one before.
const CLASSES: usize = 14;

/// The memory of a connection.
#[derive(Debug, Default)]
pub(crate) struct MemoryPool {
    kept: [Vec<HostMemory>; CLASSES],
    kept_bytes: usize,
    bytes: usize,
}

/// The class of memory that has room for so many bytes of data.
fn class_of(count: usize) -> usize {
    let count = count.max(SMALLEST).next_power_of_two();
    usize::try_from((count / SMALLEST).ilog2()).expect("few classes")
}

impl MemoryPool {
    /// Memory with room for so many bytes of data behind the head; `None` if there has to be given some back first.
    pub(crate) fn take(&mut self, count: usize) -> Option<RequestMemory> {
        let most = usize::try_from(BlockSizes::PAYLOAD_MAX).expect("64-bit host");
        // A sector more at each end of a read that is not aligned.
        assert!(count <= 2 * most, "{count} bytes for one request");
        let class = class_of(count);
        if class >= CLASSES {
            return self.allocate(count.next_multiple_of(SMALLEST)).map(RequestMemory::from);
        }
        if let Some(memory) = self.kept[class].pop() {
            self.kept_bytes -= memory.len();
            return Some(memory.into());
        }
        self.allocate(SMALLEST << class).map(RequestMemory::from)
    }

    fn allocate(&mut self, count: usize) -> Option<HostMemory> {
        let bytes = HEAD_BYTES + count;
        if self.bytes + bytes > MEMORY_BYTES_MAX {
            // What is kept for other sizes is in the way.
            self.shrink();
        }
        if self.bytes + bytes > MEMORY_BYTES_MAX {
            return None;
        }
        self.bytes += bytes;
        Some(HostMemory::zeroed(bytes))
    }

    /// Gives memory back.
    pub(crate) fn give_back(&mut self, memory: HostMemory) {
        let class = class_of(memory.len() - HEAD_BYTES);
        if class < CLASSES {
            self.kept_bytes += memory.len();
            self.kept[class].push(memory);
        } else {
            self.bytes -= memory.len();
        }
    }

    /// Keeps nothing.
    pub(crate) fn shrink(&mut self) {
        self.bytes -= self.kept_bytes;
        self.kept_bytes = 0;
        self.kept = Default::default();
    }

    /// How much there is, in use or kept.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How much is kept.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }
}

#[cfg(test)]
mod tests {
    use block::Buffers;

    use super::*;

    #[test]
    fn memory_is_used_again_and_bounded() {
        let mut pool = MemoryPool::default();
        let [first, second] = [1, 4096].map(|count| pool.take(count).unwrap().into_memory());
        assert_eq!((first.len(), second.len(), pool.bytes), (8192, 8192, 16384));
        pool.give_back(first);
        assert_eq!(pool.take(10).unwrap().into_memory().len(), 8192);
        assert_eq!((pool.bytes, pool.kept_bytes()), (16384, 0));
        pool.give_back(second);
        let large = pool.take(32 << 20).unwrap().into_memory();
        assert!(pool.take(32 << 20).is_none());
        // What was kept has gone for it.
        assert_eq!((pool.kept_bytes(), pool.bytes), (0, large.len() + 8192));
        pool.give_back(large);
        pool.shrink();
        assert_eq!(pool.bytes, 8192);
    }

    #[test]
    fn a_read_of_the_most_that_cuts_sectors_has_room() {
        let mut pool = MemoryPool::default();
        let memory = pool.take((32 << 20) + 1022).unwrap().into_memory();
        assert!(memory.len() >= (32 << 20) + 1022 + HEAD_BYTES);
        pool.give_back(memory);
        assert_eq!((pool.kept_bytes(), pool.bytes), (0, 0));
    }

    #[test]
    #[should_panic(expected = "a request uses this memory")]
    fn what_a_request_uses_is_not_touched() {
        let mut pool = MemoryPool::default();
        let mut memory = pool.take(512).unwrap();
        memory.lend(0..512, &mut Buffers::default());
        memory.bytes()[0] = 1;
    }

    #[test]
    fn what_a_request_has_given_back_is_free_again() {
        let mut pool = MemoryPool::default();
        let (mut memory, mut buffers) = (pool.take(512).unwrap(), Buffers::default());
        memory.lend(HEAD_BYTES..HEAD_BYTES + 512, &mut buffers);
        buffers.copy_from(0, b"data");
        memory.take_back();
        assert_eq!(&memory.bytes()[HEAD_BYTES..HEAD_BYTES + 4], b"data");
    }
}
