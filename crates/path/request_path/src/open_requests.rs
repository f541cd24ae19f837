//! The requests of a source that are not answered yet.
//!
//! Invariants: a place for each slot, taken from when a request is brought until it is answered: exactly one answer
//! for each, also if a front end or an iothread is wrong.
//! Threads: travels with its source.

use block::{ByteCount, Operation, Outcome, SECTOR_BYTES, SourceRequestSlot};

use crate::Counters;
use crate::gauges::{SampleWeight, SourceMeter, Ticks, TimedRequests};

/// What a request is counted as in the statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It flushes.
    Flush,
    /// It discards.
    Discard,
    /// It writes zeroes.
    WriteZeroes,
    /// It asks what bytes are, or its front end answers it.
    Other,
}

impl RequestKind {
    /// All kinds, in their order.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes, Self::Other];

    pub(crate) fn of(operation: &Operation) -> Self {
        match operation {
            Operation::Read(_) => Self::Read,
            Operation::Write(..) => Self::Write,
            Operation::Flush => Self::Flush,
            Operation::Discard(..) => Self::Discard,
            Operation::WriteZeroes(..) => Self::WriteZeroes,
            Operation::Status(_) => Self::Other,
        }
    }
}

/// A request that is not answered yet.
#[derive(Debug, Clone, Copy)]
struct OpenRequest<R> {
    kind: RequestKind,
    /// Of the disk; of a flush none.
    sectors: u32,
    /// When it began, if that is measured.
    begun: Option<Ticks>,
    reply: R,
}

/// The requests of one source that are not answered yet, by slot.
#[derive(Debug)]
pub(crate) struct OpenRequests<R> {
    places: Box<[Option<OpenRequest<R>>]>,
    count: usize,
    /// Of the disk, of all of them.
    sectors: u64,
    /// Those of them that have a time at which they began.
    timed: TimedRequests,
    /// Those without one that may get it yet.
    new: Vec<SourceRequestSlot>,
    /// When the requests that are brought now began, if that is measured.
    pub(crate) begin: Option<Ticks>,
    /// What the clock says for the answers that are given now.
    pub(crate) now: Option<Ticks>,
    counters: Counters,
}

impl<R: Copy> OpenRequests<R> {
    /// None yet, of so many slots.
    pub(crate) fn new(slots: u16) -> Self {
        let places = vec![None; usize::from(slots)].into_boxed_slice();
        Self {
            places,
            count: 0,
            sectors: 0,
            timed: TimedRequests::default(),
            new: Vec::with_capacity(usize::from(slots)),
            begin: None,
            now: None,
            counters: Counters::default(),
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// How much of the disk they are about, together.
    pub(crate) fn bytes(&self) -> ByteCount {
        ByteCount(self.sectors * SECTOR_BYTES)
    }

    /// Whether some of them began at a time that is known: their answers need to know the time.
    pub(crate) fn are_timed(&self) -> bool {
        self.timed.count > 0
    }

    /// Those that began at a time that is known.
    pub(crate) fn timed(&self) -> TimedRequests {
        self.timed
    }

    /// The clock was looked at.
    pub(crate) fn see(&mut self, now: Ticks) {
        self.timed.see(now);
    }

    /// Those that were answered.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A request was brought. Panics if another one has its slot.
    // A call would store the fields of `reply` one by one and load them together, which waits for the stores: 6 ns.
    #[inline(always)]
    pub(crate) fn enter(
        &mut self,
        slot: SourceRequestSlot,
        kind: RequestKind,
        bytes: ByteCount,
        reply: R,
    ) {
        // Requests are below 2 GiB.
        let sectors = u32::try_from(bytes.0 / SECTOR_BYTES).unwrap_or(u32::MAX);
        let request = OpenRequest { kind, sectors, begun: self.begin, reply };
        let place = &mut self.places[usize::from(slot.0)];
        assert!(place.is_none(), "request {} was brought twice", slot.0);
        *place = Some(request);
        self.count += 1;
        self.sectors += u64::from(sectors);
        match self.begin {
            Some(begun) => self.timed.enter(begun),
            None => self.new.push(slot),
        }
    }

    /// Whether requests that were brought since the last time are open, and have no time at which they began.
    pub(crate) fn has_untimed(&mut self) -> bool {
        if self.count as u64 == self.timed.count {
            self.new.clear();
        }
        !self.new.is_empty()
    }

    /// They began now.
    pub(crate) fn time(&mut self, now: Ticks) {
        self.see(now);
        for slot in self.new.drain(..) {
            if let Some(request) = &mut self.places[usize::from(slot.0)]
                && request.begun.is_none()
            {
                request.begun = Some(now);
                self.timed.enter(now);
            }
        }
    }

    /// A request is answered. Panics if it was before.
    // As above.
    #[inline(always)]
    pub(crate) fn answer(
        &mut self,
        slot: SourceRequestSlot,
        outcome: Outcome,
        meter: &mut SourceMeter,
    ) -> R {
        let Some(request) = self.places[usize::from(slot.0)].take() else {
            panic!("request {} was completed twice", slot.0)
        };
        self.count -= 1;
        self.sectors -= u64::from(request.sectors);
        if let Some(begun) = request.begun {
            self.timed.leave(begun);
            if let Some(now) = self.now {
                // Of the others of its turn nobody knows, since none of them is timed.
                let is_sample = self.begin == Some(begun);
                let weight = if is_sample { SampleWeight::Sampled } else { SampleWeight::One };
                meter.answered(request.kind, (begun, now), weight);
            }
        }
        self.counters.add(request.kind, request.sectors, outcome);
        request.reply
    }
}

impl Counters {
    fn add(&mut self, kind: RequestKind, sectors: u32, outcome: Outcome) {
        let bytes = match outcome {
            Outcome::Done => u64::from(sectors) * SECTOR_BYTES,
            Outcome::Failed(_) => 0,
        };
        match kind {
            RequestKind::Read => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            RequestKind::Write => {
                self.writes += 1;
                self.written_bytes += bytes;
            }
            RequestKind::Flush => self.flushes += 1,
            RequestKind::Discard => self.discards += 1,
            RequestKind::WriteZeroes => self.write_zeroes += 1,
            RequestKind::Other => {}
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

    const BLOCK: ByteCount = ByteCount(4096);

    #[test]
    fn an_answer_has_what_the_request_came_with_and_is_counted() {
        let (mut open, mut meter) = (OpenRequests::new(4), SourceMeter::new());
        open.enter(SourceRequestSlot(3), RequestKind::Read, BLOCK, 'r');
        open.enter(SourceRequestSlot(0), RequestKind::Flush, ByteCount(0), 'f');
        open.enter(SourceRequestSlot(1), RequestKind::Other, ByteCount(0), 'o');
        assert_eq!((open.count(), open.bytes()), (3, BLOCK));
        assert_eq!(open.answer(SourceRequestSlot(3), Outcome::Done, &mut meter), 'r');
        assert_eq!(
            open.answer(SourceRequestSlot(0), Outcome::Failed(FailKind::Io), &mut meter),
            'f'
        );
        assert_eq!(open.answer(SourceRequestSlot(1), Outcome::Done, &mut meter), 'o');
        assert_eq!((open.count(), open.bytes()), (0, ByteCount(0)));
        let counters = Counters {
            reads: 1,
            read_bytes: BLOCK.0,
            flushes: 1,
            errors: 1,
            ..Counters::default()
        };
        assert_eq!(*open.counters(), counters);
        open.enter(SourceRequestSlot(3), RequestKind::Write, BLOCK, 'w');
        assert_eq!(
            open.answer(SourceRequestSlot(3), Outcome::Failed(FailKind::Io), &mut meter),
            'w'
        );
        assert_eq!((open.counters().writes, open.counters().written_bytes), (1, 0));
    }

    #[test]
    fn what_is_open_after_its_batch_was_started_is_timed_from_then_on() {
        let (mut open, mut meter) = (OpenRequests::new(4), SourceMeter::new());
        let ticks = |count: u64| Ticks::after(std::time::Duration::from_nanos(count * 256));
        open.enter(SourceRequestSlot(0), RequestKind::Read, BLOCK, ());
        open.enter(SourceRequestSlot(1), RequestKind::Read, BLOCK, ());
        open.answer(SourceRequestSlot(0), Outcome::Done, &mut meter);
        assert!(open.has_untimed() && !open.are_timed());
        open.time(ticks(100));
        assert!(!open.has_untimed() && open.are_timed());
        open.begin = Some(ticks(101));
        open.enter(SourceRequestSlot(0), RequestKind::Read, BLOCK, ());
        open.now = Some(ticks(103));
        open.answer(SourceRequestSlot(0), Outcome::Done, &mut meter);
        open.answer(SourceRequestSlot(1), Outcome::Done, &mut meter);
        assert!(!open.are_timed());
        let gauges = meter.gauges();
        let found: Vec<_> =
            gauges.latency.buckets().map(|(from, _, count)| (from, count)).collect();
        let time = |count: u64| std::time::Duration::from_nanos(count * 256);
        assert_eq!(found, [(time(2), 1), (time(3), 1)]);
    }

    #[test]
    #[should_panic(expected = "request 2 was completed twice")]
    fn a_second_answer_is_a_mistake() {
        let (mut open, mut meter) = (OpenRequests::new(4), SourceMeter::new());
        open.enter(SourceRequestSlot(2), RequestKind::Read, BLOCK, ());
        open.answer(SourceRequestSlot(2), Outcome::Done, &mut meter);
        open.answer(SourceRequestSlot(2), Outcome::Done, &mut meter);
    }

    #[test]
    #[should_panic(expected = "request 2 was brought twice")]
    fn a_slot_that_is_in_flight_is_not_brought_again() {
        let mut open = OpenRequests::new(4);
        open.enter(SourceRequestSlot(2), RequestKind::Read, BLOCK, ());
        open.enter(SourceRequestSlot(2), RequestKind::Write, BLOCK, ());
    }
}
