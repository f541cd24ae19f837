//! A connection with its requests, over all connections that it has one after the other.
//!
//! Where it stands in the life of a request: between a channel, which hands requests over and fetches what is over, and the
//! link. All calls are those of one iothread.
//!
//! Invariants: a request ends once. What was sent on a connection that is lost is sent again on the next one, in the same
//! order, and the old one was shut down before. Until the answer its outcome is unknown, and what is new and overlaps it is
//! not sent ([`crate::unknown_outcomes::UnknownOutcomes`]). Requests wait for a connection as long as
//! `reconnect-delay` says and fail then; that time begins anew only when a server has answered something.
//! Limits: [`WIRE_MAX`] requests on the wire; others wait here, of which the channel has a bound. [`ROUNDS_MAX`] receives in
//! one call.

mod attempt;
mod request;

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use block::{
    ChannelWakeCondition, Clock, Interest, IoFailure, LogRateLimit, Operation, SystemClock,
    WakeTime,
};
use rustix::io::Errno;

use crate::connector::{ConnectError, Connected};
use crate::link::{Link, LinkError};
use crate::remote::Remote;
use crate::replies::{ReplyEvent, ReplyFault, ReplyReader};
use crate::request::WireRequest;
use crate::terms::Terms;
use attempt::Attempt;
use nbd_wire::command;
pub(crate) use request::{EndedRequest, Origin, RequestMemory};
use request::{Request, Stage};

/// The most requests on the wire. Servers begin no more at a time.
const WIRE_MAX: usize = 64;

/// The most receives in one call; the rest wants another one.
const ROUNDS_MAX: usize = 16;

/// How long after a failed attempt the next one is made, at first and at most.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How exact the times here have to be.
const SLACK: Duration = Duration::from_millis(5);

/// Why a connection is given up.
#[derive(Debug, thiserror::Error)]
enum LineFault {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("the server breaks the rules")]
    Reply(#[from] ReplyFault),
    #[error("the server answers a write before it has its data")]
    EarlyReply,
    #[error("its requests were given up")]
    Abandoned,
}

/// What becomes of requests now.
#[derive(Debug)]
enum LineState {
    Up(Box<UpLink>),
    /// A thread makes a connection.
    Connecting(Arc<Attempt>),
    /// It could not; until then.
    Pausing(Instant),
}

/// A connection in use.
#[derive(Debug)]
struct UpLink {
    link: Link,
    replies: ReplyReader,
    terms: Terms,
    /// Whether the server has answered anything.
    has_answered: bool,
}

/// A connection, its requests, and what comes after it.
#[derive(Debug)]
pub(crate) struct Line {
    remote: Arc<Remote>,
    number: u64,
    waker: Waker,
    state: LineState,
    slots: Vec<Option<Request>>,
    free: Vec<u32>,
    /// What is to be sent, in order.
    queue: VecDeque<u32>,
    /// The write whose data are being added to the output, how much of them was, and how much there is.
    sending: Option<(u32, u64, u64)>,
    on_wire: usize,
    /// How many requests were made here.
    sequence: u64,
    /// Until when requests wait for a connection; `None` while nothing has gone wrong.
    patience: Option<Instant>,
    /// Whether the connection was lost, or could not be made, and is not there again.
    is_lost: bool,
    pause: Duration,
    ended: Vec<EndedRequest>,
    has_more: bool,
    log: LogRateLimit,
}

impl UpLink {
    fn new(Connected { link, terms }: Connected) -> Box<Self> {
        let replies = ReplyReader::new(terms.style, terms.allocation);
        Box::new(Self { link, replies, terms, has_answered: false })
    }

    fn is_quiet(&self) -> bool {
        self.link.is_quiet() && self.replies.is_idle()
    }
}

/// Says goodbye on a connection.
pub(crate) fn leave(connected: &mut Connected) {
    let goodbye = WireRequest { command: command::DISC, flags: 0, offset: 0, count: 0 };
    let mut bytes = Vec::new();
    goodbye.write(connected.terms.style, 0, &mut bytes);
    connected.link.leave(&bytes);
}

impl Line {
    /// Takes a connection that nobody uses, or has one made. The waker is used when there is one.
    pub(crate) fn new(remote: &Arc<Remote>, waker: &Waker) -> Self {
        let mut line = Self {
            remote: Arc::clone(remote),
            number: remote.line_number(),
            waker: waker.clone(),
            state: LineState::Pausing(SystemClock.now()),
            slots: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            sending: None,
            on_wire: 0,
            sequence: 0,
            patience: None,
            is_lost: false,
            pause: PAUSE,
            ended: Vec::new(),
            has_more: false,
            log: LogRateLimit::default(),
        };
        match remote.take_spare() {
            Some(spare) => line.state = LineState::Up(UpLink::new(spare)),
            None => line.attempt(),
        }
        line
    }

    /// Another iothread goes on with it.
    pub(crate) fn set_waker(&mut self, waker: &Waker) {
        self.waker = waker.clone();
        if let LineState::Connecting(attempt) = &self.state {
            attempt.set_waker(waker);
        }
        // It may have been told something that nobody has heard.
        self.has_more = true;
    }

    /// How many requests are not over.
    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a request, which ends later.
    pub(crate) fn begin(&mut self, operation: Operation, memory: RequestMemory, origin: Origin) {
        let request = Request::new(operation, memory, origin, self.sequence);
        self.sequence += 1;
        let answer = match request.answer_without_server(&self.remote.terms) {
            None if self.is_refusing(SystemClock.now()) => Some(Err(Errno::IO)),
            answer => answer,
        };
        if let Some(answer) = answer {
            self.ended.push(request.ended(answer));
            return;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("slots are numbered by u32")
        });
        self.slots[slot as usize] = Some(request);
        self.queue.push_back(slot);
    }

    /// Whether requests fail at once: there is no connection, and the time for one is over.
    fn is_refusing(&self, now: Instant) -> bool {
        let is_up = matches!(self.state, LineState::Up(_));
        !is_up && self.patience.is_some_and(|patience| patience <= now)
    }

    /// Does what can be done without waiting; what is over is in [`Line::take_ended`] then.
    pub(crate) fn pump(&mut self) {
        let now = SystemClock.now();
        self.has_more = false;
        self.look_for_connection(now);
        if let Err(fault) = self.exchange() {
            self.lose(&fault, now);
        }
        if self.is_refusing(now) {
            self.fail_all(Errno::IO);
        }
    }

    /// Moves what is over.
    pub(crate) fn take_ended(&mut self, into: &mut Vec<EndedRequest>) {
        into.append(&mut self.ended);
    }

    /// When to call it next.
    pub(crate) fn wants(&self) -> ChannelWakeCondition<'_> {
        let wake = |at| WakeTime { at, slack: SLACK };
        let (descriptor, pause) = match &self.state {
            LineState::Up(up) => {
                let blocked = up.link.is_blocked();
                let interest = if blocked { Interest::ReadOrWrite } else { Interest::Read };
                (Some((up.link.socket(), interest)), None)
            }
            LineState::Connecting(_) => (None, None),
            LineState::Pausing(until) => (None, Some(wake(*until))),
        };
        let is_waiting = descriptor.is_none() && self.count() > 0;
        let patience = self.patience.filter(|_| is_waiting).map(wake);
        ChannelWakeCondition {
            descriptor,
            again: self.has_more || !self.ended.is_empty(),
            due: WakeTime::first(pause, patience),
        }
    }

    /// Ends all requests of a user, and sees to it that they are not carried out later: what was sent is given up with its
    /// connection.
    pub(crate) fn abandon(&mut self, user: u64) {
        let is_of = |request: &Request| request.origin.user == user;
        let found = self.slots.iter().enumerate();
        let found = found.filter(|(_, it)| it.as_ref().is_some_and(is_of));
        let found: Vec<usize> = found.map(|(slot, _)| slot).collect();
        let is_sent = |slot: &usize| self.slots[*slot].as_ref().is_some_and(Request::is_on_wire);
        if found.is_empty() {
            return;
        }
        if found.iter().any(is_sent) {
            self.lose(&LineFault::Abandoned, SystemClock.now());
        }
        // What comes next is tried as at the beginning.
        self.patience = None;
        for slot in found {
            let slot = u32::try_from(slot).expect("slots are numbered by u32");
            self.queue.retain(|queued| *queued != slot);
            self.end(slot, Err(Errno::CANCELED));
        }
    }

    /// Takes what an attempt has brought, or makes the next one.
    fn look_for_connection(&mut self, now: Instant) {
        let result = match &self.state {
            LineState::Up(_) => return,
            LineState::Pausing(until) => {
                if *until <= now {
                    self.attempt();
                }
                return;
            }
            LineState::Connecting(attempt) => attempt.take(),
        };
        match result {
            None => {}
            Some(Ok(connected)) => {
                if self.patience.is_some() {
                    tracing::info!("disk {}: connected again", self.remote.medium.name());
                }
                self.state = LineState::Up(UpLink::new(connected));
                self.found();
            }
            Some(Err(error)) => self.attempt_failed(&error, now),
        }
    }

    fn attempt(&mut self) {
        match Attempt::start(&self.remote, &self.waker) {
            Ok(attempt) => self.state = LineState::Connecting(attempt),
            Err(error) => self.attempt_failed(&ConnectError::Connect(error), SystemClock.now()),
        }
    }

    fn attempt_failed(&mut self, error: &ConnectError, now: Instant) {
        self.say(now, &format!("no connection: {}", chain(error)));
        self.lost(now);
        self.patience.get_or_insert(now + self.remote.reconnect_delay);
        self.state = LineState::Pausing(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// There is no connection: whoever watches the node sees it.
    fn lost(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_lost, true) {
            self.remote.line_lost(now);
        }
    }

    /// There is one again, or nobody needs one.
    fn found(&mut self) {
        if std::mem::take(&mut self.is_lost) {
            self.remote.line_found();
        }
    }

    /// Says something of the connection, at a bounded rate.
    fn say(&mut self, now: Instant, what: &str) {
        if let Some(left_out) = self.log.admit(now) {
            let name = self.remote.medium.name();
            let more = if left_out > 0 { format!(" ({left_out} more)") } else { String::new() };
            tracing::warn!("disk {name}: {what}{more}");
        }
    }

    /// Sends and receives.
    fn exchange(&mut self) -> Result<(), LineFault> {
        self.send()?;
        for _ in 0..ROUNDS_MAX {
            let LineState::Up(up) = &mut self.state else { return Ok(()) };
            if up.link.receive()? == 0 {
                return Ok(());
            }
            self.take_replies()?;
            self.send()?;
        }
        self.has_more = true;
        Ok(())
    }

    fn take_replies(&mut self) -> Result<(), LineFault> {
        loop {
            let LineState::Up(up) = &mut self.state else { return Ok(()) };
            let (taken, event) = up.replies.next(up.link.unread())?;
            if taken == 0 && event.is_none() {
                return Ok(());
            }
            let over = match event {
                None => None,
                Some(ReplyEvent::Data { slot, skip, bytes }) => {
                    on_wire(&mut self.slots, slot).memory.copy_from(skip, bytes);
                    None
                }
                Some(ReplyEvent::Zeroes { slot, skip, count }) => {
                    on_wire(&mut self.slots, slot).memory.zero(skip, count);
                    None
                }
                Some(ReplyEvent::Extent { slot, skip, count, state }) => {
                    on_wire(&mut self.slots, slot).told(skip, count, state);
                    None
                }
                Some(ReplyEvent::Over { slot, error }) => Some((slot, error)),
            };
            up.link.consume(taken);
            if let Some((slot, error)) = over {
                up.has_answered = true;
                self.answered(slot, error)?;
            }
        }
    }

    /// The server has answered a request, or a part of it.
    fn answered(&mut self, slot: u32, error: u32) -> Result<(), LineFault> {
        if self.sending.is_some_and(|(sending, _, _)| sending == slot) {
            return Err(LineFault::EarlyReply);
        }
        self.on_wire -= 1;
        (self.patience, self.pause) = (None, PAUSE);
        match on_wire(&mut self.slots, slot).part_over(error) {
            // The next part goes first.
            None => {
                self.queue.push_front(slot);
                self.forget_unknown(slot);
            }
            Some(result) => self.end(slot, result),
        }
        Ok(())
    }

    /// Adds requests to what is sent, and sends.
    fn send(&mut self) -> Result<(), LineFault> {
        loop {
            self.fill();
            let LineState::Up(up) = &mut self.state else { return Ok(()) };
            up.link.transmit()?;
            let may_go_on = self.sending.is_some() && !up.link.is_blocked();
            if !may_go_on {
                return Ok(());
            }
        }
    }

    /// Adds requests to what is sent, as far as there is room.
    fn fill(&mut self) {
        while let LineState::Up(up) = &mut self.state {
            let room = up.link.room() as u64;
            if room == 0 {
                return;
            }
            if let Some((slot, done, count)) = self.sending {
                let taken = room.min(count - done);
                let request = self.slots[slot as usize].as_ref().expect("it is being sent");
                request.memory.add_to(done, taken, up.link.output());
                let done = done + taken;
                self.sending = (done < count).then_some((slot, done, count));
                continue;
            }
            let Some(slot) = self.queue.front().copied() else { return };
            let request = self.slots[slot as usize].as_mut().expect("what is queued is there");
            let bytes = request.bytes();
            let key = (self.number, slot);
            let must_wait = request.stage == Stage::New
                && self.remote.unknown.overlaps(key, &bytes, &self.waker);
            if must_wait || self.on_wire == WIRE_MAX {
                return;
            }
            self.queue.pop_front();
            let wire = match request.next_part(&up.terms) {
                Ok(wire) => wire,
                Err(errno) => {
                    self.end(slot, Err(errno));
                    continue;
                }
            };
            if request.operation == Operation::Flush {
                // Sent again it covers no less.
                request.covers = self.remote.coverage.now();
            }
            let cookie = up.replies.expect(slot, &wire);
            wire.write(up.terms.style, cookie, up.link.output());
            self.on_wire += 1;
            if wire.command == command::WRITE {
                self.sending = Some((slot, 0, wire.count));
            }
        }
    }

    /// Gives the connection up: what was sent on it is sent again on another one.
    fn lose(&mut self, fault: &LineFault, now: Instant) {
        let LineState::Up(up) = &mut self.state else { return };
        // Before anything else is sent anywhere.
        up.link.shut();
        let has_answered = up.has_answered;
        self.sending = None;
        self.on_wire = 0;
        let mut sent: Vec<(u64, u32)> = Vec::new();
        for (slot, request) in (0..).zip(&mut self.slots) {
            let Some(request) = request.as_mut().filter(|request| request.is_on_wire()) else {
                continue;
            };
            request.lost();
            sent.push((request.sequence, slot));
            if request.operation.is_change() {
                self.remote.unknown.add((self.number, slot), request.bytes());
            }
        }
        sent.sort_unstable();
        sent.iter().rev().for_each(|(_, slot)| self.queue.push_front(*slot));
        let seconds = self.remote.reconnect_delay.as_secs();
        let then = match (self.count(), seconds) {
            (0, _) => String::new(),
            (count, 0) => format!("; {count} requests fail"),
            (count, seconds) => {
                format!("; {count} requests wait up to {seconds} s for another one")
            }
        };
        self.say(now, &format!("connection lost: {}{then}", chain(fault)));
        self.patience.get_or_insert(now + self.remote.reconnect_delay);
        self.lost(now);
        // A server that ends each connection is not asked as fast as it can do that.
        if has_answered {
            self.attempt();
        } else {
            self.state = LineState::Pausing(now + self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    fn fail_all(&mut self, errno: Errno) {
        self.queue.clear();
        for slot in 0..u32::try_from(self.slots.len()).expect("slots are numbered by u32") {
            if self.slots[slot as usize].is_some() {
                self.end(slot, Err(errno));
            }
        }
    }

    fn end(&mut self, slot: u32, result: Result<(), Errno>) {
        self.forget_unknown(slot);
        let request = self.slots[slot as usize].take().expect("it has not ended");
        self.free.push(slot);
        match (&request.operation, result) {
            (Operation::Flush, Ok(())) => self.remote.coverage.flushed(request.covers),
            (_, Ok(())) if request.needs_flush() => self.remote.coverage.add_change(),
            (_, _) => {}
        }
        self.ended.push(request.ended(result));
    }

    /// Nobody has to wait for the outcome of a request any more.
    fn forget_unknown(&mut self, slot: u32) {
        let request = self.slots[slot as usize].as_mut().expect("it has not ended");
        if std::mem::take(&mut request.was_lost) && request.operation.is_change() {
            self.remote.unknown.remove((self.number, slot));
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.found();
        for slot in 0..u32::try_from(self.slots.len()).expect("slots are numbered by u32") {
            if self.slots[slot as usize].is_some() {
                self.forget_unknown(slot);
            }
        }
        let state = std::mem::replace(&mut self.state, LineState::Pausing(SystemClock.now()));
        let LineState::Up(up) = state else { return };
        let is_quiet = up.is_quiet();
        let connected = Connected { link: up.link, terms: up.terms };
        if !is_quiet {
            connected.link.shut();
        } else if let Some(mut left_over) = self.remote.keep_spare(connected) {
            leave(&mut left_over);
        }
    }
}

/// A request that the server has.
fn on_wire(slots: &mut [Option<Request>], slot: u32) -> &mut Request {
    slots[slot as usize].as_mut().expect("replies are to requests on the wire")
}

/// An error with what caused it.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += ": ";
        text += &error.to_string();
        source = error.source();
    }
    text
}

/// A failure of an operation, as the engine hears it.
pub(crate) fn failure(operation: Operation, errno: Errno) -> IoFailure {
    let offset = operation.extent().map_or(block::ByteOffset(0), |extent| extent.start());
    IoFailure::Errno { offset, errno }
}
