//! The table that turns a [`FileId`] back into an open file.
//!
//! Threads: shared by all; the lock is taken once per file and iothread, not per request.

use std::sync::{Arc, RwLock};

use block::FileId;

use crate::OpenFile;

/// All files that nodes have opened. Files stay open as long as the table lives.
#[derive(Debug, Default)]
pub struct FileTable {
    files: RwLock<Vec<Arc<OpenFile>>>,
}

impl FileTable {
    /// Adds an open file.
    pub fn insert(&self, file: Arc<OpenFile>) -> FileId {
        let mut files = self.files.write().expect("no holder of this lock panics");
        let id =
            u32::try_from(files.len()).expect("fewer files than descriptors, which are 31 bit");
        files.push(file);
        FileId(id)
    }

    /// The file of that id, which must come from this table.
    pub fn get(&self, id: FileId) -> Arc<OpenFile> {
        let files = self.files.read().expect("no holder of this lock panics");
        Arc::clone(&files[id.0 as usize])
    }

    /// All files, to make them durable at the end.
    pub fn all(&self) -> Vec<Arc<OpenFile>> {
        self.files.read().expect("no holder of this lock panics").clone()
    }
}
