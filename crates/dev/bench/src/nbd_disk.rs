//! A file as the disk of an NBD server that nobody here wrote: nbdkit, on all CPUs, for as long as rows need it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::clock;

const SERVER: &str = "nbdkit";
const START_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(2);

/// nbdkit with a file; it ends with the value.
#[derive(Debug)]
pub(crate) struct NbdDisk {
    child: Child,
    socket: PathBuf,
    _directory: TempDir,
}

impl NbdDisk {
    /// Starts it, and waits until it listens.
    pub(crate) fn start(file: &Path) -> Result<Self> {
        let directory = TempDir::with_prefix_in("rl-bench-", "/tmp").context("make a directory")?;
        let socket = directory.path().join("nbd");
        let mut command = Command::new(SERVER);
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
        command.arg("file").arg(file).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().with_context(|| format!("start {SERVER}"))?;
        let mut disk = Self { child, socket, _directory: directory };
        let deadline = clock::now() + START_LIMIT;
        while !disk.socket.exists() {
            ensure!(disk.child.try_wait()?.is_none(), "{SERVER} ended");
            ensure!(clock::now() < deadline, "{SERVER} does not listen");
            clock::pause(POLL);
        }
        Ok(disk)
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for NbdDisk {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
