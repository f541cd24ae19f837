//! The fields of one ring's part of the in-flight region.
//!
//! Invariants: every access is atomic, aligned and inside the part. A store never comes before an
//! earlier one of this thread, to the ring or to the region: each is a release, which is a plain
//! store on x86. That is what recovery relies on.
//! Threads: used by the ring's owner only.
//! Fields have the byte order of the host, as other back-ends write them.

#![expect(unsafe_code, reason = "the region is shared memory, only reachable by raw pointer")]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::InflightRegion;
use crate::fault_point::stored;

/// The fields of one queue's part of the in-flight region, read and written atomically.
#[derive(Debug)]
pub(super) struct InflightFields {
    base: NonNull<u8>,
    bytes: usize,
    /// Keeps the part mapped.
    region: Arc<InflightRegion>,
}

// SAFETY: the pointer leads into a mapping of the process, which `region` keeps and which any
// thread may use.
unsafe impl Send for InflightFields {}

/// One kind of field: how it is found, read and written.
macro_rules! field {
    ($load:ident, $store:ident, $atomic:ty, $value:ty) => {
        pub(super) fn $load(&self, offset: usize) -> $value {
            let field = self.place(offset, size_of::<$value>()).cast();
            // SAFETY: `place` has checked that the field is aligned and inside the part, which is
            // mapped and writable as long as `region` lives. The front end is another process,
            // which no Rust rule binds; this side makes atomic accesses only.
            unsafe { <$atomic>::from_ptr(field.as_ptr()) }.load(Ordering::Acquire)
        }

        pub(super) fn $store(&self, offset: usize, value: $value) {
            let field = self.place(offset, size_of::<$value>()).cast();
            // SAFETY: as for loads, just above.
            unsafe { <$atomic>::from_ptr(field.as_ptr()) }.store(value, Ordering::Release);
            stored();
        }
    };
}

impl InflightFields {
    /// The part of so many bytes at this place of the region, which the caller has found inside.
    pub(super) fn new(region: Arc<InflightRegion>, offset: usize, bytes: usize) -> Self {
        let end = (offset + bytes) as u64;
        assert!(end <= region.region.spec().bytes, "`InflightQueue::check` has looked");
        // SAFETY: the offset lies inside the mapping (checked above), which `region` keeps.
        let base = unsafe { region.region.base().add(offset) };
        Self { base, bytes, region }
    }

    field!(load_u8, store_u8, AtomicU8, u8);
    field!(load_u16, store_u16, AtomicU16, u16);
    field!(load_u32, store_u32, AtomicU32, u32);
    field!(load_u64, store_u64, AtomicU64, u64);

    /// Whether the part was found gone when it was touched; what was read may be zeroes then.
    /// Zeroes these fields, eight bytes at a time.
    pub(super) fn clear(&self, fields: std::ops::Range<usize>) {
        fields.step_by(8).for_each(|field| self.store_u64(field, 0));
    }

    pub(super) fn is_lost(&self) -> bool {
        self.region.is_lost()
    }

    fn place(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset + bytes <= self.bytes, "a field of ours is inside the part");
        // SAFETY: the offset was just found inside the part, and that inside the mapping (`new`).
        let place = unsafe { self.base.add(offset) };
        debug_assert!(place.addr().get().is_multiple_of(bytes), "parts and fields are aligned");
        place
    }
}
