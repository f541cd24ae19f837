//! The lock on an image: the byte ranges that QEMU uses, on the description that does the I/O.
//!
//! Where it stands in the life of a request: before the first and after the last. A node's users
//! claim it; `disk` turns that into [`ImageLocks`] and `OpenFile::set_locks` takes them.
//!
//! Byte 100 + n locked (shared) says "I use permission n", byte 200 + n "nobody else may use
//! permission n". Whoever wants something locks its own bytes first and then looks whether
//! anybody holds the opposite ones, so of two that come at once at least one sees the other.
//! Libvirt uses byte 0.
//!
//! Invariants: the locks belong to the open file description (F_OFD_SETLK, fcntl(2)). They last
//! until its last user is gone, and a request in flight is one: they outlive a killed process by
//! as long as its I/O does.
//! Not here: waiting for a lock (`daemon`), who needs which permission (`disk`).

#![expect(unsafe_code, reason = "fcntl takes its lock through a pointer")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use block::{Permission, Permissions};
use rustix::io::Errno;

/// Where the bytes of used permissions begin.
const USES_BASE: libc::off_t = 100;
/// Where the bytes of permissions that others may not use begin.
const DENIES_BASE: libc::off_t = 200;

/// The image locks of one user of an image: what it does with the image, and what others may not do meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImageLocks {
    /// What it does.
    pub uses: Permissions,
    /// What others may not do.
    pub denies: Permissions,
}

impl ImageLocks {
    /// No use, and nothing denied.
    pub const NONE: Self = Self { uses: Permissions::NONE, denies: Permissions::NONE };

    /// As two numbers with a bit for each permission, in QEMU's order: what is used and what is denied.
    pub fn bits(self) -> [u8; 2] {
        [self.uses.bits(), self.denies.bits()]
    }

    /// The locks of these numbers, if there are no other bits in them.
    pub fn from_bits([uses, denies]: [u8; 2]) -> Option<Self> {
        let (uses, denies) = (Permissions::from_bits(uses)?, Permissions::from_bits(denies)?);
        Some(Self { uses, denies })
    }

    /// Whether two users with these locks cannot be at once.
    pub fn conflicts_with(self, other: Self) -> bool {
        let meets = self.uses.both(other.denies).union(self.denies.both(other.uses));
        meets != Permissions::NONE
    }

    /// These and the other ones.
    pub(crate) fn with(self, other: Self) -> Self {
        let (uses, denies) = (self.uses.union(other.uses), self.denies.union(other.denies));
        Self { uses, denies }
    }

    /// These without the other ones.
    fn without(self, other: Self) -> Self {
        let (uses, denies) = (self.uses.without(other.uses), self.denies.without(other.denies));
        Self { uses, denies }
    }

    /// Whether the other ones have all of these.
    pub(crate) fn is_within(self, other: Self) -> bool {
        self.without(other) == Self::NONE
    }
}

/// Whether an image is locked (`locking=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locking {
    /// Where the host can.
    Automatic,
    /// Always; it fails where the host cannot.
    On,
    /// Never: the operator sees to it that nobody else uses the image.
    Off,
}

/// What others may do with an image (`force-share=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// What the users of the node let them do.
    AsClaimed,
    /// Everything: nothing is denied, and what is read may change at any time.
    Forced,
}

/// How an image is locked (`locking=`, `force-share=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    /// Whether it is.
    pub locking: Locking,
    /// What others may do with it.
    pub sharing: Sharing,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { locking: Locking::Automatic, sharing: Sharing::AsClaimed }
    }
}

/// An image could not be locked. The messages are QEMU's.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody forbids what is wanted.
    #[error("Failed to get \"{permission}\" lock: Is another process using the image [{path}]?")]
    Denied {
        /// Which image.
        path: PathBuf,
        /// What was wanted.
        permission: Permission,
    },
    /// Somebody does what is to be forbidden.
    #[error(
        "Failed to get shared \"{permission}\" lock: Is another process using the image [{path}]?"
    )]
    Used {
        /// Which image.
        path: PathBuf,
        /// What was to be forbidden.
        permission: Permission,
    },
    /// Somebody locks the byte exclusively, which QEMU and ringloom never do.
    #[error("Failed to lock byte {byte}: Is another process using the image [{path}]?")]
    Exclusive {
        /// Which image.
        path: PathBuf,
        /// Which byte.
        byte: i64,
    },
    /// Another node of this process has the image, so that waiting is in vain.
    #[error(
        "the image [{path}] is used by another node of this daemon in a way that rules this out"
    )]
    OwnNode {
        /// Which image.
        path: PathBuf,
    },
    /// The process whose place is taken has locked less than this one needs.
    #[error("the image [{path}] was taken over with fewer locks than are needed here")]
    NotInherited {
        /// Which image.
        path: PathBuf,
    },
    /// The host, or the image's file system, has no such locks.
    #[error("this host cannot lock the image [{path}]; locking=off goes without")]
    Unsupported {
        /// Which image.
        path: PathBuf,
        /// What it said.
        #[source]
        source: Errno,
    },
    /// The kernel refused.
    #[error("Failed to lock byte {byte} of the image [{path}]")]
    Kernel {
        /// Which image.
        path: PathBuf,
        /// Which byte.
        byte: i64,
        /// Why.
        #[source]
        source: Errno,
    },
}

impl LockError {
    /// Whether somebody else's process has the image now and may give it back.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Denied { .. } | Self::Used { .. } | Self::Exclusive { .. } => true,
            Self::OwnNode { .. }
            | Self::NotInherited { .. }
            | Self::Unsupported { .. }
            | Self::Kernel { .. } => false,
        }
    }
}

/// Goes from the locks that the description holds to others, or fails and leaves it as it was.
/// Does not wait. What becomes fewer never fails, nor what is held already: others who try it meanwhile are refused,
/// and their locks that are seen until then mean nothing.
pub(crate) fn change(
    fd: BorrowedFd<'_>,
    path: &Path,
    held: ImageLocks,
    wanted: ImageLocks,
) -> Result<(), LockError> {
    if !wanted.is_within(held) {
        let tried =
            lock_bytes(fd, path, held, wanted).and_then(|()| look(fd, path, wanted.without(held)));
        if let Err(error) = tried {
            unlock_bytes(fd, path, wanted, held);
            return Err(error);
        }
    }
    unlock_bytes(fd, path, held, wanted);
    Ok(())
}

/// An open file description and the image locks that it holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DescriptionLocks<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) held: ImageLocks,
}

/// Goes from the locks that a description holds to others as [`change`] does, beside another description of the same
/// process which may rule that out, and keeps what it has. At no time is one of its locks missing.
///
/// The kernel does not say whose lock it found, but leaves out those of the description that asks. So the other
/// description takes everything, and looks for both. This one must have nothing in flight: it is without locks
/// meanwhile.
pub(crate) fn change_beside(
    ours: DescriptionLocks<'_>,
    path: &Path,
    wanted: ImageLocks,
    beside: DescriptionLocks<'_>,
) -> Result<(), LockError> {
    let DescriptionLocks { fd, held } = ours;
    let all = beside.held.with(held).with(wanted);
    let tried = lock_bytes(beside.fd, path, beside.held, all).and_then(|()| {
        unlock_bytes(fd, path, held, ImageLocks::NONE);
        look(beside.fd, path, wanted.without(beside.held))?;
        lock_bytes(fd, path, ImageLocks::NONE, wanted)
    });
    if tried.is_err() {
        // Whoever comes meanwhile finds the other description's locks. What cannot be had back is not held.
        unlock_bytes(fd, path, wanted, held);
        lock_bytes(fd, path, ImageLocks::NONE, held)?;
    }
    unlock_bytes(beside.fd, path, all, beside.held);
    tried
}

/// Locks the bytes that are wanted and not held.
fn lock_bytes(
    fd: BorrowedFd<'_>,
    path: &Path,
    held: ImageLocks,
    wanted: ImageLocks,
) -> Result<(), LockError> {
    for byte in bytes(wanted).filter(|byte| !bytes(held).any(|held| held == *byte)) {
        let mut range = one_byte(libc::F_RDLCK, byte);
        call(fd, libc::F_OFD_SETLK, &mut range).map_err(|errno| match errno {
            Errno::AGAIN | Errno::ACCESS => LockError::Exclusive { path: path.to_owned(), byte },
            errno => refusal(path, byte, errno),
        })?;
    }
    Ok(())
}

/// Unlocks the bytes that may be held and are not wanted.
fn unlock_bytes(fd: BorrowedFd<'_>, path: &Path, held: ImageLocks, wanted: ImageLocks) {
    for byte in bytes(held).filter(|byte| !bytes(wanted).any(|wanted| wanted == *byte)) {
        let mut range = one_byte(libc::F_UNLCK, byte);
        // Where it fails the lock stays: others are kept out for longer than they need be.
        if let Err(errno) = call(fd, libc::F_OFD_SETLK, &mut range)
            && !is_unsupported(errno)
        {
            tracing::warn!("Failed to unlock byte {byte} of [{}]: {errno}", path.display());
        }
    }
}

/// Looks whether anybody else's locks rule this out.
fn look(fd: BorrowedFd<'_>, path: &Path, wanted: ImageLocks) -> Result<(), LockError> {
    for permission in wanted.uses.iter() {
        if is_locked(fd, path, DENIES_BASE + permission as libc::off_t)? {
            return Err(LockError::Denied { path: path.to_owned(), permission });
        }
    }
    for permission in wanted.denies.iter() {
        if is_locked(fd, path, USES_BASE + permission as libc::off_t)? {
            return Err(LockError::Used { path: path.to_owned(), permission });
        }
    }
    Ok(())
}

/// Whether another description has a lock on the byte.
fn is_locked(fd: BorrowedFd<'_>, path: &Path, byte: libc::off_t) -> Result<bool, LockError> {
    let mut range = one_byte(libc::F_WRLCK, byte);
    call(fd, libc::F_OFD_GETLK, &mut range).map_err(|errno| refusal(path, byte, errno))?;
    Ok(libc::c_int::from(range.l_type) != libc::F_UNLCK)
}

/// The bytes that these locks lock.
fn bytes(locks: ImageLocks) -> impl Iterator<Item = libc::off_t> {
    let of = |set: Permissions, base: libc::off_t| {
        set.iter().map(move |permission| base + permission as libc::off_t)
    };
    of(locks.uses, USES_BASE).chain(of(locks.denies, DENIES_BASE))
}

fn refusal(path: &Path, byte: libc::off_t, source: Errno) -> LockError {
    let path = path.to_owned();
    if is_unsupported(source) {
        LockError::Unsupported { path, source }
    } else {
        LockError::Kernel { path, byte, source }
    }
}

/// What says that there are no such locks: EINVAL of a kernel before 3.15 or a sandbox, ENOLCK
/// of NFS without its lock service, the others of file systems.
fn is_unsupported(errno: Errno) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOLCK].contains(&errno)
}

fn one_byte(kind: libc::c_int, byte: libc::off_t) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).expect("the kinds of locks are small numbers"),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).expect("zero"),
        l_start: byte,
        l_len: 1,
        // Must be 0 for locks of a description.
        l_pid: 0,
    }
}

fn call(fd: BorrowedFd<'_>, command: libc::c_int, range: &mut libc::flock) -> Result<(), Errno> {
    loop {
        // SAFETY: both commands read, and F_OFD_GETLK writes, one `struct flock`; `range` is an
        // exclusive reference to one, and the descriptor is open while it is borrowed.
        let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(range)) };
        if result != -1 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        match Errno::from_io_error(&error).expect("the error of a system call has a number") {
            Errno::INTR => {}
            errno => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    const READS: ImageLocks = ImageLocks { uses: Permissions::READS, denies: Permissions::NONE };
    const WRITES: ImageLocks =
        ImageLocks { uses: Permissions::WRITES, denies: Permissions::CHANGES };

    fn two_descriptions() -> (tempfile::NamedTempFile, File, File) {
        let image = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(image.path()).unwrap();
        let (first, second) = (open(), open());
        (image, first, second)
    }

    fn change(file: &File, held: ImageLocks, wanted: ImageLocks) -> Result<(), LockError> {
        super::change(file.as_fd(), Path::new("d.img"), held, wanted)
    }

    /// The bytes on which the other description sees a lock.
    fn seen(other: &File) -> Vec<i64> {
        let is_locked = |byte: &i64| is_locked(other.as_fd(), Path::new("d.img"), *byte).unwrap();
        (0..300).filter(is_locked).collect()
    }

    #[test]
    fn the_bytes_are_those_of_qemu() {
        let (_image, ours, other) = two_descriptions();
        change(&ours, ImageLocks::NONE, WRITES).unwrap();
        assert_eq!(seen(&other), [100, 101, 201, 203]);
        change(&ours, WRITES, READS).unwrap();
        assert_eq!(seen(&other), [100]);
        change(&ours, READS, ImageLocks::NONE).unwrap();
        assert!(seen(&other).is_empty());
    }

    #[test]
    fn who_comes_second_is_refused_in_qemus_words_and_leaves_no_lock() {
        let (_image, ours, other) = two_descriptions();
        change(&ours, ImageLocks::NONE, WRITES).unwrap();
        let error = change(&other, ImageLocks::NONE, WRITES).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Failed to get \"write\" lock: Is another process using the image [d.img]?"
        );
        assert!(error.may_pass());
        assert!(seen(&ours).is_empty());
        // One that only reads may come, and may not begin to write.
        change(&other, ImageLocks::NONE, READS).unwrap();
        change(&other, READS, WRITES).unwrap_err();
        assert_eq!(seen(&ours), [100]);
    }

    #[test]
    fn who_forbids_what_another_does_is_refused() {
        let (_image, ours, other) = two_descriptions();
        // What qemu-storage-daemon takes for a writable export: it denies nothing.
        let peer = ImageLocks { uses: WRITES.uses, denies: Permissions::NONE };
        change(&other, ImageLocks::NONE, peer).unwrap();
        let error = change(&ours, ImageLocks::NONE, WRITES).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Failed to get shared \"write\" lock: Is another process using the image [d.img]?"
        );
        drop(other);
        change(&ours, ImageLocks::NONE, WRITES).unwrap();
    }

    #[test]
    fn a_byte_that_is_locked_exclusively_is_named() {
        let (_image, ours, other) = two_descriptions();
        call(other.as_fd(), libc::F_OFD_SETLK, &mut one_byte(libc::F_WRLCK, 101)).unwrap();
        let error = change(&ours, ImageLocks::NONE, WRITES).unwrap_err();
        assert!(matches!(error, LockError::Exclusive { byte: 101, .. }), "{error}");
        assert!(error.may_pass());
        assert!(!seen(&other).contains(&100), "byte 100 stays locked");
    }

    #[test]
    fn the_lock_lasts_as_long_as_any_descriptor_of_the_description() {
        let (_image, ours, other) = two_descriptions();
        let kept = ours.try_clone().unwrap();
        change(&ours, ImageLocks::NONE, WRITES).unwrap();
        drop(ours);
        change(&other, ImageLocks::NONE, WRITES).unwrap_err();
        drop(kept);
        change(&other, ImageLocks::NONE, WRITES).unwrap();
    }

    #[test]
    fn two_that_come_at_once_never_both_get_it() {
        let (image, ..) = two_descriptions();
        let tries = |_| {
            let file = File::options().read(true).write(true).open(image.path()).unwrap();
            change(&file, ImageLocks::NONE, WRITES).is_ok().then_some(file)
        };
        for round in 0..200 {
            let winners: Vec<File> = std::thread::scope(|scope| {
                let threads = [0, 1].map(|index| scope.spawn(move || tries(index)));
                threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
            });
            assert!(winners.len() <= 1, "round {round}: both got the lock");
        }
    }

    #[test]
    fn locks_are_the_same_after_a_journey_and_other_bits_are_refused() {
        for locks in [ImageLocks::NONE, READS, WRITES] {
            assert_eq!(ImageLocks::from_bits(locks.bits()), Some(locks));
        }
        assert_eq!(ImageLocks::from_bits([16, 0]), None);
        assert_eq!(ImageLocks::from_bits([0, 255]), None);
    }

    #[test]
    fn conflicts_go_both_ways() {
        assert!(WRITES.conflicts_with(WRITES));
        assert!(!READS.conflicts_with(READS));
        assert!(!READS.conflicts_with(WRITES) && !WRITES.conflicts_with(READS));
        let quiet = ImageLocks { denies: WRITES.denies, ..READS };
        assert!(quiet.conflicts_with(WRITES) && WRITES.conflicts_with(quiet));
    }
}
