//! The host's journal or syslog: one datagram for each line, with its severity.
//!
//! Where it stands: for processes in the background without a log file. Connected before system calls are filtered,
//! which lets nobody connect.
//!
//! Limits: nothing waits here. A line for which the other side has no room is lost, and so is all that a syslog would
//! get that was started anew and has a new socket.

use std::io;
use std::os::unix::net::UnixDatagram;

use rustix::net::{SendFlags, send};

use super::Severity;

/// systemd's journal, in its own protocol.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// Any syslog.
const SYSLOG: &str = "/dev/log";

/// The program's name there.
const NAME: &str = "ringloom";

/// LOG_DAEMON of syslog(3).
const FACILITY: u8 = 3 << 3;

/// A connection to the journal or to syslog.
#[derive(Debug)]
pub(super) struct SystemLog {
    socket: UnixDatagram,
    protocol: Protocol,
}

/// The journal's protocol, or syslog's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Journal,
    Syslog,
}

impl SystemLog {
    /// The journal, otherwise syslog, otherwise nothing.
    pub(super) fn connect() -> Option<Self> {
        let places = [(JOURNAL, Protocol::Journal), (SYSLOG, Protocol::Syslog)];
        places.into_iter().find_map(|(path, protocol)| {
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect(path).ok()?;
            Some(Self { socket, protocol })
        })
    }

    /// Sends a line as it is written to stderr.
    pub(super) fn send(&self, severity: Severity, line: &[u8]) -> io::Result<()> {
        let datagram = datagram(self.protocol, severity, message(line), std::process::id());
        send(&self.socket, &datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// A line without its end and without its level, which is said otherwise.
fn message(line: &[u8]) -> &[u8] {
    let line = line.trim_ascii();
    let level = [&b"ERROR "[..], b"WARN ", b"INFO ", b"DEBUG ", b"TRACE "];
    level.iter().find_map(|level| line.strip_prefix(*level)).unwrap_or(line)
}

fn datagram(protocol: Protocol, severity: Severity, message: &[u8], process: u32) -> Vec<u8> {
    let severity = severity as u8;
    match protocol {
        Protocol::Syslog => {
            let head = format!("<{}>{NAME}[{process}]: ", FACILITY | severity);
            [head.as_bytes(), message].concat()
        }
        Protocol::Journal => {
            // With its length before it a text may hold anything.
            let head = format!("PRIORITY={severity}\nSYSLOG_IDENTIFIER={NAME}\nMESSAGE\n");
            let length = (message.len() as u64).to_le_bytes();
            [head.as_bytes(), &length, message, b"\n"].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syslog_gets_facility_severity_name_and_process() {
        let line = b" WARN export e: the disk is full\n";
        let found = datagram(Protocol::Syslog, Severity::Warning, message(line), 42);
        assert_eq!(found, b"<28>ringloom[42]: export e: the disk is full");
    }

    #[test]
    fn the_journal_gets_fields_and_a_text_that_may_hold_anything() {
        let line = b"ERROR a\nPRIORITY=0\n";
        let found = datagram(Protocol::Journal, Severity::Error, message(line), 42);
        let head = b"PRIORITY=3\nSYSLOG_IDENTIFIER=ringloom\nMESSAGE\n".as_slice();
        assert_eq!(found, [head, &12_u64.to_le_bytes(), b"a\nPRIORITY=0\n"].concat());
    }

    #[test]
    fn a_reader_without_room_holds_nobody_up() {
        let (socket, _reader) = UnixDatagram::pair().unwrap();
        let log = SystemLog { socket, protocol: Protocol::Syslog };
        let refused = (0..1 << 20).find_map(|_| log.send(Severity::Info, b"INFO x\n").err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
