//! What to measure next, told from what was measured so far: explore, look closer, measure again.
//!
//! `course` asks for one block after the other and reports every run. The stages are those of docs/statistics.md: first the
//! numbers of iothreads far apart are explored (`explore`), then the neighbours of the best and of the 90 % line
//! (`look_closer`). What may be the answer is then measured again, from scratch, until it is known well enough, `most` times
//! or until the time is up (`measure_again`): the best of nine explored numbers is partly the luckiest, so no figure that
//! counts comes from the exploration. Which numbers each stage takes in a place, `place` says. Unless the user gave the time,
//! all places are measured again `least` times, however long that takes.
//!
//! Invariants: the seed and the recorded runs alone decide the next block, but for the time; so a resumed search goes on
//! as it would have. No run is asked for twice, also if it failed. All places have the same number of repeats, plus or
//! minus one, until only some need more.

mod outlook;
mod overall;
mod place;

use std::collections::HashSet;

use load::Random;
use plan::contender::Contender;
use plan::matrix::Matrix;
use plan::question::Question;
use plan::repeats::Repeats;
use plan::runs::{self, PlannedRun, Purpose, RunKey, STRETCH};
use plan::settings::{Settings, Thoroughness};
use records::results::Run;
use records::steady::UnsteadyRuns;

use self::overall::Overall;
use self::place::SearchedCell;

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
    question: Question,
    matrix: &'a Matrix,
    places: Vec<SearchedCell<'a>>,
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
        let question = settings.question();
        let place = |entry| SearchedCell::new(entry, full, &question);
        let places = matrix.entries.iter().map(place).collect();
        Self { terms, question, matrix, places, tried: HashSet::new(), settled: None }
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
            if let Some(block) = self.sweep() {
                return Some(block);
            }
            self.settle_again(fits);
        }
        let block = self.measure_again()?;
        let is_kept = block.iter().any(|run| run.key.repeat < self.terms.kept);
        (is_kept || fits(&block)).then_some(block)
    }

    /// How often each number is explored: once if all of them are measured again anyway.
    fn explored(&self, place: &SearchedCell<'_>) -> u16 {
        match (self.terms.full, place.is_whole()) {
            (true, _) if !place.has_few_numbers() => self.terms.least,
            (true, _) | (false, true) => 1,
            (false, false) => EXPLORED,
        }
    }

    /// The exploration: both stages whose figures only decide what is measured again, and whether the disk has more to give.
    fn sweep(&self) -> Option<Vec<PlannedRun>> {
        self.explore().or_else(|| self.look_closer())
    }

    /// The first stage: numbers far apart, or all, and beside the host the same with more requests in flight.
    fn explore(&self) -> Option<Vec<PlannedRun>> {
        self.swept(|place| place.first.clone(), |index, repeat| self.deeper(index, repeat))
    }

    /// The second stage: beside what did best.
    fn look_closer(&self) -> Option<Vec<PlannedRun>> {
        let overall = Overall::of(&self.places, 0, &self.question);
        self.swept(|place| place.closer(&overall), |_, _| None)
    }

    /// The first block that is missing of exploring these contenders of each place, with one run more in a repeat of it.
    fn swept(
        &self,
        of: impl Fn(&SearchedCell<'_>) -> Vec<Contender>,
        more: impl Fn(usize, u16) -> Option<PlannedRun>,
    ) -> Option<Vec<PlannedRun>> {
        let most = self.places.iter().map(|place| self.explored(place)).max()?;
        for repeat in 0..most {
            for (index, place) in self.places.iter().enumerate() {
                if repeat >= self.explored(place) {
                    continue;
                }
                let mut block = self.block(Purpose::Sweep, repeat, index, &of(place));
                block.extend(more(index, repeat));
                if !block.is_empty() {
                    return Some(block);
                }
            }
        }
        None
    }

    /// The run of a block that asks whether the disk has more to give, unless it was tried.
    fn deeper(&self, place: usize, repeat: u16) -> Option<PlannedRun> {
        let run = runs::deeper(self.matrix, place, repeat, self.terms.seed);
        run.filter(|run| !self.tried.contains(&run.key))
    }

    /// Settles what is measured again, and for how long: twice as long where the exploration was not steady, the least steady
    /// place first, as far as there is time to do everything as often as it takes.
    ///
    /// A place that was begun by an earlier command stays as it is. Which of the others are stretched is the same for a
    /// resumed search that has as much time left: their order rests on the exploration, and what was stretched before them in
    /// it, or not, is so again.
    fn settle_again(&mut self, fits: &dyn Fn(&[PlannedRun]) -> bool) {
        let overall = Overall::of(&self.places, 0, &self.question);
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

    /// Adds to what is measured again what the blocks before this repeat show to matter.
    fn add_again(&mut self, repeat: u16) {
        if self.settled < Some(repeat) {
            let overall = Overall::of(&self.places, repeat, &self.question);
            self.places.iter_mut().for_each(|place| place.grow(&overall, repeat));
            self.settled = Some(repeat);
        }
    }

    /// The third stage: what may matter, from scratch.
    fn measure_again(&mut self) -> Option<Vec<PlannedRun>> {
        for repeat in self.settled.unwrap_or(0)..self.terms.most {
            self.add_again(repeat);
            let block = self.blocks_again(repeat).find(|block| !block.is_empty());
            if block.is_some() {
                return block;
            }
        }
        None
    }

    /// What each place lacks of this repeat of the third stage, as far as is known by now.
    fn blocks_again(&self, repeat: u16) -> impl Iterator<Item = Vec<PlannedRun>> {
        self.places.iter().enumerate().map(move |(index, place)| {
            let open = place.open(repeat, self.terms.least);
            self.block(Purpose::Confirm, repeat, index, &open)
        })
    }

    /// The round of a repeat. A search in stages explores in a single one, since that only decides what is measured again.
    fn round(&self, purpose: Purpose, repeat: u16) -> u16 {
        let explored = if self.terms.full { self.terms.least } else { 1 };
        if purpose == Purpose::Confirm { explored + repeat } else { repeat.min(explored - 1) }
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
        let is_again = purpose == Purpose::Confirm;
        let mut random = Random::stream(
            self.terms.seed,
            u64::from(is_again) << 48 | u64::from(repeat) << 32 | number,
        );
        let seed = random.next_u64();
        let mut contenders = contenders.to_vec();
        random.shuffle(&mut contenders);
        let stretch = if is_again { self.places[place].stretch } else { 1 };
        let round = Some(self.round(purpose, repeat));
        let planned = |contender| {
            let (variant, cell) = (entry.variant, entry.cells[0]);
            let key = RunKey { purpose, repeat, step: 0, contender, variant, cell };
            PlannedRun { key, jobs_max: entry.jobs_max(), seed, round, stretch }
        };
        let runs = contenders.into_iter().map(planned);
        runs.filter(|run| !self.tried.contains(&run.key)).collect()
    }
}

#[cfg(test)]
mod tests;
