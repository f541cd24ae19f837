//! What a number of iothreads gains over none, by what is wanted, and what it costs in IOPS. Pure functions.

use plan::contender::Iothreads;
use plan::question::Want;

use super::{CellOfSubject, CellOnVariant};
use crate::stats::{Estimate, ratio_by_repeat};
use crate::summary::Row;

/// What the number gains over none, as ratios of what is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// In the cell where it is least.
    pub lowest: f64,
    /// In the one where it is most.
    pub highest: f64,
    /// Cells whose gain may be none: its interval, or with few repeats its range, contains 1.
    pub in_doubt: usize,
    /// Other cells, with so few repeats that there is no interval.
    pub unproved: usize,
    /// In which both were measured.
    pub cells: usize,
}

impl Gain {
    /// Of a number; `None` for none itself, and where the two share no repeats.
    pub(super) fn of(
        places: &[CellOfSubject<'_>],
        iothreads: Iothreads,
        want: Want,
    ) -> Option<Self> {
        if iothreads == Iothreads::NONE {
            return None;
        }
        let ratio = |place: &CellOfSubject<'_>| {
            let row = place.row(iothreads)?;
            to_none(*place, row, want).filter(|_| row.iothreads() != Some(Iothreads::NONE))
        };
        let ratios: Vec<Estimate> = places.iter().filter_map(ratio).collect();
        let medians = || ratios.iter().map(|ratio| ratio.median);
        let may_be_none = |ratio: &&Estimate| {
            let ends = ratio.ends();
            ends.0 <= 1.0 && ends.1 >= 1.0
        };
        let (in_doubt, others): (Vec<&Estimate>, Vec<&Estimate>) =
            ratios.iter().partition(may_be_none);
        Some(Self {
            lowest: medians().reduce(f64::min)?,
            highest: medians().reduce(f64::max)?,
            in_doubt: in_doubt.len(),
            unproved: others.iter().filter(|ratio| ratio.interval.is_none()).count(),
            cells: ratios.len(),
        })
    }
}

/// What a row reached relative to none, by what is wanted.
fn to_none(place: CellOfSubject<'_>, row: &Row, want: Want) -> Option<Estimate> {
    if want == Want::Throughput {
        return row.to_none;
    }
    let none = place.row(Iothreads::NONE).filter(|none| none.purpose == row.purpose)?;
    ratio_by_repeat(row.merits(want), none.merits(want))
}

/// The IOPS of a number relative to the most, where they are fewest.
pub(super) fn rate(
    places: &[CellOfSubject<'_>],
    iothreads: Iothreads,
) -> Option<(f64, CellOnVariant)> {
    let relative = |place: &CellOfSubject<'_>| {
        let all = place.summary.rows_of(place.subject).map(|row| row.iops.median);
        let ratio = place.row(iothreads)?.iops.median / all.fold(0.0, f64::max);
        ratio.is_finite().then_some((ratio, place.spot))
    };
    places.iter().filter_map(relative).reduce(|a, b| if b.0 < a.0 { b } else { a })
}
