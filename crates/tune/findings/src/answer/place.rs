//! A cell on a variant, and as a subject sees it.

use std::fmt;

use plan::cell::Cell;
use plan::contender::{Iothreads, Subject};
use plan::variant::Variant;

use crate::summary::{CellSummary, Row};

/// A cell on a variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CellOnVariant {
    /// The load.
    pub cell: Cell,
    /// Missing where there is one only.
    pub variant: Option<Variant>,
}

impl fmt::Display for CellOnVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cell)?;
        match self.variant.map(|variant| variant.to_string()) {
            None => Ok(()),
            Some(name) if name.is_empty() => f.write_str(", the usual variant"),
            Some(name) => write!(f, ", {name}"),
        }
    }
}

/// One cell as a subject sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellOfSubject<'a> {
    pub(super) summary: &'a CellSummary,
    pub(super) subject: Subject,
    pub(super) spot: CellOnVariant,
    /// The highest number that there is a queue for.
    pub(super) useful: Iothreads,
}

impl<'a> CellOfSubject<'a> {
    /// The row of a number, or of the highest one below that was measured; no number stands for `auto`.
    pub(super) fn row(self, iothreads: Iothreads) -> Option<&'a Row> {
        let mut own = self.summary.rows_of(self.subject);
        if iothreads.is_auto() {
            return own.find(|row| row.iothreads() == Some(iothreads));
        }
        let up_to = own.filter(|row| row.iothreads().is_some_and(|count| count <= iothreads));
        up_to.max_by_key(|row| row.iothreads())
    }

    pub(super) fn cpus(self, iothreads: Iothreads) -> Option<f64> {
        let row = self.row(iothreads)?;
        Some(row.cpu_us? * row.iops.median / 1e6)
    }
}
