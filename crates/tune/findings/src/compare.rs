//! Two runs of the tuner side by side: what became faster or slower, and what is noise. Pure functions.
//!
//! Rows are matched by cell, variant and contender. Each has the ratio of the medians, B to A, with a bootstrap interval
//! over the repeats. A row is called faster or slower only if three things agree: Welch's test on the logarithms, with
//! what two commands differ by as a part of the error, corrected over all rows; the interval; and `EQUAL_WITHIN`, a factor up
//! or down. Everything else is noise, and what is noise with few repeats may be a change with more. Exchanging A and B exchanges faster and slower and nothing else.
//!
//! The correction is that of Benjamini and Hochberg: if nothing changed, at most 5 % of comparisons call anything
//! changed, as with Holm's; if much changed, it still finds it among a thousand rows, where Holm's would ask each row
//! for more than a few repeats can show.
//!
//! Not here: the words and tables, and what each recommends (`report::compare`).

mod student;

use plan::cell::Cell;
use plan::contender::{Contender, Subject};
use plan::lists::sorted;
use plan::variant::Variant;

use crate::stats::{Estimate, Resampler, factor, geometric_mean, median, middle_95};
use crate::summary::{CellSummary, Row};

/// How many of the rows that are called changed may be wrong, on average.
const WRONG_MAX: f64 = 0.05;
/// Fewer repeats do not show their own noise.
pub const REPEATS_MIN: usize = 3;
/// Two commands on one machine differ by as large a factor though each repeats itself more closely: another place in
/// memory, another temperature.
pub const EQUAL_WITHIN: f64 = 1.02;
/// The standard deviation of that: `EQUAL_WITHIN` is two of them. No repeat of one command shows it.
const BETWEEN_COMMANDS: f64 = 0.01;
/// The seed of the bootstrap; a comparison is the same each time it is rendered.
const BOOTSTRAP_SEED: u64 = 95;

/// Two runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// In the order of A, by cell and variant.
    pub cells: Vec<ComparedCell>,
    /// What only A has.
    pub only_a: Vec<(Variant, Cell, Contender)>,
    /// The same of B.
    pub only_b: Vec<(Variant, Cell, Contender)>,
    /// The geometric mean of the ratios of each subject, and of how many.
    pub means: Vec<(Subject, f64, usize)>,
}

/// One cell on one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedCell {
    /// The storage below.
    pub variant: Variant,
    /// The load.
    pub cell: Cell,
    /// What both measured there.
    pub rows: Vec<ComparedRow>,
}

/// One contender in both runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComparedRow {
    /// What both measured.
    pub contender: Contender,
    /// IOPS of A.
    pub a: Estimate,
    /// IOPS of B.
    pub b: Estimate,
    /// Whether its guest was emulated in either.
    pub emulated: bool,
    /// B relative to A; missing where A did nothing.
    pub ratio: Option<Ratio>,
    /// What the difference says.
    pub verdict: ChangeVerdict,
}

/// The median of B relative to that of A.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Of all repeats.
    pub ratio: f64,
    /// What 95 % of the resamplings are between; from `REPEATS_MIN` repeats on.
    pub interval: Option<(f64, f64)>,
}

/// What a row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeVerdict {
    /// B is, by more than the repeats differ.
    Faster,
    /// B is, by more than the repeats differ.
    Slower,
    /// The repeats differ as much.
    Noise,
    /// Too few repeats, or one that did nothing.
    CannotTell,
}

impl ChangeVerdict {
    /// Whether the two differ.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Faster | Self::Slower)
    }
}

impl Comparison {
    /// Of the cells of two runs.
    pub fn new(a: &[CellSummary], b: &[CellSummary]) -> Self {
        let mut pairs: Vec<Pair> = Vec::new();
        for (place, cell) in a.iter().enumerate() {
            let Some(other) = b.iter().find(|it| same(it, cell)) else { continue };
            for row in &cell.rows {
                let other = other.rows.iter().find(|it| it.contender == row.contender);
                pairs.extend(other.map(|other| Pair::new(place, row, other)));
            }
        }
        let rows = judged(&pairs);
        let cell = |(place, cell): (usize, &CellSummary)| {
            let own = pairs.iter().zip(&rows).filter(|(pair, _)| pair.place == place);
            let rows: Vec<ComparedRow> = own.map(|(_, row)| *row).collect();
            let (variant, cell) = (cell.variant, cell.cell);
            (!rows.is_empty()).then_some(ComparedCell { variant, cell, rows })
        };
        Self {
            cells: a.iter().enumerate().filter_map(cell).collect(),
            only_a: only(a, b),
            only_b: only(b, a),
            means: means(&rows),
        }
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &ComparedRow> {
        self.cells.iter().flat_map(|cell| &cell.rows)
    }

    /// How many rows have this verdict.
    pub fn count(&self, verdict: ChangeVerdict) -> usize {
        self.rows().filter(|row| row.verdict == verdict).count()
    }
}

/// The same row of both runs.
struct Pair {
    /// Of its cell in A.
    place: usize,
    contender: Contender,
    emulated: bool,
    a: Repeated,
    b: Repeated,
}

/// One row of one run.
struct Repeated {
    iops: Estimate,
    /// Of each repeat.
    values: Vec<f64>,
}

impl Pair {
    fn new(place: usize, a: &Row, b: &Row) -> Self {
        let repeated = |row: &Row| Repeated {
            iops: row.iops,
            values: row.by_repeat.iter().map(|(_, figures)| figures.iops).collect(),
        };
        let emulated = a.emulated || b.emulated;
        Self { place, contender: a.contender, emulated, a: repeated(a), b: repeated(b) }
    }
}

fn same(a: &CellSummary, b: &CellSummary) -> bool {
    (a.variant, a.cell) == (b.variant, b.cell)
}

/// The rows of one that the other has not.
fn only(own: &[CellSummary], other: &[CellSummary]) -> Vec<(Variant, Cell, Contender)> {
    let mut found = Vec::new();
    for cell in own {
        let there = other.iter().find(|it| same(it, cell));
        let has = |row: &&Row| {
            let mut rows = there.iter().flat_map(|cell| &cell.rows);
            rows.any(|it| it.contender == row.contender)
        };
        let missing = cell.rows.iter().filter(|row| !has(row));
        found.extend(missing.map(|row| (cell.variant, cell.cell, row.contender)));
    }
    found
}

/// All rows with their verdicts, which depend on each other.
fn judged(pairs: &[Pair]) -> Vec<ComparedRow> {
    let mut resampler = Resampler::new(BOOTSTRAP_SEED);
    let tested: Vec<Option<f64>> = pairs.iter().map(probability).collect();
    let limit = limit(&tested);
    let row = |(pair, probability): (&Pair, &Option<f64>)| {
        let ratio = ratio(pair, &mut resampler);
        let told = probability.map(|it| it <= limit);
        ComparedRow {
            contender: pair.contender,
            a: pair.a.iops,
            b: pair.b.iops,
            emulated: pair.emulated,
            verdict: verdict(ratio, told),
            ratio,
        }
    };
    pairs.iter().zip(&tested).map(row).collect()
}

/// How likely the two would differ as much if nothing had changed; `None` where that cannot be told.
fn probability(pair: &Pair) -> Option<f64> {
    let logarithms = |Repeated { values, .. }: &Repeated| {
        let all = values.len() >= REPEATS_MIN && values.iter().all(|it| *it > 0.0);
        all.then(|| values.iter().map(|it| it.ln()).collect::<Vec<_>>())
    };
    Some(student::welch(&logarithms(&pair.a)?, &logarithms(&pair.b)?, BETWEEN_COMMANDS.powi(2)))
}

/// The highest probability that still counts as changed, so that of all that do at most `WRONG_MAX` are wrong on average
/// (Benjamini and Hochberg 1995).
fn limit(probabilities: &[Option<f64>]) -> f64 {
    let mut sorted: Vec<f64> = probabilities.iter().flatten().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let allowed =
        (1..).zip(&sorted).filter(|(rank, it)| **it <= f64::from(*rank) / count * WRONG_MAX);
    allowed.last().map_or(-1.0, |(_, it)| *it)
}

fn ratio(pair: &Pair, resampler: &mut Resampler) -> Option<Ratio> {
    let (a, b) = (pair.a.iops, pair.b.iops);
    let ratio = b.median / a.median;
    let enough = a.samples.min(b.samples) >= REPEATS_MIN;
    let interval = enough.then(|| interval(&pair.a.values, &pair.b.values, resampler)).flatten();
    ratio.is_finite().then_some(Ratio { ratio, interval })
}

/// Between which values 95 % of the ratios of resampled medians are.
fn interval(a: &[f64], b: &[f64], resampler: &mut Resampler) -> Option<(f64, f64)> {
    let mut drawn = |values: &[f64]| median(&mut resampler.draw(values));
    let mut ratios: Vec<f64> = Resampler::times()
        .filter_map(|_| Some(drawn(b)? / drawn(a)?))
        .filter(|ratio| ratio.is_finite())
        .collect();
    ratios.sort_by(f64::total_cmp);
    let (low, high) = middle_95((0..ratios.len()).collect())?;
    Some((ratios[low], ratios[high]))
}

/// `told`: whether the test calls it changed, if it can tell.
fn verdict(ratio: Option<Ratio>, told: Option<bool>) -> ChangeVerdict {
    let (Some(told), Some(Ratio { ratio, interval: Some((low, high)) })) = (told, ratio) else {
        return ChangeVerdict::CannotTell;
    };
    if !told || (low <= 1.0 && high >= 1.0) || factor(ratio) <= EQUAL_WITHIN {
        ChangeVerdict::Noise
    } else if ratio > 1.0 {
        ChangeVerdict::Faster
    } else {
        ChangeVerdict::Slower
    }
}

fn means(rows: &[ComparedRow]) -> Vec<(Subject, f64, usize)> {
    let subjects = sorted(rows.iter().map(|row| row.contender.subject()));
    let mean = |subject| {
        let own = rows.iter().filter(|row| row.contender.subject() == subject);
        let ratios = own.filter_map(|row| row.ratio).map(|it| it.ratio);
        let ratios: Vec<f64> = ratios.filter(|ratio| *ratio > 0.0).collect();
        let count = ratios.len();
        Some((subject, geometric_mean(ratios)?, count))
    };
    subjects.into_iter().filter_map(mean).collect()
}

#[cfg(test)]
mod tests;
