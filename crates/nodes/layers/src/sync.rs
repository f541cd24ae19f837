//! The primitives that threads meet on: the standard library's, or loom's when it explores all
//! interleavings (`--cfg loom`).

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
