//! What is compared and where: contenders and cells.
//!
//! Invariants: a cell can be run (`load::Shape` checked it); a stored cell or contender that could
//! not be run fails to load.

use std::fmt;
use std::str::FromStr;

use load::{BlockBytes, Operation, Shape};
use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// The most iothreads a contender may have: one per queue of an export.
const IOTHREADS_MAX: u16 = 256;

/// A number of iothreads; 0 is `none`, the export without an iothread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Iothreads(u16);

impl Iothreads {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) const fn new(count: u16) -> Self {
        Self(count)
    }

    pub(crate) fn count(self) -> u16 {
        self.0
    }

    /// The threads that serve requests: `none` is served by one, the internal `main`.
    pub(crate) fn busy(self) -> u16 {
        self.0.max(1)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("'{0}' is no number of iothreads: valid are none and 1 to {IOTHREADS_MAX}")]
pub(crate) struct BadIothreads(String);

impl FromStr for Iothreads {
    type Err = BadIothreads;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::NONE);
        }
        let count: Option<u16> = text.parse().ok();
        let legal = count.filter(|n| (1..=IOTHREADS_MAX).contains(n));
        legal.map(Self).ok_or_else(|| BadIothreads(text.to_owned()))
    }
}

impl TryFrom<String> for Iothreads {
    type Error = BadIothreads;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Iothreads> for String {
    fn from(iothreads: Iothreads) -> Self {
        iothreads.to_string()
    }
}

impl fmt::Display for Iothreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("none"),
            count => write!(f, "{count}"),
        }
    }
}

/// One of the things that run the same cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "subject", rename_all = "lowercase")]
pub(crate) enum Contender {
    /// The load straight on the file.
    Host,
    /// A vhost-user client of a daemon with this many iothreads.
    Client {
        /// How many.
        iothreads: Iothreads,
    },
}

impl Contender {
    /// The threads that want a core: the jobs, and for a client those that serve it.
    pub(crate) fn busy_threads(self, cell: &Cell) -> usize {
        let jobs = usize::from(cell.shape().jobs());
        match self {
            Self::Host => jobs,
            Self::Client { iothreads } => jobs + usize::from(iothreads.busy()),
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Client { iothreads } => write!(f, "{iothreads}"),
        }
    }
}

/// One combination of operation, block size, jobs and iodepth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "CellRecord", into = "CellRecord")]
pub(crate) struct Cell(Shape);

impl Cell {
    pub(crate) fn new(shape: Shape) -> Self {
        Self(shape)
    }

    pub(crate) fn shape(&self) -> Shape {
        self.0
    }

    pub(crate) fn writes(&self) -> bool {
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
pub(crate) mod tests {
    use super::*;

    pub(crate) fn cell(op: &str, bs: u64, jobs: u16, iodepth: u16) -> Cell {
        let block = BlockBytes::try_from(bs).unwrap();
        Cell(Shape::new(op.parse().unwrap(), block, jobs, iodepth).unwrap())
    }

    pub(crate) fn client(iothreads: u16) -> Contender {
        Contender::Client { iothreads: Iothreads(iothreads) }
    }

    #[test]
    fn iothreads_are_none_or_a_count() {
        for (text, count) in [("none", 0), ("1", 1), ("16", 16), ("256", 256)] {
            let iothreads: Iothreads = text.parse().unwrap();
            assert_eq!(iothreads.count(), count);
            assert_eq!(iothreads.to_string(), text);
        }
        for text in ["", "0", "257", "-1", "None", "two"] {
            let message = text.parse::<Iothreads>().unwrap_err().to_string();
            assert!(message.contains("valid are none and 1 to 256"), "{message}");
        }
    }

    #[test]
    fn cells_and_contenders_survive_json() {
        let cell = cell("80/20", 65_536, 2, 16);
        let json = serde_json::to_string(&cell).unwrap();
        assert_eq!(json, r#"{"op":"80/20","bs":65536,"jobs":2,"iodepth":16}"#);
        assert_eq!(serde_json::from_str::<Cell>(&json).unwrap(), cell);
        for contender in [Contender::Host, client(0), client(3)] {
            let json = serde_json::to_string(&contender).unwrap();
            assert_eq!(serde_json::from_str::<Contender>(&json).unwrap(), contender, "{json}");
        }
    }

    #[test]
    fn a_stored_cell_that_cannot_run_is_refused() {
        let json = r#"{"op":"randread","bs":4096,"jobs":0,"iodepth":16}"#;
        let error = serde_json::from_str::<Cell>(json).unwrap_err().to_string();
        assert!(error.contains("jobs 0"), "{error}");
    }

    #[test]
    fn busy_threads_are_jobs_and_servers() {
        let cell = cell("randread", 4096, 2, 1);
        for (contender, busy) in
            [(Contender::Host, 2), (client(0), 3), (client(1), 3), (client(4), 6)]
        {
            assert_eq!(contender.busy_threads(&cell), busy, "{contender}");
        }
    }

    #[test]
    fn a_cell_reads_like_its_options() {
        assert_eq!(cell("read", 1 << 20, 1, 4).to_string(), "read 1M jobs=1 iodepth=4");
    }
}
