//! Zeroing and discarding: whole clusters in the tables, parts of clusters in the file.
//!
//! Where it stands in the life of a request: always a task. What the tables no longer name is freed
//! when that is durable. What is wanted only if it is fast is what the tables can say; the rest is refused.

use std::ops::Range;
use std::rc::Rc;

use block::{Extent, FailKind, ZeroCost};

use super::compressed;
use super::write::{WriteAllocation, finish, is_zero as is_zero_below, look};
use crate::geometry::{GuestCluster, L2Entry, RawL2Entry, StandardCluster, Subcluster};
use crate::lane_core::{DataLocation, LaneCore, ServedRequest};

/// How many clusters are changed in one go: others wait for those.
const CLUSTERS_AT_ONCE: u64 = 512;

/// What a zeroing or discard does with the space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZeroMode {
    /// Zeroes; the space is kept.
    Keep,
    /// Zeroes; the space may go.
    Unmap,
    /// The space may go; what is there afterwards does not matter.
    Discard,
}

/// Serves a zeroing or a discard.
pub(crate) async fn zero(
    core: Rc<LaneCore>,
    request: ServedRequest,
    bytes: Extent,
    (how, cost): (ZeroMode, ZeroCost),
) {
    let result = zero_all(&core, bytes.bytes(), how, cost).await;
    finish(&core, request, result).await;
}

async fn zero_all(
    core: &LaneCore,
    bytes: Range<u64>,
    how: ZeroMode,
    cost: ZeroCost,
) -> Result<(), FailKind> {
    if cost == ZeroCost::Fast && core.data.kind == DataLocation::Raw {
        // The data file has to have them, too.
        return Err(FailKind::Unsupported);
    }
    let geometry = core.image.geometry;
    let cluster_bytes = geometry.cluster_bytes();
    let first = bytes.start.div_ceil(cluster_bytes);
    // Of the last cluster of the disk nothing more may be there.
    let end = if bytes.end == core.image.size() {
        bytes.end.div_ceil(cluster_bytes)
    } else {
        bytes.end / cluster_bytes
    };
    if first >= end {
        return zero_part(core, bytes, how, cost).await;
    }
    let (head, tail) = (bytes.start..first * cluster_bytes, end * cluster_bytes..bytes.end);
    zero_part(core, head, how, cost).await?;
    let mut at = first;
    while at < end {
        let next = end.min(at + CLUSTERS_AT_ONCE);
        zero_clusters(core, at..next, how, cost).await?;
        core.pause().await;
        at = next;
    }
    zero_part(core, tail, how, cost).await
}

/// Zeroes a part of a cluster.
async fn zero_part(
    core: &LaneCore,
    bytes: Range<u64>,
    how: ZeroMode,
    cost: ZeroCost,
) -> Result<(), FailKind> {
    if bytes.is_empty() || how == ZeroMode::Discard {
        return Ok(());
    }
    let geometry = core.image.geometry;
    let cluster = geometry.cluster_of(bytes.start);
    // It may reach over a border, if it fills neither cluster.
    let border = geometry.start_of(cluster) + geometry.cluster_bytes();
    for part in [bytes.start..bytes.end.min(border), bytes.end.min(border)..bytes.end] {
        if !part.is_empty() {
            zero_in_cluster(core, part, cost).await?;
        }
    }
    Ok(())
}

async fn zero_in_cluster(
    core: &LaneCore,
    bytes: Range<u64>,
    cost: ZeroCost,
) -> Result<(), FailKind> {
    let cluster = core.image.geometry.cluster_of(bytes.start);
    let _claimed = core.image.claim(cluster.0..cluster.0 + 1).await;
    let start = core.image.geometry.start_of(cluster);
    let mut is_zero = true;
    match look(core, &bytes).await?[0].1 {
        L2Entry::Compressed { .. } => is_zero = false,
        L2Entry::Cluster(before) => {
            let parts = core.image.geometry.parts(before, bytes.start - start..bytes.end - start);
            for (unit, part) in parts {
                is_zero &= match unit {
                    Subcluster::Zero => true,
                    Subcluster::Nothing => {
                        is_zero_below(core, start + part.start..start + part.end).await?
                    }
                    Subcluster::Data(_) => false,
                };
            }
        }
    }
    if is_zero {
        return Ok(());
    }
    write_over(core, bytes, cost).await
}

/// Zeroes whole clusters.
async fn zero_clusters(
    core: &LaneCore,
    clusters: Range<u64>,
    how: ZeroMode,
    cost: ZeroCost,
) -> Result<(), FailKind> {
    let image = &core.image;
    let geometry = image.geometry;
    let _claimed = image.claim(clusters.clone()).await;
    let bytes = geometry.start_of(GuestCluster(clusters.start))
        ..geometry.start_of(GuestCluster(clusters.end));
    let mut changes = Vec::new();
    let mut left = Vec::new();
    for (cluster, entry) in look(core, &bytes).await? {
        match after(core, cluster, entry, how) {
            ClusterUpdate::Same => {}
            ClusterUpdate::Written => {
                let start = geometry.start_of(cluster);
                write_over(core, start..start + geometry.cluster_bytes(), cost).await?;
            }
            ClusterUpdate::Entry(after) => {
                core.ensure_table(cluster).await?;
                changes.push((cluster, geometry.write(after)));
                if let L2Entry::Cluster(StandardCluster { place: Some(place), .. }) = entry
                    && after.place.is_none()
                    && !core.has_data_file()
                {
                    left.push(geometry.cluster_of(place.host).0);
                }
                if let L2Entry::Compressed { descriptor } = entry {
                    left.extend(compressed::host_clusters(core, descriptor));
                }
            }
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    link(core, &changes, how).await?;
    let space = image.space()?;
    left.sort_unstable();
    for together in left.chunk_by(|one, next| one + 1 == *next) {
        space.free(together[0]..together[0] + together.len() as u64);
    }
    Ok(())
}

/// Has the tables say so. A data file that is the disk by itself has zeroes first; one that is not may
/// lose the space afterwards, while nobody can begin to use it.
async fn link(
    core: &LaneCore,
    changes: &[(GuestCluster, RawL2Entry)],
    how: ZeroMode,
) -> Result<(), FailKind> {
    let (image, geometry) = (&core.image, core.image.geometry);
    let next_to = |one: &(GuestCluster, RawL2Entry), next: &(GuestCluster, RawL2Entry)| {
        one.0.0 + 1 == next.0.0
    };
    let runs = || {
        changes.chunk_by(next_to).map(|run| {
            let start = geometry.start_of(run[0].0);
            start..start + run.len() as u64 * geometry.cluster_bytes()
        })
    };
    if core.data.kind == DataLocation::Raw {
        for bytes in runs() {
            core.data.storage.zero(bytes.start..bytes.end.min(image.size())).await?;
        }
    }
    image.link(&core.file, changes).await?;
    if core.data.kind == DataLocation::External && how != ZeroMode::Keep {
        for bytes in runs() {
            core.data.storage.discard(bytes).await?;
        }
    }
    Ok(())
}

/// What a zeroing does to a cluster's L2 entry.
#[derive(Debug, Clone, Copy)]
enum ClusterUpdate {
    /// The tables say already what they shall.
    Same,
    /// The tables shall say that.
    Entry(StandardCluster),
    /// The tables cannot say it: only version 2.
    Written,
}

fn after(core: &LaneCore, cluster: GuestCluster, entry: L2Entry, how: ZeroMode) -> ClusterUpdate {
    let geometry = core.image.geometry;
    let start = geometry.start_of(cluster);
    let shines_through = core.backing.as_ref().is_some_and(|backing| start < backing.size);
    let can_say = core.image.has_zero_clusters();
    let zeroes = StandardCluster::zeroes(geometry);
    let empty = match (shines_through, can_say) {
        (false, _) => ClusterUpdate::Entry(StandardCluster::default()),
        (true, true) => ClusterUpdate::Entry(zeroes),
        (true, false) if how == ZeroMode::Discard => ClusterUpdate::Same,
        (true, false) => ClusterUpdate::Written,
    };
    let L2Entry::Cluster(before) = entry else { return empty };
    let is_zero = before.zero == geometry.all_subclusters();
    let keeps = how == ZeroMode::Keep || core.has_data_file();
    match before.place {
        None if is_zero => ClusterUpdate::Same,
        // With and without subclusters that are zeroes.
        None if before.data == 0 && !shines_through => ClusterUpdate::Same,
        // A discard uncovers nothing: like QEMU it leaves zeroes where the tables can say that.
        None => empty,
        Some(_) if keeps && is_zero => ClusterUpdate::Same,
        Some(place) if keeps && place.is_exclusive => match (can_say, how) {
            (true, _) => ClusterUpdate::Entry(StandardCluster { place: Some(place), ..zeroes }),
            (false, ZeroMode::Discard) => ClusterUpdate::Same,
            (false, ZeroMode::Keep | ZeroMode::Unmap) => ClusterUpdate::Written,
        },
        Some(_) => empty,
    }
}

/// Writes zeroes over bytes whose clusters are claimed.
async fn write_over(core: &LaneCore, bytes: Range<u64>, cost: ZeroCost) -> Result<(), FailKind> {
    if cost == ZeroCost::Fast {
        return Err(FailKind::Unsupported);
    }
    let mut change = WriteAllocation::prepare(core, bytes).await?;
    let written = change.write_zeroes(core).await;
    change.conclude(core, written).await
}
