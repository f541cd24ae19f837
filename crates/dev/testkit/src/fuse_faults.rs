//! A disk whose faults a test chooses: a FUSE file system that the test itself serves. A server that
//! uses it meets real errors of real system calls, and needs no switch for that.
//!
//! Where it stands: `FaultDisk::mount`, then a server on `FaultDisk::image`. The test adds faults while the server runs
//! and reads the record of calls that arrived. Or `FaultDisk::mount_empty`, then a server on files that it or others make
//! there, whose power is cut.
//!
//! Invariants: every read and write of the server arrives here, also of one that uses the page cache (FOPEN_DIRECT_IO).
//! The disk knows what a power cut would leave for certain (`FaultDisk::durable`): what was synced, or written with O_DSYNC;
//! of the rest a cut leaves any sectors. A failed sync forgets what it should have stored, as the page cache does. What was
//! opened before a cut fails after it. The names of files are durable at once.
//! Threads: one, of the crate `fuser`. Needs root, because only root may mount.
//! Limits: the disk is held in memory, twice.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result};
use fuser::{BackgroundSession, Config, MountOption, SessionACL};
pub use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::deadline::poll_until;
use crate::rng::Rng;

mod file_system;
mod state;

use state::State;

/// The name of the file.
const IMAGE: &str = "disk";

/// What a call asks of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// open; no fault shortens it, and it is not recorded.
    Open,
    /// read and its kin.
    Read,
    /// write and its kin.
    Write,
    /// fsync or fdatasync.
    Sync,
    /// fallocate that punches a hole.
    Punch,
    /// fallocate that zeroes.
    Zero,
    /// fallocate that only makes room.
    Fill,
}

/// What happens instead of what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is done and this is the error.
    Fails(Errno),
    /// Only so many bytes are transferred.
    Short(usize),
    /// Nothing is done or answered before `FaultDisk::release`.
    Held,
}

/// A fault that waits for its call.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The operation that it meets.
    pub operation: Operation,
    /// Only a call that touches one of these bytes; an open or a sync touches none and is met in any case.
    pub bytes: Range<u64>,
    /// What happens.
    pub effect: Effect,
    /// How many calls it meets.
    pub times: u32,
}

impl Fault {
    /// A fault wherever the operation is, so many times.
    pub fn new(operation: Operation, effect: Effect, times: u32) -> Self {
        Self { operation, bytes: 0..u64::MAX, effect, times }
    }
}

/// A call that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What it asked for.
    pub operation: Operation,
    /// The first byte; 0 for a sync.
    pub offset: u64,
    /// The bytes asked for; 0 for a sync.
    pub length: u64,
    /// Whether it was to be durable when it returned (O_DSYNC, RWF_DSYNC).
    pub stable: bool,
}

/// A mounted disk. Servers on it must have ended when it is dropped.
#[derive(Debug)]
pub struct FaultDisk {
    image: PathBuf,
    state: Arc<Mutex<State>>,
    session: Option<BackgroundSession>,
}

impl FaultDisk {
    /// Why there can be none here, if so.
    pub fn missing() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("mounting a disk with faults needs root".to_owned());
        }
        let opened = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        opened.err().map(|error| format!("/dev/fuse: {error}"))
    }

    /// Makes the directory and mounts a disk of zeroes there.
    pub fn mount(directory: &Path, bytes: usize) -> Result<Self> {
        let disk = Self::mount_empty(directory)?;
        disk.state().add(IMAGE.into(), vec![0; bytes]);
        Ok(disk)
    }

    /// Makes the directory and mounts a file system without files there.
    pub fn mount_empty(directory: &Path) -> Result<Self> {
        std::fs::create_dir(directory).context("make the mount point")?;
        let state = Arc::new(Mutex::new(State::new()));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("faults".to_owned()), MountOption::NoAtime];
        // A daemon need not be root's.
        config.acl = SessionACL::All;
        let system = file_system::FileSystem::new(Arc::clone(&state));
        let session = fuser::spawn_mount(system, directory, &config)
            .with_context(|| format!("mount a disk with faults at {}", directory.display()))?;
        Ok(Self { image: directory.join(IMAGE), state, session: Some(session) })
    }

    /// The path of the disk.
    pub fn image(&self) -> PathBuf {
        self.image.clone()
    }

    /// Adds a fault. Of several that meet a call, the oldest is taken.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    /// Takes away all faults that wait, and answers what is held.
    pub fn release(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.release();
    }

    /// How many calls are held.
    pub fn held(&self) -> usize {
        self.state().held()
    }

    /// Waits until so many calls are held.
    pub fn wait_held(&self, calls: usize, limit: Duration) -> Result<()> {
        poll_until("calls to be held", limit, || Ok((self.held() == calls).then_some(())))
    }

    /// Takes the record of the calls that arrived since the last time.
    pub fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state().calls)
    }

    /// What a reader finds in the range.
    pub fn content(&self, bytes: Range<usize>) -> Vec<u8> {
        self.state().files[0].content[bytes].to_vec()
    }

    /// What a power cut would leave in the range.
    pub fn durable(&self, bytes: Range<usize>) -> Vec<u8> {
        self.state().files[0].durable[bytes].to_vec()
    }

    /// Cuts the power: of what is not durable any sectors are lost, and what is open fails. To be called when the servers on it
    /// were killed.
    pub fn cut_power(&self, rng: &mut Rng) {
        self.state().cut_power(rng);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl Drop for FaultDisk {
    fn drop(&mut self) {
        self.release();
        // Detached, because the kernel takes the io_urings of a process that has ended down later, and lets go of their
        // files only then.
        let directory = self.image.parent().expect("the disk is in a directory");
        let unmounted = unmount(directory, UnmountFlags::DETACH);
        // It would unmount a second time, which has no effect but a line in a log that nobody reads.
        drop(self.session.take());
        if !std::thread::panicking() {
            assert!(unmounted.is_ok(), "{} stays mounted: {unmounted:?}", directory.display());
        }
    }
}
