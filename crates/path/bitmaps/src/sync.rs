//! The primitives that threads meet on: the standard library's, or loom's when it explores all
//! interleavings (`--cfg loom`).

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// So many words that are zero, as long as there is memory for them. The pages of large ones take none until something is
/// set in them.
#[cfg(not(loom))]
pub(crate) fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    bytemuck::try_zeroed_slice_box(count).ok()
}

#[cfg(loom)]
pub(crate) fn zeroed_words(count: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..count).map(|_| AtomicU64::new(0)).collect())
}
