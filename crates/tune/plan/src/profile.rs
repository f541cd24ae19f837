//! Named loads: cells with weights for what a disk is used for. docs/tune.md says why these.
//!
//! `settings` fills them in where `--profile` is given; they are then cells and weights like others.

use clap::ValueEnum;
use load::{BlockBytes, Shape};
use serde::{Deserialize, Serialize};

use crate::cell::Cell;
use crate::weights::Weight;

/// What a disk is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// A database: pages at random, 70 % of them read, and a log
    Oltp,
    /// Desktops: small writes at random, and reads when they boot
    Vdi,
    /// Large blocks one after the other: a backup and a restore
    Backup,
    /// A bit of everything
    General,
}

/// One kind of requests of a profile.
struct Part {
    operation: &'static str,
    block: u64,
    /// Missing where there are as many as usual.
    jobs: Option<u16>,
    iodepth: u16,
    weight: &'static str,
}

const fn part(
    operation: &'static str,
    block: u64,
    jobs: Option<u16>,
    iodepth: u16,
    weight: &'static str,
) -> Part {
    Part { operation, block, jobs, iodepth, weight }
}

const OLTP: &[Part] = &[
    part("70/30", 8 << 10, None, 8, "70/30:8k=4"),
    part("write", 16 << 10, Some(1), 1, "write:16k=1"),
];
const VDI: &[Part] = &[
    part("20/80", 4 << 10, None, 4, "20/80:4k=3"),
    part("randread", 32 << 10, None, 8, "randread:32k=1"),
];
const BACKUP: &[Part] = &[
    part("read", 1 << 20, Some(1), 8, "read:1M=1"),
    part("write", 1 << 20, Some(1), 8, "write:1M=1"),
];
const GENERAL: &[Part] = &[
    part("70/30", 4 << 10, None, 16, "70/30:4k=2"),
    part("randread", 64 << 10, None, 4, "randread:64k=1"),
    part("read", 256 << 10, Some(1), 8, "read:256k=1"),
    part("write", 256 << 10, Some(1), 8, "write:256k=1"),
];

impl Profile {
    fn parts(self) -> &'static [Part] {
        match self {
            Self::Oltp => OLTP,
            Self::Vdi => VDI,
            Self::Backup => BACKUP,
            Self::General => GENERAL,
        }
    }

    /// Its cells, with so many jobs where it says none.
    pub fn cells(self, jobs: u16) -> Vec<Cell> {
        let cell = |part: &Part| {
            let operation = part.operation.parse().expect("an operation of the table");
            let block = BlockBytes::try_from(part.block).expect("a size of the table");
            let jobs = part.jobs.unwrap_or(jobs);
            Cell::new(Shape::new(operation, block, jobs, part.iodepth).expect("a small load"))
        };
        self.parts().iter().map(cell).collect()
    }

    /// How much they count.
    pub fn weights(self) -> Vec<Weight> {
        let weight = |part: &Part| part.weight.parse().expect("a weight of the table");
        self.parts().iter().map(weight).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{check, weight_of};

    #[test]
    fn every_cell_of_a_profile_counts() {
        for profile in Profile::value_variants() {
            for jobs in [2, 4] {
                let (cells, weights) = (profile.cells(jobs), profile.weights());
                check(&weights, &cells, &[]).unwrap();
                assert!(cells.iter().all(|cell| weight_of(cell, &weights) > Some(0.0)));
            }
        }
    }
}
