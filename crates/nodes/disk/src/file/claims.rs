//! The claims on a file node, and the image locks that they add up to.
//!
//! Who writes uses QEMU's permissions "consistent read" and "write" and denies "write" and
//! "resize", as the disk of a QEMU guest does. Who reads uses "consistent read" and denies
//! nothing, as a read-only export of qemu-storage-daemon.
//!
//! Invariants: the file holds the locks of all its claims together, no fewer and no more; they
//! are changed under the mutex that guards the counts. Threads: any but iothreads, for it may block
//! where the file system is on another host.

use std::io;
use std::sync::{Arc, Mutex};

use block::{Access, Claim, FileId, Held, Others, Rights};
use kernel_io::{FileTable, ImageLocks, LockError, Permission, Permissions, Sharing};

const READS: Permissions = Permissions::NONE.and(Permission::ConsistentRead);
const WRITES: Permissions = READS.and(Permission::Write);
const CHANGES: Permissions = Permissions::NONE.and(Permission::Write).and(Permission::Resize);

/// The claims on one file.
#[derive(Debug)]
pub(super) struct FileClaims {
    table: Arc<FileTable>,
    file: FileId,
    sharing: Sharing,
    counts: Mutex<Counts>,
}

/// How many claims there are of each sort.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    all: u32,
    writers: u32,
    /// Those that let others only read.
    deniers: u32,
}

impl Counts {
    fn with(self, rights: Rights) -> Self {
        let (writer, denier) = Self::of(rights);
        Self { all: self.all + 1, writers: self.writers + writer, deniers: self.deniers + denier }
    }

    fn without(self, rights: Rights) -> Self {
        let (writer, denier) = Self::of(rights);
        Self { all: self.all - 1, writers: self.writers - writer, deniers: self.deniers - denier }
    }

    fn of(rights: Rights) -> (u32, u32) {
        let writer = u32::from(rights.access == Access::ReadWrite);
        (writer, u32::from(rights.others == Others::Read))
    }

    fn locks(self, sharing: Sharing) -> ImageLocks {
        let uses = match self {
            Self { all: 0, .. } => Permissions::NONE,
            Self { writers: 0, .. } => READS,
            _ => WRITES,
        };
        let denies = match sharing {
            Sharing::AsClaimed if self.deniers > 0 => CHANGES,
            Sharing::AsClaimed | Sharing::Forced => Permissions::NONE,
        };
        ImageLocks { uses, denies }
    }
}

impl FileClaims {
    pub(super) fn new(table: Arc<FileTable>, file: FileId, sharing: Sharing) -> Self {
        Self { table, file, sharing, counts: Mutex::default() }
    }

    /// Adds a claim, and the locks that it needs.
    pub(super) fn claim(self: &Arc<Self>, rights: Rights) -> Result<Claim, LockError> {
        let mut counts = self.counts.lock().expect("no holder of this lock panics");
        let after = counts.with(rights);
        self.table.lock(self.file, after.locks(self.sharing))?;
        *counts = after;
        Ok(Claim::of(FileClaim { claims: Arc::clone(self), rights }))
    }
}

/// The last user of the file is gone: its node, and all claims on it.
impl Drop for FileClaims {
    fn drop(&mut self) {
        self.table.remove(self.file);
    }
}

/// One claim on a file.
#[derive(Debug)]
struct FileClaim {
    claims: Arc<FileClaims>,
    rights: Rights,
}

impl Held for FileClaim {
    /// Also without flushes (`cache.no-flush`): whoever claims the file next, perhaps on another host, finds what
    /// was written.
    fn flush(&self) -> io::Result<()> {
        match self.rights.access {
            Access::ReadOnly => Ok(()),
            Access::ReadWrite => self.claims.table.get(self.claims.file).sync_all(),
        }
    }

    fn refresh(&self) -> io::Result<()> {
        self.claims.table.get(self.claims.file).refresh()
    }
}

impl Drop for FileClaim {
    fn drop(&mut self) {
        let mut counts = self.claims.counts.lock().expect("no holder of this lock panics");
        *counts = counts.without(self.rights);
        let locks = counts.locks(self.claims.sharing);
        if let Err(error) = self.claims.table.lock(self.claims.file, locks) {
            tracing::warn!("cannot give back a lock: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel_io::{Flushes, OpenFile, OpenOptions};

    const READER: Rights = Rights { access: Access::ReadOnly, others: Others::Anything };
    const WRITER: Rights = Rights { access: Access::ReadWrite, others: Others::Read };

    #[track_caller]
    fn check(claims: &[Rights], sharing: Sharing, uses: Permissions, denies: Permissions) {
        let counts = claims.iter().fold(Counts::default(), |counts, it| counts.with(*it));
        assert_eq!(counts.locks(sharing), ImageLocks { uses, denies });
        let none = claims.iter().fold(counts, |counts, it| counts.without(*it));
        assert_eq!(none.locks(sharing), ImageLocks::NONE);
    }

    /// A failed sync is remembered, which shows whether there was one.
    #[test]
    fn what_was_written_is_made_durable_before_it_is_given_back_whatever_becomes_of_flushes() {
        for flushes in [Flushes::Obeyed, Flushes::Ignored] {
            let image = tempfile::NamedTempFile::new().unwrap();
            let options =
                OpenOptions { flushes, ..OpenOptions::regular(image.path(), Access::ReadWrite) };
            let table: Arc<FileTable> = Arc::default();
            let file = Arc::new(OpenFile::open(&options).unwrap());
            let id = table.insert(Arc::clone(&file));
            let claims = Arc::new(FileClaims::new(Arc::clone(&table), id, Sharing::AsClaimed));
            let claim = claims.claim(WRITER).unwrap();
            claim.flush().unwrap();
            file.remember_failed_sync();
            claim.flush().unwrap_err();
        }
    }

    #[test]
    fn locks_are_those_of_all_claims_together() {
        let (none, shared, forced) = (Permissions::NONE, Sharing::AsClaimed, Sharing::Forced);
        check(&[], shared, none, none);
        check(&[READER], shared, READS, none);
        check(&[WRITER], shared, WRITES, CHANGES);
        check(&[READER, WRITER, READER], shared, WRITES, CHANGES);
        let alone = Rights { others: Others::Read, ..READER };
        check(&[alone], shared, READS, CHANGES);
        check(&[alone, READER], forced, READS, none);
    }
}
