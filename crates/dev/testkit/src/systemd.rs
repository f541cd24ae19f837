//! A system of its own that systemd runs: systemd-nspawn starts it on the host's files, and what it writes goes to memory.
//!
//! It has the host's network, and its own processes, journal and units. Needs root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::deadline::poll_until;
use crate::process::Bench;

/// How long it may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running system.
#[derive(Debug)]
pub struct Systemd {
    nspawn: Child,
    name: String,
    /// Its first process, as the host calls it.
    leader: u32,
    _files: Overlay,
}

/// What a system has of the host beside what all have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup<'a> {
    /// What tells it from others of this process.
    pub name: &'a str,
    /// Files under other names, for reading: from, to.
    pub files: &'a [(&'a Path, &'a str)],
    /// Directories, with what is mounted below them, for writing: from, to.
    pub directories: &'a [(&'a Path, &'a str)],
}

impl Systemd {
    /// Starts one in a bench, with these files of the host under other names: from, to.
    pub fn boot(bench: &Bench, files: &[(&Path, &str)]) -> Result<Self> {
        Self::boot_with(bench, &Setup { files, ..Setup::default() })
    }

    /// Starts one in a bench of its own.
    pub fn boot_with(bench: &Bench, setup: &Setup<'_>) -> Result<Self> {
        let overlay = Overlay::mount(bench)?;
        let name = format!("rl-{}{}", std::process::id(), setup.name);
        let identity = fs::read_to_string("/proc/sys/kernel/random/uuid")?.replace(['-', '\n'], "");
        let mut command = Command::new("systemd-nspawn");
        command
            .args(["--register=no", "--keep-unit", "--link-journal=no", "--console=pipe", "-q"])
            .arg(format!("--machine={name}"))
            .arg(format!("--uuid={identity}"))
            .arg("-D")
            .arg(&overlay.root);
        for (from, to) in setup.files {
            command.arg(format!("--bind-ro={}:{to}", from.display()));
        }
        for (from, to) in setup.directories {
            command.arg(format!("--bind={}:{to}", from.display()));
        }
        // Nothing of the host's is started there.
        command.args(["-b", "systemd.unit=basic.target"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let nspawn = command.spawn().context("systemd-nspawn")?;
        let mut system = Self { nspawn, name, leader: 0, _files: overlay };
        poll_until("the system", START_LIMIT, || {
            // Its first child prepares the files, and is followed by the system's first process.
            let Some(leader) = system.child()? else { return Ok(None) };
            system.leader = leader;
            let state = system.run(&["systemctl", "is-system-running"]);
            let state = state.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            Ok(state.ok().filter(|state| ["running", "degraded"].contains(&state.trim())))
        })?;
        Ok(system)
    }

    fn child(&mut self) -> Result<Option<u32>> {
        if let Some(status) = self.nspawn.try_wait()? {
            let mut said = String::new();
            if let Some(mut stderr) = self.nspawn.stderr.take() {
                io::Read::read_to_string(&mut stderr, &mut said)?;
            }
            bail!("systemd-nspawn: {status}: {said}");
        }
        let process = self.nspawn.id();
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"))?;
        Ok(children.split_whitespace().next().and_then(|child| child.parse().ok()))
    }

    /// A path of its own, as the host reaches it.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.leader))
    }

    /// Runs a command there.
    pub fn run(&self, words: &[&str]) -> Result<Output> {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.leader.to_string(), "-m", "-p", "-u", "-i", "-C", "--"]);
        command.args(words).stdin(Stdio::null()).output().context("nsenter")
    }

    /// Runs a command there that must succeed; gives what it prints.
    pub fn succeed(&self, words: &[&str]) -> Result<String> {
        let output = self.run(words)?;
        ensure!(output.status.success(), "{words:?}: {output:?}");
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// A property of a unit.
    pub fn property(&self, unit: &str, name: &str) -> Result<String> {
        self.succeed(&["systemctl", "show", "--value", "-p", name, unit])
    }

    /// What the journal has of a unit.
    pub fn journal(&self, unit: &str) -> Result<String> {
        self.succeed(&["journalctl", "--no-pager", "-o", "cat", "-u", unit])
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        if self.leader != 0 {
            // With it all of its processes end.
            let _gone = Command::new("kill").args(["-9", &self.leader.to_string()]).status();
        } else {
            let _gone = self.nspawn.kill();
        }
        let _status = self.nspawn.wait();
        let _gone = fs::remove_dir(format!("/run/systemd/nspawn/propagate/{}", self.name));
    }
}

/// The host's files with memory on top.
#[derive(Debug)]
struct Overlay {
    memory: PathBuf,
    root: PathBuf,
}

impl Overlay {
    fn mount(bench: &Bench) -> Result<Self> {
        let (memory, root) = (bench.path("memory"), bench.path("root"));
        let (upper, work) = (memory.join("upper"), memory.join("work"));
        fs::create_dir(&memory)?;
        fs::create_dir(&root)?;
        mount(&["-t", "tmpfs", "-o", "mode=0755", "none"], &memory)?;
        let overlay = Self { memory, root };
        fs::create_dir(&upper)?;
        fs::create_dir(&work)?;
        let layers = format!("lowerdir=/,upperdir={},workdir={}", upper.display(), work.display());
        mount(&["-t", "overlay", "-o", &layers, "none"], &overlay.root)?;
        Ok(overlay)
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        for path in [&self.root, &self.memory] {
            let _not_mounted = Command::new("umount").arg("-l").arg(path).output();
        }
    }
}

fn mount(options: &[&str], place: &Path) -> Result<()> {
    let output = Command::new("mount").args(options).arg(place).output().context("mount")?;
    ensure!(output.status.success(), "mount {}: {output:?}", place.display());
    Ok(())
}
