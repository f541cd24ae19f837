//! Whether a lane has to be called: some task of it can go on.
//!
//! Threads: set by any, taken by the iothread of the lane. What was done before it was set is seen
//! after it was taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use kernel_io::Notifier;

/// One lane's flag; as a waker it also wakes the iothread.
#[derive(Debug)]
pub(crate) struct Called {
    is_set: AtomicBool,
    bell: Arc<Notifier>,
}

impl Called {
    pub(crate) fn new(bell: Arc<Notifier>) -> Self {
        Self { is_set: AtomicBool::new(false), bell }
    }

    /// For the iothread itself, which does not go to sleep before it has taken it.
    pub(crate) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
    }

    /// For the iothread; cheap enough to be asked after each batch.
    pub(crate) fn is_set(&self) -> bool {
        // Whoever sets it later rings as well.
        self.is_set.load(Ordering::Relaxed)
    }

    /// For the iothread: whether it was set; it no longer is.
    pub(crate) fn take(&self) -> bool {
        self.is_set.swap(false, Ordering::AcqRel)
    }
}

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Whoever found it set knows that the iothread will still take it.
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.bell.wake();
        }
    }
}
