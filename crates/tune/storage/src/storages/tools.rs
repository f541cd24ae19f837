//! Programs of the system that make storage: found, run, and ended when a signal comes.
//!
//! Invariants: no program outlives the call that started it (`load::child`).

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use load::child::{Request, Supervised};

use crate::clock;
use crate::interrupt::Interrupt;

/// How often a running program and the signals are looked at.
const POLL: Duration = Duration::from_millis(10);
/// What a program may print; all of them print less.
const PRINTED_MAX: u64 = 4 << 20;
/// Where Debian keeps root's programs, also for users whose PATH has them not.
const SYSTEM_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// A program and the Debian package that has it.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    name: &'static str,
    package: &'static str,
}

/// Makes loop devices.
pub const LOSETUP: Tool = Tool { name: "losetup", package: "mount" };
pub(super) const MKFS_EXT4: Tool = Tool { name: "mkfs.ext4", package: "e2fsprogs" };
pub(super) const MKFS_XFS: Tool = Tool { name: "mkfs.xfs", package: "xfsprogs" };
pub(super) const QEMU_IMG: Tool = Tool { name: "qemu-img", package: "qemu-utils" };
pub(super) const DMSETUP: Tool = Tool { name: "dmsetup", package: "dmsetup" };
/// Asks libvirt.
pub const VIRSH: Tool = Tool { name: "virsh", package: "libvirt-clients" };
pub(super) const MODPROBE: Tool = Tool { name: "modprobe", package: "kmod" };

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Where programs are looked for.
#[derive(Clone, Debug)]
pub struct Tools {
    directories: Vec<PathBuf>,
}

impl Tools {
    /// The directories of PATH and those of the system.
    pub fn of_system() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let system = SYSTEM_DIRECTORIES.iter().map(PathBuf::from);
        Self { directories: std::env::split_paths(&path).chain(system).collect() }
    }

    /// Only this directory.
    #[cfg(test)]
    pub(super) fn only(directory: &Path) -> Self {
        Self { directories: vec![directory.to_path_buf()] }
    }

    /// Where the program is.
    ///
    /// # Errors
    /// If it is not installed, with the package to install.
    pub fn find(&self, tool: Tool) -> Result<PathBuf> {
        let places = self.directories.iter().map(|directory| directory.join(tool.name));
        let found = places.into_iter().find(|place| place.is_file());
        found.with_context(|| {
            format!("{tool} is not installed: install the package {}", tool.package)
        })
    }

    /// Runs a program to its end and returns what it printed.
    ///
    /// # Errors
    /// If it is missing or fails, with what it said; `Interrupted` after a signal.
    pub fn run(&self, tool: Tool, arguments: &[&OsStr], interrupt: &Interrupt) -> Result<String> {
        self.succeed(tool, arguments, || Ok(interrupt.check()?))
    }

    /// `run` for what has to be done also after a signal: taking things away.
    pub fn run_anyway(&self, tool: Tool, arguments: &[&OsStr]) -> Result<String> {
        self.succeed(tool, arguments, || Ok(()))
    }

    fn succeed(
        &self,
        tool: Tool,
        arguments: &[&OsStr],
        watch: impl Fn() -> Result<()>,
    ) -> Result<String> {
        let Ended { status, output, messages } = self.end(tool, arguments, watch)?;
        if !status.success() {
            let words: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
            bail!("{tool} {}: {status}{}{messages}", words.join(" "), separator(&messages));
        }
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    /// Runs a program to its end, be that a failure, and asks `watch` meanwhile.
    ///
    /// # Errors
    /// If it is missing or prints too much, or that of `watch`: then it is ended.
    pub fn end(
        &self,
        tool: Tool,
        arguments: &[&OsStr],
        watch: impl Fn() -> Result<()>,
    ) -> Result<Ended> {
        watch()?;
        let mut command = Command::new(self.find(tool)?);
        // A pipe that nobody reads meanwhile would hold it up.
        let (output, messages) = (tempfile::tempfile()?, tempfile::tempfile()?);
        command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(messages.try_clone()?);
        let mut child = Supervised::start(&mut command, Request::Kill, Duration::ZERO)
            .with_context(|| format!("start {tool}"))?;
        let printed = || [&output, &messages].map(|it| it.metadata().map_or(0, |it| it.len()));
        let watch = || {
            ensure!(printed().iter().all(|bytes| *bytes <= PRINTED_MAX), "it printed too much");
            watch()
        };
        let status = wait(&mut child, watch).with_context(|| format!("run {tool}"))?;
        let messages = String::from_utf8_lossy(&read_all(messages)).trim().to_owned();
        Ok(Ended { status, output: read_all(output), messages })
    }
}

/// What a program that has ended said.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub output: Vec<u8>,
    /// What it had to say, without what is around it.
    pub messages: String,
}

fn separator(messages: &str) -> &'static str {
    if messages.is_empty() { "" } else { ": " }
}

fn wait(child: &mut Supervised, watch: impl Fn() -> Result<()>) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.poll()? {
            return Ok(status);
        }
        watch()?;
        clock::pause(POLL);
    }
}

fn read_all(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What came before an error is still worth showing.
    drop(file.rewind().and_then(|()| file.take(PRINTED_MAX).read_to_end(&mut bytes)));
    bytes
}

/// Whether this process is root, which loop devices and mounts need.
///
/// # Errors
/// If not: `what` says what it was wanted for.
pub fn check_root(what: &str) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    bail!("{what} needs root (loop devices and mounts): run as root, or leave it out")
}

/// A path as an argument.
pub(super) fn word(path: &Path) -> &OsStr {
    path.as_os_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::{Interrupt, Interrupted};

    const SH: Tool = Tool { name: "sh", package: "dash" };
    const NOBODY: Tool = Tool { name: "no-such-tool", package: "no-such-package" };

    fn shell(script: &str, interrupt: &Interrupt) -> Result<String> {
        Tools::of_system().run(SH, &["-c".as_ref(), script.as_ref()], interrupt)
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = Tools::of_system().find(NOBODY).unwrap_err().to_string();
        assert_eq!(error, "no-such-tool is not installed: install the package no-such-package");
        assert!(Tools::only(Path::new("/nonexistent")).find(SH).is_err());
    }

    #[test]
    fn what_a_program_says_is_kept() {
        assert_eq!(shell("echo yes", &Interrupt::deaf(false)).unwrap(), "yes\n");
        let error = shell("echo why >&2; exit 3", &Interrupt::deaf(false)).unwrap_err().to_string();
        assert!(error.starts_with("sh -c ") && error.ends_with("exit status: 3: why"), "{error}");
    }

    #[test]
    fn a_program_may_print_more_than_a_pipe_holds() {
        let printed = shell("head -c 200000 /dev/zero | tr '\\0' x", &Interrupt::deaf(false));
        assert_eq!(printed.unwrap(), "x".repeat(200_000));
        let endless = "head -c 8000000 /dev/zero; exec sleep 100";
        let error = shell(endless, &Interrupt::deaf(false)).unwrap_err();
        assert!(format!("{error:#}").contains("printed too much"), "{error:#}");
    }

    #[test]
    fn a_signal_ends_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("pid");
        let interrupt = Interrupt::deaf(false);
        let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 100", place.display());
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !place.exists() {
                    clock::pause(POLL);
                }
                interrupt.raise();
            });
            shell(&script, &interrupt).unwrap_err()
        });
        assert!(Interrupted::caused(&error), "{error:#}");
        let pid = std::fs::read_to_string(&place).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "{pid} still runs");
    }
}
