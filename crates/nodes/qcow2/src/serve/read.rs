//! Reads of clusters whose table is not in memory.

use std::ops::Range;
use std::rc::Rc;

use block::{Extent, FailKind, Operation};
use tasks::{RequestParts, SemaphorePermit};

use super::compressed;
use crate::geometry::{L2Entry, Subcluster};
use crate::lane::zeroes;
use crate::lane_core::{LaneCore, ServedRequest};
use crate::slice::PinnedSlice;

/// A read of more pieces than that is one of few at once.
const SMALL_PIECES: usize = 64;

/// And one of more than that is carried out in rounds.
const ROUND_PIECES: usize = 1024;

/// After so many clusters a task lets others come first.
const STEP_CLUSTERS: usize = 512;

/// So many bytes of memory are kept before they are carried out.
const ROUND_KEPT: usize = 256 << 10;

/// Serves a read.
pub(crate) async fn read(core: Rc<LaneCore>, request: ServedRequest, bytes: Extent) {
    let mut parts = RequestParts::default();
    let mut large = None;
    if let Err(kind) = find(&core, request, bytes, &mut parts, &mut large).await {
        parts.fail(kind);
    }
    if large.is_none() {
        return core.answer(request, parts).await;
    }
    let result = core.carry_out(request, &mut parts).await;
    core.end(request, result);
}

/// Asks where the bytes of a read are. What is there is carried out when it is much, and before the task
/// waits for anything that others may have who wait for that.
async fn find<'a>(
    core: &'a LaneCore,
    request: ServedRequest,
    bytes: Extent,
    parts: &mut RequestParts,
    large: &mut Option<SemaphorePermit<'a>>,
) -> Result<(), FailKind> {
    let image = &core.image;
    let geometry = image.geometry;
    let start = bytes.start().0;
    let mut pinned: Option<PinnedSlice> = None;
    for ((cluster, within), number) in geometry.clusters_in(bytes.bytes()).zip(1..) {
        if number % STEP_CLUSTERS == 0 {
            if parts.has_notices() {
                core.carry_out(request, parts).await?;
            }
            core.pause().await;
        }
        let number = geometry.slice_of(cluster);
        let known = pinned.take().filter(|pinned| pinned.slice().number() == number);
        let here = match known {
            Some(here) => here,
            None => {
                if parts.has_notices() {
                    core.carry_out(request, parts).await?;
                }
                image.slice(&core.file, number).await?
            }
        };
        let cluster_start = geometry.start_of(cluster);
        match image.entry(here.slice(), cluster)? {
            L2Entry::Cluster(found) => {
                for (unit, part) in geometry.parts(found, within) {
                    let guest = cluster_start + part.start..cluster_start + part.end;
                    let skip = guest.start - start;
                    add_unit(core, request.operation, skip, (unit, part), guest, parts);
                }
            }
            L2Entry::Compressed { descriptor } => {
                // While this waits for its turn, others may have the memory.
                let waits = core.limits.compressed.is_full() && parts.kept() > 0;
                if waits || parts.has_notices() || parts.kept() >= ROUND_KEPT {
                    core.carry_out(request, parts).await?;
                }
                let decoded = compressed::cluster(core, cluster, descriptor).await?;
                let skip = cluster_start + within.start - start;
                parts.push(compressed::keep(core, &decoded, skip, in_memory(within))?);
                drop(decoded);
            }
        }
        parts.result()?;
        pinned = Some(here);
        if parts.count() > SMALL_PIECES && large.is_none() {
            if parts.has_notices() {
                core.carry_out(request, parts).await?;
            }
            pinned = pinned.filter(|_| !core.limits.large.is_full());
            *large = Some(core.limits.large.take(1).await);
        }
        if parts.count() >= ROUND_PIECES {
            core.carry_out(request, parts).await?;
        }
    }
    Ok(())
}

/// Adds what of a read is in one unit of a cluster, or shines through there.
fn add_unit(
    core: &LaneCore,
    operation: Operation,
    skip: u64,
    (unit, part): (Subcluster, Range<u64>),
    guest: Range<u64>,
    parts: &mut RequestParts,
) {
    match (unit, &core.backing) {
        (Subcluster::Data(found), _) => {
            let host = found.host + part.start..found.host + part.end;
            parts.ask(&core.data.storage, operation, skip, host);
        }
        (Subcluster::Nothing, Some(backing)) if guest.start < backing.size => {
            let end = guest.end.min(backing.size);
            parts.ask(&backing.storage, operation, skip, guest.start..end);
            if end < guest.end {
                parts.push(zeroes(skip + end - guest.start, guest.end - end));
            }
        }
        (Subcluster::Zero | Subcluster::Nothing, _) => {
            parts.push(zeroes(skip, guest.end - guest.start))
        }
    }
}

/// Bytes of a cluster.
pub(super) fn in_memory(within: Range<u64>) -> Range<usize> {
    let bytes = |number: u64| usize::try_from(number).expect("a cluster fits into memory");
    bytes(within.start)..bytes(within.end)
}
