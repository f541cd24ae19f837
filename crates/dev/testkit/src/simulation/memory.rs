//! The memory of a request of the rig.

#![expect(unsafe_code, reason = "names memory for requests")]

use std::ptr::NonNull;

use block::{Buffers, HostMemory, Segment};

/// Bytes that a request reads into or writes from.
#[derive(Debug)]
pub(crate) struct RequestMemory(HostMemory);

impl RequestMemory {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(HostMemory::of(bytes))
    }

    /// Names it for the request, which is over before it is used otherwise.
    pub(crate) fn name(&mut self) -> Buffers {
        let mut buffers = Buffers::default();
        if !self.0.is_empty() {
            let base = NonNull::from(&mut self.0[0]);
            // SAFETY: the memory is ours, and stays until the request is over: the rig's kernel uses it only when it
            // tells the end of an operation, to an engine that is there.
            buffers.push(unsafe { Segment::new(base, self.0.len()) });
        }
        buffers
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0.to_vec()
    }
}
