//! A request while this iothread carries it out.
//!
//! Invariants: a job's list of segments stays untouched while one of its operations is in
//! flight. Jobs stay in their table when they are over and keep their lists, so that a warm
//! iothread allocates nothing for a request. Limits: the caller asks for room first; lists are kept as long as they are
//! short.

use block::{
    AfterPiecesAction, Buffers, ChannelId, EofPolicy, FailKind, FileId, InternalOperation,
    Operation, Piece, RangeGuard, RequestMemoryCopy, SourceRequestSlot, StatusRuns, StorageId, Tag,
    Token,
};

use crate::bounce_transfer::BounceTransfer;
use crate::completion_routes::{RouteIndex, Ticket};
use crate::{LaneIndex, SourceKey, StreamDirection};

/// For so many pieces, segments and the like a job keeps room when it is over.
const ROOM_KEPT: usize = 256;

/// The same for those beyond the first [`WARM_JOBS`], which only a deep queue needs.
const ROOM_KEPT_BEYOND: usize = 16;

/// How many jobs keep room for large requests.
const WARM_JOBS: u32 = 256;

/// The index of a request in the [`RequestTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestIndex(u32);

impl RequestIndex {
    /// For how many segments, or runs of a status, it keeps room when its request is over.
    pub(crate) fn room_kept(self) -> usize {
        if self.0 < WARM_JOBS { ROOM_KEPT } else { ROOM_KEPT_BEYOND }
    }

    /// The name that lanes know the job by.
    pub(crate) fn token(self) -> Token {
        Token(self.0)
    }

    /// The job that lanes know by that name.
    pub(crate) fn of(token: Token) -> Self {
        Self(token.0)
    }
}

/// Which phase of its execution a request is in: held by a lane, waiting for a range lock, transferring, or syncing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestPhase {
    /// A lane holds it, or is being asked.
    Held,
    /// It waits until nobody else changes what it changes.
    Start,
    /// Its bytes are on their way.
    Transfer,
    /// Its bytes are there, and it waits for a sync of each of its files.
    Sync,
    /// It was carried out, or was not, and its lane is about to be told.
    Completed,
}

/// Where a request comes from, which is told its outcome: a source, or a lane's internal I/O.
#[derive(Debug)]
pub(crate) enum RequestOrigin {
    /// The ring that brought the request.
    Ring(Ticket),
    /// The lane whose internal I/O it is.
    Lane(InternalOperation),
    /// Nobody any more: it was answered while its lane held it, and is not carried out.
    Cancelled,
}

/// A request, or a lane's internal I/O, in execution on this iothread.
#[derive(Debug)]
pub(crate) struct IoRequest {
    pub(crate) owner: Option<RequestOrigin>,
    pub(crate) operation: Operation,
    pub(crate) memory: Buffers,
    /// What a write is carried out with, if that is not the memory as it is now.
    pub(crate) copy: Option<RequestMemoryCopy>,
    /// What a request counts for, in bytes ([`weight`](crate::lanes::weight)).
    pub(crate) weight: usize,
    /// The lane that is asked where its bytes live.
    pub(crate) lane: LaneIndex,
    pub(crate) pieces: Vec<Piece>,
    /// The first of those that were not begun.
    pub(crate) next_piece: usize,
    /// How many bytes of that were moved by hand.
    pub(crate) moved: u64,
    /// Whether pieces are begun later, which counts as something outstanding.
    pub(crate) has_pieces_later: bool,
    /// What becomes of it when the answer was carried out.
    pub(crate) after: AfterPiecesAction,
    pub(crate) eof_policy: EofPolicy,
    /// Kernel operations in flight, and syncs that it waits for.
    pub(crate) outstanding: u32,
    pub(crate) failure: Option<FailKind>,
    pub(crate) phase: RequestPhase,
    /// Whether somebody waits for its end, so that no lane holds it for longer than it must.
    pub(crate) released: bool,
    /// What direct I/O could not do in place; carried out one after the other, last first.
    pub(crate) staged: Vec<BounceTransfer>,
    /// Of a status: what was told so far.
    pub(crate) status: StatusRuns,
    /// The ranges it holds against read-modify-write.
    pub(crate) range_guards: Vec<RangeGuard>,
}

/// The table of requests in execution on one iothread; entries are used again.
#[derive(Debug, Default)]
pub(crate) struct RequestTable {
    jobs: Vec<IoRequest>,
    free: Vec<RequestIndex>,
}

impl RequestTable {
    /// Takes a request on, which counts for so many bytes. `memory` gets an empty list back.
    pub(crate) fn add(
        &mut self,
        ticket: Ticket,
        lane: LaneIndex,
        operation: Operation,
        memory: &mut Buffers,
        weight: usize,
    ) -> RequestIndex {
        let (index, job) = self.enter(lane, operation);
        job.owner = Some(RequestOrigin::Ring(ticket));
        job.weight = weight;
        std::mem::swap(&mut job.memory, memory);
        memory.clear();
        index
    }

    /// Takes an internal I/O on, which is mapped already.
    pub(crate) fn add_internal_io(
        &mut self,
        mut internal_io: InternalOperation,
        lane: LaneIndex,
    ) -> RequestIndex {
        let (operation, memory) = (internal_io.operation(), internal_io.memory());
        let (index, job) = self.enter(lane, operation);
        job.memory = memory;
        job.eof_policy = EofPolicy::Zeroes;
        job.pieces.extend_from_slice(internal_io.pieces());
        job.owner = Some(RequestOrigin::Lane(internal_io));
        index
    }

    /// A job without an owner.
    #[inline]
    fn enter(&mut self, lane: LaneIndex, operation: Operation) -> (RequestIndex, &mut IoRequest) {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.jobs.len()).expect("jobs are numbered by u32");
            self.jobs.push(IoRequest::empty(lane));
            RequestIndex(index)
        });
        let job = &mut self.jobs[index.0 as usize];
        job.lane = lane;
        job.operation = operation;
        job.after = AfterPiecesAction::Finish;
        job.eof_policy = EofPolicy::Error;
        job.failure = None;
        job.phase = RequestPhase::Held;
        job.released = false;
        (index, job)
    }

    /// The job of that number.
    pub(crate) fn get(&mut self, index: RequestIndex) -> &mut IoRequest {
        &mut self.jobs[index.0 as usize]
    }

    /// Ends a job.
    pub(crate) fn remove(&mut self, index: RequestIndex) -> RequestOrigin {
        let job = self.get(index);
        assert_eq!(job.outstanding, 0, "a request ends while the kernel works on it");
        job.memory.clear();
        job.memory.shrink_to(index.room_kept());
        job.forget_answer(index);
        assert!(job.copy.is_none(), "whoever ends a request frees its copy");
        let owner = job.owner.take().expect("a request ends once");
        self.free.push(index);
        owner
    }

    /// The request of that slot of a source, if it is here and not over. Looks at all of them.
    pub(crate) fn of_slot(
        &self,
        route: RouteIndex,
        slot: SourceRequestSlot,
    ) -> Option<RequestIndex> {
        let is_it = |job: &IoRequest| match &job.owner {
            Some(RequestOrigin::Ring(ticket)) => ticket.slot_at(route) == Some(slot),
            Some(RequestOrigin::Lane(_) | RequestOrigin::Cancelled) | None => false,
        };
        let place = self.jobs.iter().position(is_it)?;
        Some(RequestIndex(u32::try_from(place).expect("jobs are numbered by u32")))
    }

    /// The reads that are not over, and where their data go.
    pub(crate) fn open_reads(&self) -> impl Iterator<Item = (&Ticket, &Buffers)> {
        self.jobs.iter().filter_map(|job| match (&job.owner, job.operation) {
            (Some(RequestOrigin::Ring(ticket)), Operation::Read(_) | Operation::Status(_)) => {
                Some((ticket, &job.memory))
            }
            (Some(_) | None, _) => None,
        })
    }

    /// Those of a lane that are carried out on channels, each with one of these.
    pub(crate) fn on_channels(&self, lane: LaneIndex) -> Vec<(RequestIndex, StorageId)> {
        let is_carried_out = |job: &IoRequest| {
            let is_over = matches!(job.phase, RequestPhase::Held | RequestPhase::Completed);
            job.owner.is_some() && job.lane == lane && !is_over
        };
        let jobs = self.jobs.iter().enumerate().filter(|(_, job)| is_carried_out(job));
        let found = jobs.filter_map(|(place, job)| {
            let index = u32::try_from(place).expect("jobs are numbered by u32");
            Some((RequestIndex(index), StorageId::Channel(job.channels().next()?)))
        });
        found.collect()
    }

    /// Marks those of the lane as released, also for when it holds them again, and returns how many of
    /// those that it holds were not yet.
    pub(crate) fn release(&mut self, lane: LaneIndex) -> usize {
        let new = |job: &&mut IoRequest| job.owner.is_some() && job.lane == lane && !job.released;
        let mut held = 0;
        for job in self.jobs.iter_mut().filter(new) {
            job.released = true;
            held += usize::from(job.phase == RequestPhase::Held);
        }
        held
    }

    /// Jobs that are not over.
    pub(crate) fn open(&self) -> usize {
        self.jobs.len() - self.free.len()
    }
}

impl IoRequest {
    /// Whether it was answered while its lane held it.
    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self.owner, Some(RequestOrigin::Cancelled))
    }

    /// The channels that its pieces are on, in their order; one as often as there are such pieces.
    pub(crate) fn channels(&self) -> impl Iterator<Item = ChannelId> {
        self.pieces.iter().filter_map(|piece| match piece.target.storage() {
            Some((StorageId::Channel(channel), _)) => Some(channel),
            Some((StorageId::File(_), _)) | None => None,
        })
    }

    /// Has a write carried out with the memory as it is now, if that was not done for an earlier answer; returns how many
    /// bytes that takes.
    pub(crate) fn copy_memory(&mut self) -> usize {
        match self.operation {
            Operation::Write(..) if self.copy.is_none() => {
                self.copy = Some(RequestMemoryCopy::of(&self.memory));
                self.memory.count()
            }
            Operation::Write(..)
            | Operation::Read(_)
            | Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => 0,
        }
    }

    /// Frees the copy; returns how many bytes it took.
    pub(crate) fn free_copy(&mut self) -> usize {
        assert_eq!(self.outstanding, 0, "the kernel may be at it");
        let Some(copy) = self.copy.take() else { return 0 };
        copy.free();
        self.memory.count()
    }

    /// Of an answer that was carried out nothing is left; of a large one not even the room.
    #[inline]
    pub(crate) fn forget_answer(&mut self, index: RequestIndex) {
        let room = index.room_kept();
        self.pieces.clear();
        self.pieces.shrink_to(room);
        self.next_piece = 0;
        self.staged.clear();
        self.staged.shrink_to(room);
        self.range_guards.clear();
        self.range_guards.shrink_to(room);
    }

    fn empty(lane: LaneIndex) -> Self {
        Self {
            owner: None,
            operation: Operation::Flush,
            memory: Buffers::default(),
            copy: None,
            weight: 0,
            lane,
            pieces: Vec::new(),
            next_piece: 0,
            moved: 0,
            has_pieces_later: false,
            after: AfterPiecesAction::Finish,
            eof_policy: EofPolicy::Error,
            outstanding: 0,
            failure: None,
            phase: RequestPhase::Held,
            released: false,
            staged: Vec::new(),
            status: StatusRuns::default(),
            range_guards: Vec::new(),
        }
    }
}

/// The place of a piece in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PieceIndex(u32);

impl PieceIndex {
    /// The first or only one.
    pub(crate) const FIRST: Self = Self(0);

    pub(crate) fn new(place: usize) -> Self {
        Self(u32::try_from(place).expect("an answer has at most PIECES_MAX pieces"))
    }

    pub(crate) fn place(self) -> usize {
        self.0 as usize
    }
}

/// What a kernel event concerns, encoded in its tag: a piece of a request, a sync, a kick, the notifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelEventTarget {
    /// A piece of a job, by its place in the answer.
    Job(RequestIndex, PieceIndex),
    /// The sync of a file, or of what is behind a channel.
    Sync(StorageId),
    /// The descriptor of a channel.
    Channel(ChannelId),
    /// A source's kick.
    Kick(SourceKey),
    /// The transfer of a source on its socket.
    Transfer(RouteIndex, StreamDirection),
    /// This iothread's notifier.
    Bell,
    /// The time to say how many sentences were left out.
    Alarm,
}

const SEND: u64 = 1 << 57;
const TRANSFER: u64 = 1 << 58;
const CHANNEL: u64 = 1 << 59;
const SYNC: u64 = 1 << 60;
const ALARM: u64 = 1 << 61;
const KICK: u64 = 1 << 62;
const BELL: u64 = 1 << 63;

impl KernelEventTarget {
    pub(crate) fn to_tag(self) -> Tag {
        Tag(match self {
            Self::Job(job, piece) => u64::from(job.0) | u64::from(piece.0) << 32,
            Self::Sync(StorageId::File(file)) => SYNC | u64::from(file.0),
            Self::Sync(StorageId::Channel(channel)) => SYNC | CHANNEL | u64::from(channel.0),
            Self::Channel(channel) => CHANNEL | u64::from(channel.0),
            Self::Kick(key) => KICK | u64::from(key.0),
            Self::Transfer(route, StreamDirection::Receive) => TRANSFER | u64::from(route.0),
            Self::Transfer(route, StreamDirection::Send) => TRANSFER | SEND | u64::from(route.0),
            Self::Bell => BELL,
            Self::Alarm => ALARM,
        })
    }

    pub(crate) fn from_tag(tag: Tag) -> Self {
        let low = u32::try_from(tag.0 & u64::from(u32::MAX)).expect("masked to 32 bits");
        if tag.0 & BELL != 0 {
            Self::Bell
        } else if tag.0 & ALARM != 0 {
            Self::Alarm
        } else if tag.0 & KICK != 0 {
            Self::Kick(SourceKey(low))
        } else if tag.0 & SYNC != 0 {
            Self::Sync(if tag.0 & CHANNEL == 0 {
                StorageId::File(FileId(low))
            } else {
                StorageId::Channel(ChannelId(low))
            })
        } else if tag.0 & TRANSFER != 0 {
            let is_send = tag.0 & SEND != 0;
            let direction = if is_send { StreamDirection::Send } else { StreamDirection::Receive };
            Self::Transfer(RouteIndex(low), direction)
        } else if tag.0 & CHANNEL != 0 {
            Self::Channel(ChannelId(low))
        } else {
            let piece = u32::try_from(tag.0 >> 32).expect("the upper half");
            Self::Job(RequestIndex(low), PieceIndex(piece))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_names_its_addressee() {
        for addressee in [
            KernelEventTarget::Job(RequestIndex(0), PieceIndex::FIRST),
            KernelEventTarget::Job(RequestIndex(u32::MAX), PieceIndex::new(block::PIECES_MAX)),
            KernelEventTarget::Sync(StorageId::File(FileId(u32::MAX))),
            KernelEventTarget::Sync(StorageId::Channel(ChannelId(u32::MAX))),
            KernelEventTarget::Channel(ChannelId(u32::MAX)),
            KernelEventTarget::Kick(SourceKey(u32::MAX)),
            KernelEventTarget::Transfer(RouteIndex(u32::MAX), StreamDirection::Receive),
            KernelEventTarget::Transfer(RouteIndex(0), StreamDirection::Send),
            KernelEventTarget::Bell,
            KernelEventTarget::Alarm,
        ] {
            assert_eq!(KernelEventTarget::from_tag(addressee.to_tag()), addressee);
        }
    }
}
