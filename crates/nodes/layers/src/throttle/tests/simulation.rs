//! Lanes under load on a clock of their own: what passes when.
//!
//! Each load is one iothread's lane on a throttle node. It keeps so many requests in flight, each of
//! which takes the disk below the same time. Wakes may be late, as those of threads are. All is repeated
//! exactly by the seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use block::{
    Access, Answer, BatchPieces, BlockLimits, ByteCount, ByteOffset, Child, Claim, ClaimError,
    Clock, DiskSize, Durability, Extent, Lane, LaneContext, LaneError, LeafLane, Mapping, Node,
    Operation, Rights, SystemClock, Token,
};

use super::super::{LimitKind, ThrottleGroup, ThrottleLimits, ThrottleNode, ThrottleSettings};

pub(super) const MICROSECOND: u64 = 1_000;
pub(super) const MILLISECOND: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000_000_000;

/// A clock that stands still until it is set. Counts how often it is read.
#[derive(Debug)]
pub(super) struct FakeClock {
    start: Instant,
    state: Mutex<(u64, u64)>,
}

impl FakeClock {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { start: SystemClock.now(), state: Mutex::default() })
    }

    pub(super) fn set(&self, nanos: u64) {
        self.state.lock().unwrap().0 = nanos;
    }

    pub(super) fn reads(&self) -> u64 {
        self.state.lock().unwrap().1
    }

    pub(super) fn instant(&self, nanos: u64) -> Instant {
        self.start + Duration::from_nanos(nanos)
    }

    pub(super) fn nanos(&self, instant: Instant) -> u64 {
        u64::try_from(instant.saturating_duration_since(self.start).as_nanos()).unwrap()
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Instant {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.start + Duration::from_nanos(state.0)
    }
}

/// A disk that answers at once.
#[derive(Debug)]
pub(super) struct EmptyNode;

pub(super) const SIZE: DiskSize = DiskSize(ByteCount(1 << 40));

impl Node for EmptyNode {
    fn name(&self) -> &'static str {
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
        Ok(Box::new(EmptyLane))
    }
}

#[derive(Debug)]
struct EmptyLane;

impl LeafLane for EmptyLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        assert_ne!(mapping.answer, Answer::Held, "asked about what is held above");
        mapping.answer = Answer::Now(pieces.none());
    }
}

/// Limits as `iops-total=5,bps-read-max=7`.
pub(super) fn limits(text: &str) -> ThrottleLimits {
    let mut settings = ThrottleSettings::default();
    for (key, value) in text.split(',').filter_map(|part| part.split_once('=')) {
        let value = value.parse().unwrap();
        let kind = LimitKind::ALL.into_iter().find(|kind| key.starts_with(kind.name()));
        let Some(kind) = kind else {
            assert_eq!(key, "iops-size");
            settings.iops_size = value;
            continue;
        };
        let limit = settings.limit_mut(kind);
        match key.strip_prefix(kind.name()).unwrap() {
            "" => limit.rate = value,
            "-max" => limit.burst = value,
            "-max-length" => limit.burst_seconds = value,
            other => panic!("{other}"),
        }
    }
    ThrottleLimits::check(settings).unwrap()
}

pub(super) fn group(text: &str, clock: &Arc<FakeClock>) -> Arc<ThrottleGroup> {
    ThrottleGroup::new("group", limits(text), Arc::clone(clock) as Arc<dyn Clock>)
}

pub(super) fn disk(group: &Arc<ThrottleGroup>) -> ThrottleNode {
    let below = Child::new(Arc::new(EmptyNode));
    ThrottleNode::new("disk", below, Arc::clone(group), Access::ReadWrite)
}

pub(super) fn extent(bytes: u64) -> Extent {
    SIZE.check(ByteOffset(0), ByteCount(bytes)).unwrap()
}

pub(super) fn read(bytes: u64) -> Operation {
    Operation::Read(extent(bytes))
}

pub(super) fn write(bytes: u64) -> Operation {
    Operation::Write(extent(bytes), Durability::Cached)
}

/// What one iothread's guest does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Of which disk, in the order in which they were made.
    pub(super) disk: usize,
    /// How many requests it keeps in flight.
    pub(super) depth: u32,
    /// How long the disk below takes for each, in nanoseconds.
    pub(super) service: u64,
    /// Every other request is a write if there are two.
    pub(super) operations: [Operation; 2],
}

impl Load {
    pub(super) fn reads(disk: usize, depth: u32, bytes: u64) -> Self {
        let operations = [read(bytes), read(bytes)];
        Self { disk, depth, service: 20 * MICROSECOND, operations }
    }
}

/// What passed of one load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Passed {
    pub(super) operations: u64,
    pub(super) writes: u64,
    pub(super) bytes: u64,
}

#[derive(Debug)]
struct Thread {
    load: Load,
    lane: Box<dyn Lane>,
    waiting: HashSet<Token>,
    count: u32,
    wake: Option<u64>,
    passed: Passed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request of that thread has ended; it makes the next one.
    Ended(usize, u32),
    Wake(usize),
}

/// Some loads on the disks of one group.
#[derive(Debug)]
pub(super) struct Simulation {
    pub(super) clock: Arc<FakeClock>,
    pub(super) group: Arc<ThrottleGroup>,
    disks: Vec<ThrottleNode>,
    threads: Vec<Thread>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// How late a wake may be.
    late_max: u64,
    random: u64,
    sequence: u64,
    now: u64,
}

impl Simulation {
    pub(super) fn new(limits: &str, late_max: u64, loads: &[Load]) -> Self {
        let clock = FakeClock::new();
        let group = group(limits, &clock);
        let disks: Vec<_> =
            (0..=loads.iter().map(|load| load.disk).max().unwrap()).map(|_| disk(&group)).collect();
        let mut simulation = Self {
            clock,
            group,
            disks,
            threads: Vec::new(),
            events: BinaryHeap::new(),
            late_max,
            random: 0x9e37_79b9_7f4a_7c15,
            sequence: 0,
            now: 0,
        };
        for load in loads {
            simulation.start(*load);
        }
        simulation
    }

    /// Starts a load now.
    pub(super) fn start(&mut self, load: Load) {
        let lane = self.disks[load.disk].open_lane(&LaneContext::idle()).unwrap();
        let (waiting, passed) = (HashSet::new(), Passed::default());
        self.threads.push(Thread { load, lane, waiting, count: 0, wake: None, passed });
        let number = self.threads.len() - 1;
        self.submit(number, load.depth);
    }

    /// Goes on until then, and says what has passed of each load since the last call.
    pub(super) fn run_until(&mut self, end: u64) -> Vec<Passed> {
        while let Some(Reverse((at, _, event))) = self.events.peek().copied() {
            if at > end {
                break;
            }
            self.events.pop();
            self.now = at;
            self.clock.set(at);
            match event {
                Event::Ended(number, count) => {
                    self.resume(number);
                    self.submit(number, count);
                }
                Event::Wake(number) => {
                    self.threads[number].wake = None;
                    self.resume(number);
                }
            }
        }
        self.now = end;
        self.clock.set(end);
        self.threads.iter_mut().map(|thread| std::mem::take(&mut thread.passed)).collect()
    }

    /// Makes due what the load's lane holds, as a stop does.
    pub(super) fn release(&mut self, number: usize) {
        self.threads[number].lane.release();
        self.resume(number);
    }

    /// How many requests of the load are held.
    pub(super) fn held(&self, number: usize) -> usize {
        self.threads[number].waiting.len()
    }

    /// Ends a load without warning, whatever it waits for.
    pub(super) fn kill(&mut self, number: usize) {
        let events = std::mem::take(&mut self.events).into_iter();
        let others = events.filter(|Reverse((_, _, event))| match event {
            Event::Ended(of, _) | Event::Wake(of) => *of != number,
        });
        self.events = others.collect();
        let thread = &mut self.threads[number];
        thread.waiting.clear();
        // A lane of a node that nobody looks at.
        thread.lane = EmptyNode.open_lane(&LaneContext::idle()).unwrap();
    }

    fn submit(&mut self, number: usize, count: u32) {
        let thread = &mut self.threads[number];
        let mut batch = Vec::new();
        for _ in 0..count {
            let operation = thread.load.operations[thread.count as usize % 2];
            batch.push(Mapping::new(Token(thread.count), operation));
            thread.count += 1;
        }
        let mut pieces = BatchPieces::default();
        thread.lane.map(&mut batch, &mut pieces);
        let mut passed = 0;
        for mapping in &batch {
            match mapping.answer {
                Answer::Now(_) => {
                    thread.pass(mapping);
                    passed += 1;
                }
                Answer::Held => assert!(thread.waiting.insert(mapping.token)),
                Answer::Refused(kind) => panic!("{kind:?}"),
            }
        }
        self.end_later(number, passed);
        self.wake_later(number);
    }

    fn resume(&mut self, number: usize) {
        let now = self.clock.instant(self.now);
        let thread = &mut self.threads[number];
        if thread.lane.due().is_none_or(|due| due.at > now) {
            self.wake_later(number);
            return;
        }
        let (mut late, mut pieces) = (Vec::new(), BatchPieces::default());
        thread.lane.resume(now, &mut late, &mut pieces);
        for mapping in &late {
            assert!(matches!(mapping.answer, Answer::Now(_)), "{mapping:?}");
            assert!(thread.waiting.remove(&mapping.token), "{mapping:?} was not held");
            thread.pass(mapping);
        }
        self.end_later(number, u32::try_from(late.len()).unwrap());
        self.wake_later(number);
    }

    /// Those that have passed end together.
    fn end_later(&mut self, number: usize, count: u32) {
        if count > 0 {
            let at = self.now + self.threads[number].load.service;
            self.push(at, Event::Ended(number, count));
        }
    }

    /// Nothing is held without a time at which it is looked at again.
    fn wake_later(&mut self, number: usize) {
        let thread = &self.threads[number];
        let due = thread.lane.due();
        assert_eq!(due.is_some(), !thread.waiting.is_empty(), "{thread:?}");
        let Some(due) = due else { return };
        let due = self.clock.nanos(due.at);
        assert!(due <= self.now + 50 * MILLISECOND, "{due} is much later than {}", self.now);
        let due = due.max(self.now);
        if thread.wake.is_none_or(|wake| wake > due + self.late_max) {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            let at = due + if self.late_max == 0 { 0 } else { self.random % self.late_max };
            self.threads[number].wake = Some(at);
            self.push(at, Event::Wake(number));
        }
    }

    fn push(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }
}

impl Thread {
    fn pass(&mut self, mapping: &Mapping) {
        self.passed.operations += 1;
        self.passed.writes += u64::from(mapping.operation.is_change());
        self.passed.bytes += mapping.operation.extent().unwrap().count().0;
    }
}
