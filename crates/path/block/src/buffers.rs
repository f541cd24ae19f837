//! Memory that a request reads into or writes from: a list of segments of guest or host memory.
//!
//! Where it stands in the life of a request: `virtio` makes segments from checked guest
//! addresses; `request_path` cuts them to pieces; `kernel_io` hands them to the kernel.
//!
//! Invariants: whoever makes a [`Segment`] promises that its memory stays mapped until the
//! request that carries it has completed (see [`Segment::new`]). No Rust reference is ever made
//! into that memory: a guest may change it at any time, so every access is a copy.
//! Threads: segments may be sent along with their request; nothing else shares them.

#![expect(unsafe_code, reason = "guest memory is only reachable through raw pointers")]

use std::ptr::NonNull;

mod copy;
mod host;
mod request_memory;

pub use copy::RequestMemoryCopy;
pub use host::HostMemory;
pub use request_memory::RequestMemory;

/// A run of memory, laid out like the kernel's `struct iovec`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    base: NonNull<u8>,
    count: usize,
}

// SAFETY: a segment is an address and a length; what it points to is not owned by any thread and
// is only ever copied from or to, never borrowed.
unsafe impl Send for Segment {}

impl Segment {
    /// Names `count` bytes at `base`.
    ///
    /// # Safety
    /// The bytes must be one mapping, readable and writable if the request writes to them, and
    /// must stay so until the request that carries the segment has completed.
    pub unsafe fn new(base: NonNull<u8>, count: usize) -> Self {
        Self { base, count }
    }

    /// The first byte.
    pub fn base(self) -> NonNull<u8> {
        self.base
    }

    /// The number of bytes.
    pub fn count(self) -> usize {
        self.count
    }

    /// The bytes from `skip` on, at most `count` of them; both are cut to what is there.
    pub fn part(self, skip: usize, count: usize) -> Self {
        let skip = skip.min(self.count);
        // SAFETY: `skip` is at most the segment's length, so the result stays inside or one past
        // the end of the same mapping.
        let base = unsafe { self.base.add(skip) };
        Self { base, count: count.min(self.count - skip) }
    }
}

/// The memory of one request, in order.
#[derive(Debug, Default)]
pub struct Buffers {
    segments: Vec<Segment>,
    count: usize,
}

impl Buffers {
    /// Room for `segments` segments without a further allocation.
    pub fn with_capacity(segments: usize) -> Self {
        Self { segments: Vec::with_capacity(segments), count: 0 }
    }

    /// Adds a segment behind the others. Empty ones are dropped.
    pub fn push(&mut self, segment: Segment) {
        if segment.count > 0 {
            self.count += segment.count;
            self.segments.push(segment);
        }
    }

    /// Forgets all segments, keeps the room.
    pub fn clear(&mut self) {
        self.segments.clear();
        self.count = 0;
    }

    /// Keeps room for at most so many segments, if there are no more.
    pub fn shrink_to(&mut self, segments: usize) {
        self.segments.shrink_to(segments);
    }

    /// All bytes together.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The segments in order; none is empty.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether every segment starts at a multiple of `base` and has a length that is a multiple of
    /// `length`; both are powers of two.
    pub fn is_aligned(&self, base: usize, length: usize) -> bool {
        let fits =
            |s: &Segment| s.base.addr().get() & (base - 1) == 0 && s.count & (length - 1) == 0;
        self.segments.iter().all(fits)
    }

    /// Takes `count` bytes off the end and returns the address of the first of them, if they lie
    /// in one segment. Virtio-blk's status byte is the last byte the guest lets us write.
    pub fn take_last(&mut self, count: usize) -> Option<Segment> {
        let last = self.segments.last_mut()?;
        let rest = last.count.checked_sub(count)?;
        let taken = last.part(rest, count);
        last.count = rest;
        if rest == 0 {
            self.segments.pop();
        }
        self.count -= count;
        Some(taken)
    }

    /// Copies the first `N` bytes and drops them; `None`, and nothing is dropped, if there are fewer.
    #[inline]
    pub fn take_first<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let copied = match self.segments.first() {
            // Nearly always, and the compiler knows the length.
            Some(first) if first.count >= N => {
                // SAFETY: as in `copy_to`, for the first `N` bytes.
                unsafe {
                    std::ptr::copy_nonoverlapping(first.base.as_ptr(), bytes.as_mut_ptr(), N);
                }
                N
            }
            Some(_) | None => self.copy_to(0, &mut bytes),
        };
        if copied < N {
            return None;
        }
        self.skip_first(N);
        Some(bytes)
    }

    /// Drops `count` bytes from the front; fewer if there are fewer.
    pub fn skip_first(&mut self, count: usize) {
        if count >= self.count {
            return self.clear();
        }
        let mut left = count;
        self.count -= left;
        let mut whole = 0;
        for segment in &mut self.segments {
            if left < segment.count {
                *segment = segment.part(left, segment.count);
                break;
            }
            left -= segment.count;
            whole += 1;
        }
        self.segments.drain(..whole);
    }

    /// The segments that cover `count` bytes from `skip`, cut to fit.
    pub fn range(&self, skip: usize, count: usize) -> impl Iterator<Item = Segment> + '_ {
        let mut skip = skip;
        let mut left = count;
        self.segments.iter().filter_map(move |segment| {
            if skip >= segment.count {
                skip -= segment.count;
                return None;
            }
            let part = segment.part(skip, left);
            skip = 0;
            left -= part.count;
            (part.count > 0).then_some(part)
        })
    }

    /// Copies bytes from `skip` on into `to`; returns how many there were.
    pub fn copy_to(&self, skip: usize, to: &mut [u8]) -> usize {
        let mut done = 0;
        for part in self.range(skip, to.len()) {
            let room = &mut to[done..done + part.count];
            // SAFETY: `part` is mapped and readable for its length by the promise of
            // `Segment::new`; `room` is ours and exactly as long; they cannot overlap because no
            // Rust object lives in guest memory. The guest may write at the same time: the copy
            // is then a mixture, which is what the guest asked for.
            unsafe {
                std::ptr::copy_nonoverlapping(part.base.as_ptr(), room.as_mut_ptr(), part.count);
            }
            done += part.count;
        }
        done
    }

    /// Copies `from` over the bytes from `skip` on; returns how many fitted.
    pub fn copy_from(&mut self, skip: usize, from: &[u8]) -> usize {
        let mut done = 0;
        for part in self.range(skip, from.len()) {
            let bytes = &from[done..done + part.count];
            // SAFETY: `part` is mapped and writable for its length by the promise of
            // `Segment::new`; `bytes` is exactly as long and lies outside guest memory.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), part.base.as_ptr(), part.count);
            }
            done += part.count;
        }
        done
    }

    /// Zeroes `count` bytes from `skip` on.
    pub fn zero(&mut self, skip: usize, count: usize) {
        for part in self.range(skip, count) {
            // SAFETY: `part` is mapped and writable for its length by the promise of
            // `Segment::new`.
            unsafe { std::ptr::write_bytes(part.base.as_ptr(), 0, part.count) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of the given lengths over one leaked buffer, filled with 0, 1, 2 …
    fn over(lengths: &[usize]) -> Buffers {
        let total: usize = lengths.iter().sum();
        let bytes: Vec<u8> = (0..=255).cycle().take(total).collect();
        let mut base = NonNull::from(Box::leak(bytes.into_boxed_slice())).cast::<u8>();
        let mut buffers = Buffers::default();
        for &length in lengths {
            // SAFETY: `length` bytes from `base` lie inside the leaked buffer, for ever.
            buffers.push(unsafe { Segment::new(base, length) });
            // SAFETY: the lengths add up to the buffer's.
            base = unsafe { base.add(length) };
        }
        buffers
    }

    fn bytes(buffers: &Buffers) -> Vec<u8> {
        let mut all = vec![0; buffers.count()];
        assert_eq!(buffers.copy_to(0, &mut all), all.len());
        all
    }

    #[track_caller]
    fn check_range(lengths: &[usize], skip: usize, count: usize, expected: &[usize]) {
        let found: Vec<usize> = over(lengths).range(skip, count).map(Segment::count).collect();
        assert_eq!(found, expected, "{count} bytes from {skip} of {lengths:?}");
    }

    #[test]
    fn a_range_is_cut_from_the_segments_it_touches() {
        check_range(&[4, 4], 0, 8, &[4, 4]);
        check_range(&[4, 4], 3, 2, &[1, 1]);
        check_range(&[4, 4], 4, 4, &[4]);
        check_range(&[4, 4], 1, 2, &[2]);
        check_range(&[4, 4], 8, 1, &[]);
        check_range(&[4, 4], 6, 100, &[2]);
        check_range(&[4, 4], 2, 0, &[]);
    }

    #[test]
    fn the_last_bytes_are_taken_only_from_one_segment() {
        let mut buffers = over(&[3, 2]);
        assert!(buffers.take_last(3).is_none());
        assert_eq!(buffers.take_last(1).map(Segment::count), Some(1));
        assert_eq!(bytes(&buffers), [0, 1, 2, 3]);
        assert_eq!(buffers.take_last(1).map(Segment::count), Some(1));
        assert_eq!(buffers.segments().len(), 1);
        assert!(Buffers::default().take_last(1).is_none());
    }

    #[test]
    fn skipping_drops_whole_and_partial_segments() {
        let mut buffers = over(&[3, 3, 3]);
        buffers.skip_first(4);
        assert_eq!(bytes(&buffers), [4, 5, 6, 7, 8]);
        buffers.skip_first(2);
        assert_eq!(bytes(&buffers), [6, 7, 8]);
        buffers.skip_first(99);
        assert_eq!(buffers.count(), 0);
        assert!(buffers.segments().is_empty());
    }

    #[test]
    fn the_first_bytes_are_taken_out_of_one_segment_or_several() {
        let mut buffers = over(&[4, 1, 3]);
        assert_eq!(buffers.take_first(), Some([0, 1, 2]));
        assert_eq!(buffers.take_first(), Some([3]));
        assert_eq!(buffers.take_first(), Some([4, 5]));
        assert_eq!(buffers.take_first::<3>(), None);
        assert_eq!((bytes(&buffers), buffers.count()), (vec![6, 7], 2));
        assert_eq!(buffers.take_first(), Some([6, 7]));
        assert!(buffers.segments().is_empty());
        assert_eq!(buffers.take_first::<1>(), None);
    }

    #[test]
    fn copies_and_zeroes_cross_segment_borders() {
        let mut buffers = over(&[2, 3]);
        assert_eq!(buffers.copy_from(1, &[9, 8, 7]), 3);
        assert_eq!(bytes(&buffers), [0, 9, 8, 7, 4]);
        buffers.zero(1, 2);
        assert_eq!(bytes(&buffers), [0, 0, 0, 7, 4]);
        assert_eq!(buffers.copy_from(4, &[1, 1]), 1);
    }

    #[test]
    fn alignment_looks_at_addresses_and_lengths() {
        let mut buffers = Buffers::default();
        assert!(buffers.is_aligned(512, 512));
        let page = NonNull::from(Box::leak(Box::new([0_u64; 4]))).cast::<u8>();
        // SAFETY: the array has 32 bytes and lives for ever.
        buffers.push(unsafe { Segment::new(page, 8) });
        assert!(buffers.is_aligned(8, 8));
        // SAFETY: as above.
        buffers.push(unsafe { Segment::new(page, 4) });
        assert!(!buffers.is_aligned(8, 8));
        assert!(buffers.is_aligned(8, 4));
        // SAFETY: as above.
        let odd = unsafe { Segment::new(page, 32) }.part(4, 8);
        buffers.push(odd);
        assert!(!buffers.is_aligned(8, 4));
        assert!(buffers.is_aligned(4, 4));
    }
}
