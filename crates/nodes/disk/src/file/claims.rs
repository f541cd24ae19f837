//! The claims on a file node, and the image locks that they add up to.
//!
//! Who writes uses QEMU's permissions "consistent read" and "write" and denies "write" and
//! "resize", as the disk of a QEMU guest does. Who reads uses "consistent read" and denies
//! nothing, as a read-only export of qemu-storage-daemon.
//!
//! Invariants: the file holds the locks of all its claims together, no fewer and no more; they
//! are changed under the mutex that guards the list of claims. Threads: any but iothreads, for it may block
//! where the file system is on another host.

use std::io;
use std::sync::{Arc, Mutex};

use block::{Claim, ClaimGuard, FileId, Permission, Permissions, Rights};
use kernel_io::{FileTable, ImageLocks, LockError, Sharing};

/// The claims on one file.
#[derive(Debug)]
pub(super) struct FileClaims {
    table: Arc<FileTable>,
    file: FileId,
    sharing: Sharing,
    held: Mutex<Vec<Rights>>,
}

/// What these claims need together.
fn locks(claims: &[Rights], sharing: Sharing) -> ImageLocks {
    let uses = claims.iter().fold(Permissions::NONE, |all, claim| all.union(claim.uses));
    let shares = claims.iter().fold(Permissions::ALL, |all, claim| all.both(claim.shares));
    let denies = match sharing {
        Sharing::AsClaimed => Permissions::ALL.without(shares),
        Sharing::Forced => Permissions::NONE,
    };
    ImageLocks { uses, denies }
}

impl FileClaims {
    pub(super) fn new(table: Arc<FileTable>, file: FileId, sharing: Sharing) -> Self {
        Self { table, file, sharing, held: Mutex::default() }
    }

    /// Adds a claim, and the locks that it needs.
    pub(super) fn claim(self: &Arc<Self>, rights: Rights) -> Result<Claim, LockError> {
        let mut held = self.held.lock().expect("no holder of this lock panics");
        held.push(rights);
        if let Err(error) = self.table.lock(self.file, locks(&held, self.sharing)) {
            held.pop();
            return Err(error);
        }
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

impl ClaimGuard for FileClaim {
    /// Also without flushes (`cache.no-flush`): whoever claims the file next, perhaps on another host, finds what
    /// was written.
    fn flush(&self) -> io::Result<()> {
        if self.rights.uses.has(Permission::Write) {
            self.claims.table.get(self.claims.file).sync_all()?;
        }
        Ok(())
    }

    fn refresh(&self) -> io::Result<()> {
        self.claims.table.get(self.claims.file).refresh()
    }
}

impl Drop for FileClaim {
    fn drop(&mut self) {
        let mut held = self.claims.held.lock().expect("no holder of this lock panics");
        let place = held.iter().position(|rights| *rights == self.rights);
        held.swap_remove(place.expect("a claim is in the list until it is given back"));
        let locks = locks(&held, self.claims.sharing);
        if let Err(error) = self.claims.table.lock(self.claims.file, locks) {
            tracing::warn!("cannot give back a lock: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Access, FlushPolicy};
    use kernel_io::{OpenFile, OpenOptions};

    const READER: Rights = Rights::of_user(Access::ReadOnly);
    const WRITER: Rights = Rights::of_user(Access::ReadWrite);

    #[track_caller]
    fn check(claims: &[Rights], sharing: Sharing, uses: Permissions, denies: Permissions) {
        assert_eq!(locks(claims, sharing), ImageLocks { uses, denies });
    }

    /// A failed sync is remembered, which shows whether there was one.
    #[test]
    fn what_was_written_is_made_durable_before_it_is_given_back_whatever_becomes_of_flushes() {
        for flushes in [FlushPolicy::Obeyed, FlushPolicy::Ignored] {
            let image = tempfile::NamedTempFile::new().unwrap();
            let options =
                OpenOptions { flushes, ..OpenOptions::regular(image.path(), Access::ReadWrite) };
            let table: Arc<FileTable> = Arc::default();
            let file = Arc::new(OpenFile::open(&options).unwrap());
            let id = table.insert(Arc::clone(&file));
            let claims = Arc::new(FileClaims::new(Arc::clone(&table), id, Sharing::AsClaimed));
            let claim = claims.claim(WRITER).unwrap();
            claim.flush().unwrap();
            file.medium().remember_failed_sync();
            claim.flush().unwrap_err();
        }
    }

    #[test]
    fn locks_are_those_of_all_claims_together() {
        let (none, shared, forced) = (Permissions::NONE, Sharing::AsClaimed, Sharing::Forced);
        check(&[], shared, none, none);
        let (reads, writes) = (Permissions::READS, Permissions::WRITES);
        let changes = Permissions::CHANGES;
        check(&[READER], shared, reads, none);
        check(&[WRITER], shared, writes, changes);
        check(&[READER, WRITER, READER], shared, writes, changes);
        let alone = Rights::unchanged_by_others(Access::ReadOnly);
        check(&[alone], shared, reads, changes);
        check(&[alone, READER], forced, reads, none);
    }
}
