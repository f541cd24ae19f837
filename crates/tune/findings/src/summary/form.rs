//! The form in which sweeps of iothreads are published: rows of block size × operation, columns of jobs × iodepth, one
//! figure per cell, and totals. Pure functions.
//!
//! Invariants: every row has as many cells as there are columns; a figure that is not finite is missing; totals are means
//! of the figures that are there, never of rounded ones.
//! Not here: the rendering (`report::form`).

use std::collections::BTreeMap;

use plan::cell::Cell;
use plan::contender::{Contender, Subject};
use plan::lists::{sorted, unique};
use plan::units::Bytes;

use crate::stats::geometric_mean;
use crate::summary::{CellSummary, Row, Verdict};

/// How totals are formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mean {
    /// For percentages and numbers of iothreads.
    Arithmetic,
    /// For ratios; those of 0 and below have no geometric mean and are left out.
    Geometric,
}

/// What a row stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FormRow {
    /// Block size.
    pub size: Bytes,
    /// The operation as its option is written.
    pub op: String,
}

/// What a column stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FormColumn {
    /// Jobs of the column.
    pub jobs: u16,
    /// Requests in flight of each job.
    pub iodepth: u16,
}

/// One table.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedForm {
    /// By size, then operation.
    pub rows: Vec<FormRow>,
    /// By jobs, then iodepth.
    pub columns: Vec<FormColumn>,
    /// One list per row, one figure per column.
    pub cells: Vec<Vec<Option<f64>>>,
    /// One per row.
    pub row_totals: Vec<Option<f64>>,
    /// One per block size, over its operations: a figure per column. These are the totals that are published.
    pub size_totals: Vec<(Bytes, Vec<Option<f64>>)>,
    /// One per column, over all rows.
    pub column_totals: Vec<Option<f64>>,
    /// Over all cells.
    pub total: Option<f64>,
}

impl PublishedForm {
    /// Of a figure per cell; of cells that are there twice the last counts.
    pub fn new(mean: Mean, figures: impl IntoIterator<Item = (Cell, f64)>) -> Self {
        let finite = figures.into_iter().filter(|(_, figure)| figure.is_finite());
        let found: BTreeMap<(FormRow, FormColumn), f64> =
            finite.map(|(cell, figure)| (place(cell), figure)).collect();
        let rows = unique(found.keys().map(|(row, _)| row.clone()));
        let columns = sorted(found.keys().map(|(_, column)| *column));
        let cells: Vec<Vec<Option<f64>>> = rows
            .iter()
            .map(|row| columns.iter().map(|it| found.get(&(row.clone(), *it)).copied()).collect())
            .collect();
        let of_column = |column: usize, wanted: &dyn Fn(&FormRow) -> bool| {
            let own = rows.iter().zip(&cells).filter(|(row, _)| wanted(row));
            mean.of(own.filter_map(|(_, cells)| cells[column]))
        };
        let sizes = unique(rows.iter().map(|row| row.size));
        let size_total = |size: Bytes| {
            let totals = (0..columns.len()).map(|it| of_column(it, &|row| row.size == size));
            (size, totals.collect())
        };
        Self {
            row_totals: cells.iter().map(|row| mean.of(row.iter().flatten().copied())).collect(),
            size_totals: sizes.into_iter().map(size_total).collect(),
            column_totals: (0..columns.len()).map(|it| of_column(it, &|_| true)).collect(),
            total: mean.of(cells.iter().flatten().flatten().copied()),
            rows,
            columns,
            cells,
        }
    }

    /// The mean over all cells of a block size.
    pub fn size_total(&self, mean: Mean, size: Bytes) -> Option<f64> {
        let own = self.rows.iter().zip(&self.cells).filter(|(row, _)| row.size == size);
        mean.of(own.flat_map(|(_, cells)| cells.iter().flatten().copied()))
    }

    /// All figures with their places.
    pub fn figures(&self) -> impl Iterator<Item = (&FormRow, FormColumn, f64)> {
        self.rows.iter().zip(&self.cells).flat_map(|(row, cells)| {
            let placed = self.columns.iter().zip(cells);
            placed.filter_map(move |(column, figure)| figure.map(|it| (row, *column, it)))
        })
    }

    /// The figure at a place.
    pub fn figure(&self, row: &FormRow, column: FormColumn) -> Option<f64> {
        let row = self.rows.iter().position(|it| it == row)?;
        let column = self.columns.iter().position(|it| *it == column)?;
        self.cells[row][column]
    }

    /// Whether there is no figure.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

/// Where the figure of a cell stands.
pub fn place(cell: Cell) -> (FormRow, FormColumn) {
    let shape = cell.shape();
    let (size, op) = (Bytes(u64::from(shape.block().get())), shape.operation().to_string());
    (FormRow { size, op }, FormColumn { jobs: shape.jobs(), iodepth: shape.iodepth() })
}

impl Mean {
    /// `None` of no figure.
    pub(crate) fn of(self, figures: impl Iterator<Item = f64>) -> Option<f64> {
        match self {
            Self::Arithmetic => {
                let figures: Vec<f64> = figures.collect();
                let count = figures.len() as f64;
                (count > 0.0).then(|| figures.iter().sum::<f64>() / count)
            }
            Self::Geometric => geometric_mean(figures),
        }
    }
}

/// IOPS of the best number of iothreads over none, as a ratio, in each cell of a subject: the median of the ratios within a
/// repeat, as the tables tell it. Totals are geometric means. Where no repeat has both, or where `none` did nothing, a cell
/// has no gain.
pub fn gains(subject: Subject, cells: &[CellSummary]) -> PublishedForm {
    let gain = |cell: &CellSummary| Some((cell.cell, best(subject, cell)?.to_none?.median));
    PublishedForm::new(Mean::Geometric, cells.iter().filter_map(gain))
}

/// The fewest iothreads that are enough in each cell of a subject. Totals are arithmetic means.
pub fn n90s(subject: Subject, cells: &[CellSummary]) -> PublishedForm {
    let n90 =
        |cell: &CellSummary| Some((cell.cell, f64::from(verdict(subject, cell)?.n90.count())));
    PublishedForm::new(Mean::Arithmetic, cells.iter().filter_map(n90))
}

/// The best of a subject relative to the bare host in each cell; 1 is equal. Totals are geometric means.
pub fn ratios(subject: Subject, cells: &[CellSummary]) -> PublishedForm {
    let ratio = |cell: &CellSummary| Some((cell.cell, best(subject, cell)?.to_host?.median));
    PublishedForm::new(Mean::Geometric, cells.iter().filter_map(ratio))
}

/// What the best number of iothreads of a subject reached.
fn best(subject: Subject, cell: &CellSummary) -> Option<&Row> {
    let best = Contender::new(subject, verdict(subject, cell)?.best);
    cell.rows.iter().find(|row| row.contender == best)
}

fn verdict(subject: Subject, cell: &CellSummary) -> Option<Verdict> {
    cell.verdicts.iter().find(|(of, _)| *of == subject).map(|(_, verdict)| *verdict)
}

#[cfg(test)]
mod tests {
    use plan::testing::{cell, client};
    use records::testing::run;

    use super::*;
    use crate::summary::summarise;

    fn form(mean: Mean, figures: [f64; 5]) -> PublishedForm {
        let cells = [
            cell("write", 4096, 1, 1),
            cell("randread", 4096, 1, 1),
            cell("randread", 4096, 16, 1),
            cell("randread", 2048, 1, 1),
            cell("randread", 2048, 4, 16),
        ];
        PublishedForm::new(mean, cells.into_iter().zip(figures))
    }

    #[test]
    fn rows_and_columns_are_sorted_and_gaps_stay_empty() {
        let form = form(Mean::Arithmetic, [10.0, 20.0, 30.5, 40.0, f64::NAN]);
        let rows: Vec<_> = form.rows.iter().map(|row| format!("{} {}", row.size, row.op)).collect();
        assert_eq!(rows, ["2k randread", "4k randread", "4k write"]);
        let columns: Vec<_> = form.columns.iter().map(|it| (it.jobs, it.iodepth)).collect();
        assert_eq!(columns, [(1, 1), (16, 1)], "a figure that is none makes no column");
        assert_eq!(
            form.cells,
            [vec![Some(40.0), None], vec![Some(20.0), Some(30.5)], vec![Some(10.0), None]]
        );
        assert_eq!(form.row_totals, [Some(40.0), Some(25.25), Some(10.0)]);
        assert_eq!(
            form.size_totals,
            [(Bytes(2048), vec![Some(40.0), None]), (Bytes(4096), vec![Some(15.0), Some(30.5)])]
        );
        assert_eq!(form.column_totals, [Some(70.0 / 3.0), Some(30.5)]);
        assert_eq!(form.total, Some(100.5 / 4.0), "of the cells, not of the totals");
    }

    #[test]
    fn ratios_have_a_geometric_total() {
        let form = form(Mean::Geometric, [2.0, 8.0, 0.0, 4.0, f64::INFINITY]);
        let total = form.total.unwrap();
        assert!((total - 4.0).abs() < 1e-12, "{total}");
        assert_eq!(form.column_totals.len(), 2);
        assert_eq!(form.column_totals[1], None, "0 has no geometric mean");
    }

    #[test]
    fn without_figures_there_is_no_form() {
        let form = PublishedForm::new(Mean::Arithmetic, []);
        assert!(form.is_empty());
        assert_eq!((form.total, form.column_totals.len()), (None, 0));
    }

    #[test]
    fn totals_are_of_what_is_not_rounded() {
        let mut runs = Vec::new();
        for (iodepth, iops) in [(1, 1504), (4, 1504), (16, 1504), (64, 1509)] {
            let cell = cell("randread", 4096, 8, iodepth);
            runs.push(run(cell, client(0), 0, 1000));
            runs.push(run(cell, client(2), 0, iops));
            runs.push(run(cell, Contender::HOST, 0, 2000));
        }
        let cells = summarise(&runs, 16);
        let total = gains(Subject::Client, &cells).total.unwrap();
        let expected = (1.504_f64.powi(3) * 1.509).powf(0.25);
        assert!((total - expected).abs() < 1e-9, "{total}");
        assert_eq!(n90s(Subject::Client, &cells).total, Some(2.0));
        let ratio = ratios(Subject::Client, &cells).row_totals[0].unwrap();
        assert!((ratio - 0.7526).abs() < 1e-4, "{ratio}");
        assert!(gains(Subject::VmQemu, &cells).is_empty(), "it was not measured");
    }

    #[test]
    fn a_gain_is_that_of_the_tables_however_many_repeats_there_are() {
        let cell = cell("randread", 4096, 8, 1);
        for repeats in [1, 2, 3, 4] {
            let rates = [1200, 3000, 1500, 2000];
            let of = |(repeat, rate): (u16, &u64)| {
                [run(cell, client(0), repeat, 1000), run(cell, client(2), repeat, *rate)]
            };
            let runs: Vec<_> = (0..).zip(&rates[..repeats]).flat_map(of).collect();
            let cells = summarise(&runs, 16);
            let row = cells[0].rows.iter().find(|row| row.contender == client(2)).unwrap();
            let table = row.to_none.unwrap().median;
            let gain = gains(Subject::Client, &cells).total.unwrap();
            assert!((gain - table).abs() < 1e-9, "{repeats} repeats: {gain}, table {table}");
        }
    }

    #[test]
    fn without_none_and_with_zero_rates_nothing_is_invented() {
        let cell = cell("randread", 4096, 8, 1);
        let only_two = summarise(&[run(cell, client(2), 0, 1500)], 16);
        assert!(gains(Subject::Client, &only_two).is_empty());
        let zero = summarise(&[run(cell, client(0), 0, 0), run(cell, client(1), 0, 5)], 16);
        assert!(gains(Subject::Client, &zero).is_empty(), "over nothing there is no gain");
        assert!(ratios(Subject::Client, &zero).is_empty());
    }
}
