//! The image locks of an open file, and whose they are while one process takes another's place.
//!
//! Where it stands: `disk` says which locks the claims on a file add up to. During a takeover the old process
//! sends its descriptor, and the new one goes on with the same description: the locks on it never lapse.
//!
//! Invariants: as long as the other process owns the description, nothing is locked or unlocked on it here, so
//! what this process wants can only be what is locked already; [`OpenFile::own`] then gives back the rest.
//! Threads: any; the state, and which process owns it, is changed under a mutex.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use block::TakeoverOwner;
use rustix::fs::OFlags;

use super::{FileIdentity, OpenFile};
use crate::exchange::exchange_file;
use crate::image_lock::{self, DescriptionLocks, ImageLocks, LockError, Locking};

/// The image locks of one open file description: those held, those wanted, and which process owns it.
#[derive(Debug, Default)]
pub(super) struct LockState {
    held: ImageLocks,
    /// What is wanted: `held`, unless the other process owns the description.
    wanted: ImageLocks,
}

/// Why a descriptor of the old process cannot be used by the new one in a takeover.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorInheritError {
    /// It is of another file.
    #[error("the descriptor is of another file than {path}", path = .0.display())]
    OtherFile(std::path::PathBuf),
    /// It was opened in another way.
    #[error("{path} was opened in another way (flags {theirs:#o}, here {ours:#o})", path = .path.display())]
    OtherFlags {
        /// Which file.
        path: std::path::PathBuf,
        /// How the other process has opened it: its access mode and O_DIRECT.
        theirs: u32,
        /// How this one has.
        ours: u32,
    },
    /// The other process has not handed it over.
    #[error("{path} was not handed over", path = .0.display())]
    Missing(std::path::PathBuf),
    /// Another export of this process has locked it already.
    #[error("{path} is already in use here", path = .0.display())]
    InUse(std::path::PathBuf),
    /// The kernel refused.
    #[error("the descriptor cannot be used for {path}", path = .path.display())]
    Kernel {
        /// Which file.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl OpenFile {
    /// Whether it is to be locked.
    pub(crate) fn locking(&self) -> Locking {
        self.locking
    }

    /// What this description has locked.
    pub fn locks(&self) -> ImageLocks {
        self.lock_state().held
    }

    /// Goes over to other locks, or fails and keeps those it had. Does not wait; giving locks up
    /// never fails. While another process owns the description nothing is changed on it.
    pub(crate) fn set_locks(&self, wanted: ImageLocks) -> Result<(), LockError> {
        let mut locks = self.lock_state();
        match self.medium.owner() {
            TakeoverOwner::This => {
                image_lock::change(self.fd.as_fd(), &self.path, locks.held, wanted)?;
                locks.held = wanted;
            }
            TakeoverOwner::Other
                if self.locking == Locking::Off || wanted.is_within(locks.held) => {}
            // The other process goes without, because the host cannot lock; `own` tries once more.
            TakeoverOwner::Other
                if self.locking == Locking::Automatic && locks.held == ImageLocks::NONE => {}
            TakeoverOwner::Other => {
                return Err(LockError::NotInherited { path: self.path.clone() });
            }
        }
        locks.wanted = wanted;
        Ok(())
    }

    /// Goes over to other locks as [`OpenFile::set_locks`] does, beside another file of the same image in this
    /// process, whose place it takes and whose locks are left out of account. Nothing may be in flight here.
    pub(crate) fn set_locks_beside(
        &self,
        wanted: ImageLocks,
        before: &Self,
    ) -> Result<(), LockError> {
        let theirs = before.lock_state();
        let mut locks = self.lock_state();
        let beside = DescriptionLocks { fd: before.fd.as_fd(), held: theirs.held };
        let ours = DescriptionLocks { fd: self.fd.as_fd(), held: locks.held };
        image_lock::change_beside(ours, &self.path, wanted, beside)?;
        (locks.held, locks.wanted) = (wanted, wanted);
        Ok(())
    }

    /// Goes on with the description of another process, which has these locks and owns them until
    /// [`OpenFile::own`]. Nothing may have used the file yet but for reading it.
    pub fn inherit(
        &self,
        theirs: BorrowedFd<'_>,
        held: ImageLocks,
    ) -> Result<(), DescriptorInheritError> {
        let path = || self.path.clone();
        let failed = |source: rustix::io::Errno| DescriptorInheritError::Kernel {
            path: path(),
            source: source.into(),
        };
        let mut locks = self.lock_state();
        if self.medium.owner() == TakeoverOwner::Other || locks.held != ImageLocks::NONE {
            return Err(DescriptorInheritError::InUse(path()));
        }
        let flags = |fd: BorrowedFd<'_>| {
            let flags = rustix::fs::fcntl_getfl(fd).map_err(failed)?;
            Ok((flags & (OFlags::RWMODE | OFlags::DIRECT | OFlags::APPEND | OFlags::PATH)).bits())
        };
        let (ours, other) = (flags(self.fd.as_fd())?, flags(theirs)?);
        if ours != other {
            return Err(DescriptorInheritError::OtherFlags { path: path(), theirs: other, ours });
        }
        if FileIdentity::of(&rustix::fs::fstat(theirs).map_err(failed)?) != self.identity {
            return Err(DescriptorInheritError::OtherFile(path()));
        }
        exchange_file(&self.fd, theirs)
            .map_err(|source| DescriptorInheritError::Kernel { path: path(), source })?;
        *locks = LockState { held, wanted: ImageLocks::NONE };
        self.medium.set_owner(TakeoverOwner::Other);
        Ok(())
    }

    /// From now on this process owns the description: what it does not want of the locks is given back.
    pub fn own(&self) {
        let mut locks = self.lock_state();
        if self.medium.owner() == TakeoverOwner::This {
            return;
        }
        if let Err(error) =
            image_lock::change(self.fd.as_fd(), &self.path, locks.held, locks.wanted)
        {
            // Fewer locks are never refused; this host cannot lock.
            tracing::warn!("{error}");
        }
        locks.held = locks.wanted;
        self.medium.set_owner(TakeoverOwner::This);
    }

    /// From now on the other process owns the description, and its locks are not touched here any more.
    pub fn leave(&self) {
        let _locks = self.lock_state();
        self.medium.set_owner(TakeoverOwner::Other);
    }

    fn lock_state(&self) -> std::sync::MutexGuard<'_, LockState> {
        self.locks.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenOptions;
    use crate::{FileReplacement, FileTable};
    use block::{Access, Permission, Permissions};
    use std::sync::Arc;

    const READS: ImageLocks = ImageLocks { uses: Permissions::READS, denies: Permissions::NONE };
    const WRITES: ImageLocks =
        ImageLocks { uses: Permissions::WRITES, denies: Permissions::NONE.and(Permission::Write) };

    fn open(image: &tempfile::NamedTempFile, access: Access) -> OpenFile {
        let options = OpenOptions::regular(image.path(), access);
        OpenFile::open(&options).unwrap()
    }

    /// Two processes are two files here: what counts are the descriptions.
    #[test]
    fn the_locks_of_a_description_that_changes_hands_never_lapse() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let (old, new) = (open(&image, Access::ReadWrite), open(&image, Access::ReadWrite));
        let third = open(&image, Access::ReadWrite);
        old.set_locks(WRITES).unwrap();
        new.inherit(old.as_fd(), old.locks()).unwrap();
        let refused = |when| assert!(third.set_locks(WRITES).is_err(), "{when}");
        refused("inherited");
        new.set_locks(WRITES).unwrap();
        new.set_locks(ImageLocks::NONE).unwrap();
        refused("the new one has given up before it owned anything");
        new.set_locks(READS).unwrap();
        old.leave();
        old.set_locks(ImageLocks::NONE).unwrap();
        refused("the old one has left");
        drop(old);
        refused("the old one has closed it");
        new.own();
        assert_eq!(new.locks(), READS);
        third.set_locks(WRITES).unwrap();
        third.set_locks(ImageLocks::NONE).unwrap();
        new.set_locks(WRITES).unwrap();
        refused("and it locks as before");
        new.set_locks(ImageLocks::NONE).unwrap();
        third.set_locks(WRITES).unwrap();
    }

    #[test]
    fn nothing_more_is_locked_while_the_other_process_owns_it() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let (old, new) = (open(&image, Access::ReadWrite), open(&image, Access::ReadWrite));
        old.set_locks(READS).unwrap();
        new.inherit(old.as_fd(), old.locks()).unwrap();
        let error = new.set_locks(WRITES).unwrap_err();
        assert!(matches!(error, LockError::NotInherited { .. }) && !error.may_pass(), "{error}");
        new.own();
        old.leave();
        new.set_locks(WRITES).unwrap();
    }

    #[test]
    fn an_image_that_could_not_be_locked_changes_hands_without() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let (old, new) = (open(&image, Access::ReadWrite), open(&image, Access::ReadWrite));
        new.inherit(old.as_fd(), ImageLocks::NONE).unwrap();
        new.set_locks(WRITES).unwrap();
        new.own();
        assert_eq!(new.locks(), WRITES);
    }

    #[test]
    fn a_description_of_something_else_is_refused() {
        let images = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
        let (new, other) =
            (open(&images[0], Access::ReadWrite), open(&images[1], Access::ReadWrite));
        let error = new.inherit(other.as_fd(), WRITES).unwrap_err();
        assert!(matches!(error, DescriptorInheritError::OtherFile(_)), "{error}");
        let reader = open(&images[0], Access::ReadOnly);
        let error = new.inherit(reader.as_fd(), READS).unwrap_err();
        assert!(matches!(error, DescriptorInheritError::OtherFlags { .. }), "{error}");
        new.set_locks(WRITES).unwrap();
        let same = open(&images[0], Access::ReadWrite);
        let error = new.inherit(same.as_fd(), WRITES).unwrap_err();
        assert!(matches!(error, DescriptorInheritError::InUse(_)), "{error}");
    }

    /// One process has opened the image twice, and its second file takes the place of the first.
    #[test]
    fn a_file_that_takes_the_place_of_another_one_is_locked_beside_it_and_others_still_count() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let table = FileTable::default();
        let (before, after) = (open(&image, Access::ReadWrite), open(&image, Access::ReadWrite));
        let (before, after) = (Arc::new(before), Arc::new(after));
        let ids = [&before, &after].map(|file| table.insert(Arc::clone(file)));
        let other = open(&image, Access::ReadWrite);
        let alone = ImageLocks { denies: WRITES.denies, ..READS };
        table.lock(ids[0], alone).unwrap();
        other.set_locks(alone).unwrap();
        let error = table.lock(ids[1], WRITES).unwrap_err();
        assert!(matches!(error, LockError::OwnNode { .. }), "{error}");
        let succession = FileReplacement { before: Arc::clone(&before), after: Arc::clone(&after) };
        let hand_over = table.hand_over(vec![succession]);
        let error = table.lock(ids[1], WRITES).unwrap_err();
        let write = Permission::Write;
        assert!(matches!(error, LockError::Denied { permission, .. } if permission == write));
        assert_eq!((before.locks(), after.locks()), (alone, ImageLocks::NONE));
        other.set_locks(ImageLocks::NONE).unwrap();
        table.lock(ids[1], READS).unwrap();
        table.lock(ids[1], WRITES).unwrap();
        other.set_locks(alone).unwrap_err();
        table.lock(ids[0], ImageLocks::NONE).unwrap();
        drop(hand_over);
        other.set_locks(alone).unwrap_err();
        assert!(table.lock(ids[0], alone).is_err(), "the hand-over is over");
        table.lock(ids[1], ImageLocks::NONE).unwrap();
        other.set_locks(WRITES).unwrap();
    }
}
