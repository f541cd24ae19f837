//! The protocol of one client: greeting, negotiation, requests in order, answers with their ids.
//!
//! Specification: QEMU, docs/interop/qmp-spec.rst. Out-of-band execution can be negotiated; no command of a storage daemon
//! allows it, so every `exec-oob` is refused, as by qemu-storage-daemon.
//!
//! Threads: that of the monitor. Pure: bytes in, bytes and requests out.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::client::{Client, REQUESTS_MAX};
use crate::json_stream::JsonStream;
use crate::qmp_error::QmpError;
use crate::request::Request;

/// The command that negotiates.
pub(crate) const NEGOTIATE: &str = "qmp_capabilities";

/// The state of a client's session.
#[derive(Debug)]
pub(crate) struct Session {
    client: Arc<Client>,
    stream: JsonStream,
    /// Requests that wait for the one before them: their ids, and what they ask for.
    waiting: VecDeque<(Option<Value>, Result<Request, QmpError>)>,
    is_negotiated: bool,
    may_be_out_of_band: bool,
    is_carried_out: bool,
}

/// What a session has for others: bytes for the client, or a request for the first thread.
#[derive(Debug)]
pub(crate) enum SessionOutput {
    /// To be written.
    Line(Vec<u8>),
    /// To be carried out, and answered by [`Client::answer`].
    Request(Option<Value>, Request),
}

impl Session {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self {
            client,
            stream: JsonStream::default(),
            waiting: VecDeque::new(),
            is_negotiated: false,
            may_be_out_of_band: false,
            is_carried_out: false,
        }
    }

    /// The first line.
    pub(crate) fn greeting(&self) -> Vec<u8> {
        let version = crate::types::version();
        let version = serde_json::to_value(version).expect("it is JSON");
        self.client.line(&json!({"QMP": {"version": version, "capabilities": ["oob"]}}))
    }

    /// Whether more may be read.
    pub(crate) fn takes_more(&self) -> bool {
        self.waiting.len() < REQUESTS_MAX
    }

    /// Takes what the client has sent.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        let (waiting, may_be_out_of_band) = (&mut self.waiting, self.may_be_out_of_band);
        self.stream.take(bytes, |found| {
            waiting.push_back(match found {
                Ok(value) => Request::read(value, may_be_out_of_band),
                Err(error) => (None, Err(QmpError::from(error))),
            });
        });
    }

    /// Whether a request is carried out now.
    pub(crate) fn is_carried_out(&self) -> bool {
        self.is_carried_out
    }

    /// The request that was carried out is answered.
    pub(crate) fn answered(&mut self) {
        self.is_carried_out = false;
    }

    /// What comes next; nothing while a request is carried out, or if none waits.
    pub(crate) fn next(&mut self) -> Option<SessionOutput> {
        if self.is_carried_out {
            return None;
        }
        let (id, request) = self.waiting.pop_front()?;
        let refused = match request {
            Err(error) => error,
            Ok(request) if !self.is_negotiated => match self.negotiate(&request) {
                Ok(()) => return Some(self.line(id, Ok(json!({})))),
                Err(error) => error,
            },
            Ok(request) => {
                self.is_carried_out = true;
                return Some(SessionOutput::Request(id, request));
            }
        };
        Some(self.line(id, Err(refused)))
    }

    fn negotiate(&mut self, request: &Request) -> Result<(), QmpError> {
        if request.command != NEGOTIATE {
            let desc = format!("Expecting capabilities negotiation with '{NEGOTIATE}'");
            return Err(QmpError::no_command(desc));
        }
        let mut arguments = request.arguments.clone();
        let enabled = arguments.remove("enable").unwrap_or_else(|| json!([]));
        if let Some(key) = arguments.keys().next() {
            return Err(QmpError::generic(format!("Parameter '{key}' is unexpected")));
        }
        let expects = || QmpError::generic("Invalid parameter type for 'enable', expected: array");
        for capability in enabled.as_array().ok_or_else(expects)? {
            if capability != "oob" {
                let desc = format!("Parameter 'enable' does not accept value {capability}");
                return Err(QmpError::generic(desc));
            }
            self.may_be_out_of_band = true;
        }
        self.is_negotiated = true;
        self.client.set_ready();
        Ok(())
    }

    fn line(&self, id: Option<Value>, result: Result<Value, QmpError>) -> SessionOutput {
        SessionOutput::Line(self.client.line(&answer(id, result)))
    }
}

/// An answer, with the id of what it answers.
pub(crate) fn answer(id: Option<Value>, result: Result<Value, QmpError>) -> Value {
    let mut answer = match result {
        Ok(value) => json!({"return": value}),
        Err(error) => json!({"error": error}),
    };
    if let Some(id) = id {
        answer["id"] = id;
    }
    answer
}
