//! How much each of several parties may have of something that they share, so that none of them, however
//! long it keeps what it has, leaves another one without.
//!
//! Where it stands in the life of a request: the rooms of an iothread are asked here, by the lane or by the file that
//! a request is for: requests, pieces and segments (`request_path::lanes`), bounce buffers (`request_path::engine`),
//! transfers through the page cache (`kernel`), operations of Linux AIO (`linux_aio`) and workers (`workers`).
//!
//! Invariants: a party may have at least [`FairShareLimit::new`]'s `least` whatever the others have, and at most as much as
//! all others leave free. One that wants without end so has half of everything if it is alone, two have a third each,
//! and so on: something is free for whoever comes next. Nobody has to know how many parties there are. Limits: all
//! together have at most twice what one may have alone, and `least` for each party.

use std::collections::VecDeque;

/// How much of a shared resource one party may have: at most what the others leave free, and a minimum whatever they
/// have.
#[derive(Debug, Clone, Copy)]
pub struct FairShareLimit {
    all: usize,
    least: usize,
}

impl FairShareLimit {
    /// A party has at most `alone` while no other has anything, and at least `least` whatever they have.
    pub const fn new(alone: usize, least: usize) -> Self {
        assert!(alone > 0 && least > 0 && least <= alone, "everybody may have something");
        Self { all: 2 * alone, least }
    }

    /// How much more a party may have that has `own` of the `taken` that all parties have.
    pub const fn room(&self, taken: usize, own: usize) -> usize {
        // With each that it takes, what is free becomes less by one and what it has more.
        let fair = self.all.saturating_sub(taken).saturating_sub(own).div_ceil(2);
        let reserved = self.least.saturating_sub(own);
        if fair > reserved { fair } else { reserved }
    }
}

/// Items that wait for a shared resource, per party. Parties are numbered from 0, in few numbers, and take turns.
///
/// Invariant: who waits has all of its `least`, so no more parties wait than what is taken allows.
#[derive(Debug)]
pub struct PartyQueues<T> {
    budget: FairShareLimit,
    taken: usize,
    parties: Vec<Party<T>>,
    /// The parties for which something waits, each once.
    turns: VecDeque<usize>,
}

/// What one party has of the resource, and what waits for more.
#[derive(Debug)]
struct Party<T> {
    own: usize,
    waiting: VecDeque<T>,
}

impl<T> PartyQueues<T> {
    /// Nobody has or wants anything yet.
    pub fn new(budget: FairShareLimit) -> Self {
        Self { budget, taken: 0, parties: Vec::new(), turns: VecDeque::new() }
    }

    /// A party wants one more, behind what it wants already.
    pub fn push(&mut self, party: usize, item: T) {
        if party >= self.parties.len() {
            let new = || Party { own: 0, waiting: VecDeque::new() };
            self.parties.resize_with(party + 1, new);
        }
        let waiting = &mut self.parties[party].waiting;
        if waiting.is_empty() {
            self.turns.push_back(party);
        }
        waiting.push_back(item);
    }

    /// The next for which there is room, with its party. It has its part now, until [`PartyQueues::done`].
    pub fn take(&mut self) -> Option<(usize, T)> {
        let turn = (0..self.turns.len()).find(|turn| self.has_room(self.turns[*turn]))?;
        let party = self.turns.remove(turn).expect("just found");
        let Party { own, waiting } = &mut self.parties[party];
        let item = waiting.pop_front().expect("something waits for who has a turn");
        *own += 1;
        self.taken += 1;
        if !waiting.is_empty() {
            self.turns.push_back(party);
        }
        Some((party, item))
    }

    /// Takes out what waits for a party and is not wanted any more.
    pub fn withdraw(&mut self, party: usize, mut is_over: impl FnMut(&T) -> bool) -> Vec<T> {
        let Some(Party { waiting, .. }) = self.parties.get_mut(party) else { return Vec::new() };
        let (over, left): (Vec<T>, Vec<T>) = waiting.drain(..).partition(&mut is_over);
        *waiting = left.into();
        if waiting.is_empty() {
            self.turns.retain(|turn| *turn != party);
        }
        over
    }

    /// A party gives one back.
    pub fn done(&mut self, party: usize) {
        self.parties[party].own -= 1;
        self.taken -= 1;
    }

    fn has_room(&self, party: usize) -> bool {
        self.budget.room(self.taken, self.parties[party].own) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much each of so many has that want without end, one after the other.
    fn greedy(budget: FairShareLimit, parties: usize) -> Vec<usize> {
        let mut own = vec![0; parties];
        while let Some(party) = (0..parties)
            .filter(|party| budget.room(own.iter().sum(), own[*party]) > 0)
            .min_by_key(|party| own[*party])
        {
            own[party] += 1;
        }
        own
    }

    #[test]
    fn the_greedy_have_equal_parts_and_leave_one_for_who_comes_next() {
        let budget = FairShareLimit::new(16, 1);
        assert_eq!(greedy(budget, 1), [16]);
        assert_eq!(greedy(budget, 2), [11, 11]);
        assert_eq!(greedy(budget, 3), [8, 8, 8]);
        assert_eq!(greedy(budget, 100), [1; 100]);
        assert_eq!(greedy(FairShareLimit::new(16, 4), 100), [4; 100]);
    }

    #[test]
    fn room_is_what_can_be_taken_one_by_one() {
        let budget = FairShareLimit::new(16, 4);
        for (others, own) in (0..40).flat_map(|others| (0..20).map(move |own| (others, own))) {
            let one_by_one = (own..).take_while(|own| budget.room(others + own, *own) > 0).count();
            assert_eq!(budget.room(others + own, own), one_by_one, "{others} {own}");
        }
    }

    #[test]
    fn who_comes_late_is_served_before_those_who_have_theirs() {
        let mut queue = PartyQueues::new(FairShareLimit::new(2, 1));
        (0..10).for_each(|item| queue.push(0, item));
        let taken: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        assert_eq!(taken, [(0, 0), (0, 1)]);
        for party in 1..5 {
            queue.push(party, 100);
            queue.push(party, 101);
            assert_eq!(queue.take(), Some((party, 100)));
            assert_eq!(queue.take(), None);
        }
        queue.done(3);
        assert_eq!(queue.take(), Some((3, 101)));
        assert_eq!(queue.take(), None);
    }

    #[test]
    fn parties_take_turns() {
        let mut queue = PartyQueues::new(FairShareLimit::new(2, 1));
        (0..3).for_each(|party| (0..3).for_each(|item| queue.push(party, item)));
        let mut order = Vec::new();
        while let Some((party, _)) = queue.take() {
            order.push(party);
            queue.done(party);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }
}
