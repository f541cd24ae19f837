//! What is known of pools of iothreads and of the exports that they serve, to be shown.

use std::sync::Arc;

use graph::PoolMode;

use crate::DaemonState;
use crate::placer::PoolExport;

/// A pool of iothreads now.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolReport {
    /// Its name.
    pub name: String,
    /// How many iothreads it may have.
    pub max: usize,
    /// Whether it moves queues as the load asks.
    pub mode: PoolMode,
    /// Those that run, by name.
    pub iothreads: Vec<String>,
    /// The exports that it serves.
    pub exports: Vec<PoolExportReport>,
}

/// An export as a pool places it.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolExportReport {
    /// The export.
    pub name: String,
    /// On how many iothreads it is placed, without what is being tried; `None` if it was not looked at yet.
    pub iothreads: Option<usize>,
    /// What one more would bring at most, as a share.
    pub gain_max: Option<f64>,
    /// Whether its queues go to and fro now.
    pub is_trying: bool,
    /// On how many iothreads it is tried, and what that is expected to change, as a share.
    pub trial: Option<(usize, f64)>,
    /// What was said of its placement last, and why: what was kept, refused, or is in the way.
    pub note: Option<Arc<str>>,
}

impl DaemonState {
    /// All pools that serve an export, or have served one.
    pub fn pool_reports(&self) -> Vec<PoolReport> {
        let export = |it: PoolExport| {
            let PoolExport { name, iothreads, gain_max, is_trying, trial, note, .. } = it;
            PoolExportReport { name, iothreads, gain_max, is_trying, trial, note }
        };
        let report = |placed: &crate::placer::PlacedPool| {
            let pool = placed.pool();
            let iothreads = pool.running().iter().map(|(_, it)| it.name().to_owned()).collect();
            let exports = placed.exports().into_iter().map(export).collect();
            let (name, max, mode) = (pool.name().to_owned(), pool.slots(), placed.mode());
            PoolReport { name, max, mode, iothreads, exports }
        };
        let mut all: Vec<PoolReport> = self.pools().map(report).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }
}
