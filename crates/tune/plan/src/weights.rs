//! How much each cell counts in the answer: `--weights randread=3,randwrite:4k=1`; and what then decides.
//!
//! Invariants: without weights all cells count alike and the worst one decides; with them their weighted mean does.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use load::{BlockBytes, Operation};
use serde::{Deserialize, Serialize};

use crate::cell::Cell;
use crate::units::{BadValue, Bytes, stored_as_text};

/// The most that one kind of cell can weigh.
const WEIGHT_MAX: f64 = 1e6;

/// What cells of one kind weigh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Weight {
    operation: Operation,
    block: Option<BlockBytes>,
    weight: f64,
}

impl Weight {
    fn is_for(&self, cell: &Cell) -> bool {
        let shape = cell.shape();
        shape.operation() == self.operation
            && self.block.is_none_or(|block| block.get() == shape.block().get())
    }
}

/// What a cell weighs: by the last weight that is for it, 0 if none is. `None` without any weights.
pub fn weight_of(cell: &Cell, weights: &[Weight]) -> Option<f64> {
    if weights.is_empty() {
        return None;
    }
    let own = weights.iter().rev().find(|weight| weight.is_for(cell));
    Some(own.map_or(0.0, |weight| weight.weight))
}

/// Checks weights against the cells that are measured, and those that are skipped because they write. A weight of 0 may be
/// for cells that are not.
///
/// # Errors
/// The weight that counts for nothing.
pub fn check(weights: &[Weight], measured: &[Cell], skipped: &[Cell]) -> Result<()> {
    for weight in weights.iter().filter(|weight| weight.weight > 0.0) {
        let is_among = |cells: &[Cell]| cells.iter().any(|cell| weight.is_for(cell));
        match (is_among(measured), is_among(skipped)) {
            (true, _) => {}
            (false, true) => bail!(
                "--weights {weight}: these cells write and are skipped; allow that with \
                 --destructive (all data is lost), or leave the weight out"
            ),
            (false, false) => bail!(
                "--weights {weight}: no such cell is left to measure; --op and --bs name them"
            ),
        }
    }
    let counts = |cell: &Cell| weight_of(cell, weights) != Some(0.0);
    if !measured.iter().any(counts) {
        let all: Vec<String> = weights.iter().map(Weight::to_string).collect();
        bail!("--weights {}: no cell that is measured counts; raise one above 0", all.join(","));
    }
    Ok(())
}

/// What the answer makes small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The shortfall in the cell where it is largest.
    Worst,
    /// The mean over all cells by their weights.
    Weighted,
}

impl Goal {
    /// What these weights ask for.
    pub fn of(weights: &[Weight]) -> Self {
        if weights.is_empty() { Self::Worst } else { Self::Weighted }
    }

    /// What a number lacks over all cells, from each one's weight and what it lacks there; no cells lack nothing.
    pub fn over_all(self, lacks: impl Iterator<Item = (f64, f64)>) -> f64 {
        match self {
            Self::Worst => lacks.map(|(_, lack)| lack).fold(0.0, f64::max),
            Self::Weighted => {
                let add = |(sum, of), (weight, lack)| (sum + weight * lack, of + weight);
                let (sum, of) = lacks.fold((0.0, 0.0), add);
                if of > 0.0 { sum / of } else { 0.0 }
            }
        }
    }
}

impl FromStr for Weight {
    type Err = BadValue;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let parse = || {
            let (kind, weight) = text.split_once('=')?;
            let (operation, block) = match kind.split_once(':') {
                None => (kind, None),
                Some((operation, block)) => {
                    (operation, Some(BlockBytes::try_from(block.parse::<Bytes>().ok()?.0).ok()?))
                }
            };
            let weight: f64 = weight.parse().ok()?;
            let operation = operation.parse().ok()?;
            (0.0..=WEIGHT_MAX).contains(&weight).then_some(Self { operation, block, weight })
        };
        let valid = "write OPERATION=NUMBER or OPERATION:SIZE=NUMBER, such as randread:4k=3";
        parse().ok_or_else(|| BadValue::new(text, "weight", valid))
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, block, weight } = self;
        match block {
            None => write!(f, "{operation}={weight}"),
            Some(block) => write!(f, "{operation}:{}={weight}", Bytes(u64::from(block.get()))),
        }
    }
}

stored_as_text!(Weight);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cell;

    #[test]
    fn the_last_weight_of_a_cell_counts() {
        let parse = |text: &str| -> Vec<Weight> {
            text.split(',').filter(|it| !it.is_empty()).map(|it| it.parse().unwrap()).collect()
        };
        for (weights, small, large, write) in [
            ("", None, None, None),
            ("randread=3", Some(3.0), Some(3.0), Some(0.0)),
            ("randread=3,randread:64k=0.5", Some(3.0), Some(0.5), Some(0.0)),
            ("randread:64k=0.5,write=1", Some(0.0), Some(0.5), Some(1.0)),
        ] {
            let weights = parse(weights);
            let of = |op, bs| weight_of(&cell(op, bs, 1, 1), &weights);
            let found = (of("randread", 4096), of("randread", 65_536), of("write", 4096));
            assert_eq!(found, (small, large, write));
        }
    }

    #[test]
    fn weights_that_count_for_no_measured_cell_are_refused() {
        let [read, write] = ["randread", "randwrite"].map(|op| cell(op, 4096, 1, 1));
        let of = |text: &str, skipped: &[Cell]| {
            let weights: Vec<Weight> = text.split(',').map(|it| it.parse().unwrap()).collect();
            check(&weights, &[read], skipped).map_err(|error| error.to_string())
        };
        assert!(check(&[], &[read], &[]).is_ok());
        assert!(of("randread=1", &[write]).is_ok());
        assert!(of("randread=1,randwrite=0", &[write]).is_ok());
        for (weights, skipped, part) in [
            ("randread=2,randwrite=1", &[write][..], "--weights randwrite=1: these cells write"),
            ("randread=2,randwrite=1", &[], "--weights randwrite=1: no such cell is left"),
            ("randread=0", &[], "--weights randread=0: no cell that is measured counts"),
            ("randread=1,randread:4k=0", &[], "randread=1,randread:4k=0: no cell that is"),
        ] {
            let error = of(weights, skipped).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn weights_are_read_and_printed() {
        for text in ["randread=3", "80/20:4k=0.5"] {
            assert_eq!(text.parse::<Weight>().unwrap().to_string(), text);
        }
        for text in
            ["randread", "randread=-1", "randread=nan", "randread:3=1", "x=1", "randread=1e9"]
        {
            let error = text.parse::<Weight>().unwrap_err().to_string();
            assert!(error.contains("randread:4k=3"), "{error}");
        }
    }
}
