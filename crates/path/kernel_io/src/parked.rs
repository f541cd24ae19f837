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

use crate::BounceBuffer;
use crate::space::Space;

/// For so many segments a slot keeps room when its operation is over.
const ROOM_KEPT: usize = 256;

/// The same for those beyond the first [`WARM_SLOTS`], which only a deep queue needs.
const ROOM_KEPT_BEYOND: usize = 16;

/// How many slots keep room for large operations.
const WARM_SLOTS: u32 = 256;

/// The number of a slot in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotIndex(pub(crate) u32);

/// What a parked operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Read,
    Write(Durability),
    Sync,
    /// A range that is discarded or zeroed.
    Space(Space),
    /// What the file has at the beginning of a range of so many bytes.
    Extent(u64),
}

/// How far a transfer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All bytes are there.
    Complete,
    /// Some are missing: submit the rest.
    Partial,
}

/// One operation in flight.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) work: Work,
    pub(crate) tag: Tag,
    pub(crate) file: FileId,
    /// Where the part that is left starts.
    pub(crate) offset: ByteOffset,
    pub(crate) bounce: Option<BounceBuffer>,
    pub(crate) retries: u8,
    pub(crate) stage: Stage,
}

/// How far an operation has come with its file's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The engine tries.
    Tries,
    /// The same, and its file has one turn less until it is over.
    TakesTurn,
    /// It would have to wait, which is for a worker.
    Waits,
}

#[derive(Debug)]
enum State {
    Free,
    Operation(Parked),
    Poll(PollState),
}

/// A multishot poll.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PollState {
    pub(crate) owner: PollOwner,
    pub(crate) fd: i32,
    pub(crate) interest: Interest,
    pub(crate) phase: PollPhase,
}

/// Who wants to know that a descriptor is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollOwner {
    /// The caller, by this tag.
    Caller(Tag),
    /// Linux AIO: it is its bell.
    Native,
    /// The workers: it is their bell.
    Workers,
}

/// What becomes of a poll when the kernel says that it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollPhase {
    /// It is armed again.
    Armed,
    /// The kernel cannot watch this descriptor; nothing is armed.
    Deaf,
    /// Its owner is told.
    Cancelled,
}

#[derive(Debug)]
struct Slot {
    state: State,
    /// The memory that is left to transfer, for the kernel to read as `struct iovec`s.
    segments: Vec<Segment>,
    /// How many of `segments` are done.
    done: usize,
}

/// What is in a slot.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    Operation(&'a mut Parked),
    Poll(&'a mut PollState),
}

/// The in-flight table of one iothread.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    slots: Vec<Slot>,
    free: Vec<SlotIndex>,
    operations: usize,
}

impl InFlight {
    /// Operations in flight, polls not counted.
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// Parks an operation and the memory it works on.
    pub(crate) fn park(
        &mut self,
        parked: Parked,
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

    /// Parks a poll.
    pub(crate) fn park_poll(&mut self, poll: PollState) -> SlotIndex {
        let index = self.slot();
        self.slots[index.0 as usize].state = State::Poll(poll);
        index
    }

    /// What a slot holds; `None` if it is free.
    pub(crate) fn get(&mut self, index: SlotIndex) -> Option<Content<'_>> {
        match &mut self.slots.get_mut(index.0 as usize)?.state {
            State::Free => None,
            State::Operation(parked) => Some(Content::Operation(parked)),
            State::Poll(poll) => Some(Content::Poll(poll)),
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

    /// The memory that is left of an operation.
    pub(crate) fn memory(&self, index: SlotIndex) -> &[Segment] {
        let slot = &self.slots[index.0 as usize];
        &slot.segments[slot.done..]
    }

    /// Notes that the kernel has transferred `count` bytes, which is not more than were left.
    pub(crate) fn advance(&mut self, index: SlotIndex, count: usize) -> Progress {
        let slot = &mut self.slots[index.0 as usize];
        if let State::Operation(parked) = &mut slot.state {
            parked.offset.0 += count as u64;
        }
        let mut left = count;
        while let Some(segment) = slot.segments.get_mut(slot.done) {
            if left < segment.count() {
                *segment = segment.part(left, segment.count());
                return Progress::Partial;
            }
            left -= segment.count();
            slot.done += 1;
        }
        Progress::Complete
    }

    /// Takes a finished operation out.
    pub(crate) fn take(&mut self, index: SlotIndex) -> Parked {
        let slot = &mut self.slots[index.0 as usize];
        match std::mem::replace(&mut slot.state, State::Free) {
            State::Operation(parked) => {
                let room = if index.0 < WARM_SLOTS { ROOM_KEPT } else { ROOM_KEPT_BEYOND };
                slot.segments.clear();
                slot.segments.shrink_to(room);
                self.operations -= 1;
                self.free.push(index);
                parked
            }
            other @ (State::Free | State::Poll(_)) => {
                panic!("the kernel completed slot {}, which holds {other:?}", index.0)
            }
        }
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
