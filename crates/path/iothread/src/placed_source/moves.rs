//! Moves of sources between iothreads, many at once.
//!
//! Where it stands: a control thread asks every iothread concerned for all sources together, and then hears them: may it
//! leave, are there lanes for it, has it arrived. So many moves take hardly longer than one.
//!
//! Invariants: a source is taken from an iothread only when the other one has lanes for it; what cannot be moved stays
//! where it is, and the others are moved all the same.

use std::sync::{Arc, MutexGuard, mpsc};

use block::LaneError;
use request_path::LaneIndex;

use super::{MoveError, PlacedSource, Placement, SourceStopped, ask_lanes, hear_lanes, heard};
use crate::Iothread;
use crate::command::{Closure, Command, SourceClosure, answer};

/// A source that shall be served by another iothread.
#[derive(Debug, Clone)]
pub struct SourceMove {
    /// Which.
    pub source: Arc<PlacedSource>,
    /// By whom.
    pub to: Arc<Iothread>,
}

/// Moves sources to other iothreads while their clients run, each as [`PlacedSource::move_to`] does. Returns when all are
/// served where they shall be or could not be moved, with a result for each in their order. A source that is named
/// twice makes one of the moves.
pub fn move_many(moves: &[SourceMove]) -> Vec<Result<(), MoveError>> {
    let pairs: Vec<_> = moves.iter().map(|it| (&*it.source, &it.to)).collect();
    move_all(&pairs)
}

/// A move that has begun: nobody else changes where its source is until it is over.
struct PendingMove<'a> {
    // Dropped before a handle of an iothread, whose end may be waited for.
    _changes: MutexGuard<'a, ()>,
    /// Its place in the list.
    number: usize,
    source: &'a PlacedSource,
    /// Which iothread serves it.
    from: Arc<Iothread>,
    to: &'a Arc<Iothread>,
}

/// The same for sources that somebody else holds.
pub(super) fn move_all(moves: &[(&PlacedSource, &Arc<Iothread>)]) -> Vec<Result<(), MoveError>> {
    let mut results: Vec<Result<(), MoveError>> = moves.iter().map(|_| Ok(())).collect();
    let mut order: Vec<usize> = (0..moves.len()).collect();
    // The same for all who move several, so that none waits for one who waits for it.
    order.sort_by_key(|number| moves[*number].0.id.0);
    order.dedup_by_key(|number| moves[*number].0.id.0);
    let mut pending = Vec::with_capacity(order.len());
    for number in order {
        let (source, to) = moves[number];
        let changes = source.changes();
        match &*source.place() {
            Placement::Served { now, .. } if Arc::ptr_eq(now, to) => {}
            Placement::Served { now, .. } => {
                let from = Arc::clone(now);
                pending.push(PendingMove { _changes: changes, number, source, from, to });
            }
            Placement::Stopping(_) | Placement::Stopped { .. } => {
                results[number] = Err(SourceStopped.into());
            }
        }
    }
    let mut keep = |number: usize, result| match result {
        Ok(()) => true,
        Err(error) => {
            results[number] = Err(error);
            false
        }
    };
    let answers: Vec<_> = pending.iter().map(PendingMove::ask_leave).collect();
    let mut answers = answers.into_iter();
    pending.retain(|it| keep(it.number, it.hear_leave(&answers.next().expect("one for each"))));
    let asked: Vec<_> =
        pending.iter().map(|it| ask_lanes(it.to.inbox(), &it.source.nodes)).collect();
    let mut lanes = Vec::with_capacity(asked.len());
    let mut asked = asked.into_iter();
    pending.retain(|it| {
        let result = it.hear_lanes(&asked.next().expect("one for each"));
        keep(it.number, result.map(|found| lanes.push(found)))
    });
    let departed: Vec<_> =
        pending.iter().zip(lanes).map(|(it, lanes)| it.ask_depart(lanes)).collect();
    for (it, departed) in pending.into_iter().zip(departed) {
        heard(&departed);
        it.note();
    }
    results
}

impl PendingMove<'_> {
    /// Asks its front end whether it may leave.
    fn ask_leave(&self) -> mpsc::Receiver<Option<&'static str>> {
        let stays = |reply: mpsc::Sender<_>| -> SourceClosure {
            Closure(Box::new(move |source, _| answer(&reply, source.stays())))
        };
        self.source.ask(&self.from, stays)
    }

    fn hear_leave(&self, answer: &mpsc::Receiver<Option<&'static str>>) -> Result<(), MoveError> {
        let iothread = || self.from.name().to_owned();
        heard(answer).map_or(Ok(()), |why| Err(MoveError::Stays { iothread: iothread(), why }))
    }

    fn hear_lanes(
        &self,
        answer: &mpsc::Receiver<Result<Vec<LaneIndex>, LaneError>>,
    ) -> Result<Vec<LaneIndex>, MoveError> {
        let iothread = || self.to.name().to_owned();
        hear_lanes(answer, &self.source.nodes)
            .map_err(|source| MoveError::Lanes { iothread: iothread(), source })
    }

    fn ask_depart(&self, lanes: Vec<LaneIndex>) -> mpsc::Receiver<()> {
        let (id, to) = (self.source.id, Arc::clone(self.to.inbox()));
        self.from.inbox().ask(|reply| Command::Depart { id, to, lanes, reply })
    }

    /// It is served by the other one now.
    fn note(self) {
        let mut place = self.source.place();
        let Placement::Served { now, before } = &mut *place else {
            unreachable!("a stop waits for the end of a move")
        };
        // If `from` is its last handle, its end is waited for when nobody waits for this.
        *now = Arc::clone(self.to);
        let inbox = Arc::downgrade(self.from.inbox());
        before.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&inbox));
        before.push(inbox);
    }
}
