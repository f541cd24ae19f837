//! What is said of an image while it is in use: at a bounded rate, since a guest meets the same damage as often as it
//! likes.
//!
//! Threads: any. Limits: those of [`LogRateLimit`], for each image.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use block::{Clock, LogRateLimit, SystemClock};

/// Logs errors of one image, at a limited rate.
#[derive(Debug)]
pub(crate) struct ImageLog {
    /// What the image is known as.
    display_name: String,
    rate: Mutex<LogRateLimit>,
}

impl ImageLog {
    /// None yet.
    pub(crate) fn new(display_name: String) -> Self {
        Self { display_name, rate: Mutex::default() }
    }

    /// Says that something is wrong, if there is room for it.
    pub(crate) fn error(&self, what: fmt::Arguments<'_>) {
        let display_name = &self.display_name;
        match self.rate().admit(SystemClock.now()) {
            None => {}
            Some(0) => tracing::error!("{display_name}: {what}"),
            Some(left_out) => {
                tracing::error!(
                    "{display_name}: {what} (and {left_out} more that were not logged)"
                );
            }
        }
    }

    fn rate(&self) -> MutexGuard<'_, LogRateLimit> {
        self.rate.lock().expect("nobody panics here")
    }
}

impl Drop for ImageLog {
    fn drop(&mut self) {
        let left_out = self.rate().forget_left_out();
        if left_out > 0 {
            tracing::error!("{}: {left_out} more sentences were not logged", self.display_name);
        }
    }
}
