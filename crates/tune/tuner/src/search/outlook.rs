//! What a search will still do, told beforehand: for the estimate of its time, and for whether there is time to stretch runs.
//!
//! Invariants: nothing here changes a search; what is not known yet is as it usually is.

use plan::contender::Contender;
use plan::runs::{PlannedRun, Purpose, RunKey};

use super::{INTERVAL_FROM, Search};

impl Search<'_> {
    /// The repeats that a search should have time for: those that have an interval.
    pub(crate) fn wanted(&self) -> u16 {
        INTERVAL_FROM.clamp(self.terms.least, self.terms.most)
    }

    /// Everything that a search surely does and has not done: all that is explored at first, and `repeats` of what may be the
    /// answer.
    pub(crate) fn outlook(&self, repeats: u16) -> Vec<PlannedRun> {
        let repeats = repeats.clamp(self.terms.least, self.terms.most);
        if self.sweep().is_none() {
            return self.clone().rest(repeats);
        }
        let mut runs = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            for repeat in 0..self.explored(place) {
                runs.extend(self.deeper(index, repeat));
                runs.extend(self.left(Purpose::Sweep, repeat, index, &place.outlook_explored()));
            }
            for repeat in 0..repeats {
                runs.extend(self.left(Purpose::Confirm, repeat, index, &place.outlook_again()));
            }
        }
        runs
    }

    /// What is missing of so many repeats, by what was found so far.
    fn rest(mut self, repeats: u16) -> Vec<PlannedRun> {
        if self.settled.is_none() {
            self.settle_again(&|_| false);
        }
        let mut runs = Vec::new();
        for repeat in 0..repeats {
            self.add_again(repeat);
            runs.extend(self.blocks_again(repeat).flatten());
        }
        runs
    }

    /// What a block that will probably have these contenders lacks: others may have been measured in it.
    fn left(
        &self,
        purpose: Purpose,
        repeat: u16,
        place: usize,
        contenders: &[Contender],
    ) -> Vec<PlannedRun> {
        let own = |key: &&RunKey| {
            (key.purpose, key.repeat) == (purpose, repeat) && self.places[place].is_of(key)
        };
        let done = self.tried.iter().filter(own).count();
        let mut runs = self.block(purpose, repeat, place, contenders);
        runs.truncate(contenders.len().saturating_sub(done));
        runs
    }

    /// What is left of measuring everything again as often as it takes, if nothing is given up or added.
    pub(super) fn all_again(&self) -> Vec<PlannedRun> {
        let mut all = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            let open = place.open(0, self.terms.least);
            for repeat in 0..self.wanted() {
                all.extend(self.block(Purpose::Confirm, repeat, index, &open));
            }
        }
        all
    }
}
