//! Which parts of a disk are dirty: bitmaps, and the named ones of a node. No I/O.

#![forbid(unsafe_code)]

mod copy_backlog;
mod dirty_bitmap;
mod granularity;
mod node_bitmaps;
mod sync;

pub use copy_backlog::{ClaimResult, CopyBacklog, CopyClaim};
pub use dirty_bitmap::{BITMAP_BYTES_MAX, BitmapError, DirtyBitmap};
pub use granularity::Granularity;
pub use node_bitmaps::{
    BITMAPS_MAX, BitmapInfo, BitmapRefusal, BitmapUndo, BusyBitmap, FrozenBitmap, NAME_BYTES_MAX,
    NODE_BYTES_MAX, NewBitmap, NodeBitmaps, Persistence, Recording, RecordingBitmaps, StoredBitmap,
};
