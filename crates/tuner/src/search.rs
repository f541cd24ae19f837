//! What to measure next, told from what was measured so far: explore, look closer, measure again.
//!
//! `course` asks for one block after the other and reports every run. First the numbers of iothreads far apart are explored,
//! then the neighbours of the best and of the 90 % line (`place`). What may be the answer is then measured again, from
//! scratch, until it is known well enough, `most` times or until the time is up: the best of nine explored numbers is
//! partly the luckiest, so no figure that counts comes from the exploration. Unless the user gave the time, all places are
//! measured again `least` times, however long that takes.
//!
//! Invariants: the seed and the recorded runs alone decide the next block, but for the time; so a resumed search goes on
//! as it would have. No run is asked for twice, also if it failed. All places have the same number of repeats, plus or
//! minus one, until only some need more.

mod overall;
mod place;

use std::collections::HashSet;

use load::Random;

use self::overall::Overall;
use self::place::Place;
use crate::contender::Contender;
use crate::matrix::Matrix;
use crate::plan::{PlannedRun, Purpose, RunKey, STRETCH};
use crate::repeats::Repeats;
use crate::results::Run;
use crate::settings::{Settings, Thoroughness};
use crate::steady::UnsteadyRuns;
use crate::weights::Weight;

/// How often each number is explored where some are left out at first.
const EXPLORED: u16 = 2;
/// Repeats that have an interval.
const INTERVAL_FROM: u16 = 6;

/// How thorough the search is.
#[derive(Clone, Copy, Debug)]
struct Terms {
    /// All numbers are explored.
    full: bool,
    /// Repeats of what may be the answer.
    least: u16,
    most: u16,
    /// Repeats that are measured whatever the time: the least, unless the user gave the time too.
    kept: u16,
    seed: u64,
}

/// A search through all entries of a matrix.
#[derive(Clone, Debug)]
pub(crate) struct Search<'a> {
    terms: Terms,
    weights: Vec<Weight>,
    places: Vec<Place<'a>>,
    tried: HashSet<RunKey>,
    /// The repeats for which it is settled what is measured again; missing while it is explored.
    settled: Option<u16>,
}

impl<'a> Search<'a> {
    pub(crate) fn new(matrix: &'a Matrix, settings: &Settings) -> Self {
        let (least, most) = match settings.repeats {
            Repeats::Fixed(number) => (number, number),
            Repeats::Until { least, most } => (least, most),
        };
        let full = settings.search != Thoroughness::Stages;
        let kept = if settings.budget.is_none() { least } else { 0 };
        let terms = Terms { full, least, most, kept, seed: settings.seed };
        let places = matrix.entries.iter().map(|entry| Place::new(entry, full)).collect();
        Self {
            terms,
            weights: settings.weights.clone(),
            places,
            tried: HashSet::new(),
            settled: None,
        }
    }

    /// A run was measured.
    pub(crate) fn measured(&mut self, run: &Run) {
        self.tried.insert(run.key.clone());
        if let Some(place) = self.places.iter_mut().find(|place| place.is_of(&run.key)) {
            place.measured(run);
        }
    }

    /// A run failed; it is not tried again.
    pub(crate) fn failed(&mut self, key: &RunKey) {
        self.tried.insert(key.clone());
        if let Some(place) = self.places.iter_mut().find(|place| place.is_of(key)) {
            place.failed(key);
        }
    }

    /// The next block; `fits` says whether there is time for it. It is asked only when all was explored, and is not heard in
    /// repeats that are kept.
    pub(crate) fn next(&mut self, fits: &dyn Fn(&[PlannedRun]) -> bool) -> Option<Vec<PlannedRun>> {
        if self.settled.is_none() {
            if let Some(block) = self.explore() {
                return Some(block);
            }
            self.choose(fits);
        }
        let block = self.confirm()?;
        let is_kept = block.iter().any(|run| run.key.repeat < self.terms.kept);
        (is_kept || fits(&block)).then_some(block)
    }

    /// Everything that a search surely does and has not done: all that is explored at first, and `repeats` of what may be the
    /// answer.
    pub(crate) fn outlook(&self, repeats: u16) -> Vec<PlannedRun> {
        let repeats = repeats.clamp(self.terms.least, self.terms.most);
        if self.explore().is_none() {
            return self.clone().rest(repeats);
        }
        let mut runs = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            for repeat in 0..self.explored(place) {
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
            self.choose(&|_| false);
        }
        let mut runs = Vec::new();
        for repeat in 0..repeats {
            self.settle(repeat);
            for (index, place) in self.places.iter().enumerate() {
                let open = place.open(repeat, self.terms.least);
                runs.extend(self.block(Purpose::Confirm, repeat, index, &open));
            }
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

    /// The repeats that a search should have time for: those that have an interval.
    pub(crate) fn wanted(&self) -> u16 {
        INTERVAL_FROM.clamp(self.terms.least, self.terms.most)
    }

    /// How often each number is explored: once if all of them are measured again anyway.
    fn explored(&self, place: &Place<'_>) -> u16 {
        match (self.terms.full, place.is_whole()) {
            (true, _) if !place.has_few_numbers() => self.terms.least,
            (true, _) | (false, true) => 1,
            (false, false) => EXPLORED,
        }
    }

    fn explore(&self) -> Option<Vec<PlannedRun>> {
        let most = self.places.iter().map(|place| self.explored(place)).max().unwrap_or(0);
        let overall = Overall::of(&self.places, 0, &self.weights);
        for stage in [Place::first, Place::closer] {
            for repeat in 0..most {
                for (index, place) in self.places.iter().enumerate() {
                    let asked = if repeat < self.explored(place) {
                        stage(place, &overall)
                    } else {
                        Vec::new()
                    };
                    let block = self.block(Purpose::Sweep, repeat, index, &asked);
                    if !block.is_empty() {
                        return Some(block);
                    }
                }
            }
        }
        None
    }

    /// Settles what is measured again, and for how long: twice as long where the exploration was not steady, the least steady
    /// place first, as far as there is time to do everything as often as it takes.
    ///
    /// A place that was begun by an earlier command stays as it is. Which of the others are stretched is the same for a
    /// resumed search that has as much time left: their order rests on the exploration, and what was stretched before them in
    /// it, or not, is so again.
    fn choose(&mut self, fits: &dyn Fn(&[PlannedRun]) -> bool) {
        let overall = Overall::of(&self.places, 0, &self.weights);
        for place in &mut self.places {
            place.choose(&overall);
        }
        self.settled = Some(0);
        let candidates = self.places.iter().enumerate().filter(|(_, place)| !place.is_begun());
        let mut candidates: Vec<(UnsteadyRuns, usize)> =
            candidates.map(|(index, place)| (place.unsteady_runs(), index)).collect();
        candidates.retain(|(runs, _)| runs.are_most());
        candidates.sort_by(|(a, _), (b, _)| b.share().total_cmp(&a.share()));
        for (_, index) in candidates {
            self.places[index].stretch = STRETCH;
            if !fits(&self.all_again()) {
                self.places[index].stretch = 1;
            }
        }
    }

    /// What is left of measuring everything again as often as it takes, if nothing is given up or added.
    fn all_again(&self) -> Vec<PlannedRun> {
        let mut all = Vec::new();
        for (index, place) in self.places.iter().enumerate() {
            let open = place.open(0, self.terms.least);
            for repeat in 0..self.wanted() {
                all.extend(self.block(Purpose::Confirm, repeat, index, &open));
            }
        }
        all
    }

    /// Adds to what is measured again what the blocks before this repeat show to matter.
    fn settle(&mut self, repeat: u16) {
        if self.settled < Some(repeat) {
            let overall = Overall::of(&self.places, repeat, &self.weights);
            self.places.iter_mut().for_each(|place| place.grow(&overall, repeat));
            self.settled = Some(repeat);
        }
    }

    fn confirm(&mut self) -> Option<Vec<PlannedRun>> {
        for repeat in self.settled.unwrap_or(0)..self.terms.most {
            self.settle(repeat);
            for (index, place) in self.places.iter().enumerate() {
                let open = place.open(repeat, self.terms.least);
                let block = self.block(Purpose::Confirm, repeat, index, &open);
                if !block.is_empty() {
                    return Some(block);
                }
            }
        }
        None
    }

    /// The runs of a block that were not tried yet, in the order that the seed gives to all of them.
    fn block(
        &self,
        purpose: Purpose,
        repeat: u16,
        place: usize,
        contenders: &[Contender],
    ) -> Vec<PlannedRun> {
        let entry = self.places[place].entry;
        let number = u64::try_from(place).expect("places are few");
        let again = u64::from(purpose == Purpose::Confirm);
        let mut random =
            Random::stream(self.terms.seed, again << 48 | u64::from(repeat) << 32 | number);
        let seed = random.next_u64();
        let mut contenders = contenders.to_vec();
        random.shuffle(&mut contenders);
        let stretch = if purpose == Purpose::Confirm { self.places[place].stretch } else { 1 };
        let planned = |contender| {
            let (variant, cell) = (entry.variant, entry.cells[0]);
            let key = RunKey { purpose, repeat, step: 0, contender, variant, cell };
            PlannedRun { key, jobs_max: entry.jobs_max(), seed, stretch }
        };
        let runs = contenders.into_iter().map(planned);
        runs.filter(|run| !self.tried.contains(&run.key)).collect()
    }
}

#[cfg(test)]
mod tests;
