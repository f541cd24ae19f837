//! The subject `host`: the load straight on the file, with io_uring, without any daemon.
//!
//! `run` is called by the tuner; each job has a ring of its own on its own thread.
//!
//! Invariants: the buffers live until the kernel has finished with every request of the ring
//! (`RingEngine::drop`).
//! Not here: whether the file allows O_DIRECT (`probe`).
#![expect(unsafe_code, reason = "io_uring takes addresses of memory")]

mod libaio;
mod psync;

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::buffers::Buffers;
use crate::conduct::{Timing, Watch, conduct};
use crate::drive::{Ended, Engine, Outcome};
use crate::light::drive_lightly;
use crate::probe::CacheMode;
use crate::workload::Access;
use crate::{Direction, LoadError, Sample, Workload};

/// Runs the workload on a file or block device.
///
/// # Errors
/// If the file cannot be opened, io_uring is forbidden, a request fails or the watch stops the run.
pub fn run(
    path: &Path,
    cache: CacheMode,
    workload: &Workload,
    timing: Timing,
    watch: &mut dyn Watch,
) -> Result<Sample, LoadError> {
    let file = open(path, cache, workload)
        .map_err(|error| LoadError::set_up(format!("open {}", path.display()), error))?;
    let buffers =
        Buffers::new(workload).map_err(|error| LoadError::set_up("allocate the buffers", error))?;
    let buffers = Arc::new(buffers);
    let file = file.as_raw_fd();
    let makers = (0..workload.shape().jobs())
        .map(|job| {
            let buffers = Arc::clone(&buffers);
            move || RingEngine::new(file, buffers, workload, job)
        })
        .collect();
    conduct(workload, timing, watch, makers, &|| {})
}

/// A way to do I/O without a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// io_uring with registered buffers and a registered file.
    IoUringFixed,
    /// Linux AIO: `io_submit` and `io_getevents`.
    Libaio,
    /// `pread` and `pwrite`, one after the other.
    Psync,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::IoUringFixed, Self::Libaio, Self::Psync];

    /// Its name in tables and results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUringFixed => "io_uring",
            Self::Libaio => "libaio",
            Self::Psync => "psync",
        }
    }
}

/// Runs the workload of one job on the calling thread, timing only a few requests.
///
/// # Errors
/// As [`run`], or if the host refuses the method.
///
/// # Panics
/// If the workload has more than one job.
pub fn run_lightly(
    path: &Path,
    cache: CacheMode,
    method: Method,
    workload: &Workload,
    timing: Timing,
    watch: &mut dyn Watch,
) -> Result<Sample, LoadError> {
    assert_eq!(workload.shape().jobs(), 1, "the calling thread is the only job");
    let file = open(path, cache, workload)
        .map_err(|error| LoadError::set_up(format!("open {}", path.display()), error))?;
    let buffers =
        Buffers::new(workload).map_err(|error| LoadError::set_up("allocate the buffers", error))?;
    let (buffers, fd) = (Arc::new(buffers), file.as_raw_fd());
    match method {
        Method::IoUringFixed => {
            let engine = RingEngine::registered(fd, buffers, workload)?;
            drive_lightly(&mut [engine], workload, timing, watch)
        }
        Method::Libaio => {
            let engine = libaio::LibaioEngine::new(fd, buffers, workload)?;
            drive_lightly(&mut [engine], workload, timing, watch)
        }
        Method::Psync => {
            let engine = psync::PsyncEngine::new(fd, buffers, workload);
            drive_lightly(&mut [engine], workload, timing, watch)
        }
    }
}

/// What a number of bytes moved, or a negative errno, means for a request of `block` bytes.
fn outcome(result: i64, block: u32) -> Outcome {
    match u32::try_from(result) {
        Ok(moved) if moved == block => Outcome::Done,
        Ok(moved) => Outcome::Short(moved),
        Err(_) => {
            let errno = i32::try_from(-result).expect("the kernel returns a small errno");
            Outcome::Failed(io::Error::from_raw_os_error(errno))
        }
    }
}

/// Whether this host lets us use io_uring.
///
/// # Errors
/// The kernel's answer to the attempt.
pub fn available() -> io::Result<()> {
    IoUring::new(1).map(drop)
}

fn open(path: &Path, cache: CacheMode, workload: &Workload) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(workload.shape().operation().writes());
    if cache == CacheMode::Direct {
        let flag = OFlags::DIRECT.bits();
        options.custom_flags(i32::try_from(flag).expect("O_DIRECT fits the flags of open"));
    }
    options.open(path)
}

/// The newest cheap way to run a ring that only its own thread uses, or the plain one.
fn ring(entries: u32) -> io::Result<IoUring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(entries)
        .or_else(|_| IoUring::new(entries)) // Kernels before 6.1 refuse the flags; nothing is lost.
}

struct RingEngine {
    ring: IoUring,
    /// Missing where the file is registered, and the buffers with it.
    file: Option<RawFd>,
    buffers: Arc<Buffers>,
    job: u16,
    block: u32,
    in_flight: usize,
}

impl RingEngine {
    /// `file` must stay open as long as the engine lives; `run` keeps it until all jobs have ended.
    fn new(
        file: RawFd,
        buffers: Arc<Buffers>,
        workload: &Workload,
        job: u16,
    ) -> Result<Self, LoadError> {
        let shape = workload.shape();
        let ring = ring(u32::from(shape.iodepth()))
            .map_err(|error| LoadError::set_up("create an io_uring", error))?;
        Ok(Self { ring, file: Some(file), buffers, job, block: shape.block().get(), in_flight: 0 })
    }

    /// io_uring at its best: one registered buffer for all slots of one job, and a registered file.
    fn registered(
        file: RawFd,
        buffers: Arc<Buffers>,
        workload: &Workload,
    ) -> Result<Self, LoadError> {
        let mut engine = Self::new(file, buffers, workload, 0)?;
        let failed = |what: &'static str| move |error| LoadError::set_up(what, error);
        let submitter = engine.ring.submitter();
        submitter.register_files(&[file]).map_err(failed("register the file"))?;
        let (address, bytes) = engine.buffers.region();
        let region = [libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes }];
        // SAFETY: the region is the mapping of `buffers`, which the engine keeps until nothing is
        // in flight.
        unsafe { submitter.register_buffers(&region) }.map_err(failed("register the buffers"))?;
        engine.file = None;
        Ok(engine)
    }

    fn entry(&self, slot: u16, access: Access) -> Entry {
        let (memory, block) = (self.buffers.slot(self.job, slot).as_ptr(), self.block);
        let (at, registered) = (access.offset, types::Fixed(0));
        let entry = match (access.direction, self.file.map(types::Fd)) {
            (Direction::Read, Some(file)) => {
                opcode::Read::new(file, memory, block).offset(at).build()
            }
            (Direction::Write, Some(file)) => {
                opcode::Write::new(file, memory, block).offset(at).build()
            }
            (Direction::Read, None) => {
                opcode::ReadFixed::new(registered, memory, block, 0).offset(at).build()
            }
            (Direction::Write, None) => {
                opcode::WriteFixed::new(registered, memory, block, 0).offset(at).build()
            }
        };
        entry.user_data(u64::from(slot))
    }

    fn enter(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

impl Engine for RingEngine {
    fn submit(&mut self, slot: u16, access: Access) -> Result<(), LoadError> {
        let entry = self.entry(slot, access);
        // SAFETY: `push` needs the entry's memory and file to stay valid until its completion. The
        // memory is a slot of `self.buffers`, free by the contract of `Engine::submit` and kept by
        // `drop` until the completion; the file is kept open by the caller of `new`, or by the ring
        // where it is registered.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|error| LoadError::set_up("submit to io_uring", io::Error::other(error)))?;
        self.in_flight += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        Ok(()) // `wait` submits and sleeps with one system call.
    }

    fn wait(&mut self, ended: &mut Vec<Ended>) -> Result<(), LoadError> {
        self.enter().map_err(|error| LoadError::set_up("wait for io_uring", error))?;
        for entry in self.ring.completion() {
            self.in_flight -= 1;
            let slot = u16::try_from(entry.user_data()).expect("submit stored a slot");
            ended.push(Ended { slot, outcome: outcome(entry.result().into(), self.block) });
        }
        Ok(())
    }
}

impl Drop for RingEngine {
    /// Waits until the kernel has let go of the buffers; if that fails, they are never unmapped.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            match self.enter() {
                Ok(()) => self.in_flight -= self.ring.completion().count(),
                Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
                Err(_) => {
                    let _leaked = ManuallyDrop::new(Arc::clone(&self.buffers));
                    return;
                }
            }
        }
    }
}
