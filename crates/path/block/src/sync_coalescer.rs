//! Whose turn it is to sync storage, and whom a sync that is over has served.
//!
//! Where it stands in the life of a request: a flush, or a write that has to be durable, takes a ticket
//! when it comes to its sync. Any sync of the medium that begins after that makes its data durable, whoever
//! does it: so one sync serves all who came while the one before it ran.
//!
//! Invariants: syncs of one medium never overlap. The kernel tells a failed write-back once per
//! description, so of two at once only one would hear of it. A ticket is over only when a sync that began
//! after it was taken has been carried out; whether that failed is remembered on the medium, before the
//! guard says that it is done.
//! Threads: shared by all iothreads; the lock is held for a few instructions, never across I/O. Whoever
//! has to wait is woken when a turn ends.
//! Limits: one waiter for each thread.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

/// One sync at a time for one storage, each for all who asked before it began.
#[derive(Debug, Default, Clone)]
pub struct SyncCoalescer {
    state: Arc<Mutex<State>>,
}

/// What the mutex protects: numbers of syncs begun and finished, and who waits.
#[derive(Debug, Default)]
struct State {
    /// Syncs that have begun. They are numbered from 1.
    begun: u64,
    /// The number of the last one that was carried out.
    done: u64,
    /// Whether somebody has the turn.
    taken: bool,
    waiting: Vec<Waker>,
}

/// Proof of when a request asked for a sync: only one that begins later covers its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncTicket(u64);

/// What the holder of a ticket does next: nothing, a sync, or wait for another one's.
#[derive(Debug)]
#[must_use = "a turn that is dropped is given back without a sync"]
pub enum SyncAction {
    /// Nothing: a sync that began later has been carried out. The medium remembers if it failed.
    Covered,
    /// A sync, by whoever asks. It serves all tickets that were taken before.
    Sync(SyncGuard),
    /// Somebody else syncs, and may have begun too early. Whoever asks is woken when that is over.
    Wait,
}

impl SyncCoalescer {
    /// A ticket for all that has been written up to now.
    pub fn ticket(&self) -> SyncTicket {
        SyncTicket(self.lock().begun)
    }

    /// Asks what is to be done for a ticket; `waiter` is woken if that is to wait.
    pub fn try_begin(&self, ticket: SyncTicket, waiter: &Waker) -> SyncAction {
        let mut state = self.lock();
        if state.done > ticket.0 {
            return SyncAction::Covered;
        }
        if state.taken {
            // Not `will_wake`, which may tell a clone apart.
            if !state.waiting.iter().any(|known| known.data() == waiter.data()) {
                state.waiting.push(waiter.clone());
            }
            return SyncAction::Wait;
        }
        state.taken = true;
        state.begun += 1;
        SyncAction::Sync(SyncGuard { turns: self.clone(), number: state.begun, is_done: false })
    }

    /// How many syncs have begun.
    pub fn begun(&self) -> u64 {
        self.lock().begun
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

/// The right to sync, held by one at a time. Dropped without [`SyncGuard::done`], it counts as no sync.
#[derive(Debug)]
#[must_use = "the turn is over as soon as the guard is dropped"]
pub struct SyncGuard {
    turns: SyncCoalescer,
    number: u64,
    is_done: bool,
}

impl SyncGuard {
    /// The sync was carried out after the turn was given. If it failed, the medium remembers that already
    /// ([`crate::Medium::remember_failed_sync`]).
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Rig {
        turns: SyncCoalescer,
        bell: Arc<Bell>,
    }

    impl Rig {
        fn new() -> Self {
            Self { turns: SyncCoalescer::default(), bell: Arc::default() }
        }

        fn try_begin(&self, ticket: SyncTicket) -> SyncAction {
            self.turns.try_begin(ticket, &Waker::from(Arc::clone(&self.bell)))
        }

        #[track_caller]
        fn begin(&self, ticket: SyncTicket) -> SyncGuard {
            match self.try_begin(ticket) {
                SyncAction::Sync(guard) => guard,
                other @ (SyncAction::Covered | SyncAction::Wait) => panic!("{other:?}"),
            }
        }

        #[track_caller]
        fn check_waits(&self, ticket: SyncTicket) {
            assert!(matches!(self.try_begin(ticket), SyncAction::Wait));
        }

        #[track_caller]
        fn check_over(&self, ticket: SyncTicket) {
            assert!(matches!(self.try_begin(ticket), SyncAction::Covered));
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
        let (ticket, other) = (rig.turns.ticket(), Arc::<Bell>::default());
        rig.check_waits(ticket);
        rig.check_waits(ticket);
        let waker = Waker::from(Arc::clone(&other));
        assert!(matches!(rig.turns.try_begin(ticket, &waker), SyncAction::Wait));
        running.done();
        assert_eq!([&rig.bell, &other].map(|bell| bell.0.load(Ordering::Relaxed)), [1, 1]);
        assert_eq!(rig.turns.lock().waiting.len(), 0);
    }
}
