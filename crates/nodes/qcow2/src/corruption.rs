//! Who is told that an image turned out to be damaged while it was in use (QEMU's BLOCK_IMAGE_CORRUPTED).
//!
//! Threads: set by a control thread, called by those that load tables: it must not block.
//! Limits: of each image, while it is claimed, one report of damage with which it goes on and one of damage with which it
//! does not.

use std::fmt;
use std::sync::OnceLock;

/// Damage that was found in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corruption {
    /// The node-name.
    pub node: String,
    /// What is wrong.
    pub message: String,
    /// Where in the file, if that is known.
    pub offset: Option<u64>,
    /// Whether the image is not used any more.
    pub is_fatal: bool,
}

type Listener = Box<dyn Fn(Corruption) + Send + Sync>;

/// Where damage of images is reported.
#[derive(Default)]
pub struct CorruptionReports {
    listener: OnceLock<Listener>,
}

impl CorruptionReports {
    /// Has that called for each report. Only the first one that is set is called.
    pub fn listen(&self, listener: impl Fn(Corruption) + Send + Sync + 'static) {
        // Whoever comes second is not told.
        let _told_already = self.listener.set(Box::new(listener));
    }

    pub(crate) fn report(&self, corruption: Corruption) {
        if let Some(listener) = self.listener.get() {
            listener(corruption);
        }
    }
}

impl fmt::Debug for CorruptionReports {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_heard = self.listener.get().is_some();
        formatter.debug_struct("CorruptionReports").field("is_heard", &is_heard).finish()
    }
}
