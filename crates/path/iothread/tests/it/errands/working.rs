//! A disk whose lanes work for their requests as those of a format do.
//!
//! Of each block of the disk there is a note behind its end: how often the block was written.
//! - A read looks at the note first, with an internal I/O.
//! - A write is answered, kept when it was carried out, noted with an internal I/O, and handed over to another
//!   lane, if there is one, which hands it back; then it is answered with nothing to do.
//! - A flush is answered at once, and begins an internal I/O that nobody waits for.

use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset, Claim,
    ClaimError, DiskSize, Durability, Extent, FailKind, HostMemory, InternalIoFuture, Lane,
    LaneCompletionDecision, LaneContext, LaneError, Mapping, Node, Operation, Outcome, Piece,
    Rights, Target, Token, WakeTime,
};

use crate::guest::BLOCK;

/// What its lanes do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// They work as told above.
    #[default]
    Working,
    /// They hold everything and call themselves, again and again, until [`WorkingNode::let_go`].
    Spinning,
    /// The same, but reads are answered with memory.
    Keeping,
    /// They ask below about each request, and once more when that was carried out.
    AskingTwice,
}

#[derive(Debug)]
pub(crate) struct WorkingNode {
    below: Arc<dyn Node>,
    /// Who is asked the second time.
    second: Arc<dyn Node>,
    bytes: u64,
    behaviour: Behaviour,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_let_go: AtomicBool,
    lanes: AtomicUsize,
    kept: AtomicUsize,
    background: AtomicUsize,
    meeting: Mutex<Meeting>,
}

/// Where lanes of several threads meet.
#[derive(Debug, Default)]
struct Meeting {
    next: usize,
    lanes: HashMap<usize, Left>,
    /// How often each block was written.
    notes: HashMap<u64, u64>,
}

/// What others have left for a lane.
#[derive(Debug)]
struct Left {
    waker: Waker,
    /// To be handed back: whose, and under which token.
    to_do: Vec<(usize, Token)>,
    done: Vec<Token>,
}

impl Meeting {
    fn hand_back(&mut self, (lane, token): (usize, Token)) {
        let owner = self.lanes.get_mut(&lane).expect("it waits for this");
        owner.done.push(token);
        owner.waker.wake_by_ref();
    }
}

impl WorkingNode {
    pub(crate) fn over(below: Arc<dyn Node>, bytes: u64, behaviour: Behaviour) -> Arc<Self> {
        let second = Arc::clone(&below);
        Arc::new(Self { below, second, bytes, behaviour, shared: Arc::default() })
    }

    pub(crate) fn over_two(
        below: Arc<dyn Node>,
        second: Arc<dyn Node>,
        behaviour: Behaviour,
    ) -> Arc<Self> {
        let bytes = below.size().0.0;
        Arc::new(Self { below, second, bytes, behaviour, shared: Arc::default() })
    }

    pub(crate) fn lanes_open(&self) -> usize {
        self.shared.lanes.load(Ordering::SeqCst)
    }

    pub(crate) fn kept(&self) -> usize {
        self.shared.kept.load(Ordering::SeqCst)
    }

    pub(crate) fn background(&self) -> usize {
        self.shared.background.load(Ordering::SeqCst)
    }

    pub(crate) fn let_go(&self) {
        self.shared.is_let_go.store(true, Ordering::SeqCst);
    }
}

impl Node for WorkingNode {
    fn name(&self) -> &str {
        "working"
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(self.bytes))
    }

    fn limits(&self) -> BlockLimits {
        self.below.limits()
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn flush(&self) -> std::io::Result<()> {
        self.below.flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.below.claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let (below, second) = (self.below.open_lane(io)?, self.second.open_lane(io)?);
        self.shared.lanes.fetch_add(1, Ordering::SeqCst);
        let mut meeting = self.shared.meeting.lock().unwrap();
        let number = meeting.next;
        meeting.next += 1;
        let waker = io.waker().clone();
        meeting.lanes.insert(number, Left { waker, to_do: Vec::new(), done: Vec::new() });
        drop(meeting);
        Ok(Box::new(WorkingLane {
            number,
            below,
            second,
            below_size: self.below.size(),
            behaviour: self.behaviour,
            bytes: self.bytes,
            io: io.clone(),
            shared: Arc::clone(&self.shared),
            asked: HashMap::new(),
            errands: Vec::new(),
            elsewhere: Vec::new(),
            background: Vec::new(),
        }))
    }
}

#[derive(Debug)]
struct WorkingLane {
    number: usize,
    below: Box<dyn Lane>,
    second: Box<dyn Lane>,
    below_size: DiskSize,
    behaviour: Behaviour,
    bytes: u64,
    io: LaneContext,
    shared: Arc<Shared>,
    /// What was answered and is to be told, or is held below, and how often it was asked about.
    asked: HashMap<Token, (Operation, u32)>,
    /// What waits for an internal I/O.
    errands: Vec<(Token, Operation, InternalIoFuture)>,
    /// What waits for another lane.
    elsewhere: Vec<(Token, Operation)>,
    background: Vec<InternalIoFuture>,
}

impl WorkingLane {
    fn note_of(&self, extent: Extent) -> Extent {
        let place = ByteOffset(self.bytes + extent.start().0);
        self.below_size.check(place, ByteCount(BLOCK as u64)).expect("the file has room for notes")
    }

    fn errand(&mut self, operation: Operation, memory: HostMemory) -> InternalIoFuture {
        let mut pieces = BatchPieces::default();
        let mut asked = [Mapping::new(Token(u32::MAX), operation)];
        self.below.map(&mut asked, &mut pieces);
        let Answer::Now(range) = asked[0].answer else { panic!("a file answers at once") };
        let done = self.io.submit(asked[0].operation, pieces.get(range), memory);
        // The first poll of an internal I/O says whom it wakes.
        self.io.waker().wake_by_ref();
        done
    }

    fn ask(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        self.asked.insert(mapping.token, (mapping.operation, 1));
        self.below.map(std::slice::from_mut(mapping), pieces);
        mapping.after = AfterPiecesAction::NotifyLane;
    }

    fn begin(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        match (self.behaviour, mapping.operation) {
            (Behaviour::Spinning, operation) => {
                self.asked.insert(mapping.token, (operation, 1));
                mapping.answer = Answer::Held;
                self.io.waker().wake_by_ref();
            }
            (Behaviour::AskingTwice, _) | (Behaviour::Working, Operation::Write(..)) => {
                self.ask(mapping, pieces);
            }
            (Behaviour::Keeping, operation @ Operation::Read(extent)) => {
                let count = usize::try_from(extent.count().0).unwrap();
                let done = self.errand(operation, HostMemory::zeroed(count));
                self.errands.push((mapping.token, operation, done));
                mapping.answer = Answer::Held;
            }
            (Behaviour::Keeping, _) => self.ask(mapping, pieces),
            (Behaviour::Working, operation @ Operation::Read(extent)) => {
                let look = Operation::Read(self.note_of(extent));
                let done = self.errand(look, HostMemory::zeroed(BLOCK));
                self.errands.push((mapping.token, operation, done));
                mapping.answer = Answer::Held;
            }
            (Behaviour::Working, _) => self.ask(mapping, pieces),
        }
    }

    /// An internal I/O is over: what becomes of its request.
    fn go_on(
        &mut self,
        token: Token,
        operation: Operation,
        result: Result<HostMemory, FailKind>,
        pieces: &mut BatchPieces,
    ) -> Option<Mapping> {
        let mut mapping = Mapping::new(token, operation);
        match (result, operation) {
            (Err(kind), _) => mapping.answer = Answer::Refused(kind),
            (Ok(found), Operation::Read(_)) if self.behaviour == Behaviour::Keeping => {
                self.shared.kept.fetch_add(1, Ordering::SeqCst);
                let half = found.len() / 2;
                let (first, second) = found.split_at(half);
                let mark = pieces.end();
                for (skip, part) in [(half, second), (0, first)] {
                    let memory =
                        self.io.keep(Rc::new(HostMemory::of(part))).expect("there is room");
                    let (skip, count) = (skip as u64, ByteCount(part.len() as u64));
                    let target = Target::Memory { memory, offset: 0 };
                    pieces.push(Piece { skip, count, target });
                }
                mapping.answer = Answer::Now(pieces.since(mark));
            }
            (Ok(_), Operation::Read(_)) => self.ask(&mut mapping, pieces),
            (Ok(_), _) => {
                self.elsewhere.push((token, operation));
                let mut meeting = self.shared.meeting.lock().unwrap();
                let other = meeting.lanes.keys().copied().find(|lane| *lane != self.number);
                match other {
                    Some(other) => {
                        let other = meeting.lanes.get_mut(&other).unwrap();
                        other.to_do.push((self.number, token));
                        other.waker.wake_by_ref();
                    }
                    None => meeting.hand_back((self.number, token)),
                }
                return None;
            }
        }
        Some(mapping)
    }
}

impl Lane for WorkingLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        batch.iter_mut().for_each(|mapping| self.begin(mapping, pieces));
    }

    fn due(&self) -> Option<WakeTime> {
        WakeTime::first(self.below.due(), self.second.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        // What was answered before was carried out at once.
        assert_eq!(self.io.answer_memory_bytes(), 0);
        let first = late.len();
        self.below.resume(now, late, pieces);
        self.second.resume(now, late, pieces);
        late[first..].iter_mut().for_each(|mapping| mapping.after = AfterPiecesAction::NotifyLane);
        if self.behaviour == Behaviour::Spinning && !self.asked.is_empty() {
            if !self.shared.is_let_go.load(Ordering::SeqCst) {
                return self.io.waker().wake_by_ref();
            }
            for (token, (operation, _)) in self.asked.drain() {
                let answer = Answer::Now(pieces.none());
                late.push(Mapping { answer, ..Mapping::new(token, operation) });
            }
        }
        let waker = self.io.waker().clone();
        let mut context = Context::from_waker(&waker);
        for (token, operation, mut done) in std::mem::take(&mut self.errands) {
            match Pin::new(&mut done).poll(&mut context) {
                Poll::Ready(result) => late.extend(self.go_on(token, operation, result, pieces)),
                Poll::Pending => self.errands.push((token, operation, done)),
            }
        }
        self.background.retain_mut(|done| Pin::new(done).poll(&mut context).is_pending());
        let mut meeting = self.shared.meeting.lock().unwrap();
        let own = meeting.lanes.get_mut(&self.number).unwrap();
        let (to_do, done) = (std::mem::take(&mut own.to_do), std::mem::take(&mut own.done));
        to_do.into_iter().for_each(|owed| meeting.hand_back(owed));
        for token in done {
            let place = self.elsewhere.iter().position(|waits| waits.0 == token);
            let place = place.expect("it is handed back once");
            let (token, operation) = self.elsewhere.swap_remove(place);
            let answer = Answer::Now(pieces.none());
            late.push(Mapping { answer, ..Mapping::new(token, operation) });
        }
    }

    fn release(&mut self) {
        self.below.release();
        self.second.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let (operation, times) = self.asked.remove(&token).expect("told once of each answer");
        match (self.behaviour, operation) {
            (Behaviour::AskingTwice, _) if times == 1 => {
                let mut again = [Mapping::new(token, operation)];
                self.second.map(&mut again, &mut BatchPieces::default());
                assert_eq!(again[0].answer, Answer::Held);
                self.asked.insert(token, (operation, 2));
                return LaneCompletionDecision::HoldAgain;
            }
            (Behaviour::Working, Operation::Write(extent, _)) if outcome == Outcome::Done => {
                self.shared.kept.fetch_add(1, Ordering::SeqCst);
                let mut meeting = self.shared.meeting.lock().unwrap();
                let count = meeting.notes.entry(extent.start().0).or_default();
                *count += 1;
                let note = HostMemory::of(&{
                    let mut note = [0; BLOCK];
                    note[..8].copy_from_slice(&count.to_le_bytes());
                    note
                });
                drop(meeting);
                let write = Operation::Write(self.note_of(extent), Durability::Cached);
                let done = self.errand(write, note);
                self.errands.push((token, operation, done));
                return LaneCompletionDecision::HoldAgain;
            }
            (Behaviour::Working, Operation::Flush) => {
                let all = self.below_size.check(ByteOffset(0), ByteCount(BLOCK as u64)).unwrap();
                let done = self.errand(Operation::Read(all), HostMemory::zeroed(BLOCK));
                self.shared.background.fetch_add(1, Ordering::SeqCst);
                self.background.push(done);
            }
            (_, _) => {}
        }
        LaneCompletionDecision::Finish(outcome)
    }
}

impl Drop for WorkingLane {
    fn drop(&mut self) {
        assert_eq!(self.io.answer_memory_bytes(), 0, "nothing is in flight");
        // What others have left here still has to be done.
        let mut meeting = self.shared.meeting.lock().unwrap();
        let own = meeting.lanes.remove(&self.number).unwrap();
        own.to_do.into_iter().for_each(|owed| meeting.hand_back(owed));
        drop(meeting);
        self.shared.lanes.fetch_sub(1, Ordering::SeqCst);
        if std::thread::panicking() {
            return;
        }
        assert!(self.errands.is_empty() && self.elsewhere.is_empty(), "closed in mid-work");
        let mut context = Context::from_waker(Waker::noop());
        for done in &mut self.background {
            let over = Pin::new(done).poll(&mut context).is_ready();
            assert!(over, "closed while an errand is under way");
        }
    }
}
