//! A command that runs in the guest.
//!
//! Invariants: its input stays open until it is fed or dropped; dropped, it has ended or its ssh is killed.

use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use load::child::{Supervised, read_from};
use storage::clock;

use super::{Check, Files, LOOK, SSH_FAILED, feed};

/// A command in the guest and the ssh that stands for it here.
#[derive(Debug)]
pub(crate) struct Remote {
    child: Supervised,
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
    pub(super) fn new(child: Supervised, files: Files) -> Self {
        Self { child, files, handed: 0 }
    }

    /// What it has printed since the last call.
    ///
    /// # Errors
    /// If the file with the output cannot be read.
    pub(crate) fn printed(&mut self) -> Result<Vec<u8>> {
        let bytes = read_from(&self.files.out, self.handed);
        let bytes = bytes.context("read what the guest printed")?;
        self.handed += bytes.len() as u64;
        Ok(bytes)
    }

    /// All that it printed, once it has ended.
    ///
    /// # Errors
    /// If its state or output cannot be read.
    pub(crate) fn poll(&mut self) -> Result<Option<RemoteEnd>> {
        let Some(status) = self.child.poll().context("look after ssh")? else {
            return Ok(None);
        };
        let ended = clock::now();
        let output = std::fs::read(&self.files.out).context("read what the guest printed")?;
        Ok(Some(RemoteEnd { status, output, said: self.files.said(), ended }))
    }

    /// Gives it its input, which ends then.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        feed(self.child.child().stdin.take(), bytes)
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
