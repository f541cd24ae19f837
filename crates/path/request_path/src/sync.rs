//! The primitives that threads meet on: the standard library's, or loom's when it explores all
//! interleavings (`--cfg loom`).

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

#[cfg(not(loom))]
pub(crate) use std::thread::{ThreadId, current};

#[cfg(loom)]
pub(crate) use loom::thread::{ThreadId, current};

/// Who calls.
pub(crate) fn current_thread() -> ThreadId {
    current().id()
}
