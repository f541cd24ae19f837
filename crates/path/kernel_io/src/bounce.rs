//! Aligned memory of our own, for requests whose memory or place direct I/O cannot take.
//!
//! Limits: whoever takes from a pool bounds how many it lends (`request_path::engine`). Buffers are allocated when
//! first needed; few of those that nobody uses are kept ([`BouncePool::put`]).

#![expect(unsafe_code, reason = "aligned memory that the kernel may write has to be raw")]

use std::alloc::Layout;
use std::ptr::NonNull;

use block::{Buffers, Segment};

/// The most that a bounce buffer holds: large enough that cutting a request costs little.
pub const BOUNCE_BYTES: usize = 256 << 10;

/// How large a buffer is. Many small ones cost little, so a storage that takes all its requests through buffers has as many
/// of them in flight as it needs to be fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BounceSize {
    /// 16 KiB.
    Small,
    /// [`BOUNCE_BYTES`].
    Large,
}

impl BounceSize {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Small, Self::Large];

    /// The smaller one that holds so many bytes; the large one if none does.
    pub const fn of(bytes: u64) -> Self {
        if bytes <= Self::Small.bytes() as u64 { Self::Small } else { Self::Large }
    }

    /// How many bytes it holds.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Small => 16 << 10,
            Self::Large => BOUNCE_BYTES,
        }
    }

    /// The most that one iothread keeps for later: 2 and 4 MiB.
    const fn kept(self) -> usize {
        match self {
            Self::Small => 128,
            Self::Large => 16,
        }
    }

    const fn layout(self) -> Layout {
        match Layout::from_size_align(self.bytes(), BOUNCE_ALIGNMENT) {
            Ok(layout) => layout,
            Err(_) => panic!("some KiB aligned to 4 KiB are a layout"),
        }
    }
}

/// What a buffer is aligned to; files that want more are not opened for direct I/O.
pub(crate) const BOUNCE_ALIGNMENT: usize = 4096;

/// The bounce buffers of one iothread.
#[derive(Debug, Default)]
pub struct BouncePool {
    small: Vec<BounceBuffer>,
    large: Vec<BounceBuffer>,
}

impl BouncePool {
    /// Lends a buffer. Give it back with [`BouncePool::put`].
    pub fn take(&mut self, size: BounceSize) -> BounceBuffer {
        self.free(size).pop().unwrap_or_else(|| BounceBuffer::new(size))
    }

    /// Takes a buffer back, for later or, if 128 small ones or 16 large ones are kept, to free it.
    pub fn put(&mut self, buffer: BounceBuffer) {
        let size = buffer.size;
        let free = self.free(size);
        if free.len() < size.kept() {
            free.push(buffer);
        }
    }

    fn free(&mut self, size: BounceSize) -> &mut Vec<BounceBuffer> {
        match size {
            BounceSize::Small => &mut self.small,
            BounceSize::Large => &mut self.large,
        }
    }
}

/// Memory aligned for direct I/O.
#[derive(Debug)]
pub struct BounceBuffer {
    base: NonNull<u8>,
    size: BounceSize,
}

// SAFETY: the buffer owns its memory; nothing else points to it but the kernel, while it is
// parked.
unsafe impl Send for BounceBuffer {}

impl BounceBuffer {
    fn new(size: BounceSize) -> Self {
        let layout = size.layout();
        // SAFETY: the layout has a size above zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { std::alloc::handle_alloc_error(layout) };
        Self { base, size }
    }

    /// How large it is.
    pub fn size(&self) -> BounceSize {
        self.size
    }

    /// Names the first `count` bytes, at most all, for an operation. Whoever begins that keeps the buffer until it is over.
    pub fn segment(&self, count: usize) -> Segment {
        // SAFETY: the memory is ours and aligned; the caller parks `self` until the completion.
        unsafe { Segment::new(self.base, count.min(self.size.bytes())) }
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
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.size.bytes()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` keeps everybody else out.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.size.bytes()) }
    }
}

impl Drop for BounceBuffer {
    fn drop(&mut self) {
        // SAFETY: the memory came from `alloc_zeroed` with this layout and is freed once.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.size.layout()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_lends_what_it_took_back_and_keeps_few() {
        for size in BounceSize::ALL {
            let mut pool = BouncePool::default();
            let lent: Vec<_> = (0..2 * size.kept()).map(|_| pool.take(size)).collect();
            let places: Vec<_> = lent.iter().map(|buffer| buffer.base).collect();
            for buffer in lent {
                assert_eq!(buffer.bytes().len(), size.bytes());
                pool.put(buffer);
            }
            assert_eq!(pool.free(size).len(), size.kept());
            assert!(places.contains(&pool.take(size).base));
        }
    }

    #[test]
    fn the_size_is_the_smaller_one_that_suffices() {
        let small = BounceSize::Small.bytes() as u64;
        for (bytes, size) in [
            (0, BounceSize::Small),
            (small, BounceSize::Small),
            (small + 1, BounceSize::Large),
            (u64::MAX, BounceSize::Large),
        ] {
            assert_eq!(BounceSize::of(bytes), size);
        }
    }
}
