//! Metrics of `--metrics`: what only the first thread knows of them, and when it tells it.
//!
//! Invariants: the socket is made before the fences are up; nobody is answered before that. What is slow to find out is not
//! asked for: nothing here waits for storage.
//! Threads: the first one makes inventories, when it is asked; the thread of the metrics asks.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use block::{Clock, SystemClock};
use control::{BlockJobProgress, DaemonState, HealthFindings, PoolExportReport, RunningExport};
use graph::NODE;
use iothread::SourceName;
use metrics::{
    BitmapsOfNode, ExportPlacement, HealthSource, Inventory, InventoryDesk, IothreadEntry,
    JobEntry, MetricsError, MetricsOptions, MetricsReader, MetricsServer, NbdServerLoad, PoolEntry,
    ServedExport, StorageFinding,
};
use monitor::{JobReading, Monitors};
use sandbox::Sandbox;

use crate::serve::ServeError;

/// Where metrics are served, and where the first thread is asked for its part.
#[derive(Debug)]
pub(crate) struct MetricsOutput {
    desk: Arc<InventoryDesk>,
    server: MetricsServer,
}

/// What the watch of queues and files has found.
#[derive(Debug)]
struct Findings(Arc<HealthFindings>);

impl HealthSource for Findings {
    fn stalled(&self) -> Vec<(SourceName, Duration)> {
        self.0.stalled()
    }

    fn storage(&self) -> Vec<StorageFinding> {
        let found = self.0.storage().into_iter().map(|(export, condition)| StorageFinding {
            export,
            is_removed: condition.is_removed,
            size_difference: condition.size_difference,
        });
        found.collect()
    }
}

impl MetricsOutput {
    /// Listens. Clients can connect from now on, and wait.
    pub(crate) fn open(options: &MetricsOptions) -> Result<Self, ServeError> {
        let server = MetricsServer::listen(options)?;
        let desk = InventoryDesk::new(Inventory::default(), SystemClock.now());
        let desk = Arc::new(desk.map_err(MetricsError::Thread)?);
        Ok(Self { desk, server })
    }

    /// Answers clients from now on, on a thread behind the fences. The process was started at that time since 1970.
    pub(crate) fn start(
        &mut self,
        state: &DaemonState,
        monitors: Option<&mut Monitors>,
        health: &Arc<HealthFindings>,
        (started, sandbox): (Duration, Option<&Sandbox>),
    ) -> Result<(), ServeError> {
        self.answer(state, monitors);
        let reader = MetricsReader {
            sources: Arc::clone(state.source_registry()),
            desk: Arc::clone(&self.desk),
            health: Arc::new(Findings(Arc::clone(health))),
            clock: Arc::new(SystemClock),
            version: env!("CARGO_PKG_VERSION"),
            started,
        };
        let server = &mut self.server;
        let started = Sandbox::start_inside(sandbox, move || server.start(reader));
        Ok(started.map_err(MetricsError::Thread)??)
    }

    /// Tells what there is now.
    pub(crate) fn answer(&self, state: &DaemonState, monitors: Option<&mut Monitors>) {
        self.desk.answer(inventory(state, monitors), SystemClock.now());
    }
}

/// Readable when the first thread is asked for its part.
impl AsFd for MetricsOutput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.desk.as_fd()
    }
}

/// What there is.
fn inventory(state: &DaemonState, monitors: Option<&mut Monitors>) -> Inventory {
    let iothreads = state.iothreads();
    let iothreads = iothreads
        .iter()
        .map(|it| IothreadEntry { name: it.name().to_owned(), usage: it.usage().clone() });
    let (jobs, thresholds) = monitors.map_or_else(Default::default, |monitors| {
        let jobs = monitors.jobs(state).into_iter().map(job).collect();
        (jobs, thresholds(state, monitors.thresholds_exceeded(state)))
    });
    let remotes = state.graph().remotes(SystemClock.now()).into_iter();
    Inventory {
        exports: state.exports().iter().map(|export| served(state, export)).collect(),
        iothreads: iothreads.collect(),
        pools: pools(state),
        jobs,
        nbd_server: state.nbd_load().map(|load| NbdServerLoad {
            connected: load.connected,
            negotiating: load.negotiating,
            connected_max: load.connected_max,
        }),
        nbd_nodes: remotes.map(|it| (it.node, it.disconnected)).collect(),
        bitmaps: bitmaps(state),
        thresholds,
    }
}

fn served(state: &DaemonState, export: &RunningExport) -> ServedExport {
    let disk = export.disk();
    ServedExport {
        id: disk.id.clone(),
        kind: export.type_name(),
        node: state.graph().root(&disk.id).unwrap_or_default().to_owned(),
        clients: export.clients() as u64,
        bytes: disk.size.capacity().get().0.0,
    }
}

fn pools(state: &DaemonState) -> Vec<PoolEntry> {
    let placement = |export: PoolExportReport| {
        let PoolExportReport { name, iothreads, gain_max, is_trying, .. } = export;
        let iothreads = iothreads.map(|count| count as u64);
        ExportPlacement { export: name, iothreads, gain_max, is_trying }
    };
    let pools = state.pool_reports().into_iter().map(|pool| PoolEntry {
        name: pool.name,
        iothreads: pool.iothreads.len() as u64,
        iothreads_max: pool.max as u64,
        exports: pool.exports.into_iter().map(placement).collect(),
    });
    pools.collect()
}

fn job(JobReading { id, kind, status, progress }: JobReading) -> JobEntry {
    let progress =
        progress.map(|(BlockJobProgress { current, total }, speed)| (current, total, speed));
    JobEntry { id, kind, status, progress }
}

/// How often writes went beyond the threshold of each node that can have one: 0 is told, too, so that the first time is
/// seen as growth.
fn thresholds(state: &DaemonState, exceeded: &BTreeMap<String, u64>) -> Vec<(String, u64)> {
    let graph = state.graph();
    let has_one = |node: &&str| graph.node_info(node).is_ok_and(|it| it.write_threshold.is_some());
    let nodes = graph.model().names(NODE).into_iter().filter(has_one);
    nodes.map(|node| (node.to_owned(), exceeded.get(node).copied().unwrap_or_default())).collect()
}

fn bitmaps(state: &DaemonState) -> Vec<BitmapsOfNode> {
    let graph = state.graph();
    let nodes = graph.nodes_with_bitmaps().into_iter();
    let of = |node: &str| {
        let (count, bytes) = graph.bitmaps(node).ok()?.memory();
        Some(BitmapsOfNode { node: node.to_owned(), count: count as u64, bytes })
    };
    nodes.filter_map(of).collect()
}
