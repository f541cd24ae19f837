//! What is said of an image while it is in use: at a bounded rate, since a guest meets the same damage as often as it
//! likes.
//!
//! Threads: any. Limits: those of [`SentenceRate`], for each image.

use std::fmt;
use std::sync::{Mutex, MutexGuard};

use block::{Clock, SentenceRate, SystemClock};

/// The sentences about one image.
#[derive(Debug)]
pub(crate) struct Sentences {
    /// What the image is known as.
    known_as: String,
    rate: Mutex<SentenceRate>,
}

impl Sentences {
    /// None yet.
    pub(crate) fn new(known_as: String) -> Self {
        Self { known_as, rate: Mutex::default() }
    }

    /// Says that something is wrong, if there is room for it.
    pub(crate) fn error(&self, what: fmt::Arguments<'_>) {
        let known_as = &self.known_as;
        match self.rate().admit(SystemClock.now()) {
            None => {}
            Some(0) => tracing::error!("{known_as}: {what}"),
            Some(left_out) => {
                tracing::error!("{known_as}: {what} (and {left_out} more that were not logged)");
            }
        }
    }

    fn rate(&self) -> MutexGuard<'_, SentenceRate> {
        self.rate.lock().expect("nobody panics here")
    }
}

impl Drop for Sentences {
    fn drop(&mut self) {
        let left_out = self.rate().forget_left_out();
        if left_out > 0 {
            tracing::error!("{}: {left_out} more sentences were not logged", self.known_as);
        }
    }
}
