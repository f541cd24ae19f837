//! Nodes that no iothread uses for a while, so that the graph below them can be changed.
//!
//! The order of a change: all iothreads stop taking requests for these nodes, release what is held,
//! finish what is in flight and close their lanes; the control thread changes the graph; all iothreads
//! open lanes again; only when all of them have, requests go on. So no request is ever answered by a
//! change that is taken back.
//!
//! Invariants: between [`DrainedSection::begin`] and the end of it no lane is open on these nodes, on no iothread of the
//! process (`source_registry`), whatever rings are started, stopped or moved meanwhile; nobody waits for the end of it
//! but the guests. On an iothread that has ended nothing is in flight.
//! Threads: any control thread; never an iothread, since it waits for them.
//! Limits: it lasts as long as the longest request in flight, as the stop of a ring does, but no longer than whoever
//! drains is ready to wait: then it is given up, and everything goes on.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use block::{Clock, LaneError, Node};

use crate::SourceRegistry;
use crate::source_registry::DrainId;

/// A drained section of some nodes (QEMU's bdrv_drained_begin): nothing is in flight there and no lane is open.
/// Dropped, those who use them go on as with [`DrainedSection::end`]; where no lane can be opened, their requests fail.
#[derive(Debug)]
#[must_use = "dropped, requests go on"]
pub struct DrainedSection {
    registry: Arc<SourceRegistry>,
    id: DrainId,
    is_over: bool,
}

/// Requests were still in flight when the time for a drain was over: nothing is drained.
#[derive(Debug, thiserror::Error)]
#[error("iothread {iothread}: requests on node {node} are still in flight after {} s", waited.as_secs())]
pub struct DrainTimeout {
    /// The first iothread that was still busy.
    pub iothread: String,
    /// With that node.
    pub node: String,
    /// For how long it was waited for.
    pub waited: Duration,
}

/// A lane could not be opened at the end of a drained section: the nodes are still drained.
#[derive(Debug, thiserror::Error)]
#[error("iothread {iothread}")]
pub struct ReopenError {
    /// The iothread that could not.
    pub iothread: String,
    /// What is drained.
    pub drained: DrainedSection,
    /// Why.
    #[source]
    pub source: LaneError,
}

impl DrainedSection {
    /// Has all iothreads finish what is in flight on these nodes, and take nothing new. What layers hold goes on at once.
    /// Blocks, at most as long as `limit`; dropped and given up, it lets everybody go on.
    ///
    /// Nobody else may drain one of the nodes meanwhile.
    pub fn begin(
        registry: &Arc<SourceRegistry>,
        nodes: Vec<Arc<dyn Node>>,
        limit: Duration,
        clock: &dyn Clock,
    ) -> Result<Self, DrainTimeout> {
        let start = clock.now();
        // All at once, then wait for the slowest.
        let (id, begun) = registry.begin_drain(nodes);
        let drained = Self { registry: Arc::clone(registry), id, is_over: false };
        for ((inbox, node), over) in begun {
            let left = limit.saturating_sub(clock.now().saturating_duration_since(start));
            match over.recv_timeout(left) {
                Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    let (iothread, node) = (inbox.name().to_owned(), node.name().to_owned());
                    return Err(DrainTimeout { iothread, node, waited: limit });
                }
            }
        }
        Ok(drained)
    }

    /// Opens lanes again, on all iothreads or none, and has requests go on. Blocks.
    pub fn end(mut self) -> Result<(), ReopenError> {
        match self.registry.end_drain(self.id) {
            Ok(()) => {
                self.is_over = true;
                Ok(())
            }
            Err((iothread, source)) => Err(ReopenError { iothread, drained: self, source }),
        }
    }
}

impl Drop for DrainedSection {
    fn drop(&mut self) {
        if !self.is_over {
            self.registry.cancel_drain(self.id);
        }
    }
}
