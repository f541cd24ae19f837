//! QEMU's control socket, in the QEMU Machine Protocol (QMP): commands, answers, events.
//!
//! Invariants: an answer belongs to its command (each has an `id`); events are kept in order until they are
//! taken. Limits: `ANSWER_LIMIT` for an answer unless the caller says otherwise, `EVENTS_MAX` kept events (the
//! oldest go first).

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::Watch;
use crate::channel::{Channel, News};
use crate::clock::now;

/// How long QEMU may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
const EVENTS_MAX: usize = 1000;
/// Time between two signs of life.
const SIGN_PAUSE: Duration = Duration::from_secs(2);
/// A sign's few bytes are taken at once, unless QEMU reads none at all.
const SIGN_LIMIT: Duration = Duration::from_millis(100);

/// Something that happened in QEMU without being asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// As QMP names it: `DEVICE_DELETED`, `STOP` …
    pub name: String,
    /// What it says of it; `null` if nothing.
    pub data: Value,
}

/// QEMU has understood a command and does not carry it out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("QEMU refuses {command}: {description}")]
pub struct Refusal {
    /// The command's name.
    pub command: String,
    /// QEMU's words.
    pub description: String,
}

/// A connection to it.
#[derive(Debug)]
pub struct Monitor {
    channel: Channel,
    /// Received, not understood yet.
    bytes: Vec<u8>,
    events: VecDeque<Event>,
    last_id: u64,
    /// The newest command that was answered.
    answered_id: u64,
    /// The newest sign of life that was asked for, and when.
    sign: Option<(u64, Instant)>,
}

impl Monitor {
    /// Connects to the socket of a QEMU that was started with `-qmp unix:SOCKET,server=on`.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("connect to QEMU's control socket")?;
        Self::over(stream, &mut || Ok(()))
    }

    pub(crate) fn over(stream: UnixStream, watch: Watch<'_>) -> Result<Self> {
        let channel = Channel::new(stream, "QEMU's control socket")?;
        let mut monitor = Self {
            channel,
            bytes: Vec::new(),
            events: VecDeque::new(),
            last_id: 0,
            answered_id: 0,
            sign: None,
        };
        // It is passed over: whatever it offers, commands are asked for by name.
        let _greeting = monitor.wait_line(ANSWER_LIMIT, watch, |it| it.get("QMP").cloned())?;
        monitor.command_within("qmp_capabilities", Value::Null, ANSWER_LIMIT, watch)?;
        Ok(monitor)
    }

    /// Gives a command and returns what it answers. `arguments` is an object, or `null` for none. An error of
    /// QEMU's is a [`Refusal`].
    pub fn command(&mut self, name: &str, arguments: Value) -> Result<Value> {
        self.command_within(name, arguments, ANSWER_LIMIT, &mut || Ok(()))
    }

    /// As `command`, with a limit for the answer. After an error that is no [`Refusal`] the answer may still
    /// come; it is passed over.
    pub fn command_within(
        &mut self,
        name: &str,
        arguments: Value,
        limit: Duration,
        watch: Watch<'_>,
    ) -> Result<Value> {
        let id = self.give(name, arguments, limit, watch)?;
        let answer = self
            .wait_line(limit, watch, |line| {
                (line.get("id").and_then(Value::as_u64) == Some(id)).then(|| line.clone())
            })
            .with_context(|| format!("QEMU does not answer {name}"))?;
        match answer.get("return") {
            Some(value) => Ok(value.clone()),
            None => Err(refusal(name, &answer).into()),
        }
    }

    /// Sends a command; returns its id.
    fn give(
        &mut self,
        name: &str,
        arguments: Value,
        limit: Duration,
        watch: Watch<'_>,
    ) -> Result<u64> {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({ "execute": name, "id": id });
        if !arguments.is_null() {
            message["arguments"] = arguments;
        }
        // In one piece: QEMU may have obeyed, and ended, before a second one is written.
        let line = format!("{message}\n");
        self.channel
            .send(line.as_bytes(), limit, watch)
            .with_context(|| format!("give QEMU the command {name}"))?;
        Ok(id)
    }

    /// For how long QEMU has owed a sign of life. Asks for the next one from time to time; does not wait for it.
    pub(crate) fn silence(&mut self) -> Result<Duration> {
        self.look()?;
        let now = now();
        if let Some((id, asked)) = self.sign {
            let since = now.saturating_duration_since(asked);
            if self.answered_id < id {
                return Ok(since);
            }
            if since < SIGN_PAUSE {
                return Ok(Duration::ZERO);
            }
        }
        let id = self.give("query-status", Value::Null, SIGN_LIMIT, &mut || Ok(()))?;
        self.sign = Some((id, now));
        Ok(Duration::ZERO)
    }

    /// The oldest event of this name that was not taken yet, if one has arrived. Does not wait.
    pub fn take_event(&mut self, name: &str) -> Result<Option<Event>> {
        self.look()?;
        let place = self.events.iter().position(|event| event.name == name);
        Ok(place.and_then(|place| self.events.remove(place)))
    }

    /// Waits for an event of this name whose data is the meant one, and takes it; it may have arrived before.
    pub fn wait_event(
        &mut self,
        name: &str,
        is_meant: impl Fn(&Value) -> bool,
        limit: Duration,
        watch: Watch<'_>,
    ) -> Result<Event> {
        let end = now() + limit;
        loop {
            watch()?;
            let news = self.look()?;
            let is_it = |event: &Event| event.name == name && is_meant(&event.data);
            if let Some(place) = self.events.iter().position(is_it)
                && let Some(event) = self.events.remove(place)
            {
                return Ok(event);
            }
            if news == News::End {
                bail!("QEMU closed {}", self.channel.name());
            }
            if now() >= end {
                bail!("waited {limit:?} for QEMU's event {name}");
            }
            self.channel.wait()?;
        }
    }

    /// Waits a moment, or until something arrives.
    pub(crate) fn rest(&self) -> Result<()> {
        self.channel.wait()
    }

    /// Reads what has arrived, keeps its events, passes over late answers.
    fn look(&mut self) -> Result<News> {
        let mut news = self.channel.receive(&mut self.bytes)?;
        while let Some(line) = self.take_line()? {
            self.keep(&line);
            if news == News::Nothing {
                news = News::Bytes;
            }
        }
        Ok(news)
    }

    /// Waits for the line of which `pick` makes something; events before it are kept.
    fn wait_line(
        &mut self,
        limit: Duration,
        watch: Watch<'_>,
        pick: impl Fn(&Value) -> Option<Value>,
    ) -> Result<Value> {
        let end = now() + limit;
        loop {
            watch()?;
            let news = self.channel.receive(&mut self.bytes)?;
            while let Some(line) = self.take_line()? {
                if let Some(picked) = pick(&line) {
                    return Ok(picked);
                }
                self.keep(&line);
            }
            if news == News::End {
                bail!("QEMU closed {}", self.channel.name());
            }
            if now() >= end {
                bail!("waited {limit:?}");
            }
            self.channel.wait()?;
        }
    }

    fn take_line(&mut self) -> Result<Option<Value>> {
        let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        let value: Value = serde_json::from_slice(&line).with_context(|| {
            format!("{}: {}", self.channel.name(), String::from_utf8_lossy(&line).trim())
        })?;
        if let Some(id) = value.get("id").and_then(Value::as_u64) {
            self.answered_id = id;
        }
        Ok(Some(value))
    }

    fn keep(&mut self, line: &Value) {
        if let Some(name) = line.get("event").and_then(Value::as_str) {
            if self.events.len() == EVENTS_MAX {
                self.events.pop_front();
            }
            let data = line.get("data").cloned().unwrap_or_default();
            self.events.push_back(Event { name: name.to_owned(), data });
        }
    }
}

fn refusal(command: &str, answer: &Value) -> Refusal {
    let description = answer.pointer("/error/desc").and_then(Value::as_str);
    let description = description.map_or_else(|| answer.to_string(), str::to_owned);
    Refusal { command: command.to_owned(), description }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A monitor whose QEMU has said all of this from the beginning.
    fn monitor(lines: &[Value]) -> (Monitor, UnixStream) {
        let (near, mut far) = UnixStream::pair().expect("sockets");
        let hello = [json!({"QMP": {}}), json!({"return": {}, "id": 1})];
        for line in hello.iter().chain(lines) {
            far.write_all(format!("{line}\r\n").as_bytes()).expect("written");
        }
        (Monitor::over(near, &mut || Ok(())).expect("a monitor"), far)
    }

    #[test]
    fn an_answer_belongs_to_its_command_and_events_are_kept() {
        let (mut monitor, _far) = monitor(&[
            json!({"event": "STOP", "data": {"a": 1}}),
            json!({"return": "late", "id": 1}),
            json!({"return": 7, "id": 2}),
            json!({"error": {"class": "GenericError", "desc": "no such thing"}, "id": 3}),
        ]);
        assert_eq!(monitor.command("x", Value::Null).expect("an answer"), 7);
        let error = monitor.command("y", json!({})).expect_err("refused");
        let refusal = error.downcast_ref::<Refusal>().expect("a refusal");
        assert_eq!(refusal.description, "no such thing");
        assert_eq!(error.to_string(), "QEMU refuses y: no such thing");
        let event = monitor.take_event("STOP").expect("no error").expect("it was kept");
        assert_eq!(event.data, json!({"a": 1}));
        assert_eq!(monitor.take_event("STOP").expect("no error"), None);
    }

    #[test]
    fn an_event_is_waited_for_by_its_data() {
        let event = |device: &str| json!({"event": "DEVICE_DELETED", "data": {"device": device}});
        let (mut monitor, _far) = monitor(&[event("a"), event("b")]);
        let limit = Duration::from_secs(10);
        let meant = |data: &Value| data["device"] == "b";
        monitor.wait_event("DEVICE_DELETED", meant, limit, &mut || Ok(())).expect("b");
        let again = monitor.wait_event("DEVICE_DELETED", meant, Duration::ZERO, &mut || Ok(()));
        let error = again.expect_err("b came once");
        assert!(error.to_string().contains("DEVICE_DELETED"), "{error}");
    }

    #[test]
    fn a_qemu_that_has_gone_is_told() {
        let (mut monitor, far) = monitor(&[]);
        drop(far);
        let error = format!("{:#}", monitor.command("x", Value::Null).expect_err("it is gone"));
        assert!(error.contains("QEMU"), "{error}");
    }
}
