//! The memory of a request as it was at one moment.

use std::mem::ManuallyDrop;

use super::{Buffers, HostMemory};

/// A copy of a request's memory, for operations that read it. Dropped, it is never freed, because the kernel may be at it:
/// whoever knows that nothing is calls [`RequestMemoryCopy::free`].
#[derive(Debug)]
pub struct RequestMemoryCopy {
    memory: ManuallyDrop<HostMemory>,
    buffers: Buffers,
}

impl RequestMemoryCopy {
    /// Copies it now. Blocks for as long as that takes.
    pub fn of(original: &Buffers) -> Self {
        let mut memory = ManuallyDrop::new(HostMemory::zeroed(original.count()));
        original.copy_to(0, &mut memory);
        let buffers = memory.name();
        Self { memory, buffers }
    }

    /// The bytes, in the order of the original.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Gives the memory up. No operation uses it any more.
    pub fn free(self) {
        drop(ManuallyDrop::into_inner(self.memory));
    }
}
