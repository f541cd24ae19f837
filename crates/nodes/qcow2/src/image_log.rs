//! What is said of an image while it is in use: at a bounded rate, since a guest meets the same damage as often as it
//! likes.
//!
//! Threads: any. Limits: those of [`LogRateLimit`], for each image.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use block::{Clock, LogRateLimit, SystemClock};

use crate::corruption::{Corruption, CorruptionReports};

/// Logs errors of one image, at a limited rate.
#[derive(Debug)]
pub(crate) struct ImageLog {
    /// What the image is known as.
    display_name: String,
    rate: Mutex<LogRateLimit>,
    /// The node-name, and who is told of damage.
    reports: OnceLock<(String, Arc<CorruptionReports>)>,
    /// Whether damage was reported with which the image goes on.
    is_reported: AtomicBool,
}

impl ImageLog {
    /// None yet.
    pub(crate) fn new(display_name: String) -> Self {
        let (reports, is_reported) = (OnceLock::new(), AtomicBool::new(false));
        Self { display_name, rate: Mutex::default(), reports, is_reported }
    }

    /// Has damage reported there, with this node-name. Called once.
    pub(crate) fn report_to(&self, node: &str, reports: &Arc<CorruptionReports>) {
        let _is_first = self.reports.set((node.to_owned(), Arc::clone(reports)));
    }

    /// Says that the image is damaged, and reports it: of damage that is not fatal only the first one.
    pub(crate) fn corrupt(&self, is_fatal: bool, offset: Option<u64>, what: fmt::Arguments<'_>) {
        self.error(what);
        // A lone flag: nothing else is published by it.
        if let Some((node, reports)) = self.reports.get()
            && (is_fatal || !self.is_reported.swap(true, Ordering::Relaxed))
        {
            let (node, message) = (node.clone(), what.to_string());
            reports.report(Corruption { node, message, offset, is_fatal });
        }
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
