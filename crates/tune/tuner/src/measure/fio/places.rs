//! Where fio runs: this host, a guest of ours, the user's own guest.

use std::path::PathBuf;

use anyhow::{Context, Result};
use guest::Guest;
use load::fio::{HostRun, command};
use storage::interrupt::Interrupt;
use tempfile::TempDir;

use super::{Ended, Place, Reports};
use crate::given::SCRIPT;
use crate::ssh::{Connection, Remote};

/// The job and what fio says about it, in a guest's memory.
const GUEST_JOB: &str = "/tmp/job.fio";
/// fio's standard output; a name, because fio's own is not the same everywhere.
const GUEST_OUTPUT: &str = "/proc/self/fd/1";

/// The job in a directory of our own.
const JOB: &str = "job.fio";

/// This host.
#[derive(Debug)]
pub(crate) struct HostPlace {
    program: PathBuf,
    directory: TempDir,
    run: Option<HostRun>,
}

impl HostPlace {
    pub(crate) fn new(program: PathBuf) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("ringloom-tune-").tempdir()?;
        Ok(Self { program, directory, run: None })
    }
}

impl Place for HostPlace {
    fn name(&self) -> String {
        "on the host".to_owned()
    }

    fn put(&mut self, job: &str) -> Result<()> {
        let path = self.directory.path().join(JOB);
        std::fs::write(&path, job).with_context(|| format!("write {}", path.display()))
    }

    fn start(&mut self, reports: Reports) -> Result<Option<u32>> {
        let path = self.directory.path().join(JOB);
        let intervals = reports == Reports::EachSecond;
        let run = HostRun::start(&self.program, &path, self.directory.path(), intervals)?;
        Ok(Some(self.run.insert(run).pid()))
    }

    fn printed(&mut self) -> Result<Vec<u8>> {
        Ok(self.run.as_mut().context("fio was not started")?.partial()?)
    }

    fn poll(&mut self) -> Result<Option<Ended>> {
        let finished = self.run.as_mut().context("fio was not started")?.poll()?;
        Ok(finished.map(|finished| {
            let output = format!("{}{}", finished.stderr, finished.output);
            let failed = (!finished.status.success()).then(|| finished.status.to_string());
            Ended { output, failed, ended: finished.ended }
        }))
    }
}

/// A guest that ringloom has booted.
#[derive(Debug)]
pub(crate) struct GuestPlace<'a> {
    guest: &'a mut Guest,
    interrupt: &'a Interrupt,
    handed: usize,
}

impl<'a> GuestPlace<'a> {
    pub(crate) fn new(guest: &'a mut Guest, interrupt: &'a Interrupt) -> Self {
        Self { guest, interrupt, handed: 0 }
    }
}

impl Place for GuestPlace<'_> {
    fn name(&self) -> String {
        format!("in the guest {}", self.guest.name())
    }

    fn put(&mut self, job: &str) -> Result<()> {
        let interrupt = self.interrupt;
        self.guest.write_file(GUEST_JOB, job.as_bytes(), &mut || Ok(interrupt.check()?))
    }

    fn start(&mut self, reports: Reports) -> Result<Option<u32>> {
        self.handed = 0;
        let intervals = reports == Reports::EachSecond;
        let words = command(GUEST_JOB, Some(GUEST_OUTPUT), intervals).join(" ");
        self.guest.start(&format!("cd /tmp && exec fio {words}"))?;
        Ok(None)
    }

    fn printed(&mut self) -> Result<Vec<u8>> {
        let all = self.guest.partial_output();
        let new = all.get(self.handed..).unwrap_or_default().to_vec();
        self.handed += new.len();
        Ok(new)
    }

    fn poll(&mut self) -> Result<Option<Ended>> {
        let finished = self.guest.poll()?;
        Ok(finished.map(|finished| {
            let failed = (finished.status != 0).then(|| format!("status {}", finished.status));
            Ended { output: finished.text(), failed, ended: finished.ended }
        }))
    }
}

/// The user's own guest.
#[derive(Debug)]
pub(crate) struct GivenPlace<'a> {
    connection: &'a mut Connection,
    interrupt: &'a Interrupt,
    run: Option<Remote>,
}

impl<'a> GivenPlace<'a> {
    /// `SCRIPT` is at the other end of the connection.
    pub(crate) fn new(connection: &'a mut Connection, interrupt: &'a Interrupt) -> Self {
        Self { connection, interrupt, run: None }
    }
}

impl Place for GivenPlace<'_> {
    fn name(&self) -> String {
        format!("in your {}", self.connection.address())
    }

    fn put(&mut self, job: &str) -> Result<()> {
        let check = &mut || Ok(self.interrupt.check()?);
        self.connection.put(JOB, job.as_bytes(), check)
    }

    fn start(&mut self, reports: Reports) -> Result<Option<u32>> {
        let words = command(JOB, None, reports == Reports::EachSecond);
        self.run = Some(self.connection.start(SCRIPT, &words)?);
        Ok(None)
    }

    fn printed(&mut self) -> Result<Vec<u8>> {
        self.run.as_mut().context("fio was not started")?.printed()
    }

    fn poll(&mut self) -> Result<Option<Ended>> {
        let Some(end) = self.run.as_mut().context("fio was not started")?.poll()? else {
            return Ok(None);
        };
        if end.is_ssh() {
            return Err(self.connection.lost(&end.said));
        }
        let failed = (!end.status.success()).then(|| end.status.to_string());
        let output = String::from_utf8_lossy(&end.output).into_owned();
        Ok(Some(Ended { output, failed, ended: end.ended }))
    }
}
