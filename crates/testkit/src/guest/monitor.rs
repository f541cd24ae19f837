//! QEMU's control socket.
//!
//! Limits: `ANSWER_LIMIT` for each answer. Events are passed over.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How long QEMU may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// A connection to it.
#[derive(Debug)]
pub(super) struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    pub(super) fn connect(socket: &Path) -> Result<Self> {
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
    pub(super) fn command(&mut self, command: &str) -> Result<String> {
        // In one piece: QEMU may have obeyed, and ended, before a second one is written.
        let line = format!("{command}\n");
        self.stream.get_mut().write_all(line.as_bytes()).context("give QEMU a command")?;
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
}
