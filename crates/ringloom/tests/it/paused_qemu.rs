//! A QEMU whose guest never runs: shows what it makes of arguments.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use testkit::deadline::poll_until;
use testkit::process::{Bench, Program, STOP_LIMIT, Server, is_listening};

const QEMU: &str = "qemu-system-x86_64";

/// A QEMU whose guest never runs, with a QMP monitor.
pub(crate) struct Qemu {
    process: Server,
    monitor: BufReader<UnixStream>,
}

impl Qemu {
    /// Why there is none, if so.
    pub(crate) fn missing() -> Option<String> {
        Program::named(QEMU, QEMU, &[]).missing()
    }

    /// Gives the lines to a shell, as a person would.
    pub(crate) fn start(bench: &Bench, lines: &str) -> Result<Self> {
        let monitor = bench.path("qmp");
        let arguments: Vec<&str> = lines.lines().filter(|line| !line.starts_with('#')).collect();
        let script = format!(
            "exec {QEMU} -S -accel tcg -nodefaults -display none \
             -qmp unix:{},server=on,wait=off \\\n{}",
            monitor.display(),
            arguments.join("\n")
        );
        let mut process = Program::named("QEMU", "sh", &["-c"]).spawn(&[script])?;
        let listens = poll_until("QEMU's monitor", Duration::from_secs(60), || {
            ensure!(process.is_alive()?, "QEMU ended");
            Ok(is_listening(&monitor)?.then_some(()))
        });
        listens.with_context(|| process.log())?;
        let stream = UnixStream::connect(&monitor).context("connect to the monitor")?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).context("a deadline")?;
        let mut qemu = Self { process, monitor: BufReader::new(stream) };
        qemu.ask(r#"{"execute":"qmp_capabilities"}"#)?;
        Ok(qemu)
    }

    /// Does one command and gives the line it answers with.
    pub(crate) fn ask(&mut self, command: &str) -> Result<String> {
        // In one piece: QEMU may have obeyed, and ended, before a second one is written.
        let line = format!("{command}\n");
        self.monitor.get_mut().write_all(line.as_bytes()).context("ask QEMU")?;
        loop {
            let mut line = String::new();
            let length = self.monitor.read_line(&mut line).context("listen to QEMU")?;
            ensure!(length > 0, "QEMU hung up: {}", self.process.log());
            if line.contains("\"error\"") {
                bail!("{command}: {line}");
            }
            if line.contains("\"return\"") {
                return Ok(line);
            }
        }
    }

    /// The same for a command of the monitor that people use.
    pub(crate) fn ask_person(&mut self, command: &str) -> Result<String> {
        self.ask(&format!(
            r#"{{"execute":"human-monitor-command","arguments":{{"command-line":"{command}"}}}}"#
        ))
    }

    pub(crate) fn is_alive(&mut self) -> Result<bool> {
        self.process.is_alive()
    }

    /// Ends it in good order.
    pub(crate) fn quit(mut self) -> Result<()> {
        self.ask(r#"{"execute":"quit"}"#)?;
        let status = self.process.wait(STOP_LIMIT)?;
        ensure!(status.success(), "QEMU: {status}: {}", self.process.log());
        Ok(())
    }
}
