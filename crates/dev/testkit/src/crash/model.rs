//! What each sector of the disk may hold, by the writes that were completed and the one that is in flight.
//!
//! Invariants: at most one write is in flight for a sector; sequence numbers grow, so of two writes to one sector the
//! one with the higher number is the later one, and a completed write may never be seen to have gone back.

use std::fmt;
use std::ops::Range;

/// Sectors `start..end`.
pub(super) type Sectors = Range<u64>;

#[derive(Clone, Copy, Debug, Default)]
struct Sector {
    /// The last completed write.
    completed: u64,
    /// The last write that was started: the same, or one that is in flight.
    started: u64,
}

/// The disk as it must be.
#[derive(Debug)]
pub(super) struct Model {
    sectors: Vec<Sector>,
    sequence: u64,
}

/// A sector that holds what it may not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// An older write than one that was completed before.
    WentBack { sector: u64, completed: u64, found: u64 },
    /// A write that was never started.
    NeverWritten { sector: u64, started: u64, found: u64 },
}

impl fmt::Display for Wrong {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WentBack { sector, completed, found } => write!(
                formatter,
                "sector {sector} went back: it holds write {found} although write {completed} was completed before"
            ),
            Self::NeverWritten { sector, started, found } => write!(
                formatter,
                "sector {sector} holds write {found}, but {started} was the last one started"
            ),
        }
    }
}

impl Model {
    /// A disk whose sectors all hold write 0.
    pub(super) fn new(sectors: u64) -> Self {
        let sectors = usize::try_from(sectors).expect("a test's disk is small");
        Self { sectors: vec![Sector::default(); sectors], sequence: 0 }
    }

    pub(super) fn length(&self) -> u64 {
        wide(self.sectors.len())
    }

    /// Whether no write is in flight there.
    pub(super) fn is_quiet(&self, range: &Sectors) -> bool {
        self.slice(range).iter().all(|sector| sector.started == sector.completed)
    }

    /// Whether a write was in flight there at some time since `least` was completed. A read meanwhile may find some of
    /// both: the page cache copies a sector in several steps.
    pub(super) fn was_written_since(&self, sector: u64, least: u64) -> bool {
        self.slice(&(sector..sector + 1))[0].started != least
    }

    /// Starts a write, which is then in flight; its sequence number.
    pub(super) fn start_write(&mut self, range: &Sectors) -> u64 {
        assert!(self.is_quiet(range), "two writes at once to {range:?}");
        self.sequence += 1;
        let sequence = self.sequence;
        for sector in self.slice_mut(range) {
            sector.started = sequence;
        }
        sequence
    }

    /// The device has completed the write.
    pub(super) fn complete_write(&mut self, range: &Sectors, sequence: u64) {
        for sector in self.slice_mut(range) {
            assert_eq!(sector.started, sequence, "one write at a time to {range:?}");
            sector.completed = sequence;
        }
    }

    /// A write that was started never reached the device.
    pub(super) fn withdraw_write(&mut self, range: &Sectors) {
        for sector in self.slice_mut(range) {
            sector.started = sector.completed;
        }
    }

    /// What a read that starts now must find at least.
    pub(super) fn completed(&self, range: &Sectors) -> Vec<u64> {
        self.slice(range).iter().map(|sector| sector.completed).collect()
    }

    /// Whether a sector may hold this write now; `least` was completed when the read started.
    pub(super) fn judge(&self, sector: u64, least: u64, found: u64) -> Result<(), Wrong> {
        let started = self.slice(&(sector..sector + 1))[0].started;
        if found < least {
            Err(Wrong::WentBack { sector, completed: least, found })
        } else if found > started {
            Err(Wrong::NeverWritten { sector, started, found })
        } else {
            Ok(())
        }
    }

    fn slice(&self, range: &Sectors) -> &[Sector] {
        &self.sectors[narrow(range)]
    }

    fn slice_mut(&mut self, range: &Sectors) -> &mut [Sector] {
        &mut self.sectors[narrow(range)]
    }
}

fn narrow(range: &Sectors) -> Range<usize> {
    let narrow = |sector: u64| usize::try_from(sector).expect("a test's disk is small");
    narrow(range.start)..narrow(range.end)
}

fn wide(value: usize) -> u64 {
    u64::try_from(value).expect("a usize fits 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One sector, written three times; the third write is in flight.
    fn model() -> Model {
        let mut model = Model::new(8);
        for _ in 0..2 {
            let sequence = model.start_write(&(3..5));
            model.complete_write(&(3..5), sequence);
        }
        model.start_write(&(3..4));
        model
    }

    #[test]
    fn a_lost_write_and_a_stale_one_went_back() {
        let model = model();
        let wrong = Wrong::WentBack { sector: 3, completed: 2, found: 0 };
        assert_eq!(model.judge(3, 2, 0), Err(wrong), "both completed writes are lost");
        let wrong = Wrong::WentBack { sector: 3, completed: 2, found: 1 };
        assert_eq!(model.judge(3, 2, 1), Err(wrong), "the first came back");
    }

    #[test]
    fn a_write_in_flight_may_be_seen_or_not() {
        let model = model();
        assert!(!model.is_quiet(&(0..8)) && model.is_quiet(&(4..8)));
        assert_eq!(model.judge(3, 2, 2), Ok(()));
        assert_eq!(model.judge(3, 2, 3), Ok(()));
    }

    #[test]
    fn a_read_that_started_earlier_may_see_what_was_there_then() {
        let mut model = model();
        let least = model.completed(&(3..4));
        model.complete_write(&(3..4), 3);
        assert_eq!(model.judge(3, least[0], 2), Ok(()));
        assert!(model.judge(3, model.completed(&(3..4))[0], 2).is_err());
    }

    #[test]
    fn what_was_never_written_is_told() {
        let wrong = Wrong::NeverWritten { sector: 4, started: 2, found: 3 };
        assert_eq!(model().judge(4, 2, 3), Err(wrong));
    }
}
