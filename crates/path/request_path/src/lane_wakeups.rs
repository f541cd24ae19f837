//! Which lanes have to be called: some task of theirs can go on.
//!
//! Threads: set by any, taken by the iothread of the lanes. What was done before a flag was set is seen
//! after it was taken. The iothread looks before it sleeps, so it does not ring for itself.

use std::sync::Arc;

use crate::mailbox::Wake;
use crate::sync::{AtomicBool, Ordering, ThreadId, current_thread};

/// Whether any lane of an iothread was woken: one flag for all, and how to wake the iothread.
#[derive(Debug)]
pub(crate) struct IothreadWakeFlag {
    /// Whether any of the flags may be set.
    any: AtomicBool,
    notifier: Arc<dyn Wake>,
    iothread: ThreadId,
}

impl IothreadWakeFlag {
    /// Of the calling thread, which this notifier wakes.
    pub(crate) fn new(notifier: Arc<dyn Wake>) -> Arc<Self> {
        Arc::new(Self { any: AtomicBool::new(false), notifier, iothread: current_thread() })
    }

    /// For the iothread: whether to look at the flags. Cheap enough to be asked after each batch.
    pub(crate) fn take(&self) -> bool {
        self.is_any() && self.any.swap(false, Ordering::AcqRel)
    }

    /// For the iothread, before it sleeps: whether it may have called itself and not looked since.
    pub(crate) fn is_any(&self) -> bool {
        // Whoever sets it later, and is another thread, rings as well.
        self.any.load(Ordering::Relaxed)
    }

    fn call(&self) {
        // Not a store: who takes it must see also what those did who set it before.
        self.any.swap(true, Ordering::AcqRel);
        if current_thread() != self.iothread {
            self.notifier.wake();
        }
    }
}

/// One lane's wake flag and its `std::task::Waker`.
#[derive(Debug)]
pub(crate) struct LaneWaker {
    is_set: AtomicBool,
    calls: Arc<IothreadWakeFlag>,
}

impl LaneWaker {
    pub(crate) fn new(calls: Arc<IothreadWakeFlag>) -> Self {
        Self { is_set: AtomicBool::new(false), calls }
    }

    /// For the iothread.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// For the iothread: whether it was set; it no longer is.
    pub(crate) fn take(&self) -> bool {
        self.is_set.swap(false, Ordering::AcqRel)
    }

    fn set(&self) {
        // Whoever found it set knows that the iothread will still take it.
        if !self.is_set.swap(true, Ordering::AcqRel) {
            self.calls.call();
        }
    }
}

impl std::task::Wake for LaneWaker {
    fn wake(self: Arc<Self>) {
        self.set();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Counts its wakes in loom tests, in place of the iothread's notifier.
    #[derive(Debug, Default)]
    struct Bell(AtomicUsize);

    impl Wake for Bell {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_bell_rings_once_and_not_for_the_iothread_itself() {
        let notifier = Arc::new(Bell::default());
        let calls = IothreadWakeFlag::new(Arc::clone(&notifier) as Arc<dyn Wake>);
        let called = LaneWaker::new(Arc::clone(&calls));
        let rung = || notifier.0.load(Ordering::Relaxed);
        assert!(!calls.take());
        called.set();
        assert_eq!((calls.is_any(), calls.take(), rung()), (true, true, 0));
        assert!(called.take() && !called.take() && !calls.take());
        std::thread::scope(|scope| {
            scope.spawn(|| [(); 3].map(|()| called.set()));
        });
        assert_eq!((calls.take(), called.take(), rung()), (true, true, 1));
    }
}

/// Wakes from several threads, explored in all interleavings:
/// `RUSTFLAGS="--cfg loom" cargo test -p request_path --release --lib loom_`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::atomic::AtomicUsize;

    #[derive(Debug, Default)]
    struct Bell {
        rung: AtomicUsize,
    }

    impl Wake for Bell {
        fn wake(&self) {
            self.rung.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One iothread's two lanes, and the work that others have done for each of them.
    struct Rig {
        notifier: Arc<Bell>,
        calls: Arc<IothreadWakeFlag>,
        called: [LaneWaker; 2],
        work: [AtomicUsize; 2],
    }

    impl Rig {
        fn new() -> Arc<Self> {
            let notifier = Arc::new(Bell::default());
            let calls = IothreadWakeFlag::new(Arc::clone(&notifier) as Arc<dyn Wake>);
            let called = [(); 2].map(|()| LaneWaker::new(Arc::clone(&calls)));
            Arc::new(Self {
                notifier,
                calls,
                called,
                work: [AtomicUsize::new(0), AtomicUsize::new(0)],
            })
        }

        /// Somebody does something for a lane, and has it called.
        fn work(&self, lane: usize) {
            // What a task looks at goes with no ordering of its own.
            self.work[lane].fetch_add(1, Ordering::Relaxed);
            self.called[lane].set();
        }

        /// A round of the iothread: it clears the notifier, then looks as long as there is something.
        fn round(&self, found: &mut [usize; 2]) {
            self.notifier.rung.store(0, Ordering::SeqCst);
            while self.calls.take() {
                for lane in [0, 1] {
                    if self.called[lane].is_set() && self.called[lane].take() {
                        found[lane] = self.work[lane].load(Ordering::Relaxed);
                    }
                }
            }
        }

        fn may_sleep(&self) -> bool {
            !self.calls.is_any() && self.notifier.rung.load(Ordering::SeqCst) == 0
        }
    }

    /// Has the iothread serve while these lanes are called by a thread each.
    fn check(lanes: [usize; 2], expected: [usize; 2]) {
        loom::model(move || {
            let rig = Rig::new();
            let wakers = lanes.map(|lane| {
                let rig = rig.clone();
                loom::thread::spawn(move || rig.work(lane))
            });
            let mut found = [0; 2];
            rig.round(&mut found);
            wakers.into_iter().for_each(|waker| waker.join().unwrap());
            if !rig.may_sleep() {
                rig.round(&mut found);
            }
            assert!(rig.may_sleep());
            assert_eq!(found, expected, "it sleeps and has not seen all");
        });
    }

    #[test]
    fn loom_two_lanes_that_are_called_at_once_are_both_seen() {
        check([0, 1], [1, 1]);
    }

    #[test]
    fn loom_a_lane_that_is_called_twice_at_once_sees_all_that_was_done() {
        check([0, 0], [2, 0]);
    }
}
