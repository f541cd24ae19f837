//! The in-flight table: everything the kernel may still touch, from submission to completion.
//!
//! Where it stands in the life of a request: [`crate::Kernel`] parks an operation here, and takes
//! it out when its last completion has come. A slot's number is the completion's user data.
//!
//! Invariants: a slot is free, or exactly one kernel operation of it is in flight. Slots keep
//! their lists between uses, so that parking allocates nothing once the table is warm.
//! Limits: the table grows to what its caller has in flight; `request_path` bounds that. Lists are kept as long as they
//! are short.

use block::{ByteOffset, Durability, FileId, Interest, Segment, Tag};

use crate::allocation::DiscardOrZeroAttempt;
use crate::known_data::ExtentQuery;
use crate::{BounceBuffer, StreamTransfer};

/// For so many segments a slot keeps room when its operation is over.
const ROOM_KEPT: usize = 256;

/// The same for those beyond the first [`WARM_SLOTS`], which only a deep queue needs.
const ROOM_KEPT_BEYOND: usize = 16;

/// How many slots keep room for large operations.
const WARM_SLOTS: u32 = 256;

/// The number of a slot in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotIndex(pub(crate) u32);

/// What an in-flight operation does: read, write, sync, discard or zero a range, or look for a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IoKind {
    Read,
    Write(Durability),
    Sync,
    /// A range that is discarded or zeroed.
    Space(DiscardOrZeroAttempt),
    /// What the file has at the beginning of a range.
    Extent(ExtentQuery),
}

/// Whether all bytes of a transfer have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferProgress {
    /// All bytes are there.
    Complete,
    /// Some are missing: submit the rest.
    Partial,
}

/// An operation in flight, with what it needs until its completion.
#[derive(Debug)]
pub(crate) struct InFlightOp {
    pub(crate) work: IoKind,
    pub(crate) tag: Tag,
    pub(crate) file: FileId,
    /// Where the part that is left starts.
    pub(crate) offset: ByteOffset,
    pub(crate) bounce: Option<BounceBuffer>,
    pub(crate) retries: u8,
    pub(crate) stage: EngineOrWorker,
}

/// Who carries an operation out: its file's engine, the engine within the file's share, or a worker because it would
/// block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineOrWorker {
    /// The engine tries.
    Tries,
    /// The same, and its file has one turn less until it is over.
    TakesTurn,
    /// It would have to wait, which is for a worker.
    Waits,
}

/// What a slot of the table is used for.
#[derive(Debug)]
enum State {
    Free,
    Operation(InFlightOp),
    Poll(PollState),
    Transfer(StreamTransfer),
}

/// A multishot poll of a descriptor, and who is told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PollState {
    pub(crate) owner: PollOwner,
    pub(crate) fd: i32,
    pub(crate) interest: Interest,
    pub(crate) phase: PollPhase,
}

/// What a poll belongs to, which is told that the descriptor is ready: the caller, Linux AIO or the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollOwner {
    /// The caller, by this tag.
    Caller(Tag),
    /// Linux AIO: it is its notifier.
    Native,
    /// The workers: it is their notifier.
    Workers,
}

/// Whether a multishot poll is armed, refused by the kernel, or being cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollPhase {
    /// It is armed again.
    Armed,
    /// The kernel cannot watch this descriptor; nothing is armed.
    Deaf,
    /// Its owner is told.
    Cancelled,
}

/// A slot of the in-flight table; keeps its list of segments between uses.
#[derive(Debug)]
struct Slot {
    state: State,
    /// The memory that is left to transfer, for the kernel to read as `struct iovec`s.
    segments: Vec<Segment>,
    /// How many of `segments` are done.
    done: usize,
}

/// What a slot of the in-flight table has: an operation, a poll, or a transfer on a socket.
#[derive(Debug)]
pub(crate) enum SlotContent<'a> {
    Operation(&'a mut InFlightOp),
    Poll(&'a mut PollState),
    Transfer(&'a mut StreamTransfer),
}

/// The in-flight table of one iothread: all that the kernel may still touch.
#[derive(Debug, Default)]
pub(crate) struct InFlightTable {
    slots: Vec<Slot>,
    free: Vec<SlotIndex>,
    operations: usize,
}

impl InFlightTable {
    /// Operations and transfers in flight, polls not counted.
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// Parks an operation and the memory it works on.
    pub(crate) fn park(
        &mut self,
        parked: InFlightOp,
        memory: impl Iterator<Item = Segment>,
    ) -> SlotIndex {
        let index = self.slot();
        let slot = &mut self.slots[index.0 as usize];
        slot.segments.clear();
        slot.segments.extend(memory);
        slot.done = 0;
        slot.state = State::Operation(parked);
        self.operations += 1;
        index
    }

    /// Parks a transfer on a socket, with its memory.
    pub(crate) fn park_transfer(&mut self, mut transfer: StreamTransfer) -> SlotIndex {
        let index = self.slot();
        let slot = &mut self.slots[index.0 as usize];
        slot.segments.clear();
        transfer.name_left(&mut slot.segments);
        slot.done = 0;
        slot.state = State::Transfer(transfer);
        self.operations += 1;
        index
    }

    /// The slot of a transfer with such a tag. Looks at all slots.
    pub(crate) fn find_transfer(&self, is_it: impl Fn(Tag) -> bool) -> Option<SlotIndex> {
        let is_it = |slot: &Slot| matches!(&slot.state, State::Transfer(it) if is_it(it.tag()));
        let place = self.slots.iter().position(is_it)?;
        Some(SlotIndex(u32::try_from(place).expect("slots are numbered by u32")))
    }

    /// Takes a transfer out that is over.
    pub(crate) fn take_transfer(&mut self, index: SlotIndex) -> StreamTransfer {
        match self.empty(index) {
            State::Transfer(transfer) => transfer,
            other @ (State::Free | State::Operation(_) | State::Poll(_)) => {
                panic!("slot {} holds no transfer: {other:?}", index.0)
            }
        }
    }

    /// Parks a poll.
    pub(crate) fn park_poll(&mut self, poll: PollState) -> SlotIndex {
        let index = self.slot();
        self.slots[index.0 as usize].state = State::Poll(poll);
        index
    }

    /// What a slot holds; `None` if it is free.
    pub(crate) fn get(&mut self, index: SlotIndex) -> Option<SlotContent<'_>> {
        match &mut self.slots.get_mut(index.0 as usize)?.state {
            State::Free => None,
            State::Operation(parked) => Some(SlotContent::Operation(parked)),
            State::Poll(poll) => Some(SlotContent::Poll(poll)),
            State::Transfer(transfer) => Some(SlotContent::Transfer(transfer)),
        }
    }

    /// The slot of the poll with this tag that is not yet cancelled.
    pub(crate) fn find_poll(&self, tag: Tag) -> Option<SlotIndex> {
        let place = self.slots.iter().position(
            |slot| matches!(slot.state, State::Poll(poll) if poll.owner == PollOwner::Caller(tag) && poll.phase != PollPhase::Cancelled),
        )?;
        Some(SlotIndex(u32::try_from(place).expect("slots are numbered by u32")))
    }

    /// Whether an operation on that file is in flight. Looks at all slots.
    pub(crate) fn works_on(&self, file: FileId) -> bool {
        let works = |slot: &Slot| matches!(&slot.state, State::Operation(it) if it.file == file);
        self.slots.iter().any(works)
    }

    /// The transfers of files with such tags, and their files. Looks at all slots.
    pub(crate) fn with_tags(&self, is_it: impl Fn(Tag) -> bool) -> Vec<(SlotIndex, FileId)> {
        let found = self.slots.iter().enumerate().filter_map(|(place, slot)| match &slot.state {
            State::Operation(InFlightOp {
                work: IoKind::Read | IoKind::Write(_),
                tag,
                file,
                ..
            }) if is_it(*tag) => {
                let place = u32::try_from(place).expect("slots are numbered by u32");
                Some((SlotIndex(place), *file))
            }
            State::Free | State::Operation(_) | State::Poll(_) | State::Transfer(_) => None,
        });
        found.collect()
    }

    /// The memory that is left of an operation.
    pub(crate) fn memory(&self, index: SlotIndex) -> &[Segment] {
        let slot = &self.slots[index.0 as usize];
        &slot.segments[slot.done..]
    }

    /// Notes that the kernel has transferred `count` bytes, which is not more than were left.
    pub(crate) fn advance(&mut self, index: SlotIndex, count: usize) -> TransferProgress {
        let slot = &mut self.slots[index.0 as usize];
        if let State::Operation(parked) = &mut slot.state {
            parked.offset.0 += count as u64;
        }
        let mut left = count;
        while let Some(segment) = slot.segments.get_mut(slot.done) {
            if left < segment.count() {
                *segment = segment.part(left, segment.count());
                return TransferProgress::Partial;
            }
            left -= segment.count();
            slot.done += 1;
        }
        TransferProgress::Complete
    }

    /// Takes a finished operation out.
    pub(crate) fn take(&mut self, index: SlotIndex) -> InFlightOp {
        match self.empty(index) {
            State::Operation(parked) => parked,
            other @ (State::Free | State::Poll(_) | State::Transfer(_)) => {
                panic!("the kernel completed slot {}, which holds {other:?}", index.0)
            }
        }
    }

    /// Frees the slot of what was in flight.
    fn empty(&mut self, index: SlotIndex) -> State {
        let slot = &mut self.slots[index.0 as usize];
        let room = if index.0 < WARM_SLOTS { ROOM_KEPT } else { ROOM_KEPT_BEYOND };
        slot.segments.clear();
        slot.segments.shrink_to(room);
        self.operations -= 1;
        self.free.push(index);
        std::mem::replace(&mut slot.state, State::Free)
    }

    /// Frees the slot of a poll that has ended.
    pub(crate) fn forget_poll(&mut self, index: SlotIndex) {
        self.slots[index.0 as usize].state = State::Free;
        self.free.push(index);
    }

    fn slot(&mut self) -> SlotIndex {
        self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("slots are numbered by u32");
            self.slots.push(Slot { state: State::Free, segments: Vec::new(), done: 0 });
            SlotIndex(index)
        })
    }
}
