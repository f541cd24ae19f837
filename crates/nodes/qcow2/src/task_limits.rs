//! What the tasks of one lane share so that many of them take no more memory, or time, than a few.
//!
//! Invariants: who waits for a room holds no part of one that is taken later (the order is that of the fields of
//! [`TaskSemaphores`]), so nobody waits in a circle.

use tasks::Semaphore;

/// How many requests of a lane that are in many pieces are carried out at once.
const LARGE_MAX: usize = 32;

/// How many bytes a lane copies at once, and tables that it copies.
const COPIED_MAX: usize = 8 << 20;

/// How many bytes a lane has in memory that it compresses; while they are compressed they take up to
/// three times as much again.
const COMPRESSING_MAX: usize = 8 << 20;

/// How many compressed clusters a lane has in memory to be decoded.
const COMPRESSED_MAX: usize = 8;

/// The semaphores that bound what the tasks of one lane do at once.
#[derive(Debug)]
pub(crate) struct TaskSemaphores {
    /// In bytes.
    pub(crate) compressing: Semaphore,
    pub(crate) large: Semaphore,
    /// In bytes.
    pub(crate) copied: Semaphore,
    pub(crate) compressed: Semaphore,
    /// Its thread decodes one cluster after the other: each takes as much as the window of its method.
    pub(crate) decoding: Semaphore,
}

impl Default for TaskSemaphores {
    fn default() -> Self {
        Self {
            compressing: Semaphore::new(COMPRESSING_MAX),
            large: Semaphore::new(LARGE_MAX),
            copied: Semaphore::new(COPIED_MAX),
            compressed: Semaphore::new(COMPRESSED_MAX),
            decoding: Semaphore::new(1),
        }
    }
}
