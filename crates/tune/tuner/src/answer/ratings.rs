//! What each number of iothreads lacks over all cells, once and in resamplings. Pure functions.
//!
//! Invariants: a number is rated by what was measured of it in a cell, if only a little; one that was not measured there by
//! the highest one below it, because further threads have no queue, and where there may be one, it is said that it was not
//! compared; below all measured ones, nothing is known and it lacks everything. Nothing stands for `auto`, and it is the
//! answer only if it is better than every number: it counts as the highest one.

use std::rc::Rc;

use super::{Place, Spot};
use crate::contender::Iothreads;
use crate::lists::sorted;
use crate::stats::Resampler;
use crate::summary::{AS_GOOD, BLOCKS_MIN, Blocks, Shares, TIE, reached};
use crate::weights::{Goal, Weight, weight_of};

/// The seed of the bootstrap; a report is the same each time it is rendered.
const BOOTSTRAP_SEED: u64 = 5;

/// What one number lacks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rating {
    pub(super) iothreads: Iothreads,
    pub(super) shortfall: f64,
    /// Where it lacks most.
    pub(super) worst: Spot,
}

/// How a number stands in the cell where that is least sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Footing {
    /// It was not compared, though it could have been.
    Unknown,
    /// It was only explored.
    Explored,
    /// It, or what stands for it, is in so many blocks.
    Blocks(usize),
}

/// One cell with its table.
#[derive(Clone, Debug)]
struct Sheet {
    spot: Spot,
    weight: Option<f64>,
    blocks: Rc<Blocks>,
    /// Of those that are compared.
    shares: Shares,
    /// Of all that were measured.
    known: Shares,
    /// The highest number that there is a queue for.
    useful: Iothreads,
}

/// The cells of one subject.
#[derive(Clone, Debug)]
pub(super) struct Ratings<'a> {
    sheets: Vec<Sheet>,
    weights: &'a [Weight],
    /// Numbers that cannot be the answer.
    barred: Vec<Iothreads>,
}

impl<'a> Ratings<'a> {
    /// Of all places with figures.
    pub(super) fn new(places: &[Place<'_>], weights: &'a [Weight]) -> Self {
        let sheet = |place: &Place<'_>| {
            let blocks = place.summary.blocks(place.subject);
            Sheet {
                spot: place.spot,
                weight: weight_of(&place.summary.cell, weights),
                shares: blocks.shares(),
                known: blocks.all_shares(),
                blocks: Rc::new(blocks),
                useful: place.useful,
            }
        };
        Self { sheets: places.iter().map(sheet).collect(), weights, barred: Vec::new() }
    }

    /// The same with these numbers as no answer.
    pub(super) fn without(self, numbers: Vec<Iothreads>) -> Self {
        Self { barred: numbers, ..self }
    }

    /// A cell in which nobody did a request.
    pub(super) fn idle(&self) -> Option<Spot> {
        self.sheets.iter().find(|sheet| sheet.blocks.is_idle()).map(|sheet| sheet.spot)
    }

    /// Where least is known of a number, and in how many blocks others are there.
    pub(super) fn footing(&self, iothreads: Iothreads) -> Option<(Spot, Footing, usize)> {
        let of = |sheet: &Sheet| (sheet.spot, sheet.footing(iothreads), sheet.blocks.len());
        self.sheets.iter().map(of).min_by_key(|(_, footing, _)| match footing {
            Footing::Unknown => (0, 0),
            Footing::Explored => (1, 0),
            Footing::Blocks(blocks) => (2, *blocks),
        })
    }

    /// The same with some of the cells.
    pub(super) fn only(&self, wanted: impl Fn(Spot) -> bool) -> Self {
        let sheets = self.sheets.iter().filter(|sheet| wanted(sheet.spot)).cloned().collect();
        Self { sheets, weights: self.weights, barred: self.barred.clone() }
    }

    pub(super) fn spots(&self) -> impl Iterator<Item = Spot> {
        self.sheets.iter().map(|sheet| sheet.spot)
    }

    pub(super) fn goal(&self) -> Goal {
        Goal::of(self.weights)
    }

    /// All numbers that some cell compares and that may be the answer.
    pub(super) fn numbers(&self) -> Vec<Iothreads> {
        let all = self.sheets.iter().flat_map(|sheet| &sheet.shares);
        let all = all.map(|(count, _)| *count);
        sorted(all.filter(|it| !self.barred.contains(it)))
    }

    /// What a number lacks.
    pub(super) fn rate(&self, iothreads: Iothreads) -> Option<Rating> {
        let known = self.sheets.iter().map(|sheet| &sheet.known);
        self.rate_by(iothreads, &known.collect::<Vec<_>>())
    }

    /// The number to use: the fewest of those that tie with the least shortfall.
    pub(super) fn pick(&self) -> Option<Rating> {
        let rated: Vec<Rating> =
            self.numbers().into_iter().filter_map(|count| self.rate(count)).collect();
        let least = rated.iter().map(|rating| rating.shortfall).reduce(f64::min)?;
        rated.into_iter().find(|rating| rating.shortfall <= least + TIE)
    }

    /// In how many resamplings of the blocks a number is as good as the best.
    pub(super) fn sure(&self, iothreads: Iothreads) -> Option<f64> {
        let numbers = self.numbers();
        let mut resampler = Resampler::new(BOOTSTRAP_SEED);
        let mut good = 0_usize;
        for _ in Resampler::times() {
            let mut drawn =
                |sheet: &Sheet| sheet.blocks.shares_drawn(&resampler.draw(sheet.blocks.len()));
            let drawn: Vec<Shares> = self.sheets.iter().map(&mut drawn).collect();
            // Without it, a resampling knows nothing of it where it was measured.
            let lost = |(sheet, drawn): (&Sheet, &Shares)| {
                share_of(&sheet.shares, iothreads).is_some() && share_of(drawn, iothreads).is_none()
            };
            if self.sheets.iter().zip(&drawn).any(lost) {
                continue;
            }
            let known = self.sheets.iter().zip(&drawn);
            let known: Vec<Shares> = known.map(|(sheet, drawn)| sheet.known_with(drawn)).collect();
            let known: Vec<&Shares> = known.iter().collect();
            let lacks = |count| self.rate_by(count, &known).map(|rating| rating.shortfall);
            let least = numbers.iter().filter_map(|count| lacks(*count)).reduce(f64::min)?;
            good += usize::from(lacks(iothreads)? <= least + AS_GOOD);
        }
        Some(good as f64 / Resampler::times().len() as f64)
    }

    fn rate_by(&self, iothreads: Iothreads, known: &[&Shares]) -> Option<Rating> {
        let lacks = |(sheet, known): (&Sheet, &&Shares)| {
            let lack = 1.0 - reached(known, iothreads).unwrap_or(0.0);
            (sheet.spot, sheet.weight.unwrap_or(1.0), lack)
        };
        let lacks: Vec<(Spot, f64, f64)> = self.sheets.iter().zip(known).map(lacks).collect();
        let (worst, ..) =
            lacks.iter().copied().reduce(|a, b| if b.1 * b.2 > a.1 * a.2 { b } else { a })?;
        let shortfall = self.goal().over_all(lacks.iter().map(|&(_, weight, lack)| (weight, lack)));
        Some(Rating { iothreads, shortfall, worst })
    }
}

impl Sheet {
    fn footing(&self, iothreads: Iothreads) -> Footing {
        let blocks = self.blocks.len_of(iothreads);
        let is_compared = share_of(&self.shares, iothreads).is_some();
        if is_compared || (1..BLOCKS_MIN).contains(&blocks) {
            return Footing::Blocks(blocks);
        }
        if share_of(&self.known, iothreads).is_some() {
            return Footing::Explored;
        }
        let is_below = |it: &&(Iothreads, f64)| it.0 < iothreads && !iothreads.is_auto();
        let below = self.known.iter().rev().find(is_below);
        match below {
            Some((count, _)) if iothreads > self.useful => self.footing(*count),
            Some(_) | None => Footing::Unknown,
        }
    }

    /// What is known with the shares of a resampling, in which some may be missing.
    fn known_with(&self, drawn: &Shares) -> Shares {
        let newer =
            |&(count, share): &(Iothreads, f64)| (count, share_of(drawn, count).unwrap_or(share));
        self.known.iter().map(newer).collect()
    }
}

fn share_of(shares: &Shares, iothreads: Iothreads) -> Option<f64> {
    shares.iter().find(|(count, _)| *count == iothreads).map(|(_, share)| *share)
}
