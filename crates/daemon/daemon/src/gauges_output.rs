//! Writes gauges to the descriptor of `--gauges-fd`, a line each second.
//!
//! Invariants: whoever does not read holds up this thread alone: a line that comes while the one before it is still being
//! written is left out. The thread has nothing but the descriptor and the line, so nobody waits for it in the end.
//! Threads: the first thread makes lines, one of its own writes them.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use control::DaemonState;
use host::chain_of;
use rustix::event::{PollFd, PollFlags};
use sandbox::Sandbox;

/// The time from line to line.
const INTERVAL: Duration = Duration::from_secs(1);

/// Where gauges go, and when the next ones are due.
#[derive(Debug)]
pub(crate) struct GaugesOutput {
    lines: SyncSender<String>,
    began: Instant,
    pub(crate) due: Instant,
}

impl GaugesOutput {
    /// Starts the thread that writes, behind the fences.
    pub(crate) fn start(
        descriptor: OwnedFd,
        sandbox: Option<&Sandbox>,
        now: Instant,
    ) -> io::Result<Self> {
        let (sender, lines) = sync_channel(0);
        let write = move || write_lines(File::from(descriptor), &lines);
        let start = || std::thread::Builder::new().name("gauges".to_owned()).spawn(write);
        Sandbox::start_inside(sandbox, start).flatten()?;
        Ok(Self { lines: sender, began: now, due: now + INTERVAL })
    }

    /// Has the gauges of now written, unless the line before is still on its way. `None` if nobody can be written to any
    /// more.
    pub(crate) fn write(mut self, state: &DaemonState, now: Instant) -> Option<Self> {
        // Lines that were missed are not made up for.
        self.due = now + INTERVAL;
        match self.lines.try_send(state.gauges_line(now.saturating_duration_since(self.began))) {
            Ok(()) | Err(TrySendError::Full(_)) => Some(self),
            Err(TrySendError::Disconnected(_)) => None,
        }
    }
}

fn write_lines(mut to: File, lines: &Receiver<String>) {
    for line in lines {
        if let Err(error) = write_all(&mut to, line.as_bytes()) {
            tracing::info!("gauges are not written any more: {}", chain_of(&error));
            return;
        }
    }
}

/// Waits as long as it takes, also where whoever has opened the descriptor does not want to wait.
fn write_all(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match rustix::event::poll(&mut [PollFd::new(&*to, PollFlags::OUT)], None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
