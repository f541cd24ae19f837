//! One number of iothreads for the disk, and one honest sentence about it. Pure functions.
//!
//! The number is the one whose worst shortfall over all cells is smallest; counts within one
//! percentage point of it are equal, and of equal counts the fewest is taken. A still smaller count
//! is taken if it is enough in every cell and what it lacks is inside the spread of the repeats.

use load::Spread;

use crate::cell::Cell;
use crate::contender::{Iothreads, Subject};
use crate::summary::{CellSummary, ENOUGH, Row};
use crate::units::counted;

/// Shortfalls closer than this cannot be told apart by a few repeats.
const TIE: f64 = 0.01;

/// The number to use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recommendation {
    pub(crate) subject: Subject,
    pub(crate) iothreads: Iothreads,
    /// What it lacks to the best count in the cell where it lacks most: 0 is nothing, 1 everything.
    pub(crate) shortfall: f64,
    /// The cell of that shortfall.
    pub(crate) worst: Cell,
    pub(crate) choice: Choice,
}

/// Why a count was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Its worst shortfall is the smallest.
    Smallest,
    /// Another lacks less, but by no more than the spread of the repeats.
    InsideSpread,
}

/// The cells of one subject.
#[derive(Clone, Copy)]
struct Cells<'a> {
    subject: Subject,
    all: &'a [CellSummary],
}

/// Recommends for all cells of a subject together; `None` if it was not measured.
pub(crate) fn recommend(subject: Subject, cells: &[CellSummary]) -> Option<Recommendation> {
    let cells = Cells { subject, all: cells };
    let mut candidates: Vec<Iothreads> =
        cells.all.iter().flat_map(|cell| cell.medians(subject)).map(|(n, _)| n).collect();
    candidates.sort_unstable();
    candidates.dedup();
    let rated: Vec<_> = candidates.into_iter().filter_map(|n| cells.worst_shortfall(n)).collect();
    let least = rated.iter().map(|r| r.shortfall).fold(f64::INFINITY, f64::min);
    let smallest = rated.iter().find(|r| r.shortfall <= least + TIE)?;
    let as_good = |r: &&Recommendation| {
        r.iothreads < smallest.iothreads
            && r.shortfall <= 1.0 - ENOUGH
            && cells.all.iter().all(|cell| cells.overlap(cell, r.iothreads, smallest.iothreads))
    };
    Some(match rated.iter().find(as_good) {
        Some(fewer) => Recommendation { choice: Choice::InsideSpread, ..fewer.clone() },
        None => smallest.clone(),
    })
}

impl<'a> Cells<'a> {
    /// Whether the spreads of two counts overlap in a cell.
    fn overlap(self, cell: &CellSummary, a: Iothreads, b: Iothreads) -> bool {
        let (Some(a), Some(b)) = (self.stand_in(cell, a), self.stand_in(cell, b)) else {
            return false;
        };
        a.iops.lowest <= b.iops.highest && a.iops.highest >= b.iops.lowest
    }

    /// The row of a count, or of the highest one below it if the cell has too few queues for it.
    fn stand_in(self, cell: &'a CellSummary, iothreads: Iothreads) -> Option<&'a Row> {
        let own = cell.rows_of(self.subject);
        let measured = own.filter(|row| row.iothreads().is_some_and(|n| n <= iothreads));
        measured.max_by_key(|row| row.iothreads())
    }

    fn worst_shortfall(self, iothreads: Iothreads) -> Option<Recommendation> {
        let rate = |cell: &CellSummary| {
            let shortfall = shortfall(iothreads, &cell.medians(self.subject))?;
            let (subject, choice) = (self.subject, Choice::Smallest);
            Some(Recommendation { subject, iothreads, shortfall, worst: cell.cell, choice })
        };
        let worse =
            |a: Recommendation, b: Recommendation| if b.shortfall > a.shortfall { b } else { a };
        self.all.iter().filter_map(rate).reduce(worse)
    }

    fn gain(self, cell: &'a CellSummary, iothreads: Iothreads) -> Option<Gain> {
        let row = self.stand_in(cell, iothreads)?;
        let overlaps = row.iothreads() != Some(Iothreads::NONE)
            && self.overlap(cell, iothreads, Iothreads::NONE);
        Some(Gain { to_none: row.to_none?.median, overlaps })
    }
}

/// What a count lacks in one cell. Counts above the queues were not measured: they behave as the
/// highest one below, because further threads have no queue. Below all measured ones, nothing is known.
fn shortfall(iothreads: Iothreads, medians: &[(Iothreads, f64)]) -> Option<f64> {
    let best = medians.iter().map(|(_, median)| *median).reduce(f64::max)?;
    let stand_in = medians.iter().filter(|(n, _)| *n <= iothreads).max_by_key(|(n, _)| *n);
    let reached = stand_in.map_or(0.0, |(_, median)| *median);
    Some(if best > 0.0 { 1.0 - reached / best } else { 0.0 })
}

/// The sentence of the report.
pub(crate) fn sentence(recommendation: &Recommendation, cells: &[CellSummary]) -> String {
    let cells = Cells { subject: recommendation.subject, all: cells };
    let rows = |cell: &CellSummary| cell.medians(cells.subject).len();
    let candidates = cells.all.iter().map(rows).max().unwrap_or(0);
    let n = recommendation.iothreads;
    if candidates < 2 {
        return format!("Only {} was measured, so there is nothing to compare.", threads(n));
    }
    let mut text = format!("Use {}: {}", threads(n), lack(recommendation, cells.all.len()));
    let gains: Vec<Gain> = cells.all.iter().filter_map(|cell| cells.gain(cell, n)).collect();
    if n != Iothreads::NONE && !gains.is_empty() {
        text.push_str(&gained(&gains, cells));
    }
    if recommendation.choice == Choice::InsideSpread {
        text.push_str("; more iothreads gained no more than the spread of the repeats");
    }
    text.push('.');
    text
}

/// The gain over none, with what is to be doubted about it.
fn gained(gains: &[Gain], cells: Cells<'_>) -> String {
    let medians = Spread::of(gains.iter().map(|gain| gain.to_none)).expect("there is a gain");
    let (low, high) = (percent_gain(medians.lowest), percent_gain(medians.highest));
    let range = if low == high { low } else { format!("{low} to {high}") };
    format!(", {range} over none{}", doubt(gains, cells))
}

/// How much the recommended count lacks.
fn lack(recommendation: &Recommendation, cells: usize) -> String {
    let many = cells > 1;
    let percent = recommendation.shortfall * 100.0;
    let place = if many { " in every cell" } else { "" };
    if percent == 0.0 {
        return format!("the best{place}");
    }
    if percent < 1.0 {
        return format!("within 1 % of the best{place}");
    }
    if many {
        format!("at most {percent:.0} % below the best of each cell ({})", recommendation.worst)
    } else {
        format!("{percent:.0} % below the best")
    }
}

/// Says where the gain cannot be told from noise.
fn doubt(gains: &[Gain], cells: Cells<'_>) -> String {
    let mut rows = cells.all.iter().flat_map(|cell| cell.rows_of(cells.subject));
    if !rows.any(|row| row.repeats > 1) {
        return "; one repeat does not show how much of that is noise".to_owned();
    }
    let overlapping = gains.iter().filter(|gain| gain.overlaps).count();
    if overlapping == 0 {
        String::new()
    } else if overlapping == gains.len() {
        "; but that is inside the spread of the repeats, so none may serve as well".to_owned()
    } else {
        let cells = counted(gains.len(), "cell");
        format!("; in {overlapping} of {cells} that is inside the spread of the repeats")
    }
}

/// What a count gains over none in one cell.
struct Gain {
    /// Median of the ratios inside the blocks.
    to_none: f64,
    /// Whether the spread of the repeats and that of none overlap.
    overlaps: bool,
}

/// `+12 %`, `−3 %`, `±0 %`.
pub(crate) fn percent_gain(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    if percent.round() == 0.0 {
        "±0 %".to_owned()
    } else if percent > 0.0 {
        format!("+{percent:.0} %")
    } else {
        format!("−{:.0} %", -percent)
    }
}

fn threads(iothreads: Iothreads) -> String {
    match iothreads {
        Iothreads::NONE => "no iothread".to_owned(),
        n => counted(usize::from(n.count()), "iothread"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::tests::{cell, client};
    use crate::contender::Contender;
    use crate::results::tests::run;
    use crate::summary::summarise;

    /// One cell per element: the IOPS of each count in each repeat.
    fn cells(rows: &[&[(u16, &[u64])]]) -> Vec<CellSummary> {
        let mut runs = Vec::new();
        for (iodepth, rows) in (1..).zip(rows) {
            for (count, repeats) in *rows {
                for (repeat, iops) in (0..).zip(*repeats) {
                    runs.push(run(
                        cell("randread", 4096, 8, iodepth),
                        client(*count),
                        repeat,
                        *iops,
                    ));
                }
            }
        }
        summarise(&runs, 16)
    }

    #[track_caller]
    fn check(rows: &[&[(u16, &[u64])]], iothreads: u16, expected: &str) {
        let cells = cells(rows);
        let recommendation = recommend(Subject::Client, &cells).unwrap();
        assert_eq!(recommendation.iothreads, Iothreads::new(iothreads));
        assert_eq!(sentence(&recommendation, &cells), expected);
    }

    #[test]
    fn the_smallest_worst_shortfall_wins() {
        check(
            &[
                &[(0, &[500; 3]), (1, &[900; 3]), (2, &[1000; 3])],
                &[(0, &[700; 3]), (1, &[1000; 3]), (2, &[800; 3])],
            ],
            1,
            "Use 1 iothread: at most 10 % below the best of each cell (randread 4k jobs=8 \
             iodepth=1), +43 % to +80 % over none.",
        );
    }

    #[test]
    fn of_counts_that_tie_the_fewest_wins() {
        let same = "Use no iothread: within 1 % of the best in every cell.";
        check(
            &[
                &[(0, &[1000; 3]), (1, &[1000; 3]), (2, &[1005; 3])],
                &[(0, &[1000; 3]), (1, &[990; 3]), (2, &[1000; 3])],
            ],
            0,
            same,
        );
        check(&[&[(0, &[995; 3]), (1, &[1000; 3])]], 0, "Use no iothread: within 1 % of the best.");
    }

    #[test]
    fn a_gain_inside_the_spread_is_called_so() {
        check(
            &[&[(0, &[1000, 1300, 900]), (1, &[1200, 1250, 1150])]],
            1,
            "Use 1 iothread: the best, +20 % over none; but that is inside the spread of the \
             repeats, so none may serve as well.",
        );
        check(
            &[
                &[(0, &[1000, 1100, 900]), (1, &[1050, 1050, 1050])],
                &[(0, &[1000; 3]), (1, &[2000; 3])],
            ],
            1,
            "Use 1 iothread: the best in every cell, +5 % to +100 % over none; in 1 of 2 cells \
             that is inside the spread of the repeats.",
        );
    }

    #[test]
    fn fewer_are_taken_where_they_are_enough_and_the_rest_is_noise() {
        check(
            &[
                &[(0, &[1000, 1100, 900]), (1, &[1050, 1050, 1050])],
                &[(0, &[1000, 980, 1010]), (1, &[1005, 1000, 990])],
            ],
            0,
            "Use no iothread: at most 5 % below the best of each cell (randread 4k jobs=8 \
             iodepth=1); more iothreads gained no more than the spread of the repeats.",
        );
        check(
            &[&[(0, &[500; 3]), (1, &[1000, 1100, 900]), (2, &[1050, 1050, 1050])]],
            1,
            "Use 1 iothread: 5 % below the best, +100 % over none; more iothreads gained no more \
             than the spread of the repeats.",
        );
    }

    #[test]
    fn one_repeat_knows_no_noise() {
        check(
            &[&[(0, &[1000]), (2, &[2000])]],
            2,
            "Use 2 iothreads: the best, +100 % over none; one repeat does not show how much of \
             that is noise.",
        );
    }

    #[test]
    fn without_none_there_is_no_gain_to_tell() {
        check(&[&[(1, &[1000; 3]), (2, &[2000; 3])]], 2, "Use 2 iothreads: the best.");
        check(
            &[&[(2, &[2000; 3])]],
            2,
            "Only 2 iothreads was measured, so there is nothing to compare.",
        );
    }

    #[test]
    fn counts_a_cell_cannot_use_are_rated_by_the_highest_it_can() {
        check(
            &[
                &[(0, &[500; 3]), (1, &[1000; 3])],
                &[(0, &[250; 3]), (1, &[500; 3]), (4, &[1000; 3])],
            ],
            4,
            "Use 4 iothreads: the best in every cell, +100 % to +300 % over none.",
        );
    }

    #[test]
    fn the_host_alone_recommends_nothing() {
        let runs = [run(cell("read", 4096, 1, 1), Contender::Host, 0, 5)];
        assert_eq!(recommend(Subject::Client, &summarise(&runs, 2)), None);
    }

    #[test]
    fn gains_print_with_their_sign() {
        for (ratio, text) in
            [(1.0, "±0 %"), (0.9999, "±0 %"), (1.117, "+12 %"), (0.9, "−10 %"), (3.0, "+200 %")]
        {
            assert_eq!(percent_gain(ratio), text);
        }
    }
}
