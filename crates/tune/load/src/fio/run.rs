//! fio as a process of this host.
//!
//! Invariants: fio does not outlive its `HostRun` (`child`). Its output goes to files, so that a full pipe never stops it.
//! Threads: none; `poll` and `partial` return at once, `drop` waits for fio for at most
//! `PATIENCE` and then kills it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::child::{Request, Supervised, read_from};
use crate::clock;
use crate::fio::command::command;
use crate::fio::error::FioError;

/// On SIGTERM fio waits for what is in flight and writes its report.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// A running fio.
#[derive(Debug)]
pub struct HostRun {
    child: Supervised,
    out: PathBuf,
    err: PathBuf,
    /// How much of `out` has been handed out by `partial`.
    handed: u64,
}

/// A fio that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// How it ended. `parse_report` says why, if not well.
    pub status: ExitStatus,
    /// All that it printed: its reports and most complaints.
    pub output: String,
    /// What it said on standard error; nothing, if all is well.
    pub stderr: String,
    /// When `poll` saw that it had ended.
    pub ended: Instant,
}

impl HostRun {
    /// Starts `program` on the job file in `directory`, which takes the output as well.
    ///
    /// The caller has checked the files of the job (`Job::check_files`). With `intervals`, `partial`
    /// gives a report every second.
    ///
    /// # Errors
    /// If the files for the output cannot be made or fio does not start.
    pub fn start(
        program: &Path,
        job: &Path,
        directory: &Path,
        intervals: bool,
    ) -> Result<Self, FioError> {
        let (out, err) = (directory.join("fio.out"), directory.join("fio.err"));
        let create = |path: &Path| {
            File::create(path).map_err(|e| FioError::run(format!("create {}", path.display()), e))
        };
        create(&out)?; // So that it can be read from before fio has got to it.
        let arguments = command(&job.to_string_lossy(), Some(&out.to_string_lossy()), intervals);
        let mut command = Command::new(program);
        command.args(arguments).current_dir(directory).stdin(Stdio::null());
        command.stdout(Stdio::null()); // All of it goes to `out`.
        let child = Supervised::start(command.stderr(create(&err)?), Request::Terminate, PATIENCE)
            .map_err(|e| FioError::run(format!("start {}", program.display()), e))?;
        Ok(Self { child, out, err, handed: 0 })
    }

    /// The process, for meters of CPU time. Its jobs are threads of it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Looks whether fio has ended; `None` while it runs.
    ///
    /// # Errors
    /// If its state or its output cannot be read.
    pub fn poll(&mut self) -> Result<Option<Finished>, FioError> {
        let failed = |error| FioError::run("look after fio", error);
        let Some(status) = self.child.poll().map_err(failed)? else {
            return Ok(None);
        };
        let ended = clock::now();
        let read = |path: &Path| {
            let failed = |e| FioError::run(format!("read {}", path.display()), e);
            fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(failed)
        };
        let (output, stderr) = (read(&self.out)?, read(&self.err)?);
        Ok(Some(Finished { status, output, stderr, ended }))
    }

    /// Polls until fio has ended, for at most `limit`; `None` if it still runs then.
    ///
    /// # Errors
    /// As `poll`.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<Finished>, FioError> {
        let start = clock::now();
        loop {
            match self.poll()? {
                Some(finished) => return Ok(Some(finished)),
                None if start.elapsed() >= limit => return Ok(None),
                None => clock::pause(LOOK),
            }
        }
    }

    /// What fio has printed since the last call, for `Intervals`.
    ///
    /// # Errors
    /// If the file with its output cannot be read.
    pub fn partial(&mut self) -> Result<Vec<u8>, FioError> {
        let more = read_from(&self.out, self.handed)
            .map_err(|e| FioError::run(format!("read {}", self.out.display()), e))?;
        self.handed += more.len() as u64;
        Ok(more)
    }
}
