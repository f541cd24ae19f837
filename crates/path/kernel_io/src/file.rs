//! A file or block device that a protocol node stores its bytes in.
//!
//! Where it stands in the life of a request: `disk` opens it once; every iothread does
//! positional I/O on this one open file description (image locks and I/O share it).
//!
//! Invariants: alignment is read once, at open; the size when somebody asks for that. Threads: shared by all iothreads.

mod locks;
mod options;
mod place;

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use block::{
    Alignments, ByteCount, ByteOffset, DurableWriteMethod, FlushPolicy, Medium, SyncAction,
    TakeoverOwner,
};
use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

pub use self::locks::DescriptorInheritError;
use self::locks::LockState;
pub use self::options::{Aio, Caching, FileKind, OpenOptions};
pub use self::place::FilePlace;
use self::place::place_of;
use crate::allocation::MissingMethods;
use crate::bounce::BOUNCE_ALIGNMENT;
use crate::image_lock::Locking;
use crate::known_data::{ExtentQuery, KnownData};
use crate::linux_aio::LinuxAio;
use crate::uring::Uring;
use crate::{BOUNCE_BYTES, FileExtent, KernelError, Notifier, queue_limits};

/// What direct I/O is assumed to need where the kernel does not say.
const ALIGNMENT_FALLBACK: u32 = 4096;

/// The file systems whose bytes are in memory: TMPFS_MAGIC and RAMFS_MAGIC.
const MEMORY_MAGICS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The file systems that take a write into the page cache without waiting, or say EAGAIN: XFS_SUPER_MAGIC and
/// BTRFS_SUPER_MAGIC. Others always say EAGAIN, and nobody can ask without writing.
const NOWAIT_CACHE_MAGICS: [u64; 2] = [0x5846_5342, 0x9123_683e];

/// What kind of storage a file is on: memory (tmpfs), a device that has NOWAIT, or one where every call may block
/// (FUSE, NFS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageBlockingKind {
    /// In memory, on a file system that cannot say that it would block (tmpfs has no NOWAIT): a
    /// plain read is a copy, while io_uring hands each one to a kernel worker.
    Memory,
    /// Where the kernel can be told not to wait (NOWAIT): block devices and file systems on them.
    Device,
    /// Where each call may wait for ever: FUSE, NFS, some targets of the device mapper.
    Elsewhere,
}

impl StorageBlockingKind {
    /// Asks the kernel. What has no NOWAIT is in memory or may take for ever; the file system tells which.
    fn ask(fd: BorrowedFd<'_>) -> Self {
        let in_memory = has_magic(fd, MEMORY_MAGICS);
        let mut byte = [0];
        let mut memory = [IoSliceMut::new(&mut byte)];
        // Only whether the kernel takes the flag matters.
        let probe = rustix::io::preadv2(fd, &mut memory, 0, ReadWriteFlags::NOWAIT);
        match probe {
            Err(Errno::OPNOTSUPP) if in_memory => Self::Memory,
            Err(Errno::OPNOTSUPP) => Self::Elsewhere,
            Ok(_) | Err(_) => Self::Device,
        }
    }
}

fn has_magic(fd: BorrowedFd<'_>, magics: [u64; 2]) -> bool {
    let found = rustix::fs::fstatfs(fd);
    found.is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|it| magics.contains(&it)))
}

/// An open file and what I/O on it needs.
#[derive(Debug)]
pub struct OpenFile {
    medium: Medium,
    path: PathBuf,
    /// Where it has to be, whatever directory the process is in; `None` if that is no path of a file.
    place: Option<PathBuf>,
    fd: OwnedFd,
    /// See [`OpenFile::measure`].
    bytes: AtomicU64,
    kind: FileKind,
    caching: Caching,
    aio: Aio,
    flushes: FlushPolicy,
    residence: StorageBlockingKind,
    supports_nowait_writes: bool,
    physical_block: u32,
    discard_granularity: u32,
    missing_methods: MissingMethods,
    known_data: KnownData,
    identity: FileIdentity,
    locking: Locking,
    /// Held while what this description has locked is changed.
    locks: Mutex<LockState>,
    /// Whether it was said that it cannot be locked.
    warned_without_locks: AtomicBool,
}

/// Which image a file is, whatever its path: device and inode of a regular file, or the device number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity(u64, u64);

impl FileIdentity {
    /// The same in every process: device and inode of a file, or 0 and the device.
    pub fn numbers(self) -> [u64; 2] {
        [self.0, self.1]
    }

    fn of(stat: &rustix::fs::Stat) -> Self {
        if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
            Self(0, stat.st_rdev)
        } else {
            Self(stat.st_dev, stat.st_ino)
        }
    }
}

impl OpenFile {
    /// Opens the file and asks the kernel how it wants to be used. Blocks.
    pub fn open(options: &OpenOptions) -> Result<Self, OpenError> {
        let path = &options.path;
        let cause = |source: Errno| OpenError::Open { path: path.clone(), source };
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
        flags |= match options.access {
            block::Access::ReadOnly => OFlags::RDONLY,
            block::Access::ReadWrite => OFlags::RDWR,
        };
        if options.caching == Caching::Direct {
            flags |= OFlags::DIRECT;
        }
        check_aio(options)?;
        // A named pipe would block in open; whatever it is, it is not what we want.
        check_kind(path, options.kind, rustix::fs::stat(path).map_err(cause)?.st_mode)?;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::INVAL if options.caching == Caching::Direct => {
                OpenError::NoDirect { path: path.clone() }
            }
            source => OpenError::Open { path: path.clone(), source },
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(cause)?;
        check_kind(path, options.kind, stat.st_mode)?;
        let bytes = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(cause)?;
        let BlockSizes { alignments, physical_block, discard_granularity } =
            BlockSizes::ask(fd.as_fd(), options).map_err(cause)?;
        let Alignments { memory, offset, .. } = alignments;
        if offset as usize > BOUNCE_BYTES || memory as usize > BOUNCE_ALIGNMENT {
            return Err(OpenError::Alignment { path: path.clone(), memory, offset });
        }
        Ok(Self {
            medium: medium(path, alignments, options.caching),
            path: path.clone(),
            place: place_of(path),
            residence: StorageBlockingKind::ask(fd.as_fd()),
            supports_nowait_writes: has_magic(fd.as_fd(), NOWAIT_CACHE_MAGICS),
            fd,
            bytes: AtomicU64::new(bytes),
            kind: options.kind,
            caching: options.caching,
            aio: options.aio,
            flushes: options.flushes,
            physical_block,
            discard_granularity,
            missing_methods: MissingMethods::default(),
            known_data: KnownData::default(),
            identity: FileIdentity::of(&stat),
            locking: options.lock.locking,
            locks: Mutex::default(),
            warned_without_locks: AtomicBool::new(false),
        })
    }

    /// Where others find it as long as it is open here.
    pub fn link(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()).into()
    }

    /// Takes over a descriptor that is open already, for I/O without any alignment. `path` is
    /// its name in messages.
    pub fn adopt(fd: OwnedFd, path: PathBuf, bytes: u64, aio: Aio) -> Self {
        // Without the kernel's answer it is like no other file.
        let identity =
            rustix::fs::fstat(&fd).map_or(FileIdentity(0, 0), |stat| FileIdentity::of(&stat));
        Self {
            medium: medium(&path, Alignments::NONE, Caching::Buffered),
            path,
            place: None,
            identity,
            locking: Locking::Off,
            locks: Mutex::default(),
            warned_without_locks: AtomicBool::new(false),
            residence: StorageBlockingKind::ask(fd.as_fd()),
            supports_nowait_writes: has_magic(fd.as_fd(), NOWAIT_CACHE_MAGICS),
            fd,
            bytes: AtomicU64::new(bytes),
            kind: FileKind::Regular,
            caching: Caching::Buffered,
            aio,
            flushes: FlushPolicy::Obeyed,
            physical_block: 512,
            discard_granularity: 1,
            missing_methods: MissingMethods::default(),
            known_data: KnownData::default(),
        }
    }

    /// The same file, on which places and lengths must be multiples of so many bytes, a power of two.
    #[must_use]
    pub fn with_alignment(self, bytes: u32) -> Self {
        let alignments = Alignments { offset: bytes, ..self.medium.alignments() };
        Self { medium: medium(&self.path, alignments, self.caching), ..self }
    }

    /// What does not depend on its being a file.
    pub fn medium(&self) -> &Medium {
        &self.medium
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes when it was last measured; first when it is opened.
    pub fn bytes(&self) -> u64 {
        // Goes with no other data; what lies behind the end, the kernel refuses.
        self.bytes.load(Ordering::Relaxed)
    }

    /// Asks for its size anew, because others may have changed it. For direct I/O what is left of a
    /// block at its end does not count. Does not wait for I/O of a block device; a file system may.
    pub fn measure(&self) -> io::Result<u64> {
        let bytes = self.bytes_now()?;
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    /// How many bytes at its end direct I/O does not reach, and [`OpenFile::bytes`] does not count, now.
    pub fn bytes_out_of_reach(&self) -> io::Result<u64> {
        let found = rustix::fs::seek(&self.fd, SeekFrom::End(0))?;
        Ok(found.saturating_sub(self.within_reach(found)))
    }

    /// Gives a regular file another size; what is new reads as zeroes. A block device has the size that it has. Blocks.
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        rustix::fs::ftruncate(&self.fd, bytes)?;
        self.measure().map(drop)
    }

    /// Its size now, as [`OpenFile::measure`] finds it; who uses it goes on with the size that was measured.
    pub fn bytes_now(&self) -> io::Result<u64> {
        let found = rustix::fs::seek(&self.fd, SeekFrom::End(0))?;
        Ok(self.within_reach(found))
    }

    fn within_reach(&self, size: u64) -> u64 {
        match self.kind {
            FileKind::BlockDevice => size,
            FileKind::Regular => size - size % u64::from(self.medium.alignments().offset),
        }
    }

    /// What sort of file it is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether the host's page cache is used.
    pub fn caching(&self) -> Caching {
        self.caching
    }

    /// Which engine does its I/O.
    pub fn aio(&self) -> Aio {
        self.aio
    }

    /// Where its bytes are.
    pub fn residence(&self) -> StorageBlockingKind {
        self.residence
    }

    /// Whether its file system takes a write into the page cache without waiting (NOWAIT).
    pub(crate) fn supports_nowait_writes(&self) -> bool {
        self.supports_nowait_writes
    }

    /// The physical block size in bytes, for the guest's topology.
    pub fn physical_block(&self) -> u32 {
        self.physical_block
    }

    /// What ranges should be a multiple of, in bytes, that are discarded: less of them has no effect. A
    /// power of two.
    pub fn discard_granularity(&self) -> u32 {
        self.discard_granularity
    }

    /// How it cannot discard or zero, as far as that was tried.
    pub(crate) fn missing_methods(&self) -> &MissingMethods {
        &self.missing_methods
    }

    pub(crate) fn known_data(&self) -> &KnownData {
        &self.known_data
    }

    /// What it has there, if that is known, or what has to be asked. Devices do not tell.
    pub(crate) fn known_extent(
        &self,
        offset: ByteOffset,
        count: ByteCount,
    ) -> Result<FileExtent, ExtentQuery> {
        match self.kind {
            FileKind::BlockDevice => Ok(FileExtent { count, is_hole: false }),
            FileKind::Regular => self.known_data.look(offset, count),
        }
    }

    /// What a query has found, for whoever asked.
    pub(crate) fn found_extent(
        &self,
        offset: ByteOffset,
        query: ExtentQuery,
        found: FileExtent,
    ) -> FileExtent {
        self.known_data.found(offset, query, found, self.bytes())
    }

    /// Which image it is, whatever its path.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Whether nobody was told yet that it cannot be locked; from now on somebody was.
    pub(crate) fn take_lock_warning(&self) -> bool {
        // A lone flag: nothing else is published by it.
        !self.warned_without_locks.swap(true, Ordering::Relaxed)
    }

    /// Forgets what the page cache holds, because another host may have changed the file meanwhile, and
    /// asks for its size anew; fails if it has become smaller. Blocks.
    pub fn refresh(&self) -> io::Result<()> {
        // What is left of a block at the end may have counted before.
        let (bytes, before) = (rustix::fs::seek(&self.fd, SeekFrom::End(0))?, self.bytes());
        if bytes < before {
            return Err(io::Error::other(format!(
                "{} had {before} bytes when it was looked at last, and has {bytes} now",
                self.path.display()
            )));
        }
        self.measure()?;
        // Another process that owns the description has the same page cache.
        if self.caching == Caching::Buffered && self.medium.owner() == TakeoverOwner::This {
            // What is dirty cannot be dropped.
            self.sync_all()?;
            rustix::fs::fadvise(&self.fd, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }

    /// Makes everything written so far durable, if flushes are obeyed. Blocks, also while others
    /// sync: for control threads, not for iothreads.
    pub fn sync(&self) -> io::Result<()> {
        match self.flushes {
            FlushPolicy::Ignored => Ok(()),
            FlushPolicy::Obeyed => self.sync_all(),
        }
    }

    /// Makes everything written so far durable, whatever becomes of flushes: another process, perhaps on another
    /// host, goes on with the file. In its turn, since the kernel tells each loss only once. Blocks, as
    /// [`OpenFile::sync`] does.
    pub fn sync_all(&self) -> io::Result<()> {
        let notifier = Arc::new(Notifier::new()?);
        let waker = Waker::from(Arc::clone(&notifier));
        let ticket = self.medium.sync_turns().ticket();
        let turn = loop {
            match self.medium.sync_turns().try_begin(ticket, &waker) {
                SyncAction::Covered => break None,
                SyncAction::Sync(turn) => break Some(turn),
                SyncAction::Wait => notifier.wait()?,
            }
        };
        if self.medium.has_failed_sync() {
            return Err(io::Error::other("an earlier flush failed and its data may be lost"));
        }
        let Some(turn) = turn else { return Ok(()) };
        let synced = rustix::fs::fdatasync(&self.fd);
        if synced.is_err() {
            self.medium.remember_failed_sync();
        }
        turn.done();
        Ok(synced?)
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Refuses an engine that was asked for and cannot be had.
fn check_aio(options: &OpenOptions) -> Result<(), OpenError> {
    let path = || options.path.clone();
    match options.aio {
        Aio::Automatic | Aio::Threads => Ok(()),
        Aio::IoUring => {
            Uring::probe().map_err(|source| OpenError::NoUring { path: path(), source })
        }
        Aio::Native if options.caching == Caching::Buffered => {
            Err(OpenError::NativeBuffered { path: path() })
        }
        Aio::Native => {
            LinuxAio::probe().map_err(|source| OpenError::NoNative { path: path(), source })
        }
    }
}

fn check_kind(path: &Path, wanted: FileKind, mode: u32) -> Result<(), OpenError> {
    let path = path.to_path_buf();
    match (wanted, FileType::from_raw_mode(mode)) {
        (FileKind::Regular, FileType::RegularFile)
        | (FileKind::BlockDevice, FileType::BlockDevice) => Ok(()),
        (_, FileType::Directory) => Err(OpenError::Directory { path }),
        (wanted, _) => Err(OpenError::Kind { path, wanted }),
    }
}

/// The medium of a file.
fn medium(path: &Path, alignments: Alignments, caching: Caching) -> Medium {
    let stable_writes = match caching {
        Caching::Direct => DurableWriteMethod::ByThemselves,
        Caching::Buffered => DurableWriteMethod::BySync,
    };
    Medium::new(path.display().to_string(), alignments, stable_writes)
}

/// The sizes of a file's blocks, in bytes.
struct BlockSizes {
    alignments: Alignments,
    physical_block: u32,
    discard_granularity: u32,
}

impl BlockSizes {
    fn ask(fd: BorrowedFd<'_>, options: &OpenOptions) -> rustix::io::Result<Self> {
        let (block, allocation, physical_block) = match options.kind {
            FileKind::BlockDevice => {
                let block = rustix::fs::ioctl_blksszget(fd)?;
                (block, block, rustix::fs::ioctl_blkpbszget(fd)?)
            }
            FileKind::Regular => (ALIGNMENT_FALLBACK, 1, 512),
        };
        let discard_granularity = match options.kind {
            FileKind::BlockDevice => {
                queue_limits::discard_granularity(fd).unwrap_or_default().max(block)
            }
            // A part of a block is zeroed.
            FileKind::Regular => 1,
        };
        if options.caching == Caching::Buffered {
            let alignments = Alignments { allocation, ..Alignments::NONE };
            return Ok(Self { alignments, physical_block, discard_granularity });
        }
        let statx = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
        let told = statx.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        let choose = |value: u32| if told && value.is_power_of_two() { value } else { block };
        let offset = choose(statx.stx_dio_offset_align);
        let memory = choose(statx.stx_dio_mem_align);
        let physical_block = physical_block.max(offset);
        let alignments = Alignments { memory, offset, allocation };
        Ok(Self { alignments, physical_block, discard_granularity })
    }
}

/// A file could not be opened. Every message names the path.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel refused.
    #[error("cannot open {path}")]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
    /// A directory has no bytes to serve.
    #[error("{path} is a directory, not a disk image")]
    Directory {
        /// Which one.
        path: PathBuf,
    },
    /// The file is of another sort than the driver serves.
    #[error("{path} is not a {wanted}")]
    Kind {
        /// Which file.
        path: PathBuf,
        /// What was expected.
        wanted: FileKind,
    },
    /// Direct I/O wants more than the bounce buffers give.
    #[error(
        "{path}: direct I/O needs blocks of {offset} bytes and memory aligned to {memory}, more \
         than is supported; use cache.direct=off"
    )]
    Alignment {
        /// Which file.
        path: PathBuf,
        /// What memory must be aligned to.
        memory: u32,
        /// The block size.
        offset: u32,
    },
    /// The host has no io_uring for us.
    #[error("{path}: aio=io_uring cannot be; leave aio out for what the host allows")]
    NoUring {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: KernelError,
    },
    /// The host has no Linux AIO for us.
    #[error("{path}: aio=native cannot be (see fs.aio-max-nr); use aio=threads")]
    NoNative {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Linux AIO blocks on what goes through the page cache.
    #[error("{path}: aio=native was specified, but it requires cache.direct=on")]
    NativeBuffered {
        /// Which file.
        path: PathBuf,
    },
    /// The file system cannot do direct I/O.
    #[error("{path}: this file system has no direct I/O; use cache.direct=off")]
    NoDirect {
        /// Which file.
        path: PathBuf,
    },
}
