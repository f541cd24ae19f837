//! One number of iothreads for the disk, its price, how sure it is and what would change it. Pure functions.
//!
//! The report asks for the answer of each subject; `sentence` puts it into words, `ratings` compares the numbers.
//!
//! Invariants: the number is the lowest of those that are not shown to lack more than the tolerance in the cell where they
//! lack most (with weights: on average), unless a higher one is shown to take less CPU: iothreads that gain nothing visible are
//! not worth their CPU. One of which a run failed and was not measured since is never taken. How sure it is that
//! the number lacks no more is told with it; where nothing can be known, an answer with doubts recommends nothing.

mod gain;
mod place;
mod ratings;
mod sentence;

use plan::cell::Cell;
use plan::contender::{Contender, Iothreads, Subject};
use plan::lists::unique;
use plan::matrix::is_worth_few;
use plan::question::{Bound, Question, Tolerance, Want};
use plan::variant::Layers;
use plan::weights::{Goal, Weight, weight_of};
use records::steady::UnsteadyRuns;

use crate::bottleneck::Bottleneck;
use crate::summary::{BLOCKS_MIN, CellSummary, FailedCell};

pub use self::gain::Gain;
use self::place::CellOfSubject;
pub use self::place::CellOnVariant;
use self::ratings::{Choice, Footing, Rating, Ratings};
pub use self::sentence::{details, sentence, threads};

/// The share of resamplings from which on an answer is likely.
const LIKELY_FROM: f64 = 0.8;
/// The share of resamplings from which on it is sure.
const SURE_FROM: f64 = 0.95;
/// The fewest repeats of a number in every cell that let it be called so: resamplings of few repeats agree too easily, since
/// what they do not contain, they cannot show.
const SURE_REPEATS: usize = 6;
/// A number that lacks so much more is worth a word if it is cheaper.
const CHEAPER_LACKS: f64 = 0.1;
/// CPUs that are worth a word.
const CHEAPER_BY: f64 = 0.5;

/// How sure it is that the number lacks at most the tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// It may lack more, but no dearer number is shown to gain more than the tolerance.
    Doubtful,
    /// Most resamplings agree.
    Likely,
    /// Nearly all of them do, there are repeats enough, and nothing bends the figures.
    Sure,
}

impl Certainty {
    /// As all reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Doubtful => "in doubt",
            Self::Likely => "likely",
            Self::Sure => "sure",
        }
    }
}

/// What to use for one subject, or why that cannot be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Whose iothreads.
    pub subject: Subject,
    /// The cheapest that may be good enough; a recommendation only if `recommends`.
    pub iothreads: Iothreads,
    /// Why the machine cannot tell.
    pub doubts: Vec<Doubt>,
    /// Why there is nothing to tell; then there are no doubts.
    pub nothing: Option<NoAnswer>,
    /// What it is to be good for.
    pub want: Want,
    /// What it keeps.
    pub bounds: Vec<Bound>,
    /// How near the number is to them.
    pub used: Option<BoundUse>,
    /// What counts of several cells.
    pub goal: Goal,
    /// What the number lacks: 0 is nothing, 1 everything; by `goal`.
    pub shortfall: f64,
    /// Where it lacks most.
    pub worst: CellOnVariant,
    /// Cells that were compared.
    pub cells: usize,
    /// The share of resamplings in which it lacks at most the tolerance more than the best number.
    pub within: f64,
    /// What it may lack.
    pub tolerance: Tolerance,
    /// Of the number, in the cell where it has fewest; 0 where it was not measured again.
    pub repeats: usize,
    /// Of others in that cell.
    pub repeats_of_cell: usize,
    /// What it brings over none.
    pub gain: Option<Gain>,
    /// What it costs.
    pub price: Option<Price>,
    /// Missing where the number is the best one.
    pub dearer: Option<DearerNumber>,
    /// Missing where none saves enough.
    pub cheaper: Option<CheaperNumber>,
    /// What would change it.
    pub changes: Vec<Change>,
    /// The number in use and what it lacks, unless a run of it failed.
    pub today: Option<Today>,
    /// What limits the number in each cell, where that shows.
    pub limits: Vec<Limit>,
    /// Its IOPS relative to the most of the cell where they are fewest, if these are not what is wanted.
    pub rate: Option<(f64, CellOnVariant)>,
    /// The machine had fewer cores than busy threads: it limits, not the number.
    pub cpu_bound: bool,
    /// What bends the figures.
    pub bent: Caveats,
}

impl Answer {
    /// Whether the number is recommended.
    pub fn recommends(&self) -> bool {
        self.nothing.is_none() && self.doubts.is_empty()
    }

    /// What the resamplings, the repeats and what bends the figures leave of it.
    pub fn certainty(&self) -> Certainty {
        let can_be_sure = self.repeats >= SURE_REPEATS && self.bent == Caveats::default();
        match self.within {
            SURE_FROM.. if can_be_sure => Certainty::Sure,
            LIKELY_FROM.. => Certainty::Likely,
            _ => Certainty::Doubtful,
        }
    }
}

/// What makes all figures doubtful, whatever resamplings of them say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caveats {
    /// Most runs were not steady.
    pub unsteady: bool,
    /// The sentinel changed meanwhile.
    pub drifted: bool,
    /// The file that was read has holes.
    pub holes: bool,
    /// So many cells that count have no figures, since all their runs failed.
    pub failed_cells: usize,
}

/// Why there is no answer, however often it is measured.
#[derive(Clone, Debug, PartialEq)]
pub enum NoAnswer {
    /// There is nothing to compare.
    OneNumber,
    /// These numbers, each in so many repeats, are in too few of the same ones.
    Apart(Vec<(Iothreads, usize)>),
    /// By these weights no cell counts that was measured.
    Counts(Vec<Weight>),
    /// So many numbers, fewer than two, are left of which no run failed.
    NumbersFailed(usize),
    /// What is wanted was not measured in this cell.
    NotMeasured(CellOnVariant),
    /// No number is shown to keep the bounds; this one is nearest to that.
    NoneKeeps(BoundUse),
}

/// How much of a bound a number uses, where it uses most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoundUse {
    /// The number.
    pub iothreads: Iothreads,
    /// The bound of which it uses most.
    pub bound: Bound,
    /// Above 1 it does not keep it.
    pub used: f64,
    /// Where that is.
    pub spot: CellOnVariant,
    /// The share of resamplings in which it keeps all bounds everywhere.
    pub kept: f64,
}

/// Why the machine cannot tell.
#[derive(Clone, Debug, PartialEq)]
pub enum Doubt {
    /// Guests whose CPUs were emulated.
    Emulated,
    /// So few repeats in some cell.
    FewRepeats(usize),
    /// A cell in which the number was only explored.
    Explored(CellOnVariant),
    /// A cell in which it could have been measured, but nothing compares it there.
    NotCompared(CellOnVariant),
    /// A cell in which nobody did a request.
    Idle(CellOnVariant),
    /// More of the cells that count failed than were measured.
    Failures {
        /// That have figures.
        measured: usize,
        /// That have none.
        failed: usize,
    },
}

/// CPUs that serve the disk, in the cell where they are most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// With the number.
    pub cpus: f64,
    /// With no iothread in the same cell.
    pub none: Option<f64>,
    /// Where they are most.
    pub cell: Cell,
}

/// The number that lacks least, beside the cheaper one that is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DearerNumber {
    /// The number.
    pub iothreads: Iothreads,
    /// What is wanted of it relative to the chosen one, in the cell where that is least and in the one where it is most.
    pub lowest: f64,
    /// Where it is most.
    pub highest: f64,
    /// What it costs.
    pub price: Option<Price>,
}

/// A smaller number that lacks more than the tolerance and is cheaper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheaperNumber {
    /// The number.
    pub iothreads: Iothreads,
    /// What it lacks, as that of the answer.
    pub shortfall: f64,
    /// CPUs saved, where most are used.
    pub saves: f64,
}

/// The number that is in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Today {
    /// The number.
    pub iothreads: Iothreads,
    /// As that of the answer.
    pub shortfall: f64,
    /// Where it lacks most.
    pub worst: CellOnVariant,
}

/// Another answer if something were not asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// If this were so.
    pub condition: Condition,
    /// The answer then.
    pub iothreads: Iothreads,
}

/// What is changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Condition {
    /// If this cell did not count.
    Without(CellOnVariant),
    /// If only cells of this operation counted.
    Only(String),
    /// If nothing had to be kept.
    WithoutBounds,
}

/// What limits the number in a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Where.
    pub spot: CellOnVariant,
    /// What limits it there.
    pub bottleneck: Bottleneck,
    /// Requests per second of the number, and of the host.
    pub iops: f64,
    /// Of the host, where that was measured.
    pub host: Option<f64>,
}

/// The answer for one subject from all cells that count; `failed` are those in which runs failed and were not measured
/// since. `None` if the subject was not measured, or its numbers are not compared.
pub fn answer(
    subject: Subject,
    cells: &[CellSummary],
    question: &Question,
    failed: &[FailedCell],
) -> Option<Answer> {
    let weights = &question.weights;
    let all = places(subject, cells, failed);
    let counts = |place: &CellOfSubject<'_>| weight_of(&place.summary.cell, weights) != Some(0.0);
    let counted: Vec<CellOfSubject<'_>> = all.iter().copied().filter(counts).collect();
    if counted.is_empty() {
        let nothing = Some(NoAnswer::Counts(weights.clone()));
        return without(&all, nothing);
    }
    let measured = Ratings::new(&counted, question);
    let left = measured.clone().without(failed_numbers(&counted, failed));
    let numbers = [&measured, &left].map(|ratings| ratings.numbers().len());
    let ratings = if numbers[1] == 0 { &measured } else { &left };
    if let Some(spot) = ratings.unmeasured().filter(|_| question.want != Want::Throughput) {
        return without(&counted, Some(NoAnswer::NotMeasured(spot)));
    }
    if ratings.fit().is_empty() {
        let used = ratings.numbers().into_iter().filter_map(|count| ratings.most_used(count));
        let nearest = used.reduce(|a, b| if b.used < a.used { b } else { a })?;
        return without(&counted, Some(NoAnswer::NoneKeeps(nearest)));
    }
    let failed_cells = failed_cells(&counted, weights, failed);
    let answer = chosen(&counted, ratings)?;
    let answer = Answer { bent: Caveats { failed_cells, ..answer.bent }, ..answer };
    let nothing = match numbers {
        [0 | 1, _] => Some(apart(&counted).unwrap_or(NoAnswer::OneNumber)),
        [_, left @ (0 | 1)] => Some(NoAnswer::NumbersFailed(left)),
        [_, _] => None,
    };
    let doubts = match nothing {
        None => doubts(&answer, &counted, ratings),
        Some(_) => Vec::new(),
    };
    Some(Answer { doubts, nothing, ..answer })
}

/// Why there is no answer; what stands beside that is the answer to the usual question.
fn without(places: &[CellOfSubject<'_>], nothing: Option<NoAnswer>) -> Option<Answer> {
    let usual = Question::default();
    Some(Answer { nothing, ..chosen(places, &Ratings::new(places, &usual))? })
}

/// What is to be used, as if there were no doubts.
fn chosen(places: &[CellOfSubject<'_>], ratings: &Ratings<'_>) -> Option<Answer> {
    let (subject, want) = (places.first()?.subject, ratings.question().want);
    let Choice { rating: Rating { iothreads, shortfall, worst }, best, within } =
        ratings.choose()?;
    let price = price(places, iothreads);
    let (_, footing, repeats_of_cell) = ratings.footing(iothreads)?;
    Some(Answer {
        subject,
        iothreads,
        doubts: Vec::new(),
        nothing: None,
        want,
        bounds: ratings.question().bounds.clone(),
        used: ratings.most_used(iothreads),
        goal: ratings.goal(),
        shortfall,
        worst,
        cells: places.len(),
        within,
        tolerance: ratings.question().tolerance,
        repeats: match footing {
            Footing::Blocks(blocks) => blocks,
            Footing::Explored | Footing::Unknown => 0,
        },
        repeats_of_cell,
        gain: Gain::of(places, iothreads, want),
        price,
        dearer: dearer(places, ratings, iothreads, best.iothreads),
        cheaper: price.and_then(|price| cheaper(places, ratings, (iothreads, shortfall), price)),
        changes: changes(ratings, iothreads),
        today: ratings.question().today.filter(|_| subject == Subject::VmQemu).and_then(|today| {
            let Rating { iothreads, shortfall, worst } = ratings.rate(today)?;
            Some(Today { iothreads, shortfall, worst })
        }),
        limits: places.iter().filter_map(|place| limit(*place, iothreads)).collect(),
        rate: (want != Want::Throughput).then(|| gain::rate(places, iothreads)).flatten(),
        cpu_bound: places.iter().any(|place| place.row(iothreads).is_some_and(|row| row.cpu_bound)),
        bent: Caveats { unsteady: unsteady_runs(places).are_most(), ..Caveats::default() },
    })
}

fn unsteady_runs(places: &[CellOfSubject<'_>]) -> UnsteadyRuns {
    let rows = places.iter().flat_map(|place| place.summary.rows_of(place.subject));
    rows.map(|row| row.unsteady_runs).sum()
}

/// The numbers that were measured without being compared, if there are several.
fn apart(places: &[CellOfSubject<'_>]) -> Option<NoAnswer> {
    let mut numbers: Vec<(Iothreads, usize)> = Vec::new();
    for place in places {
        for row in place.summary.rows_of(place.subject) {
            let Some(iothreads) = row.iothreads() else { continue };
            let repeats = row.by_repeat.len();
            match numbers.iter_mut().find(|(other, _)| *other == iothreads) {
                Some((_, most)) => *most = repeats.max(*most),
                None => numbers.push((iothreads, repeats)),
            }
        }
    }
    numbers.sort_unstable();
    (numbers.len() > 1).then_some(NoAnswer::Apart(numbers))
}

/// The cells in which numbers of a subject are compared.
fn places<'a>(
    subject: Subject,
    cells: &'a [CellSummary],
    failed: &[FailedCell],
) -> Vec<CellOfSubject<'a>> {
    let compares =
        |summary: &&CellSummary| summary.verdicts.iter().any(|(other, _)| *other == subject);
    let several = cells.iter().any(|summary| summary.variant != cells[0].variant);
    let place = |summary: &'a CellSummary| {
        let spot =
            CellOnVariant { cell: summary.cell, variant: several.then_some(summary.variant) };
        CellOfSubject { summary, subject, spot, useful: useful(subject, summary, failed) }
    };
    cells.iter().filter(compares).map(place).collect()
}

/// The highest number that a subject can be measured with in a cell.
fn useful(subject: Subject, summary: &CellSummary, failed: &[FailedCell]) -> Iothreads {
    let here = failed.iter().filter(|it| is_of(it, summary)).flat_map(|it| &it.contenders);
    let here = here.map(|it| it.contender).filter(|it| it.subject() == subject);
    let tried = summary.rows_of(subject).map(|row| row.contender).chain(here);
    let highest = tried.filter_map(Contender::number).max().unwrap_or(Iothreads::NONE);
    let queues = summary.rows_of(subject).map(|row| row.queues).max().unwrap_or(0);
    let queues = queues.saturating_mul(summary.variant.disks);
    let is_left_out = is_worth_few(&summary.variant, &summary.cell, highest)
        || summary.variant.fits(subject, queues, &Layers::Kernel).is_err();
    if is_left_out { highest } else { highest.max(Iothreads::new(queues)) }
}

fn is_of(failed: &FailedCell, summary: &CellSummary) -> bool {
    (summary.variant, summary.cell) == (failed.variant, failed.cell)
}

/// Cells that count, and of which the subject has no figures because its runs failed.
fn failed_cells(places: &[CellOfSubject<'_>], weights: &[Weight], failed: &[FailedCell]) -> usize {
    let own = |it: &&FailedCell| {
        let subject = |subject| it.contenders.iter().any(|one| one.contender.subject() == subject);
        places.first().is_some_and(|place| subject(place.subject))
            && weight_of(&it.cell, weights) != Some(0.0)
            && !places.iter().any(|place| is_of(it, place.summary))
    };
    failed.iter().filter(own).count()
}

/// Numbers of which a run failed in one of these cells: they may fail again.
fn failed_numbers(places: &[CellOfSubject<'_>], failed: &[FailedCell]) -> Vec<Iothreads> {
    let mut numbers = Vec::new();
    for place in places {
        let here = failed.iter().filter(|it| is_of(it, place.summary));
        let of = here.flat_map(|it| &it.contenders).map(|it| it.contender);
        let own = of.filter(|contender| contender.subject() == place.subject);
        numbers.extend(own.filter_map(Contender::iothreads));
    }
    numbers
}

fn doubts(answer: &Answer, places: &[CellOfSubject<'_>], ratings: &Ratings<'_>) -> Vec<Doubt> {
    let rows = || places.iter().flat_map(|place| place.summary.rows_of(answer.subject));
    let failed = answer.bent.failed_cells;
    let mut doubts = Vec::new();
    if rows().any(|row| row.emulated) {
        doubts.push(Doubt::Emulated);
    }
    if failed > places.len() {
        doubts.push(Doubt::Failures { measured: places.len(), failed });
    }
    doubts.extend(ratings.idle().map(Doubt::Idle));
    doubts.extend(ratings.footing(answer.iothreads).and_then(|(spot, footing, _)| match footing {
        Footing::Unknown => Some(Doubt::NotCompared(spot)),
        Footing::Explored => Some(Doubt::Explored(spot)),
        Footing::Blocks(blocks) => (blocks < BLOCKS_MIN).then_some(Doubt::FewRepeats(blocks)),
    }));
    doubts
}

/// What limits a number in a cell, or what stands for it there.
fn limit(place: CellOfSubject<'_>, iothreads: Iothreads) -> Option<Limit> {
    let row = place.row(iothreads)?;
    let bottleneck = Bottleneck::of(place.summary, row)?;
    let host = place.summary.host().map(|row| row.iops.median);
    Some(Limit { spot: place.spot, bottleneck, iops: row.iops.median, host })
}

fn price(places: &[CellOfSubject<'_>], iothreads: Iothreads) -> Option<Price> {
    let priced = places.iter().filter_map(|place| Some((place, place.cpus(iothreads)?)));
    let (place, cpus) = priced.reduce(|a, b| if b.1 > a.1 { b } else { a })?;
    let none = place.cpus(Iothreads::NONE).filter(|_| iothreads != Iothreads::NONE);
    Some(Price { cpus, none, cell: place.summary.cell })
}

/// What the number that lacks least would bring and cost, if another is chosen.
fn dearer(
    places: &[CellOfSubject<'_>],
    ratings: &Ratings<'_>,
    chosen: Iothreads,
    best: Iothreads,
) -> Option<DearerNumber> {
    if best == chosen {
        return None;
    }
    let ratios = ratings.ratios(best, chosen);
    Some(DearerNumber {
        iothreads: best,
        lowest: ratios.iter().copied().reduce(f64::min)?,
        highest: ratios.iter().copied().reduce(f64::max)?,
        price: price(places, best),
    })
}

/// The fewest iothreads that lack little more and save CPUs.
fn cheaper(
    places: &[CellOfSubject<'_>],
    ratings: &Ratings<'_>,
    (iothreads, shortfall): (Iothreads, f64),
    price: Price,
) -> Option<CheaperNumber> {
    let fewer = ratings.fit().into_iter().filter(|count| *count < iothreads);
    let rated = fewer.filter_map(|count| ratings.rate(count));
    let near = rated.filter(|rating| rating.shortfall <= shortfall + CHEAPER_LACKS);
    let saves = |rating: &Rating| {
        let most = places.iter().filter_map(|place| place.cpus(rating.iothreads));
        most.reduce(f64::max).map(|cpus| price.cpus - cpus)
    };
    near.filter_map(|rating| Some((saves(&rating)?, rating)))
        .find(|(saves, _)| *saves >= CHEAPER_BY)
        .map(|(saves, Rating { iothreads, shortfall, .. })| CheaperNumber {
            iothreads,
            shortfall,
            saves,
        })
}

/// Cells and operations that decide.
fn changes(ratings: &Ratings<'_>, iothreads: Iothreads) -> Vec<Change> {
    let mut changes = Vec::new();
    let choose = |ratings: Ratings<'_>| ratings.choose().map(|choice| choice.rating);
    let operations = unique(ratings.spots().map(|it| it.cell.shape().operation().to_string()));
    let mut note = |condition: Condition, other: Option<Rating>| {
        if let Some(other) = other.filter(|other| other.iothreads != iothreads) {
            changes.push(Change { condition, iothreads: other.iothreads });
        }
    };
    note(Condition::WithoutBounds, choose(ratings.unbound()));
    if operations.len() > 1 {
        for operation in operations {
            let own = ratings.only(|spot| spot.cell.shape().operation().to_string() == operation);
            note(Condition::Only(operation), choose(own));
        }
    }
    if ratings.spots().count() > 2 {
        // Another cell is not what a number lacks most in, or nearest to a bound, so without it the numbers lack what they lack.
        let numbers = ratings.numbers();
        let rated = numbers.iter().filter_map(|count| ratings.rate(*count)).map(|it| it.worst);
        let used = numbers.iter().filter_map(|count| ratings.most_used(*count)).map(|it| it.spot);
        let decisive = unique(rated.chain(used));
        for spot in ratings.spots().filter(|spot| decisive.contains(spot)) {
            note(Condition::Without(spot), choose(ratings.only(|other| other != spot)));
        }
    }
    changes
}

#[cfg(test)]
mod tests;
