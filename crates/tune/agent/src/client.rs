//! The tuner's side of a stream: asks, and looks after the fio at the other end.
//!
//! Threads: one reads what the agent tells, one says every few seconds that somebody is there; everything else is done by the caller's.
//! Invariants: the agent hears of the end of a client, and its fio ends. An answer belongs to the last ask: after an ask that was given up
//! (silence, or whoever waited was interrupted) the client is of no use any more, and says so.
//! Limits: [`ANSWER_LIMIT`] for an answer, and for a sign of progress; `OUTPUT_BYTES_MAX` of what fio prints.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "of all that an agent may tell one thing is the answer, and a new one is none"
)]

mod stream;

use std::io::{Read, Write};
use std::time::{Duration, Instant, SystemTime};

use self::stream::Stream;
use crate::clock::{self, ClockOffset};
use crate::error::AgentError;
use crate::meters::Meters;
use crate::protocol::{Ask, Disk, DiskRequest, Facts, RunEnd, Tell, VERSION};
use crate::token::Token;

/// Asked all the time while something waits; an error ends the wait.
pub type Check<'a> = &'a mut dyn FnMut() -> Result<(), Box<dyn std::error::Error + Send + Sync>>;

const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);
/// Of which the fastest counts.
const ROUND_TRIPS: usize = 9;
/// All reports of fio, one each second, of the longest run.
const OUTPUT_BYTES_MAX: usize = 512 << 20;

/// When fio starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At once.
    Now,
    /// At this time of this machine's clock, which the client converts to that of the agent. With the same time for all
    /// workers they start together.
    At(SystemTime),
}

/// A fio that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// All that it printed; what it said on standard error stands first.
    pub output: String,
    /// How it ended, if not well.
    pub failed: Option<String>,
    /// By this machine's wall clock.
    pub started: SystemTime,
    /// By this machine's wall clock.
    pub ended: SystemTime,
    /// By this machine's monotonic clock.
    pub ended_at: Instant,
}

/// An agent that obeys.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    facts: Facts,
    offset: ClockOffset,
    job: String,
    run: Run,
}

/// What is known of the last fio.
#[derive(Debug, Default)]
struct Run {
    is_under_way: bool,
    output: String,
    /// How much of the output was handed out.
    handed: usize,
    ended: Option<Result<RunEnd, String>>,
}

impl Client {
    /// Says hello and measures the offset of the clocks.
    ///
    /// # Errors
    /// If the agent does not answer, or not as one.
    pub fn greet(
        input: Box<dyn Read + Send>,
        output: Box<dyn Write + Send>,
        token: Option<&Token>,
        check: Check<'_>,
    ) -> Result<Self, AgentError> {
        let mut stream = Stream::new(input, output)?;
        let hello = Ask::Hello { version: VERSION, token: token.cloned() };
        let facts = match stream.ask(&hello, ANSWER_LIMIT, check)? {
            Tell::Hello { version: VERSION, facts } => *facts,
            Tell::Hello { version, .. } => {
                return Err(AgentError::Refused(format!(
                    "it speaks version {version} of the protocol, this ringloom {VERSION}"
                )));
            }
            other => return Err(unexpected(other)),
        };
        let offset = ClockOffset { offset_ns: 0, error_ns: u64::MAX };
        let mut client = Self { stream, facts, offset, job: String::new(), run: Run::default() };
        client.measure_clock(check)?;
        Ok(client)
    }

    /// Where the agent is.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// How far the agent's clock is ahead, as it was measured last.
    #[must_use]
    pub fn offset(&self) -> ClockOffset {
        self.offset
    }

    /// Measures how far the agent's clock is ahead: the fastest of several round trips counts.
    ///
    /// # Errors
    /// As all asks.
    pub fn measure_clock(&mut self, check: Check<'_>) -> Result<ClockOffset, AgentError> {
        let mut best: Option<ClockOffset> = None;
        for _ in 0..ROUND_TRIPS {
            // The length of the trip is taken from a clock that nobody sets.
            let (wall, asked) = (clock::wall_ns(), clock::now());
            let Tell::Clock { wall_ns } = self.ask(&Ask::Clock {}, check)? else {
                return Err(AgentError::Line("an answer to another question".to_owned()));
            };
            let length = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let found = ClockOffset::of_round_trip(wall, wall_ns, wall.saturating_add(length));
            best = best.filter(|it| it.error_ns <= found.error_ns).or(Some(found));
        }
        self.offset = best.expect("there was a round trip");
        Ok(self.offset)
    }

    /// Makes a disk ready. `progress` is told how much of a new file is written.
    ///
    /// # Errors
    /// What is wrong with the disk; as all asks.
    pub fn disk(
        &mut self,
        request: &DiskRequest,
        progress: &mut dyn FnMut(u64),
        check: Check<'_>,
    ) -> Result<Disk, AgentError> {
        match self.ask_slowly(&Ask::Disk { request: request.clone() }, progress, check)? {
            Tell::Disk { disk } => Ok(disk),
            other => Err(unexpected(other)),
        }
    }

    /// Writes all of a disk once with what does not compress; returns its size.
    ///
    /// # Errors
    /// What is wrong with the disk; as all asks.
    pub fn fill(
        &mut self,
        path: &str,
        progress: &mut dyn FnMut(u64),
        check: Check<'_>,
    ) -> Result<u64, AgentError> {
        match self.ask_slowly(&Ask::Fill { path: path.to_owned() }, progress, check)? {
            Tell::Filled { bytes } => Ok(bytes),
            other => Err(unexpected(other)),
        }
    }

    /// The counters of the CPUs; also while fio runs.
    ///
    /// # Errors
    /// As all asks.
    pub fn meters(&mut self, check: Check<'_>) -> Result<Meters, AgentError> {
        match self.ask(&Ask::Meters {}, check)? {
            Tell::Meters { meters } => Ok(meters),
            other => Err(unexpected(other)),
        }
    }

    /// Keeps the job that `start` sends.
    pub fn put(&mut self, job: &str) {
        job.clone_into(&mut self.job);
    }

    /// Starts fio on the job that was put, and returns at once. The last of the words is the job's file, [`crate::JOB`].
    ///
    /// # Errors
    /// If one is under way, or the connection is lost.
    pub fn start(&mut self, words: &[String], start: Start) -> Result<(), AgentError> {
        if self.run.is_under_way {
            return Err(AgentError::Refused("fio is under way".to_owned()));
        }
        let start_ns = match start {
            Start::Now => None,
            Start::At(time) => Some(self.offset.to_agent(clock::since_epoch(time))),
        };
        let ask = Ask::Run { job: self.job.clone(), words: words.to_vec(), start_ns };
        self.stream.send(&ask)?;
        self.run = Run { is_under_way: true, ..Run::default() };
        Ok(())
    }

    /// What fio has printed since the last call; never waits.
    ///
    /// # Errors
    /// If the connection is lost.
    pub fn printed(&mut self) -> Result<Vec<u8>, AgentError> {
        self.hear()?;
        let new = self.run.output.as_bytes()[self.run.handed..].to_vec();
        self.run.handed += new.len();
        Ok(new)
    }

    /// All that fio printed, once it has ended; never waits.
    ///
    /// # Errors
    /// If it could not be started, or the connection is lost.
    pub fn poll(&mut self) -> Result<Option<Ended>, AgentError> {
        self.hear()?;
        match self.run.ended.take() {
            None => Ok(None),
            Some(Err(why)) => Err(AgentError::Refused(why)),
            Some(Ok(end)) => {
                let output = format!("{}{}", end.stderr, std::mem::take(&mut self.run.output));
                self.run.handed = 0;
                let ended_ns = self.offset.to_client(end.ended_ns);
                let ago = clock::wall_ns().saturating_sub(ended_ns);
                let now = clock::now();
                Ok(Some(Ended {
                    output,
                    failed: end.failed,
                    started: clock::from_epoch(self.offset.to_client(end.started_ns)),
                    ended: clock::from_epoch(ended_ns),
                    ended_at: now.checked_sub(Duration::from_nanos(ago)).unwrap_or(now),
                }))
            }
        }
    }

    /// Ends the fio that is under way, if one is, and forgets it.
    ///
    /// # Errors
    /// If the connection is lost or the agent silent.
    pub fn stop(&mut self, check: Check<'_>) -> Result<(), AgentError> {
        let asked = clock::now();
        if self.run.is_under_way {
            self.stream.send(&Ask::Stop {})?;
        }
        while self.run.is_under_way {
            check().map_err(AgentError::Ended)?;
            if asked.elapsed() > ANSWER_LIMIT {
                return Err(AgentError::Silent(ANSWER_LIMIT.as_secs()));
            }
            if let Some(tell) = self.stream.hear(LOOK)? {
                self.run.keep(tell)?;
            }
        }
        self.run = Run::default();
        Ok(())
    }

    /// Takes what fio has told meanwhile.
    fn hear(&mut self) -> Result<(), AgentError> {
        while self.run.is_under_way {
            match self.stream.hear(Duration::ZERO)? {
                Some(tell) => self.run.keep(tell)?,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Asks what an agent answers at once, whatever it does.
    fn ask(&mut self, ask: &Ask, check: Check<'_>) -> Result<Tell, AgentError> {
        self.stream.send(ask)?;
        let asked = clock::now();
        loop {
            match self.stream.wait(asked, ANSWER_LIMIT, check)? {
                // Only the run that is under way tells these before its end.
                tell @ (Tell::Output { .. } | Tell::Ended { .. }) if self.run.is_under_way => {
                    self.run.keep(tell)?;
                }
                tell @ Tell::Failed { .. } if self.run.is_under_way => self.run.keep(tell)?,
                tell => return Ok(tell),
            }
        }
    }

    /// Asks what takes as long as it takes, as long as it goes on.
    fn ask_slowly(
        &mut self,
        ask: &Ask,
        progress: &mut dyn FnMut(u64),
        check: Check<'_>,
    ) -> Result<Tell, AgentError> {
        if self.run.is_under_way {
            return Err(AgentError::Refused("fio is under way".to_owned()));
        }
        self.stream.send(ask)?;
        let mut heard = clock::now();
        let mut is_ended = None;
        loop {
            match self.stream.hear(LOOK)? {
                Some(Tell::Progress { bytes }) => {
                    progress(bytes);
                    heard = clock::now();
                }
                Some(answer) => {
                    return is_ended.map_or(Ok(answer), |why| Err(AgentError::Ended(why)));
                }
                None if heard.elapsed() > ANSWER_LIMIT => {
                    return Err(self.stream.give_up(ANSWER_LIMIT));
                }
                None => {}
            }
            if is_ended.is_none()
                && let Err(why) = check()
            {
                // The answer to what was ended comes soon, and the client stays of use.
                self.stream.send(&Ask::Stop {})?;
                is_ended = Some(why);
            }
        }
    }
}

impl Run {
    fn keep(&mut self, tell: Tell) -> Result<(), AgentError> {
        match tell {
            Tell::Output { text } => {
                if self.output.len() + text.len() > OUTPUT_BYTES_MAX {
                    return Err(AgentError::Output(OUTPUT_BYTES_MAX));
                }
                self.output.push_str(&text);
            }
            Tell::Ended { end } => {
                self.is_under_way = false;
                self.ended = Some(Ok(end));
            }
            Tell::Failed { why } => {
                self.is_under_way = false;
                self.ended = Some(Err(why));
            }
            other => return Err(unexpected(other)),
        }
        Ok(())
    }
}

fn unexpected(tell: Tell) -> AgentError {
    match tell {
        Tell::Failed { why } => AgentError::Refused(why),
        other => {
            let said = format!("{other:?}");
            let begin = said.split([' ', '{']).next().unwrap_or_default();
            AgentError::Line(format!("{begin} is no answer to what was asked"))
        }
    }
}
