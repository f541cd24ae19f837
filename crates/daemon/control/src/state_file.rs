//! The state file (`--state`): what a daemon served with last, for the next start.
//!
//! What can go wrong, and what holds then: the process dies, or power fails, in a write: the record before it is whole, in
//! the other half of the file. The disk is full, or a write or sync fails: the change that was to be kept is taken back, and
//! the record before it is written again; if that fails too, nothing is changed any more until a write succeeds. Another
//! daemon uses the file: it is locked. Somebody has edited or cut it: a record whose checksum is wrong does not count, and a
//! file that has no record that counts is refused.
//!
//! Form: two slots of [`SLOT_BYTES`], written in turn: a line `ringloom-state 1 SEQUENCE BYTES CHECKSUM`, then so many
//! bytes of JSON ([`Configuration`]). The one with the higher sequence counts.
//!
//! Invariants: [`StateFile::write`] returns when the record is durable. The file is opened before the fences, and nothing
//! else of the file system is needed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::configuration::Configuration;

/// The bytes of a slot: the longest record, with its first line.
const SLOT_BYTES: u64 = 4 << 20;

/// How a record begins.
const MAGIC: &str = "ringloom-state 1";

/// The longest first line.
const HEAD_BYTES_MAX: usize = 96;

/// A state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The file system refused.
    #[error("state file {}: cannot {action}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another process has it.
    #[error("state file {}: another process uses it", .0.display())]
    InUse(PathBuf),
    /// There is something else in it.
    #[error("state file {}: no state of ringloom is in it that is whole; --state-reset begins anew with the line", .0.display())]
    Damaged(PathBuf),
    /// More than a slot holds.
    #[error("state file {}: the state has {bytes} bytes, and at most {SLOT_BYTES} fit", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: usize,
    },
}

/// An open and locked state file.
#[derive(Debug)]
pub struct StateFile {
    file: File,
    path: PathBuf,
    /// Of the record that counts; 0 if there is none.
    sequence: u64,
}

impl StateFile {
    /// Opens the file, or makes it, and reads what a daemon served with last; `None` if it is empty.
    pub fn open(path: &Path) -> Result<(Self, Option<Configuration>), StateFileError> {
        let mut state = Self::lock(path)?;
        let found = state.latest()?;
        Ok((state, found))
    }

    /// The record that counts, whose sequence is noted.
    fn latest(&mut self) -> Result<Option<Configuration>, StateFileError> {
        let length = self.file.metadata().map_err(|it| self.failed("look at it", it))?.len();
        if length == 0 {
            return Ok(None);
        }
        let slots = [self.read(0)?, self.read(1)?];
        let latest = slots.into_iter().flatten().max_by_key(|(sequence, _)| *sequence);
        let Some((sequence, found)) = latest else {
            if length <= 2 * SLOT_BYTES && self.is_first_unfinished()? {
                return Ok(None);
            }
            return Err(StateFileError::Damaged(self.path.clone()));
        };
        self.sequence = sequence;
        Ok(Some(found))
    }

    /// What is kept in a file, whoever uses it; `None` if there is no file, or nothing in it.
    pub fn peek(path: &Path) -> Result<Option<Configuration>, StateFileError> {
        let failed =
            |source| StateFileError::Io { path: path.to_owned(), action: "open it", source };
        match File::open(path) {
            Ok(file) => Self { file, path: path.to_owned(), sequence: 0 }.latest(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Opens the file, or makes it, and forgets whatever is in it.
    pub fn reset(path: &Path) -> Result<Self, StateFileError> {
        let state = Self::lock(path)?;
        state.file.set_len(0).map_err(|it| state.failed("empty it", it))?;
        state.file.sync_all().map_err(|it| state.failed("sync it", it))?;
        Ok(state)
    }

    fn lock(path: &Path) -> Result<Self, StateFileError> {
        let failed = |action, source| StateFileError::Io { path: path.to_owned(), action, source };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(|it| failed("open it", it))?;
        let regular = file.metadata().map_err(|it| failed("look at it", it))?.is_file();
        if !regular {
            return Err(failed("use it", io::Error::other("it is no regular file")));
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(StateFileError::InUse(path.to_owned()));
            }
            Err(errno) => return Err(failed("lock it", errno.into())),
        }
        // Its name must be durable too.
        let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
        let directory = File::open(directory.unwrap_or(Path::new(".")));
        let synced = directory.and_then(|it| it.sync_all());
        synced.map_err(|it| failed("sync its directory", it))?;
        Ok(Self { file, path: path.to_owned(), sequence: 0 })
    }

    /// Keeps that. Durable when it returns.
    pub fn write(&mut self, configuration: &Configuration) -> Result<(), StateFileError> {
        let json = serde_json::to_string_pretty(configuration).expect("JSON of JSON");
        let sequence = self.sequence + 1;
        let sum = checksum(sequence, json.as_bytes());
        let record = format!("{MAGIC} {sequence} {} {sum:08x}\n{json}\n", json.len());
        if record.len() as u64 > SLOT_BYTES {
            return Err(StateFileError::TooLarge { path: self.path.clone(), bytes: record.len() });
        }
        let place = sequence % 2 * SLOT_BYTES;
        self.file
            .write_all_at(record.as_bytes(), place)
            .map_err(|it| self.failed("write it", it))?;
        self.file.sync_data().map_err(|it| self.failed("sync it", it))?;
        self.sequence = sequence;
        Ok(())
    }

    /// Lets another process lock the file, which goes on with it.
    pub fn unlock(&self) {
        // What cannot be unlocked is unlocked when the process ends.
        let _ends_soon = flock(&self.file, FlockOperation::Unlock);
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record in a slot, if it is whole.
    fn read(&self, slot: u64) -> Result<Option<(u64, Configuration)>, StateFileError> {
        let failed = |it| self.failed("read it", it);
        let place = slot * SLOT_BYTES;
        let mut head = vec![0; HEAD_BYTES_MAX];
        let read = read_at(&self.file, &mut head, place).map_err(failed)?;
        head.truncate(read);
        let Some((head, sequence, bytes, found)) = parse_head(&head) else { return Ok(None) };
        let mut json = vec![0; bytes];
        let read = read_at(&self.file, &mut json, place + head as u64).map_err(failed)?;
        if read < bytes || checksum(sequence, &json) != found {
            return Ok(None);
        }
        Ok(serde_json::from_slice(&json).ok().map(|found| (sequence, found)))
    }

    /// Whether nothing but a part of the first record was ever written. It says what the line of that start says.
    fn is_first_unfinished(&self) -> Result<bool, StateFileError> {
        let head = |place| {
            let mut head = [0; HEAD_BYTES_MAX];
            let read =
                read_at(&self.file, &mut head, place).map_err(|it| self.failed("read it", it));
            read.map(|_| head)
        };
        let (second, first) = (head(0)?, head(SLOT_BYTES)?);
        let is_begun =
            first.iter().zip(MAGIC.as_bytes()).all(|(byte, wanted)| byte == wanted || *byte == 0);
        Ok(second == [0; HEAD_BYTES_MAX] && is_begun)
    }

    fn failed(&self, action: &'static str, source: io::Error) -> StateFileError {
        StateFileError::Io { path: self.path.clone(), action, source }
    }
}

/// Of a record: of the sequence too, or one that was written over by the beginning of a later one would count as that.
fn checksum(sequence: u64, json: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&sequence.to_le_bytes());
    hasher.update(json);
    hasher.finalize()
}

/// How long the first line is, and what it says: sequence, bytes, checksum.
fn parse_head(head: &[u8]) -> Option<(usize, u64, usize, u32)> {
    let end = head.iter().position(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&head[..end]).ok()?;
    let mut words = line.strip_prefix(MAGIC)?.split_whitespace();
    let (sequence, bytes, checksum) = (words.next()?, words.next()?, words.next()?);
    let bytes = bytes.parse().ok().filter(|bytes| *bytes as u64 <= SLOT_BYTES)?;
    Some((end + 1, sequence.parse().ok()?, bytes, u32::from_str_radix(checksum, 16).ok()?))
}

/// Reads as far as the file goes.
fn read_at(file: &File, buffer: &mut [u8], place: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], place + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn configuration(number: usize) -> Configuration {
        let export = json!({"id": format!("e{number}"), "pad": "x".repeat(number * 7)});
        Configuration { exports: vec![export], ..Configuration::default() }
    }

    /// Whatever part of the last write reached the disk, the next start finds that state or the one before it.
    #[test]
    fn a_write_that_was_cut_leaves_the_state_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (mut state, none) = StateFile::open(&path).unwrap();
        assert_eq!(none, None);
        let slot = usize::try_from(SLOT_BYTES).unwrap();
        for number in 1..6 {
            let before = std::fs::read(&path).unwrap();
            state.write(&configuration(number)).unwrap();
            let after = std::fs::read(&path).unwrap();
            let start = (number % 2) * slot;
            let record = after[start..].iter().take_while(|byte| **byte != 0).count();
            let other = directory.path().join("torn");
            std::fs::write(&other, &before).unwrap();
            let torn = OpenOptions::new().write(true).open(&other).unwrap();
            for cut in (start..=start + record).step_by(3) {
                torn.write_all_at(&after[start..cut], start as u64).unwrap();
                match StateFile::open(&other) {
                    Ok((_, Some(found))) => {
                        let expected = [configuration(number - 1), configuration(number)];
                        assert!(expected.contains(&found), "{number} {cut}");
                    }
                    // Of the first one nothing may be there: it says what the line says.
                    Ok((_, None)) if number == 1 => {}
                    other => panic!("{number} {cut}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_file_in_use_and_one_that_is_something_else_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (mut state, _) = StateFile::open(&path).unwrap();
        state.write(&configuration(1)).unwrap();
        let error = StateFile::open(&path).unwrap_err();
        assert!(matches!(error, StateFileError::InUse(..)), "{error}");
        drop(state);
        assert_eq!(StateFile::open(&path).unwrap().1, Some(configuration(1)));
        std::fs::write(&path, "a disk image, perhaps").unwrap();
        let error = StateFile::open(&path).unwrap_err();
        assert!(matches!(error, StateFileError::Damaged(..)), "{error}");
        drop(StateFile::reset(&path).unwrap());
        assert_eq!(StateFile::open(&path).unwrap().1, None);
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused_and_the_one_before_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let (mut state, _) = StateFile::open(&path).unwrap();
        state.write(&configuration(1)).unwrap();
        let error = state.write(&configuration(1 << 20)).unwrap_err();
        assert!(matches!(error, StateFileError::TooLarge { .. }), "{error}");
        drop(state);
        assert_eq!(StateFile::open(&path).unwrap().1, Some(configuration(1)));
    }
}
