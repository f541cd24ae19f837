//! What lanes below have answered for a request of a guest, and what they still hold of it.
//!
//! Where it stands in the life of a request: its task asks for one part after the other and has them carried
//! out (`qcow2::core`), in one round or in several.
//!
//! Invariants: a lane below that asked to be told is told when its part was carried out, or was not. Before
//! that the task waits for nothing else: the lane may keep others waiting until it is told, also
//! other parts of the same request.
//! Threads: belongs to one task.

use std::ops::Range;
use std::task::Poll;

use block::{FailKind, MemoryUse, Operation, Outcome, Piece, Target};

use crate::storage::{Found, Next, Reply, Storage, Telling, Waiting, extent};

/// The parts of a request.
#[derive(Debug)]
pub struct Parts {
    /// Answered, and not carried out yet.
    pieces: Vec<Piece>,
    /// How much memory is kept for them, in bytes.
    kept: usize,
    /// Where they begin in the request, of parts to be told of when the pieces were carried out.
    telling: Vec<(u64, Telling)>,
    /// Likewise of parts that are held.
    held: Vec<(u64, Waiting)>,
    failed: Option<FailKind>,
    /// How the memory of a write is used by all of them.
    memory: MemoryUse,
}

impl Default for Parts {
    fn default() -> Self {
        let (pieces, telling, held) = Default::default();
        Self { pieces, kept: 0, telling, held, failed: None, memory: MemoryUse::Live }
    }
}

impl Parts {
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
    pub fn add(&mut self, skip: u64, reply: Result<Reply, FailKind>) {
        match reply {
            Ok(Reply::Found(found)) => self.found(skip, found),
            Ok(Reply::Held(waiting)) => self.held.push((skip, waiting)),
            Err(kind) => self.fail(kind),
        }
    }

    /// Asks a child where bytes of it are that begin there in the request.
    pub fn ask(&mut self, storage: &Storage, operation: Operation, skip: u64, bytes: Range<u64>) {
        let reply = extent(bytes).and_then(|bytes| storage.ask(operation.on(bytes)));
        self.add(skip, reply);
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
    pub fn is_to_be_told(&self) -> bool {
        !self.telling.is_empty()
    }

    /// Whether nothing more comes of them.
    pub fn is_over(&self) -> bool {
        self.pieces.is_empty() && self.telling.is_empty() && self.held.is_empty()
    }

    /// Takes what is to be carried out now, and how the memory of a write is used for that: nothing if the request fails.
    pub fn take_pieces(&mut self) -> (Vec<Piece>, MemoryUse) {
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
        for (skip, telling) in std::mem::take(&mut self.telling) {
            match telling.tell(outcome) {
                Next::Over(Outcome::Done) => {}
                Next::Over(Outcome::Failed(kind)) => self.fail(kind),
                Next::Held(waiting) => self.held.push((skip, waiting)),
            }
        }
    }

    /// Waits until nothing is held, or somebody waits to be told.
    pub async fn settle(&mut self) {
        while self.telling.is_empty() && !self.held.is_empty() {
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

    fn found(&mut self, skip: u64, found: Found) {
        let Found { pieces, telling, memory, .. } = found;
        self.memory = self.memory.and(memory);
        for piece in pieces {
            self.push(Piece { skip: skip + piece.skip, ..piece });
        }
        self.telling.extend(telling.map(|telling| (skip, telling)));
    }
}
