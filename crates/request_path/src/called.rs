//! Which lanes have to be called: some task of theirs can go on.
//!
//! Threads: set by any, taken by the iothread of the lanes. What was done before a flag was set is seen
//! after it was taken. The iothread looks before it sleeps, so it does not ring for itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::thread::ThreadId;

use kernel_io::Notifier;

/// How the lanes of an iothread have it look at their flags.
#[derive(Debug)]
pub(crate) struct Calls {
    /// Whether any of the flags may be set.
    any: AtomicBool,
    bell: Arc<Notifier>,
    iothread: ThreadId,
}

impl Calls {
    /// Of the calling thread, which this bell wakes.
    pub(crate) fn new(bell: Arc<Notifier>) -> Arc<Self> {
        let iothread = std::thread::current().id();
        Arc::new(Self { any: AtomicBool::new(false), bell, iothread })
    }

    /// For the iothread: whether to look at the flags. Cheap enough to be asked after each batch.
    pub(crate) fn take(&self) -> bool {
        // Whoever sets it later rings as well.
        self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::AcqRel)
    }

    fn call(&self) {
        self.any.store(true, Ordering::Release);
        if std::thread::current().id() != self.iothread {
            self.bell.wake();
        }
    }
}

/// One lane's flag, and its waker.
#[derive(Debug)]
pub(crate) struct Called {
    is_set: AtomicBool,
    calls: Arc<Calls>,
}

impl Called {
    pub(crate) fn new(calls: Arc<Calls>) -> Self {
        Self { is_set: AtomicBool::new(false), calls }
    }

    /// For the iothread.
    pub(crate) fn is_set(&self) -> bool {
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
            self.calls.call();
        }
    }
}
