//! Tasks that no request waits for: an image is not closed while one is at work.
//!
//! Threads: any; only [`BackgroundTasks::wait`] blocks.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How many tasks of an image run that no request waits for. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct BackgroundTasks(Arc<State>);

/// What the mutex and the condition variable protect.
#[derive(Debug, Default)]
struct State {
    count: Mutex<usize>,
    none: Condvar,
}

/// Counts a background task as running until it is dropped; the image is not closed before.
#[derive(Debug)]
#[must_use = "the image is not closed while a task is at work"]
pub(crate) struct BackgroundTaskGuard(BackgroundTasks);

impl BackgroundTasks {
    /// A task begins.
    pub(crate) fn begin(&self) -> BackgroundTaskGuard {
        *self.count() += 1;
        BackgroundTaskGuard(self.clone())
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

impl Drop for BackgroundTaskGuard {
    fn drop(&mut self) {
        let mut count = self.0.count();
        *count -= 1;
        if *count == 0 {
            self.0.0.none.notify_all();
        }
    }
}
