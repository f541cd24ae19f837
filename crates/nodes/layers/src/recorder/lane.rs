//! One iothread's handle on a recorder.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bitmaps::{DirtyBitmap, NodeBitmaps};
use block::{
    BatchPieces, Lane, LaneCompletionDecision, LocateQuery, Mapping, Operation, Outcome, Target,
    Token, WakeTime,
};

use crate::in_flight_changes::InFlightChanges;

/// Passes requests on, and records changes when they end.
#[derive(Debug)]
pub(super) struct RecorderLane {
    below: Box<dyn Lane>,
    changes: InFlightChanges<Range<u64>>,
    marks: Marks,
}

/// The bitmaps that record, as far as this lane knows.
#[derive(Debug)]
struct Marks {
    bitmaps: Arc<NodeBitmaps>,
    /// They are those of this number.
    generation: Option<u64>,
    recording: Vec<Arc<DirtyBitmap>>,
}

impl Marks {
    /// What these bytes are may have been changed.
    fn record(&mut self, bytes: Range<u64>) {
        if self.generation != Some(self.bitmaps.generation()) {
            self.recording.clear();
            self.generation = Some(self.bitmaps.recording(&mut self.recording));
        }
        for bits in &self.recording {
            bits.set(bytes.clone());
        }
    }
}

impl RecorderLane {
    pub(super) fn new(below: Box<dyn Lane>, bitmaps: Arc<NodeBitmaps>) -> Self {
        let marks = Marks { bitmaps, generation: None, recording: Vec::new() };
        Self { below, changes: InFlightChanges::default(), marks }
    }

    /// The lane below has answered.
    fn answered(&mut self, answered: &mut [Mapping]) {
        for mapping in answered {
            if let Some(bytes) = self.changes.answered(mapping) {
                self.marks.record(bytes);
            }
        }
    }
}

impl Lane for RecorderLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        for mapping in &*batch {
            if let Some(bytes) = changed_bytes(mapping.operation) {
                self.changes.begin(mapping.token, bytes);
            }
        }
        self.below.map(batch, pieces);
        self.answered(batch);
    }

    fn locate(&mut self, operation: Operation) -> Option<Target> {
        if operation.is_change() { None } else { self.below.locate(operation) }
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
        let (told, ended) = self.changes.completed(&mut *self.below, token, outcome);
        if let Some(bytes) = ended {
            self.marks.record(bytes);
        }
        told
    }
}

/// The bytes that an operation changes, if it is a change of any.
fn changed_bytes(operation: Operation) -> Option<Range<u64>> {
    if !operation.is_change() {
        return None;
    }
    operation.extent().map(|extent| extent.bytes()).filter(|bytes| !bytes.is_empty())
}
