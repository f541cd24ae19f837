//! The requests of a source that are not answered yet.
//!
//! Invariants: a place for each slot, taken from when a request is brought until it is answered: exactly one answer
//! for each, also if a front end or an iothread is wrong.
//! Threads: travels with its source.

use block::{Operation, Outcome, Slot};

use crate::Counters;

/// What a request is counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    Discard,
    WriteZeroes,
    Other,
}

impl Kind {
    pub(crate) fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Read(_) => Self::Read,
            Operation::Write(..) => Self::Write,
            Operation::Flush => Self::Flush,
            Operation::Discard(..) => Self::Discard,
            Operation::WriteZeroes(..) => Self::WriteZeroes,
        }
    }
}

/// The requests of one source, by slot, with what their answers need.
#[derive(Debug)]
pub(crate) struct OpenRequests<R> {
    places: Box<[Option<(Kind, R)>]>,
    count: usize,
    counters: Counters,
}

impl<R: Copy> OpenRequests<R> {
    /// None yet, of so many slots.
    pub(crate) fn new(slots: u16) -> Self {
        let places = vec![None; usize::from(slots)].into_boxed_slice();
        Self { places, count: 0, counters: Counters::default() }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Those that were answered.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// A request was brought. Panics if another one has its slot.
    pub(crate) fn enter(&mut self, slot: Slot, kind: Kind, reply: R) {
        let before = self.places[usize::from(slot.0)].replace((kind, reply));
        assert!(before.is_none(), "request {} was brought twice", slot.0);
        self.count += 1;
    }

    /// A request is answered. Panics if it was before.
    pub(crate) fn answer(&mut self, slot: Slot, outcome: Outcome) -> R {
        let Some((kind, reply)) = self.places[usize::from(slot.0)].take() else {
            panic!("request {} was completed twice", slot.0)
        };
        self.count -= 1;
        self.counters.add(kind, outcome);
        reply
    }
}

impl Counters {
    fn add(&mut self, kind: Kind, outcome: Outcome) {
        match kind {
            Kind::Read => self.reads += 1,
            Kind::Write => self.writes += 1,
            Kind::Flush => self.flushes += 1,
            Kind::Discard => self.discards += 1,
            Kind::WriteZeroes => self.write_zeroes += 1,
            Kind::Other => {}
        }
        if let Outcome::Failed(_) = outcome {
            self.errors += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use block::FailKind;

    #[test]
    fn an_answer_has_what_the_request_came_with_and_is_counted() {
        let mut open = OpenRequests::new(4);
        open.enter(Slot(3), Kind::Read, 'r');
        open.enter(Slot(0), Kind::Flush, 'f');
        open.enter(Slot(1), Kind::Other, 'o');
        assert_eq!(open.count(), 3);
        assert_eq!(open.answer(Slot(3), Outcome::Done), 'r');
        assert_eq!(open.answer(Slot(0), Outcome::Failed(FailKind::Io)), 'f');
        assert_eq!(open.answer(Slot(1), Outcome::Done), 'o');
        assert_eq!(open.count(), 0);
        let counters = Counters { reads: 1, flushes: 1, errors: 1, ..Counters::default() };
        assert_eq!(open.counters(), counters);
        open.enter(Slot(3), Kind::Write, 'w');
        assert_eq!(open.answer(Slot(3), Outcome::Done), 'w');
    }

    #[test]
    #[should_panic(expected = "request 2 was completed twice")]
    fn a_second_answer_is_a_mistake() {
        let mut open = OpenRequests::new(4);
        open.enter(Slot(2), Kind::Read, ());
        open.answer(Slot(2), Outcome::Done);
        open.answer(Slot(2), Outcome::Done);
    }

    #[test]
    #[should_panic(expected = "request 2 was brought twice")]
    fn a_slot_that_is_in_flight_is_not_brought_again() {
        let mut open = OpenRequests::new(4);
        open.enter(Slot(2), Kind::Read, ());
        open.enter(Slot(2), Kind::Write, ());
    }
}
