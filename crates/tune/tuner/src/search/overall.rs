//! What suits all places of a search at once: the numbers that lack least in the place where they lack most, or with weights
//! on average.

use super::place::Place;
use crate::contender::{Iothreads, Subject};
use crate::lists::sorted;
use crate::question::{Question, Tolerance};
use crate::summary::{Shares, TIE, reached};
use crate::weights::{Goal, Weight, weight_of};

/// Per subject each number with what it reaches in the place where it reaches least, in ascending order of numbers.
#[derive(Debug)]
pub(super) struct Overall {
    tolerance: Tolerance,
    of: Vec<(Subject, Shares)>,
}

impl Overall {
    /// By the blocks before this repeat, and where a number was in few, by the exploration if it took part.
    pub(super) fn of(places: &[Place<'_>], repeat: u16, question: &Question) -> Self {
        let subjects = sorted(places.iter().flat_map(Place::subjects));
        let least = |subject| (subject, over_all(places, subject, repeat, &question.weights));
        let of = subjects.into_iter().map(least).collect();
        Self { tolerance: question.tolerance, of }
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
}

/// What each number reaches where it reaches least; with weights on their average.
fn over_all(places: &[Place<'_>], subject: Subject, repeat: u16, weights: &[Weight]) -> Shares {
    let weighted = |place: &Place<'_>| {
        let weight = weight_of(&place.entry.cells[0], weights).unwrap_or(1.0);
        (weight, place.shares(subject, repeat))
    };
    let places = places.iter().map(weighted);
    let shares: Vec<(f64, Shares)> =
        places.filter(|(weight, shares)| *weight > 0.0 && !shares.is_empty()).collect();
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
