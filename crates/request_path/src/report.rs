//! The operator's sentence about a failed operation, at a bounded rate for each iothread.

use std::sync::Arc;

use block::{Clock, SentenceRate};

/// Says what failed, not too often.
#[derive(Debug)]
pub(crate) struct Report {
    clock: Arc<dyn Clock>,
    rate: SentenceRate,
}

impl Report {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, rate: SentenceRate::default() }
    }

    /// Logs the sentence if there is room for it.
    pub(crate) fn say(&mut self, sentence: std::fmt::Arguments<'_>) {
        match self.rate.admit(self.clock.now()) {
            None => {}
            Some(0) => tracing::warn!("{sentence}"),
            Some(left_out) => {
                tracing::warn!("{sentence} (and {left_out} more that were not logged)");
            }
        }
    }
}
