//! The disks of the exports that are served, for threads that look at them beside the first one.
//!
//! Threads: the first one enters them and takes them out; any reads. Whoever has a disk from here keeps no export alive, but
//! its files open as long as it looks at them.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use exports::ExportedDisk;

/// The disks that are served.
#[derive(Debug, Default)]
pub struct ServedDisks(Mutex<Vec<Weak<ExportedDisk>>>);

impl ServedDisks {
    /// Those that are served now.
    pub fn all(&self) -> Vec<Arc<ExportedDisk>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn enter(&self, disk: &Arc<ExportedDisk>) {
        let mut disks = self.lock();
        disks.retain(|disk| disk.strong_count() > 0);
        disks.push(Arc::downgrade(disk));
    }

    pub(crate) fn leave(&self, id: &str) {
        self.lock().retain(|disk| disk.upgrade().is_some_and(|disk| disk.id != id));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<ExportedDisk>>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}
