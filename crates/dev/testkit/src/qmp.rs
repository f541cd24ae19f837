//! A client of a monitor (QMP), which knows nothing of ringloom.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::deadline::poll_until;

/// How long an answer may take: longer than the longest drain.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// How long a monitor may not be there yet.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// A client that has negotiated.
#[derive(Debug)]
pub struct QmpClient {
    reader: BufReader<UnixStream>,
    /// The first line.
    pub greeting: Value,
    /// Events that came between answers.
    pub events: VecDeque<Value>,
}

impl QmpClient {
    /// Connects and negotiates. A process that starts or takes over may make its monitor when it serves already.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream =
            poll_until("the monitor", CONNECT_LIMIT, || match UnixStream::connect(socket) {
                Ok(stream) => Ok(Some(stream)),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::ConnectionRefused
                    ) =>
                {
                    Ok(None)
                }
                Err(error) => Err(error).context("connect to the monitor"),
            })?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let (reader, events) = (BufReader::new(stream), VecDeque::new());
        let mut client = Self { reader, greeting: Value::Null, events };
        client.greeting = client.line()?;
        client.execute("qmp_capabilities", &json!({}))?;
        Ok(client)
    }

    /// Sends these bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.reader.get_mut().write_all(bytes).context("write to the monitor")
    }

    /// The next line, which may be an event.
    pub fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self.reader.read_line(&mut line).context("read from the monitor")?;
        ensure!(read > 0, "the monitor has hung up");
        serde_json::from_str(&line).with_context(|| line.clone())
    }

    /// The next answer; events before it are kept.
    pub fn answer(&mut self) -> Result<Value> {
        loop {
            let line = self.line()?;
            // qemu-storage-daemon greets whoever connects while it is starting twice.
            if line.get("QMP").is_some() {
                continue;
            }
            if line.get("event").is_none() {
                return Ok(line);
            }
            self.events.push_back(line);
        }
    }

    /// Carries a command out; gives the whole answer.
    pub fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        self.send(format!("{request}\n").as_bytes())?;
        self.answer()
    }

    /// Carries a command out that must succeed; gives what it returns.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let answer = self.ask(command, arguments)?;
        match answer.get("return") {
            Some(value) => Ok(value.clone()),
            None => bail!("{command} {arguments}: {answer}"),
        }
    }

    /// Carries a command out that must fail; gives the class of the error, and the sentence.
    pub fn refused(&mut self, command: &str, arguments: &Value) -> Result<(String, String)> {
        let answer = self.ask(command, arguments)?;
        let text = |key: &str| answer["error"][key].as_str().map(str::to_owned);
        match (text("class"), text("desc")) {
            (Some(class), Some(desc)) => Ok((class, desc)),
            _ => bail!("{command} {arguments} was not refused: {answer}"),
        }
    }

    /// Waits for an event of that name.
    pub fn event(&mut self, name: &str) -> Result<Value> {
        if let Some(place) = self.events.iter().position(|event| event["event"] == name) {
            return Ok(self.events.remove(place).unwrap_or_default());
        }
        loop {
            let line = self.line()?;
            if line["event"] == name {
                return Ok(line);
            }
            if line.get("QMP").is_some() {
                continue;
            }
            ensure!(line.get("event").is_some(), "an answer to nothing: {line}");
            self.events.push_back(line);
        }
    }
}
