//! A client's stream: lines in both directions, with limits, and a sign of life.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::{Check, LOOK};
use crate::clock;
use crate::error::AgentError;
use crate::line::{self, Lines};
use crate::protocol::{Ask, SILENCE_LIMIT, Tell};

/// Lines that are read and not yet taken: about what fio prints in some seconds.
const TELLS_MAX: usize = 1024;

type Output = Arc<Mutex<Box<dyn Write + Send>>>;

pub(super) struct Stream {
    output: Output,
    told: Receiver<Result<Tell, AgentError>>,
    /// Nobody waits any more for an answer that may still come.
    has_given_up: bool,
    /// Dropped with this value, which ends the thread that gives signs of life.
    _alive: mpsc::Sender<()>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Stream")
    }
}

impl Stream {
    pub(super) fn new(
        input: Box<dyn Read + Send>,
        output: Box<dyn Write + Send>,
    ) -> Result<Self, AgentError> {
        let (sender, told) = sync_channel(TELLS_MAX);
        let output: Output = Arc::new(Mutex::new(output));
        let mut lines = Lines::new(input);
        let read = move || {
            loop {
                let tell = match lines.next() {
                    Ok(Some(tell)) => Ok(tell),
                    Ok(None) => Err(AgentError::Lost(String::new())),
                    Err(error) => Err(error),
                };
                let is_last = tell.is_err();
                if sender.send(tell).is_err() || is_last {
                    return;
                }
            }
        };
        let named = |name: &str| thread::Builder::new().name(name.to_owned());
        named("agent hear").spawn(read).map_err(AgentError::Stream)?;
        let (alive, ended) = channel();
        let shared = Arc::clone(&output);
        let sign = move || {
            while ended.recv_timeout(SILENCE_LIMIT / 6) == Err(RecvTimeoutError::Timeout) {
                if send(&shared, &Ask::Alive {}).is_err() {
                    return;
                }
            }
        };
        named("agent alive").spawn(sign).map_err(AgentError::Stream)?;
        Ok(Self { output, told, has_given_up: false, _alive: alive })
    }

    pub(super) fn send(&self, ask: &Ask) -> Result<(), AgentError> {
        if self.has_given_up {
            return Err(AgentError::Lost("an answer of it was given up".to_owned()));
        }
        send(&self.output, ask).map_err(|error| match error {
            // What the agent said last tells more than a pipe that is broken.
            AgentError::Stream(_) => self.last_words(),
            other => other,
        })
    }

    /// Asks and waits for the next line.
    pub(super) fn ask(
        &mut self,
        ask: &Ask,
        limit: Duration,
        check: Check<'_>,
    ) -> Result<Tell, AgentError> {
        self.send(ask)?;
        self.wait(clock::now(), limit, check)
    }

    /// The next line, which comes within the limit since a moment.
    pub(super) fn wait(
        &mut self,
        since: Instant,
        limit: Duration,
        check: Check<'_>,
    ) -> Result<Tell, AgentError> {
        loop {
            if let Err(why) = check() {
                self.has_given_up = true;
                return Err(AgentError::Ended(why));
            }
            if let Some(tell) = self.hear(LOOK)? {
                return Ok(tell);
            }
            if since.elapsed() > limit {
                return Err(self.give_up(limit));
            }
        }
    }

    /// An answer has not come within the limit, and is not waited for any longer.
    pub(super) fn give_up(&mut self, limit: Duration) -> AgentError {
        self.has_given_up = true;
        AgentError::Silent(limit.as_secs())
    }

    /// A line that comes within this time.
    pub(super) fn hear(&mut self, patience: Duration) -> Result<Option<Tell>, AgentError> {
        match self.told.recv_timeout(patience) {
            Ok(tell) => tell.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(AgentError::Lost(String::new())),
        }
    }

    fn last_words(&self) -> AgentError {
        let mut said = String::new();
        loop {
            match self.told.try_recv() {
                Ok(Ok(Tell::Failed { why })) => said = why,
                // Whoever carries the stream knows why it has ended.
                Ok(Err(error @ AgentError::Stream(_))) => return error,
                Ok(_) => {}
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {
                    return AgentError::Lost(said);
                }
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // If it does not arrive, the end of the stream does, or silence.
        drop(send(&self.output, &Ask::End {}));
    }
}

fn send(output: &Output, ask: &Ask) -> Result<(), AgentError> {
    line::write(&mut *output.lock().unwrap_or_else(PoisonError::into_inner), ask)
}
