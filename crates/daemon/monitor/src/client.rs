//! What the thread that talks to a client and the first thread, which carries commands out, share of a connection.
//!
//! Limits: [`EVENTS_BYTES_MAX`] of events wait for a client; what comes then is left out, and counted. Of requests at most
//! one is carried out at a time, and [`REQUESTS_MAX`] wait; no more are read.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kernel_io::Notifier;
use serde_json::Value;

/// How many bytes of events wait for a client that does not read.
pub const EVENTS_BYTES_MAX: usize = 1 << 20;

/// How many requests of a client wait for the one before them, as in QEMU.
pub const REQUESTS_MAX: usize = 8;

/// A client's connection as both threads see it.
#[derive(Debug)]
pub(crate) struct Client {
    /// The monitor that it has connected to.
    pub(crate) monitor: String,
    pub(crate) is_read_only: bool,
    is_pretty: bool,
    bell: Notifier,
    outbox: Mutex<Outbox>,
    /// Whether it has negotiated capabilities, and hears of events.
    is_ready: AtomicBool,
    is_gone: AtomicBool,
}

/// What waits to be written.
#[derive(Debug, Default)]
struct Outbox {
    lines: VecDeque<Vec<u8>>,
    /// Of events in it.
    event_bytes: usize,
    events_left_out: u64,
    /// Whether the answer to the request that is carried out is in it.
    is_answered: bool,
}

/// What is to be written now, and whether the last request is answered with it.
#[derive(Debug, Default)]
pub(crate) struct OutboxContents {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_answered: bool,
    pub(crate) events_left_out: u64,
}

impl Client {
    pub(crate) fn new(monitor: &str, is_read_only: bool, is_pretty: bool) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            monitor: monitor.to_owned(),
            is_read_only,
            is_pretty,
            bell: Notifier::new()?,
            outbox: Mutex::default(),
            is_ready: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        }))
    }

    /// Rung when there is something to write.
    pub(crate) fn bell(&self) -> &Notifier {
        &self.bell
    }

    /// The text of a message, with its end.
    pub(crate) fn line(&self, message: &Value) -> Vec<u8> {
        let mut line = Vec::new();
        let written = if self.is_pretty {
            let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
            let mut to = serde_json::Serializer::with_formatter(&mut line, format);
            serde::Serialize::serialize(message, &mut to)
        } else {
            serde_json::to_writer(&mut line, message)
        };
        written.expect("JSON is written to memory");
        line.extend_from_slice(b"\r\n");
        line
    }

    /// Answers the request that is carried out.
    pub(crate) fn answer(&self, message: &Value) {
        let line = self.line(message);
        let mut outbox = self.lock();
        outbox.lines.push_back(line);
        outbox.is_answered = true;
        drop(outbox);
        self.bell.wake();
    }

    /// Tells of an event, unless the client does not read.
    pub(crate) fn tell(&self, event: &Value) {
        if !self.is_ready.load(Ordering::Acquire) {
            return;
        }
        let line = self.line(event);
        let mut outbox = self.lock();
        if outbox.event_bytes + line.len() > EVENTS_BYTES_MAX {
            outbox.events_left_out += 1;
            return;
        }
        outbox.event_bytes += line.len();
        outbox.lines.push_back(line);
        drop(outbox);
        self.bell.wake();
    }

    /// Takes all that waits.
    pub(crate) fn take(&self) -> OutboxContents {
        let outbox = std::mem::take(&mut *self.lock());
        let bytes = outbox.lines.into_iter().flatten().collect();
        let Outbox { is_answered, events_left_out, .. } = outbox;
        OutboxContents { bytes, is_answered, events_left_out }
    }

    /// Capabilities are negotiated.
    pub(crate) fn set_ready(&self) {
        self.is_ready.store(true, Ordering::Release);
    }

    /// It has left.
    pub(crate) fn set_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Outbox> {
        self.outbox.lock().expect("no holder of this lock panics")
    }
}
