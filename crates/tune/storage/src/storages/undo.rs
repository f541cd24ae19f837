//! What was made and has to be taken away again, in reverse order, on every way out.
//!
//! Invariants: a step is taken away once; one that cannot be is said on standard error, and the
//! steps before it are tried all the same.
//! Limits: something that is still in use is tried for `BUSY_LIMIT`.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::tools::{DMSETUP, LOSETUP, Tools, word};
use crate::clock;
use crate::scratch::Scratch;

/// How long a file system or device may stay in use by processes that are just ending.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// Something that exists until it is taken away.
#[derive(Debug)]
pub enum Step {
    /// A file with data; removes itself.
    Scratch(Scratch),
    /// A file.
    File(PathBuf),
    /// An empty directory.
    Directory(PathBuf),
    /// A loop device.
    Loop(PathBuf),
    /// A file system mounted here.
    Mount(PathBuf),
    /// A device of the kernel's device-mapper, by name.
    Mapped(String),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scratch(scratch) => write!(f, "remove {}", scratch.path().display()),
            Self::File(path) | Self::Directory(path) => write!(f, "remove {}", path.display()),
            Self::Loop(device) => write!(f, "detach the loop device {}", device.display()),
            Self::Mount(path) => write!(f, "unmount {}", path.display()),
            Self::Mapped(name) => write!(f, "remove the device /dev/mapper/{name}"),
        }
    }
}

/// The steps so far.
#[derive(Debug)]
pub struct Undo {
    tools: Tools,
    steps: Vec<Step>,
}

impl Undo {
    /// Nothing so far, to be undone with these programs.
    pub fn new(tools: &Tools) -> Self {
        Self { tools: tools.clone(), steps: Vec::new() }
    }

    /// Call it as soon as the thing exists.
    pub fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Takes the last step away now.
    ///
    /// # Errors
    /// If that cannot be done; it counts as taken away, and is named in the error.
    pub fn pop(&mut self) -> Result<()> {
        match self.steps.pop() {
            Some(step) => self.take_away(step),
            None => Ok(()),
        }
    }

    fn take_away(&self, step: Step) -> Result<()> {
        let name = step.to_string();
        let result = match step {
            Step::Scratch(scratch) => {
                drop(scratch);
                Ok(())
            }
            Step::File(path) => match std::fs::remove_file(path) {
                // qemu-img removes what it could not finish.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result.map_err(Into::into),
            },
            Step::Directory(path) => std::fs::remove_dir(path).map_err(Into::into),
            Step::Loop(device) => {
                self.tools.run_anyway(LOSETUP, &["--detach".as_ref(), word(&device)]).map(drop)
            }
            Step::Mount(path) => {
                let is_busy = |error: &Errno| *error == Errno::BUSY;
                clock::while_held(BUSY_LIMIT, is_busy, || unmount(&path, UnmountFlags::empty()))
                    .map_err(Into::into)
            }
            Step::Mapped(device) => {
                let words = ["remove", "--retry", &device].map(AsRef::as_ref);
                self.tools.run_anyway(DMSETUP, &words).map(drop)
            }
        };
        result.with_context(|| format!("cannot {name}"))
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        while let Some(step) = self.steps.pop() {
            if let Err(error) = self.take_away(step) {
                // Nobody is left to handle it, but the user must know what is left.
                writeln!(io::stderr(), "{error:#}").unwrap_or_default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_goes_first_and_a_failure_does_not_stop_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("file"), "").unwrap();
        let mut undo = Undo::new(&Tools::of_system());
        undo.push(Step::Directory(inner.clone()));
        undo.push(Step::File(inner.join("file")));
        undo.push(Step::File(inner.join("missing")));
        undo.push(Step::Mount(inner.join("missing")));
        drop(undo);
        assert!(!inner.exists());
    }

    #[test]
    fn a_step_that_cannot_be_taken_away_is_named() {
        let mut undo = Undo::new(&Tools::of_system());
        undo.push(Step::Mount(PathBuf::from("/nonexistent/mount")));
        let error = format!("{:#}", undo.pop().unwrap_err());
        assert!(error.starts_with("cannot unmount /nonexistent/mount: No such file"), "{error}");
        assert!(undo.pop().is_ok(), "nothing is left");
    }
}
