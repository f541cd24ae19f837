//! One iothread's handle on a recorder.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bitmaps::{NodeBitmaps, RecordingBitmaps};
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
    bitmaps: Arc<NodeBitmaps>,
    /// Those that record, as far as this lane knows.
    recording: RecordingBitmaps,
}

impl RecorderLane {
    pub(super) fn new(below: Box<dyn Lane>, bitmaps: Arc<NodeBitmaps>) -> Self {
        let (changes, recording) = (InFlightChanges::default(), RecordingBitmaps::default());
        Self { below, changes, bitmaps, recording }
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

    /// These bytes may have been changed.
    fn record(&mut self, bytes: &Range<u64>) {
        self.look();
        self.recording.set(bytes);
    }

    /// The lane below has answered.
    fn answered(&mut self, answered: &mut [Mapping]) {
        for mapping in answered {
            if let Some(bytes) = self.changes.answered(mapping) {
                self.record(&bytes);
            }
        }
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
        let (told, ended) = self.changes.completed(&mut *self.below, token, outcome);
        if let Some(bytes) = ended {
            self.record(&bytes);
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
