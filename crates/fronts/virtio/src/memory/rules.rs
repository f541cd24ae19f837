//! What a front end may share with this process: from which files, and how much.
//!
//! Where it stands in the life of a request: long before it. Every region of guest memory, dirty log and
//! in-flight region is admitted here before anything else is asked of its file.
//!
//! Invariants: a page of an admitted file is had from the kernel alone. A file on FUSE is not: its server, which may
//! be the front end, can keep a page for ever, and a thread that touches the page then sleeps where
//! not even SIGKILL wakes it. So nothing is asked that the file system answers: `fstat` and `fstatfs`
//! of such a file sleep as well. Seals are asked for, which only memory has, and what
//! the kernel remembers of the file (`AT_STATX_DONT_SYNC`).
//! What is mapped is counted before it is mapped, for the rules of an export and for the process.
//! Threads: any. Limits: [`MemoryRules::new`]; three quarters of the address space for the process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use rustix::fs::{AtFlags, FileType, StatxFlags, fcntl_get_seals, makedev, statx};
use rustix::process::{Resource, getrlimit};

use super::{GuestAddress, MemoryError};

/// The most that one session maps unless it is told otherwise: more than any host has today.
pub const SESSION_BYTES_MAX: u64 = 16 << 40;

/// What all sessions of the process have mapped.
static PROCESS: MappedBytes = MappedBytes(AtomicU64::new(0));

/// The most that they map: the rest is for stacks and heaps, without which the process ends.
static PROCESS_BYTES_MAX: LazyLock<u64> = LazyLock::new(|| {
    // Stacks lie at the upper end of what a process has.
    let here = 0_u8;
    let top = (&raw const here).addr() as u64;
    let limit = getrlimit(Resource::As).current.unwrap_or(u64::MAX);
    top.checked_next_power_of_two().unwrap_or(u64::MAX).min(limit) / 4 * 3
});

/// The most that all sessions of this process together can map.
pub fn mappable_bytes() -> u64 {
    *PROCESS_BYTES_MAX
}

/// Which files guest memory may come from besides memfd, tmpfs and hugetlbfs.
#[derive(Debug, Clone, Default)]
pub struct GuestMemoryFilePolicy {
    /// The major number of character devices that are memory (/dev/dax), if the kernel has any.
    pub dax: Option<u32>,
    /// Device numbers of file systems (`st_dev`) that the operator has allowed.
    pub file_systems: Vec<u64>,
}

/// What memory an export's front end may share: from which files, and how much.
#[derive(Debug)]
pub struct MemoryRules {
    files: Arc<GuestMemoryFilePolicy>,
    bytes_max: u64,
    mapped: MappedBytes,
}

impl Default for MemoryRules {
    fn default() -> Self {
        Self::new(Arc::default(), SESSION_BYTES_MAX)
    }
}

impl MemoryRules {
    /// Memory of these files, and so many bytes at a time.
    pub fn new(files: Arc<GuestMemoryFilePolicy>, bytes_max: u64) -> Self {
        Self { files, bytes_max, mapped: MappedBytes(AtomicU64::new(0)) }
    }

    /// How much a session may map at a time.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Takes a file if all its pages are the kernel's to give. Returns at once, whatever the file is.
    pub(crate) fn admit(
        self: &Arc<Self>,
        file: OwnedFd,
    ) -> Result<GuestMemoryFile, ForeignFileError> {
        if self.files.have(file.as_fd()) {
            Ok(GuestMemoryFile { file, rules: Arc::clone(self) })
        } else {
            Err(ForeignFileError(()))
        }
    }
}

impl GuestMemoryFilePolicy {
    /// Whether it is one of them, or memory and nothing else. Returns at once, whatever the file is.
    pub fn have(&self, file: BorrowedFd<'_>) -> bool {
        // Only tmpfs, which memfds are of, and hugetlbfs know seals; the kernel looks at nothing else.
        fcntl_get_seals(file).is_ok() || self.allow(file)
    }

    fn allow(&self, file: BorrowedFd<'_>) -> bool {
        if self.dax.is_none() && self.file_systems.is_empty() {
            return false;
        }
        // No field is asked for, and nothing is to be fetched: type and numbers are known since the file
        // was opened.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let Ok(known) = statx(file, "", flags, StatxFlags::empty()) else { return false };
        match FileType::from_raw_mode(known.stx_mode.into()) {
            FileType::RegularFile => {
                let number = makedev(known.stx_dev_major, known.stx_dev_minor);
                self.file_systems.contains(&number)
            }
            FileType::CharacterDevice => self.dax == Some(known.stx_rdev_major),
            FileType::Directory
            | FileType::Symlink
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket
            | FileType::Unknown => false,
        }
    }
}

/// The descriptor of a file that was admitted as guest memory, with the rules that count its mapped bytes.
#[derive(Debug)]
pub(crate) struct GuestMemoryFile {
    file: OwnedFd,
    rules: Arc<MemoryRules>,
}

impl GuestMemoryFile {
    pub(super) fn into_file(self) -> OwnedFd {
        self.file
    }

    /// Counts so many bytes for a region at this guest address.
    pub(super) fn count(
        &self,
        guest: GuestAddress,
        bytes: u64,
    ) -> Result<ByteReservation, MemoryError> {
        let max = self.rules.bytes_max;
        if !self.rules.mapped.add(bytes, max) {
            return Err(MemoryError::TooMuch { guest, bytes, max });
        }
        if !PROCESS.add(bytes, *PROCESS_BYTES_MAX) {
            self.rules.mapped.subtract(bytes);
            return Err(MemoryError::TooMuchInProcess { guest, bytes, max: *PROCESS_BYTES_MAX });
        }
        Ok(ByteReservation { rules: Arc::clone(&self.rules), bytes })
    }
}

impl AsFd for GuestMemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Mapped bytes counted against the limits of an export and of the process, until dropped.
#[derive(Debug)]
pub(super) struct ByteReservation {
    rules: Arc<MemoryRules>,
    bytes: u64,
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        self.rules.mapped.subtract(self.bytes);
        PROCESS.subtract(self.bytes);
    }
}

/// A count of mapped bytes. Numbers only, which order nothing.
#[derive(Debug)]
struct MappedBytes(AtomicU64);

impl MappedBytes {
    /// Whether there was room.
    fn add(&self, bytes: u64, max: u64) -> bool {
        let sum = |mapped: u64| mapped.checked_add(bytes).filter(|sum| *sum <= max);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
    }

    fn subtract(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A file that guest memory may not come from: a file system could withhold its pages.
#[derive(Debug, thiserror::Error)]
#[error(
    "the front end shares memory of a file that is no memfd and lies on no tmpfs, hugetlbfs or dax device: use \
     memory-backend-memfd,share=on (libvirt: <source type='memfd'/>), or allow files of one file system with \
     --memory-files DIRECTORY"
)]
pub struct ForeignFileError(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_stays_within_its_bound_and_comes_back() {
        let rules = Arc::new(MemoryRules::new(Arc::default(), 100));
        let memfd = || {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            rules.admit(rustix::fs::memfd_create("rules", flags).unwrap()).unwrap()
        };
        let guest = GuestAddress(0);
        let first = memfd().count(guest, 60).unwrap();
        let error = memfd().count(guest, 41).unwrap_err();
        assert!(matches!(error, MemoryError::TooMuch { bytes: 41, max: 100, .. }), "{error}");
        let second = memfd().count(guest, 40).unwrap();
        assert!(memfd().count(guest, u64::MAX).is_err());
        drop(first);
        assert!(memfd().count(guest, 60).is_ok());
        drop(second);
        assert_eq!(rules.mapped.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_process_keeps_a_quarter_of_its_address_space() {
        let most = mappable_bytes();
        let rules = Arc::new(MemoryRules::new(Arc::default(), u64::MAX));
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rules.admit(rustix::fs::memfd_create("rules", flags).unwrap()).unwrap();
        let error = file.count(GuestAddress(0), most + 1).unwrap_err();
        assert!(matches!(error, MemoryError::TooMuchInProcess { .. }), "{error}");
        assert_eq!(rules.mapped.0.load(Ordering::Relaxed), 0);
        assert!(most >= 1 << 38, "{most}");
    }

    #[track_caller]
    fn check(path: &str, files: GuestMemoryFilePolicy, expected: bool) {
        let rules = Arc::new(MemoryRules::new(Arc::new(files), 1));
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        assert_eq!(rules.admit(file.into()).is_ok(), expected, "{path}");
    }

    #[test]
    fn other_files_are_taken_if_their_file_system_or_driver_is_allowed() {
        use std::os::unix::fs::MetadataExt;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let number = std::fs::metadata(path).unwrap().dev();
        // /dev/null stands for a device of dax: its driver has major number 1.
        let some = |dax, file_systems| GuestMemoryFilePolicy { dax, file_systems };
        check(path, some(None, vec![]), false);
        check(path, some(None, vec![number + 1]), false);
        check(path, some(Some(1), vec![number + 1, number]), true);
        check("/dev/null", some(None, vec![]), false);
        check("/dev/null", some(Some(2), vec![number]), false);
        check("/dev/null", some(Some(1), vec![]), true);
    }
}
