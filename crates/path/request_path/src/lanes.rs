//! The lanes one iothread has open, one for each node, shared by all its rings on that node.
//!
//! Invariants: a lane stays open as long as a ring uses it or a request of it is not over, which a ring
//! that has moved away may have left behind. While the graph below a node is changed, no lane is open on
//! it, nothing of it is in flight here, and rings that use it, or come meanwhile, bring nothing new. After each call of a
//! lane its due time is known, and whether it has internal I/Os or has to be called ([`Lanes::with`]).
//! Limits: [`REQUESTS`] in flight and [`PIECES`] of them; [`HELD_MAX`] or [`HELD_BYTES_MAX`] held by each lane besides.

mod control;
mod failing_lane;
mod usage;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use block::{
    BatchPieces, Buffers, ChannelIds, InternalOperation, Lane, LaneContext, LaneError, LaneOpener,
    Mapping, Node, Operation, WakeTime,
};
use kernel_io::{FairShareLimit, Notifier};

use self::failing_lane::FailingLane;
use crate::channels::Channels;
use crate::lane_wakeups::{IothreadWakeFlag, LaneWaker};

/// The requests and internal I/Os that are carried out: of a lane that is alone sixteen full rings of 256. A disk that
/// hangs keeps what it has for ever.
const REQUESTS: FairShareLimit = FairShareLimit::new(4096, 64);

/// Their pieces: who has that many gets nothing new. Together with what one batch may add it bounds the memory that
/// requests take which are spread over many small chunks.
const PIECES: FairShareLimit = FairShareLimit::new(1 << 20, 1 << 12);

/// The segments of their memory, and of that of requests which are held: who has that many gets nothing new. The dirty log
/// takes as much again for reads (`noted`).
const SEGMENTS: FairShareLimit = FairShareLimit::new(1 << 20, 1 << 12);

/// With so many bytes of requests that are not over nothing new is taken for their lane: a stop, and whoever takes the
/// process's place, waits for all of them, and zeroes of that many bytes are written by hand within a second or two.
/// Requests of 256 KiB still fill all the room that there is.
const REQUEST_BYTES_MAX: usize = 1 << 30;

/// The most requests one lane holds: who waits for a throttle takes no room from the others.
const HELD_MAX: usize = 4096;

/// With so many bytes nothing new is taken for the lane that holds them: all of it may go on at once, and in
/// small chunks.
const HELD_BYTES_MAX: usize = 1 << 30;

/// With so many bytes of internal I/Os, of memory kept for answers and of copied memory nothing new is taken for the
/// lane that they belong to: what it makes of requests may be much larger than they are.
const INTERNAL_BYTES_MAX: usize = 64 << 20;

/// What a request counts for against [`REQUEST_BYTES_MAX`]: the bytes that may have to be moved for it. A host that cannot
/// zero writes them.
pub(crate) fn weight(operation: Operation, memory: &Buffers) -> usize {
    match operation {
        Operation::Read(_) | Operation::Status(_) | Operation::Write(..) | Operation::Flush => {
            memory.count()
        }
        Operation::Discard(extent, _) | Operation::WriteZeroes(extent, ..) => {
            usize::try_from(extent.count().0).unwrap_or(REQUEST_BYTES_MAX)
        }
    }
}

/// The index of an open lane of one `crate::Engine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a lane stays open until it is closed"]
pub struct LaneIndex(usize);

impl LaneIndex {
    /// Its number among the lanes of its engine.
    pub(crate) fn place(self) -> usize {
        self.0
    }

    /// Behind it.
    pub(crate) fn next(self) -> usize {
        self.0 + 1
    }
}

/// All lanes that one iothread has open, with what each has in flight and holds.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// How others have them called.
    calls: Arc<IothreadWakeFlag>,
    places: Vec<Option<OpenLane>>,
    /// Those that have internal I/Os or may have to be called, in order.
    to_run: VecDeque<LaneIndex>,
    /// When the first of them has something to resume.
    due: Option<WakeTime>,
    /// The segments of all requests.
    segments: usize,
    /// What the lanes have entered. Each goes with its lane.
    pub(crate) channels: Channels,
    numbers: ChannelIds,
}

/// A lane and its accounts: users, requests, pieces, segments, bytes.
#[derive(Debug)]
struct OpenLane {
    node: Arc<dyn Node>,
    /// What its lanes use of this iothread.
    io: LaneContext,
    /// Whether they have to be called.
    called: Arc<LaneWaker>,
    state: LaneState,
    /// The rings that use it.
    users: usize,
    /// Its requests and internal I/Os that are not over.
    requests: usize,
    /// The pieces of those.
    pieces: usize,
    /// The segments of the memory of its requests.
    segments: usize,
    /// What those count for, in bytes.
    request_bytes: usize,
    /// The memory of its internal I/Os, and copies of that of its requests, in bytes.
    internal_bytes: usize,
    /// Those of them that it holds.
    held: usize,
    /// The memory of those, in bytes.
    held_bytes: usize,
    /// Those of these that were released, and that a layer may still hold.
    released: usize,
    due: Option<WakeTime>,
    /// Whether the lane is in the iothread's list of those that it attends to.
    to_run: bool,
}

/// What a request takes of its lane's room, to be given back when it is finished: pieces, segments, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestResources {
    /// The pieces of its last answer.
    pub(crate) pieces: usize,
    /// The segments of a request's memory.
    pub(crate) segments: usize,
    /// What it counted for, in bytes.
    pub(crate) request_bytes: usize,
    /// The bytes of an internal I/O's memory, or of a copy of a request's.
    pub(crate) internal_bytes: usize,
}

/// Whether a lane is open, being drained, closed for a change of the graph, or opened again and not yet in use.
#[derive(Debug)]
enum LaneState {
    /// Everybody.
    Open(Box<dyn Lane>),
    /// Only what was begun.
    Draining(Box<dyn Lane>),
    /// There is none.
    Drained,
    /// Nobody yet.
    Ready(Box<dyn Lane>),
}

impl Lanes {
    /// None yet, of the calling iothread, which this notifier wakes.
    pub(crate) fn new(notifier: Arc<Notifier>) -> Self {
        let (places, to_run) = (Vec::new(), VecDeque::new());
        let (channels, numbers) = (Channels::default(), ChannelIds::default());
        let calls = IothreadWakeFlag::new(notifier);
        Self { calls, places, to_run, due: None, segments: 0, channels, numbers }
    }

    /// The lane on the node, opened if it is not yet.
    pub(crate) fn open(&mut self, node: &Arc<dyn Node>) -> Result<LaneIndex, LaneError> {
        if let Some(index) = self.find(node) {
            self.get(index).users += 1;
            return Ok(index);
        }
        self.open_with(node, &mut |io| node.open_lane(io))
    }

    /// Opens the lane on the node that this makes.
    pub(crate) fn open_with(
        &mut self,
        node: &Arc<dyn Node>,
        make: &mut LaneOpener<'_>,
    ) -> Result<LaneIndex, LaneError> {
        let mut open = self.new_entry(node);
        open.state = LaneState::Open(make(&open.io)?);
        let index = self.enter(open);
        self.get(index).users = 1;
        self.enter_channels(index);
        self.note(index);
        Ok(index)
    }

    /// The entry of a node on which no lane is open.
    fn new_entry(&self, node: &Arc<dyn Node>) -> OpenLane {
        let (called, io) = new_io(&self.calls, &self.numbers);
        OpenLane::drained(node, called, io)
    }

    /// Takes the channels that the lane has entered.
    fn enter_channels(&mut self, index: LaneIndex) {
        let open = self.places[index.0].as_ref().expect("it was opened");
        self.channels.enter(&open.io, index, &open.called);
    }

    /// Adds an entry.
    fn enter(&mut self, open: OpenLane) -> LaneIndex {
        let place = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        if place == self.places.len() {
            self.places.push(None);
        }
        self.places[place] = Some(open);
        LaneIndex(place)
    }

    /// Has nobody bring anything new to the lane on that node, until [`Lanes::admit`]; also if none is
    /// open yet. The same node is not drained twice at once.
    pub(crate) fn drain(&mut self, node: &Arc<dyn Node>) -> LaneIndex {
        let Some(index) = self.find(node) else {
            return self.enter(self.new_entry(node));
        };
        let open = self.get(index);
        let LaneState::Open(lane) = std::mem::replace(&mut open.state, LaneState::Drained) else {
            panic!("a node is drained twice at once")
        };
        open.state = LaneState::Draining(lane);
        index
    }

    /// Whether nothing of a lane that is being drained is in flight any more; then the lane is closed.
    pub(crate) fn is_drained(&mut self, index: LaneIndex) -> bool {
        let open = self.get(index);
        if !open.is_over() {
            return false;
        }
        open.state = LaneState::Drained;
        open.due = None;
        self.channels.close(index);
        self.find_due();
        true
    }

    /// Lets everybody use the lane again that is being drained. Returns whether it was drained already: then it is closed.
    pub(crate) fn give_up_drain(&mut self, node: &Arc<dyn Node>) -> (LaneIndex, bool) {
        let index = self.find(node).expect("a node that is drained has an entry");
        let open = self.get(index);
        match std::mem::replace(&mut open.state, LaneState::Drained) {
            LaneState::Draining(lane) => {
                open.state = LaneState::Open(lane);
                self.note(index);
                self.close_if_over(index);
                (index, false)
            }
            LaneState::Drained | LaneState::Ready(_) => (index, true),
            LaneState::Open(_) => panic!("nobody drains this node"),
        }
    }

    /// Opens a lane on a node that is drained. Nobody may use it yet.
    pub(crate) fn prepare(&mut self, node: &Arc<dyn Node>) -> Result<(), LaneError> {
        // Nobody who knew the lane before calls this one.
        let (called, io) = new_io(&self.calls, &self.numbers);
        let (index, open) = self.drained(node);
        (open.called, open.io) = (called, io);
        let opened = node.open_lane(&open.io);
        // What it has entered goes with a lane that could not be opened.
        open.state = LaneState::Ready(opened.inspect_err(|_| drop(open.io.take_entered()))?);
        self.enter_channels(index);
        Ok(())
    }

    /// Closes that lane again.
    pub(crate) fn withdraw(&mut self, node: &Arc<dyn Node>) {
        let (index, open) = self.drained(node);
        open.state = LaneState::Drained;
        self.channels.close(index);
    }

    /// Lets everybody use the lane that was prepared. If there is none, all requests fail.
    pub(crate) fn admit(&mut self, node: &Arc<dyn Node>) {
        let (index, open) = self.drained(node);
        open.state = match std::mem::replace(&mut open.state, LaneState::Drained) {
            LaneState::Ready(lane) => LaneState::Open(lane),
            LaneState::Open(_) | LaneState::Draining(_) | LaneState::Drained => {
                LaneState::Open(Box::new(FailingLane))
            }
        };
        self.note(index);
        self.close_if_over(index);
    }

    fn drained(&mut self, node: &Arc<dyn Node>) -> (LaneIndex, &mut OpenLane) {
        let index = self.find(node).expect("a node that is drained has an entry");
        let open = self.get(index);
        assert!(
            matches!(open.state, LaneState::Drained | LaneState::Ready(_)),
            "a lane that is in use is not replaced: {:?}",
            open.state
        );
        (index, open)
    }

    /// The lane that is open on the node.
    pub(crate) fn find(&self, node: &Arc<dyn Node>) -> Option<LaneIndex> {
        let is_on = |entry: &Option<OpenLane>| {
            entry.as_ref().is_some_and(|open| Arc::ptr_eq(&open.node, node))
        };
        self.places.iter().position(is_on).map(LaneIndex)
    }

    /// The node that a lane is on.
    pub(crate) fn node(&self, index: LaneIndex) -> &Arc<dyn Node> {
        &self.places[index.0].as_ref().expect("a lane is open while it is used").node
    }

    /// Gives a lane back; the last user closes it, once its requests are over.
    pub(crate) fn close(&mut self, index: LaneIndex) {
        self.get(index).users -= 1;
        self.close_if_over(index);
    }

    /// How many more requests may be brought now; all lanes together carry out so many, which have so many pieces.
    pub(crate) fn room(&self, index: LaneIndex, requests: usize, pieces: usize) -> usize {
        let Some(open) = &self.places[index.0] else { return 0 };
        if !matches!(open.state, LaneState::Open(_))
            || open.held_bytes >= HELD_BYTES_MAX
            || open.request_bytes >= REQUEST_BYTES_MAX
            || open.internal_bytes + open.io.answer_memory_bytes() >= INTERNAL_BYTES_MAX
            || PIECES.room(pieces, open.pieces) == 0
            || SEGMENTS.room(self.segments, open.segments) == 0
        {
            return 0;
        }
        let carried_out = open.requests - open.held;
        REQUESTS.room(requests, carried_out).min(HELD_MAX.saturating_sub(open.held))
    }

    /// So many requests were brought, with memory of so many segments, that count for so many bytes.
    pub(crate) fn add(&mut self, index: LaneIndex, requests: usize, segments: usize, bytes: usize) {
        self.segments += segments;
        let open = self.get(index);
        open.requests += requests;
        open.segments += segments;
        open.request_bytes += bytes;
    }

    /// Calls a lane. There is no other way to one.
    pub(crate) fn with<T>(&mut self, index: LaneIndex, call: impl FnOnce(&mut dyn Lane) -> T) -> T {
        let open = self.get(index);
        let lane = open.lane();
        let result = call(lane);
        let due = lane.due();
        if std::mem::replace(&mut open.due, due) != due {
            self.find_due();
        }
        self.note(index);
        result
    }

    /// Asks the lane about a whole batch of new requests.
    pub(crate) fn map(
        &mut self,
        index: LaneIndex,
        batch: &mut [Mapping],
        pieces: &mut BatchPieces,
    ) {
        self.with(index, |lane| lane.map(batch, pieces));
    }

    /// So many bytes more are used for the lane: an internal I/O's memory, or a copy of a request's.
    pub(crate) fn internal_begun(&mut self, index: LaneIndex, bytes: usize) {
        self.get(index).internal_bytes += bytes;
    }

    /// Answers of so many pieces are carried out from now on.
    pub(crate) fn add_pieces(&mut self, index: LaneIndex, pieces: usize) {
        self.get(index).pieces += pieces;
    }

    /// It was carried out, and its request is not over.
    pub(crate) fn remove_pieces(&mut self, index: LaneIndex, pieces: usize) {
        self.get(index).pieces -= pieces;
    }

    /// So many more requests are held, with so many bytes of memory.
    pub(crate) fn held(&mut self, index: LaneIndex, count: usize, bytes: usize) {
        let open = self.get(index);
        open.held += count;
        open.held_bytes += bytes;
    }

    /// So many bytes belonged to what the lane has just let go.
    pub(crate) fn remove_held(&mut self, index: LaneIndex, bytes: usize) {
        self.get(index).held_bytes -= bytes;
    }

    /// The first lane from that place on that has something to resume by now.
    pub(crate) fn next_due(&self, from: usize, now: Instant) -> Option<LaneIndex> {
        if self.due.is_none_or(|due| due.at > now) {
            return None;
        }
        let is_due = |entry: &Option<OpenLane>| {
            entry.as_ref().and_then(|open| open.due).is_some_and(|due| due.at <= now)
        };
        let place = self.places.iter().skip(from).position(is_due)?;
        Some(LaneIndex(from + place))
    }

    /// Takes what the lane held and may go on.
    pub(crate) fn resume(
        &mut self,
        index: LaneIndex,
        now: Instant,
        late: &mut Vec<Mapping>,
        pieces: &mut BatchPieces,
    ) {
        self.with(index, |lane| lane.resume(now, late, pieces));
        self.get(index).held -= late.len();
    }

    /// Makes due at once what the lane holds, so many requests more than before.
    pub(crate) fn release(&mut self, index: LaneIndex, count: usize) {
        self.get(index).released += count;
        self.with(index, |lane| lane.release());
    }

    /// Whether the lane may still hold what was released.
    pub(crate) fn is_releasing(&self, index: LaneIndex) -> bool {
        self.places[index.0].as_ref().is_some_and(|open| open.released > 0)
    }

    /// So many of what was released have got through; makes the others due.
    pub(crate) fn release_rest(&mut self, index: LaneIndex, through: usize) {
        let open = self.get(index);
        open.released -= through;
        if open.released > 0 {
            self.with(index, |lane| lane.release());
        }
    }

    /// Takes the internal I/Os that the lane has submitted since; of a lane that is closed there are none.
    pub(crate) fn take_internal_io(&mut self, index: LaneIndex, into: &mut Vec<InternalOperation>) {
        let Some(open) = &mut self.places[index.0] else { return };
        let begun = into.len();
        open.io.take_submitted(into);
        open.requests += into.len() - begun;
    }

    /// Notes that the lane has submitted internal I/Os or has to be called, if so.
    fn note(&mut self, index: LaneIndex) {
        if self.must_run(index)
            && let Some(open) = &mut self.places[index.0]
            && !std::mem::replace(&mut open.to_run, true)
        {
            self.to_run.push_back(index);
        }
    }

    /// Takes the next of those lanes.
    pub(crate) fn next_to_run(&mut self) -> Option<LaneIndex> {
        while let Some(index) = self.to_run.pop_front() {
            if let Some(open) = &mut self.places[index.0] {
                open.to_run = false;
            }
            if self.must_run(index) {
                return Some(index);
            }
        }
        None
    }

    fn must_run(&self, index: LaneIndex) -> bool {
        let open = self.places[index.0].as_ref();
        open.is_some_and(|open| {
            open.has_lane() && (open.io.has_submitted() || open.called.is_set())
        })
    }

    /// Notes lanes that others have called since.
    pub(crate) fn collect_woken(&mut self) {
        if self.calls.take() {
            (0..self.places.len()).map(LaneIndex).for_each(|lane| self.note(lane));
            self.channels.call_closed();
        }
    }

    /// Whether lanes may have something to do that this thread knows of.
    pub(crate) fn any_woken(&self) -> bool {
        !self.to_run.is_empty() || self.calls.is_any()
    }

    /// Whether the lane had to be called; it is, now.
    pub(crate) fn take_wakeup(&self, index: LaneIndex) -> bool {
        self.places[index.0].as_ref().is_some_and(|open| open.called.take())
    }

    /// How many requests and internal I/Os of the lane are not over.
    pub(crate) fn requests_of(&self, index: LaneIndex) -> usize {
        self.places[index.0].as_ref().map_or(0, |open| open.requests)
    }

    /// The first lane from that place on of which something is not over.
    pub(crate) fn next_busy(&self, from: usize) -> Option<LaneIndex> {
        (from..self.places.len()).map(LaneIndex).find(|lane| self.requests_of(*lane) > 0)
    }

    /// When the first lane has something to resume.
    pub(crate) fn due(&self) -> Option<WakeTime> {
        self.due
    }

    /// A request or an internal I/O is over.
    pub(crate) fn over(&mut self, index: LaneIndex, ended: RequestResources) {
        self.segments -= ended.segments;
        let open = self.get(index);
        open.pieces -= ended.pieces;
        open.segments -= ended.segments;
        open.request_bytes -= ended.request_bytes;
        open.internal_bytes -= ended.internal_bytes;
        open.requests -= 1;
        if open.requests == 0 && open.users == 0 {
            self.close_if_over(index);
        }
    }

    fn get(&mut self, index: LaneIndex) -> &mut OpenLane {
        self.places[index.0].as_mut().expect("a lane is open while it is used")
    }

    fn find_due(&mut self) {
        let all = self.places.iter().flatten().map(|open| open.due);
        self.due = all.fold(None, WakeTime::first);
    }

    /// Closes a lane that nobody uses and that has nothing left to do.
    pub(crate) fn close_if_over(&mut self, index: LaneIndex) {
        let place = &mut self.places[index.0];
        let is_over = |open: &OpenLane| {
            open.users == 0 && open.is_over() && matches!(open.state, LaneState::Open(_))
        };
        if place.as_ref().is_some_and(is_over) {
            *place = None;
            self.channels.close(index);
            self.find_due();
        }
    }
}

impl OpenLane {
    /// The entry of a node on which no lane is open.
    fn drained(node: &Arc<dyn Node>, called: Arc<LaneWaker>, io: LaneContext) -> Self {
        Self {
            node: Arc::clone(node),
            io,
            called,
            state: LaneState::Drained,
            users: 0,
            requests: 0,
            pieces: 0,
            segments: 0,
            request_bytes: 0,
            internal_bytes: 0,
            held: 0,
            held_bytes: 0,
            released: 0,
            due: None,
            to_run: false,
        }
    }

    /// Whether nothing of it is in flight, nor an internal I/O about to be, nor does it have to be called: a
    /// task of its own may be between two internal I/Os.
    fn is_over(&self) -> bool {
        self.requests == 0 && !self.io.has_submitted() && !self.called.is_set()
    }

    fn has_lane(&self) -> bool {
        matches!(self.state, LaneState::Open(_) | LaneState::Draining(_))
    }

    fn lane(&mut self) -> &mut dyn Lane {
        match &mut self.state {
            LaneState::Open(lane) | LaneState::Draining(lane) => &mut **lane,
            LaneState::Drained | LaneState::Ready(_) => {
                panic!("nothing is in flight while it is drained")
            }
        }
    }
}

/// What a new lane of the iothread with these calls uses of it, and what says that it has to be called.
fn new_io(calls: &Arc<IothreadWakeFlag>, numbers: &ChannelIds) -> (Arc<LaneWaker>, LaneContext) {
    let called = Arc::new(LaneWaker::new(Arc::clone(calls)));
    (Arc::clone(&called), LaneContext::numbered(called.into(), numbers))
}

#[cfg(test)]
mod tests {
    use block::{ByteCount, ByteOffset, DiskSize, Durability, ZeroTerms};

    use super::*;

    #[test]
    fn a_range_without_memory_counts_for_what_may_have_to_be_written() {
        let disk = DiskSize(ByteCount(1 << 40));
        let extent = disk.check(ByteOffset(0), ByteCount(512 << 20)).unwrap();
        let none = Buffers::default();
        for operation in [
            Operation::Discard(extent, Durability::Cached),
            Operation::WriteZeroes(extent, ZeroTerms::KEEP, Durability::Cached),
        ] {
            assert_eq!(weight(operation, &none), 512 << 20);
        }
        assert_eq!(weight(Operation::Flush, &none), 0);
    }
}
