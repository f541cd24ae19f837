//! A program of this host that was started here: looked after, asked to end, killed.
//!
//! Invariants: it does not outlive its `Supervised`, and is signalled by its own pid only. It has a process group of its own,
//! so that an interrupt at the terminal reaches only who started it, and ends it in order.
//! Threads: none; `poll` returns at once, `end` and `drop` wait for at most the patience.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock;

const LOOK: Duration = Duration::from_millis(2);

/// How a program is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// By SIGTERM.
    Terminate,
    /// By the end of its standard input.
    EndInput,
    /// Not at all: it is killed.
    Kill,
}

/// A running program.
#[derive(Debug)]
pub struct Supervised {
    child: Child,
    request: Request,
    patience: Duration,
    status: Option<ExitStatus>,
}

impl Supervised {
    /// Starts a program, which has the time of `patience` to end when it is asked to.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command, request: Request, patience: Duration) -> io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        Ok(Self { child, request, patience, status: None })
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// For its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How it has ended, if it has.
    ///
    /// # Errors
    /// If its state cannot be read.
    pub fn poll(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    /// Asks it to end and waits; `None` if it had to be killed.
    ///
    /// # Errors
    /// If it can neither be asked nor killed.
    pub fn end(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.poll()?.is_none() {
            match self.request {
                // The pid cannot have been given to another process: nobody has waited for the child yet.
                Request::Terminate => kill_process(Pid::from_child(&self.child), Signal::TERM)?,
                Request::EndInput => drop(self.child.stdin.take()),
                Request::Kill => {}
            }
        }
        let asked = clock::now();
        loop {
            if let Some(status) = self.poll()? {
                return Ok(Some(status));
            }
            if asked.elapsed() >= self.patience {
                break;
            }
            clock::pause(LOOK);
        }
        self.child.kill()?;
        self.status = Some(self.child.wait()?);
        Ok(None)
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        // It can fail only if the process is gone already, and nobody is left to tell.
        let _gone = self.end();
    }
}

/// What is in a file from this byte on.
///
/// # Errors
/// If it cannot be read.
pub fn read_from(path: &Path, offset: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
