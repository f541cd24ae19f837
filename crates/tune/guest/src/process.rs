//! A QEMU process: started in a process group of its own, with a log, ended with its owner.
//!
//! Invariants: killed by its own process id and reaped when dropped. Ctrl-C on the terminal reaches only the
//! group of whoever started it.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::Watch;
use crate::clock::wait_for;
use crate::console::{end_of, tail};

/// How long QEMU may take until it listens.
const LISTEN_LIMIT: Duration = Duration::from_secs(30);

/// The process.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the program; what it prints goes to `log`.
    pub(crate) fn start(program: &Path, arguments: &[String], log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let child = Command::new(program)
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file.try_clone().context("share QEMU's log")?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        Ok(Self { child, log: log.to_path_buf() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The end of what it printed.
    pub(crate) fn said(&self) -> String {
        tail(&end_of(&self.log))
    }

    /// How it has ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("look at QEMU")
    }

    /// An error with what it said, if it has ended.
    pub(crate) fn must_run(&mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("QEMU ended with {status}: {}", self.said());
        }
        Ok(())
    }

    /// Waits until it has ended; whether it has.
    pub(crate) fn ends_within(&mut self, limit: Duration) -> Result<bool> {
        let ended = wait_for("QEMU's end", limit, &mut || Ok(()), || Ok(self.child.try_wait()?));
        // Without a status the limit has passed.
        Ok(ended.is_ok() || self.ended()?.is_some())
    }

    /// Connects to a socket on which it listens, or is about to.
    pub(crate) fn connect(&mut self, socket: &Path, watch: Watch<'_>) -> Result<UnixStream> {
        wait_for("QEMU to listen", LISTEN_LIMIT, watch, || {
            self.must_run()?;
            // There is no socket yet, or nobody listens yet.
            Ok(UnixStream::connect(socket).ok())
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that it has ended already, which is what is wanted.
        let _already_ended = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}
