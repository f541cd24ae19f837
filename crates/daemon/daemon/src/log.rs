//! Where the log goes: to stderr, to a file that may be rotated, or to the host's journal or syslog.
//!
//! Where it stands: made before anything else, so that all that is said goes the same way; whoever formats lines hands
//! them over one by one ([`Log::write`]). A process in the background says what concerns its start to stderr as well, and
//! then nothing there any more.
//!
//! Invariants: a line that cannot be written is counted and never a reason to end; the next one that can says how many
//! were lost. While guests are served nobody waits for whoever reads the log, or for the disk that it is on: a thread of
//! its own writes.
//! Limits: a mebibyte of lines waits. Threads: any; lines of several threads follow one another.
//! Not here: what is said, its level and its form (`ringloom`).

mod queue;
mod system;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use options::{Daemonize, Plan};
use rustix::fs::OFlags;

use queue::{LogLine, LogQueue, StderrEcho};
use system::SystemLog;

/// How urgent a line is, with its number in syslog(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Something has failed.
    Error = 3,
    /// Something is not as it should be.
    Warning = 4,
    /// Something that an operator wants to know.
    Info = 6,
    /// Everything else.
    Debug = 7,
}

/// How many bytes of lines wait for the thread that writes them; what is more is lost.
const WAITING_MAX: usize = 1 << 20;

/// How long the end of the process waits for the lines that are not written yet.
const PATIENCE: Duration = Duration::from_secs(1);

/// The log of the process: stderr, a file, the journal or syslog.
#[derive(Debug)]
pub struct Log {
    outlet: Arc<Mutex<LogOutput>>,
    queue: Arc<LogQueue>,
}

/// Where log lines go now, and how many were lost.
#[derive(Debug)]
struct LogOutput {
    /// Where lines go; to stderr if there is none.
    place: Option<LogDestination>,
    stderr: StderrMode,
    /// Lines that could not be written.
    lost: u64,
}

/// Where log lines go instead of stderr.
#[derive(Debug)]
enum LogDestination {
    File { path: PathBuf, file: File },
    System(SystemLog),
}

/// What stderr is used for while the log goes somewhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StderrMode {
    /// Lines go there, too: somebody watches the start.
    Told,
    /// It is left to errors that end the process.
    Quiet,
    /// It leads to the file.
    File,
}

/// A log file that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LogFileError {
    /// It cannot be opened.
    #[error("log file {}: cannot open it", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A line has been on its way for a while: its disk hangs, or nobody reads it.
    #[error("the log takes no lines just now")]
    Stuck,
}

impl Log {
    /// On stderr.
    pub fn on_stderr() -> Self {
        Self::new(None, StderrMode::Told)
    }

    fn new(place: Option<LogDestination>, stderr: StderrMode) -> Self {
        let outlet = Arc::new(Mutex::new(LogOutput { place, stderr, lost: 0 }));
        Self { outlet, queue: Arc::new(LogQueue::new(WAITING_MAX)) }
    }

    /// The log that a plan asks for. Call it before the process goes to the background.
    pub fn open(plan: &Plan) -> Result<Self, LogFileError> {
        let file = plan.log_file.as_deref().map(LogDestination::open).transpose()?;
        Ok(match (plan.daemonize, file) {
            (Daemonize::Foreground, Some(file)) => Self::new(Some(file), StderrMode::Quiet),
            (Daemonize::Foreground, None) => Self::on_stderr(),
            (Daemonize::Background, file) => {
                let system = || SystemLog::connect().map(LogDestination::System);
                Self::new(file.or_else(system), StderrMode::Told)
            }
        })
    }

    /// Writes a line, which ends in a newline; once there is a thread that writes, this waits for nothing.
    pub fn write(&self, severity: Severity, line: &[u8]) {
        self.take(LogLine { severity, kind: StderrEcho::Usual, text: line.to_vec() });
    }

    /// Writes a line that is said on stderr by other means, and ends the process: waits for it, and for all before it, but
    /// not for long.
    pub fn write_beside_stderr(&self, severity: Severity, line: &[u8]) {
        self.take(LogLine { severity, kind: StderrEcho::BesideStderr, text: line.to_vec() });
        self.settle();
    }

    /// Waits until all lines are written, but not for long.
    pub fn settle(&self) {
        let _is_empty: bool = self.queue.wait_until_empty(PATIENCE);
    }

    /// From now on a thread of its own writes. Call it when the process has forked for the last time, at most once.
    pub(crate) fn leave_to_thread(&self) -> io::Result<()> {
        let (outlet, queue) = (Arc::clone(&self.outlet), Arc::clone(&self.queue));
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || {
            queue.serve(|lines, lost| {
                let mut outlet = outlet.lock().expect("no holder of this lock panics");
                lines.iter().for_each(|line| outlet.take(line));
                outlet.lost += lost;
            });
        })?;
        self.queue.open();
        Ok(())
    }

    fn take(&self, line: LogLine) {
        if let Some(line) = self.queue.push(line) {
            self.outlet().take(&line);
        }
    }

    /// Whether lines go somewhere else than to stderr.
    pub(crate) fn has_place(&self) -> bool {
        self.outlet().place.is_some()
    }

    /// Nobody sees stderr any more. What others say there, the C library for one, goes to the file from now on, if there is
    /// one.
    pub(crate) fn leave_stderr(&self) -> io::Result<()> {
        self.idle_outlet().ok_or(io::ErrorKind::TimedOut)?.leave_stderr()
    }

    /// Opens the file anew if it was moved away: another one of its name is to be written. After an error the one that was
    /// open is still written. Does nothing for a log that is no file, or is where it was.
    pub(crate) fn open_again(&self) -> Result<Option<PathBuf>, LogFileError> {
        let mut outlet = self.idle_outlet().ok_or(LogFileError::Stuck)?;
        let Some(LogDestination::File { path, file }) = &outlet.place else { return Ok(None) };
        if is_at(file, path) {
            return Ok(None);
        }
        let path = path.clone();
        outlet.place = Some(LogDestination::open(&path)?);
        match outlet.stderr {
            StderrMode::Told | StderrMode::Quiet => {}
            StderrMode::File => {
                outlet
                    .leave_stderr()
                    .map_err(|source| LogFileError::Open { path: path.clone(), source })?;
            }
        }
        Ok(Some(path))
    }

    /// The outlet, unless a line is stuck there.
    fn idle_outlet(&self) -> Option<MutexGuard<'_, LogOutput>> {
        self.queue.wait_until_empty(PATIENCE).then(|| self.outlet())
    }

    fn outlet(&self) -> MutexGuard<'_, LogOutput> {
        self.outlet.lock().expect("no holder of this lock panics")
    }
}

impl LogOutput {
    fn take(&mut self, line: &LogLine) {
        match line.kind {
            StderrEcho::Usual => self.write(line.severity, &line.text),
            StderrEcho::BesideStderr if self.place.is_some() && self.stderr != StderrMode::File => {
                self.write_to_place(line.severity, &line.text);
            }
            StderrEcho::BesideStderr => {}
        }
    }

    fn write(&mut self, severity: Severity, line: &[u8]) {
        if self.place.is_some() && self.stderr == StderrMode::Told {
            // The line is in the log, whether anybody watches or not.
            drop(io::stderr().lock().write_all(line));
        }
        self.write_to_place(severity, line);
    }

    fn write_to_place(&mut self, severity: Severity, line: &[u8]) {
        if self.lost > 0 {
            let told = format!(" WARN {} lines of the log were lost\n", self.lost);
            if self.try_to_write(Severity::Warning, told.as_bytes()).is_ok() {
                self.lost = 0;
            }
        }
        self.lost += u64::from(self.try_to_write(severity, line).is_err());
    }

    fn try_to_write(&mut self, severity: Severity, line: &[u8]) -> io::Result<()> {
        match &mut self.place {
            None => io::stderr().lock().write_all(line),
            Some(LogDestination::File { file, .. }) => file.write_all(line),
            Some(LogDestination::System(log)) => log.send(severity, line),
        }
    }

    fn leave_stderr(&mut self) -> io::Result<()> {
        match &self.place {
            None => {}
            Some(LogDestination::System(_)) => self.stderr = StderrMode::Quiet,
            Some(LogDestination::File { file, .. }) => {
                rustix::stdio::dup2_stderr(file)?;
                self.stderr = StderrMode::File;
            }
        }
        Ok(())
    }
}

impl LogDestination {
    /// Opens a file to append to. A pipe that nobody reads is an error, and one whose reader is slow loses lines: nobody
    /// waits for it.
    fn open(path: &Path) -> Result<Self, LogFileError> {
        let failed = |source| LogFileError::Open { path: path.to_path_buf(), source };
        // A process in the background leaves its directory.
        let path = std::path::absolute(path).map_err(failed)?;
        let flags = OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o640)
            .custom_flags(flags.bits().cast_signed())
            .open(&path)
            .map_err(failed)?;
        Ok(Self::File { path, file })
    }
}

/// Whether a file is still where it was opened.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: std::fs::Metadata| (found.dev(), found.ino());
    let (there, ours) = (std::fs::metadata(path).map(identity), file.metadata().map(identity));
    matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_file(path: &Path) -> Log {
        let place = Some(LogDestination::open(path).unwrap());
        Log::new(place, StderrMode::Quiet)
    }

    #[test]
    fn a_file_is_appended_to_and_opened_again_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        std::fs::write(&path, "before\n").unwrap();
        let log = in_file(&path);
        log.write(Severity::Info, b"one\n");
        std::fs::rename(&path, &moved).unwrap();
        log.write(Severity::Info, b"two\n");
        assert_eq!(log.open_again().unwrap(), Some(path.clone()));
        log.write_beside_stderr(Severity::Error, b"three\n");
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "before\none\ntwo\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
        // What was cut off by somebody who copied it goes on at its beginning.
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        log.write(Severity::Info, b"four\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "four\n");
    }

    #[test]
    fn a_file_that_cannot_be_opened_again_is_still_written() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        let log = in_file(&path);
        std::fs::rename(&path, &moved).unwrap();
        std::fs::create_dir(&path).unwrap();
        let error = log.open_again().unwrap_err();
        assert!(error.to_string().ends_with("log: cannot open it"), "{error}");
        log.write(Severity::Info, b"on\n");
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "on\n");
    }

    #[test]
    fn lines_that_were_lost_are_counted_in_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = in_file(&path);
        log.outlet().place = Some(LogDestination::open(Path::new("/dev/full")).unwrap());
        for _ in 0..3 {
            log.write(Severity::Info, b"lost\n");
        }
        log.outlet().place = Some(LogDestination::open(&path).unwrap());
        log.write(Severity::Info, b"there\n");
        log.write(Severity::Info, b"again\n");
        let found = std::fs::read_to_string(&path).unwrap();
        assert_eq!(found, " WARN 3 lines of the log were lost\nthere\nagain\n");
    }
}
