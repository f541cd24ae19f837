//! The directory and the empty file that results will be written to, taken before anything is settled.
//!
//! Invariants: only one command at a time has a results file, by a lock that ends with its process. What was made goes
//! again with a claim that no header was written for.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use storage::clock;

use super::{FILE_NAME, Parsed};

/// Consoles of guests, which a refused command may leave a directory for.
const GUESTS: &str = "guests";

/// Who has the lock for longer than this writes; a child between fork and exec has it for a moment.
const PASSING: Duration = Duration::from_secs(1);

/// A results file of ours, still empty.
#[derive(Debug)]
pub struct Claim {
    // Removed before the file is closed: nobody else gets a lock on what goes.
    traces: Traces,
    file: File,
}

impl Claim {
    /// Takes a directory, which is made if it is missing.
    ///
    /// # Errors
    /// If it has results already, another command writes them, or it cannot be written.
    pub fn take(directory: &Path) -> Result<Self> {
        let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let made = directory.ancestors().take_while(is_missing).map(Path::to_path_buf).collect();
        let traces = Traces { file: None, made };
        std::fs::create_dir_all(directory)
            .with_context(|| format!("create {}", directory.display()))?;
        Self::with(traces, directory)
    }

    /// Makes a directory and takes it; `None` if it is there already.
    ///
    /// # Errors
    /// As `take`.
    pub fn make(directory: &Path) -> Result<Option<Self>> {
        match std::fs::create_dir(directory) {
            Ok(()) => {
                let traces = Traces { file: None, made: vec![directory.to_path_buf()] };
                Self::with(traces, directory).map(Some)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error).with_context(|| format!("create {}", directory.display())),
        }
    }

    fn with(mut traces: Traces, directory: &Path) -> Result<Self> {
        let path = directory.join(FILE_NAME);
        let file = open(OpenOptions::new().append(true).create(true), &path)?;
        // Empty is what a command leaves that was killed before its first run.
        if file.metadata().with_context(|| path.display().to_string())?.len() > 0 {
            let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            Parsed::of(&bytes).with_context(|| format!("{} is there already", path.display()))?;
            bail!(
                "{} has results already: --resume goes on with them, another --out keeps them",
                directory.display()
            );
        }
        traces.file = Some(path);
        Ok(Self { traces, file })
    }

    /// The file, which stays.
    pub(super) fn keep(mut self) -> File {
        self.traces.file = None;
        self.traces.made.clear();
        self.file
    }

    pub(super) fn file(&mut self) -> &mut File {
        &mut self.file
    }
}

/// Opens a results file that nobody else writes, and keeps others from it for as long as it is open.
///
/// # Errors
/// If it cannot be opened or another command writes it.
pub(super) fn open(options: &OpenOptions, path: &Path) -> Result<File> {
    let name = path.display();
    let file = options.open(path).with_context(|| format!("open {name}"))?;
    let lock = || flock(&file, FlockOperation::NonBlockingLockExclusive);
    match clock::while_held(PASSING, |error| *error == Errno::WOULDBLOCK, lock) {
        // Some file systems of a network know no locks.
        Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {}
        Err(Errno::WOULDBLOCK) => bail!("{name}: another ringloom tune is writing it"),
        Err(error) => return Err(error).with_context(|| format!("lock {name}")),
    }
    if !is_at(&file, path) {
        bail!("{name}: another ringloom tune removed it just now: try again");
    }
    Ok(file)
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.metadata()) {
        (Ok(open), Ok(there)) => (open.dev(), open.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// What was made for a claim.
#[derive(Debug)]
struct Traces {
    file: Option<PathBuf>,
    /// The directory first, then those above it.
    made: Vec<PathBuf>,
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // If one of these fails something of the user's is in the way, and the error of the command says more.
            drop(std::fs::remove_file(file));
            drop(std::fs::remove_dir(file.with_file_name(GUESTS)));
        }
        for directory in &self.made {
            drop(std::fs::remove_dir(directory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> usize {
        std::fs::read_dir(directory).unwrap().count()
    }

    #[test]
    fn only_one_has_a_file() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("a/b");
        let first = Claim::take(&out).unwrap();
        let error = Claim::take(&out).unwrap_err().to_string();
        assert!(error.ends_with("results.jsonl: another ringloom tune is writing it"), "{error}");
        assert!(out.join(FILE_NAME).exists(), "the second took it away");
        drop(first);
        assert_eq!(names(parent.path()), 0);
    }

    #[test]
    fn what_a_killed_command_left_empty_is_taken() {
        let out = tempfile::tempdir().unwrap();
        std::fs::write(out.path().join(FILE_NAME), "").unwrap();
        drop(Claim::take(out.path()).unwrap().keep());
        assert_eq!(names(out.path()), 1);
    }

    #[test]
    fn a_claim_without_results_takes_away_only_what_it_made() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("out");
        let claim = Claim::make(&out).unwrap().unwrap();
        assert!(Claim::make(&out).unwrap().is_none());
        std::fs::create_dir(out.join(GUESTS)).unwrap();
        drop(claim);
        assert_eq!(names(parent.path()), 0);
        std::fs::create_dir(&out).unwrap();
        drop(Claim::take(&out).unwrap());
        assert_eq!((names(parent.path()), names(&out)), (1, 0));
        let claim = Claim::take(&out).unwrap();
        std::fs::write(out.join("mine"), "").unwrap();
        drop(claim);
        assert_eq!(names(&out), 1);
    }
}
