//! Rings that have more to do than there is room for: they wait without using a CPU, and each gets its
//! share of the room that there comes to be.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use block::{
    Answer, BatchPieces, Clock, Lane, LaneCompletionDecision, Mapping, Node, Operation, Outcome,
    SystemClock, Token, WakeTime,
};
use disk::ReadContent;
use iothread::PlacedFrontEnd;
use kernel_io::{FileTable, ReactorChoice};

use crate::fairness::{Played, Player, play};
use crate::guest::{Ask, Guest, SLOTS};
use crate::lanes::{null_disk, with_lanes};
use crate::setup::{iothreads, on_both, ring};

/// So many that together they want a quarter more than a lane holds (4096).
const GUESTS: usize = 5120 / SLOTS as usize;

/// Holds every request, and lets some of them go each round.
#[derive(Debug)]
struct DrippingLane {
    below: Box<dyn Lane>,
    /// How many each round; nothing is ever due with none.
    drops: usize,
    released: bool,
    always: Instant,
    held: VecDeque<(Token, Operation)>,
}

impl Lane for DrippingLane {
    fn map(&mut self, batch: &mut [Mapping], _: &mut BatchPieces) {
        for mapping in batch {
            self.held.push_back((mapping.token, mapping.operation));
            mapping.answer = Answer::Held;
        }
    }

    fn due(&self) -> Option<WakeTime> {
        let drips = self.released || self.drops > 0;
        (drips && !self.held.is_empty())
            .then_some(WakeTime { at: self.always, slack: Duration::ZERO })
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        let count = if self.released { self.held.len() } else { self.drops.min(self.held.len()) };
        let start = late.len();
        let drops = self.held.drain(..count);
        late.extend(drops.map(|(token, operation)| Mapping::new(token, operation)));
        self.below.map(&mut late[start..], pieces);
        self.below.resume(now, late, pieces);
        self.released &= !self.held.is_empty();
    }

    fn release(&mut self) {
        self.released = true;
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        self.below.completed(token, outcome)
    }
}

fn dripping(drops: usize) -> Arc<dyn Node> {
    with_lanes(null_disk(1 << 20, ReadContent::Untouched), move |below, _| {
        let (released, always, held) = (false, SystemClock.now(), VecDeque::new());
        Box::new(DrippingLane { below, drops, released, always, held })
    })
}

/// Has always as much in flight as its ring can hold, and counts. Relaxed: only counters.
#[derive(Debug)]
struct Greedy {
    guest: Guest,
    turns: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    /// Hears of everything that is done.
    told: mpsc::Sender<usize>,
}

impl Player for Greedy {
    fn before_batch(&mut self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    fn after_turn(&mut self) -> bool {
        let done = self.guest.poll();
        done.iter().for_each(|&slot| self.guest.submit(slot, Ask::Read, 0));
        self.done.fetch_add(done.len() as u64, Ordering::Relaxed);
        // The test ends when it has heard enough.
        let _heard = self.told.send(done.len());
        !done.is_empty()
    }
}

/// Rings of greedy guests on an iothread.
struct Crowd {
    placed: Vec<PlacedFrontEnd<Played<Greedy>>>,
    turns: Arc<AtomicU64>,
    /// Of each ring.
    done: Vec<Arc<AtomicU64>>,
    tells: mpsc::Receiver<usize>,
}

impl Crowd {
    fn new(node: &Arc<dyn Node>, reactors: ReactorChoice) -> Self {
        let [iothread] = iothreads::<1>(&Arc::new(FileTable::default()), reactors);
        let (told, tells) = mpsc::channel();
        let turns = Arc::new(AtomicU64::new(0));
        let mut done = Vec::new();
        let placed = (0..GUESTS).map(|_| {
            let mut guest = Guest::new();
            let ring = ring(&guest, node);
            (0..SLOTS).for_each(|slot| guest.submit(slot, Ask::Read, 0));
            let (turns, told) = (Arc::clone(&turns), told.clone());
            let counter = Arc::new(AtomicU64::new(0));
            done.push(Arc::clone(&counter));
            play(ring, Greedy { guest, turns, done: counter, told }, node, &iothread)
        });
        let placed = placed.collect();
        Self { placed, turns, done, tells }
    }

    fn stop(self) {
        for placed in self.placed {
            assert_eq!(placed.stop().counters().errors, 0);
        }
    }
}

#[test]
fn rings_without_room_are_not_asked_again_and_again() {
    on_both(|reactors| {
        let crowd = Crowd::new(&dripping(0), reactors);
        let pause = Duration::from_millis(500);
        // Until all have had the turns in which they fill the room.
        while let Ok(done) = crowd.tells.recv_timeout(pause) {
            assert_eq!(done, 0, "nothing is let go");
        }
        let before = crowd.turns.load(Ordering::Relaxed);
        crowd.tells.recv_timeout(pause).unwrap_err();
        let turns = crowd.turns.load(Ordering::Relaxed) - before;
        assert_eq!(turns, 0, "turns in which nothing can be done");
        crowd.stop();
    });
}

#[test]
fn rings_without_room_get_equal_shares_of_it() {
    const ROUNDS: usize = 10;
    on_both(|reactors| {
        let crowd = Crowd::new(&dripping(64), reactors);
        let done =
            || -> Vec<u64> { crowd.done.iter().map(|done| done.load(Ordering::Relaxed)).collect() };
        // Those that were placed first had all of it for a while.
        let (before, _) = (done(), crowd.tells.try_iter().count());
        let mut heard = 0;
        while heard < GUESTS * SLOTS as usize * ROUNDS {
            let more = crowd.tells.recv_timeout(Duration::from_secs(60));
            heard += more.expect("the rings go on");
        }
        let mut shares: Vec<u64> =
            done().iter().zip(before).map(|(now, then)| now - then).collect();
        crowd.stop();
        shares.sort_unstable();
        let (least, most) = (shares[0], shares[GUESTS - 1]);
        assert!(least * 2 >= most, "least {least}, median {}, most {most}", shares[GUESTS / 2]);
    });
}
