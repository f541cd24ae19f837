//! The published sweep: gain and n90 of 144 cells that others measured with KubeVirt's virtual machines. Pure functions.
//!
//! docs/examples/published-sweep has the tables and says what they were measured on.

use load::{BlockBytes, Shape};
use plan::cell::Cell;

use crate::summary::form::{Mean, PublishedForm};

/// Whose sweep it is, for the line below its tables.
pub const SOURCE: &str = "Measured by Red Hat on other machines and published in 2025 (\"Improving performance of multiple I/O threads for \
     Red Hat OpenShift Virtualization\"): KubeVirt, 16 cores, local storage of four striped NVMe drives";

const GAINS: &str = include_str!("../../../../docs/examples/published-sweep/improvement.csv");
const N90S: &str = include_str!("../../../../docs/examples/published-sweep/min-iothreads.csv");

/// What the best number of iothreads gains over none, as a ratio.
pub fn gains() -> PublishedForm {
    let ratio = |(cell, percent): (Cell, f64)| (cell, 1.0 + percent / 100.0);
    PublishedForm::new(Mean::Geometric, figures(GAINS).map(ratio))
}

/// The fewest iothreads that reach 90 % of the best.
pub fn n90s() -> PublishedForm {
    PublishedForm::new(Mean::Arithmetic, figures(N90S))
}

/// Lines of block size, operation, jobs, iodepth and figure below a heading. A test has read all of them.
fn figures(table: &str) -> impl Iterator<Item = (Cell, f64)> {
    table.lines().skip(1).filter_map(|line| {
        let [size, op, jobs, iodepth, figure] =
            <[&str; 5]>::try_from(line.split(',').collect::<Vec<_>>()).ok()?;
        let block = BlockBytes::try_from(size.parse::<u64>().ok()?).ok()?;
        let shape = Shape::new(op.parse().ok()?, block, jobs.parse().ok()?, iodepth.parse().ok()?);
        Some((Cell::new(shape.ok()?), figure.parse().ok()?))
    })
}

/// The means of two sweeps over the cells that both have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedCells {
    /// How many there are, at least one.
    pub count: usize,
    /// The first sweep's mean over them.
    pub own: f64,
    /// The other's.
    pub other: f64,
}

/// `None` if they have no cell in common.
pub fn shared(mean: Mean, own: &PublishedForm, other: &PublishedForm) -> Option<SharedCells> {
    let both: Vec<(f64, f64)> = own
        .figures()
        .filter_map(|(row, column, figure)| Some((figure, other.figure(row, column)?)))
        .collect();
    let (own, other) = (mean.of(both.iter().map(|it| it.0)), mean.of(both.iter().map(|it| it.1)));
    Some(SharedCells { count: both.len(), own: own?, other: other? })
}

#[cfg(test)]
mod tests {
    use plan::testing::cell;

    use super::*;

    #[test]
    fn all_cells_are_there() {
        for (form, total) in [(gains(), 1.0), (n90s(), 0.0)] {
            assert_eq!((form.rows.len(), form.columns.len()), (16, 9));
            assert_eq!(form.figures().count(), 144);
            assert!(form.total.unwrap() > total, "{:?}", form.total);
        }
        let (first, ..) = gains().figures().map(|it| (it.2, ())).next().unwrap();
        assert!((first - 1.18).abs() < 1e-9, "{first}: 2k randread, 1 job, iodepth 1");
    }

    #[test]
    fn only_cells_of_both_count() {
        let own = [("randread", 2048, 1, 1, 2.0), ("randread", 2048, 1, 64, 9.0)];
        let own = own.map(|(op, size, jobs, iodepth, it)| (cell(op, size, jobs, iodepth), it));
        let own = PublishedForm::new(Mean::Geometric, own);
        let found = shared(Mean::Geometric, &own, &gains()).unwrap();
        assert_eq!(found.count, 1);
        assert!((found.own - 2.0).abs() < 1e-9 && (found.other - 1.18).abs() < 1e-9, "{found:?}");
        let none = PublishedForm::new(Mean::Geometric, [(cell("read", 512, 1, 1), 1.0)]);
        assert_eq!(shared(Mean::Geometric, &none, &gains()), None);
    }
}
