//! Where reads were answered, remembered by all lanes of a node, as a cache of mappings would: on purpose it forgets what ends
//! such an answer ([`super::Mischief::Remembers`]).
//!
//! Where it stands: beside the checked lanes. Each read is asked of the node as well, so it holds what a request
//! under way holds; then it is carried out where an earlier one of the same bytes was, if no change of their clusters was
//! asked for since or is under way.
//!
//! Invariants: with nothing forgotten every answer is right.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{
    Answer, BatchPieces, ByteCount, ByteOffset, FileId, Mapping, Operation, Piece, Target,
};

/// What does not end the answers that are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// Nothing: they are right.
    Nothing,
    /// Writes, which give clusters a place.
    Writes,
    /// Discards.
    Discards,
    /// Zeroings.
    Zeroings,
}

impl Forgotten {
    fn includes(self, operation: Operation) -> bool {
        match operation {
            Operation::Write(..) => self == Self::Writes,
            Operation::Discard(..) => self == Self::Discards,
            Operation::WriteZeroes(..) => self == Self::Zeroings,
            Operation::Read(_) | Operation::Status(_) | Operation::Flush => true,
        }
    }
}

/// The answers of one life. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    forgotten: Forgotten,
    /// Bytes of a cluster.
    cluster: u64,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    answers: BTreeMap<(u64, u64), Vec<Run>>,
    /// Changes that are under way: their clusters.
    changes: Vec<Range<u64>>,
}

/// A piece in a file, or of zeroes.
#[derive(Clone, Copy, Debug)]
struct Run {
    skip: u64,
    count: ByteCount,
    place: Option<(FileId, ByteOffset)>,
}

impl Run {
    /// None if it is a piece of anything else.
    fn of(piece: &Piece) -> Option<Self> {
        let place = match piece.target {
            Target::File { file, offset } => Some((file, offset)),
            Target::Zeroes => None,
            Target::Channel { .. }
            | Target::Nothing
            | Target::Memory { .. }
            | Target::Status(_) => return None,
        };
        Some(Self { skip: piece.skip, count: piece.count, place })
    }

    fn piece(self) -> Piece {
        let Self { skip, count, place } = self;
        let target = place.map_or(Target::Zeroes, |(file, offset)| Target::File { file, offset });
        Piece { skip, count, target }
    }
}

impl Remembered {
    pub(crate) fn new(forgotten: Forgotten, cluster: u64) -> Self {
        Self { forgotten, cluster, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clusters of a change that ends answers.
    fn clusters(&self, operation: Operation) -> Option<Range<u64>> {
        let bytes = operation.extent().filter(|_| !self.forgotten.includes(operation))?.bytes();
        Some(bytes.start / self.cluster..bytes.end.div_ceil(self.cluster))
    }

    /// A request is asked for.
    pub(crate) fn begin(&self, operation: Operation) {
        let Some(clusters) = self.clusters(operation) else { return };
        let cluster = self.cluster;
        let state = &mut *self.state();
        state.answers.retain(|&(start, end), _| {
            end.div_ceil(cluster) <= clusters.start || clusters.end <= start / cluster
        });
        state.changes.push(clusters);
    }

    /// It is over.
    pub(crate) fn end(&self, operation: Operation) {
        let Some(clusters) = self.clusters(operation) else { return };
        let changes = &mut self.state().changes;
        let place = changes.iter().position(|open| *open == clusters);
        changes.swap_remove(place.expect("it was begun"));
    }

    /// Answers a read as the one before was, or remembers the answer.
    pub(crate) fn answer(&self, mapping: &mut Mapping, pieces: &mut BatchPieces) {
        let (Operation::Read(extent), Answer::Now(range)) = (mapping.operation, mapping.answer)
        else {
            return;
        };
        let state = &mut *self.state();
        let Range { start, end } = extent.bytes();
        let touched = start / self.cluster..end.div_ceil(self.cluster);
        let is_changing = |open: &Range<u64>| open.start < touched.end && touched.start < open.end;
        let Some(own) = pieces.get(range).iter().map(Run::of).collect() else { return };
        if state.changes.iter().any(is_changing) {
            return;
        }
        let known: &Vec<Run> = state.answers.entry((start, end)).or_insert(own);
        let mark = pieces.end();
        known.iter().for_each(|run| pieces.push(run.piece()));
        mapping.answer = Answer::Now(pieces.since(mark));
    }
}
