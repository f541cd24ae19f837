//! Aligned memory of our own, for requests whose memory or place direct I/O cannot take.
//!
//! Limits: whoever takes from a pool bounds how many it lends (`request_path::engine`). Buffers are allocated when
//! first needed; at most [`BUFFERS_KEPT`] that nobody uses are kept.

#![expect(unsafe_code, reason = "aligned memory that the kernel may write has to be raw")]

use std::alloc::Layout;
use std::ptr::NonNull;

use block::{Buffers, Segment};

/// The size of a bounce buffer: large enough that cutting a request costs little.
pub const BOUNCE_BYTES: usize = 256 << 10;

/// The most buffers that one iothread keeps for later: 4 MiB.
const BUFFERS_KEPT: usize = 16;

/// What a buffer is aligned to; files that want more are not opened for direct I/O.
pub(crate) const BOUNCE_ALIGNMENT: usize = 4096;

const LAYOUT: Layout = match Layout::from_size_align(BOUNCE_BYTES, BOUNCE_ALIGNMENT) {
    Ok(layout) => layout,
    Err(_) => panic!("256 KiB aligned to 4 KiB is a layout"),
};

/// The bounce buffers of one iothread.
#[derive(Debug, Default)]
pub struct BouncePool {
    free: Vec<BounceBuffer>,
}

impl BouncePool {
    /// Lends a buffer. Give it back with [`BouncePool::put`].
    pub fn take(&mut self) -> BounceBuffer {
        self.free.pop().unwrap_or_else(BounceBuffer::new)
    }

    /// Takes a buffer back.
    pub fn put(&mut self, buffer: BounceBuffer) {
        if self.free.len() < BUFFERS_KEPT {
            self.free.push(buffer);
        }
    }
}

/// [`BOUNCE_BYTES`] of memory, aligned for direct I/O.
#[derive(Debug)]
pub struct BounceBuffer {
    base: NonNull<u8>,
}

// SAFETY: the buffer owns its memory; nothing else points to it but the kernel, while it is
// parked.
unsafe impl Send for BounceBuffer {}

impl BounceBuffer {
    fn new() -> Self {
        // SAFETY: the layout has a size above zero.
        let base = unsafe { std::alloc::alloc_zeroed(LAYOUT) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(LAYOUT) };
        Self { base }
    }

    /// Names the first `count` bytes, at most all, for an operation. Whoever begins that keeps the buffer until it is over.
    pub fn segment(&self, count: usize) -> Segment {
        // SAFETY: the memory is ours and aligned; the caller parks `self` until the completion.
        unsafe { Segment::new(self.base, count.min(BOUNCE_BYTES)) }
    }

    /// Copies `count` bytes of `from`, from `skip` on, to the place `at` in the buffer.
    pub fn fill(&mut self, at: usize, from: &Buffers, skip: usize, count: usize) {
        let copied = from.copy_to(skip, &mut self.bytes_mut()[at..at + count]);
        assert_eq!(copied, count, "a request has as much memory as it has bytes");
    }

    /// Copies `count` bytes at the place `at` in the buffer to `to`, from `skip` on.
    pub fn drain(&self, at: usize, to: &mut Buffers, skip: usize, count: usize) {
        let copied = to.copy_from(skip, &self.bytes()[at..at + count]);
        assert_eq!(copied, count, "a request has as much memory as it has bytes");
    }

    /// The first `count` bytes.
    pub fn first(&self, count: usize) -> &[u8] {
        &self.bytes()[..count]
    }

    /// Zeroes `count` bytes at the place `at`.
    pub fn zero(&mut self, at: usize, count: usize) {
        self.bytes_mut()[at..at + count].fill(0);
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is ours, initialised, and as long; while the kernel may write to it
        // the buffer is parked and out of reach.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), BOUNCE_BYTES) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` keeps everybody else out.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), BOUNCE_BYTES) }
    }
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        // SAFETY: the memory came from `alloc_zeroed` with this layout and is freed once.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), LAYOUT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_lends_what_it_took_back_and_keeps_few() {
        let mut pool = BouncePool::default();
        let lent: Vec<_> = (0..3 * BUFFERS_KEPT).map(|_| pool.take()).collect();
        let places: Vec<_> = lent.iter().map(|buffer| buffer.base).collect();
        for buffer in lent {
            pool.put(buffer);
        }
        assert_eq!(pool.free.len(), BUFFERS_KEPT);
        assert!(places.contains(&pool.take().base));
    }
}
