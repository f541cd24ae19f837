//! One iothread's handle on a recorder.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bitmaps::{NodeBitmaps, RecordingBitmaps};
use block::{
    BatchPieces, CompletedRequest, Lane, LaneCompletionDecision, LocateQuery, Mapping, Operation,
    Outcome, Target, Token, WakeTime,
};

use crate::in_flight_changes::InFlightChanges;

/// Passes requests on, and records changes when they end.
#[derive(Debug)]
pub(super) struct RecorderLane {
    below: Box<dyn Lane>,
    changes: InFlightChanges<Range<u64>>,
    bitmaps: Arc<NodeBitmaps>,
    /// Those that record, as far as this lane knows.
    recording: RecordingBitmaps,
    /// An empty list, kept for its room.
    changed: Vec<Range<u64>>,
}

impl RecorderLane {
    pub(super) fn new(below: Box<dyn Lane>, bitmaps: Arc<NodeBitmaps>) -> Self {
        let (changes, recording) = (InFlightChanges::default(), RecordingBitmaps::default());
        Self { below, changes, bitmaps, recording, changed: Vec::new() }
    }

    /// Looks which bitmaps record.
    fn look(&mut self) {
        if !self.bitmaps.is_current(&self.recording) {
            self.recording = self.bitmaps.recording();
        }
    }

    /// Whether nothing needs to be recorded. The first bitmap is added while nothing is in flight.
    fn is_idle(&mut self) -> bool {
        self.look();
        self.recording.is_alone()
    }

    /// What is in the list may have been changed; it is empty then.
    fn record(&mut self) {
        if self.changed.is_empty() {
            return;
        }
        self.look();
        self.recording.set(&self.changed);
        self.changed.clear();
    }

    /// The lane below has answered.
    fn answered(&mut self, answered: &mut [Mapping]) {
        for mapping in answered {
            self.changed.extend(self.changes.answered(mapping));
        }
        self.record();
    }

    /// A request of the lane below, or a change, is over, or is held again; what was changed is put in the list.
    fn over(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let (decision, ended) = self.changes.completed(&mut *self.below, token, outcome);
        self.changed.extend(ended);
        decision
    }
}

impl Lane for RecorderLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        if self.is_idle() {
            return self.below.map(batch, pieces);
        }
        for mapping in &*batch {
            if let Some(bytes) = changed_bytes(mapping.operation) {
                self.changes.begin(mapping.token, bytes);
            }
        }
        self.below.map(batch, pieces);
        self.answered(batch);
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        if operation.is_change() && !self.is_idle() { None } else { self.below.locate(operation) }
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
        self.answered(&mut late[first..]);
    }

    fn release(&mut self) {
        self.below.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        let decision = self.over(token, outcome);
        self.record();
        decision
    }

    fn completed_together(&mut self, completed: &mut [CompletedRequest]) {
        for request in completed {
            request.decision = self.over(request.token, request.outcome);
        }
        self.record();
    }
}

/// The bytes that an operation changes, if it is a change of any.
fn changed_bytes(operation: Operation) -> Option<Range<u64>> {
    if !operation.is_change() {
        return None;
    }
    operation.extent().map(|extent| extent.bytes()).filter(|bytes| !bytes.is_empty())
}

#[cfg(test)]
mod tests {
    use bitmaps::{Granularity, NewBitmap, Persistence, Recording};
    use block::{
        AfterPiecesAction, Answer, ByteCount, ByteOffset, DiskSize, Durability, FailKind, ZeroTerms,
    };

    use super::*;

    const DISK: DiskSize = DiskSize(ByteCount(1 << 20));
    const GRANULE: u64 = 64 << 10;

    /// A lane below that holds this request again when it is told of its end.
    #[derive(Debug)]
    struct Below(Token);

    impl Lane for Below {
        fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
            for mapping in batch {
                (mapping.answer, mapping.after) =
                    (Answer::Now(pieces.none()), AfterPiecesAction::NotifyLane);
            }
        }

        fn due(&self) -> Option<WakeTime> {
            None
        }

        fn resume(&mut self, _: Instant, _: &mut Vec<Mapping>, _: &mut BatchPieces) {}

        fn release(&mut self) {}

        fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
            if token == self.0 {
                LaneCompletionDecision::HoldAgain
            } else {
                LaneCompletionDecision::Finish(outcome)
            }
        }
    }

    #[test]
    fn of_changes_that_end_together_all_are_recorded_but_those_that_are_held_again() {
        let bitmaps = NodeBitmaps::new(DISK);
        let _stays = bitmaps
            .add(&NewBitmap {
                name: "changed".to_owned(),
                granularity: Granularity::DEFAULT,
                recording: Recording::On,
                persistence: Persistence::Volatile,
            })
            .expect("there is room");
        let bits = bitmaps.bits("changed").expect("it was added");
        let mut lane = RecorderLane::new(Box::new(Below(Token(1))), bitmaps);
        let zeroes = |token: u32| {
            let extent = DISK.check(ByteOffset(u64::from(token) * GRANULE), ByteCount(512));
            let extent = extent.expect("it is inside");
            let operation = Operation::WriteZeroes(extent, ZeroTerms::KEEP, Durability::Cached);
            Mapping::new(Token(token), operation)
        };
        let mut batch = [0, 1, 2].map(zeroes);
        lane.map(&mut batch, &mut BatchPieces::default());
        assert_eq!(bits.count_granules(), 0, "nothing has ended");

        let failed = Outcome::Failed(FailKind::Io);
        let mut ended = [(0, Outcome::Done), (1, Outcome::Done), (2, failed)]
            .map(|(token, outcome)| CompletedRequest::new(Token(token), outcome));
        lane.completed_together(&mut ended);
        let decisions = ended.map(|request| request.decision);
        let [first, second, third] = decisions;
        assert_eq!(first, LaneCompletionDecision::Finish(Outcome::Done));
        assert_eq!(second, LaneCompletionDecision::HoldAgain);
        assert_eq!(third, LaneCompletionDecision::Finish(failed));
        let marked = [0, 1, 2].map(|granule| bits.is_dirty(granule * GRANULE));
        assert_eq!(marked, [true, false, true]);
    }
}
