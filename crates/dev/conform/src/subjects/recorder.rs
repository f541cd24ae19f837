//! What records changes in bitmaps: the child's bytes. A layer above cleans a bitmap at the last moment, when a change has
//! ended below and the recorder is about to hear of it: what is not marked then, when its client is told, would be lost.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use bitmaps::{DirtyBitmap, Granularity, NewBitmap, NodeBitmaps, Persistence, Recording};
use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, BlockLimits, Claim, ClaimError, DiskSize,
    FailKind, Lane, LaneCompletionDecision, LaneContext, LaneError, LocateQuery, Mapping, Node,
    Operation, Outcome, Rights, Target, Token, WakeTime,
};
use layers::RecorderNode;
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::rng::Rng;

#[derive(Debug)]
pub(crate) struct Recorder;

impl Subject for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn children(&self) -> (usize, usize) {
        (1, 1)
    }

    fn choose(&self, rng: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
        let granularity = Granularity::new(512 << rng.below(9))?;
        Some(Arc::new(ChosenRecorder { size: below.size, granularity }))
    }
}

#[derive(Clone, Copy, Debug)]
struct ChosenRecorder {
    size: u64,
    granularity: Granularity,
}

impl ChosenRecorder {
    fn bitmaps(&self, child: &dyn Node) -> Result<(Arc<NodeBitmaps>, Arc<DirtyBitmap>)> {
        let bitmaps = NodeBitmaps::new(child.size());
        let (recording, persistence) = (Recording::On, Persistence::Volatile);
        let (name, granularity) = ("b".to_owned(), self.granularity);
        let _undo = bitmaps.add(&NewBitmap { name, granularity, recording, persistence })?;
        let bits = bitmaps.bits("b")?;
        Ok((bitmaps, bits))
    }
}

impl Chosen for ChosenRecorder {
    fn describe(&self) -> String {
        format!("granularity {}", self.granularity.bytes())
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::Child(0, at)
    }

    fn is_told_of_ends(&self) -> bool {
        true
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let child = Arc::clone(parts.children.first().context("what is below")?);
        let (bitmaps, bits) = self.bitmaps(&*child.node())?;
        let recorder = Arc::new(RecorderNode::new(child, bitmaps));
        Ok(Arc::new(WitnessNode::over(parts.name, recorder, bits)))
    }
}

/// A layer that looks whether what ended is recorded.
#[derive(Debug)]
struct WitnessNode {
    name: String,
    recorder: Arc<dyn Node>,
    bits: Arc<DirtyBitmap>,
    /// One lane at a time cleans and looks.
    turn: Arc<Mutex<()>>,
}

impl WitnessNode {
    fn over(name: &str, recorder: Arc<dyn Node>, bits: Arc<DirtyBitmap>) -> Self {
        Self { name: name.to_owned(), recorder, bits, turn: Arc::default() }
    }
}

impl Node for WitnessNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.recorder.size()
    }

    fn limits(&self) -> BlockLimits {
        self.recorder.limits()
    }

    fn access(&self) -> Access {
        self.recorder.access()
    }

    fn flush(&self) -> std::io::Result<()> {
        self.recorder.flush()
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        self.recorder.claim(rights)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let below = self.recorder.open_lane(io)?;
        let (bits, turn) = (Arc::clone(&self.bits), Arc::clone(&self.turn));
        Ok(Box::new(WitnessLane { below, bits, turn, changes: HashMap::new() }))
    }
}

#[derive(Debug)]
struct WitnessLane {
    below: Box<dyn Lane>,
    bits: Arc<DirtyBitmap>,
    turn: Arc<Mutex<()>>,
    /// Changes that have not ended, and whether the recorder wants to be told.
    changes: HashMap<Token, (Range<u64>, AfterPiecesAction)>,
}

impl WitnessLane {
    /// Whether all of these bytes are marked.
    fn are_marked(bits: &DirtyBitmap, bytes: &Range<u64>) -> bool {
        bits.next_dirty(bytes.clone()).is_some_and(|dirty| dirty == *bytes)
    }

    /// The recorder has answered.
    fn answered(&mut self, mapping: &mut Mapping) {
        let Some((bytes, below)) = self.changes.get_mut(&mapping.token) else { return };
        match mapping.answer {
            Answer::Held => {}
            Answer::Now(_) => {
                *below = std::mem::replace(&mut mapping.after, AfterPiecesAction::NotifyLane);
            }
            Answer::Refused(kind) => {
                let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
                // No error that anything below has: it is found.
                if !Self::are_marked(&self.bits, bytes) && kind != FailKind::ReadOnly {
                    mapping.answer = Answer::Refused(FailKind::ReadOnly);
                }
                self.changes.remove(&mapping.token);
            }
        }
    }
}

impl Lane for WitnessLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in &*batch {
            let bytes = mapping.operation.extent().map(|extent| extent.bytes());
            if let Some(bytes) = bytes.filter(|it| mapping.operation.is_change() && !it.is_empty())
            {
                self.changes.insert(mapping.token, (bytes, AfterPiecesAction::Finish));
            }
        }
        self.below.map(batch, pieces);
        batch.iter_mut().for_each(|mapping| self.answered(mapping));
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        let located = self.below.locate(operation);
        assert!(located.is_none() || !operation.is_change(), "a change passes the recorder");
        located
    }

    fn locate_reads(&mut self, queries: &mut [LocateQuery]) {
        self.below.locate_reads(queries);
    }

    fn due(&self) -> Option<WakeTime> {
        self.below.due()
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let first = late.len();
        self.below.resume(now, late, pieces);
        late[first..].iter_mut().for_each(|mapping| self.answered(mapping));
    }

    fn release(&mut self) {
        self.below.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let Some((bytes, below)) = self.changes.get(&token).cloned() else {
            return self.below.completed(token, outcome);
        };
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // A job that copies what is dirty can do this just now.
        self.bits.clear(bytes.clone());
        let told = match below {
            AfterPiecesAction::NotifyLane => self.below.completed(token, outcome),
            AfterPiecesAction::Finish => LaneCompletionDecision::Finish(outcome),
        };
        if told == LaneCompletionDecision::HoldAgain {
            return told;
        }
        self.changes.remove(&token);
        if Self::are_marked(&self.bits, &bytes) {
            return told;
        }
        LaneCompletionDecision::Finish(Outcome::Failed(FailKind::ReadOnly))
    }
}

#[cfg(test)]
mod tests {
    use block::Child;
    use testkit::conformance::play::play;
    use testkit::conformance::stack::Which;

    use super::*;

    /// A recorder that marks what it is asked to change before it asks below.
    #[derive(Debug)]
    struct HastyNode {
        child: Arc<Child>,
        bits: Arc<DirtyBitmap>,
    }

    impl Node for HastyNode {
        fn name(&self) -> &str {
            "hasty"
        }

        fn size(&self) -> DiskSize {
            self.child.node().size()
        }

        fn limits(&self) -> BlockLimits {
            self.child.node().limits()
        }

        fn access(&self) -> Access {
            self.child.node().access()
        }

        fn flush(&self) -> std::io::Result<()> {
            self.child.node().flush()
        }

        fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
            self.child.node().claim(rights)
        }

        fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
            let below = self.child.node().open_lane(io)?;
            Ok(Box::new(HastyLane { below, bits: Arc::clone(&self.bits) }))
        }
    }

    #[derive(Debug)]
    struct HastyLane {
        below: Box<dyn Lane>,
        bits: Arc<DirtyBitmap>,
    }

    impl Lane for HastyLane {
        fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
            for mapping in batch.iter().filter(|it| it.operation.is_change()) {
                self.bits.set(mapping.operation.extent().map_or(0..0, |it| it.bytes()));
            }
            self.below.map(batch, pieces);
        }

        block::pass_on_to!(below);
    }

    #[derive(Debug)]
    struct Hasty;

    #[derive(Debug)]
    struct ChosenHasty(ChosenRecorder);

    impl Subject for Hasty {
        fn name(&self) -> &'static str {
            "hasty"
        }

        fn children(&self) -> (usize, usize) {
            (1, 1)
        }

        fn choose(&self, _: &mut Rng, below: &Shape) -> Option<Arc<dyn Chosen>> {
            let granularity = Granularity::DEFAULT;
            Some(Arc::new(ChosenHasty(ChosenRecorder { size: below.size, granularity })))
        }
    }

    impl Chosen for ChosenHasty {
        fn describe(&self) -> String {
            self.0.describe()
        }

        fn size(&self) -> u64 {
            self.0.size()
        }

        fn home(&self, at: u64) -> Home {
            self.0.home(at)
        }

        fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
            let child = Arc::clone(parts.children.first().context("what is below")?);
            let (_, bits) = self.0.bitmaps(&*child.node())?;
            let recorder = Arc::new(HastyNode { child, bits: Arc::clone(&bits) });
            Ok(Arc::new(WitnessNode::over(parts.name, recorder, bits)))
        }
    }

    #[test]
    fn a_mark_before_the_change_is_found() {
        let played = |subject: Arc<dyn Subject>, seed| {
            play(seed, &[Arc::clone(&subject)], Which::Alone(&*subject))
        };
        for seed in 0..100 {
            played(Arc::new(Recorder), seed).unwrap_or_else(|error| panic!("{error:#}"));
        }
        let errors = (0..100).filter(|seed| played(Arc::new(Hasty), *seed).is_err()).count();
        assert!(errors > 90, "only {errors} of 100 stacks with a mark before the change are found");
    }
}
