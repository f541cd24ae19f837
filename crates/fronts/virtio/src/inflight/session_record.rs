//! The cache mode and the size that the front end was told, kept in the in-flight region for whoever serves the driver
//! next.
//!
//! Where it stands: beside the rings. A front end does not say the mode again when it comes back to
//! a new back end (QEMU does not), but its driver relies on it and may flush no more. Nor does it ask for the size again:
//! it has to be told if that has changed, and only then, because drivers say it to their users.
//!
//! Invariants: the note lies behind the parts of all queues, whatever their layout, so a region of
//! another back end has no room for it and is never written to here. It is used if its magic number
//! is found. It is hostile: each field is read once, and what is not understood counts as the
//! stronger mode; whoever reads it may only become stronger by it.
//! Threads: the session's.
//! Not here: when the mode changes and what is noted then (`vhost_user::session`).

use std::sync::Arc;

use block::{ByteCount, DiskSize};

use super::InflightRegion;
use super::fields::InflightFields;
use crate::CacheMode;

/// The room that is kept for the note.
pub(super) const NOTE_BYTES: usize = 64;

/// Fields of the note.
const MAGIC_FIELD: usize = 0;
const VERSION_FIELD: usize = 8;
const WRITEBACK_FIELD: usize = 10;
/// In bytes; 0 if nothing was noted, as by those who do not know the field.
const SIZE_FIELD: usize = 16;

const MAGIC: u64 = u64::from_ne_bytes(*b"ringloom");
const VERSION: u16 = 1;

/// The record of cache mode and announced disk size that ringloom keeps behind the queues in an in-flight region.
#[derive(Debug)]
pub struct CacheModeAndSizeRecord {
    fields: InflightFields,
}

impl CacheModeAndSizeRecord {
    /// Writes a note into a region that was just made ([`InflightRegion::create`]).
    pub fn begin(region: &Arc<InflightRegion>, mode: CacheMode) -> Self {
        let fields = Self::fields(region).expect("a region of ours has room for the note");
        let mut note = Self { fields };
        note.store(mode);
        note.fields.store_u64(MAGIC_FIELD, MAGIC);
        note
    }

    /// The note of a region that the front end has kept, and the mode it says. A region without one
    /// (another back end has made it) says nothing. A note that is not understood says write-through,
    /// which is never wrong.
    pub fn open(region: &Arc<InflightRegion>) -> Option<(Self, CacheMode)> {
        let fields = Self::fields(region)?;
        if fields.load_u64(MAGIC_FIELD) != MAGIC {
            return None;
        }
        let understood = fields.load_u16(VERSION_FIELD) == VERSION;
        let writeback = fields.load_u8(WRITEBACK_FIELD);
        // Memory that was taken away is found as zeroes: write-through.
        let mode = if understood && writeback == CacheMode::WriteBack.to_byte() {
            CacheMode::WriteBack
        } else {
            CacheMode::WriteThrough
        };
        Some((Self { fields }, mode))
    }

    /// Notes the mode. A process that is killed in between has noted the old mode, the new one, or
    /// one that is not understood.
    pub fn store(&mut self, mode: CacheMode) {
        self.fields.store_u8(WRITEBACK_FIELD, mode.to_byte());
        // Also over the note of a version that is not understood: from now on it is ours.
        self.fields.store_u16(VERSION_FIELD, VERSION);
    }

    /// The size that the front end was told last, if it is noted. Whoever believes a wrong one does not tell the front
    /// end of the right one, which harms nobody else.
    pub fn announced_size(&self) -> Option<DiskSize> {
        let is_understood = self.fields.load_u16(VERSION_FIELD) == VERSION;
        let bytes = self.fields.load_u64(SIZE_FIELD);
        (is_understood && bytes != 0).then_some(DiskSize(ByteCount(bytes)))
    }

    /// Notes the size that the front end is told.
    pub fn store_announced_size(&mut self, size: DiskSize) {
        self.fields.store_u64(SIZE_FIELD, size.0.0);
    }

    fn fields(region: &Arc<InflightRegion>) -> Option<InflightFields> {
        let offset = region.shape.note_offset();
        let has_room = region.region.spec().bytes >= (offset + NOTE_BYTES) as u64;
        has_room.then(|| InflightFields::new(Arc::clone(region), offset, NOTE_BYTES))
    }
}
