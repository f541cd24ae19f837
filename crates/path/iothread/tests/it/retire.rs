//! Iothreads that end while the process goes on: not before everything is over that was begun there.

use std::io::Write;
use std::sync::Arc;
use std::thread;

use block::{CancellationSupport, Clock, Node, SystemClock};
use iothread::Iothread;
use kernel_io::FileTable;
use testkit::channel::{Habits, Hears, Remote, RemoteNode};

use crate::drains::drain;
use crate::guest::{Ask, BLOCK, Guest};
use crate::holding::{FOR_EVER, LIMIT, holding, null};
use crate::open_requests::pipe_node;
use crate::setup::{iothreads, on_both, place};

/// Waits for the end of the thread.
fn wait_for_end(iothread: &Iothread) {
    let start = SystemClock.now();
    while !iothread.has_ended() {
        assert!(start.elapsed() < LIMIT, "it does not end");
        thread::yield_now();
    }
}

/// Has the thread do some rounds.
fn some_rounds(iothread: &Arc<Iothread>) {
    for _ in 0..20 {
        let mut guest = Guest::new();
        let placed = place(&guest, &null(), iothread);
        guest.submit(0, Ask::Read, 0);
        assert_eq!(guest.completions(), [0]);
        placed.stop();
    }
}

#[test]
fn it_serves_until_its_last_source_and_what_that_has_left_behind_is_over() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (node, mut pipe, begun) = pipe_node(&files);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        guest.submit(0, Ask::Read, 0);
        begun.recv_timeout(LIMIT).unwrap();
        a.retire();
        guest.submit(1, Ask::Read, 0);
        begun.recv_timeout(LIMIT).unwrap();
        pipe.write_all(&[1; BLOCK]).unwrap();
        assert_eq!(guest.completions().len(), 1, "it serves");
        placed.move_to(&b).unwrap();
        assert!(!a.has_ended(), "a request is open there");
        pipe.write_all(&[1; BLOCK]).unwrap();
        assert_eq!(guest.completions().len(), 1, "the outcome was mailed");
        wait_for_end(&a);
        let refused = placed.move_to(&a).unwrap_err();
        let cause = std::error::Error::source(&refused).unwrap();
        let cause = std::error::Error::source(cause).unwrap().to_string();
        assert_eq!(
            (refused.to_string().as_str(), cause.as_str()),
            ("iothread t0 cannot take it over", "it has ended")
        );
        drain(&[a, b], &node).end().unwrap();
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

#[test]
fn what_is_held_for_sources_that_have_left_goes_on_and_what_is_held_for_others_does_not() {
    on_both(|reactors| {
        let [a, b] = iothreads::<2>(&Arc::new(FileTable::default()), reactors);
        let (node, held) = holding(null(), FOR_EVER);
        let mut guests = [Guest::new(), Guest::new()];
        let [leaves, stays] = [0, 1].map(|it| place(&guests[it], &node, &a));
        for guest in &mut guests {
            guest.submit(0, Ask::Read, 0);
            held.recv_timeout(LIMIT).unwrap();
        }
        a.retire();
        leaves.move_to(&b).unwrap();
        some_rounds(&a);
        assert!(guests.iter_mut().all(|guest| guest.poll().is_empty()));
        stays.move_to(&b).unwrap();
        wait_for_end(&a);
        assert!(guests.iter_mut().all(|guest| guest.completions() == [0]));
        assert_eq!(leaves.stop().in_flight() + stays.stop().in_flight(), 0);
    });
}

/// An abandoned write may still be carried out. Whoever could say that it is over must be there to say it, or nothing is
/// written to that disk any more.
#[test]
fn it_waits_for_what_was_abandoned() {
    on_both(|reactors| {
        let [a, b] = iothreads::<2>(&Arc::new(FileTable::default()), reactors);
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let habits = Habits {
            cancel: CancellationSupport::Impossible,
            hears: Hears::Waker,
            alignment: 4096,
            ..Habits::PLAIN
        };
        let remote = Remote::new("remote", file, 1 << 20, habits, 7);
        let node: Arc<dyn Node> = Arc::new(RemoteNode::new("node", &remote));
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        remote.stand_still();
        guest.submit(0, Ask::Write, 0);
        remote.wait_for(1);
        a.abandon(&node);
        assert_eq!((guest.completions(), guest.status(0)), (vec![0], 1));
        placed.move_to(&b).unwrap();
        a.retire();
        // It would end in the round that begins with this.
        drain(&[Arc::clone(&a)], &null()).end().unwrap();
        assert!(!a.has_ended() && remote.medium().is_unfenced());
        remote.go_on();
        wait_for_end(&a);
        assert!(!remote.medium().is_unfenced());
        guest.submit(0, Ask::Write, 0);
        assert_eq!((guest.completions(), guest.status(0)), (vec![0], 0));
        placed.stop();
    });
}
