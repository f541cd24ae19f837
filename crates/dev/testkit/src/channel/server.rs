//! The other end of a channel: a thread that carries requests out, one at a time, in any order.
//!
//! Invariants: what was not carried out when a connection is shut never is, unless the connection cannot be shut
//! ([`Connection::leave`]).
//! Threads: one for each connection. It ends with that.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use block::{
    BlockStatus, Buffers, ByteCount, ByteOffset, IoFailure, Operation, StatusRecord, StatusRuns,
    Tag,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::{Hears, Mischief, Remote};
use crate::rng::Rng;

/// The most records of an answer.
const RECORDS_MAX: usize = 64;

/// What a client sends.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) tag: Tag,
    pub(super) operation: Operation,
    /// The bytes of a write, or what a read has brought.
    pub(super) bytes: Vec<u8>,
    /// What the server uses itself, as a library does.
    pub(super) memory: Option<Buffers>,
}

/// What a server sends back.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) tag: Tag,
    pub(super) result: Result<(), IoFailure>,
    /// What a read has brought.
    pub(super) bytes: Vec<u8>,
}

/// A client's end.
#[derive(Debug)]
pub(super) struct Connection {
    line: Arc<Line>,
    bell: Arc<OwnedFd>,
    remote: Arc<Remote>,
}

/// What client and server have in common.
#[derive(Debug)]
struct Line {
    state: Mutex<LineState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LineState {
    requests: Vec<Request>,
    replies: Vec<Reply>,
    is_shut: bool,
    is_lost: bool,
}

impl Line {
    fn state(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

impl Connection {
    /// A new one, with a server of its own, which uses the waker if that is how clients hear.
    pub(super) fn new(remote: &Arc<Remote>, waker: &Waker) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags)?);
        let line = Arc::new(Line { state: Mutex::default(), changed: Condvar::new() });
        remote.state().connections += 1;
        let waker = (remote.habits.hears == Hears::Waker).then(|| waker.clone());
        let server = Server {
            line: Arc::clone(&line),
            bell: Arc::clone(&bell),
            waker,
            remote: Arc::clone(remote),
            rng: remote.rng(),
        };
        // It ends by itself, and holds nothing but what is its own.
        std::thread::Builder::new().name("remote".to_owned()).spawn(move || server.serve())?;
        Ok(Self { line, bell, remote: Arc::clone(remote) })
    }

    /// Readable when there are replies, or the connection is lost.
    pub(super) fn bell(&self) -> &Arc<OwnedFd> {
        &self.bell
    }

    pub(super) fn send(&self, request: Request) {
        self.remote.state().waiting += 1;
        self.line.state().requests.push(request);
        self.line.changed.notify_all();
        self.remote.changed.notify_all();
    }

    /// Takes up to so many replies; also whether there are more, and whether it is lost.
    pub(super) fn take(&self, most: usize) -> (Vec<Reply>, bool, bool) {
        let mut count = [0; 8];
        // Nobody may have rung.
        let _nothing = rustix::io::read(&*self.bell, &mut count);
        let mut state = self.line.state();
        let taken = most.min(state.replies.len());
        let replies = state.replies.drain(..taken).collect();
        (replies, !state.replies.is_empty(), state.is_lost)
    }

    /// Whether there is something to take.
    pub(super) fn has_replies(&self) -> bool {
        !self.line.state().replies.is_empty()
    }

    /// Leaves the server to itself, which goes on as long as it has requests.
    pub(super) fn leave(&self) {
        self.line.state().is_lost = true;
        self.line.changed.notify_all();
    }

    /// Shuts it: nothing that was not carried out by now is.
    fn shut(&self) {
        let mut state = self.line.state();
        state.is_shut = true;
        let given_up = state.requests.drain(..).count();
        drop(state);
        self.remote.state().waiting -= given_up;
        self.remote.changed.notify_all();
        self.line.changed.notify_all();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let keeps = self.remote.habits.mischief == Mischief::KeepsMemory
            || self.remote.habits.cancel == block::CancellationSupport::Impossible;
        if keeps { self.leave() } else { self.shut() }
    }
}

struct Server {
    line: Arc<Line>,
    bell: Arc<OwnedFd>,
    waker: Option<Waker>,
    remote: Arc<Remote>,
    rng: Rng,
}

impl Server {
    fn serve(mut self) {
        while self.wait_for_request() {
            self.pause();
            let line = Arc::clone(&self.line);
            let mut state = line.state();
            if state.requests.is_empty() || self.remote.state().stands_still {
                continue;
            }
            let place = self.rng.index(state.requests.len());
            let request = state.requests.swap_remove(place);
            self.remote.state().begin();
            // Under the lock: who shuts the connection knows that nothing is being carried out.
            let reply = self.carry_out(request);
            self.remote.state().working -= 1;
            self.remote.changed.notify_all();
            let loses = self.remote.habits.loses;
            if loses > 0 && self.rng.one_in(loses) {
                let left = state.requests.drain(..).count();
                self.remote.state().waiting -= left;
                state.is_lost = true;
                state.replies.clear();
            } else {
                state.replies.push(reply);
            }
            drop(state);
            self.ring();
        }
    }

    /// Waits for a request to carry out; false if none will come.
    fn wait_for_request(&self) -> bool {
        let state = self.line.state();
        let sleeps =
            |state: &mut LineState| !state.is_shut && !state.is_lost && state.requests.is_empty();
        let state = self.line.changed.wait_while(state, sleeps);
        let state = state.expect("no holder of this lock panics");
        let is_over = state.is_shut || state.is_lost && state.requests.is_empty();
        drop(state);
        if !is_over {
            let remote = self.remote.state();
            let stands = remote.stands_still;
            if stands {
                // Looks again now and then: the connection may be shut.
                let limit = Duration::from_millis(5);
                drop(self.remote.changed.wait_timeout(remote, limit));
            }
        }
        !is_over
    }

    fn pause(&mut self) {
        let most = u64::try_from(self.remote.habits.delay_max.as_micros()).expect("short");
        if most > 0 {
            let limit = Duration::from_micros(self.rng.below(most));
            let shut = |state: &mut LineState| !state.is_shut;
            drop(self.line.changed.wait_timeout_while(self.line.state(), limit, shut));
        }
    }

    fn ring(&self) {
        match &self.waker {
            Some(waker) => waker.wake_by_ref(),
            None => {
                let rung = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
                rung.expect("an eventfd of our own takes a number");
            }
        }
    }

    /// What these bytes are: data, zeroes that are stored, or a hole; as far as the server likes.
    fn records(&mut self, content: &[u8]) -> Vec<u8> {
        let mut runs = StatusRuns::default();
        let stored = BlockStatus { is_zero: true, ..BlockStatus::DATA };
        let mut at = 0;
        for sector in content.chunks(512) {
            let is_zero = sector.iter().all(|byte| *byte == 0) && !self.rng.one_in(8);
            let zeroes = if self.rng.one_in(4) { stored } else { BlockStatus::ZEROES };
            let status = if is_zero { zeroes } else { BlockStatus::DATA };
            let count = sector.len() as u64;
            runs.add(at, ByteCount(count), status);
            at += count;
            if runs.count() == RECORDS_MAX || self.rng.one_in(64) {
                break;
            }
        }
        let mut bytes = vec![0; (RECORDS_MAX + 1) * StatusRecord::BYTES];
        let room = bytes.len();
        let put = |at: usize, record: &[u8; StatusRecord::BYTES]| {
            bytes[at..at + record.len()].copy_from_slice(record);
        };
        runs.write_with(room, put).expect("a status is about a byte at least");
        bytes
    }

    fn carry_out(&mut self, request: Request) -> Reply {
        let Request { tag, operation, mut bytes, memory } = request;
        let start = operation.extent().map_or(0, |extent| extent.start().0);
        let count = operation.extent().map_or(0, |extent| extent.count().0);
        let count = usize::try_from(count).expect("64-bit host");
        let file = &self.remote.file;
        let mut is_short = false;
        let done = match operation {
            Operation::Read(_) => {
                let there = self.remote.bytes().saturating_sub(start);
                let found = count.min(usize::try_from(there).expect("64-bit host"));
                bytes.resize(found, 0);
                is_short = found < count;
                file.read_exact_at(&mut bytes, start)
            }
            Operation::Write(..) => {
                if let Some(memory) = &memory {
                    bytes.resize(count, 0);
                    memory.copy_to(0, &mut bytes);
                }
                file.write_all_at(&bytes, start)
            }
            Operation::WriteZeroes(..) if !self.remote.habits.zeroes => {
                let failure =
                    IoFailure::Errno { offset: ByteOffset(start), errno: Errno::OPNOTSUPP };
                return Reply { tag, result: Err(failure), bytes };
            }
            Operation::Discard(..) if self.rng.one_in(2) => Ok(()),
            Operation::Discard(..) | Operation::WriteZeroes(..) => {
                file.write_all_at(&vec![0; count], start)
            }
            Operation::Flush => Ok(()),
            Operation::Status(_) if self.remote.habits.tells_status => {
                let content = {
                    let mut content = vec![0; count];
                    file.read_exact_at(&mut content, start).map(|()| content)
                };
                content.map(|content| bytes = self.records(&content))
            }
            Operation::Status(_) => Err(io::Error::from(Errno::OPNOTSUPP)),
        };
        let brings = matches!(operation, Operation::Read(_) | Operation::Status(_));
        if let (true, Some(mut memory)) = (brings, memory) {
            memory.copy_from(0, &bytes);
        }
        let failed = |error: io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            IoFailure::Errno { offset: ByteOffset(start), errno }
        };
        let mut result = done.map_err(failed);
        if is_short {
            let offset = ByteOffset(start + bytes.len() as u64);
            result = result.and(Err(IoFailure::EndOfFile { offset }));
        }
        Reply { tag, result, bytes }
    }
}
