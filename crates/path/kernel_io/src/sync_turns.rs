//! Whose turn it is to sync a file, and whom a sync that is over has served.
//!
//! Where it stands in the life of a request: a flush, or a write that has to be durable, takes a ticket
//! when it comes to its sync. Any sync of the file that begins after that makes its data durable, whoever
//! does it: so one sync serves all who came while the one before it ran.
//!
//! Invariants: syncs of one file never overlap. The kernel tells a failed write-back once per
//! description, so of two at once only one would hear of it. A ticket is over only when a sync that began
//! after it was taken has been carried out; whether that failed is remembered on the file, before the
//! guard says that it is done.
//! Threads: shared by all iothreads; the lock is held for a few instructions, never across I/O. Whoever
//! has to wait is woken when a turn ends.
//! Limits: one waiter for each thread.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::Notifier;

/// The syncs of one file.
#[derive(Debug, Default, Clone)]
pub struct SyncTurns {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Syncs that have begun. They are numbered from 1.
    begun: u64,
    /// The number of the last one that was carried out.
    done: u64,
    /// Whether somebody has the turn.
    taken: bool,
    waiting: Vec<Arc<Notifier>>,
}

/// The syncs that had begun at some moment: they may not cover what was written before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncTicket(u64);

/// What is to be done for a ticket.
#[derive(Debug)]
#[must_use = "a turn that is dropped is given back without a sync"]
pub enum SyncTurn {
    /// Nothing: a sync that began later has been carried out. The file remembers if it failed.
    Over,
    /// A sync, by whoever asks. It serves all tickets that were taken before.
    Mine(SyncGuard),
    /// Somebody else syncs, and may have begun too early. Whoever asks is woken when that is over.
    Wait,
}

impl SyncTurns {
    /// A ticket for all that has been written up to now.
    pub fn ticket(&self) -> SyncTicket {
        SyncTicket(self.lock().begun)
    }

    /// Asks what is to be done for a ticket; `waiter` is woken if that is to wait.
    pub fn try_begin(&self, ticket: SyncTicket, waiter: &Arc<Notifier>) -> SyncTurn {
        let mut state = self.lock();
        if state.done > ticket.0 {
            return SyncTurn::Over;
        }
        if state.taken {
            if !state.waiting.iter().any(|known| Arc::ptr_eq(known, waiter)) {
                state.waiting.push(Arc::clone(waiter));
            }
            return SyncTurn::Wait;
        }
        state.taken = true;
        state.begun += 1;
        SyncTurn::Mine(SyncGuard { turns: self.clone(), number: state.begun, is_done: false })
    }

    /// How many syncs have begun.
    pub fn begun(&self) -> u64 {
        self.lock().begun
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// The turn to sync a file. Dropped, it is given back as if there had been no sync.
#[derive(Debug)]
#[must_use = "the turn is over as soon as the guard is dropped"]
pub struct SyncGuard {
    turns: SyncTurns,
    number: u64,
    is_done: bool,
}

impl SyncGuard {
    /// The sync was carried out after the turn was given. If it failed, the file remembers that already
    /// ([`crate::OpenFile::remember_failed_sync`]).
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for SyncGuard {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.taken = false;
        if self.is_done {
            state.done = self.number;
        }
        for waiter in state.waiting.drain(..) {
            waiter.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rig {
        turns: SyncTurns,
        bell: Arc<Notifier>,
    }

    impl Rig {
        fn new() -> Self {
            Self { turns: SyncTurns::default(), bell: Arc::new(Notifier::new().unwrap()) }
        }

        #[track_caller]
        fn begin(&self, ticket: SyncTicket) -> SyncGuard {
            match self.turns.try_begin(ticket, &self.bell) {
                SyncTurn::Mine(guard) => guard,
                other @ (SyncTurn::Over | SyncTurn::Wait) => panic!("{other:?}"),
            }
        }

        #[track_caller]
        fn check_waits(&self, ticket: SyncTicket) {
            assert!(matches!(self.turns.try_begin(ticket, &self.bell), SyncTurn::Wait));
        }

        #[track_caller]
        fn check_over(&self, ticket: SyncTicket) {
            assert!(matches!(self.turns.try_begin(ticket, &self.bell), SyncTurn::Over));
        }
    }

    #[test]
    fn one_sync_serves_all_who_came_before_it_began() {
        let rig = Rig::new();
        let early = [rig.turns.ticket(), rig.turns.ticket()];
        let guard = rig.begin(early[0]);
        rig.check_waits(early[1]);
        guard.done();
        early.into_iter().for_each(|ticket| rig.check_over(ticket));
    }

    /// It may not cover what was written while it ran.
    #[test]
    fn a_sync_that_had_begun_serves_nobody_who_came_after() {
        let rig = Rig::new();
        let running = rig.begin(rig.turns.ticket());
        let late = [rig.turns.ticket(), rig.turns.ticket()];
        rig.check_waits(late[0]);
        running.done();
        let next = rig.begin(late[1]);
        rig.check_waits(late[0]);
        next.done();
        late.into_iter().for_each(|ticket| rig.check_over(ticket));
        assert_eq!(rig.turns.begun(), 2);
    }

    #[test]
    fn a_turn_that_was_not_used_serves_nobody() {
        let rig = Rig::new();
        let ticket = rig.turns.ticket();
        drop(rig.begin(ticket));
        rig.begin(ticket).done();
        rig.check_over(ticket);
    }

    #[test]
    fn whoever_waits_is_woken_once_the_turn_is_over() {
        let rig = Rig::new();
        let running = rig.begin(rig.turns.ticket());
        let (ticket, other) = (rig.turns.ticket(), Arc::new(Notifier::new().unwrap()));
        rig.check_waits(ticket);
        rig.check_waits(ticket);
        assert!(matches!(rig.turns.try_begin(ticket, &other), SyncTurn::Wait));
        running.done();
        rig.bell.wait().unwrap();
        other.wait().unwrap();
        assert_eq!(rig.turns.lock().waiting.len(), 0);
    }
}
