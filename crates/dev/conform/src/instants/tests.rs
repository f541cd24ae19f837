//! What a snapshot must not do, planted, and found.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use block::{
    AfterPiecesAction, Answer, BatchPieces, Child, Lane, LaneCompletionDecision, LaneContext,
    LaneError, Mapping, Operation, Outcome, Token, WakeTime,
};
use layers::SnapshotState;
use testkit::conformance::instant::InstantTally;

use super::*;

/// A node with a second way beside it, past what it does.
#[derive(Debug)]
struct ForkNode {
    kept: Arc<dyn Node>,
    child: Arc<Child>,
    fault: Fault,
}

/// What is planted.
#[derive(Debug, Clone)]
enum Fault {
    /// A change is carried out, then what it changes is copied, then it is carried out once more.
    CopyAfterWrite,
    /// What only the source has is read there, whatever guests do meanwhile.
    ReadUnlocked(Arc<SnapshotState>),
}

#[derive(Debug)]
struct ForkLane {
    kept: Box<dyn Lane>,
    past: Box<dyn Lane>,
    io: LaneContext,
    fault: Fault,
    /// The requests that have gone past.
    is_past: HashMap<Token, Mapping>,
    again: Vec<Mapping>,
}

impl Node for ForkNode {
    testkit::same_node_as!(kept);

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let (kept, past) = (self.kept.open_lane(io)?, self.child.node().open_lane(io)?);
        let (fault, is_past, again) = (self.fault.clone(), HashMap::new(), Vec::new());
        Ok(Box::new(ForkLane { kept, past, io: io.clone(), fault, is_past, again }))
    }
}

impl ForkLane {
    fn goes_past(&self, operation: Operation) -> bool {
        match (&self.fault, operation) {
            (Fault::CopyAfterWrite, Operation::Write(..)) => true,
            (Fault::ReadUnlocked(state), Operation::Read(extent)) => {
                let bytes: Range<u64> = extent.bytes();
                state.next_pending(bytes.clone()) == Some(bytes)
            }
            _ => false,
        }
    }
}

impl Lane for ForkLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in batch {
            let one = std::slice::from_mut(mapping);
            if !self.goes_past(one[0].operation) {
                self.kept.map(one, pieces);
                continue;
            }
            let asked = one[0];
            self.past.map(one, pieces);
            assert!(matches!(one[0].answer, Answer::Now(_)), "a file answers at once");
            if let Operation::Write(..) = asked.operation {
                one[0].after = AfterPiecesAction::NotifyLane;
                self.is_past.insert(asked.token, asked);
            }
        }
    }

    fn due(&self) -> Option<WakeTime> {
        WakeTime::first(self.kept.due(), self.past.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let mut again = std::mem::take(&mut self.again);
        if !again.is_empty() {
            self.kept.map(&mut again, pieces);
        }
        late.extend(again.into_iter().filter(|mapping| mapping.answer != Answer::Held));
        self.kept.resume(now, late, pieces);
    }

    fn release(&mut self) {
        self.kept.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let Some(mapping) = self.is_past.remove(&token) else {
            return self.kept.completed(token, outcome);
        };
        self.again.push(mapping);
        self.io.waker().wake_by_ref();
        LaneCompletionDecision::HoldAgain
    }
}

fn played(seed: u64, plant: &dyn Fn(&mut InstantNodes, Fork)) -> Result<InstantTally> {
    play_instant(seed, &|parts| {
        let source = Arc::clone(&parts.source);
        let (mut nodes, node) = make(parts)?;
        plant(&mut nodes, Fork { source, state: Arc::clone(node.state()) });
        Ok(nodes)
    })
}

/// What faults are made of.
struct Fork {
    source: Arc<Child>,
    state: Arc<SnapshotState>,
}

#[test]
fn a_snapshot_stays_equal_to_its_instant() {
    let mut all = InstantTally::default();
    for seed in 0..300 {
        let one = played(seed, &|_, _| {}).unwrap_or_else(|error| panic!("{error:#}"));
        all.judged += one.judged;
        all.failed += one.failed;
        all.broken += one.broken;
    }
    assert!(all.judged > 10_000 && all.failed > 300 && all.broken > 10, "{all:?}");
}

#[track_caller]
fn check_found(plant: &dyn Fn(&mut InstantNodes, Fork)) {
    let errors: Vec<String> =
        (0..60).filter_map(|seed| played(seed, plant).err()).map(|it| format!("{it:#}")).collect();
    let is_wrong_byte = |error: &&String| error.contains(" and was ");
    let found = errors.iter().filter(is_wrong_byte).count();
    assert!(found > 0, "{errors:?}");
}

#[test]
fn a_copy_after_the_write_is_found() {
    check_found(&|nodes, Fork { source: child, .. }| {
        let (kept, fault) = (Arc::clone(&nodes.guest), Fault::CopyAfterWrite);
        nodes.guest = Arc::new(ForkNode { kept, child, fault });
    });
}

#[test]
fn a_read_of_the_source_without_a_lock_is_found() {
    check_found(&|nodes, Fork { source: child, state }| {
        let (kept, fault) = (Arc::clone(&nodes.snapshot), Fault::ReadUnlocked(state));
        nodes.snapshot = Arc::new(ForkNode { kept, child, fault });
    });
}
