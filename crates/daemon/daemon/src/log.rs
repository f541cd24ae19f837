//! Where the log goes: to stderr, to a file that may be rotated, or to the host's journal or syslog.
//!
//! Where it stands: made before anything else, so that all that is said goes the same way; whoever hears what the program
//! says hands it over ([`Log::write`]). A process in the background says what concerns its start to stderr as well, and
//! then nothing there any more. One whose stderr leads to the journal speaks to that itself.
//!
//! Invariants: a line that cannot be written is counted and never a reason to end; the next one that can says how many
//! were lost. While guests are served nobody waits for whoever reads the log, or for the disk that it is on: a thread of
//! its own writes.
//! Limits: a mebibyte of lines waits. Threads: any; lines of several threads follow one another.
//! Not here: what is said, and which levels are heard (`ringloom`); how a line looks (`event`).

mod event;
mod queue;
mod system;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use options::{Daemonize, LogFormat, Plan};
use rustix::fs::OFlags;

pub use event::{LogEvent, Severity};
use queue::{LogLine, LogQueue, StderrEcho};
use system::SystemLog;
pub(crate) use system::is_journal;

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
    /// How lines look on stderr and in a file.
    format: LogFormat,
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
    /// It leads to the same place.
    SamePlace,
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
        Self::new(None, StderrMode::Told, LogFormat::Text)
    }

    fn new(place: Option<LogDestination>, stderr: StderrMode, format: LogFormat) -> Self {
        let outlet = Arc::new(Mutex::new(LogOutput { place, stderr, format, lost: 0 }));
        Self { outlet, queue: Arc::new(LogQueue::new(WAITING_MAX)) }
    }

    /// The log that a plan asks for. Call it before the process goes to the background.
    pub fn open(plan: &Plan) -> Result<Self, LogFileError> {
        let file = plan.log_file.as_deref().map(LogDestination::open).transpose()?;
        let format = plan.log_format.unwrap_or(LogFormat::Text);
        Ok(match (plan.daemonize, file) {
            (Daemonize::Foreground, Some(file)) => Self::new(Some(file), StderrMode::Quiet, format),
            (Daemonize::Foreground, None) => {
                // Whoever asks for lines of a form gets them where they are looked for.
                let may_speak_itself = plan.log_format.is_none();
                match may_speak_itself.then(SystemLog::behind_stderr).flatten() {
                    Some(journal) => {
                        let place = LogDestination::System(journal);
                        Self::new(Some(place), StderrMode::SamePlace, format)
                    }
                    None => Self::new(None, StderrMode::Told, format),
                }
            }
            (Daemonize::Background, Some(file)) => Self::new(Some(file), StderrMode::Told, format),
            (Daemonize::Background, None) => {
                // Whoever watches the start may do so in the journal: there each line stands once.
                let (journal, stderr) = match SystemLog::behind_stderr() {
                    Some(journal) => (Some(journal), StderrMode::SamePlace),
                    None => (SystemLog::connect(), StderrMode::Told),
                };
                Self::new(journal.map(LogDestination::System), stderr, format)
            }
        })
    }

    /// Writes a line; once there is a thread that writes, this waits for nothing.
    pub fn write(&self, event: LogEvent) {
        self.take(LogLine { event, kind: StderrEcho::Usual });
    }

    /// Writes a line that is said on stderr by other means, and ends the process: waits for it, and for all before it, but
    /// not for long.
    pub fn write_beside_stderr(&self, event: LogEvent) {
        self.take(LogLine { event, kind: StderrEcho::BesideStderr });
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
            StderrMode::SamePlace => {
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
            StderrEcho::Usual => self.write(&line.event),
            StderrEcho::BesideStderr
                if self.place.is_some() && self.stderr != StderrMode::SamePlace =>
            {
                self.write_to_place(&line.event);
            }
            StderrEcho::BesideStderr => {}
        }
    }

    fn write(&mut self, event: &LogEvent) {
        if self.place.is_some() && self.stderr == StderrMode::Told {
            // The line is in the log, whether anybody watches or not.
            drop(io::stderr().lock().write_all(event.line(self.format, false).as_bytes()));
        }
        self.write_to_place(event);
    }

    fn write_to_place(&mut self, event: &LogEvent) {
        if self.lost > 0 {
            let told = LogEvent {
                severity: Severity::Warning,
                level: "warn",
                part: "daemon",
                time: event.time.clone(),
                text: format!("{} lines of the log were lost", self.lost),
            };
            if self.try_to_write(&told).is_ok() {
                self.lost = 0;
            }
        }
        self.lost += u64::from(self.try_to_write(event).is_err());
    }

    fn try_to_write(&mut self, event: &LogEvent) -> io::Result<()> {
        let is_file = matches!(self.place, Some(LogDestination::File { .. }));
        let line = event.line(self.format, is_file);
        match &mut self.place {
            None => io::stderr().lock().write_all(line.as_bytes()),
            Some(LogDestination::File { file, .. }) => file.write_all(line.as_bytes()),
            Some(LogDestination::System(log)) => log.send(event),
        }
    }

    fn leave_stderr(&mut self) -> io::Result<()> {
        match &self.place {
            None => {}
            Some(LogDestination::System(_)) => self.stderr = StderrMode::Quiet,
            Some(LogDestination::File { file, .. }) => {
                rustix::stdio::dup2_stderr(file)?;
                self.stderr = StderrMode::SamePlace;
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
        Log::new(place, StderrMode::Quiet, LogFormat::Text)
    }

    fn said(text: &str) -> LogEvent {
        let (time, text) = ("now".to_owned(), text.to_owned());
        LogEvent { severity: Severity::Info, level: "info", part: "daemon", time, text }
    }

    #[test]
    fn a_file_is_appended_to_and_opened_again_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("log"), dir.path().join("log.1"));
        std::fs::write(&path, "before\n").unwrap();
        let log = in_file(&path);
        log.write(said("one"));
        std::fs::rename(&path, &moved).unwrap();
        log.write(said("two"));
        assert_eq!(log.open_again().unwrap(), Some(path.clone()));
        log.write_beside_stderr(said("three"));
        assert_eq!(
            std::fs::read_to_string(&moved).unwrap(),
            "before\nnow  INFO one\nnow  INFO two\n"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "now  INFO three\n");
        // What was cut off by somebody who copied it goes on at its beginning.
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        log.write(said("four"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "now  INFO four\n");
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
        log.write(said("on"));
        assert_eq!(std::fs::read_to_string(&moved).unwrap(), "now  INFO on\n");
    }

    #[test]
    fn lines_that_were_lost_are_counted_in_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = in_file(&path);
        log.outlet().place = Some(LogDestination::open(Path::new("/dev/full")).unwrap());
        for _ in 0..3 {
            log.write(said("lost"));
        }
        log.outlet().place = Some(LogDestination::open(&path).unwrap());
        log.write(said("there"));
        log.write(said("again"));
        let found = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            found,
            "now  WARN 3 lines of the log were lost\nnow  INFO there\nnow  INFO again\n"
        );
    }
}
