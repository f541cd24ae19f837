//! Where fio runs: this host, a guest of ours.

use std::path::PathBuf;

use anyhow::{Context, Result};
use guest::Guest;
use load::fio::{HostRun, command};
use tempfile::TempDir;

use super::{Ended, Place};
use crate::interrupt::Interrupt;

/// The job and what fio says about it, in a guest's memory.
const GUEST_JOB: &str = "/tmp/job.fio";
/// fio's standard output; a name, because fio's own is not the same everywhere.
const GUEST_OUTPUT: &str = "/proc/self/fd/1";

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

    fn start(&mut self, job: &str) -> Result<Option<u32>> {
        let path = self.directory.path().join("job.fio");
        std::fs::write(&path, job).with_context(|| format!("write {}", path.display()))?;
        let run = HostRun::start(&self.program, &path, self.directory.path(), true)?;
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

    fn start(&mut self, job: &str) -> Result<Option<u32>> {
        self.handed = 0;
        let interrupt = self.interrupt;
        self.guest.write_file(GUEST_JOB, job.as_bytes(), &mut || Ok(interrupt.check()?))?;
        let words = command(GUEST_JOB, GUEST_OUTPUT, true).join(" ");
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
