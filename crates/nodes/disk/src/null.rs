//! A disk of any size that stores nothing (driver `null-co`), to measure what is above it.
//!
//! Every request may take a fixed time. What it answers after that, it answers as if it had just come.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{
    Access, Answer, BatchPieces, BlockLimits, ByteCount, Claim, ClaimError, Clock, DelayQueue,
    DiskSize, FailKind, Lane, LaneCompletionDecision, LaneContext, LaneError, LeafLane, Mapping,
    Node, Operation, Outcome, Piece, Rights, Target, Token, WakeTime,
};

/// What reads from a null disk do (`read-zeroes=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadContent {
    /// They leave the guest's memory as it is.
    Untouched,
    /// They return zeroes.
    Zeroes,
}

/// A disk that stores nothing.
#[derive(Debug)]
pub struct NullNode {
    name: String,
    size: DiskSize,
    access: Access,
    content: ReadContent,
    /// How long each request takes, if not no time, and what tells it.
    latency: Option<(Duration, Arc<dyn Clock>)>,
}

impl NullNode {
    /// A null disk of that size.
    pub fn new(name: &str, size: DiskSize, access: Access, content: ReadContent) -> Self {
        Self { name: name.to_owned(), size, access, content, latency: None }
    }

    /// Has every request take so long (`latency-ns=`).
    #[must_use]
    pub fn with_latency(self, latency: Duration, clock: Arc<dyn Clock>) -> Self {
        Self { latency: (!latency.is_zero()).then_some((latency, clock)), ..self }
    }
}

impl Node for NullNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.size
    }

    fn limits(&self) -> BlockLimits {
        let block = NonZeroU32::new(512).expect("512 is not zero");
        BlockLimits {
            request_alignment: block,
            physical_block: block,
            discard: true,
            discard_granularity: block,
            allocation_unit: block,
        }
    }

    fn access(&self) -> Access {
        self.access
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    /// Nobody else can reach it.
    fn claim(&self, _: Rights) -> Result<Claim, ClaimError> {
        Ok(Claim::nothing())
    }

    fn open_lane(&self, _: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let target = match self.content {
            ReadContent::Untouched => Target::Nothing,
            ReadContent::Zeroes => Target::Zeroes,
        };
        let lane = NullLane { target, access: self.access };
        Ok(match &self.latency {
            None => Box::new(lane),
            Some((latency, clock)) => Box::new(NullLatencyLane {
                answers: lane,
                latency: *latency,
                clock: Arc::clone(clock),
                held: DelayQueue::default(),
            }),
        })
    }
}

/// One iothread's handle on a [`NullNode`].
#[derive(Debug)]
struct NullLane {
    target: Target,
    access: Access,
}

impl LeafLane for NullLane {
    fn answer(&mut self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let refused = mapping.operation.is_change() && self.access == Access::ReadOnly;
        mapping.answer = if refused {
            Answer::Refused(FailKind::ReadOnly)
        } else {
            let count = mapping.operation.extent().map_or(ByteCount(0), |extent| extent.count());
            Answer::Now(pieces.one(Piece { skip: 0, count, target: self.target.clone() }))
        };
    }
}

/// The lane of a null disk whose requests take a fixed time (`latency-ns=`).
#[derive(Debug)]
struct NullLatencyLane {
    answers: NullLane,
    latency: Duration,
    clock: Arc<dyn Clock>,
    held: DelayQueue,
}

impl Lane for NullLatencyLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        let now = self.clock.now();
        for mapping in batch {
            // As in QEMU: it is no I/O.
            if let Operation::Status(_) = mapping.operation {
                self.answers.answer(mapping, pieces);
            } else {
                self.held.hold(mapping, now, now + self.latency);
            }
        }
    }

    fn due(&self) -> Option<WakeTime> {
        self.held.due().map(|at| WakeTime { at, slack: Duration::ZERO })
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        while let Some(mut mapping) = self.held.take(now) {
            self.answers.answer(&mut mapping, pieces);
            late.push(mapping);
        }
    }

    fn release(&mut self) {
        self.held.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        self.answers.completed(token, outcome)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use block::{ByteOffset, Durability, SystemClock};

    /// A clock that stands still until it is told.
    #[derive(Debug)]
    struct Hand(Mutex<Instant>);

    impl Clock for Hand {
        fn now(&self) -> Instant {
            *self.0.lock().unwrap()
        }
    }

    fn batch(node: &NullNode) -> [Mapping; 3] {
        let extent = node.size().check(ByteOffset(0), ByteCount(512)).unwrap();
        let write = Operation::Write(extent, Durability::Cached);
        let mut tokens = (0..).map(Token);
        [Operation::Read(extent), write, Operation::Flush]
            .map(|operation| Mapping::new(tokens.next().unwrap(), operation))
    }

    fn null(access: Access) -> NullNode {
        NullNode::new("null", DiskSize(ByteCount(4096)), access, ReadContent::Zeroes)
    }

    #[test]
    fn every_request_takes_its_latency_and_is_answered_then() {
        let clock = Arc::new(Hand(Mutex::new(SystemClock.now())));
        let (start, latency) = (clock.now(), Duration::from_micros(100));
        let node = null(Access::ReadOnly).with_latency(latency, clock.clone());
        let (mut lane, mut list, mut late) =
            (node.open_lane(&LaneContext::idle()).unwrap(), BatchPieces::default(), Vec::new());
        let mut asked = batch(&node);
        lane.map(&mut asked, &mut list);
        assert!(asked.iter().all(|mapping| mapping.answer == Answer::Held));
        assert_eq!(lane.due(), Some(WakeTime { at: start + latency, slack: Duration::ZERO }));
        lane.resume(start + latency - Duration::from_nanos(1), &mut late, &mut list);
        assert!(late.is_empty());
        lane.resume(start + latency, &mut late, &mut list);
        let tokens: Vec<_> = late.iter().map(|mapping| mapping.token.0).collect();
        assert_eq!(tokens, [0, 1, 2]);
        let Answer::Now(read) = late[0].answer else { panic!("{:?}", late[0].answer) };
        assert_eq!(
            (list.get(read)[0].count, list.get(read)[0].target.clone()),
            (ByteCount(512), Target::Zeroes)
        );
        assert_eq!(late[1].answer, Answer::Refused(FailKind::ReadOnly));
        assert_eq!(lane.due(), None);
        // Released, it does not take its time.
        lane.map(&mut asked, &mut list);
        lane.release();
        lane.resume(start, &mut late, &mut list);
        assert_eq!(late.len(), 6);
    }

    #[test]
    fn no_latency_holds_nothing() {
        let node = null(Access::ReadWrite).with_latency(Duration::ZERO, Arc::new(SystemClock));
        let (mut lane, mut asked) = (node.open_lane(&LaneContext::idle()).unwrap(), batch(&node));
        lane.map(&mut asked, &mut BatchPieces::default());
        assert!(asked.iter().all(|mapping| matches!(mapping.answer, Answer::Now(_))));
    }
}
