//! What the clusters of an image are: block status.
//!
//! Where it stands in the life of a request: nothing is read or decoded but tables. What the image does not have its
//! backing file is asked about.
//!
//! Limits: an answer ends after [`RUNS_MAX`] runs or [`CLUSTERS_MAX`] clusters.

use std::ops::Range;
use std::rc::Rc;

use block::{BlockStatus, ByteCount, Extent, FailKind, Piece, StatusRuns, Target};

use crate::geometry::{L2Entry, Subcluster};
use crate::lane_core::{LaneCore, ServedRequest};
use crate::slice::PinnedSlice;

/// As many runs an answer has at most, and what the backing file tells at once: together with those of other members
/// of a stripe they are pieces of one answer.
const RUNS_MAX: usize = 512;

/// The clusters that are looked at for one answer.
const CLUSTERS_MAX: usize = 1 << 16;

/// After so many clusters a task lets others come first.
const STEP_CLUSTERS: usize = 512;

/// Serves a status.
pub(crate) async fn status(core: Rc<LaneCore>, request: ServedRequest, bytes: Extent) {
    let start = bytes.start().0;
    let mut map =
        StatusLookup { core: &core, start, runs: StatusRuns::default(), below: start..start };
    let result = map.look_up(bytes.bytes()).await;
    let pieces = result.map(|()| {
        let runs = map.runs.in_order().iter().take(RUNS_MAX);
        let piece = |skip, count, status| Piece { skip, count, target: Target::Status(status) };
        runs.map(|run| piece(run.skip, run.record.count, run.record.status)).collect()
    });
    core.end_with(request, pieces);
}

/// The block status of a range of an image while it is looked up: runs, and bytes that the backing file is asked about.
struct StatusLookup<'a> {
    core: &'a LaneCore,
    start: u64,
    runs: StatusRuns,
    /// Bytes behind those that the image does not have.
    below: Range<u64>,
}

impl StatusLookup<'_> {
    /// Looks at the clusters of these bytes, as far as one answer goes.
    async fn look_up(&mut self, bytes: Range<u64>) -> Result<(), FailKind> {
        let image = &self.core.image;
        let geometry = image.geometry;
        let mut pinned: Option<PinnedSlice> = None;
        for ((cluster, within), number) in geometry.clusters_in(bytes).zip(1..=CLUSTERS_MAX) {
            if self.runs.count() >= RUNS_MAX {
                break;
            }
            if number.is_multiple_of(STEP_CLUSTERS) {
                self.core.pause().await;
            }
            let start = geometry.start_of(cluster);
            let number = geometry.slice_of(cluster);
            let here = match pinned.take().filter(|pinned| pinned.slice().number() == number) {
                Some(here) => here,
                None => image.slice(&self.core.file, number).await?,
            };
            match image.entry(here.slice(), cluster)? {
                L2Entry::Compressed { .. } => {
                    let bytes = start + within.start..start + within.end;
                    self.add(bytes, Some(BlockStatus::DATA)).await?;
                }
                L2Entry::Cluster(found) => {
                    for (unit, part) in geometry.parts(found, within) {
                        let status = match unit {
                            Subcluster::Data(_) => Some(BlockStatus::DATA),
                            Subcluster::Zero => Some(BlockStatus::ZEROES),
                            Subcluster::Nothing => None,
                        };
                        self.add(start + part.start..start + part.end, status).await?;
                    }
                }
            }
            pinned = Some(here);
        }
        self.ask_below().await
    }

    /// Adds bytes that follow, which the image may not have.
    async fn add(
        &mut self,
        bytes: Range<u64>,
        status: Option<BlockStatus>,
    ) -> Result<(), FailKind> {
        let Some(status) = status else {
            self.below.end = bytes.end;
            return Ok(());
        };
        self.ask_below().await?;
        self.tell(&bytes, status);
        self.below = bytes.end..bytes.end;
        Ok(())
    }

    /// Has the backing file tell what the image does not have. Behind its end nobody has anything.
    async fn ask_below(&mut self) -> Result<(), FailKind> {
        let Range { start: mut at, end } = self.below;
        if let Some(backing) = &self.core.backing {
            let backed = end.min(backing.size);
            while at < backed {
                if self.runs.count() >= RUNS_MAX {
                    return Ok(());
                }
                let from = at;
                for run in backing.storage.status(from..backed).await? {
                    at = from + run.skip + run.record.count.0;
                    self.tell(&(from + run.skip..at), run.record.status.of_overlay());
                }
            }
        }
        self.tell(&(at..end), BlockStatus::UNALLOCATED);
        Ok(())
    }

    fn tell(&mut self, bytes: &Range<u64>, status: BlockStatus) {
        self.runs.add(bytes.start - self.start, ByteCount(bytes.end - bytes.start), status);
    }
}
