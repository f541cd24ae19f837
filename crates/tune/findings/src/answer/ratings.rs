//! What each number of iothreads lacks over all cells and what CPU it takes, once and in resamplings, and which of them to
//! use. Pure functions.
//!
//! Invariants: a number is rated by what was measured of it in a cell, if only a little; one that was not measured there by
//! the highest one below it, because further threads have no queue, and where there may be one, it is said that it was not
//! compared; below all measured ones, nothing is known and it lacks everything. Nothing stands for `auto`, and it counts as
//! the highest number. The fewest iothreads that are not shown to lack more than the tolerance are picked, more only where
//! they are shown to take less CPU. Where something must be kept, only numbers that are shown to keep it in all cells
//! are compared with each other.

use std::rc::Rc;

use plan::contender::Iothreads;
use plan::lists::sorted;
use plan::question::{Bound, Question, Tolerance, Want};
use plan::weights::{Goal, weight_of};

use super::{BoundUse, CellOfSubject, CellOnVariant};
use crate::stats::{Estimate, Resampler, geometric_mean, median, ratios_by_repeat};
use crate::summary::{BLOCKS_MIN, Blocks, Shares, reached};

/// The seed of the bootstrap; a report is the same each time it is rendered.
const BOOTSTRAP_SEED: u64 = 5;

/// So many of the resamplings show that a number lacks more than the tolerance, or keeps a bound.
const SHOWN: f64 = 0.8;
/// More iothreads are worth it that take at most this share of the CPU time per request.
const LESS_CPU: f64 = 0.95;

/// What one number lacks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rating {
    pub(super) iothreads: Iothreads,
    pub(super) shortfall: f64,
    /// Where it lacks most.
    pub(super) worst: CellOnVariant,
}

/// The number to use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) rating: Rating,
    /// The one that lacks least, the fewest of equals; perhaps the same.
    pub(super) best: Rating,
    /// The share of resamplings in which the choice keeps the bounds and lacks at most the tolerance more than the best of
    /// the resampling.
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
struct Sheet<'a> {
    place: CellOfSubject<'a>,
    weight: Option<f64>,
    blocks: Rc<Blocks>,
    /// Of those that are compared.
    shares: Shares,
    /// Of all that were measured.
    known: Shares,
    /// What each number of the ratings reaches in each resampling; `None` where one that is compared here was not drawn.
    drawn: Rc<Vec<Option<Vec<f64>>>>,
    /// How each of them stands to the bounds; none where there are no bounds.
    kept: Rc<Vec<Kept>>,
}

/// How a number stands to the bounds in a cell.
#[derive(Clone, Debug)]
struct Kept {
    /// How much of each bound its repeats use, in the middle: above 1 they do not keep it.
    used: Vec<f64>,
    /// Whether it keeps all of them in each resampling.
    drawn: Vec<bool>,
}

/// In which share of the resamplings a number lacks at most the tolerance more than the best, and keeps the bounds, too.
#[derive(Clone, Copy, Debug)]
struct Agreed {
    iothreads: Iothreads,
    within: f64,
    kept: f64,
}

/// The cells of one subject.
#[derive(Clone, Debug)]
pub(super) struct Ratings<'a> {
    sheets: Vec<Sheet<'a>>,
    question: &'a Question,
    /// All numbers that some cell compares, in ascending order.
    compared: Rc<Vec<Iothreads>>,
    /// Which of them are shown to keep the bounds in every cell.
    keep: Vec<bool>,
    /// Numbers that cannot be the answer.
    barred: Vec<Iothreads>,
}

impl<'a> Ratings<'a> {
    /// Of all places with figures. Rounds are resampled, each with all its cells: what disturbs a round disturbs all of them.
    pub(super) fn new(places: &[CellOfSubject<'a>], question: &'a Question) -> Self {
        let all: Vec<Blocks> =
            places.iter().map(|it| it.summary.blocks(it.subject, question.want)).collect();
        let rounds = sorted(all.iter().flat_map(|blocks| blocks.rounds().iter().copied()));
        let mut resampler = Resampler::new(BOOTSTRAP_SEED);
        let draws: Vec<Vec<u16>> = Resampler::times().map(|_| resampler.draw(&rounds)).collect();
        let shares: Vec<Shares> = all.iter().map(Blocks::shares).collect();
        let compared = sorted(shares.iter().flatten().map(|(count, _)| *count));
        let sheet = |((place, blocks), shares): ((&CellOfSubject<'a>, Blocks), Shares)| {
            let known = blocks.all_shares();
            let resampled = {
                let shares_drawn = blocks.shares_drawn();
                let lacks = |rounds: &Vec<u16>| {
                    let drawn = shares_drawn(rounds);
                    let is_drawn = |it: &(Iothreads, f64)| share_of(&drawn, it.0).is_some();
                    shares.iter().all(is_drawn).then(|| {
                        let known = known_with(&known, &drawn);
                        compared.iter().map(|count| reached_or_none(&known, *count)).collect()
                    })
                };
                draws.iter().map(lacks).collect()
            };
            let stands = |count: &Iothreads| Kept::of(*place, *count, &question.bounds, &draws);
            let is_bound = !question.bounds.is_empty();
            Sheet {
                kept: Rc::new(compared.iter().filter(|_| is_bound).map(stands).collect()),
                place: *place,
                weight: weight_of(&place.summary.cell, &question.weights),
                drawn: Rc::new(resampled),
                blocks: Rc::new(blocks),
                shares,
                known,
            }
        };
        let sheets = places.iter().zip(all).zip(shares).map(sheet).collect();
        let compared = Rc::new(compared);
        Self { sheets, question, compared, keep: Vec::new(), barred: Vec::new() }.judged()
    }

    /// The same with what keeps the bounds in these cells.
    fn judged(mut self) -> Self {
        let places = 0..self.compared.len();
        let is_bound = self.is_bound();
        self.keep = places.map(|place| !is_bound || self.share_kept(place) >= SHOWN).collect();
        self
    }

    fn is_bound(&self) -> bool {
        self.sheets.iter().any(|sheet| !sheet.kept.is_empty())
    }

    /// In which share of the resamplings the number at a place keeps the bounds in all cells.
    fn share_kept(&self, place: usize) -> f64 {
        let keeps = |draw: &usize| self.sheets.iter().all(|sheet| sheet.keeps(place, *draw));
        Resampler::times().filter(keeps).count() as f64 / Resampler::times().len() as f64
    }

    /// The same with these numbers as no answer.
    pub(super) fn without(self, numbers: Vec<Iothreads>) -> Self {
        Self { barred: numbers, ..self }
    }

    /// A cell of which what is wanted was not measured.
    pub(super) fn unmeasured(&self) -> Option<CellOnVariant> {
        self.sheets.iter().find(|sheet| sheet.shares.is_empty()).map(|sheet| sheet.place.spot)
    }

    /// A cell in which nobody did a request.
    pub(super) fn idle(&self) -> Option<CellOnVariant> {
        self.sheets.iter().find(|sheet| sheet.blocks.is_idle()).map(|sheet| sheet.place.spot)
    }

    /// Where least is known of a number, and in how many blocks others are there.
    pub(super) fn footing(&self, iothreads: Iothreads) -> Option<(CellOnVariant, Footing, usize)> {
        let of =
            |sheet: &Sheet<'_>| (sheet.place.spot, sheet.footing(iothreads), sheet.blocks.count());
        self.sheets.iter().map(of).min_by_key(|(_, footing, _)| match footing {
            Footing::Unknown => (0, 0),
            Footing::Explored => (1, 0),
            Footing::Blocks(blocks) => (2, *blocks),
        })
    }

    /// The same with some of the cells.
    pub(super) fn only(&self, wanted: impl Fn(CellOnVariant) -> bool) -> Self {
        let sheets = self.sheets.iter().filter(|sheet| wanted(sheet.place.spot)).cloned().collect();
        let (barred, compared) = (self.barred.clone(), Rc::clone(&self.compared));
        Self { sheets, barred, compared, keep: Vec::new(), ..*self }.judged()
    }

    /// The same as if nothing had to be kept.
    pub(super) fn unbound(&self) -> Self {
        let mut free = self.only(|_| true);
        free.sheets.iter_mut().for_each(|sheet| sheet.kept = Rc::default());
        free.judged()
    }

    pub(super) fn spots(&self) -> impl Iterator<Item = CellOnVariant> {
        self.sheets.iter().map(|sheet| sheet.place.spot)
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

    /// Those that are shown to keep the bounds in every cell.
    pub(super) fn fit(&self) -> Vec<Iothreads> {
        let mut numbers = self.numbers();
        numbers.retain(|count| self.place(count).is_some_and(|place| self.keep[place]));
        numbers
    }

    /// The bound of which a number uses most, how much of it, and where. `None` without bounds.
    pub(super) fn most_used(&self, iothreads: Iothreads) -> Option<BoundUse> {
        let place = self.place(&iothreads)?;
        let kept = self.share_kept(place);
        let used = self.sheets.iter().flat_map(|sheet| {
            let each = sheet.kept.get(place).into_iter().flat_map(|kept| &kept.used);
            let each = each.zip(&self.question.bounds);
            each.map(|(&used, &bound)| BoundUse {
                iothreads,
                bound,
                used,
                spot: sheet.place.spot,
                kept,
            })
        });
        used.reduce(|a, b| if b.used > a.used { b } else { a })
    }

    fn place(&self, iothreads: &Iothreads) -> Option<usize> {
        self.compared.iter().position(|other| other == iothreads)
    }

    /// The highest of what all numbers reached, of those that keep the bounds. Without bounds they are shares of the best
    /// already.
    fn most(&self, reached: impl Iterator<Item = f64>) -> f64 {
        if !self.is_bound() {
            return 1.0;
        }
        let kept = reached.zip(&self.keep).filter(|(_, keeps)| **keeps);
        let most = kept.map(|(reached, _)| reached).fold(0.0, f64::max);
        if most > 0.0 { most } else { 1.0 }
    }

    /// What a number lacks to the best of those that keep the bounds.
    pub(super) fn rate(&self, iothreads: Iothreads) -> Option<Rating> {
        let lack = |sheet: &Sheet<'_>| {
            let all = self.compared.iter().map(|count| reached_or_none(&sheet.known, *count));
            1.0 - reached_or_none(&sheet.known, iothreads) / self.most(all)
        };
        let weighted = |sheet: &Sheet<'_>| sheet.weight.unwrap_or(1.0) * lack(sheet);
        let all = self.sheets.iter();
        let worst = all.reduce(|a, b| if weighted(b) > weighted(a) { b } else { a })?.place.spot;
        let shortfall = self.over_all(self.sheets.iter().map(lack));
        Some(Rating { iothreads, shortfall, worst })
    }

    fn over_all(&self, lacks: impl Iterator<Item = f64>) -> f64 {
        let weights = self.sheets.iter().map(|sheet| sheet.weight.unwrap_or(1.0));
        self.goal().over_all(weights.zip(lacks))
    }

    /// The number to use: the cheapest that is not shown to lack more than the tolerance, the fewest of equally cheap ones.
    /// `None` if no number is left.
    pub(super) fn choose(&self) -> Option<Choice> {
        let numbers = self.fit();
        let rated: Vec<Rating> = numbers.iter().filter_map(|count| self.rate(*count)).collect();
        let lower = |a: Rating, b: Rating| if b.shortfall < a.shortfall { b } else { a };
        let best = rated.iter().copied().reduce(lower)?;
        let agreed = self.agreed(&numbers);
        let of = |rating: &Rating| agreed.iter().find(|it| it.iothreads == rating.iothreads);
        let is_shown = |rating: &Rating| {
            let within = of(rating).map_or(0.0, |agreed| agreed.within);
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
        let takes_less = |rating: &Rating, than: &Rating| {
            let ratio = self.cpu_ratio(rating.iothreads, than.iothreads);
            ratio.is_some_and(|it| it.samples >= BLOCKS_MIN && it.ends().1 <= LESS_CPU)
        };
        let cheaper = |a, b| if takes_less(&b, &a) { b } else { a };
        let rating = candidates.into_iter().reduce(cheaper)?;
        Some(Choice { rating, best, within: of(&rating)?.kept })
    }

    /// What one number reaches relative to another in each cell, where both are known.
    pub(super) fn ratios(&self, iothreads: Iothreads, base: Iothreads) -> Vec<f64> {
        let ratio = |sheet: &Sheet<'_>| {
            let of = |count| reached(&sheet.known, count).filter(|share| *share > 0.0);
            Some(of(iothreads)? / of(base)?)
        };
        self.sheets.iter().filter_map(ratio).collect()
    }

    /// What is asked.
    pub(super) fn question(&self) -> &Question {
        self.question
    }

    /// What a cheaper number may lack.
    fn tolerance(&self) -> Tolerance {
        self.question.tolerance
    }

    /// CPU time per request of everything that takes part, relative to that with another number: in each round the geometric
    /// mean of all cells. `None` where the two share no round in some cell.
    fn cpu_ratio(&self, iothreads: Iothreads, base: Iothreads) -> Option<Estimate> {
        let in_cell = |sheet: &Sheet<'_>| {
            let (own, base) = (sheet.place.row(iothreads)?, sheet.place.row(base)?);
            let ratios = || ratios_by_repeat(base.merits(Want::Cpu), own.merits(Want::Cpu));
            (own.purpose == base.purpose).then(ratios)
        };
        let cells: Vec<Vec<(u16, f64)>> = self.sheets.iter().map(in_cell).collect::<Option<_>>()?;
        let in_round = |round: u16| {
            let of = |cell: &Vec<(u16, f64)>| {
                cell.iter().find(|(other, _)| *other == round).map(|it| it.1)
            };
            geometric_mean(cells.iter().map(of).collect::<Option<Vec<f64>>>()?)
        };
        Estimate::of(cells.first()?.iter().filter_map(|(round, _)| in_round(*round)))
    }

    /// How often each number agrees with the answer, of these.
    fn agreed(&self, numbers: &[Iothreads]) -> Vec<Agreed> {
        let places: Vec<usize> = numbers.iter().filter_map(|count| self.place(count)).collect();
        let mut good = vec![(0_usize, 0_usize); numbers.len()];
        let mut of = 0_usize;
        for draw in Resampler::times() {
            let drawn = self.sheets.iter().map(|sheet| sheet.drawn[draw].as_ref());
            let Some(drawn) = drawn.collect::<Option<Vec<_>>>() else { continue };
            let most: Vec<f64> =
                drawn.iter().map(|reached| self.most(reached.iter().copied())).collect();
            let lack = |place: &usize| {
                self.over_all(drawn.iter().zip(&most).map(|(all, most)| 1.0 - all[*place] / most))
            };
            let lacks: Vec<f64> = places.iter().map(lack).collect();
            let least = lacks.iter().copied().fold(f64::INFINITY, f64::min);
            of += 1;
            for ((good, lack), place) in good.iter_mut().zip(lacks).zip(&places) {
                let is_within = lack <= least + self.tolerance().share();
                let keeps = || self.sheets.iter().all(|sheet| sheet.keeps(*place, draw));
                good.0 += usize::from(is_within);
                good.1 += usize::from(is_within && keeps());
            }
        }
        let share = |good: usize| good as f64 / of.max(1) as f64;
        let agreed = |(&iothreads, (within, kept)): (&Iothreads, (usize, usize))| Agreed {
            iothreads,
            within: share(within),
            kept: share(kept),
        };
        numbers.iter().zip(good).map(agreed).collect()
    }
}

impl Kept {
    /// Of a number, or what stands for it.
    fn of(
        place: CellOfSubject<'_>,
        iothreads: Iothreads,
        bounds: &[Bound],
        draws: &[Vec<u16>],
    ) -> Self {
        let row = place.row(iothreads);
        let repeats = row.map_or(&[][..], |row| &row.by_repeat);
        let all: Vec<u16> = repeats.iter().map(|(repeat, _)| *repeat).collect();
        let used = |bound: Bound, drawn: &[u16]| {
            let of = |repeat| repeats.iter().find(|(other, _)| other == repeat);
            let mut used: Vec<f64> =
                drawn.iter().filter_map(of).map(|(_, figures)| bound.used(figures)).collect();
            median(&mut used)
        };
        let in_all = |bound: &Bound| used(*bound, &all).unwrap_or(f64::INFINITY);
        let in_all: Vec<f64> = bounds.iter().map(in_all).collect();
        let keeps = |drawn: &Vec<u16>| {
            let mut each = bounds.iter().zip(&in_all);
            each.all(|(bound, in_all)| used(*bound, drawn).unwrap_or(*in_all) <= 1.0)
        };
        Self { drawn: draws.iter().map(keeps).collect(), used: in_all }
    }
}

impl Sheet<'_> {
    /// Whether the number at a place keeps the bounds in a resampling.
    fn keeps(&self, place: usize, draw: usize) -> bool {
        self.kept.get(place).is_none_or(|kept| kept.drawn[draw])
    }

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
            Some((count, _)) if iothreads > self.place.useful => self.footing(*count),
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

/// What a number reached by these shares: below all that were measured nothing.
fn reached_or_none(known: &Shares, iothreads: Iothreads) -> f64 {
    reached(known, iothreads).unwrap_or(0.0)
}

fn share_of(shares: &Shares, iothreads: Iothreads) -> Option<f64> {
    shares.iter().find(|(count, _)| *count == iothreads).map(|(_, share)| *share)
}
