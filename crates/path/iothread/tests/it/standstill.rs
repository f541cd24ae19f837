//! An iothread that stands still, and somebody who waits for it: whoever only looks waits for neither.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use block::{Clock, Node, SystemClock};
use iothread::{IothreadPool, PlacedFrontEnd, PollSettings, ProcessResources, SourceRegistry};
use kernel_io::FileTable;
use virtio_blk::BlkRing;

use crate::drains::drain;
use crate::guest::Guest;
use crate::holding::LIMIT;
use crate::setup::{file_node, iothreads, on_both, place, process_resources};

/// How long whoever waits for the iothread is given to begin that.
const HEAD_START: Duration = Duration::from_millis(100);

/// Keeps an iothread from turning until it is dropped.
struct Standstill {
    _end: mpsc::Sender<()>,
}

impl Standstill {
    /// Of the iothread that serves this source now; returns when it stands still.
    fn of(placed: &PlacedFrontEnd<BlkRing>) -> Self {
        let ((end, over), (begun, stands)) = (mpsc::channel::<()>(), mpsc::channel());
        placed.post(move |_, _| {
            begun.send(()).expect("the test waits");
            // The other end is dropped.
            over.recv().expect_err("nothing is ever sent");
        });
        stands.recv_timeout(LIMIT).expect("an iothread that turns");
        Self { _end: end }
    }
}

/// Does what waits for an iothread that stands still, and beside it, again and again, what must not wait. An iothread that is let go
/// makes a test that fails end.
#[track_caller]
fn check(
    stands: Standstill,
    waits: impl FnOnce() + Send,
    look: impl Fn() + Send + Sync,
    what: &str,
) {
    thread::scope(|scope| {
        let waiting = scope.spawn(waits);
        let (seen, looked) = mpsc::channel();
        scope.spawn(move || {
            let start = SystemClock.now();
            while start.elapsed() < HEAD_START {
                look();
            }
            seen.send(()).expect("the test waits");
        });
        let seen = looked.recv_timeout(LIMIT);
        let is_over = waiting.is_finished();
        drop(stands);
        seen.unwrap_or_else(|_| panic!("whoever looks waits as {what} does"));
        assert!(!is_over, "{what} did not wait: nothing was tried");
    });
}

/// All that metrics, monitors, the watches and the service manager's thread read.
fn look_at_all(registry: &SourceRegistry) {
    for source in registry.all() {
        assert_eq!((source.iothread_name(), source.iothread().is_some()), ("t0".to_owned(), true));
        source.bring_up_to_date();
    }
    let sums = registry.sums();
    assert_eq!(sums["test"].queues[&0].iothread.as_deref(), Some("t0"));
    assert_eq!(registry.turn_all().len(), 2);
}

#[test]
fn nobody_who_looks_waits_for_a_move_from_an_iothread_that_stands_still() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (node, _image) = file_node(&files, 1 << 20);
        a.sources().keep_sums("test");
        let guest = Guest::new();
        let placed = place(&guest, &node, &a);
        let stands = Standstill::of(&placed);
        let moves = || placed.move_to(&b).expect("it turns again");
        check(stands, moves, || look_at_all(a.sources()), "a move");
        assert_eq!(placed.iothread_name(), "t1");
        drop(placed.stop());
    });
}

#[test]
fn nobody_who_looks_waits_for_the_end_of_a_drain_on_an_iothread_that_stands_still() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads @ [a, _] = &iothreads::<2>(&files, reactors);
        let (node, _image) = file_node(&files, 1 << 20);
        a.sources().keep_sums("test");
        let guest = Guest::new();
        let placed = place(&guest, &node, a);
        let drained = drain(threads, &node);
        let stands = Standstill::of(&placed);
        let look = || {
            assert!(a.sources().is_draining());
            look_at_all(a.sources());
        };
        check(stands, || drained.end().expect("it turns again"), look, "the end of a drain");
        assert!(!a.sources().is_draining());
        drop(placed.stop());
    });
}

/// A new iothread enters what is drained, and waits for whoever ends that.
#[test]
fn nobody_who_looks_at_a_pool_waits_for_an_iothread_that_starts_there() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let threads @ [a, _] = &iothreads::<2>(&files, reactors);
        let host = ProcessResources {
            files: Arc::clone(&files),
            sources: Arc::clone(a.sources()),
            reactors,
            ..process_resources()
        };
        let pool = IothreadPool::new("p", 2, host, PollSettings::OFF).expect("a pool");
        let (node, _image): (Arc<dyn Node>, _) = file_node(&files, 1 << 20);
        let guest = Guest::new();
        let placed = place(&guest, &node, a);
        let drained = drain(threads, &node);
        let stands = Standstill::of(&placed);
        let waits = || {
            thread::scope(|scope| {
                scope.spawn(|| drained.end().expect("it turns again"));
                scope.spawn(|| drop(pool.start(1).expect("an iothread")));
            });
        };
        check(stands, waits, || assert_eq!(pool.home().name(), "p-0"), "the start of an iothread");
        assert_eq!(pool.running().len(), 2);
        drop(placed.stop());
    });
}

#[test]
fn an_iothread_that_stands_still_is_told_of_until_it_turns() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (node, _image) = file_node(&files, 1 << 20);
        let guest = Guest::new();
        let placed = place(&guest, &node, &a);
        let stands = Standstill::of(&placed);
        let start = SystemClock.now();
        a.sources().ask_to_turn(start);
        // The other one answers, whenever that is.
        b.sources().turn_all().pop().expect("two").recv_timeout(LIMIT).expect("it turns");
        let later = start + Duration::from_secs(7);
        // Asked again, it is not one that was asked just now.
        a.sources().ask_to_turn(later);
        let expected = Duration::from_secs(7);
        assert_eq!(a.sources().unanswered(later), [("t0".to_owned(), expected)]);
        assert_eq!(
            (a.usage().unanswered(later), b.usage().unanswered(later)),
            (expected, Duration::ZERO)
        );
        drop(stands);
        placed.visit(|_, _| ()).expect("it turns");
        assert_eq!(
            (a.sources().unanswered(later), a.usage().unanswered(later)),
            (Vec::new(), Duration::ZERO)
        );
        drop(placed.stop());
    });
}
