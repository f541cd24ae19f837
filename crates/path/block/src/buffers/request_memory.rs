//! Memory of a front end that its requests use one after the other: lent to one, and untouched until that was answered.
//!
//! Invariants: memory that a request uses is touched by nobody else, and is leaked if its owner is dropped meanwhile.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;

use super::{Buffers, HostMemory, Segment};

/// Memory that a request may use.
#[derive(Debug)]
pub struct RequestMemory {
    memory: ManuallyDrop<HostMemory>,
    is_lent: bool,
}

impl RequestMemory {
    /// The bytes, while no request uses them.
    pub fn bytes(&mut self) -> &mut [u8] {
        assert!(!self.is_lent, "a request uses this memory");
        &mut self.memory
    }

    /// Takes it out, while no request uses it.
    pub fn into_memory(mut self) -> HostMemory {
        assert!(!self.is_lent, "a request uses this memory");
        // Nothing is left to be dropped.
        self.is_lent = true;
        // SAFETY: not taken before, since only this takes it, and nobody uses `self.memory` after it: `drop` does not
        // touch what is lent.
        unsafe { ManuallyDrop::take(&mut self.memory) }
    }

    /// Names bytes of it for a request, which has them until [`RequestMemory::take_back`].
    pub fn lend(&mut self, bytes: Range<usize>, into: &mut Buffers) {
        let bytes = &mut self.bytes()[bytes];
        let (base, count) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        // SAFETY: the bytes are ours, readable and writable; `is_lent` keeps everybody from touching them, and `drop`
        // from freeing them, until the request was answered.
        into.push(unsafe { Segment::new(base, count) });
        self.is_lent = true;
    }

    /// The request was answered.
    pub fn take_back(&mut self) {
        self.is_lent = false;
    }
}

impl From<HostMemory> for RequestMemory {
    fn from(memory: HostMemory) -> Self {
        Self { memory: ManuallyDrop::new(memory), is_lent: false }
    }
}

impl Drop for RequestMemory {
    fn drop(&mut self) {
        if !self.is_lent {
            // SAFETY: dropped once, and no request uses it.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}
