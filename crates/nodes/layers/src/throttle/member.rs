//! The turns of one disk's iothreads: together they have at most one reservation ahead of time.
//!
//! Where it stands in the life of a request: a lane whose lease is used up asks its seat before it
//! reserves the next one. So a disk of a group has one place in the queue of the future, whatever its
//! depth and however many iothreads serve it, and its iothreads take turns at it.
//!
//! Invariants: none that hold up a request: what is here is a time and hints. A lane that does not take
//! its turn is passed over after [`GRACE`], and one that is interrupted while it takes it after
//! [`CLAIM`]. Lanes that meet by that reserve twice, which costs fairness for one turn and no budget.
//! Threads: the lanes of one disk. Limits: [`PLACES`] lanes of a disk have places of their own; further ones share
//! those.

use std::sync::{Arc, Mutex};

use super::bucket::Nanos;
use crate::sync::{AtomicU64, Ordering};

/// How many lanes of a disk have a place of their own.
const PLACES: usize = 64;

/// How long the lane whose turn it is may be late: 200 µs.
const GRACE: Nanos = Nanos(200_000);

/// How long a lane has for its reservation, which takes a fraction of that: 20 µs.
const CLAIM: Nanos = Nanos(20_000);

/// A disk as a member of its throttle group.
#[derive(Debug, Default)]
pub(super) struct GroupMember {
    /// One for each way (see `budget`).
    turns: [ReservationTurn; 2],
    /// How many lanes are at each place.
    places: Mutex<Vec<usize>>,
}

/// Which lane of a disk reserves next, and when. Alone in its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ReservationTurn {
    /// Until then a reservation of this disk lies in the future.
    next: AtomicU64,
    /// The place that goes first then.
    first: AtomicU64,
    /// A bit for each place that waits.
    waiting: AtomicU64,
}

/// A lane's seat among the lanes of its disk, which take turns at reserving from the group's buckets.
#[derive(Debug)]
pub(super) struct GroupMemberLane {
    member: Arc<GroupMember>,
    place: usize,
}

/// The right to reserve ahead, for a moment.
#[derive(Debug)]
#[must_use = "a turn is over when the next one is set"]
pub(super) struct ReservationRight(());

impl GroupMemberLane {
    /// Takes the place that fewest have. For threads that open a lane.
    pub(super) fn take(member: &Arc<GroupMember>) -> Self {
        let mut places = member.places.lock().expect("no holder of this lock panics");
        places.resize(PLACES, 0);
        let (place, users) =
            places.iter_mut().enumerate().min_by_key(|(_, users)| **users).expect("there are some");
        *users += 1;
        Self { member: Arc::clone(member), place }
    }

    /// Says that requests of this lane wait on that way.
    pub(super) fn wait(&self, direction: usize) {
        self.member.turns[direction].waiting.fetch_or(self.bit(), Ordering::Relaxed);
    }

    /// Says that none wait any more.
    pub(super) fn done(&self, direction: usize) {
        self.member.turns[direction].waiting.fetch_and(!self.bit(), Ordering::Relaxed);
    }

    /// Whether this lane may reserve now; otherwise when to ask again.
    pub(super) fn may_reserve(&self, direction: usize, now: Nanos) -> Result<(), Nanos> {
        let turn = &self.member.turns[direction];
        let next = Nanos(turn.next.load(Ordering::Acquire));
        let from = if self.is_first(turn) { next } else { next.plus(GRACE) };
        if now < from { Err(from) } else { Ok(()) }
    }

    /// Keeps the other lanes off for a moment, to reserve something that lies in the future. `None` if
    /// another one was faster.
    pub(super) fn claim(&self, direction: usize, now: Nanos) -> Option<ReservationRight> {
        let turn = &self.member.turns[direction];
        let next = turn.next.load(Ordering::Relaxed);
        if next > now.0 {
            return None;
        }
        let until = now.plus(CLAIM).0;
        turn.next
            .compare_exchange(next, until, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
            .then_some(ReservationRight(()))
    }

    /// When to ask again after another lane was faster.
    pub(super) fn after_another(now: Nanos) -> Nanos {
        now.plus(CLAIM)
    }

    /// The reservation was made and is good from `at` on: then it is the next lane's turn.
    pub(super) fn reserved(&self, _: ReservationRight, direction: usize, at: Nanos) {
        let turn = &self.member.turns[direction];
        let others = turn.waiting.load(Ordering::Relaxed) & !self.bit();
        turn.first.store(next_place(others, self.place) as u64, Ordering::Relaxed);
        turn.next.store(at.0, Ordering::Release);
    }

    /// The reservation that was good from `at` on was given back.
    pub(super) fn cancelled(&self, direction: usize, at: Nanos) {
        let next = &self.member.turns[direction].next;
        // It fails if somebody else has reserved since, which stays.
        next.compare_exchange(at.0, 0, Ordering::Release, Ordering::Relaxed).ok();
    }

    /// Whether no other lane goes before this one.
    fn is_first(&self, turn: &ReservationTurn) -> bool {
        let others = turn.waiting.load(Ordering::Relaxed) & !self.bit();
        let first = turn.first.load(Ordering::Relaxed);
        others == 0 || first == self.place as u64 || others & (1 << (first % PLACES as u64)) == 0
    }

    fn bit(&self) -> u64 {
        1 << self.place
    }
}

impl Drop for GroupMemberLane {
    fn drop(&mut self) {
        for direction in 0..self.member.turns.len() {
            self.done(direction);
        }
        self.member.places.lock().expect("no holder of this lock panics")[self.place] -= 1;
    }
}

/// The first place behind `place`, going round, whose bit is set; `place` itself if there is none.
fn next_place(others: u64, place: usize) -> usize {
    let places = u32::try_from(place + 1).expect("there are few places") % u64::BITS;
    let distance = others.rotate_right(places).trailing_zeros();
    if distance == u64::BITS { place } else { (place + 1 + distance as usize) % PLACES }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_place_is_the_first_that_waits_going_round() {
        assert_eq!(next_place(0, 5), 5);
        assert_eq!(next_place(1 << 6, 5), 6);
        assert_eq!(next_place(1 << 4, 5), 4);
        assert_eq!(next_place(1, 63), 0);
        assert_eq!(next_place(1 << 63, 0), 63);
        assert_eq!(next_place(1 << 63 | 1 << 3, 3), 63);
        assert_eq!(next_place(1 << 63 | 1 << 3, 62), 63);
    }

    #[test]
    fn the_lane_whose_turn_it_is_goes_first_and_the_others_after_its_grace() {
        let member = Arc::new(GroupMember::default());
        let seats = [GroupMemberLane::take(&member), GroupMemberLane::take(&member)];
        let later = |nanos: Nanos| nanos.plus(Nanos(1_000_000));
        let now = Nanos(5);
        seats[1].wait(0);
        let claimed = seats[0].claim(0, now).unwrap();
        assert!(seats[1].claim(0, now).is_none());
        seats[0].reserved(claimed, 0, later(now));
        // Seat 1 waits, so it is next.
        assert_eq!(seats[1].may_reserve(0, now), Err(later(now)));
        assert_eq!(seats[0].may_reserve(0, now), Err(later(now).plus(GRACE)));
        assert_eq!(seats[1].may_reserve(0, later(now)), Ok(()));
        assert_eq!(seats[0].may_reserve(0, later(now).plus(GRACE)), Ok(()));
        // The other way is another matter.
        assert_eq!(seats[0].may_reserve(1, now), Ok(()));
        // Who gives back what it has reserved lets the next one at it, and who goes leaves no bit.
        let [first, second] = seats;
        first.cancelled(0, later(now));
        assert_eq!(second.may_reserve(0, now), Ok(()));
        drop(second);
        assert_eq!(member.turns[0].waiting.load(Ordering::Relaxed), 0);
        assert_eq!(GroupMemberLane::take(&member).place, 1);
        drop(first);
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p layers --release --lib loom_`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn loom_two_lanes_do_not_reserve_for_one_turn() {
        loom::model(|| {
            let member = Arc::new(GroupMember::default());
            let (mine, others) = (GroupMemberLane::take(&member), GroupMemberLane::take(&member));
            let take = |lane: GroupMemberLane, at: Nanos| {
                lane.wait(0);
                let claimed = lane.claim(0, Nanos(1));
                let won = claimed.is_some();
                if let Some(claimed) = claimed {
                    lane.reserved(claimed, 0, at);
                }
                (lane, won)
            };
            let other = loom::thread::spawn(move || take(others, Nanos(70_000)));
            let (mine, won) = take(mine, Nanos(50_000));
            let (others, other_won) = other.join().expect("it does not panic");
            assert!(won != other_won, "{won} {other_won}");
            // Both see that reservation, and only once it has come one of them may.
            let next = if won { Nanos(50_000) } else { Nanos(70_000) };
            assert!(mine.may_reserve(0, next.minus(Nanos(1))).is_err());
            assert!(others.may_reserve(0, next.minus(Nanos(1))).is_err());
            let first = if mine.is_first(&member.turns[0]) { &mine } else { &others };
            assert_eq!(first.may_reserve(0, next), Ok(()));
            // What one lane gives back of its own is free at once.
            first.cancelled(0, next);
            assert_eq!(first.may_reserve(0, Nanos(1)), Ok(()));
        });
    }
}
