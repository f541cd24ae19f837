//! A request of an iothread while it waits for the server, and its parts on the wire.
//!
//! Invariants: memory is used only while the request is there. Parts follow each other; each is sent when the one before has
//! been answered.

use std::ops::Range;

use block::{
    BlockStatus, Buffers, ByteCount, Durability, Extent, Operation, StatusRuns, Tag, Unmap,
    ZeroCost, ZeroTerms,
};
use nbd_wire::{command, command_flag, error, state, transmission};
use rustix::io::Errno;

use crate::flush_coverage::CoveredChanges;
use crate::request::WireRequest;
use crate::terms::Terms;

/// Whose request it is, and how it is called there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    /// One of those that share the connection.
    pub(crate) user: u64,
    /// Its name for it.
    pub(crate) tag: Tag,
}

/// Where the bytes of a request are.
#[derive(Debug)]
pub(crate) enum RequestMemory {
    /// Memory of the engine or of a guest, lent by the channel of this iothread.
    Lent(Buffers),
    /// Bytes on their way from or to another iothread.
    Own(Vec<u8>),
}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It was never sent.
    New,
    /// A part of it is on the wire.
    OnWire,
    /// It was sent, and is to be sent again, or its next part is.
    Again,
}

/// A request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) memory: RequestMemory,
    pub(crate) origin: Origin,
    /// The place in the order of requests.
    pub(crate) sequence: u64,
    pub(crate) stage: Stage,
    /// Whether the connection of a part was lost.
    pub(crate) was_lost: bool,
    /// What it covers, if it is a flush that was sent.
    pub(crate) covers: CoveredChanges,
    /// How many of its bytes are done.
    done: u64,
    /// How many are on the wire.
    part: u64,
    runs: StatusRuns,
}

/// A request that is over.
#[derive(Debug)]
pub(crate) struct EndedRequest {
    pub(crate) origin: Origin,
    pub(crate) operation: Operation,
    pub(crate) result: Result<(), Errno>,
    pub(crate) memory: RequestMemory,
}

impl RequestMemory {
    /// Copies what was read.
    pub(crate) fn copy_from(&mut self, skip: u64, bytes: &[u8]) {
        let skip = usize::try_from(skip).expect("inside the memory");
        match self {
            Self::Lent(buffers) => drop(buffers.copy_from(skip, bytes)),
            Self::Own(own) => own[skip..skip + bytes.len()].copy_from_slice(bytes),
        }
    }

    /// Zeroes what was read so.
    pub(crate) fn zero(&mut self, skip: u64, count: u64) {
        let inside = "inside the memory";
        let (skip, count) =
            (usize::try_from(skip).expect(inside), usize::try_from(count).expect(inside));
        match self {
            Self::Lent(buffers) => buffers.zero(skip, count),
            Self::Own(own) => own[skip..skip + count].fill(0),
        }
    }

    /// Adds bytes that are written to what is sent.
    pub(crate) fn add_to(&self, skip: u64, count: u64, out: &mut Vec<u8>) {
        let inside = "inside the memory";
        let (skip, count) =
            (usize::try_from(skip).expect(inside), usize::try_from(count).expect(inside));
        match self {
            Self::Lent(buffers) => {
                let start = out.len();
                out.resize(start + count, 0);
                buffers.copy_to(skip, &mut out[start..]);
            }
            Self::Own(own) => out.extend_from_slice(&own[skip..skip + count]),
        }
    }

    fn write_runs(&mut self, runs: &mut StatusRuns) -> Result<(), Errno> {
        let written = match self {
            Self::Lent(buffers) => runs.write(buffers),
            Self::Own(own) => runs.write_with(own.len(), |at, record| {
                own[at..at + record.len()].copy_from_slice(record);
            }),
        };
        // A status has room for one record at least.
        written.map_err(|_kind| Errno::IO)
    }
}

impl Request {
    pub(crate) fn new(
        operation: Operation,
        memory: RequestMemory,
        origin: Origin,
        sequence: u64,
    ) -> Self {
        Self {
            operation,
            memory,
            origin,
            sequence,
            stage: Stage::New,
            was_lost: false,
            covers: CoveredChanges::default(),
            done: 0,
            part: 0,
            runs: StatusRuns::default(),
        }
    }

    /// What becomes of it if the server cannot do it.
    pub(crate) fn answer_without_server(&self, terms: &Terms) -> Option<Result<(), Errno>> {
        let unsupported = Some(Err(Errno::OPNOTSUPP));
        match self.operation {
            Operation::Read(_) | Operation::Write(..) => None,
            Operation::Status(_) => unsupported.filter(|_| terms.allocation.is_none()),
            Operation::Discard(..) => unsupported.filter(|_| !terms.has(transmission::SEND_TRIM)),
            Operation::WriteZeroes(_, ZeroTerms { cost, .. }, _) => {
                let needs = transmission::SEND_WRITE_ZEROES
                    | match cost {
                        ZeroCost::Any => 0,
                        ZeroCost::Fast => transmission::SEND_FAST_ZERO,
                    };
                unsupported.filter(|_| terms.flags & needs != needs)
            }
            // Such a server keeps what it has answered, as QEMU reads it.
            Operation::Flush => Some(Ok(())).filter(|_| !terms.has(transmission::SEND_FLUSH)),
        }
    }

    /// Whether it is a change that is durable only with a flush.
    pub(crate) fn needs_flush(&self) -> bool {
        // A write that has to be durable is sent with FUA; the others are followed by a flush.
        self.operation.is_change()
            && !matches!(self.operation, Operation::Write(_, Durability::Stable))
    }

    /// The bytes that it is about.
    pub(crate) fn bytes(&self) -> Range<u64> {
        self.operation.extent().map_or(0..0, Extent::bytes)
    }

    pub(crate) fn is_on_wire(&self) -> bool {
        self.stage == Stage::OnWire
    }

    /// What is sent next.
    pub(crate) fn next_part(&mut self, terms: &Terms) -> Result<WireRequest, Errno> {
        let bytes = self.bytes();
        let most = WireRequest::count_max(terms.style);
        let left = bytes.end - bytes.start - self.done;
        let (command, flags) = match self.operation {
            Operation::Read(_) => (command::READ, 0),
            Operation::Write(_, Durability::Stable) => (command::WRITE, command_flag::FUA),
            Operation::Write(_, Durability::Cached) => (command::WRITE, 0),
            Operation::Discard(..) => (command::TRIM, 0),
            Operation::WriteZeroes(_, ZeroTerms { unmap, cost }, _) => {
                let hole = if unmap == Unmap::Keep { command_flag::NO_HOLE } else { 0 };
                let fast = if cost == ZeroCost::Fast { command_flag::FAST_ZERO } else { 0 };
                (command::WRITE_ZEROES, hole | fast)
            }
            Operation::Flush => (command::FLUSH, 0),
            // Not every connection to a server need have the same contexts.
            Operation::Status(_) if terms.allocation.is_none() => return Err(Errno::OPNOTSUPP),
            Operation::Status(_) => (command::BLOCK_STATUS, 0),
        };
        self.part = left.min(most);
        self.stage = Stage::OnWire;
        Ok(WireRequest { command, flags, offset: bytes.start + self.done, count: self.part })
    }

    /// A part was answered; how the request has ended, or `None` if there is another part.
    pub(crate) fn part_over(&mut self, error: u32) -> Option<Result<(), Errno>> {
        self.stage = Stage::Again;
        if error != error::NONE {
            return Some(Err(errno_of(error)));
        }
        self.done += self.part;
        let bytes = self.bytes();
        match self.operation {
            // It may end where it likes.
            Operation::Status(_) => Some(self.memory.write_runs(&mut self.runs)),
            Operation::Read(_)
            | Operation::Write(..)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => (self.done == bytes.end - bytes.start).then_some(Ok(())),
        }
    }

    /// The connection of the part on the wire is lost.
    pub(crate) fn lost(&mut self) {
        self.stage = Stage::Again;
        self.was_lost = true;
        self.part = 0;
        self.runs.clear(0);
    }

    /// The server says what bytes are.
    pub(crate) fn told(&mut self, skip: u64, count: u64, told: u32) {
        let (is_hole, is_zero) = (told & state::HOLE != 0, told & state::ZERO != 0);
        // What a hole reads as that is not said to be zero is up to the server.
        let is_data = !(is_hole && is_zero);
        let status = BlockStatus { is_data, is_zero, ..BlockStatus::DATA };
        // More than anybody has asked for room for.
        if self.runs.count() < RUNS_MAX {
            self.runs.add(skip, ByteCount(count), status);
        }
    }

    pub(crate) fn ended(self, result: Result<(), Errno>) -> EndedRequest {
        let Self { origin, operation, memory, .. } = self;
        EndedRequest { origin, operation, result, memory }
    }
}

/// The most runs of a status that are kept.
const RUNS_MAX: usize = 4096;

/// What an error of a server is called here.
fn errno_of(error: u32) -> Errno {
    match error {
        error::EPERM => Errno::PERM,
        error::ENOMEM => Errno::NOMEM,
        error::EINVAL => Errno::INVAL,
        error::ENOSPC => Errno::NOSPC,
        error::EOVERFLOW => Errno::OVERFLOW,
        error::ENOTSUP => Errno::OPNOTSUPP,
        error::ESHUTDOWN => Errno::SHUTDOWN,
        // EIO, and what the protocol does not have.
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use block::{ByteOffset, DiskSize};

    use super::*;
    use crate::terms::HeaderStyle;

    fn terms(style: HeaderStyle, flags: u16) -> Terms {
        Terms::check(1 << 40, flags, None, style, None).unwrap()
    }

    fn request(operation: Operation) -> Request {
        let origin = Origin { user: 0, tag: Tag(0) };
        Request::new(operation, RequestMemory::Own(Vec::new()), origin, 0)
    }

    #[test]
    fn what_does_not_fit_a_compact_header_goes_in_parts() {
        let all = DiskSize(ByteCount(1 << 40));
        let extent = all.check(ByteOffset(4096), ByteCount(9 << 30)).unwrap();
        let operation = Operation::WriteZeroes(extent, ZeroTerms::UNMAP, Durability::Cached);
        let terms = terms(HeaderStyle::Structured, transmission::SEND_WRITE_ZEROES);
        let (mut it, mut at) = (request(operation), 4096);
        assert_eq!(it.answer_without_server(&terms), None);
        loop {
            let part = it.next_part(&terms).unwrap();
            assert_eq!(part.offset, at);
            at += part.count;
            // What is lost is sent again as it was.
            it.lost();
            assert_eq!(it.next_part(&terms), Ok(part));
            if let Some(result) = it.part_over(error::NONE) {
                assert_eq!(result, Ok(()));
                break;
            }
        }
        assert_eq!(at, 4096 + (9 << 30));
    }

    #[test]
    fn what_a_server_cannot_do_is_said_without_it() {
        let none = terms(HeaderStyle::Simple, 0);
        assert_eq!(request(Operation::Flush).answer_without_server(&none), Some(Ok(())));
        let extent = DiskSize(ByteCount(4096)).check(ByteOffset(0), ByteCount(512)).unwrap();
        for operation in [Operation::Status(extent), Operation::Discard(extent, Durability::Cached)]
        {
            let answer = request(operation).answer_without_server(&none);
            assert_eq!(answer, Some(Err(Errno::OPNOTSUPP)));
        }
        assert_eq!(request(Operation::Read(extent)).answer_without_server(&none), None);
    }

    #[test]
    fn errors_are_passed_through() {
        let extent = DiskSize(ByteCount(4096)).check(ByteOffset(0), ByteCount(512)).unwrap();
        for (error, errno) in
            [(1, Errno::PERM), (5, Errno::IO), (28, Errno::NOSPC), (99, Errno::IO)]
        {
            let mut it = request(Operation::Write(extent, Durability::Stable));
            let part = it.next_part(&terms(HeaderStyle::Simple, 0)).unwrap();
            assert_eq!(part.flags, command_flag::FUA);
            assert_eq!(it.part_over(error), Some(Err(errno)));
        }
    }
}
