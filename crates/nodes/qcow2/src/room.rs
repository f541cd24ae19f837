//! What the tasks of one lane share so that many of them take no more memory, or time, than a few.
//!
//! Invariants: who waits for a room holds no part of one that is taken later (the order is that of the fields of
//! [`Rooms`]), so nobody waits in a circle.

use tasks::Room;

/// How many requests of a lane that are in many pieces are carried out at once.
const LARGE_MAX: usize = 32;

/// How many bytes a lane copies at once, and tables that it copies.
const COPIED_MAX: usize = 8 << 20;

/// How many compressed clusters a lane has in memory to be decoded.
const COMPRESSED_MAX: usize = 8;

/// The rooms of a lane.
#[derive(Debug)]
pub(crate) struct Rooms {
    pub(crate) large: Room,
    /// In bytes.
    pub(crate) copied: Room,
    pub(crate) compressed: Room,
    /// Its thread decodes one cluster after the other: each takes as much as the window of its method.
    pub(crate) decoding: Room,
}

impl Default for Rooms {
    fn default() -> Self {
        Self {
            large: Room::new(LARGE_MAX),
            copied: Room::new(COPIED_MAX),
            compressed: Room::new(COMPRESSED_MAX),
            decoding: Room::new(1),
        }
    }
}
