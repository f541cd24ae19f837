//! What is said to the operator when a guest's memory is not shared: its requests are in memory that this process does not
//! see, and the guest waits for ever.
//!
//! Where it stands: beside a session. A QEMU without `share=on` shares no memory at all; other front ends may share
//! memory that the guest does not use.
//!
//! Threads: the session's, and the iothreads that serve its rings.
//! Limits: once for each session, and at a bounded rate for each export.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use block::{Clock, LogRateLimit};
use vhost_user::QueueIndex;

/// What there is to do.
const REMEDY: &str = "for QEMU: -object memory-backend-memfd,id=mem0,size=4G,share=on -machine memory-backend=mem0; for \
                      libvirt: <memoryBacking> with <source type='memfd'/> and <access mode='shared'/>";

/// The rate limit of an export's warnings about unshared guest memory.
#[derive(Debug)]
pub(crate) struct UnsharedMemoryRate {
    clock: Arc<dyn Clock>,
    rate: Mutex<LogRateLimit>,
}

/// Warns, once for each session, that a guest's memory is not shared.
#[derive(Debug)]
pub(crate) struct UnsharedMemoryWarning {
    export: String,
    rate: Arc<UnsharedMemoryRate>,
    said: AtomicBool,
}

impl UnsharedMemoryRate {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, rate: Mutex::default() }
    }
}

impl UnsharedMemoryWarning {
    pub(crate) fn new(export: &str, rate: &Arc<UnsharedMemoryRate>) -> Self {
        Self { export: export.to_owned(), rate: Arc::clone(rate), said: AtomicBool::new(false) }
    }

    /// A queue is ready, and there is no memory.
    pub(crate) fn no_memory(&self, queue: QueueIndex) {
        let what = format!("queue {queue} is set up, but the front end shares no memory");
        self.say(&what);
    }

    /// A queue was kicked again, and nothing was ever in it.
    pub(crate) fn no_request(&self, queue: QueueIndex) {
        let what = format!(
            "queue {queue} is kicked and shows no request, so the guest's memory is probably not shared"
        );
        self.say(&what);
    }

    fn say(&self, what: &str) {
        if self.said.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut rate = self.rate.rate.lock().expect("no holder of this lock panics");
        if rate.admit(self.rate.clock.now()).is_some() {
            tracing::warn!("export {}: {what}: {REMEDY}", self.export);
        }
    }
}
