//! An iothread's channel to a remote disk.
//!
//! Invariants: what was sent on a connection that is lost is sent again on the next one; nothing is sent twice at once.
//! Limits: [`REPLIES_MAX`] replies in one call; the rest wants another one.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use block::{
    BeginResult, Buffers, ByteOffset, CancellationSupport, Channel, ChannelWakeCondition, Clock,
    Interest, IoFailure, Medium, Operation, Segment, SystemClock, Tag, WakeTime,
};
use rustix::io::Errno;

use super::server::{Connection, Reply, Request};
use super::{Hears, Mischief, Remote};

/// The replies of one call.
const REPLIES_MAX: usize = 4;

/// How long after the end of a connection the next one is made.
const PAUSE: Duration = Duration::from_micros(300);

/// A channel to a remote disk.
#[derive(Debug)]
pub(super) struct RemoteChannel {
    remote: Arc<Remote>,
    waker: Waker,
    connection: Option<Connection>,
    in_flight: Vec<Sent>,
    over: Vec<(Tag, Result<(), IoFailure>)>,
    /// What is told once more.
    again: Vec<Tag>,
    /// When to connect again.
    reconnect: Option<Instant>,
}

#[derive(Debug)]
struct Sent {
    tag: Tag,
    operation: Operation,
    /// Of a write.
    bytes: Vec<u8>,
    memory: Buffers,
}

impl RemoteChannel {
    pub(super) fn new(remote: &Arc<Remote>, waker: &Waker) -> io::Result<Self> {
        let connection = Connection::new(remote, waker)?;
        Ok(Self {
            remote: Arc::clone(remote),
            waker: waker.clone(),
            connection: Some(connection),
            in_flight: Vec::new(),
            over: Vec::new(),
            again: Vec::new(),
            reconnect: None,
        })
    }

    /// Whether the server uses the memory itself.
    fn lends_memory(&self) -> bool {
        let habits = self.remote.habits;
        habits.cancel == CancellationSupport::Impossible || habits.mischief == Mischief::KeepsMemory
    }

    fn send(&self, sent: &Sent) {
        let Some(connection) = &self.connection else { return };
        let Sent { tag, operation, bytes, memory } = sent;
        let memory = self.lends_memory().then(|| copy(memory.segments()));
        let bytes = bytes.clone();
        connection.send(Request { tag: *tag, operation: *operation, bytes, memory });
    }

    /// Whether an operation is one that the medium allows.
    fn check(&self, operation: Operation, memory: &[Segment]) {
        let Some(extent) = operation.extent() else { return };
        let (bytes, count) = (extent.bytes(), extent.count().0);
        let may_grow = self.remote.habits.grows;
        assert!(
            may_grow || bytes.end <= self.remote.bytes,
            "{operation:?} of {} bytes",
            self.remote.bytes
        );
        if let Operation::Read(_) | Operation::Write(..) = operation {
            let alignment = u64::from(self.remote.habits.alignment);
            let is_aligned = (bytes.start | count).is_multiple_of(alignment);
            assert!(is_aligned && count > 0, "{operation:?} in blocks of {alignment}");
            let segments: usize = memory.iter().map(|segment| segment.count()).sum();
            assert_eq!(segments as u64, count, "the memory of {operation:?}");
            assert!(count <= self.remote.medium.transfer_max(), "{operation:?} is too long");
        }
        if operation.durability() == block::Durability::Stable {
            let by_itself = block::DurableWriteMethod::ByThemselves;
            let is_write = matches!(operation, Operation::Write(..));
            assert!(is_write && self.remote.habits.stable_writes == by_itself, "{operation:?}");
        }
    }

    fn take_reply(&mut self, reply: Reply, done: &mut Vec<(Tag, Result<(), IoFailure>)>) {
        let Reply { tag, result, bytes } = reply;
        // It may have been taken back.
        let Some(place) = self.in_flight.iter().position(|sent| sent.tag == tag) else { return };
        let mut sent = self.in_flight.swap_remove(place);
        let brings = matches!(sent.operation, Operation::Read(_) | Operation::Status(_));
        if brings && !self.lends_memory() {
            sent.memory.copy_from(0, &bytes);
        }
        done.push((tag, result));
        if self.remote.habits.mischief == Mischief::EndsTwice {
            done.push((tag, result));
        }
    }

    fn connect(&mut self) {
        self.reconnect = None;
        match Connection::new(&self.remote, &self.waker) {
            Ok(connection) => self.connection = Some(connection),
            Err(error) => panic!("no connection: {error}"),
        }
        self.in_flight.iter().for_each(|sent| self.send(sent));
    }

    fn lose_connection(&mut self) {
        self.connection = None;
        self.reconnect = Some(SystemClock.now() + PAUSE);
    }
}

impl Channel for RemoteChannel {
    fn medium(&self) -> &Arc<Medium> {
        &self.remote.medium
    }

    fn cancel(&self) -> CancellationSupport {
        self.remote.habits.cancel
    }

    fn begin(&mut self, operation: Operation, memory: &[Segment], tag: Tag) -> BeginResult {
        self.check(operation, memory);
        if self.in_flight.len() >= self.remote.habits.room {
            return BeginResult::Full;
        }
        let memory = copy(memory);
        let mut bytes = Vec::new();
        if let (Operation::Write(..), false) = (operation, self.lends_memory()) {
            bytes.resize(memory.count(), 0);
            memory.copy_to(0, &mut bytes);
        }
        let sent = Sent { tag, operation, bytes, memory };
        self.send(&sent);
        self.in_flight.push(sent);
        BeginResult::Started
    }

    fn collect(&mut self, done: &mut Vec<(Tag, Result<(), IoFailure>)>) {
        done.extend(self.again.drain(..).map(|tag| (tag, Ok(()))));
        if self.remote.habits.mischief == Mischief::EndsAfterAbandon {
            self.again.extend(self.over.iter().map(|(tag, _)| *tag));
        }
        done.append(&mut self.over);
        if let Some(connection) = &self.connection {
            let (replies, _, is_lost) = connection.take(REPLIES_MAX);
            replies.into_iter().for_each(|reply| self.take_reply(reply, done));
            if is_lost {
                self.lose_connection();
            }
        }
        if self.reconnect.is_some_and(|at| at <= SystemClock.now()) {
            self.connect();
        }
    }

    fn wants(&self) -> ChannelWakeCondition<'_> {
        let hears = self.remote.habits.hears == Hears::Descriptor;
        let connection = self.connection.as_ref();
        let descriptor = connection.filter(|_| hears);
        let has_replies = connection.is_some_and(Connection::has_replies);
        ChannelWakeCondition {
            descriptor: descriptor.map(|connection| (connection.bell(), Interest::Read)),
            again: has_replies || !self.over.is_empty() || !self.again.is_empty(),
            due: self.reconnect.map(|at| WakeTime { at, slack: Duration::from_millis(1) }),
        }
    }

    fn abandon(&mut self) {
        if self.remote.habits.cancel == CancellationSupport::Impossible {
            return;
        }
        let failed = |sent: Sent| {
            let offset = sent.operation.extent().map_or(ByteOffset(0), |extent| extent.start());
            (sent.tag, Err(IoFailure::Errno { offset, errno: Errno::CONNRESET }))
        };
        self.over.extend(self.in_flight.drain(..).map(failed));
        self.lose_connection();
    }
}

fn copy(segments: &[Segment]) -> Buffers {
    let mut buffers = Buffers::with_capacity(segments.len());
    segments.iter().for_each(|segment| buffers.push(*segment));
    buffers
}
