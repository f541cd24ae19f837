//! A client of a monitor.
//!
//! Specification: QEMU, docs/interop/qmp-spec.rst.
//!
//! Who uses it: the words of `ringloom ctl`, and `ringloom top`.
//! Limits: `ANSWER_LIMIT` for the greeting and each answer, `MESSAGE_MAX` for a message.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::Deserialize;
use serde_json::{Deserializer, Map, Value, json};

/// How long the greeting and an answer may take: longer than the longest drain.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// After this it is said what is waited for.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// How long a message may be, in bytes.
const MESSAGE_MAX: u64 = 256 << 20;

/// What a daemon answers that does not do what it is asked for.
#[derive(Debug, thiserror::Error)]
#[error("{desc}")]
pub struct Refusal {
    class: String,
    desc: String,
}

/// A client that has negotiated.
#[derive(Debug)]
pub struct QmpClient {
    socket: PathBuf,
    reader: BufReader<UnixStream>,
    /// The version that the daemon greeted with.
    pub version: Value,
}

impl QmpClient {
    /// Connects and negotiates; `waits` is told a sentence if that takes long.
    ///
    /// # Errors
    /// If nobody serves the socket, if it is no monitor, or if there is no answer within a minute.
    pub fn connect(socket: &Path, waits: impl FnOnce(&str)) -> Result<Self> {
        let stream = connect_within(socket).map_err(|error| no_connection(socket, error))?;
        let reader = BufReader::new(stream);
        let mut client = Self { socket: socket.to_owned(), reader, version: Value::Null };
        client.wait_at_most(Some(SILENCE_MAX))?;
        if client.reader.fill_buf().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            waits(&format!(
                "waiting for {}, which may serve another client, or be no monitor",
                socket.display()
            ));
        }
        client.wait_at_most(Some(ANSWER_LIMIT))?;
        let greeting = client.message("its greeting").map_err(|error| {
            let is_no_qmp = error.is::<serde_json::Error>();
            if is_no_qmp { no_monitor(socket) } else { error }
        })?;
        client.version = greeting["QMP"]["version"].clone();
        ensure!(client.version.is_object(), no_monitor(socket));
        client.ask("qmp_capabilities", &json!({}))?;
        Ok(client)
    }

    /// How long a message may take, or as long as it takes.
    pub(crate) fn wait_at_most(&mut self, limit: Option<Duration>) -> Result<()> {
        self.reader.get_mut().set_read_timeout(limit).context("set a time limit")
    }

    /// Waits until something has happened, or for that long.
    pub(crate) fn wait_event(&mut self, limit: Duration) -> Result<()> {
        let limit = Timespec::try_from(limit).context("a time limit")?;
        // The end of the line of the last message is none.
        while self.reader.buffer().first().is_some_and(u8::is_ascii_whitespace) {
            self.reader.consume(1);
        }
        let stream = self.reader.get_ref();
        let readable = &mut [PollFd::new(stream, PollFlags::IN)];
        let is_there = !self.reader.buffer().is_empty()
            || match poll(readable, Some(&limit)) {
                // A signal, at which the caller looks.
                Err(Errno::INTR) => false,
                polled => polled? > 0,
            };
        if is_there {
            self.message("the next event")?;
        }
        Ok(())
    }

    /// The next message, which a daemon may print over several lines.
    pub(crate) fn message(&mut self, what: impl Display) -> Result<Value> {
        // It reads to the end of the object, and no byte behind it.
        let mut messages = Deserializer::from_reader((&mut self.reader).take(MESSAGE_MAX));
        let socket = self.socket.display();
        let perhaps = match self.version.is_null() {
            true => "it may serve another client (one at a time), or be no monitor",
            false => "it may be carried out yet",
        };
        let message = Map::deserialize(&mut messages);
        message.map(Value::from).map_err(|error| match error.io_error_kind() {
            Some(ErrorKind::WouldBlock) => {
                let limit = ANSWER_LIMIT.as_secs();
                anyhow!("{socket}: waited {limit} s for {what}, {perhaps}")
            }
            None if !error.is_eof() => {
                Error::new(error).context(format!("{socket}: {what} is no object of JSON"))
            }
            _ => anyhow!("{socket}: the daemon has hung up before {what}"),
        })
    }

    /// Carries a command out; gives what it returns.
    ///
    /// # Errors
    /// A [`Refusal`] of the daemon, or that it cannot be talked to.
    pub fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        let written = self.reader.get_mut().write_all(format!("{request}\n").as_bytes());
        written.with_context(|| format!("{}: send {command}", self.socket.display()))?;
        let mut answer = json!({"event": null});
        while answer.get("event").is_some() {
            answer = self.message(format_args!("the answer to {command}"))?;
        }
        if let Some(error) = answer.get("error") {
            let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
            return Err(Refusal { class: text("class"), desc: text("desc") }.into());
        }
        Ok(answer["return"].take())
    }

    /// A list that a question is answered with; none if the daemon does not have the question.
    ///
    /// # Errors
    /// If the daemon refuses it, answers something else, or cannot be talked to.
    pub fn list(&mut self, question: &str, arguments: &Value) -> Result<Option<Vec<Value>>> {
        match self.ask(question, arguments) {
            Ok(Value::Array(all)) if all.iter().all(Value::is_object) => Ok(Some(all)),
            Ok(_) => Err(anyhow!("the answer to {question} is no list of objects")),
            Err(error) => match error.downcast_ref::<Refusal>() {
                Some(Refusal { class, .. }) if class == "CommandNotFound" => Ok(None),
                _ => Err(error),
            },
        }
    }
}

/// Connects; waits while the queue of those who want to is full.
fn connect_within(socket: &Path) -> Result<UnixStream, Errno> {
    let address = SocketAddrUnix::new(socket)?;
    let flags = SocketFlags::CLOEXEC;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&stream, Timeout::Send, Some(ANSWER_LIMIT))?;
    connect(&stream, &address)?;
    Ok(stream.into())
}

fn no_connection(socket: &Path, error: Errno) -> Error {
    let path = socket.display();
    match error {
        Errno::NOENT | Errno::NOTDIR => {
            anyhow!("there is no socket {path}: does its daemon run, and has it a monitor there?")
        }
        Errno::CONNREFUSED => {
            anyhow!("nobody serves {path}: its daemon has ended, or it is no socket")
        }
        Errno::ACCESS | Errno::PERM => anyhow!(
            "no permission to use {path}: a monitor is for its daemon's user alone, unless mode= and group= of its \
             --chardev say otherwise"
        ),
        Errno::AGAIN => anyhow!("{path}: too many wait for it (it serves one client at a time)"),
        _ => anyhow!(error).context(format!("connect to {path}")),
    }
}

fn no_monitor(socket: &Path) -> Error {
    anyhow!("{} is no monitor: what answers there does not speak QMP", socket.display())
}

/// A text without what a terminal would obey.
pub fn printable(text: &str) -> String {
    let is_obeyed = |it: char| {
        it.is_control() && it != '\n'
            || matches!(it, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.replace(is_obeyed, "\u{fffd}")
}

/// Writes all of a text, without what a terminal would obey.
///
/// # Errors
/// Those of the stream.
pub fn write(stream: &mut impl Write, text: &str) -> io::Result<()> {
    stream.write_all(printable(text).as_bytes())?;
    stream.flush()
}
