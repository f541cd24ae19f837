//! The host's journal or syslog: one datagram for each line, with its severity.
//!
//! Where it stands: for processes in the background without a log file, and for those whose stderr systemd has led to the
//! journal. Connected before system calls are filtered, which lets nobody connect.
//!
//! Limits: nothing waits here. A line for which the other side has no room is lost, and so is all that a syslog would
//! get that was started anew and has a new socket.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;

use rustix::fs::fstat;
use rustix::net::{SendFlags, send};

use super::event::{LogEvent, OneLine, subject};

/// systemd's journal, in its own protocol.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// Any syslog.
const SYSLOG: &str = "/dev/log";

/// What systemd sets for those whose stdout or stderr it has led to the journal: device and inode of that.
const STREAM: &str = "JOURNAL_STREAM";

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

    /// The journal, if that is where stderr leads: by its own way each line has its severity and fields.
    pub(super) fn behind_stderr() -> Option<Self> {
        if !is_journal(io::stderr()) {
            return None;
        }
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(JOURNAL).ok()?;
        Some(Self { socket, protocol: Protocol::Journal })
    }

    /// Sends what is said.
    pub(super) fn send(&self, event: &LogEvent) -> io::Result<()> {
        let datagram = datagram(self.protocol, event, std::process::id());
        send(&self.socket, &datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// Whether systemd has led a stream of this process to the journal.
pub(crate) fn is_journal(stream: impl AsFd) -> bool {
    let is_it = |journal: String| {
        fstat(stream).is_ok_and(|it| journal == format!("{}:{}", it.st_dev, it.st_ino))
    };
    std::env::var(STREAM).is_ok_and(is_it)
}

fn datagram(protocol: Protocol, event: &LogEvent, process: u32) -> Vec<u8> {
    let LogEvent { severity, part, text, .. } = event;
    let severity = *severity as u8;
    match protocol {
        Protocol::Syslog => {
            let text = OneLine(text);
            format!("<{}>{NAME}[{process}]: {text}", FACILITY | severity).into_bytes()
        }
        Protocol::Journal => {
            // With its length before it a text may hold anything.
            let head = format!("PRIORITY={severity}\nSYSLOG_IDENTIFIER={NAME}\nMESSAGE\n");
            let length = (text.len() as u64).to_le_bytes();
            let about = match subject(text) {
                Some((key, name)) => format!("RINGLOOM_{}={name}\n", key.to_uppercase()),
                None => String::new(),
            };
            let tail = format!("\nRINGLOOM_PART={part}\n{about}");
            [head.as_bytes(), &length, text.as_bytes(), tail.as_bytes()].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    fn said(severity: Severity, text: &str) -> LogEvent {
        let (time, text) = (String::new(), text.to_owned());
        LogEvent { severity, level: "", part: "exports", time, text }
    }

    #[test]
    fn syslog_gets_facility_severity_name_and_process() {
        let event = said(Severity::Warning, "export e: the disk is full");
        let found = datagram(Protocol::Syslog, &event, 42);
        assert_eq!(found, b"<28>ringloom[42]: export e: the disk is full");
        let event = said(Severity::Warning, "export e: a\n<0>b");
        let found = datagram(Protocol::Syslog, &event, 42);
        assert_eq!(found, b"<28>ringloom[42]: export e: a\\n<0>b");
    }

    #[test]
    fn the_journal_gets_fields_and_a_text_that_may_hold_anything() {
        let event = said(Severity::Error, "export e: a\nPRIORITY=0");
        let found = datagram(Protocol::Journal, &event, 42);
        let head = b"PRIORITY=3\nSYSLOG_IDENTIFIER=ringloom\nMESSAGE\n".as_slice();
        let text = b"export e: a\nPRIORITY=0\nRINGLOOM_PART=exports\nRINGLOOM_EXPORT=e\n";
        assert_eq!(found, [head, &22_u64.to_le_bytes(), text].concat());
    }

    #[test]
    fn a_reader_without_room_holds_nobody_up() {
        let (socket, _reader) = UnixDatagram::pair().unwrap();
        let log = SystemLog { socket, protocol: Protocol::Syslog };
        let event = said(Severity::Info, "x");
        let refused = (0..1 << 20).find_map(|_| log.send(&event).err());
        assert_eq!(refused.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
