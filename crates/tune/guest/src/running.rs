//! A running guest: booted, watched, made to run scripts, stopped.
//!
//! Invariants: one script at a time. A guest whose wait was given up runs no more scripts; it can only be dropped.
//! Limits: the boot by accelerator (60 s with KVM, 180 s without), every other wait by its caller or the constants here.
//! Not here: its disks (`disks`).

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::agent::{Agent, State};
use crate::clock::now;
use crate::console::{end_of, panic_in, tail};
use crate::machine::{Accelerator, Files};
use crate::process::Process;
use crate::{Finished, Initramfs, Kernel, MachineSpec, Monitor, Plugged, QemuProgram, Watch};

/// How long a guest may take to power off.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// How long a QEMU that has closed its sockets may take to end.
const END_LIMIT: Duration = Duration::from_secs(5);
/// For how long a QEMU that runs may owe a sign of life: it gives one even where its guest does nothing any more.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// How long a file may take to be moved to its place, or to begin to be read.
const FILE_LIMIT: Duration = Duration::from_secs(120);

/// A guest that runs. Dropped, it is killed and its QEMU reaped.
#[derive(Debug)]
pub struct Guest {
    // Before the sockets, so that QEMU has ended when they go.
    pub(crate) process: Process,
    pub(crate) monitor: Monitor,
    agent: Agent,
    pub(crate) qemu: QemuProgram,
    pub(crate) spec: MachineSpec,
    console: PathBuf,
    /// Drivers that its kernel has not got.
    pub(crate) missing: Vec<&'static str>,
    /// QEMU's iothreads so far.
    pub(crate) iothread_count: u16,
    pub(crate) used_slots: BTreeSet<u16>,
    /// Disks plugged so far, for their serial numbers.
    pub(crate) plug_count: u64,
    cold_disk: Option<Plugged>,
    _sockets: TempDir,
}

impl Guest {
    /// Boots a guest and waits until its agent says hello.
    ///
    /// The console is kept at `directory/NAME-console.log`, what QEMU prints at `directory/NAME-qemu.log`. The
    /// error of a guest that does not come up has the console's end.
    pub fn boot(
        qemu: &QemuProgram,
        kernel: &Kernel,
        equipment: &Initramfs,
        spec: &MachineSpec,
        directory: &Path,
        watch: Watch<'_>,
    ) -> Result<Self> {
        spec.check()?;
        if spec.cold_disk.is_some() {
            for driver in ["ahci", "sd_mod"] {
                let is_there = !equipment.missing().contains(&driver);
                ensure!(is_there, "kernel {} has no {driver} for an ide-hd", kernel.version());
            }
        }
        std::fs::create_dir_all(directory)
            .with_context(|| format!("create {}", directory.display()))?;
        let mut guest = Self::power_on(qemu, kernel, equipment, spec, directory, watch)?;
        let limit = spec.accelerator.boot_limit();
        // What it says is its kernel's version, which is known.
        let _hello = guest.finish("its agent's hello", limit, watch)?;
        if spec.cold_disk.is_some() {
            guest.cold_disk = Some(guest.find_cold_disk(watch)?);
        }
        Ok(guest)
    }

    fn power_on(
        qemu: &QemuProgram,
        kernel: &Kernel,
        equipment: &Initramfs,
        spec: &MachineSpec,
        directory: &Path,
        watch: Watch<'_>,
    ) -> Result<Self> {
        let name = &spec.name;
        // A unix socket's path has at most 107 bytes: not below `directory`.
        let sockets = tempfile::Builder::new().prefix("rl-").tempdir().context("create sockets")?;
        let (control, port) = (sockets.path().join("qmp"), sockets.path().join("port"));
        let console = directory.join(format!("{name}-console.log"));
        let image = match spec.accelerator {
            Accelerator::Kvm => kernel.image().to_owned(),
            Accelerator::Tcg => kernel.uncompressed(equipment.cache())?,
        };
        let files = Files {
            kernel: &image,
            initramfs: equipment.path(),
            console: &console,
            control: &control,
            port: &port,
        };
        let log = directory.join(format!("{name}-qemu.log"));
        let mut process = Process::start(qemu.path(), &spec.arguments(&files), &log)?;
        let (agent, monitor) = Self::reach(&mut process, &port, &control, watch)
            .with_context(|| format!("start guest {name}"))?;
        let mut guest = Self {
            process,
            monitor,
            agent,
            qemu: qemu.clone(),
            spec: spec.clone(),
            console,
            missing: equipment.missing().to_vec(),
            iothread_count: 0,
            used_slots: BTreeSet::new(),
            plug_count: 0,
            cold_disk: None,
            _sockets: sockets,
        };
        // It may have stopped before its events could be heard.
        guest.check_status(watch)?;
        Ok(guest)
    }

    /// The first connections; a QEMU that cannot run such a machine has ended by now, or will in a moment.
    fn reach(
        process: &mut Process,
        port: &Path,
        control: &Path,
        watch: Watch<'_>,
    ) -> Result<(Agent, Monitor)> {
        let agent = Agent::over(process.connect(port, watch)?)?;
        let control = process.connect(control, watch)?;
        let error = match Monitor::over(control, watch) {
            Ok(monitor) => return Ok((agent, monitor)),
            Err(error) => error,
        };
        watch()?;
        process.ends_within(END_LIMIT)?;
        process.must_run()?;
        Err(error)
    }

    /// QEMU's process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Where its console is kept.
    pub fn console(&self) -> &Path {
        &self.console
    }

    /// The disk that was there from the beginning, if one was.
    pub fn cold_disk(&self) -> Option<&Plugged> {
        self.cold_disk.as_ref()
    }

    /// QEMU's control socket.
    pub fn monitor(&mut self) -> &mut Monitor {
        &mut self.monitor
    }

    /// An error if QEMU has ended, or answers no more, or has stopped the guest, or the guest has panicked; does not
    /// wait.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.process.ended()? {
            let text = end_of(&self.console);
            return Err(match panic_in(&text) {
                Some(panic) => self.trouble(format!("its kernel gave up: {panic}")),
                None => self.trouble(format!("QEMU ended with {status}")),
            });
        }
        if self.monitor.take_event("STOP")?.is_some() {
            self.check_status(&mut || Ok(()))?;
        }
        match self.monitor.silence() {
            Ok(silence) if silence <= SILENCE_MAX => Ok(()),
            Ok(silence) => {
                let seconds = silence.as_secs();
                Err(self.trouble(format!("QEMU hangs, it has not answered for {seconds} s")))
            }
            // One that ends reads no more.
            Err(error) => match self.process.ends_within(END_LIMIT)? {
                true => Err(self.trouble("QEMU has ended")),
                false => Err(error),
            },
        }
    }

    /// Runs a script with busybox' sh, as root, and returns at once. An error if another one runs still.
    pub fn start(&mut self, script: &str) -> Result<()> {
        let name = &self.spec.name;
        self.agent
            .run(script, &mut || Ok(()))
            .with_context(|| format!("guest {name}: run a script"))
    }

    /// The script's end, if it has ended since; looks at the guest's health too. Does not wait.
    pub fn poll(&mut self) -> Result<Option<Finished>> {
        match self.agent.look() {
            Ok(State::Done(finished)) => Ok(Some(finished)),
            Ok(State::Idle) => bail!("guest {}: no script was started", self.spec.name),
            Ok(State::Working) => self.check_alive().map(|()| None),
            Ok(State::Gone) => {
                self.process.ends_within(END_LIMIT)?;
                self.check_alive()?;
                Err(self.trouble("QEMU closed the agent's port"))
            }
            Err(error) => Err(error.context(format!("guest {}", self.spec.name))),
        }
    }

    /// What the running script has printed so far; nothing if none runs.
    pub fn partial_output(&self) -> &[u8] {
        self.agent.output()
    }

    /// Runs a script and waits for its end, whatever its status. One that takes longer than `limit` is an error
    /// with the console's end.
    pub fn run(&mut self, script: &str, limit: Duration, watch: Watch<'_>) -> Result<Finished> {
        self.start(script)?;
        self.finish("a script's end", limit, watch)
    }

    /// Writes a file in the guest, in place of one that is there; its directory must exist.
    pub fn write_file(&mut self, path: &str, content: &[u8], watch: Watch<'_>) -> Result<()> {
        let what = format!("guest {}: write {path}", self.spec.name);
        self.agent.put(path, content, watch).with_context(|| what.clone())?;
        self.finish("a file's end", FILE_LIMIT, watch)?.success(&what).map(drop)
    }

    /// A file's content.
    pub fn read_file(&mut self, path: &str, watch: Watch<'_>) -> Result<Vec<u8>> {
        let script = format!("cat '{}'", path.replace('\'', "'\\''"));
        let what = format!("guest {}: read {path}", self.spec.name);
        self.run(&script, FILE_LIMIT, watch)?.success(&what)
    }

    /// Powers it off, waits a while, and kills what is left.
    pub fn stop(mut self) -> Result<()> {
        if self.agent.is_idle() {
            self.start("sync; poweroff -f")?;
        } else {
            self.monitor.command("quit", Value::Null)?;
        }
        // What has not ended by now is killed when it is dropped.
        self.process.ends_within(STOP_LIMIT).map(drop)
    }

    /// Waits for the end of what the agent was told.
    pub(crate) fn finish(
        &mut self,
        what: &str,
        limit: Duration,
        watch: Watch<'_>,
    ) -> Result<Finished> {
        let end = now() + limit;
        loop {
            watch()?;
            if let Some(finished) = self.poll()? {
                return Ok(finished);
            }
            if now() >= end {
                return Err(self.trouble(format!("waited {limit:?} for {what}")));
            }
            self.agent.wait()?;
        }
    }

    /// An error unless QEMU runs the guest.
    fn check_status(&mut self, watch: Watch<'_>) -> Result<()> {
        let status = self.monitor.command_within("query-status", Value::Null, END_LIMIT, watch);
        let status = match status {
            Ok(status) => status["status"].as_str().unwrap_or("unknown").to_owned(),
            // A QEMU that ends does not answer.
            Err(error) => {
                self.process.ends_within(END_LIMIT)?;
                self.check_alive()?;
                return Err(error);
            }
        };
        // The others of QEMU's RunState are stops that nobody has asked for.
        if ["running", "shutdown"].contains(&status.as_str()) {
            return Ok(());
        }
        Err(self.trouble(format!("QEMU has stopped it: {status}")))
    }

    /// What is wrong, with all that the guest and QEMU have said of it.
    pub(crate) fn trouble(&self, what: impl Display) -> anyhow::Error {
        let Self { spec, console, .. } = self;
        let mut text = format!("guest {}: {what}", spec.name);
        let said = self.process.said();
        if !said.is_empty() {
            text.push_str(&format!("\nQEMU says:\n{said}"));
        }
        let end = tail(&end_of(console));
        anyhow!("{text}\nthe end of its console ({}):\n{end}", console.display())
    }
}
