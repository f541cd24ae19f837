//! The table that turns a [`FileId`] back into an open file.
//!
//! Threads: shared by all; the lock is taken once per file and iothread, not per request. When a file is taken out, the
//! notifiers of all iothreads that use the table are signalled, and those that have it open close it
//! ([`crate::EngineKernel::forget_files`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use block::FileId;

use crate::image_lock::{ImageLocks, LockError};
use crate::{Locking, Notifier, OpenFile};

/// All files that nodes have opened, by [`FileId`]. An id is never used again.
#[derive(Debug, Default)]
pub struct FileTable {
    files: RwLock<Vec<Option<Arc<OpenFile>>>>,
    /// How many were taken out. Stored after that, so who sees it finds them gone.
    removed: AtomicU64,
    /// The notifiers of those who are told.
    bells: Mutex<Vec<Weak<Notifier>>>,
    successions: Mutex<Vec<FileReplacement>>,
}

/// An open file that takes the place of another one on the same image; both may be locked meanwhile.
#[derive(Debug, Clone)]
pub struct FileReplacement {
    /// The file that is in use now.
    pub before: Arc<OpenFile>,
    /// The file that will be.
    pub after: Arc<OpenFile>,
}

/// While this lives, each replacing file may be locked beside the file that it replaces.
#[derive(Debug)]
#[must_use]
pub struct FileReplacementGuard<'a>(&'a FileTable);

impl Drop for FileReplacementGuard<'_> {
    fn drop(&mut self) {
        self.0.successions.lock().expect("no holder of this lock panics").clear();
    }
}

impl FileTable {
    /// Adds an open file.
    pub fn insert(&self, file: Arc<OpenFile>) -> FileId {
        let mut files = self.files.write().expect("no holder of this lock panics");
        let id =
            u32::try_from(files.len()).expect("fewer files than descriptors, which are 31 bit");
        files.push(Some(file));
        FileId(id)
    }

    /// The file of that id, which must be in this table.
    pub fn get(&self, id: FileId) -> Arc<OpenFile> {
        let files = self.files.read().expect("no holder of this lock panics");
        Arc::clone(files[id.0 as usize].as_ref().expect("a file stays as long as it is used"))
    }

    /// Takes a file out that nobody will ask for again. It is closed as soon as nobody uses it; iothreads are told.
    pub fn remove(&self, id: FileId) {
        self.files.write().expect("no holder of this lock panics")[id.0 as usize] = None;
        self.removed.fetch_add(1, Ordering::Release);
        let mut bells = self.bells.lock().expect("no holder of this lock panics");
        bells.retain(|notifier| notifier.upgrade().inspect(|notifier| notifier.wake()).is_some());
    }

    /// Has this notifier signalled whenever a file was taken out, as long as there is the notifier.
    pub fn tell(&self, notifier: &Arc<Notifier>) {
        let mut bells = self.bells.lock().expect("no holder of this lock panics");
        bells.retain(|notifier| notifier.strong_count() > 0);
        bells.push(Arc::downgrade(notifier));
    }

    /// How many files were taken out so far.
    pub(crate) fn removed(&self) -> u64 {
        self.removed.load(Ordering::Acquire)
    }

    /// Whether the file of that id was not taken out.
    pub(crate) fn has(&self, id: FileId) -> bool {
        self.files.read().expect("no holder of this lock panics")[id.0 as usize].is_some()
    }

    /// Lets these files be locked beside those whose place they take, until the hand-over is dropped. The caller sees to
    /// it that nothing is in flight on the one when the other is used, and gives up the locks of the one before
    /// the end. One at a time: only the thread that changes the graph begins any.
    pub fn hand_over(&self, successions: Vec<FileReplacement>) -> FileReplacementGuard<'_> {
        *self.successions.lock().expect("no holder of this lock panics") = successions;
        FileReplacementGuard(self)
    }

    /// The file whose place this one takes just now.
    fn before(&self, file: &Arc<OpenFile>) -> Option<Arc<OpenFile>> {
        let successions = self.successions.lock().expect("no holder of this lock panics");
        let succession = successions.iter().find(|it| Arc::ptr_eq(&it.after, file))?;
        Some(Arc::clone(&succession.before))
    }

    /// Has the file of that id hold these locks from now on, and no others. Fails, and leaves it
    /// as it was, if another process or another file of this table rules that out. Does not wait.
    ///
    /// With [`Locking::Automatic`] a host that cannot lock is told once per image and gone without;
    /// with [`Locking::Off`] other processes are not asked, nor kept out.
    pub fn lock(&self, id: FileId, wanted: ImageLocks) -> Result<(), LockError> {
        let file = self.get(id);
        if file.locking() == Locking::Off {
            return Ok(());
        }
        let is_less = wanted.is_within(file.locks());
        let rules_out = |other: &Arc<OpenFile>| {
            !is_less
                && !Arc::ptr_eq(other, &file)
                && other.identity() == file.identity()
                && other.locks().conflicts_with(wanted)
        };
        let before = self.before(&file).filter(rules_out);
        let is_before =
            |other: &Arc<OpenFile>| before.as_ref().is_some_and(|file| Arc::ptr_eq(other, file));
        if self.all().iter().any(|other| rules_out(other) && !is_before(other)) {
            return Err(LockError::OwnNode { path: file.path().to_owned() });
        }
        let changed = match &before {
            Some(before) => file.set_locks_beside(wanted, before),
            None => file.set_locks(wanted),
        };
        match changed {
            Err(LockError::Unsupported { path, source })
                if file.locking() == Locking::Automatic =>
            {
                if file.take_lock_warning() {
                    tracing::warn!(
                        "image [{}] is not locked, because this host cannot: {source}",
                        path.display()
                    );
                }
                Ok(())
            }
            result => result,
        }
    }

    /// All files, to make them durable at the end.
    pub fn all(&self) -> Vec<Arc<OpenFile>> {
        self.files
            .read()
            .expect("no holder of this lock panics")
            .iter()
            .flatten()
            .cloned()
            .collect()
    }
}
