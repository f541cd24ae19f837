//! A command that runs in the guest.
//!
//! Invariants: its input stays open until it is fed or dropped; dropped, it has ended or its ssh is killed.

use std::io::{self, Read, Seek, SeekFrom};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Check, Files, LOOK, SSH_FAILED, end, feed};
use crate::clock;

/// A command in the guest and the ssh that stands for it here.
#[derive(Debug)]
pub(crate) struct Remote {
    child: Child,
    files: Files,
    /// How much of the output `printed` has given.
    handed: u64,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct RemoteEnd {
    /// Of the command; ssh's own is `is_ssh`.
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    /// What ssh or the command said on standard error.
    pub(crate) said: String,
    pub(crate) ended: Instant,
}

impl RemoteEnd {
    /// Whether ssh failed, not the command.
    pub(crate) fn is_ssh(&self) -> bool {
        self.status.code() == Some(SSH_FAILED)
    }
}

impl Remote {
    pub(super) fn new(child: Child, files: Files) -> Self {
        Self { child, files, handed: 0 }
    }

    /// What it has printed since the last call.
    ///
    /// # Errors
    /// If the file with the output cannot be read.
    pub(crate) fn printed(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = |bytes: &mut Vec<u8>| -> io::Result<usize> {
            let mut file = std::fs::File::open(&self.files.out)?;
            file.seek(SeekFrom::Start(self.handed))?;
            file.read_to_end(bytes)
        };
        read(&mut bytes).context("read what the guest printed")?;
        self.handed += bytes.len() as u64;
        Ok(bytes)
    }

    /// All that it printed, once it has ended.
    ///
    /// # Errors
    /// If its state or output cannot be read.
    pub(crate) fn poll(&mut self) -> Result<Option<RemoteEnd>> {
        let Some(status) = self.child.try_wait().context("look after ssh")? else {
            return Ok(None);
        };
        let ended = clock::now();
        let output = std::fs::read(&self.files.out).context("read what the guest printed")?;
        Ok(Some(RemoteEnd { status, output, said: self.files.said(), ended }))
    }

    /// Gives it its input, which ends then.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        feed(self.child.stdin.take(), bytes)
    }

    /// Waits for its end; `None` if it takes longer.
    pub(super) fn wait(&mut self, limit: Duration, check: Check<'_>) -> Result<Option<RemoteEnd>> {
        let begun = clock::now();
        loop {
            check()?;
            match self.poll()? {
                Some(ended) => return Ok(Some(ended)),
                None if begun.elapsed() > limit => return Ok(None),
                None => clock::pause(LOOK),
            }
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It can fail only if the process is gone already, and nobody is left to tell.
        let _gone = end(&mut self.child);
    }
}
