//! The lane on a clock that stands still until it is told.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::task::Wake;

use block::{
    AfterPiecesAction, BlockLimits, ByteCount, ByteOffset, DiskSize, Durability, FailKind,
    SystemClock, ZeroTerms,
};

use super::*;

const MS: Duration = Duration::from_millis(1);
const NS: Duration = Duration::from_nanos(1);

/// A clock that is set by hand, and counts how often it is read.
#[derive(Debug)]
struct Hand {
    now: Mutex<Instant>,
    reads: AtomicU64,
}

impl Hand {
    fn new() -> Arc<Self> {
        Arc::new(Self { now: Mutex::new(SystemClock.now()), reads: AtomicU64::new(0) })
    }

    fn time(&self) -> Instant {
        *self.now.lock().unwrap()
    }

    fn pass(&self, time: Duration) {
        *self.now.lock().unwrap() += time;
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Clock for Hand {
    fn now(&self) -> Instant {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.time()
    }
}

/// A disk that answers everything, refuses flushes, and notes the calls of its lanes.
#[derive(Debug, Default)]
struct Below {
    /// The tokens of each call.
    calls: Arc<Mutex<Vec<Vec<u32>>>>,
}

const SIZE: DiskSize = DiskSize(ByteCount(1 << 20));

impl Node for Below {
    fn name(&self) -> &str {
        "below"
    }

    fn size(&self) -> DiskSize {
        SIZE
    }

    fn limits(&self) -> BlockLimits {
        let block = 512.try_into().unwrap();
        BlockLimits {
            request_alignment: block,
            physical_block: block,
            discard: true,
            discard_granularity: block,
            allocation_unit: block,
        }
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        Ok(Box::new(BelowLane { calls: Arc::clone(&self.calls) }))
    }
}

#[derive(Debug)]
struct BelowLane {
    calls: Arc<Mutex<Vec<Vec<u32>>>>,
}

impl Lane for BelowLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        self.calls.lock().unwrap().push(batch.iter().map(|it| it.token.0).collect());
        for mapping in batch {
            mapping.answer = match mapping.operation {
                Operation::Flush => Answer::Refused(FailKind::NoSpace),
                Operation::Read(_)
                | Operation::Status(_)
                | Operation::Write(..)
                | Operation::Discard(..)
                | Operation::WriteZeroes(..) => Answer::Now(pieces.none()),
            };
        }
    }

    fn due(&self) -> Option<WakeTime> {
        None
    }

    fn resume(&mut self, _: Instant, _: &mut Vec<Mapping>, _: &mut BatchPieces) {}

    fn release(&mut self) {}

    fn completed(&mut self, _: Token, outcome: Outcome) -> LaneCompletionDecision {
        LaneCompletionDecision::Finish(outcome)
    }
}

fn latency(ms: u64) -> Distribution {
    Distribution::Fixed(Latency::from_ns(ms * 1_000_000).unwrap())
}

fn settings(read: u64, write: u64, flush: u64, order: DelayOrder) -> DelaySettings {
    DelaySettings { read: latency(read), write: latency(write), flush: latency(flush), order }
}

fn read() -> Operation {
    Operation::Read(SIZE.check(ByteOffset(0), ByteCount(512)).unwrap())
}

fn write() -> Operation {
    let extent = SIZE.check(ByteOffset(0), ByteCount(512)).unwrap();
    Operation::Write(extent, Durability::Cached)
}

/// A delay over a disk, and one lane.
struct Rig {
    clock: Arc<Hand>,
    node: Arc<DelayNode>,
    lane: Box<dyn Lane>,
    calls: Arc<Mutex<Vec<Vec<u32>>>>,
    called: Arc<Called>,
    pieces: BatchPieces,
}

/// Whether the lane has to be called.
#[derive(Debug, Default)]
struct Called(AtomicBool);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Rig {
    fn new(settings: DelaySettings) -> Self {
        let clock = Hand::new();
        let below = Below::default();
        let calls = Arc::clone(&below.calls);
        let node = over(Arc::new(below), settings, &clock);
        Self::with(clock, node, calls)
    }

    fn with(clock: Arc<Hand>, node: Arc<DelayNode>, calls: Arc<Mutex<Vec<Vec<u32>>>>) -> Self {
        let called = Arc::new(Called::default());
        let lane = node.open_lane(&LaneContext::new(Arc::clone(&called).into())).unwrap();
        Self { clock, node, lane, calls, called, pieces: BatchPieces::default() }
    }

    /// Asks about a batch; the tokens count from the one given.
    fn ask(&mut self, first: u32, operations: &[Operation]) -> Vec<Mapping> {
        let tokens = (first..).map(Token);
        let mut batch: Vec<_> =
            tokens.zip(operations).map(|(token, it)| Mapping::new(token, *it)).collect();
        self.lane.map(&mut batch, &mut self.pieces);
        batch
    }

    /// The same, and carries out what is answered. Returns who is held.
    fn map(&mut self, first: u32, operations: &[Operation]) -> Vec<bool> {
        let batch = self.ask(first, operations);
        batch.iter().map(|mapping| !carry_out(&mut *self.lane, mapping)).collect()
    }

    /// What comes late.
    fn resume(&mut self) -> Vec<Mapping> {
        let mut late = Vec::new();
        self.lane.resume(self.clock.time(), &mut late, &mut self.pieces);
        late
    }

    /// The same, and carries it out. Returns what is over.
    fn late(&mut self) -> Vec<Mapping> {
        let mut over = Vec::new();
        loop {
            let late = self.resume();
            over.extend(late.into_iter().filter(|mapping| carry_out(&mut *self.lane, mapping)));
            if !self.called.0.swap(false, Ordering::Relaxed) {
                return over;
            }
        }
    }

    fn late_tokens(&mut self) -> Vec<u32> {
        self.late().iter().map(|it| it.token.0).collect()
    }

    /// Lets time pass from due to due, and returns when each token came, in milliseconds.
    fn run(&mut self) -> Vec<(u32, u128)> {
        let (start, mut seen) = (self.clock.time(), Vec::new());
        while let Some(due) = self.lane.due() {
            let now = self.clock.time();
            assert!(due.slack.is_zero());
            if due.at > now {
                self.clock.pass(due.at - now - NS);
                assert_eq!(self.late_tokens(), [], "nothing may go on before its time");
                self.clock.pass(NS);
            }
            let ms = (self.clock.time() - start).as_millis();
            let late = self.late_tokens();
            assert_ne!(late, [], "what is due goes on");
            seen.extend(late.into_iter().map(|token| (token, ms)));
        }
        seen
    }
}

/// Carries out what is answered; whether the request is over after that.
fn carry_out(lane: &mut dyn Lane, mapping: &Mapping) -> bool {
    match (mapping.answer, mapping.after) {
        (Answer::Held, _) => false,
        (Answer::Now(_), AfterPiecesAction::NotifyLane) => {
            lane.completed(mapping.token, Outcome::Done) != LaneCompletionDecision::HoldAgain
        }
        (Answer::Now(_), AfterPiecesAction::Finish) | (Answer::Refused(_), _) => true,
    }
}

fn over(below: Arc<dyn Node>, settings: DelaySettings, clock: &Arc<Hand>) -> Arc<DelayNode> {
    let clock: Arc<dyn Clock> = clock.clone();
    Arc::new(DelayNode::new("slow", Child::new(below), Access::ReadWrite, settings, 1, clock))
}

#[test]
fn every_kind_of_request_takes_its_own_time() {
    let mut rig = Rig::new(settings(3, 5, 7, DelayOrder::Any));
    let extent = SIZE.check(ByteOffset(0), ByteCount(512)).unwrap();
    let cached = Durability::Cached;
    let zeroes = Operation::WriteZeroes(extent, ZeroTerms::KEEP, cached);
    let discard = Operation::Discard(extent, cached);
    let held = rig.map(0, &[Operation::Flush, write(), read(), discard, zeroes]);
    assert_eq!(held, [true; 5]);
    assert_eq!(*rig.calls.lock().unwrap(), Vec::<Vec<u32>>::new());
    assert_eq!(rig.run(), [(2, 3), (1, 5), (3, 5), (4, 5), (0, 7)]);
    assert_eq!(*rig.calls.lock().unwrap(), [vec![2], vec![1, 3, 4], vec![0]]);
}

#[test]
fn without_any_delay_the_clock_is_not_read_and_the_batch_stays_whole() {
    let mut rig = Rig::new(settings(0, 0, 0, DelayOrder::Any));
    assert_eq!(rig.map(0, &[read(), write(), Operation::Flush]), [false; 3]);
    assert_eq!((rig.clock.reads(), rig.lane.due()), (0, None));
    assert_eq!(*rig.calls.lock().unwrap(), [vec![0, 1, 2]]);
}

#[test]
fn the_clock_is_read_once_for_a_batch_and_the_undelayed_go_on_together() {
    let mut rig = Rig::new(settings(0, 5, 0, DelayOrder::Any));
    let held = rig.map(0, &[read(), read(), write(), read(), write(), write(), read(), read()]);
    assert_eq!(held, [false, false, true, false, true, true, false, false]);
    assert_eq!(rig.clock.reads(), 1);
    assert_eq!(*rig.calls.lock().unwrap(), [vec![0, 1], vec![3], vec![6, 7]]);
    assert_eq!(rig.run(), [(2, 5), (4, 5), (5, 5)]);
}

#[test]
fn requests_overtake_each_other_unless_they_are_ordered() {
    let operations = [Operation::Flush, write(), read()];
    let mut rig = Rig::new(settings(1, 5, 9, DelayOrder::Any));
    rig.map(0, &operations);
    assert_eq!(rig.run(), [(2, 1), (1, 5), (0, 9)]);
    let mut rig = Rig::new(settings(1, 5, 9, DelayOrder::AsBegun));
    rig.map(0, &operations);
    assert_eq!(rig.run(), [(0, 9), (1, 9), (2, 9)]);
}

#[test]
fn what_need_not_wait_waits_for_those_before_it_if_ordered() {
    let mut rig = Rig::new(settings(0, 5, 0, DelayOrder::AsBegun));
    assert_eq!(rig.map(0, &[read(), write(), read()]), [false, true, true]);
    rig.clock.pass(MS);
    assert_eq!(rig.map(3, &[read(), write()]), [true, true]);
    assert_eq!(rig.run(), [(1, 4), (2, 4), (3, 4), (4, 5)]);
    // Nothing is held any more.
    assert_eq!(rig.map(5, &[read()]), [false]);
    // Also if nothing is delayed any more, but something is still held.
    assert_eq!(rig.map(6, &[write()]), [true]);
    rig.node.set(settings(0, 0, 0, DelayOrder::AsBegun));
    assert_eq!(rig.map(7, &[write()]), [true]);
    assert_eq!(rig.run(), [(6, 5), (7, 5)]);
    assert_eq!(rig.map(8, &[write()]), [false]);
}

#[test]
fn ordered_requests_are_over_in_their_order_however_they_end() {
    let mut rig = Rig::new(settings(0, 0, 0, DelayOrder::AsBegun));
    let batch = rig.ask(0, &[read(), write(), Operation::Flush, read()]);
    // All are carried out together, but the refused one, which has to wait.
    let now = |mapping: &Mapping| matches!(mapping.answer, Answer::Now(_));
    assert_eq!(batch.iter().map(now).collect::<Vec<_>>(), [true, true, false, true]);
    assert_eq!(
        (batch[2].answer, rig.calls.lock().unwrap().clone()),
        (Answer::Held, vec![vec![0, 1, 2, 3]])
    );
    assert!(
        batch
            .iter()
            .filter(|mapping| now(mapping))
            .all(|it| it.after == AfterPiecesAction::NotifyLane)
    );
    assert_eq!(rig.lane.completed(Token(3), Outcome::Done), LaneCompletionDecision::HoldAgain);
    let failed = Outcome::Failed(FailKind::Io);
    assert_eq!(rig.lane.completed(Token(1), failed), LaneCompletionDecision::HoldAgain);
    assert_eq!((rig.late_tokens(), rig.lane.due()), (vec![], None));
    assert_eq!(
        rig.lane.completed(Token(0), Outcome::Done),
        LaneCompletionDecision::Finish(Outcome::Done)
    );
    assert!(rig.called.0.load(Ordering::Relaxed));
    let late = rig.late();
    let ends: Vec<_> = late.iter().map(|it| (it.token.0, it.operation, it.answer)).collect();
    let refused = Answer::Refused;
    assert_eq!(
        ends,
        [
            (1, write(), refused(FailKind::Io)),
            (2, Operation::Flush, refused(FailKind::NoSpace)),
            (3, read(), Answer::Now(rig.pieces.none())),
        ]
    );
    assert!(late.iter().all(|it| it.after == AfterPiecesAction::Finish));
}

#[test]
fn what_is_refused_below_is_refused_late() {
    let mut rig = Rig::new(settings(0, 0, 1, DelayOrder::Any));
    rig.map(0, &[Operation::Flush]);
    rig.clock.pass(MS);
    assert_eq!(rig.late()[0].answer, Answer::Refused(FailKind::NoSpace));
}

#[test]
fn delays_on_top_of_each_other_add_up_and_are_released_together() {
    let clock = Hand::new();
    let lower = over(Arc::new(Below::default()), settings(2, 0, 0, DelayOrder::Any), &clock);
    let upper = over(lower, settings(1, 0, 0, DelayOrder::AsBegun), &clock);
    let mut rig = Rig::with(clock, upper, Arc::default());
    assert_eq!(rig.map(0, &[read()]), [true]);
    rig.clock.pass(MS);
    assert_eq!(rig.late_tokens(), [], "the lower one holds it now");
    rig.clock.pass(MS * 2 - NS);
    assert_eq!(rig.late_tokens(), []);
    rig.clock.pass(NS);
    assert_eq!(rig.late_tokens(), [0]);
    // One above, one below.
    rig.map(1, &[read()]);
    rig.clock.pass(MS);
    assert_eq!(rig.late_tokens(), []);
    rig.map(2, &[read()]);
    rig.lane.release();
    assert!(rig.lane.due().unwrap().at <= rig.clock.time());
    // What the upper one lets go the lower one holds anew, until somebody says it again.
    assert_eq!(rig.late_tokens(), [1]);
    rig.lane.release();
    assert_eq!(rig.late_tokens(), [2]);
}

#[test]
fn what_is_released_does_not_hold_up_what_comes_later() {
    let mut rig = Rig::new(settings(1000, 0, 0, DelayOrder::AsBegun));
    rig.map(0, &[read(), write()]);
    rig.lane.release();
    rig.node.set(settings(1, 0, 0, DelayOrder::AsBegun));
    rig.map(2, &[read()]);
    assert_eq!(rig.run(), [(0, 0), (1, 0), (2, 1)]);
}

#[test]
fn new_settings_hold_from_the_next_batch_on_and_change_nothing_that_is_held() {
    let mut rig = Rig::new(settings(10, 10, 10, DelayOrder::Any));
    rig.map(0, &[read()]);
    rig.node.set(settings(2, 0, 0, DelayOrder::Any));
    assert_eq!(*rig.node.settings(), settings(2, 0, 0, DelayOrder::Any));
    assert_eq!(rig.map(1, &[read(), write()]), [true, false]);
    assert_eq!(rig.run(), [(1, 2), (0, 10)]);
    // Other lanes and later ones follow too.
    let mut other = rig.node.open_lane(&LaneContext::idle()).unwrap();
    let mut batch = [Mapping::new(Token(0), write())];
    other.map(&mut batch, &mut rig.pieces);
    assert_ne!(batch[0].answer, Answer::Held);
    rig.node.set(settings(2, 1, 0, DelayOrder::Any));
    other.map(&mut batch, &mut rig.pieces);
    assert_eq!(batch[0].answer, Answer::Held);
}

/// Settings change after every few requests; each request goes on once, and no earlier than the shortest
/// delay that was ever set.
#[test]
fn nothing_is_lost_while_settings_change() {
    let mut rig = Rig::new(settings(0, 0, 0, DelayOrder::Any));
    let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
    let mut count = 0;
    for round in 0..500_u64 {
        let order = if round % 3 == 0 { DelayOrder::AsBegun } else { DelayOrder::Any };
        rig.node.set(settings(round % 7, round % 5, round % 2, order));
        let operations = [read(), write(), Operation::Flush, read()];
        let held = rig.map(count, &operations);
        for (token, _) in (count..).zip(held).filter(|(_, held)| !held) {
            *seen.entry(token).or_default() += 1;
        }
        count += 4;
        if round % 50 == 49 {
            rig.lane.release();
        }
        rig.clock.pass(MS);
        for token in rig.late_tokens() {
            *seen.entry(token).or_default() += 1;
        }
    }
    for (token, _) in rig.run() {
        *seen.entry(token).or_default() += 1;
    }
    assert_eq!(seen.len(), usize::try_from(count).unwrap());
    assert!(seen.values().all(|times| *times == 1));
}

#[test]
fn a_seed_repeats_the_delays_and_lanes_do_not_repeat_each_other() {
    let random = || {
        let mean = Latency::from_ns(1_000_000).unwrap();
        let read = Distribution::Exponential { mean };
        DelaySettings { read, ..settings(0, 0, 0, DelayOrder::Any) }
    };
    let first_due = |rig: &mut Rig| {
        rig.map(0, &[read()]);
        rig.lane.due().unwrap().at - rig.clock.time()
    };
    let (mut one, mut other) = (Rig::new(random()), Rig::new(random()));
    let first = first_due(&mut one);
    assert_eq!(first, first_due(&mut other));
    other.lane = other.node.open_lane(&LaneContext::idle()).unwrap();
    assert_ne!(first, first_due(&mut other));
}

/// Two threads serve requests while a third one changes the settings: each request goes on once, and both
/// threads see the last settings.
#[test]
fn settings_change_while_two_threads_serve() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let child = Child::new(Arc::new(Below::default()));
    let before = settings(0, 0, 0, DelayOrder::Any);
    let node = DelayNode::new("slow", child, Access::ReadWrite, before, 1, Arc::clone(&clock));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serve = || {
            let (mut lane, mut pieces, mut late) =
                (node.open_lane(&LaneContext::idle()).unwrap(), BatchPieces::default(), Vec::new());
            let (mut open, mut token, mut held) = (std::collections::BTreeSet::new(), 0, 0);
            loop {
                let last_round = is_over.load(Ordering::Acquire);
                let mut batch = [read(), write(), Operation::Flush].map(|operation| {
                    token += 1;
                    Mapping::new(Token(token), operation)
                });
                lane.map(&mut batch, &mut pieces);
                if last_round {
                    // The last settings delay writes alone.
                    let answers = batch.map(|it| it.answer == Answer::Held);
                    assert_eq!(answers, [false, true, false]);
                }
                for mapping in &batch {
                    if !carry_out(&mut *lane, mapping) {
                        held += 1;
                        assert!(open.insert(mapping.token.0));
                    }
                }
                if last_round {
                    lane.release();
                }
                loop {
                    lane.resume(clock.now(), &mut late, &mut pieces);
                    if late.is_empty() {
                        break;
                    }
                    for mapping in late.drain(..) {
                        if carry_out(&mut *lane, &mapping) {
                            assert!(open.remove(&mapping.token.0), "{mapping:?} goes on twice");
                        }
                    }
                }
                pieces.clear();
                if last_round {
                    assert!(open.is_empty(), "{open:?} are lost");
                    return held;
                }
            }
        };
        let threads = [scope.spawn(serve), scope.spawn(serve)];
        for round in 0..2000 {
            let order = if round % 2 == 0 { DelayOrder::AsBegun } else { DelayOrder::Any };
            let us = |us: u64| Distribution::Fixed(Latency::from_ns(us * 1000).unwrap());
            let (read, write, flush) = (us(round % 7), us(round % 5), us(round % 3));
            node.set(DelaySettings { read, write, flush, order });
            std::thread::yield_now();
        }
        node.set(settings(0, 3_600_000, 0, DelayOrder::Any));
        is_over.store(true, Ordering::Release);
        for thread in threads {
            assert!(thread.join().unwrap() > 0, "a thread was never delayed");
        }
    });
}
