//! What suits all places of a search at once: the numbers that lack least in the place where they lack most, or with weights
//! on average; and those that no bound forbids.

use findings::summary::{Shares, TIE, reached};
use plan::contender::{Contender, Iothreads, Subject};
use plan::lists::sorted;
use plan::question::{Question, Tolerance};
use plan::weights::{Goal, Weight, weight_of};

use super::place::SearchedCell;

/// Per subject each number with what it reaches in the place where it reaches least, in ascending order of numbers.
#[derive(Debug)]
pub(super) struct Overall {
    tolerance: Tolerance,
    of: Vec<(Subject, Shares)>,
    /// Numbers that clearly miss a bound in some place that counts; none of a subject all of whose numbers do.
    missing: Vec<Contender>,
}

impl Overall {
    /// By the blocks before this repeat, and where a number was in few, by the exploration if it took part.
    pub(super) fn of(places: &[SearchedCell<'_>], repeat: u16, question: &Question) -> Self {
        let subjects = sorted(places.iter().flat_map(SearchedCell::subjects));
        let missing = |subject: &Subject| missing(places, *subject, repeat, &question.weights);
        let missing = subjects.iter().flat_map(missing).collect();
        let mut overall = Self { tolerance: question.tolerance, of: Vec::new(), missing };
        let least =
            |subject| (subject, overall.over_all(places, subject, repeat, &question.weights));
        overall.of = subjects.into_iter().map(least).collect();
        overall
    }

    /// The numbers that clearly miss a bound somewhere.
    pub(super) fn missing(&self) -> Vec<Contender> {
        self.missing.clone()
    }

    /// The shares of a place without the numbers that miss a bound somewhere, relative to the best of the others.
    pub(super) fn rivals(&self, subject: Subject, mut shares: Shares) -> Shares {
        let all = shares.len();
        shares.retain(|(count, _)| !self.missing.contains(&Contender::new(subject, *count)));
        if shares.len() < all {
            let most = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
            shares.iter_mut().filter(|_| most > 0.0).for_each(|(_, share)| *share /= most);
        }
        shares
    }

    /// The numbers that may be the answer, and are worth being measured again everywhere.
    pub(super) fn good(&self, subject: Subject) -> impl Iterator<Item = Iothreads> {
        self.within(subject, self.tolerance.share())
    }

    /// The fewest of those that tie with the best.
    pub(super) fn fewest(&self, subject: Subject) -> Option<Iothreads> {
        self.within(subject, TIE).next()
    }

    fn within(&self, subject: Subject, less: f64) -> impl Iterator<Item = Iothreads> {
        let own = self.of.iter().filter(move |(other, _)| *other == subject);
        own.flat_map(move |(_, shares)| {
            let most = shares.iter().map(|(_, share)| *share).fold(0.0, f64::max);
            shares.iter().filter(move |(_, share)| *share >= most - less).map(|(count, _)| *count)
        })
    }

    /// What each number reaches where it reaches least; with weights on their average.
    fn over_all(
        &self,
        places: &[SearchedCell<'_>],
        subject: Subject,
        repeat: u16,
        weights: &[Weight],
    ) -> Shares {
        let places = counted(places, weights);
        let places = places
            .map(|(weight, place)| (weight, self.rivals(subject, place.shares(subject, repeat))));
        let shares: Vec<(f64, Shares)> = places.filter(|(_, shares)| !shares.is_empty()).collect();
        let each = shares.iter().flat_map(|(_, shares)| shares);
        let all = sorted(each.map(|(count, _)| *count));
        let share = |count: Iothreads| {
            let lack = |(weight, shares): &(f64, Shares)| {
                (*weight, 1.0 - reached(shares, count).unwrap_or(0.0))
            };
            (count, 1.0 - Goal::of(weights).over_all(shares.iter().map(lack)))
        };
        all.into_iter().map(share).collect()
    }
}

/// The places that count, with their weights.
fn counted<'p, 'a>(
    places: &'p [SearchedCell<'a>],
    weights: &[Weight],
) -> impl Iterator<Item = (f64, &'p SearchedCell<'a>)> {
    let weighted = |place: &'p SearchedCell<'a>| {
        (weight_of(&place.entry.cells[0], weights).unwrap_or(1.0), place)
    };
    places.iter().map(weighted).filter(|(weight, _)| *weight > 0.0)
}

/// The numbers of a subject that clearly miss a bound in some place, unless all do: then there is nothing else to look at.
fn missing(
    places: &[SearchedCell<'_>],
    subject: Subject,
    repeat: u16,
    weights: &[Weight],
) -> Vec<Contender> {
    let each = counted(places, weights).flat_map(|(_, place)| place.missing(subject, repeat));
    let missing = sorted(each);
    let tried = counted(places, weights).flat_map(|(_, place)| place.shares(subject, repeat));
    if sorted(tried.map(|(count, _)| count)).iter().all(|count| missing.contains(count)) {
        return Vec::new();
    }
    missing.into_iter().map(|count| Contender::new(subject, count)).collect()
}
