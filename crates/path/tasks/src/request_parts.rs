//! What lanes below have answered for a request of a guest, and what they still hold of it.
//!
//! Where it stands in the life of a request: its task asks for one part after the other and has them carried
//! out (`qcow2::lane_core`), in one round or in several.
//!
//! Invariants: a lane below that asked to be told is told when its part was carried out, or was not. Before
//! that the task waits for nothing else: the lane may keep others waiting until it is told, also
//! other parts of the same request.
//! Threads: belongs to one task.

use std::ops::Range;
use std::task::Poll;

use block::{BufferCopyPolicy, FailKind, Operation, Outcome, Piece, Target};

use crate::child_io::{
    AsyncChild, ChildMapAnswer, ChildMapReply, CompletionNotice, HeldChildOperation, NoticeReply,
    extent,
};

/// The parts of one guest request: answers of child lanes to carry out, and parts that child lanes still hold.
#[derive(Debug)]
pub struct RequestParts {
    /// Answered, and not carried out yet.
    pieces: Vec<Piece>,
    /// How much memory is kept for them, in bytes.
    kept: usize,
    /// Where they begin in the request, of parts to be told of when the pieces were carried out.
    notice: Vec<(u64, CompletionNotice)>,
    /// Likewise of parts that are held.
    held: Vec<(u64, HeldChildOperation)>,
    failed: Option<FailKind>,
    /// How the memory of a write is used by all of them.
    memory: BufferCopyPolicy,
}

impl Default for RequestParts {
    fn default() -> Self {
        let (pieces, notice, held) = Default::default();
        Self { pieces, kept: 0, notice, held, failed: None, memory: BufferCopyPolicy::Live }
    }
}

impl RequestParts {
    /// Adds a piece that no lane below has to hear of.
    pub fn push(&mut self, piece: Piece) {
        let count = usize::try_from(piece.count.0).expect("64-bit host");
        match (&piece.target, self.pieces.last_mut()) {
            (Target::Memory { .. }, _) => self.kept += count,
            (Target::Zeroes, Some(last))
                if last.target == Target::Zeroes && last.skip + last.count.0 == piece.skip =>
            {
                last.count.0 += piece.count.0;
                return;
            }
            (Target::File { .. } | Target::Channel { .. }, Some(last))
                if last.skip + last.count.0 == piece.skip
                    && last.target.is_followed_by(last.count, &piece.target) =>
            {
                last.count.0 += piece.count.0;
                return;
            }
            (
                Target::Zeroes
                | Target::Nothing
                | Target::File { .. }
                | Target::Channel { .. }
                | Target::Status(_),
                _,
            ) => {}
        }
        self.pieces.push(piece);
    }

    /// Adds what a lane below has answered for the part that begins there in the request.
    pub fn add(&mut self, skip: u64, reply: Result<ChildMapReply, FailKind>) {
        match reply {
            Ok(ChildMapReply::Found(found)) => self.found(skip, found),
            Ok(ChildMapReply::Held(waiting)) => self.held.push((skip, waiting)),
            Err(kind) => self.fail(kind),
        }
    }

    /// Asks a child where bytes of it are that begin there in the request.
    pub fn ask(
        &mut self,
        storage: &AsyncChild,
        operation: Operation,
        skip: u64,
        bytes: Range<u64>,
    ) {
        match extent(bytes).map(|bytes| (operation.on(bytes), bytes.count())) {
            Ok((operation, count)) => match storage.locate(operation) {
                Some(target) => self.push(Piece { skip, count, target }),
                None => self.add(skip, storage.ask(operation)),
            },
            Err(kind) => self.fail(kind),
        }
    }

    /// The request fails, whatever becomes of its parts.
    pub fn fail(&mut self, kind: FailKind) {
        self.failed.get_or_insert(kind);
    }

    /// Whether it fails.
    pub fn result(&self) -> Result<(), FailKind> {
        self.failed.map_or(Ok(()), Err)
    }

    /// How many pieces wait to be carried out, and parts to be answered.
    pub fn count(&self) -> usize {
        self.pieces.len() + self.held.len()
    }

    /// How much memory is kept for the pieces, in bytes.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Whether a lane below wants to be told: the next thing is a round.
    pub fn has_notices(&self) -> bool {
        !self.notice.is_empty()
    }

    /// Whether nothing more comes of them.
    pub fn is_over(&self) -> bool {
        self.pieces.is_empty() && self.notice.is_empty() && self.held.is_empty()
    }

    /// Takes what is to be carried out now, and how the memory of a write is used for that: nothing if the request fails.
    pub fn take_pieces(&mut self) -> (Vec<Piece>, BufferCopyPolicy) {
        if self.failed.is_some() {
            self.pieces.clear();
        }
        // Neighbours in a file go to the kernel together; what was held came late.
        if !self.pieces.is_sorted_by_key(|piece| piece.skip) {
            self.pieces.sort_by_key(|piece| piece.skip);
        }
        self.kept = 0;
        (std::mem::take(&mut self.pieces), self.memory)
    }

    /// Tells the lanes below what became of that. What they hold again is held.
    pub fn tell(&mut self, outcome: Outcome) {
        if let Outcome::Failed(kind) = outcome {
            self.fail(kind);
        }
        for (skip, notice) in std::mem::take(&mut self.notice) {
            match notice.tell(outcome) {
                NoticeReply::Finished(Outcome::Done) => {}
                NoticeReply::Finished(Outcome::Failed(kind)) => self.fail(kind),
                NoticeReply::Held(waiting) => self.held.push((skip, waiting)),
            }
        }
    }

    /// Waits until nothing is held, or somebody waits to be told.
    pub async fn settle(&mut self) {
        while self.notice.is_empty() && !self.held.is_empty() {
            let answered = std::future::poll_fn(|context| {
                for place in 0..self.held.len() {
                    if let Poll::Ready(answer) = self.held[place].1.poll(context) {
                        return Poll::Ready((place, answer));
                    }
                }
                Poll::Pending
            });
            let (place, answer) = answered.await;
            let (skip, _answered) = self.held.swap_remove(place);
            match answer {
                Ok(found) => self.found(skip, found),
                Err(kind) => self.fail(kind),
            }
        }
    }

    fn found(&mut self, skip: u64, found: ChildMapAnswer) {
        let ChildMapAnswer { pieces, notice, memory, .. } = found;
        self.memory = self.memory.and(memory);
        for piece in pieces {
            self.push(Piece { skip: skip + piece.skip, ..piece });
        }
        self.notice.extend(notice.map(|notice| (skip, notice)));
    }
}
