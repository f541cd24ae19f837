//! What is run: one combination of operation, block size, jobs and iodepth.
//!
//! Invariants: a cell can be run (`load::Shape` checked it); a stored cell that could not be run fails
//! to load.

use std::fmt;

use load::{BlockBytes, IODEPTH_MAX, Operation, Shape};
use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// How many times as many requests in flight a deeper cell has.
pub const DEEPER: u16 = 4;

/// One combination of operation, block size, jobs and iodepth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "CellRecord", into = "CellRecord")]
pub struct Cell(Shape);

impl Cell {
    /// The cell with this load.
    pub fn new(shape: Shape) -> Self {
        Self(shape)
    }

    /// The load.
    pub fn shape(&self) -> Shape {
        self.0
    }

    /// The same with `DEEPER` times the requests in flight, or as many as there may be; `None` if that is no more.
    pub fn deeper(&self) -> Option<Self> {
        let shape = self.0;
        let iodepth = shape.iodepth().saturating_mul(DEEPER).min(IODEPTH_MAX);
        let deeper = Shape::new(shape.operation(), shape.block(), shape.jobs(), iodepth).ok()?;
        (iodepth > shape.iodepth()).then_some(Self(deeper))
    }

    /// Whether only the jobs may differ.
    pub fn is_alike(&self, other: &Self) -> bool {
        let what = |shape: Shape| (shape.operation(), shape.block(), shape.iodepth());
        what(self.0) == what(other.0)
    }

    /// Whether its load writes.
    pub fn writes(&self) -> bool {
        self.0.operation().writes()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CellRecord { op, bs, jobs, iodepth } = CellRecord::from(*self);
        write!(f, "{op} {} jobs={jobs} iodepth={iodepth}", Bytes(u64::from(bs)))
    }
}

/// A cell as it stands in the results.
#[derive(Serialize, Deserialize)]
struct CellRecord {
    op: String,
    bs: u32,
    jobs: u16,
    iodepth: u16,
}

impl From<Cell> for CellRecord {
    fn from(cell: Cell) -> Self {
        let shape = cell.0;
        let (op, bs) = (shape.operation().to_string(), shape.block().get());
        Self { op, bs, jobs: shape.jobs(), iodepth: shape.iodepth() }
    }
}

impl TryFrom<CellRecord> for Cell {
    type Error = anyhow::Error;

    fn try_from(record: CellRecord) -> Result<Self, Self::Error> {
        let operation: Operation = record.op.parse()?;
        let block = BlockBytes::try_from(u64::from(record.bs))?;
        Ok(Self(Shape::new(operation, block, record.jobs, record.iodepth)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cell;

    #[test]
    fn cells_survive_json() {
        let cell = cell("80/20", 65_536, 2, 16);
        let json = serde_json::to_string(&cell).unwrap();
        assert_eq!(json, r#"{"op":"80/20","bs":65536,"jobs":2,"iodepth":16}"#);
        assert_eq!(serde_json::from_str::<Cell>(&json).unwrap(), cell);
    }

    #[test]
    fn a_stored_cell_that_cannot_run_is_refused() {
        let json = r#"{"op":"randread","bs":4096,"jobs":0,"iodepth":16}"#;
        let error = serde_json::from_str::<Cell>(json).unwrap_err().to_string();
        assert!(error.contains("jobs 0"), "{error}");
    }

    #[test]
    fn a_cell_reads_like_its_options() {
        assert_eq!(cell("read", 1 << 20, 1, 4).to_string(), "read 1M jobs=1 iodepth=4");
    }
}
