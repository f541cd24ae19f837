//! What each number of iothreads lacks over all cells and what CPU it takes, once and in resamplings, and which of them to
//! use. Pure functions.
//!
//! Invariants: a number is rated by what was measured of it in a cell, if only a little; one that was not measured there by
//! the highest one below it, because further threads have no queue, and where there may be one, it is said that it was not
//! compared; below all measured ones, nothing is known and it lacks everything. Nothing stands for `auto`, and it counts as
//! the highest number. The cheapest of the numbers that are not shown to lack more than the tolerance is picked: a dearer one
//! only where all cheaper ones are shown to.

use std::rc::Rc;

use super::{Place, Spot};
use crate::contender::Iothreads;
use crate::lists::sorted;
use crate::question::{Question, Tolerance};
use crate::stats::{Resampler, geometric_mean};
use crate::summary::{BLOCKS_MIN, Blocks, Shares, reached, standing_for};
use crate::weights::{Goal, weight_of};

/// The seed of the bootstrap; a report is the same each time it is rendered.
const BOOTSTRAP_SEED: u64 = 5;

/// So many of the resamplings show that a number lacks more than the tolerance.
const SHOWN: f64 = 0.8;
/// CPU times per request that differ by less are equal.
const SAME_CPU: f64 = 0.05;

/// What one number lacks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rating {
    pub(super) iothreads: Iothreads,
    pub(super) shortfall: f64,
    /// Where it lacks most.
    pub(super) worst: Spot,
}

/// The number to use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) rating: Rating,
    /// The one that lacks least, the fewest of equals; perhaps the same.
    pub(super) best: Rating,
    /// The share of resamplings in which the choice lacks at most the tolerance more than the best of the resampling.
    pub(super) within: f64,
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
    /// What each number of the ratings lacks in each resampling; `None` where one that is compared here was not drawn.
    drawn: Rc<Vec<Option<Vec<f64>>>>,
    /// CPU time per request of everything that takes part, where it was measured.
    cpu: Shares,
    /// The highest number that there is a queue for.
    useful: Iothreads,
}

/// The cells of one subject.
#[derive(Clone, Debug)]
pub(super) struct Ratings<'a> {
    sheets: Vec<Sheet>,
    question: &'a Question,
    /// All numbers that some cell compares, in ascending order.
    compared: Rc<Vec<Iothreads>>,
    /// Numbers that cannot be the answer.
    barred: Vec<Iothreads>,
}

impl<'a> Ratings<'a> {
    /// Of all places with figures. Rounds are resampled, each with all its cells: what disturbs a round disturbs all of them.
    pub(super) fn new(places: &[Place<'_>], question: &'a Question) -> Self {
        let all: Vec<Blocks> =
            places.iter().map(|place| place.summary.blocks(place.subject)).collect();
        let rounds = sorted(all.iter().flat_map(|blocks| blocks.rounds().iter().copied()));
        let mut resampler = Resampler::new(BOOTSTRAP_SEED);
        let draws: Vec<Vec<u16>> = Resampler::times().map(|_| resampler.draw(&rounds)).collect();
        let shares: Vec<Shares> = all.iter().map(Blocks::shares).collect();
        let compared = sorted(shares.iter().flatten().map(|(count, _)| *count));
        let sheet = |((place, blocks), shares): ((&Place<'_>, Blocks), Shares)| {
            let known = blocks.all_shares();
            let resampled = {
                let shares_drawn = blocks.shares_drawn();
                let lacks = |rounds: &Vec<u16>| {
                    let drawn = shares_drawn(rounds);
                    let is_drawn = |it: &(Iothreads, f64)| share_of(&drawn, it.0).is_some();
                    shares.iter().all(is_drawn).then(|| {
                        let known = known_with(&known, &drawn);
                        compared.iter().map(|count| lack(&known, *count)).collect()
                    })
                };
                draws.iter().map(lacks).collect()
            };
            Sheet {
                spot: place.spot,
                weight: weight_of(&place.summary.cell, &question.weights),
                drawn: Rc::new(resampled),
                cpu: place.cpu(),
                blocks: Rc::new(blocks),
                shares,
                known,
                useful: place.useful,
            }
        };
        let sheets = places.iter().zip(all).zip(shares).map(sheet).collect();
        Self { sheets, question, compared: Rc::new(compared), barred: Vec::new() }
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
        Self { sheets, barred: self.barred.clone(), compared: Rc::clone(&self.compared), ..*self }
    }

    pub(super) fn spots(&self) -> impl Iterator<Item = Spot> {
        self.sheets.iter().map(|sheet| sheet.spot)
    }

    pub(super) fn goal(&self) -> Goal {
        Goal::of(&self.question.weights)
    }

    /// All numbers that some cell compares and that may be the answer.
    pub(super) fn numbers(&self) -> Vec<Iothreads> {
        let all = self.sheets.iter().flat_map(|sheet| &sheet.shares);
        let all = all.map(|(count, _)| *count);
        sorted(all.filter(|it| !self.barred.contains(it)))
    }

    /// What a number lacks.
    pub(super) fn rate(&self, iothreads: Iothreads) -> Option<Rating> {
        let lack = |sheet: &Sheet| lack(&sheet.known, iothreads);
        let weighted = |sheet: &Sheet| sheet.weight.unwrap_or(1.0) * lack(sheet);
        let all = self.sheets.iter();
        let worst = all.reduce(|a, b| if weighted(b) > weighted(a) { b } else { a })?.spot;
        let shortfall = self.over_all(self.sheets.iter().map(lack));
        Some(Rating { iothreads, shortfall, worst })
    }

    fn over_all(&self, lacks: impl Iterator<Item = f64>) -> f64 {
        let weights = self.sheets.iter().map(|sheet| sheet.weight.unwrap_or(1.0));
        self.goal().over_all(weights.zip(lacks))
    }

    /// The number to use: the cheapest that is not shown to lack more than the tolerance, the fewest of equally cheap ones.
    pub(super) fn choose(&self) -> Option<Choice> {
        let numbers = self.numbers();
        let rated: Vec<Rating> = numbers.iter().filter_map(|count| self.rate(*count)).collect();
        let lower = |a: Rating, b: Rating| if b.shortfall < a.shortfall { b } else { a };
        let best = rated.iter().copied().reduce(lower)?;
        let within = self.within(&numbers);
        let is_shown = |rating: &Rating| {
            let within = share_of(&within, rating.iothreads).unwrap_or(0.0);
            rating.shortfall > best.shortfall + self.tolerance().share() && within <= 1.0 - SHOWN
        };
        let enough: Vec<Rating> = rated.into_iter().filter(|rating| !is_shown(rating)).collect();
        // What was only explored may have been lucky, so it is chosen only if nothing else can be.
        let is_firm = |rating: &&Rating| {
            let footing = self.footing(rating.iothreads);
            matches!(footing, Some((_, Footing::Blocks(BLOCKS_MIN..), _)))
        };
        let firm: Vec<Rating> = enough.iter().filter(is_firm).copied().collect();
        let candidates = if firm.is_empty() { enough } else { firm };
        let cpu = |rating: &Rating| self.cpu(rating.iothreads).unwrap_or(f64::INFINITY);
        let least = candidates.iter().map(cpu).reduce(f64::min)?;
        // Where no CPU time is known, all are equal.
        let is_cheap = |rating: &Rating| cpu(rating) <= least * (1.0 + SAME_CPU);
        let rating = candidates.into_iter().find(is_cheap)?;
        Some(Choice { rating, best, within: share_of(&within, rating.iothreads)? })
    }

    /// What one number reaches relative to another in each cell, where both are known.
    pub(super) fn ratios(&self, iothreads: Iothreads, base: Iothreads) -> Vec<f64> {
        let ratio = |sheet: &Sheet| {
            let of = |count| reached(&sheet.known, count).filter(|share| *share > 0.0);
            Some(of(iothreads)? / of(base)?)
        };
        self.sheets.iter().filter_map(ratio).collect()
    }

    /// What a cheaper number may lack.
    pub(super) fn tolerance(&self) -> Tolerance {
        self.question.tolerance
    }

    /// CPU time per request over all cells, as a geometric mean. Only relative to that of another number does it mean
    /// anything. `None` where it was not measured in some cell.
    pub(super) fn cpu(&self, iothreads: Iothreads) -> Option<f64> {
        let of = |sheet: &Sheet| standing_for(&sheet.cpu, iothreads);
        geometric_mean(self.sheets.iter().map(of).collect::<Option<Vec<f64>>>()?)
    }

    /// In which share of the resamplings each number lacks at most the tolerance more than the best.
    fn within(&self, numbers: &[Iothreads]) -> Shares {
        let place = |count: &Iothreads| self.compared.iter().position(|other| other == count);
        let places: Vec<usize> = numbers.iter().filter_map(place).collect();
        let mut good = vec![0_usize; numbers.len()];
        let mut of = 0_usize;
        for draw in Resampler::times() {
            let drawn = self.sheets.iter().map(|sheet| sheet.drawn[draw].as_ref());
            let Some(drawn) = drawn.collect::<Option<Vec<_>>>() else { continue };
            let lack = |place: &usize| self.over_all(drawn.iter().map(|lacks| lacks[*place]));
            let lacks: Vec<f64> = places.iter().map(lack).collect();
            let least = lacks.iter().copied().fold(f64::INFINITY, f64::min);
            of += 1;
            for (good, lack) in good.iter_mut().zip(lacks) {
                *good += usize::from(lack <= least + self.tolerance().share());
            }
        }
        let share = |(&count, good): (&Iothreads, usize)| (count, good as f64 / of.max(1) as f64);
        numbers.iter().zip(good).map(share).collect()
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
}

/// What is known with the shares of a resampling, in which some may be missing.
fn known_with(known: &Shares, drawn: &Shares) -> Shares {
    let newer =
        |&(count, share): &(Iothreads, f64)| (count, share_of(drawn, count).unwrap_or(share));
    known.iter().map(newer).collect()
}

/// What a number lacks by these shares.
fn lack(known: &Shares, iothreads: Iothreads) -> f64 {
    1.0 - reached(known, iothreads).unwrap_or(0.0)
}

fn share_of(shares: &Shares, iothreads: Iothreads) -> Option<f64> {
    shares.iter().find(|(count, _)| *count == iothreads).map(|(_, share)| *share)
}
