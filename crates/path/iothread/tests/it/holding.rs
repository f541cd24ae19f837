//! Requests that a layer holds: they go on when they are due, and at once when somebody waits for their
//! end, wherever the ring is by then.

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use block::{
    Access, Answer, BatchPieces, Child, Clock, Lane, LaneCompletionDecision, Mapping, Node,
    Operation, Outcome, SystemClock, Token, WakeTime,
};
use disk::ReadContent;
use kernel_io::{Caching, FileTable};
use layers::{DelayNode, DelayOrder, DelaySettings, Distribution, Latency};

use crate::guest::{Ask, BLOCK, Guest, SLOTS};
use crate::lanes::{null_disk, with_lanes};
use crate::open_requests::pipe_node;
use crate::setup::{cached_file_node, iothreads, on_both, place, place_stable};

/// Nobody waits that long.
pub(crate) const FOR_EVER: Duration = Duration::from_hours(1);

/// What is waited for comes before.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Holds every request that long. It tells of each batch.
#[derive(Debug)]
struct HoldingLane {
    below: Box<dyn Lane>,
    time: Duration,
    told: mpsc::Sender<()>,
    held: VecDeque<(Instant, Token, Operation)>,
}

impl Lane for HoldingLane {
    fn map(&mut self, batch: &mut [Mapping], _: &mut BatchPieces) {
        let due = SystemClock.now() + self.time;
        for mapping in batch {
            self.held.push_back((due, mapping.token, mapping.operation));
            mapping.answer = Answer::Held;
        }
        // Not every test listens.
        let _heard = self.told.send(());
    }

    fn due(&self) -> Option<WakeTime> {
        let own = self.held.front().map(|held| WakeTime { at: held.0, slack: Duration::ZERO });
        WakeTime::first(own, self.below.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let mut passed_on = Vec::new();
        while let Some((_, token, operation)) = self.held.pop_front_if(|held| held.0 <= now) {
            passed_on.push(Mapping::new(token, operation));
        }
        self.below.map(&mut passed_on, pieces);
        late.extend(passed_on.into_iter().filter(|it| it.answer != Answer::Held));
        self.below.resume(now, late, pieces);
    }

    fn release(&mut self) {
        let now = SystemClock.now();
        self.held.iter_mut().for_each(|held| held.0 = held.0.min(now));
        self.below.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        self.below.completed(token, outcome)
    }
}

pub(crate) fn null() -> Arc<dyn Node> {
    null_disk(1 << 20, ReadContent::Zeroes)
}

/// The node, and what tells that it holds something more.
pub(crate) fn holding(below: Arc<dyn Node>, time: Duration) -> (Arc<dyn Node>, mpsc::Receiver<()>) {
    let (told, tells) = mpsc::channel();
    let node = with_lanes(below, move |below, _| {
        let (told, held) = (told.clone(), VecDeque::new());
        Box::new(HoldingLane { below, time, told, held })
    });
    (node, tells)
}

/// Delays all requests by that many nanoseconds, and keeps their order.
fn ordered(below: Arc<dyn Node>, ns: u64) -> Arc<dyn Node> {
    let latency = Distribution::Fixed(Latency::from_ns(ns).unwrap());
    let (read, write, flush) = (latency.clone(), latency.clone(), latency);
    let settings = DelaySettings { read, write, flush, order: DelayOrder::AsBegun };
    let (child, access, clock) = (Child::new(below), Access::ReadWrite, Arc::new(SystemClock));
    Arc::new(DelayNode::new("ordered", child, access, settings, 0, clock))
}

#[test]
fn a_held_request_is_carried_out_when_it_is_due_and_not_before() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        for iothread in iothreads::<2>(&files, reactors) {
            let time = Duration::from_millis(20);
            let mut guest = Guest::new();
            let placed = place(&guest, &holding(null(), time).0, &iothread);
            for _ in 0..5 {
                let start = SystemClock.now();
                (0..SLOTS).for_each(|slot| guest.submit(slot, Ask::Read, 0));
                let mut done = guest.completions().len();
                let took = start.elapsed();
                while done < usize::from(SLOTS) {
                    done += guest.completions().len();
                }
                assert!(took >= time, "done after {took:?}");
                assert!((0..SLOTS).all(|slot| guest.status(slot) == 0));
            }
            assert_eq!(placed.stop().in_flight(), 0);
        }
    });
}

#[test]
fn a_stop_waits_for_nothing_that_is_held() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, _] = iothreads::<2>(&files, reactors);
        let mut guest = Guest::new();
        let (node, tells) = holding(null(), FOR_EVER);
        let placed = place(&guest, &node, &a);
        (0..SLOTS).for_each(|slot| guest.submit(slot, Ask::Read, 0));
        tells.recv_timeout(LIMIT).unwrap();
        // It would not come back.
        let source = placed.stop();
        assert_eq!(source.in_flight(), 0);
        assert_eq!(guest.poll().len() as u64, source.counters().reads);
    });
}

#[test]
fn a_stop_waits_for_nothing_that_was_left_held_on_other_threads() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b, c] = iothreads::<3>(&files, reactors);
        let (node, tells) = holding(null(), FOR_EVER);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        for (slot, to) in (0..).zip([&b, &c, &a, &b]) {
            guest.submit(slot, Ask::Read, 0);
            // Once it is held, it stays where it is.
            tells.recv_timeout(LIMIT).unwrap();
            placed.move_to(to).unwrap();
        }
        assert!(guest.poll().is_empty());
        let source = placed.stop();
        assert_eq!((source.in_flight(), source.counters().reads), (0, 4));
        assert_eq!(guest.poll().len(), 4);
    });
}

/// What one layer lets go the next one below would hold again.
#[test]
fn a_stop_waits_for_no_layer_below_the_one_that_holds() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (lowest, _lowest_tells) = holding(null(), FOR_EVER);
        let (lower, _lower_tells) = holding(lowest, FOR_EVER);
        let (node, tells) = holding(lower, FOR_EVER);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        guest.submit(0, Ask::Read, 0);
        tells.recv_timeout(LIMIT).unwrap();
        placed.move_to(&b).unwrap();
        guest.submit(1, Ask::Read, 0);
        tells.recv_timeout(LIMIT).unwrap();
        let source = placed.stop();
        assert_eq!((source.in_flight(), source.counters().reads), (0, 2));
    });
}

#[test]
fn who_is_held_keeps_nobody_else_waiting() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, _] = iothreads::<2>(&files, reactors);
        let (mut held, mut other) = (Guest::new(), Guest::new());
        let (node, _) = holding(null(), FOR_EVER);
        let placed = [place(&held, &node, &a), place(&other, &null(), &a)];
        (0..SLOTS).for_each(|slot| held.submit(slot, Ask::Read, 0));
        for _ in 0..1000 {
            other.submit(0, Ask::Read, 0);
            assert_eq!(other.completions(), [0]);
        }
        assert!(held.poll().is_empty());
        placed.into_iter().for_each(|placed| assert_eq!(placed.stop().in_flight(), 0));
    });
}

#[test]
fn a_lane_that_holds_all_it_may_keeps_nobody_else_waiting() {
    // More than a lane holds, and than an iothread carries out.
    const GUESTS: u16 = 5000 / SLOTS;
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, _] = iothreads::<2>(&files, reactors);
        let (node, _) = holding(null(), FOR_EVER);
        let mut held: Vec<_> = (0..GUESTS)
            .map(|_| {
                let mut guest = Guest::new();
                // It begins where the guest is.
                let placed = place(&guest, &node, &a);
                (0..SLOTS).for_each(|slot| guest.submit(slot, Ask::Read, 0));
                (guest, placed)
            })
            .collect();
        let mut other = Guest::new();
        let placed = place(&other, &null(), &a);
        for _ in 0..100 {
            other.submit(0, Ask::Read, 0);
            assert_eq!(other.completions(), [0]);
        }
        assert_eq!(placed.stop().in_flight(), 0);
        // The first stop lets go what is held by then; who found no room is served after that.
        let stopped = held.pop().unwrap().1.stop();
        assert_eq!(stopped.in_flight(), 0);
        for (mut guest, placed) in held {
            let source = placed.stop();
            assert_eq!(guest.poll().len() as u64, source.counters().reads);
        }
    });
}

#[test]
fn ordered_requests_are_completed_as_they_were_begun() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, _] = iothreads::<2>(&files, reactors);
        // The first reads from a pipe that nobody has written to; the flush has nothing to wait for.
        let (pipe, mut writer, begun) = pipe_node(&files);
        let node = ordered(pipe, 0);
        let (mut guest, mut other) = (Guest::new(), Guest::new());
        let (placed, beside) = (place(&guest, &node, &a), place(&other, &null(), &a));
        guest.submit(0, Ask::Read, 0);
        begun.recv_timeout(Duration::from_secs(10)).unwrap();
        guest.submit(1, Ask::Flush, 0);
        guest.submit(2, Ask::Flush, 0);
        // Some rounds of the thread later.
        for _ in 0..100 {
            other.submit(0, Ask::Read, 0);
            assert_eq!(other.completions(), [0]);
        }
        assert!(guest.poll().is_empty(), "a later request was completed first");
        std::io::Write::write_all(&mut writer, &[7; BLOCK]).unwrap();
        let mut done = Vec::new();
        while done.len() < 3 {
            done.extend(guest.completions());
        }
        assert_eq!(done, [0, 1, 2]);
        assert_eq!(placed.stop().in_flight() + beside.stop().in_flight(), 0);
    });
}

#[test]
fn an_ordered_request_may_be_the_last_one_on_an_iothread_that_its_ring_has_left() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, b] = iothreads::<2>(&files, reactors);
        let (pipe, mut writer, begun) = pipe_node(&files);
        let node = ordered(pipe, 0);
        let mut guest = Guest::new();
        let placed = place(&guest, &node, &a);
        guest.submit(0, Ask::Read, 0);
        begun.recv_timeout(LIMIT).unwrap();
        placed.move_to(&b).unwrap();
        std::io::Write::write_all(&mut writer, &[7; BLOCK]).unwrap();
        assert_eq!(guest.completions(), [0]);
        // It is still there to serve.
        placed.move_to(&a).unwrap();
        assert_eq!(placed.stop().in_flight(), 0);
    });
}

/// The flush has its turn to sync before the write needs one, and is completed after it.
#[test]
fn who_is_completed_later_has_no_turn_that_others_wait_for() {
    on_both(|reactors| {
        let files = Arc::new(FileTable::default());
        let [a, _] = iothreads::<2>(&files, reactors);
        let (file, _image) = cached_file_node(&files, 1 << 20, Caching::Buffered);
        let node = ordered(file, 1_000_000);
        let mut guest = Guest::new();
        let placed = place_stable(&guest, &node, &a);
        for _ in 0..10 {
            guest.submit(0, Ask::Write, 0);
            guest.submit(1, Ask::Flush, 0);
            let mut done = Vec::new();
            while done.len() < 2 {
                done.extend(guest.completions());
            }
            assert_eq!(done, [0, 1]);
        }
        assert_eq!(placed.stop().in_flight(), 0);
    });
}
