//! The channels of one iothread: storage that is no file of the kernel.
//!
//! Where it stands in the life of a request: operations are parked and begun here as in the kernel's in-flight table,
//! and end as [`ChannelCompletion`]. Once in each round those channels are called that have something to do
//! ([`Channels::attend`]).
//!
//! Invariants: what an operation works on is parked until its channel says that it is over; of one that was abandoned
//! meanwhile that is memory of the engine. A channel that tells the end of an operation twice, or of one that it took
//! back, is found out by the number of the slot's use. Where abandoned operations are not over nothing new is begun, and
//! no iothread begins changes where abandoned ones may still be carried out ([`Medium::is_unfenced`]). A channel stays as long as its lane, or as operations of it are not over.
//! Threads: belongs to the iothread. Limits: operations are those of requests, which `lanes` bounds; slots keep their
//! room for [`ROOM_KEPT`] segments.

mod watch;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Instant;

use block::{
    BeginResult, ByteOffset, CancellationSupport, Channel, ChannelId, Extent, IoFailure,
    LaneContext, Medium, Operation, RangeGuard, Segment, Tag, WakeTime,
};
use kernel_io::{BounceBuffer, EngineKernel};
use rustix::io::Errno;

use crate::LaneIndex;
use crate::lane_wakeups::LaneWaker;
use crate::storage_backends::extent;
use watch::ChannelPoll;

/// For so many segments a slot keeps room when its operation is over.
const ROOM_KEPT: usize = 256;

/// What has ended on a channel: an operation, one that was abandoned, or the loan of a bounce buffer.
#[derive(Debug)]
pub(crate) enum ChannelCompletion {
    /// As one of the kernel does.
    Over { tag: Tag, result: Result<(), IoFailure>, bounce: Option<BounceBuffer> },
    /// It was abandoned, and may still be carried out. The bounce buffer, if it has one, comes back later.
    Abandoned { channel: ChannelId, tag: Tag, failure: IoFailure, is_staged: bool },
    /// One that was abandoned is over: its bounce buffer is free.
    Returned { bounce: BounceBuffer },
}

/// The channels of one iothread, in the order of their identifiers.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    open: Vec<OpenChannel>,
    /// Whether any of them has to be called now.
    any_woken: bool,
    /// Whether any of them wants to be called in the next round.
    want_round: bool,
    due: Option<WakeTime>,
    ended: VecDeque<ChannelCompletion>,
    /// How many operations were carried out.
    carried_out: u64,
    /// Empty lists, kept for their room.
    done: Vec<(Tag, Result<(), IoFailure>)>,
    part: Vec<Segment>,
}

/// A channel with its operations in flight, and those that wait for room.
#[derive(Debug)]
struct OpenChannel {
    id: ChannelId,
    lane: LaneIndex,
    /// Whether the lane's waker was used.
    lane_called: Arc<LaneWaker>,
    channel: Box<dyn Channel>,
    medium: Arc<Medium>,
    cancel: CancellationSupport,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots of operations for which there was no room, in order.
    waiting: VecDeque<u32>,
    /// How many operations are abandoned and not over.
    abandoned: usize,
    /// How many of them are changes.
    unfenced: usize,
    /// What those may change.
    locked: Vec<RangeGuard>,
    watch: ChannelPoll,
    is_called: bool,
    /// Whether its lane is gone.
    is_closed: bool,
}

/// A slot for an operation on a channel; its list of segments is used again.
#[derive(Debug)]
struct Slot {
    /// Counts the uses of the slot.
    number: u32,
    state: State,
    memory: Vec<Segment>,
}

/// Whether a slot is free, or its operation is in flight or abandoned.
#[derive(Debug)]
enum State {
    Free,
    Begun { operation: Operation, tag: Tag, bounce: Option<BounceBuffer> },
    Abandoned { is_change: bool, bounce: Option<BounceBuffer> },
}

impl Channels {
    /// Takes the channels that a lane has entered when it was opened.
    pub(crate) fn enter(&mut self, io: &LaneContext, lane: LaneIndex, called: &Arc<LaneWaker>) {
        for (id, channel) in io.take_entered() {
            self.any_woken = true;
            self.open.push(OpenChannel {
                id,
                lane,
                lane_called: Arc::clone(called),
                medium: Arc::clone(channel.medium()),
                cancel: channel.cancel(),
                channel,
                slots: Vec::new(),
                free: Vec::new(),
                waiting: VecDeque::new(),
                abandoned: 0,
                unfenced: 0,
                locked: Vec::new(),
                watch: ChannelPoll::default(),
                is_called: true,
                is_closed: false,
            });
        }
        // Lanes that could not be opened have numbers, too.
        self.open.sort_unstable_by_key(|open| open.id);
    }

    /// The lane is gone; its channels go when nothing of them is under way any more.
    pub(crate) fn close(&mut self, lane: LaneIndex) {
        for open in self.of(lane) {
            open.is_closed = true;
            open.is_called = true;
        }
        self.any_woken |= !self.open.is_empty();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn medium(&self, id: ChannelId) -> &Medium {
        &self.open[self.place(id)].medium
    }

    pub(crate) fn takes_guest_memory(&self, id: ChannelId) -> bool {
        self.open[self.place(id)].cancel == CancellationSupport::Possible
    }

    /// Begins an operation without memory.
    pub(crate) fn begin(&mut self, id: ChannelId, operation: Operation, tag: Tag) {
        let (open, ended) = self.call(id);
        let slot = open.park(operation, tag, None, &[]);
        open.begin(slot, ended);
    }

    /// Begins a transfer of `count` bytes of this buffer.
    pub(crate) fn begin_bounce(
        &mut self,
        id: ChannelId,
        operation: Operation,
        count: usize,
        buffer: BounceBuffer,
        tag: Tag,
    ) {
        let (open, ended) = self.call(id);
        let memory = [buffer.segment(count)];
        let slot = open.park(operation, tag, Some(buffer), &memory);
        open.begin(slot, ended);
    }

    /// Begins a transfer of memory, in as many parts as it takes; returns that number.
    pub(crate) fn transfer(
        &mut self,
        id: ChannelId,
        offset: ByteOffset,
        memory: impl Iterator<Item = Segment>,
        tag: Tag,
        operation: impl Fn(Extent) -> Operation,
    ) -> u32 {
        let mut part = std::mem::take(&mut self.part);
        let (open, ended) = self.call(id);
        let most = open.medium.transfer_max();
        let (mut begun, mut at, mut count) = (0, offset.0, 0);
        let mut begin = |part: &mut Vec<Segment>, at: u64, count: u64| {
            let slot = open.park(operation(extent(ByteOffset(at), count)), tag, None, part);
            open.begin(slot, ended);
            part.clear();
            begun += 1;
        };
        for segment in memory {
            let mut skip = 0;
            while skip < segment.count() {
                let room = usize::try_from(most - count).unwrap_or(usize::MAX);
                let taken = segment.part(skip, room);
                part.push(taken);
                skip += taken.count();
                count += taken.count() as u64;
                if count == most {
                    begin(&mut part, at, count);
                    (at, count) = (at + count, 0);
                }
            }
        }
        if count > 0 {
            begin(&mut part, at, count);
        }
        self.part = part;
        begun
    }

    /// Locks for the time until abandoned changes of the channel are over, or for none if they are.
    pub(crate) fn keep_locked(&mut self, id: ChannelId, locked: &mut Vec<RangeGuard>) {
        let place = self.place(id);
        let open = &mut self.open[place];
        if open.unfenced > 0 {
            open.locked.extend(locked.extract_if(.., |guard| guard.is_of(open.medium.ranges())));
        }
    }

    /// Gives up the storage behind the channels of a lane: all their operations end. Where there were some, whoever has to
    /// end does not wait again.
    pub(crate) fn abandon(&mut self, lane: LaneIndex) {
        self.any_woken |= !self.open.is_empty();
        let Self { open, done, ended, .. } = self;
        for open in open.iter_mut().filter(|open| open.lane == lane && !open.is_closed) {
            open.is_called = true;
            if !open.is_idle() {
                open.medium.remember_unresponsive();
            }
            open.abandon(done, ended);
        }
    }

    /// Whether the storage behind a channel of a lane, of any if none is named, was given up and has carried out nothing
    /// since.
    pub(crate) fn is_unresponsive(&self, lane: Option<LaneIndex>) -> bool {
        let is_of = |open: &&OpenChannel| lane.is_none_or(|lane| open.lane == lane);
        self.open.iter().filter(is_of).any(|open| open.medium.is_unresponsive())
    }

    /// How many operations were carried out.
    pub(crate) fn carried_out(&self) -> u64 {
        self.carried_out
    }

    /// Has the channels of a lane called whose waker was used, and whose flag was taken: it tells of what comes from now
    /// on again.
    pub(crate) fn call_of(&mut self, lane: LaneIndex) {
        let mut any = false;
        for open in self.of(lane) {
            open.is_called = true;
            any = true;
        }
        self.any_woken |= any;
    }

    /// The same for lanes that are gone, because some waker was used.
    pub(crate) fn call_closed(&mut self) {
        let closed = self.open.iter().filter(|open| open.is_closed);
        // Those of one lane share the flag; the flag of another one would not tell of what comes later.
        if closed.fold(false, |any, open| open.lane_called.take() | any) {
            self.open.iter_mut().for_each(|open| open.is_called |= open.is_closed);
            self.any_woken = true;
        }
    }

    /// Has those called that wanted a round, which now begins, and those that are due.
    pub(crate) fn begin_round(&mut self, now: Option<Instant>) {
        for open in &mut self.open {
            let wants = open.channel.wants();
            let is_due = now.zip(wants.due).is_some_and(|(now, due)| due.at <= now);
            if wants.again || is_due {
                open.is_called = true;
                self.any_woken = true;
            }
        }
    }

    /// Whether any has to be called now.
    pub(crate) fn any_woken(&self) -> bool {
        self.any_woken
    }

    /// Whether any has to be called, now or in the next round.
    pub(crate) fn have_work(&self) -> bool {
        self.any_woken || self.want_round
    }

    /// Whether operations were abandoned that may still be carried out.
    pub(crate) fn have_abandoned(&self) -> bool {
        self.open.iter().any(|open| open.abandoned > 0)
    }

    /// When the first of them has something to do.
    pub(crate) fn due(&self) -> Option<WakeTime> {
        self.due
    }

    /// The descriptor of a channel is ready.
    pub(crate) fn ready(&mut self, id: ChannelId) {
        // It may have been the last one of a channel that is gone.
        if let Ok(place) = self.open.binary_search_by_key(&id, |open| open.id) {
            self.open[place].is_called = true;
            self.any_woken = true;
        }
    }

    /// A descriptor of a channel is not watched any more.
    pub(crate) fn unwatched(&mut self, id: ChannelId) {
        let place = self.place(id);
        self.open[place].watch.ended();
        self.ready(id);
    }

    /// Calls those that have something to do; whether there were any.
    pub(crate) fn attend(&mut self, kernel: &mut impl EngineKernel) -> bool {
        if !std::mem::take(&mut self.any_woken) {
            return false;
        }
        let Self { open, done, ended, any_woken, carried_out, .. } = self;
        for open in open.iter_mut().filter(|open| open.is_called) {
            *carried_out += open.collect(done, ended);
            // What is begun may have to be collected from at once.
            open.is_called = open.begin_waiting();
            *any_woken |= open.is_called;
            open.watch_for(kernel);
        }
        open.retain(|open| !open.is_over());
        let wants = |open: &OpenChannel| open.channel.wants().again;
        self.want_round = open.iter().any(wants);
        let due = open.iter().map(|open| open.channel.wants().due);
        self.due = due.fold(None, WakeTime::first);
        true
    }

    /// Takes the next operation that has ended.
    pub(crate) fn next_ended(&mut self) -> Option<ChannelCompletion> {
        self.ended.pop_front()
    }

    fn of(&mut self, lane: LaneIndex) -> impl Iterator<Item = &mut OpenChannel> {
        self.open.iter_mut().filter(move |open| open.lane == lane && !open.is_closed)
    }

    fn place(&self, id: ChannelId) -> usize {
        let place = self.open.binary_search_by_key(&id, |open| open.id);
        place.expect("a channel is there as long as its lane")
    }

    /// A channel, which will be called, and where its operations end.
    fn call(&mut self, id: ChannelId) -> (&mut OpenChannel, &mut VecDeque<ChannelCompletion>) {
        self.any_woken = true;
        let place = self.place(id);
        let open = &mut self.open[place];
        open.is_called = true;
        (open, &mut self.ended)
    }
}

impl OpenChannel {
    fn park(
        &mut self,
        operation: Operation,
        tag: Tag,
        bounce: Option<BounceBuffer>,
        memory: &[Segment],
    ) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { number: 0, state: State::Free, memory: Vec::new() });
            u32::try_from(self.slots.len() - 1).expect("slots are numbered by u32")
        });
        let slot = &mut self.slots[index as usize];
        slot.number = slot.number.wrapping_add(1);
        slot.state = State::Begun { operation, tag, bounce };
        slot.memory.extend_from_slice(memory);
        index
    }

    /// Begins a parked operation, behind those that wait for room; or ends it, if some were abandoned and are not over:
    /// whoever begins more would wait for the same.
    fn begin(&mut self, index: u32, ended: &mut VecDeque<ChannelCompletion>) {
        if self.abandoned > 0 {
            return self.give_up(index, ended);
        }
        if !self.waiting.is_empty() || self.try_begin(index) == BeginResult::Full {
            self.waiting.push_back(index);
        }
    }

    fn try_begin(&mut self, index: u32) -> BeginResult {
        let Slot { number, state, memory } = &self.slots[index as usize];
        let State::Begun { operation, .. } = state else {
            panic!("slot {index} of {} holds {state:?}", self.medium.name())
        };
        let tag = Tag(u64::from(*number) << 32 | u64::from(index));
        self.channel.begin(*operation, memory, tag)
    }

    /// Begins those that waited for room, as far as there is some; whether there was any.
    fn begin_waiting(&mut self) -> bool {
        let before = self.waiting.len();
        while let Some(index) = self.waiting.front() {
            if self.try_begin(*index) == BeginResult::Full {
                break;
            }
            self.waiting.pop_front();
        }
        self.waiting.len() < before
    }

    /// Fetches what is over; returns how much of it was carried out.
    fn collect(
        &mut self,
        done: &mut Vec<(Tag, Result<(), IoFailure>)>,
        ended: &mut VecDeque<ChannelCompletion>,
    ) -> u64 {
        self.channel.collect(done);
        let mut carried_out = 0;
        for (Tag(tag), result) in done.drain(..) {
            let number = u32::try_from(tag >> 32).expect("the upper half");
            let index = u32::try_from(tag & u64::from(u32::MAX)).expect("masked to 32 bits");
            let slot = self.slots.get(index as usize);
            assert!(
                slot.is_some_and(|slot| slot.number == number),
                "{} tells the end of an operation that it does not have: {tag:#x}",
                self.medium.name()
            );
            match self.free_slot(index) {
                State::Begun { tag, bounce, .. } => {
                    carried_out += u64::from(result.is_ok());
                    ended.push_back(ChannelCompletion::Over { tag, result, bounce })
                }
                State::Abandoned { is_change, bounce } => {
                    self.abandoned -= 1;
                    self.unfence(is_change);
                    ended.extend(bounce.map(|bounce| ChannelCompletion::Returned { bounce }));
                }
                State::Free => {
                    panic!("{} tells the end of an operation twice: {tag:#x}", self.medium.name())
                }
            }
        }
        if carried_out > 0 {
            self.medium.note_answer();
        }
        carried_out
    }

    fn free_slot(&mut self, index: u32) -> State {
        let slot = &mut self.slots[index as usize];
        let state = std::mem::replace(&mut slot.state, State::Free);
        if !matches!(state, State::Free) {
            slot.memory.clear();
            slot.memory.shrink_to(ROOM_KEPT);
            self.free.push(index);
        }
        state
    }

    /// An abandoned operation is over.
    fn unfence(&mut self, is_change: bool) {
        if is_change {
            self.unfenced -= 1;
            if self.unfenced == 0 {
                self.locked.clear();
                self.medium.fenced();
            }
        }
    }

    fn abandon(
        &mut self,
        done: &mut Vec<(Tag, Result<(), IoFailure>)>,
        ended: &mut VecDeque<ChannelCompletion>,
    ) {
        self.channel.abandon();
        // What it ends so was not carried out.
        let _answered = self.collect(done, ended);
        for index in std::mem::take(&mut self.waiting) {
            self.give_up(index, ended);
        }
        let is_fenced = self.unfenced == 0;
        for slot in &mut self.slots {
            let State::Begun { operation, tag, bounce } = &mut slot.state else { continue };
            assert_eq!(
                self.cancel,
                CancellationSupport::Impossible,
                "{} has not taken back {operation:?}",
                self.medium.name()
            );
            let (is_change, bounce) = (operation.is_change(), bounce.take());
            let (channel, is_staged, failure) = (self.id, bounce.is_some(), given_up(*operation));
            ended.push_back(ChannelCompletion::Abandoned {
                channel,
                tag: *tag,
                failure,
                is_staged,
            });
            slot.state = State::Abandoned { is_change, bounce };
            self.abandoned += 1;
            self.unfenced += usize::from(is_change);
        }
        if is_fenced && self.unfenced > 0 {
            self.medium.abandoned();
        }
    }

    /// Ends an operation of which the channel does not know.
    fn give_up(&mut self, index: u32, ended: &mut VecDeque<ChannelCompletion>) {
        let State::Begun { operation, tag, bounce } = self.free_slot(index) else {
            panic!("what waits for room was not begun")
        };
        ended.push_back(ChannelCompletion::Over { tag, result: Err(given_up(operation)), bounce });
    }

    fn watch_for(&mut self, kernel: &mut impl EngineKernel) {
        let wanted =
            if self.is_idle() && self.is_closed { None } else { self.channel.wants().descriptor };
        self.watch.set(wanted, kernel, self.id);
    }

    /// Whether nothing is under way, abandoned or not.
    fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    fn is_over(&self) -> bool {
        self.is_closed && self.is_idle() && self.watch.is_over()
    }
}

/// What whoever has begun an operation hears that is given up.
fn given_up(operation: Operation) -> IoFailure {
    let offset = operation.extent().map_or(ByteOffset(0), Extent::start);
    IoFailure::Errno { offset, errno: Errno::CANCELED }
}

impl Drop for OpenChannel {
    fn drop(&mut self) {
        if self.is_idle() {
            return;
        }
        // The engine goes, and nobody hears of what is under way any more.
        self.channel.abandon();
        if self.cancel == CancellationSupport::Impossible {
            let name = self.medium.name();
            tracing::warn!("disk {name}: operations stay in flight, their memory leaked");
            let _leaked = ManuallyDrop::new(std::mem::take(&mut self.slots));
        }
    }
}

// Clippy knows tests only by an attribute of their own.
#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use block::Node;
    use kernel_io::{FileTable, Notifier, ReactorChoice, WaitMode};
    use testkit::channel::{Habits, Mischief, Remote, RemoteNode};

    use super::*;
    use crate::lanes::Lanes;
    use kernel_io::Kernel;

    struct Rig {
        lanes: Lanes,
        kernel: Kernel,
        lane: LaneIndex,
        id: ChannelId,
    }

    impl Rig {
        fn new(mischief: Mischief) -> Self {
            let file = tempfile::tempfile().unwrap();
            let remote = Remote::new("remote", file, 0, Habits { mischief, ..Habits::PLAIN }, 1);
            let node: Arc<dyn Node> = Arc::new(RemoteNode::new("node", &remote));
            let mut lanes = Lanes::new(Arc::new(Notifier::new().unwrap()));
            let lane = lanes.open(&node).unwrap();
            let kernel =
                Kernel::new(Arc::new(FileTable::default()), ReactorChoice::EpollOnly).unwrap();
            Self { lanes, kernel, lane, id: ChannelId(0) }
        }

        /// Has an operation carried out; returns what the end of it says.
        fn flush(&mut self) -> Vec<ChannelCompletion> {
            self.lanes.channels.begin(self.id, Operation::Flush, Tag(5));
            self.work()
        }

        /// Calls the channel as long as it has something to do.
        fn work(&mut self) -> Vec<ChannelCompletion> {
            let channels = &mut self.lanes.channels;
            let mut ended = Vec::new();
            while ended.is_empty() || channels.have_work() {
                channels.attend(&mut self.kernel);
                ended.extend(std::iter::from_fn(|| channels.next_ended()));
                self.kernel
                    .wait(if ended.is_empty() { WaitMode::Block } else { WaitMode::Poll })
                    .unwrap();
                channels.call_of(self.lane);
                channels.begin_round(None);
                if !ended.is_empty() {
                    break;
                }
            }
            ended
        }
    }

    #[test]
    fn an_end_that_is_told_twice_is_found_out() {
        for (mischief, is_found) in [(Mischief::None, false), (Mischief::EndsTwice, true)] {
            let mut rig = Rig::new(mischief);
            let ended = catch_unwind(AssertUnwindSafe(|| rig.flush().len()));
            assert_eq!(ended.is_err(), is_found, "{ended:?}");
        }
    }

    #[test]
    fn the_end_of_what_was_taken_back_is_found_out() {
        for (mischief, is_found) in [(Mischief::None, false), (Mischief::EndsAfterAbandon, true)] {
            let mut rig = Rig::new(mischief);
            let ended = catch_unwind(AssertUnwindSafe(|| {
                rig.lanes.channels.begin(rig.id, Operation::Flush, Tag(5));
                rig.lanes.channels.abandon(rig.lane);
                // Another one has the slot then.
                rig.flush().len()
            }));
            assert_eq!(ended.is_err(), is_found, "{ended:?}");
        }
    }
}
