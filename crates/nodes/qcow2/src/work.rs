//! Tasks that no request waits for: an image is not closed while one is at work.
//!
//! Threads: any; only [`AtWork::wait`] blocks.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How many tasks are at work. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct AtWork(Arc<State>);

#[derive(Debug, Default)]
struct State {
    count: Mutex<usize>,
    none: Condvar,
}

/// A task is at work. Dropped, it is over.
#[derive(Debug)]
#[must_use = "the image is not closed while a task is at work"]
pub(crate) struct Working(AtWork);

impl AtWork {
    /// A task begins.
    pub(crate) fn begin(&self) -> Working {
        *self.count() += 1;
        Working(self.clone())
    }

    /// Waits until none is at work, but not longer than this; whether that is so.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let waited = self.0.none.wait_timeout_while(self.count(), limit, |count| *count > 0);
        *waited.expect("nobody panics here").0 == 0
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.0.count.lock().expect("nobody panics here")
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut count = self.0.count();
        *count -= 1;
        if *count == 0 {
            self.0.0.none.notify_all();
        }
    }
}
