//! Memory of our own for I/O that no guest has asked for: tables of formats, what is copied on write.

use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::{Buffers, Segment};

/// What it is aligned to: files that want more are not opened for direct I/O.
const ALIGNMENT: usize = 4096;

/// Memory of this process (not a guest's), zeroed and aligned for direct I/O.
pub struct HostMemory {
    base: NonNull<u8>,
    count: usize,
}

// SAFETY: it owns its memory; whoever else knows the address only copies while an internal I/O is under way,
// when the memory belongs to nobody else.
unsafe impl Send for HostMemory {}

// SAFETY: shared, it is only read.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// So many bytes, all zero.
    pub fn zeroed(count: usize) -> Self {
        let Some(layout) = layout(count) else {
            return Self { base: NonNull::dangling(), count: 0 };
        };
        // SAFETY: the layout has a size above zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(layout) };
        Self { base, count }
    }

    /// A copy of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut memory = Self::zeroed(bytes.len());
        memory.copy_from_slice(bytes);
        memory
    }

    /// Names it for an operation. Whoever carries that out keeps `self` until it is over, or for ever.
    pub(crate) fn name(&mut self) -> Buffers {
        let mut buffers = Buffers::with_capacity(1);
        // SAFETY: the memory is ours, readable and writable; an internal I/O that was begun gives it back when
        // it is over, and never frees it otherwise.
        buffers.push(unsafe { Segment::new(self.base, self.count) });
        buffers
    }
}

/// None for nothing.
fn layout(count: usize) -> Option<Layout> {
    let layout = Layout::from_size_align(count, ALIGNMENT);
    (count > 0).then(|| layout.expect("less than half of the address space"))
}

impl Deref for HostMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `count` bytes at `base` are ours and initialised; of no bytes, any aligned address will
        // do.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

impl DerefMut for HostMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.count) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Some(layout) = layout(self.count) {
            // SAFETY: allocated with the same layout, and freed once.
            unsafe { std::alloc::dealloc(self.base.as_ptr(), layout) };
        }
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} bytes)", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_our_own_is_zeroed_and_aligned() {
        let memory = HostMemory::zeroed(70_000);
        assert!(memory.iter().all(|byte| *byte == 0));
        assert!(memory.base.addr().get().is_multiple_of(ALIGNMENT));
        assert_eq!(&*HostMemory::of(b"bytes"), b"bytes");
        assert!(HostMemory::zeroed(0).is_empty());
    }
}
