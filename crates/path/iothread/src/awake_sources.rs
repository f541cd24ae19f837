//! Whether another source has something new while one has its turn.
//!
//! Where it stands: a turn beside others asks after each step ([`OtherAwakeSources::have_new`]) and ends
//! when one has; the event loop then finds that one first.
//!
//! A source that waits for its turn already does not count: sources that always have more would
//! cut each other's turns short for nothing.
//!
//! Limits: at most [`GLANCES_MAX`] sources are looked at for each step and each round, in turn, so
//! that many silent ones do not cost more than the requests.

use std::cell::Cell;
use std::ops::ControlFlow;

use request_path::{OtherSources, SourceKey};

use crate::event_loop::SourceEntry;

/// How many sources one scan takes in. A look costs a few nanoseconds, a request about 100.
const GLANCES_MAX: usize = 16;

/// Where the next look at the awake sources begins (round-robin).
#[derive(Debug, Default)]
pub(crate) struct ScanCursor(Cell<usize>);

impl ScanCursor {
    /// Shows the sources it takes in, until one is what was looked for: with that the next scan
    /// begins. Whether there was one.
    pub(crate) fn each(
        &self,
        awake: &[SourceKey],
        mut is_it: impl FnMut(SourceKey) -> ControlFlow<()>,
    ) -> bool {
        let mut place = self.0.get();
        for _ in 0..awake.len().min(GLANCES_MAX) {
            if place >= awake.len() {
                place = 0;
            }
            if is_it(awake[place]).is_break() {
                self.0.set(place);
                return true;
            }
            place += 1;
        }
        self.0.set(place);
        false
    }
}

/// The awake sources of an iothread other than the one whose turn it is, which ends its turn early if one of them has
/// something new.
#[derive(Debug)]
pub(crate) struct OtherAwakeSources<'a> {
    /// Those with smaller keys.
    pub(crate) before: &'a [Option<SourceEntry>],
    /// Those with larger ones.
    pub(crate) after: &'a [Option<SourceEntry>],
    pub(crate) awake: &'a [SourceKey],
    pub(crate) scan: &'a ScanCursor,
}

impl OtherSources for OtherAwakeSources<'_> {
    fn have_new(&self) -> bool {
        self.scan.each(self.awake, |key| {
            let place = key.0 as usize;
            let served = match place.checked_sub(self.before.len()) {
                None => &self.before[place],
                // The one whose turn it is.
                Some(0) => return ControlFlow::Continue(()),
                Some(further) => &self.after[further - 1],
            };
            match served {
                Some(served) if served.has_new() => ControlFlow::Break(()),
                Some(_) | None => ControlFlow::Continue(()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: u32) -> Vec<SourceKey> {
        (0..count).map(SourceKey).collect()
    }

    /// The sources that a scan takes in before the one that is looked for.
    fn seen(scan: &ScanCursor, awake: &[SourceKey], wanted: u32) -> Vec<u32> {
        let mut seen = Vec::new();
        scan.each(awake, |key| {
            if key.0 == wanted {
                return ControlFlow::Break(());
            }
            seen.push(key.0);
            ControlFlow::Continue(())
        });
        seen
    }

    #[test]
    fn glances_go_round_and_come_back_to_what_was_found() {
        let (scan, awake) = (ScanCursor::default(), keys(3));
        assert_eq!(seen(&scan, &awake, 9), [0, 1, 2]);
        assert_eq!(seen(&scan, &awake, 1), [0]);
        assert_eq!(seen(&scan, &awake, 9), [1, 2, 0]);
        // Some have left.
        assert_eq!(seen(&scan, &keys(1), 9), [0]);
        assert_eq!(seen(&scan, &[], 9), [0; 0]);
    }

    #[test]
    fn of_many_a_glance_takes_in_the_next_few() {
        let (scan, awake) = (ScanCursor::default(), keys(40));
        for expected in [0..16, 16..32] {
            assert_eq!(seen(&scan, &awake, 99), expected.collect::<Vec<_>>());
        }
        let rest: Vec<_> = (32..40).chain(0..8).collect();
        assert_eq!(seen(&scan, &awake, 99), rest);
    }
}
