//! Who failed in which cell: so that a cell of which nothing was measured is still there. Pure functions.

use plan::cell::Cell;
use plan::contender::Contender;
use plan::variant::Variant;
use records::results::Failure;

/// A cell of a sweep in which runs failed and were not measured since.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedCell {
    /// The storage below.
    pub variant: Variant,
    /// The load.
    pub cell: Cell,
    /// In the order in which they first failed.
    pub contenders: Vec<FailedContender>,
}

/// A contender in it.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedContender {
    /// What served the disk.
    pub contender: Contender,
    /// How many of its runs failed.
    pub count: usize,
    /// The first line of the last error.
    pub error: String,
}

/// All cells of a sweep with failures, in the order in which they first failed.
pub fn failed(failures: &[Failure]) -> Vec<FailedCell> {
    let mut cells: Vec<FailedCell> = Vec::new();
    for failure in failures.iter().filter(|it| it.key.purpose.is_compared()) {
        let (variant, cell) = (failure.key.variant, failure.key.cell);
        let place = cells.iter().position(|it| (it.variant, it.cell) == (variant, cell));
        let place = place.unwrap_or_else(|| {
            cells.push(FailedCell { variant, cell, contenders: Vec::new() });
            cells.len() - 1
        });
        cells[place].add(failure);
    }
    cells
}

impl FailedCell {
    fn add(&mut self, failure: &Failure) {
        let contender = failure.key.contender;
        // The error of a run begins with its name, which is told already.
        let name = format!("{}: ", failure.key);
        let first = failure.error.lines().next().unwrap_or_default();
        let error = first.strip_prefix(&name).unwrap_or(first).trim_end_matches(':').to_owned();
        match self.contenders.iter_mut().find(|it| it.contender == contender) {
            Some(known) => {
                known.count += 1;
                known.error = error;
            }
            None => self.contenders.push(FailedContender { contender, count: 1, error }),
        }
    }
}

#[cfg(test)]
mod tests {
    use plan::runs::Purpose;
    use plan::testing::{cell, client};
    use records::testing::run;

    use super::*;

    #[test]
    fn failures_are_grouped_by_cell_and_contender() {
        let (reads, writes) = (cell("randread", 4096, 1, 1), cell("randwrite", 4096, 1, 1));
        let failure = |cell, count, repeat, error: &'static str| {
            Failure::new(run(cell, client(count), repeat, 1).key, &anyhow::anyhow!(error))
        };
        let mut sentinel = failure(reads, 0, 0, "x");
        sentinel.key.purpose = Purpose::Sentinel;
        let found = failed(&[
            failure(writes, 1, 0, "a"),
            failure(reads, 1, 0, "b"),
            sentinel,
            failure(writes, 1, 1, "c:\nd"),
            failure(writes, 2, 1, "randwrite 4k jobs=1 iodepth=1, client 2: e"),
        ]);
        let names: Vec<String> = found
            .iter()
            .flat_map(|it| it.contenders.iter().map(move |who| (it.cell, who)))
            .map(|(cell, who)| format!("{cell} {} {} {}", who.contender, who.count, who.error))
            .collect();
        let expected = [
            "randwrite 4k jobs=1 iodepth=1 client 1 2 c",
            "randwrite 4k jobs=1 iodepth=1 client 2 1 e",
            "randread 4k jobs=1 iodepth=1 client 1 1 b",
        ];
        assert_eq!(names, expected);
    }
}
