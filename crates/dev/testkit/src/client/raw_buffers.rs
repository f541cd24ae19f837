//! The two calls of the driver that take raw buffers, behind checks that make them safe.
//!
//! Invariants: every segment lies in the shared memory, which outlives the ring's server connection: `Client` owns
//! both.
#![expect(unsafe_code, reason = "the driver takes iovecs")]

use std::ffi::c_void;
use std::io::Error;

use virtio_driver::{VirtioBlkQueue, iovec};

use super::Segment;
use crate::memory::SharedMemory;

pub(super) fn read(
    ring: &mut VirtioBlkQueue<'static, u64>,
    memory: &SharedMemory,
    offset: u64,
    segments: &[Segment],
    token: u64,
) -> Result<(), Error> {
    let pieces = pieces(memory, segments);
    // SAFETY: the pointer and count are those of a live vector, which the call copies into descriptors; `pieces`
    // checked each range to lie in the shared memory, which no Rust reference points into.
    unsafe { ring.readv(offset, pieces.as_ptr(), pieces.len(), token) }
}

pub(super) fn write(
    ring: &mut VirtioBlkQueue<'static, u64>,
    memory: &SharedMemory,
    offset: u64,
    segments: &[Segment],
    token: u64,
) -> Result<(), Error> {
    let pieces = pieces(memory, segments);
    // SAFETY: as for `read`.
    unsafe { ring.writev(offset, pieces.as_ptr(), pieces.len(), token) }
}

fn pieces(memory: &SharedMemory, segments: &[Segment]) -> Vec<iovec> {
    segments
        .iter()
        .map(|segment| iovec {
            iov_base: memory.address(segment.offset, segment.length).cast::<c_void>(),
            iov_len: segment.length,
        })
        .collect()
}
