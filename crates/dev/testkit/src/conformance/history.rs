//! What each sector of a disk may hold, while requests overlap, fail, and the power goes.
//!
//! Where it stands: a run tells when each request begins and ends; a read that ends is compared with what may be
//! there. After a loss of power every change may be there that no durable one has replaced.
//!
//! Invariants: a change replaces those that had ended before it began, and only once it has ended itself. One that
//! failed, and a discard, may have happened or not: they replace nothing.

use anyhow::{Result, bail};

use super::stamp::Stamp;

/// A moment between two events of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// Whether a change that has ended is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is.
    Sure,
    /// It may be, sector by sector.
    Possible,
}

/// Whether an ended change survives a loss of power by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It does.
    AtOnce,
    /// With the next flush.
    WithFlush,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    stamp: Stamp,
    begun: Moment,
    ended: Option<Moment>,
    effect: Effect,
    kept: Kept,
    /// Since when a later one is there in its place.
    replaced: Option<Moment>,
}

/// The history of a disk.
#[derive(Debug)]
pub struct History {
    /// What each sector may hold, oldest first.
    sectors: Vec<Vec<Change>>,
    now: u64,
    /// What ended before was made durable by a flush.
    flushed: Moment,
    /// When the reads began that have not ended.
    reads: Vec<Moment>,
}

impl History {
    /// A disk that holds this, durably.
    pub fn new(content: impl Iterator<Item = Stamp>) -> Self {
        let first = |stamp| Change {
            stamp,
            begun: Moment(0),
            ended: Some(Moment(0)),
            effect: Effect::Sure,
            kept: Kept::AtOnce,
            replaced: None,
        };
        let sectors = content.map(|stamp| vec![first(stamp)]).collect();
        Self { sectors, now: 0, flushed: Moment(0), reads: Vec::new() }
    }

    /// The next moment.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        Moment(self.now)
    }

    /// A change begins that leaves this in each sector, from the first one on.
    pub fn begin_change(&mut self, first: usize, stamps: impl Iterator<Item = Stamp>) -> Moment {
        let begun = self.tick();
        for (stamp, changes) in stamps.zip(&mut self.sectors[first..]) {
            changes.push(Change {
                stamp,
                begun,
                ended: None,
                effect: Effect::Possible,
                kept: Kept::WithFlush,
                replaced: None,
            });
        }
        begun
    }

    /// The change that began then has ended.
    pub fn end_change(
        &mut self,
        first: usize,
        count: usize,
        begun: Moment,
        effect: Effect,
        kept: Kept,
    ) {
        let now = self.tick();
        let oldest_read = self.reads.iter().min().copied().unwrap_or(now);
        let flushed = self.flushed;
        for changes in &mut self.sectors[first..first + count] {
            let own = changes.iter_mut().find(|change| change.begun == begun);
            let own = own.expect("a change that ends has begun");
            (own.ended, own.effect, own.kept) = (Some(now), effect, kept);
            if effect == Effect::Sure {
                for change in changes.iter_mut().filter(|change| change.ended_before(begun)) {
                    change.replaced = change.replaced.or(Some(now));
                }
            }
            forget(changes, oldest_read, flushed);
        }
    }

    /// A read begins.
    pub fn begin_read(&mut self) -> Moment {
        let begun = self.tick();
        self.reads.push(begun);
        begun
    }

    /// The read that began then ends; what it has found was compared before.
    pub fn end_read(&mut self, begun: Moment) {
        let place = self.reads.iter().position(|read| *read == begun);
        self.reads.swap_remove(place.expect("a read that ends has begun"));
    }

    /// Compares what a read, that began then and ends now, found in a sector.
    pub fn check(&self, sector: usize, begun: Moment, found: Stamp) -> Result<()> {
        let may_be = |change: &&Change| change.replaced.is_none_or(|replaced| replaced >= begun);
        let mut expected = self.sectors[sector].iter().filter(may_be);
        if expected.any(|change| change.stamp == found) {
            return Ok(());
        }
        let expected = self.sectors[sector].iter().filter(may_be);
        let expected: Vec<String> = expected.map(|change| change.stamp.to_string()).collect();
        bail!("sector {sector} holds {found}; expected {}", expected.join(", or "));
    }

    /// A flush that began then has made durable what had ended before.
    pub fn flushed(&mut self, begun: Moment) {
        self.flushed = self.flushed.max(begun);
    }

    /// The power goes: nothing is in flight any more, and what was not durable may be there or not.
    pub fn lose_power(&mut self) {
        let now = self.tick();
        let flushed = self.flushed;
        for changes in &mut self.sectors {
            let all = changes.clone();
            changes.retain(|change| !all.iter().any(|it| it.outlasts(change, flushed)));
            for change in changes {
                change.ended = Some(now);
                change.replaced = None;
                // Which of them is there is not known, so none of them replaces another.
                (change.effect, change.kept) = (Effect::Possible, Kept::AtOnce);
            }
        }
        self.reads.clear();
    }
}

impl Change {
    fn ended_before(&self, moment: Moment) -> bool {
        self.ended.is_some_and(|ended| ended < moment)
    }

    /// Whether a loss of power cannot bring the other one back.
    fn outlasts(&self, other: &Self, flushed: Moment) -> bool {
        let is_durable = self.kept == Kept::AtOnce || self.ended_before(flushed);
        let is_there = self.ended.is_some() && self.effect == Effect::Sure;
        is_there && is_durable && other.ended_before(self.begun)
    }
}

/// Drops what no read may find any more, not even after a loss of power.
fn forget(changes: &mut Vec<Change>, oldest_read: Moment, flushed: Moment) {
    let newest = changes.iter().filter(|it| it.effect == Effect::Sure && it.ended.is_some());
    let durable = newest.filter(|it| it.kept == Kept::AtOnce || it.ended_before(flushed));
    let Some(last) = durable.max_by_key(|it| it.begun).copied() else { return };
    changes.retain(|change| {
        let is_over = change.replaced.is_some_and(|replaced| replaced < oldest_read);
        !(is_over && last.outlasts(change, flushed))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Stamp = Stamp::ZEROES;

    fn stamp(number: u64) -> Stamp {
        Stamp::of_request(number, 0)
    }

    fn history() -> History {
        History::new(std::iter::once(OLD))
    }

    fn begin(history: &mut History, number: u64) -> Moment {
        history.begin_change(0, std::iter::once(stamp(number)))
    }

    fn write(history: &mut History, number: u64, effect: Effect, kept: Kept) {
        let begun = begin(history, number);
        history.end_change(0, 1, begun, effect, kept);
    }

    #[track_caller]
    fn check(history: &mut History, possible: &[Stamp]) {
        let begun = history.begin_read();
        for found in [OLD, stamp(1), stamp(2), stamp(3)] {
            let expected = possible.contains(&found);
            assert_eq!(history.check(0, begun, found).is_ok(), expected, "{found}");
        }
        history.end_read(begun);
    }

    #[test]
    fn a_write_that_has_ended_must_be_found() {
        let mut history = history();
        check(&mut history, &[OLD]);
        write(&mut history, 1, Effect::Sure, Kept::WithFlush);
        check(&mut history, &[stamp(1)]);
    }

    #[test]
    fn a_write_in_flight_or_failed_may_be_found() {
        let mut history = history();
        let begun = begin(&mut history, 1);
        check(&mut history, &[OLD, stamp(1)]);
        history.end_change(0, 1, begun, Effect::Possible, Kept::AtOnce);
        check(&mut history, &[OLD, stamp(1)]);
        write(&mut history, 2, Effect::Sure, Kept::AtOnce);
        check(&mut history, &[stamp(2)]);
    }

    #[test]
    fn writes_that_overlap_in_time_may_win_in_any_order() {
        let mut history = history();
        let (first, second) = (begin(&mut history, 1), begin(&mut history, 2));
        history.end_change(0, 1, second, Effect::Sure, Kept::AtOnce);
        history.end_change(0, 1, first, Effect::Sure, Kept::AtOnce);
        check(&mut history, &[stamp(1), stamp(2)]);
    }

    #[test]
    fn a_read_may_find_what_was_there_when_it_began() {
        let mut history = history();
        let read = history.begin_read();
        write(&mut history, 1, Effect::Sure, Kept::AtOnce);
        write(&mut history, 2, Effect::Sure, Kept::AtOnce);
        for found in [OLD, stamp(1), stamp(2)] {
            history.check(0, read, found).unwrap();
        }
        history.end_read(read);
        check(&mut history, &[stamp(2)]);
    }

    #[test]
    fn what_was_not_flushed_may_be_lost_and_what_was_may_not() {
        let mut history = history();
        write(&mut history, 1, Effect::Sure, Kept::WithFlush);
        let flush = history.tick();
        write(&mut history, 2, Effect::Sure, Kept::WithFlush);
        history.flushed(flush);
        history.lose_power();
        check(&mut history, &[stamp(1), stamp(2)]);
        // Whatever is there stays there.
        history.lose_power();
        check(&mut history, &[stamp(1), stamp(2)]);
        write(&mut history, 3, Effect::Sure, Kept::AtOnce);
        history.lose_power();
        check(&mut history, &[stamp(3)]);
    }
}
