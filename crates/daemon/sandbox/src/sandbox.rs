//! The fences around the daemon: what a guest gets that has taken an iothread over.
//!
//! Where it stands in the life of a request: around all of them. Prepared before the first thread;
//! iothreads and exports go behind the fences of files and privileges as they start, the first
//! thread when everything is set up, and then system calls are filtered for all.
//!
//! Invariants: a thread is behind the fences before it serves anybody ([`Sandbox::confine`],
//! [`Sandbox::inside`]); [`Sandbox::look_at_threads`] finds one that is not. No
//! fence can be widened or taken down. Why, and what each holds: docs/sandbox.md.
//! Not here: the restriction of io_uring (`kernel_io::uring`), which always holds.

mod file_grants;
mod landlock;
mod privileges;
mod seccomp;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::Access;
use host::chain_of;
use iothread::Confinement;

pub use landlock::LandlockError;
pub use seccomp::SeccompError;

use file_grants::DirectoryGrantPurpose;
use landlock::{ConnectedPorts, LandlockRules};
use seccomp::{FilterNeeds, SeccompFilters};

/// Whether the sandbox is off, used as far as possible, or required (`--sandbox`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxMode {
    /// Nothing.
    Off,
    /// What the host lets it; the rest is said.
    Possible,
    /// All of it; if something cannot be given up, it does not serve.
    Required,
}

/// What the daemon still does behind the fences, which have to let that through.
#[derive(Debug, Default)]
pub struct SandboxNeeds<'a> {
    /// Sockets and the pidfile: removed at the end.
    pub removed: Vec<&'a Path>,
    /// The log file, which may be made anew.
    pub log_file: Option<&'a Path>,
    /// Whether a block device may be written.
    pub writes_devices: bool,
    /// Below which directories commands may open files and make sockets.
    pub allowed: &'a [AllowedDirectory],
    /// On which ports of TCP commands may listen.
    pub listens: Vec<u16>,
    /// Which servers may be connected to.
    pub connects: ConnectNeeds,
}

/// Which servers may be connected to behind the fences: again after a connection was lost, or by commands.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ConnectNeeds {
    /// Ports of TCP, on whatever host.
    pub ports: Vec<u16>,
    /// All ports: a client of a cluster connects to whatever servers that names.
    pub all_ports: bool,
    /// UNIX sockets.
    pub sockets: Vec<PathBuf>,
    /// Whether also those below the directories where commands may make files.
    pub below_allowed: bool,
}

/// A directory below which a running daemon may open files (`--allow-below`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedDirectory {
    /// Where, without links.
    pub path: PathBuf,
    /// Whether only for reading, or also to write, make and remove files and sockets.
    pub access: Access,
}

/// The sandbox of the process: landlock, dropped capabilities, seccomp filters.
#[derive(Debug)]
pub struct Sandbox {
    mode: SandboxMode,
    /// With landlock's version.
    files: Option<(LandlockRules, i32)>,
    /// Where a log file may be made anew.
    logs: Option<PathBuf>,
    /// Where commands may open files.
    allowed: Vec<PathBuf>,
    /// Whether capabilities can be dropped.
    privileges: Option<()>,
    calls: Option<SeccompFilters>,
    /// Whether they are up for all threads, now and later.
    closed: AtomicBool,
}

/// A fence cannot be put up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Around files.
    #[error("cannot confine the daemon to the files that are open")]
    Files(#[source] LandlockError),
    /// Around privileges.
    #[error("cannot give privileges up")]
    Privileges(#[source] io::Error),
    /// Around system calls.
    #[error("cannot filter system calls")]
    Calls(#[source] SeccompError),
    /// Threads cannot be looked at.
    #[error("cannot find out whether all threads are confined")]
    Look(#[source] io::Error),
    /// A thread is not behind the fences.
    #[error("not all threads are confined: {}", .0.join(", "))]
    Threads(Vec<String>),
    /// No thread to try the fences on.
    #[error("cannot try the fences")]
    Try(#[source] io::Error),
}

impl Sandbox {
    /// Finds out which fences can be had, and says which cannot. Call it in the process that
    /// stays, in the directory that paths are relative to; fences nothing yet.
    pub fn prepare(
        mode: SandboxMode,
        needs: &SandboxNeeds<'_>,
    ) -> Result<Option<Arc<Self>>, SandboxError> {
        if mode == SandboxMode::Off {
            return Ok(None);
        }
        // Read of the kernel at its first use, which is refused behind the fences.
        rustix::param::page_size();
        let allowed = needs.allowed;
        let grants = file_grants::of(&needs.removed, needs.log_file, allowed, &needs.connects);
        let has_logs = grants.iter().any(|grant| grant.for_what == DirectoryGrantPurpose::Logs);
        let opening = has_logs || !allowed.is_empty();
        let ids = !host::gives_peer_processes().map_err(SandboxError::Try)?;
        let makes = allowed.iter().any(|allowed| allowed.access == Access::ReadWrite);
        let listens = !needs.listens.is_empty();
        let ConnectNeeds { ports, all_ports, sockets, below_allowed } = &needs.connects;
        let connects = !ports.is_empty() || *all_ports;
        let connects_unix = !sockets.is_empty() || *below_allowed && makes;
        let connected = if *all_ports { ConnectedPorts::All } else { ConnectedPorts::These(ports) };
        let rules = LandlockRules::new(&grants, &needs.listens, connected);
        let needs = FilterNeeds {
            opening,
            makes,
            discards: needs.writes_devices,
            ids,
            listens,
            connects,
            connects_unix,
        };
        let files = rules.and_then(|fence| {
            let version = on_another_thread(|| fence.put_up());
            version.map_err(LandlockError::Share)?.map(|version| (fence, version))
        });
        let privileges = on_another_thread(privileges::give_up).map_err(SandboxError::Try)?;
        let files = mode.judge(files.map_err(SandboxError::Files))?;
        Ok(Some(Arc::new(Self {
            mode,
            files,
            logs: grants
                .into_iter()
                .find(|it| it.for_what == DirectoryGrantPurpose::Logs)
                .map(|it| it.path),
            allowed: allowed.iter().map(|allowed| allowed.path.clone()).collect(),
            privileges: mode.judge(privileges.map_err(SandboxError::Privileges))?,
            calls: mode.judge(SeccompFilters::new(needs).map_err(SandboxError::Calls))?,
            closed: AtomicBool::new(false),
        })))
    }

    /// Does this on a thread behind the fences, or on this one if there are none; the threads that it starts are behind them too.
    pub fn start_inside<T: Send>(
        sandbox: Option<&Self>,
        start: impl FnOnce() -> T + Send,
    ) -> io::Result<T> {
        match sandbox {
            Some(sandbox) => sandbox.inside(start),
            None => Ok(start()),
        }
    }

    fn inside<T: Send>(&self, start: impl FnOnce() -> T + Send) -> io::Result<T> {
        if self.closed.load(Ordering::Relaxed) {
            return Ok(start());
        }
        on_another_thread(|| self.confine().map(|()| start()))?
    }

    /// Finds out whether all other threads are behind the fences. Call it when they are started.
    pub fn look_at_threads(&self) -> Result<(), SandboxError> {
        if self.privileges.is_none() {
            return Ok(());
        }
        let names = privileges::unconfined().map_err(SandboxError::Look);
        let found = names.and_then(|names| match names.as_slice() {
            [] => Ok(()),
            [..] => Err(SandboxError::Threads(names)),
        });
        self.mode.judge(found).map(drop)
    }

    /// Puts the fences up for the calling thread, the last one, and filters the system calls of
    /// all. From here on nothing but what the daemon does now can be done.
    pub fn close(&self) -> Result<(), SandboxError> {
        self.confine().map_err(SandboxError::Privileges)?;
        let filtered = self.calls.as_ref().map(SeccompFilters::put_up).transpose();
        let filtered = self.mode.judge(filtered.map_err(SandboxError::Calls))?;
        let is_filtered = filtered.flatten().is_some();
        self.closed.store(true, Ordering::Relaxed);
        let open = self.logs.iter().chain(&self.allowed);
        let open: Vec<_> = open.map(|path| path.display().to_string()).collect();
        let files = match (&self.files, &open[..]) {
            (None, []) if is_filtered => "no file can be opened".to_owned(),
            (None, _) => "all files can be opened".to_owned(),
            (Some((_, version)), []) => format!("no file can be opened (landlock {version})"),
            (Some((_, version)), open) => {
                format!("no file can be opened but in {} (landlock {version})", open.join(", "))
            }
        };
        let privileges = if self.privileges.is_some() { "no" } else { "all" };
        let calls = if is_filtered { "filtered" } else { "unfiltered" };
        tracing::info!("sandbox: {files}, {privileges} capabilities, system calls {calls}");
        Ok(())
    }
}

/// Puts all fences around this process, which does nothing but look at descriptors and has one thread.
pub fn confine_descriptor_check() -> Result<(), SandboxError> {
    let files = LandlockRules::new(&[], &[], ConnectedPorts::These(&[]))
        .and_then(|fence| fence.put_up().map(drop));
    let privileges = privileges::give_up();
    let calls = SeccompFilters::of_descriptor_check().and_then(|calls| calls.put_up());
    files.map_err(SandboxError::Files)?;
    privileges.map_err(SandboxError::Privileges)?;
    calls.map_err(SandboxError::Calls)
}

impl Confinement for Sandbox {
    fn confine(&self) -> io::Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            // All threads are behind the fences, and those that they start.
            return Ok(());
        }
        if let Some((files, _)) = &self.files {
            files.put_up().map_err(io::Error::other)?;
        }
        if self.privileges.is_some() {
            privileges::give_up()?;
        }
        Ok(())
    }
}

impl SandboxMode {
    /// What there is of a fence: an error if there must be one, otherwise a sentence.
    fn judge<T>(self, fence: Result<T, SandboxError>) -> Result<Option<T>, SandboxError> {
        match (fence, self) {
            (Ok(fence), _) => Ok(Some(fence)),
            (Err(error), Self::Required) => Err(error),
            (Err(error), Self::Possible | Self::Off) => {
                tracing::warn!("sandbox: {}; serving without this fence", chain_of(&error));
                Ok(None)
            }
        }
    }
}

/// Does this on a thread of its own, which ends: what it gives up is given up there alone.
fn on_another_thread<T: Send>(task: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("sandbox".to_owned());
        let thread = thread.spawn_scoped(scope, task)?;
        Ok(thread.join().expect("a panic of a starting thread ends the process"))
    })
}
