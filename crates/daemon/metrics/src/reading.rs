//! All numbers at the moment of a scrape, and where they are read.
//!
//! Invariants: counters of queues are read from the registry of sources, which keeps what queues have done whose clients have
//! left: a counter grows as long as its export is there.
//! Threads: the one that answers scrapes. It waits for no iothread, and for the first thread a moment at most
//! ([`InventoryDesk`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::Clock;
use iothread::{ExportSums, SourceName, SourceRegistry};

use crate::exposition;
use crate::inventory::{Inventory, InventoryDesk, StorageFinding};

/// What is found out about queues and storage that no request tells.
pub trait HealthSource: std::fmt::Debug + Send + Sync {
    /// The queues that have requests in flight of which none was answered, and for how long.
    fn stalled(&self) -> Vec<(SourceName, Duration)>;

    /// What was found about the storage of exports.
    fn storage(&self) -> Vec<StorageFinding>;
}

/// Where the numbers of a scrape are read.
#[derive(Debug)]
pub struct MetricsReader {
    /// What iothreads serve.
    pub sources: Arc<SourceRegistry>,
    /// What only the first thread knows.
    pub desk: Arc<InventoryDesk>,
    /// What is found out about queues and storage.
    pub health: Arc<dyn HealthSource>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The version that runs.
    pub version: &'static str,
    /// When the process was started, since 1970.
    pub started: Duration,
}

/// All numbers at one moment, as far as threads that go on meanwhile let them be of one.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) version: &'static str,
    pub(crate) started: Duration,
    /// When it was read.
    pub(crate) at: Instant,
    pub(crate) inventory: Arc<Inventory>,
    pub(crate) control_age: Duration,
    /// By export.
    pub(crate) sums: BTreeMap<String, ExportSums>,
    /// By export and queue.
    pub(crate) stalled: BTreeMap<(String, u16), Duration>,
    pub(crate) storage: Vec<StorageFinding>,
}

impl MetricsReader {
    /// All metrics now, as `OpenMetrics` has them.
    pub(crate) fn text(&self) -> String {
        exposition::text(self.read())
    }

    fn read(&self) -> Reading {
        let (inventory, control_age) = self.desk.ask(&*self.clock);
        let stalled = self.health.stalled().into_iter();
        Reading {
            version: self.version,
            started: self.started,
            at: self.clock.now(),
            inventory,
            control_age,
            sums: self.sources.sums(),
            stalled: stalled.map(|(name, time)| ((name.export, name.queue), time)).collect(),
            storage: self.health.storage(),
        }
    }
}
