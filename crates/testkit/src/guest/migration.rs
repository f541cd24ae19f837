//! A guest that is migrated while it works: from one QEMU into a file, and from there into another QEMU.
//!
//! Where it stands: the migration is a live one (pre-copy), so pages that a device writes meanwhile must be sent again;
//! the file stands for the network. The server sees one client after the other, so one image needs no second server.
//!
//! Invariants: the first QEMU has ended before the second one starts.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Console, Guest, Kernel, Qemu, guest_directory};
use crate::deadline::{Deadline, poll_until};
use crate::process::Bench;

/// What the guest prints when it wants to be migrated.
pub const MIGRATE_NOW: &str = "@@migrate";
/// Bytes per second; a guest of some 200 MiB takes a few seconds, in which it goes on working.
const BANDWIDTH_MAX: u64 = 40 << 20;
/// A kernel that clears a page before it reads into it has QEMU send it again for that reason alone.
const PAGES_AS_THEY_ARE: &str = " init_on_alloc=0";
/// How long QEMU may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

impl Guest {
    /// Boots the guest, migrates it when it prints `MIGRATE_NOW`, waits until it has powered off, and returns its
    /// console, of both QEMUs.
    pub fn run_migrated(&self, bench: &Bench, limit: Duration) -> Result<Console> {
        let deadline = Deadline::after(limit);
        let kernel = Kernel::find(&guest_directory().join("kernel"))?;
        let initramfs = self.initramfs(&kernel, bench)?;
        let (control, state) = (bench.path("qmp.sock"), bench.text("state"));
        let mut arguments = self.arguments(&kernel, &initramfs);
        arguments.last_mut().context("the kernel's words")?.push_str(PAGES_AS_THEY_ARE);
        let with = |more: &[String]| [arguments.as_slice(), more].concat();
        let listen = format!("unix:{},server=on,wait=off", control.display());
        let mut source = Qemu::start(&with(&["-qmp".to_owned(), listen]))?;
        poll_until("the guest to ask for its migration", deadline.remaining(), || {
            if let Some(status) = source.child.try_wait().context("wait for QEMU")? {
                bail!("QEMU ended with {status}: {}", source.stderr.text());
            }
            Ok(source.stdout.text().contains(MIGRATE_NOW).then_some(()))
        })
        .with_context(|| format!("console: {}", Console::new(&source.stdout.text()).tail()))?;
        let mut monitor = Monitor::connect(&control)?;
        monitor
            .migrate(&state, deadline)
            .with_context(|| format!("QEMU says: {}", source.stderr.text()))?;
        monitor.command(r#"{"execute":"quit"}"#)?;
        let first = source.end(deadline.remaining())?;
        let incoming = ["-incoming".to_owned(), format!("file:{state}")];
        let second = Qemu::start(&with(&incoming))?.end(deadline.remaining())?;
        Ok(Console::new(&[first, second].concat()))
    }
}

/// QEMU's control socket.
struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("connect to QEMU's control socket")?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).context("limit reads")?;
        let mut monitor = Self { stream: BufReader::new(stream) };
        monitor.line().context("greeting")?;
        monitor.command(r#"{"execute":"qmp_capabilities"}"#)?;
        Ok(monitor)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line).context("QEMU does not answer")?;
        Ok(line)
    }

    /// Gives a command and returns its answer, passing over events.
    fn command(&mut self, command: &str) -> Result<String> {
        writeln!(self.stream.get_mut(), "{command}").context("give QEMU a command")?;
        loop {
            let line = self.line()?;
            if line.starts_with(r#"{"error""#) || line.is_empty() {
                bail!("QEMU answers {command} with {line}");
            }
            if line.starts_with(r#"{"return""#) {
                return Ok(line);
            }
        }
    }

    fn migrate(&mut self, state: &str, deadline: Deadline) -> Result<()> {
        let parameters = format!(r#"{{"max-bandwidth":{BANDWIDTH_MAX}}}"#);
        self.command(&format!(
            r#"{{"execute":"migrate-set-parameters","arguments":{parameters}}}"#
        ))?;
        self.command(&format!(r#"{{"execute":"migrate","arguments":{{"uri":"file:{state}"}}}}"#))?;
        poll_until("the migration", deadline.remaining(), || {
            let answer = self.command(r#"{"execute":"query-migrate"}"#)?;
            if answer.contains(r#""status": "failed""#) {
                bail!("it failed: {answer}");
            }
            Ok(answer.contains(r#""status": "completed""#).then_some(()))
        })
    }
}
