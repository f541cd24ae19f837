//! The order of the runs: blocks of one cell and one repeat, shuffled inside from the seed.
//!
//! A block contains the host and every count once, close together in time, so that the ratios formed
//! inside it are free of slow drift.
//!
//! Invariants: seed and matrix alone decide the plan, so a resumed run continues the same one; all
//! runs of a block have the same offsets.

use load::Random;

use crate::cell::{Cell, Contender};
use crate::matrix::Matrix;

/// One daemon start and one cell: the unit of replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedRun {
    pub(crate) repeat: u16,
    pub(crate) cell: Cell,
    pub(crate) contender: Contender,
    /// The seed of the offsets, the same for all of a block.
    pub(crate) seed: u64,
}

/// All runs in their order.
pub(crate) fn plan(matrix: &Matrix, repeats: u16, seed: u64) -> Vec<PlannedRun> {
    let mut runs = Vec::new();
    for (block, (repeat, entry)) in (0_u64..).zip(
        (0..repeats).flat_map(|repeat| matrix.entries.iter().map(move |entry| (repeat, entry))),
    ) {
        let mut random = Random::stream(seed, block);
        let mut contenders = entry.contenders.clone();
        random.shuffle(&mut contenders);
        let seed = random.next_u64();
        let run = |contender| PlannedRun { repeat, cell: entry.cell, contender, seed };
        runs.extend(contenders.into_iter().map(run));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::settings;
    use crate::matrix::Writes;

    fn planned(seed: u64) -> (Matrix, Vec<PlannedRun>) {
        let settings = settings("--repeats 3", 2);
        let matrix = Matrix::new(&settings, 1 << 30, Writes::Allowed).unwrap();
        let runs = plan(&matrix, settings.repeats, seed);
        (matrix, runs)
    }

    #[test]
    fn every_block_holds_every_contender_once() {
        let (matrix, runs) = planned(1);
        assert_eq!(runs.len(), 3 * matrix.runs_per_repeat());
        for (index, block) in runs.chunks(4).enumerate() {
            let entry = &matrix.entries[index % matrix.entries.len()];
            let mut contenders: Vec<_> = block.iter().map(|run| run.contender).collect();
            contenders.sort_unstable();
            assert_eq!(contenders, entry.contenders);
            assert!(block.iter().all(|run| run.cell == entry.cell && run.seed == block[0].seed));
        }
    }

    #[test]
    fn the_seed_decides_the_order() {
        assert_eq!(planned(1).1, planned(1).1);
        let order = |seed| planned(seed).1.iter().map(|run| run.contender).collect::<Vec<_>>();
        assert_ne!(order(1), order(2));
    }
}
