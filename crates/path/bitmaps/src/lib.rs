//! Which parts of a disk are dirty: bitmaps without names and without I/O.

#![forbid(unsafe_code)]

mod dirty_bitmap;
mod granularity;
mod sync;

pub use dirty_bitmap::{BITMAP_BYTES_MAX, BitmapError, DirtyBitmap};
pub use granularity::Granularity;
