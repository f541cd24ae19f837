//! One cell and subject as a table: blocks down, numbers of iothreads across. From it follow best, n90 and shortfalls.
//! Pure functions.
//!
//! `summary` makes one per cell and subject; `answer` resamples them.
//!
//! Invariants: two counts are compared inside the blocks that have both, and the median of these ratios is taken, so that
//! neither a count which was given up early nor one of a bad block is measured against a machine that has changed since;
//! the best has a share of 1, none has more. Where two share no block, a third that shares some with both stands between.

use plan::contender::Iothreads;
use plan::lists::sorted;

use super::ENOUGH;
use crate::stats::{Resampler, median, middle_95};

/// The seed of the bootstrap; a report is the same each time it is rendered.
const BOOTSTRAP_SEED: u64 = 90;

/// The fewest blocks that say something of a number or of its spread.
pub const BLOCKS_MIN: usize = 3;
/// The fewest blocks whose resamplings say where n90 may be: of three, the median of one in four is never drawn.
const SPREAD_FROM: usize = 6;
/// Shares closer than this are equal: less is not worth another iothread.
pub const TIE: f64 = 0.01;

/// What each count reaches of the best, in ascending order of counts.
pub type Shares = Vec<(Iothreads, f64)>;

/// What one number of iothreads reached in one cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Reached {
    /// The number.
    pub iothreads: Iothreads,
    /// IOPS by block.
    pub blocks: Vec<(u16, f64)>,
    /// When it was explored, as `explored` tells.
    pub explored: Option<f64>,
}

/// What a number counts with that was explored in several runs: the best one, since a run may stall, none runs too fast.
pub fn explored(runs: impl Iterator<Item = f64>) -> Option<f64> {
    runs.filter(|iops| iops.is_finite()).reduce(f64::max)
}

/// The IOPS of each count in each block.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocks {
    /// In ascending order.
    counts: Vec<Iothreads>,
    /// The repeat of each block, in ascending order.
    rounds: Vec<u16>,
    /// Per block one value for each count that was in it.
    blocks: Vec<Vec<Option<f64>>>,
    /// What each of `counts` reached when it was explored.
    explored: Vec<Option<f64>>,
    /// Those in too few blocks, in ascending order.
    left: Vec<IncompleteNumber>,
}

/// A count that is not compared.
#[derive(Clone, Debug, PartialEq)]
struct IncompleteNumber {
    iothreads: Iothreads,
    /// One value for each block.
    blocks: Vec<Option<f64>>,
    explored: Option<f64>,
}

impl Blocks {
    /// Of all numbers of one subject in one cell. Those in few blocks, such as one that was added last, are not compared,
    /// unless all are in few: one lucky block must not win.
    pub fn of(mut reached: Vec<Reached>) -> Self {
        reached.sort_by_key(|reached| reached.iothreads);
        let most = reached.iter().map(|reached| reached.blocks.len()).max().unwrap_or(0);
        let is_compared = |reached: &Reached| {
            !reached.blocks.is_empty() && reached.blocks.len() >= BLOCKS_MIN.min(most)
        };
        let (compared, few): (Vec<Reached>, Vec<Reached>) =
            reached.into_iter().partition(is_compared);
        let blocks = compared.iter().flat_map(|it| &it.blocks);
        let repeats = sorted(blocks.map(|(repeat, _)| *repeat));
        let value = |of: &Reached, repeat| {
            of.blocks.iter().find(|(other, _)| *other == repeat).map(|(_, iops)| *iops)
        };
        let left = |of: Reached| IncompleteNumber {
            iothreads: of.iothreads,
            blocks: repeats.iter().map(|repeat| value(&of, *repeat)).collect(),
            explored: of.explored,
        };
        let block = |repeat: &u16| compared.iter().map(|of| value(of, *repeat)).collect();
        Self {
            counts: compared.iter().map(|of| of.iothreads).collect(),
            rounds: repeats.clone(),
            blocks: repeats.iter().map(block).collect(),
            explored: compared.iter().map(|of| of.explored).collect(),
            left: few.into_iter().map(left).collect(),
        }
    }

    /// Whether nobody did a request.
    pub fn is_idle(&self) -> bool {
        self.blocks.iter().flatten().flatten().all(|iops| *iops <= 0.0)
    }

    /// The repeats of which there are blocks, in ascending order.
    pub fn rounds(&self) -> &[u16] {
        &self.rounds
    }

    /// How many blocks there are.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    /// In how many of them a count is.
    pub fn len_of(&self, iothreads: Iothreads) -> usize {
        let few = self.left.iter().find(|left| left.iothreads == iothreads);
        match (self.place(iothreads), few) {
            (Some(place), _) => self.blocks.iter().filter(|block| block[place].is_some()).count(),
            (None, Some(left)) => left.blocks.iter().flatten().count(),
            (None, None) => 0,
        }
    }

    /// The shares of all counts, compared or not, in ascending order.
    pub fn all_shares(&self) -> Shares {
        let mut all = [self.shares(), self.other_shares()].concat();
        all.sort_by_key(|(count, _)| *count);
        all
    }

    /// The shares of the counts that are compared.
    pub fn shares(&self) -> Shares {
        self.shares_in(&self.blocks.iter().collect::<Vec<_>>())
    }

    /// The same with the blocks of these repeats, some of them perhaps several times; not every one need have a block.
    pub fn shares_drawn(&self) -> impl Fn(&[u16]) -> Shares {
        let usual = best(&self.shares()).and_then(|count| self.place(count));
        move |drawn| {
            let block = |round| Some(&self.blocks[self.rounds.binary_search(round).ok()?]);
            let blocks: Vec<_> = drawn.iter().filter_map(block).collect();
            let is_drawn = |place: &usize| blocks.iter().any(|block| block[*place].is_some());
            let usual = usual.filter(is_drawn).or_else(|| self.highest(&blocks));
            let Some(reference) = usual else { return Vec::new() };
            let shares = self.relative_to(reference, &blocks);
            let most = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
            shares.into_iter().map(|(count, share)| (count, ratio((share, most)))).collect()
        }
    }

    /// The shares of those that are not compared: by what they reached when they were explored, or else by the few blocks
    /// that they have.
    pub fn other_shares(&self) -> Shares {
        let shares = self.shares();
        let is_missing =
            |(_, count): &(_, &Iothreads)| !shares.iter().any(|(other, _)| other == *count);
        let apart = self.counts.iter().enumerate().filter(is_missing);
        let apart = apart.filter_map(|(place, count)| {
            Some((*count, self.explored_share(self.explored[place]?, &shares)?))
        });
        let blocks: Vec<_> = self.blocks.iter().collect();
        let few = |left: &IncompleteNumber| {
            let by_blocks =
                || self.share_between(&left.blocks, &blocks, &shares).map(|share| share.min(1.0));
            let share = left.explored.and_then(|iops| self.explored_share(iops, &shares));
            Some((left.iothreads, share.or_else(by_blocks)?))
        };
        let mut others: Shares = apart.chain(self.left.iter().filter_map(few)).collect();
        others.sort_by_key(|(count, _)| *count);
        others
    }

    /// What was reached in an exploration, relative to the highest of those that are compared and were explored.
    fn explored_share(&self, iops: f64, shares: &[(Iothreads, f64)]) -> Option<f64> {
        let base = |&(count, share): &(Iothreads, f64)| {
            let explored = self.explored[self.place(count)?].filter(|base| *base > 0.0)?;
            Some((share, explored))
        };
        let bases = shares.iter().filter_map(base);
        let (share, base) = bases.reduce(|a, b| if b.0 > a.0 { b } else { a })?;
        Some(iops / base * share)
    }

    fn shares_in(&self, blocks: &[&Vec<Option<f64>>]) -> Shares {
        let Some(mut reference) = self.highest(blocks) else { return Vec::new() };
        let mut shares = self.relative_to(reference, blocks);
        // Where a count has fewer blocks, the ones they share may tell another story than all of them.
        if let Some(better) = best(&shares)
            && let Some(place) = self.counts.iter().position(|count| *count == better)
            && place != reference
            && self.is_often_in(place, blocks)
        {
            reference = place;
            shares = self.relative_to(reference, blocks);
        }
        shares.into_iter().map(|(count, share)| (count, share.min(1.0))).collect()
    }

    /// The place of the highest median among the counts that have at least half of the blocks; of equal ones the first.
    fn highest(&self, blocks: &[&Vec<Option<f64>>]) -> Option<usize> {
        let of =
            |place: usize| -> Vec<f64> { blocks.iter().filter_map(|block| block[place]).collect() };
        let mut highest: Option<(usize, f64)> = None;
        for place in 0..self.counts.len() {
            let mut values = of(place);
            let many = self.is_often_in(place, blocks);
            if let Some(median) = median(&mut values).filter(|_| many)
                && highest.is_none_or(|(_, most)| median > most)
            {
                highest = Some((place, median));
            }
        }
        highest.map(|(place, _)| place)
    }

    /// Whether it is in at least half of the blocks.
    fn is_often_in(&self, place: usize, blocks: &[&Vec<Option<f64>>]) -> bool {
        blocks.iter().filter(|block| block[place].is_some()).count() * 2 >= blocks.len()
    }

    /// The shares of all counts that share blocks with the reference, or with one that has a share.
    fn relative_to(&self, reference: usize, blocks: &[&Vec<Option<f64>>]) -> Shares {
        let mut shares: Shares = Vec::new();
        for (place, &count) in self.counts.iter().enumerate() {
            let both = blocks.iter().filter_map(|block| Some((block[place]?, block[reference]?)));
            let share = median(&mut both.map(ratio).collect::<Vec<_>>());
            shares.extend(share.map(|share| (count, share)));
        }
        let mut known = 0;
        while known < shares.len() && shares.len() < self.counts.len() {
            known = shares.len();
            let is_missing = |count: &Iothreads| !shares.iter().any(|(other, _)| other == count);
            let missing = self.counts.iter().enumerate().filter(|(_, count)| is_missing(count));
            let share = |(place, count): (usize, &Iothreads)| {
                Some((*count, self.share_between(&column(blocks, place), blocks, &shares)?))
            };
            let more: Shares = missing.filter_map(share).collect();
            shares.extend(more);
        }
        shares.sort_by_key(|(count, _)| *count);
        shares
    }

    /// What was reached in some of these blocks, relative to the count with a share that is in most of them; of several to
    /// the highest.
    fn share_between(
        &self,
        own: &[Option<f64>],
        blocks: &[&Vec<Option<f64>>],
        shares: &[(Iothreads, f64)],
    ) -> Option<f64> {
        let through = |&(count, share): &(Iothreads, f64)| {
            let place = self.place(count)?;
            let both = own.iter().zip(blocks);
            let both = both.filter_map(|(own, block)| Some(((*own)?, block[place]?)));
            let mut ratios: Vec<f64> = both.map(ratio).collect();
            Some((ratios.len(), share, median(&mut ratios)? * share))
        };
        let all = shares.iter().filter(|(_, share)| *share > 0.0).filter_map(through);
        let nearer = |a: (usize, f64, f64), b: (usize, f64, f64)| {
            if (b.0, b.1) > (a.0, a.1) { b } else { a }
        };
        all.reduce(nearer).map(|(_, _, share)| share)
    }

    fn place(&self, iothreads: Iothreads) -> Option<usize> {
        self.counts.iter().position(|count| *count == iothreads)
    }
}

/// What the count at a place reached in each block.
fn column(blocks: &[&Vec<Option<f64>>], place: usize) -> Vec<Option<f64>> {
    blocks.iter().map(|block| block[place]).collect()
}

/// Where nobody got anything done, all are equal.
fn ratio((own, base): (f64, f64)) -> f64 {
    if base > 0.0 { own / base } else { 1.0 }
}

/// The count with the highest share; of equal ones the fewest.
pub fn best(shares: &[(Iothreads, f64)]) -> Option<Iothreads> {
    let higher = |a: (Iothreads, f64), b: (Iothreads, f64)| if b.1 > a.1 { b } else { a };
    shares.iter().copied().reduce(higher).map(|(count, _)| count)
}

/// What a number reached, or the highest below it, since further threads have no queue; `None` below all of them. No number
/// stands for `auto`. What was explored may have been lucky, so it counts as the best at most.
pub fn reached(shares: &[(Iothreads, f64)], iothreads: Iothreads) -> Option<f64> {
    let stands = |count: Iothreads| count == iothreads || count < iothreads && !iothreads.is_auto();
    let up_to = shares.iter().filter(|(count, _)| stands(*count));
    up_to.max_by_key(|(count, _)| *count).map(|(_, share)| share.min(1.0))
}

/// The fewest iothreads that reach 90 % of the best.
pub fn n90(shares: &[(Iothreads, f64)]) -> Option<Iothreads> {
    shares.iter().find(|(_, share)| *share >= ENOUGH).map(|(count, _)| *count)
}

/// Which counts of iothreads are best and enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The number that reaches most.
    pub best: Iothreads,
    /// The fewest iothreads that reach 90 % of the best.
    pub n90: Iothreads,
    /// The fewest from which on every count that was measured reaches 90 %; missing where the highest does not.
    pub n90_stays: Option<Iothreads>,
    /// What n90 is in the middle 95 % of the resamplings; missing with fewer than `SPREAD_FROM` blocks.
    pub n90_spread: Option<(Iothreads, Iothreads)>,
}

impl Verdict {
    /// `None` if no count was measured.
    pub fn of(blocks: &Blocks) -> Option<Self> {
        let shares = blocks.shares();
        let (best, n90_found) = (best(&shares)?, n90(&shares)?);
        Some(Self {
            best,
            n90: n90_found,
            n90_stays: stays(&shares, &blocks.other_shares()),
            n90_spread: (blocks.count() >= SPREAD_FROM).then(|| spread(blocks)).flatten(),
        })
    }
}

fn stays(shares: &[(Iothreads, f64)], others: &[(Iothreads, f64)]) -> Option<Iothreads> {
    let low = |(_, share): &&(Iothreads, f64)| *share < ENOUGH;
    let last_low = shares.iter().chain(others).filter(low).map(|(count, _)| *count).max();
    let counts = shares.iter().map(|(count, _)| *count);
    counts.into_iter().find(|count| last_low.is_none_or(|low| *count > low))
}

fn spread(blocks: &Blocks) -> Option<(Iothreads, Iothreads)> {
    let mut resampler = Resampler::new(BOOTSTRAP_SEED);
    let shares_drawn = blocks.shares_drawn();
    let drawn = Resampler::times().map(|_| resampler.draw(blocks.rounds()));
    middle_95(drawn.filter_map(|drawn| n90(&shares_drawn(&drawn))).collect())
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    /// Counts with what they reached in each block; NaN where they were not in it.
    fn blocks(rows: &[(u16, &[f64])]) -> Blocks {
        let count = rows.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
        let value =
            |values: &[f64], index: usize| values.get(index).copied().filter(|v| v.is_finite());
        Blocks {
            counts: rows.iter().map(|(n, _)| Iothreads::new(*n)).collect(),
            rounds: (0..).take(count).collect(),
            blocks: (0..count)
                .map(|index| rows.iter().map(|(_, values)| value(values, index)).collect())
                .collect(),
            explored: vec![None; rows.len()],
            left: Vec::new(),
        }
    }

    #[track_caller]
    fn check(rows: &[(u16, &[f64])], best: u16, n90: u16, stays: impl Into<Option<u16>>) {
        let verdict = Verdict::of(&blocks(rows)).unwrap();
        assert_eq!([verdict.best, verdict.n90], [best, n90].map(Iothreads::new));
        assert_eq!(verdict.n90_stays, stays.into().map(Iothreads::new));
    }

    #[test]
    fn n90_is_the_fewest_that_is_enough() {
        check(&[(0, &[100.0])], 0, 0, 0);
        check(&[(0, &[90.0]), (1, &[100.0])], 1, 0, 0);
        check(&[(0, &[89.9]), (1, &[100.0])], 1, 1, 1);
        check(&[(0, &[50.0]), (1, &[89.0]), (2, &[91.0]), (4, &[100.0])], 4, 2, 2);
    }

    #[test]
    fn one_that_falls_below_again_does_not_stay() {
        check(&[(0, &[50.0]), (1, &[95.0]), (2, &[80.0]), (4, &[100.0])], 4, 1, 4);
        check(&[(0, &[95.0]), (1, &[100.0]), (2, &[80.0])], 1, 0, None);
    }

    /// Numbers with their IOPS in a range of blocks, and when they were explored.
    fn reached(rows: &[(u16, Range<u16>, f64, Option<f64>)]) -> Blocks {
        let one = |(count, blocks, iops, explored): &(u16, Range<u16>, f64, Option<f64>)| Reached {
            iothreads: Iothreads::new(*count),
            blocks: blocks.clone().map(|block| (block, *iops)).collect(),
            explored: *explored,
        };
        Blocks::of(rows.iter().map(one).collect())
    }

    #[track_caller]
    fn check_shares(of: Shares, expected: &[(u16, f64)]) {
        let shown = |(count, share): (Iothreads, f64)| format!("{count} {share:.3}");
        let expected = expected.iter().map(|(count, share)| (Iothreads::new(*count), *share));
        let [of, expected]: [Vec<String>; 2] =
            [of.into_iter().map(shown).collect(), expected.map(shown).collect()];
        assert_eq!(of, expected);
    }

    #[test]
    fn one_lucky_block_does_not_win() {
        let late = reached(&[
            (0, 0..6, 500.0, Some(500.0)),
            (2, 0..6, 1000.0, Some(1000.0)),
            (6, 5..6, 1080.0, Some(900.0)),
        ]);
        assert_eq!(Verdict::of(&late).unwrap().best, Iothreads::new(2));
        check_shares(late.other_shares(), &[(6, 0.9)]);
        check_shares(late.shares(), &[(0, 0.5), (2, 1.0)]);
        assert_eq!([0, 2, 6, 8].map(|count| late.len_of(Iothreads::new(count))), [6, 6, 1, 0]);
    }

    #[test]
    fn what_was_not_explored_has_the_share_of_its_few_blocks() {
        let late = reached(&[
            (0, 0..6, 500.0, Some(500.0)),
            (2, 0..6, 1000.0, Some(1000.0)),
            (3, 4..6, 400.0, None),
            (4, 5..6, 1080.0, None),
        ]);
        check_shares(late.other_shares(), &[(3, 0.4), (4, 1.0)]);
    }

    #[test]
    fn what_was_explored_only_is_rated_by_the_best_that_was_explored_too() {
        let grown = reached(&[
            (0, 0..6, 500.0, Some(500.0)),
            (4, 0..6, 960.0, Some(960.0)),
            (6, 0..6, 1000.0, None),
            (16, 0..0, 0.0, Some(600.0)),
        ]);
        check_shares(grown.other_shares(), &[(16, 0.6)]);
    }

    #[test]
    fn one_that_shares_no_block_with_the_best_is_rated_by_those_between() {
        // The machine is half as fast from the fourth block on.
        let mut rows = vec![
            (0, 0..3, 500.0, None),
            (4, 3..6, 495.0, None),
            (6, 3..6, 500.0, None),
            (8, 0..3, 600.0, None),
        ];
        let none = (3..6).map(|block| (block, 250.0));
        let of = |rows: &[(u16, Range<u16>, f64, Option<f64>)]| {
            let mut all: Vec<Reached> = rows
                .iter()
                .map(|(count, blocks, iops, _)| Reached {
                    iothreads: Iothreads::new(*count),
                    blocks: blocks.clone().map(|block| (block, *iops)).collect(),
                    explored: None,
                })
                .collect();
            all[0].blocks.extend(none.clone());
            Blocks::of(all)
        };
        check_shares(of(&rows).shares(), &[(0, 0.5), (4, 0.99), (6, 1.0), (8, 0.6)]);
        // Without any between them, nothing is known.
        rows.retain(|(count, ..)| *count != 0);
        let apart = reached(&rows);
        check_shares(apart.shares(), &[(8, 1.0)]);
        check_shares(apart.other_shares(), &[]);
    }

    #[test]
    fn of_several_explored_runs_the_best_counts() {
        assert_eq!(explored([400.0, 1000.0, f64::NAN].into_iter()), Some(1000.0));
        assert_eq!(explored([f64::NAN].into_iter()), None);
    }

    #[test]
    fn of_equal_counts_the_fewer_is_best() {
        check(&[(0, &[100.0]), (1, &[100.0]), (2, &[100.0])], 0, 0, 0);
    }

    #[test]
    fn nothing_measured_has_no_verdict() {
        assert_eq!(Verdict::of(&blocks(&[])), None);
        check(&[(0, &[0.0]), (1, &[0.0])], 0, 0, 0);
    }

    #[test]
    fn counts_are_compared_by_the_blocks_that_have_both() {
        // The machine became half as fast after the third block, when 1 was given up.
        let rows: &[(u16, &[f64])] = &[
            (0, &[40.0, 40.0, 40.0, 20.0, 20.0, 20.0, 20.0]),
            (1, &[85.0, 85.0, 85.0]),
            (2, &[100.0, 100.0, 100.0, 50.0, 50.0, 50.0, 50.0]),
        ];
        let shares = blocks(rows).shares();
        assert_eq!(shares.iter().map(|(_, share)| *share).collect::<Vec<_>>(), [0.4, 0.85, 1.0]);
    }

    #[test]
    fn the_spread_of_n90_tells_a_coin_toss() {
        let rows: &[(u16, &[f64])] =
            &[(1, &[50.0; 6]), (2, &[89.0, 91.0, 89.5, 90.5, 88.0, 92.0]), (4, &[100.0; 6])];
        let (low, high) = Verdict::of(&blocks(rows)).unwrap().n90_spread.unwrap();
        assert_eq!([low, high], [2, 4].map(Iothreads::new));
        assert_eq!(Verdict::of(&blocks(&[(1, &[1.0, 2.0])])).unwrap().n90_spread, None);
    }

    proptest! {
        /// The rule of the published sweep: n90 is 0 exactly where the gain is at most 1/0.9 − 1.
        #[test]
        fn none_is_enough_exactly_where_the_gain_is_small(
            none in 1_000_u32..2_000_000,
            gains in proptest::collection::vec(-50_i32..300, 1..9),
        ) {
            let none = f64::from(none);
            let iops: Vec<[f64; 1]> = std::iter::once(0).chain(gains)
                .map(|gain| [none * (1.0 + f64::from(gain) / 100.0)])
                .collect();
            let rows: Vec<(u16, &[f64])> =
                (0..).zip(&iops).map(|(n, iops)| (n, &iops[..])).collect();
            let verdict = Verdict::of(&blocks(&rows)).unwrap();
            let gain = iops.iter().map(|it| it[0]).fold(0.0, f64::max) / none - 1.0;
            prop_assert_eq!(verdict.n90 == Iothreads::NONE, none >= 0.9 * none * (1.0 + gain), "gain {}", gain);
            prop_assert!(verdict.n90 <= verdict.best);
            prop_assert!(verdict.n90_stays.is_none_or(|stays| verdict.n90 <= stays));
        }
    }
}
