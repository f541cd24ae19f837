//! Requests that are held, each until its own time.
//!
//! Where it stands in the life of a request: a lane that answers later keeps the request here between
//! [`crate::Lane::map`] and [`crate::Lane::resume`].
//!
//! Invariants: what is held is taken once. Of two requests the one that is due first comes first, and of
//! two that are due together the one that was held first.
//! Limits: whoever asks lanes bounds how many requests are in flight; the room for as many is kept.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Instant;

use crate::{Answer, Mapping};

/// Requests that a lane holds, each until a time of its own. Pure data: it reads no clock.
#[derive(Debug, Default)]
pub struct DelayQueue {
    heap: BinaryHeap<Entry>,
    /// How many were ever held.
    count: u64,
}

/// A request that is held, and until when.
#[derive(Debug)]
struct Entry {
    at: Instant,
    number: u64,
    since: Instant,
    mapping: Mapping,
}

impl DelayQueue {
    /// Holds a request from `now` until `at`, and answers it so.
    pub fn hold(&mut self, mapping: &mut Mapping, now: Instant, at: Instant) {
        mapping.answer = Answer::Held;
        self.heap.push(Entry { at, number: self.count, since: now, mapping: *mapping });
        self.count += 1;
    }

    /// When the next request is due; `None` while nothing is held.
    pub fn due(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Takes the next request that is due, as if nobody had answered it yet.
    pub fn take(&mut self, now: Instant) -> Option<Mapping> {
        if self.due()? > now {
            return None;
        }
        let Mapping { token, operation, .. } = self.heap.pop()?.mapping;
        Some(Mapping::new(token, operation))
    }

    /// Makes all due that are held, in the order in which they came.
    pub fn release(&mut self) {
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        for entry in &mut entries {
            entry.at = entry.at.min(entry.since);
        }
        self.heap = BinaryHeap::from(entries);
    }
}

/// What comes first is the greatest, as the heap wants it.
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Clock as _, FailKind, Operation, SystemClock, Token};

    const MS: Duration = Duration::from_millis(1);

    fn hold(queue: &mut DelayQueue, token: u32, now: Instant, at: Instant) {
        let mut mapping = Mapping::new(Token(token), Operation::Flush);
        queue.hold(&mut mapping, now, at);
        assert_eq!(mapping.answer, Answer::Held);
    }

    /// The tokens that are due, in order.
    fn taken(queue: &mut DelayQueue, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| queue.take(now)).map(|mapping| mapping.token.0).collect()
    }

    #[test]
    fn requests_come_when_they_are_due_and_not_before() {
        let start = SystemClock.now();
        let mut queue = DelayQueue::default();
        assert_eq!(queue.due(), None);
        for (token, ms) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            hold(&mut queue, token, start, start + MS * ms);
        }
        assert_eq!(queue.due(), Some(start + MS * 10));
        assert_eq!(taken(&mut queue, start + MS * 10 - Duration::from_nanos(1)), []);
        // Those of one time come in the order in which they were held.
        assert_eq!(taken(&mut queue, start + MS * 10), [2, 4]);
        assert_eq!(queue.due(), Some(start + MS * 20));
        assert_eq!(taken(&mut queue, start + MS * 1000), [3, 1]);
        assert_eq!(queue.due(), None);
    }

    #[test]
    fn what_is_released_is_due_at_once_and_what_comes_later_is_not() {
        let start = SystemClock.now();
        let mut queue = DelayQueue::default();
        hold(&mut queue, 1, start, start + MS * 1000);
        hold(&mut queue, 2, start + MS, start + MS * 500);
        queue.release();
        hold(&mut queue, 3, start + MS, start + MS * 500);
        // No clock has to be read to see that it is due: the times lie in the past.
        assert_eq!(queue.due(), Some(start));
        assert_eq!(taken(&mut queue, start + MS), [1, 2]);
        assert_eq!(queue.due(), Some(start + MS * 500));
    }

    #[test]
    fn what_is_taken_is_as_it_was_held_and_unanswered() {
        let start = SystemClock.now();
        let mut queue = DelayQueue::default();
        let mut mapping = Mapping::new(Token(7), Operation::Flush);
        queue.hold(&mut mapping, start, start);
        let taken = queue.take(start).unwrap();
        assert_eq!((taken.token, taken.operation), (Token(7), Operation::Flush));
        assert_eq!(taken.answer, Answer::Refused(FailKind::Io));
    }
}
