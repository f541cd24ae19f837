//! Writes whose clusters are stored compressed where they shrink by that (`LaneContext::compressing`).
//!
//! Where it stands in the life of a request: its lane holds it. The task takes the bytes of whole clusters out of the memory of
//! the request, has other threads compress them, writes them to a place that is theirs, makes that durable, and has the
//! tables name it. Clusters that do not shrink, and parts of clusters, are written as by any other lane.
//!
//! Invariants: no entry names compressed bytes before they and the references to their clusters are durable: what can go wrong
//! otherwise is said in `cluster_allocator::packing`. What was there before, compressed or not, is freed as by any other write.
//! Threads: belongs to one lane, whose thread copies bytes and does not compress. Limits: rounds of [`ROUND_BYTES`], or one cluster
//! if that is more, and the room `compressing`.
//!
//! Not here: which requests come with whole clusters (`copy`, `layers`).

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use block::{
    ByteCount, Computation, Durability, Extent, FailKind, HostMemory, Operation, Piece, Target,
    compute,
};
use tasks::RequestParts;

use super::compressed::host_clusters;
use super::read::in_memory;
use super::write::{WriteAllocation, clusters_of, finish, look, write_round};
use crate::compressed;
use crate::geometry::{GuestCluster, L2Entry, RawL2Entry, StandardCluster};
use crate::lane_core::{LaneCore, ServedRequest};

/// What the file is written by.
const SECTOR: usize = 512;

/// How much of a request is compressed at once: its clusters share a sync.
const ROUND_BYTES: u64 = 1 << 20;

/// Serves a write whose whole clusters are compressed.
pub(crate) async fn compress(
    core: Rc<LaneCore>,
    request: ServedRequest,
    bytes: Extent,
    durability: Durability,
) {
    // What must be durable is made so at the end.
    let operation = Operation::Write(bytes, Durability::Cached);
    let result = write_all(&core, ServedRequest { operation, ..request }, bytes.bytes()).await;
    let operation = Operation::Write(bytes, durability);
    finish(&core, ServedRequest { operation, ..request }, result).await;
}

async fn write_all(
    core: &LaneCore,
    cached: ServedRequest,
    bytes: Range<u64>,
) -> Result<(), FailKind> {
    let mut at = bytes.start;
    while at < bytes.end {
        let (skip, (end, is_whole)) = (at - bytes.start, next_part(core, at..bytes.end));
        if is_whole {
            write_compressed(core, cached, at..end, skip).await?;
        } else {
            write_round(core, cached, at..end, skip).await?;
        }
        at = end;
    }
    Ok(())
}

/// The end of what is written next of these bytes, and whether that is whole clusters. The last one of the disk may be cut.
fn next_part(core: &LaneCore, bytes: Range<u64>) -> (u64, bool) {
    let cluster = core.image.geometry.cluster_bytes();
    let Range { start, end } = bytes;
    let whole_end = if end == core.image.size() { end } else { end - end % cluster };
    if !start.is_multiple_of(cluster) {
        (end.min(start.next_multiple_of(cluster)), false)
    } else if start < whole_end {
        (whole_end.min(start + ROUND_BYTES.max(cluster)), true)
    } else {
        (end, false)
    }
}

/// A cluster of the disk, and its bytes if they are fewer when they are compressed.
struct NewCluster {
    cluster: GuestCluster,
    compressed: Option<Vec<u8>>,
}

/// Writes whole clusters, which begin there in the request.
async fn write_compressed(
    core: &LaneCore,
    cached: ServedRequest,
    guest: Range<u64>,
    skip: u64,
) -> Result<(), FailKind> {
    let count = in_memory(0..guest.end - guest.start).len();
    let _memory = core.limits.compressing.take(count).await;
    let bytes = Arc::new(capture(core, cached, skip, count).await?);
    let mut clusters = Vec::new();
    for (cluster, compressing) in begin_compressing(core, &guest, &bytes) {
        clusters.push(NewCluster { cluster, compressed: compressing.await });
    }
    let _claimed = core.image.claim(clusters_of(core, &guest)).await;
    // All that are compressed share a sync, also those that are no neighbours.
    let compressed: Vec<_> = clusters.iter().filter(|new| new.compressed.is_some()).collect();
    if !compressed.is_empty() {
        store(core, &compressed).await?;
    }
    for run in clusters.chunk_by(|one, next| one.compressed.is_some() == next.compressed.is_some())
    {
        if run[0].compressed.is_none() {
            store_plain(core, run, &guest, &bytes).await?;
        }
    }
    Ok(())
}

/// Takes so many bytes out of the memory of the request, from there on.
async fn capture(
    core: &LaneCore,
    cached: ServedRequest,
    skip: u64,
    count: usize,
) -> Result<HostMemory, FailKind> {
    let memory = core.file.io().capture(count).map_err(|error| {
        core.image.log.error(format_args!("clusters cannot be compressed: {error}"));
        FailKind::Io
    })?;
    let mut parts = RequestParts::default();
    let target = Target::Memory { memory: memory.clone(), offset: 0 };
    parts.push(Piece { skip, count: ByteCount(count as u64), target });
    core.carry_out(cached, &mut parts).await?;
    Ok(memory.take_captured())
}

/// Has the clusters compressed, all at once.
fn begin_compressing(
    core: &LaneCore,
    guest: &Range<u64>,
    bytes: &Arc<HostMemory>,
) -> Vec<(GuestCluster, Computation<Option<Vec<u8>>>)> {
    let (geometry, method) = (core.image.geometry, core.image.compression);
    let cluster_bytes = in_memory(0..geometry.cluster_bytes()).len();
    let threads = core.compression.as_ref().expect("only a lane that compresses does it");
    let begin = |(cluster, within): (GuestCluster, Range<u64>)| {
        let start = geometry.start_of(cluster) - guest.start;
        let part = in_memory(start..start + (within.end - within.start));
        let bytes = Arc::clone(bytes);
        let compressing = compute(&**threads, move || match &bytes[part] {
            whole if whole.len() == cluster_bytes => compressed::compress(method, whole),
            // The disk ends in it; an image has zeroes there.
            cut => {
                let mut whole = vec![0; cluster_bytes];
                whole[..cut.len()].copy_from_slice(cut);
                compressed::compress(method, &whole)
            }
        });
        (cluster, compressing)
    };
    geometry.clusters_in(guest.clone()).map(begin).collect()
}

/// Writes neighbours as they are, since they do not shrink. They are claimed.
async fn store_plain(
    core: &LaneCore,
    run: &[NewCluster],
    guest: &Range<u64>,
    bytes: &HostMemory,
) -> Result<(), FailKind> {
    let geometry = core.image.geometry;
    let start = geometry.start_of(run[0].cluster);
    let end = guest.end.min(start + run.len() as u64 * geometry.cluster_bytes());
    let mut change = WriteAllocation::prepare(core, start..end).await?;
    let part = in_memory(start - guest.start..end - guest.start);
    let written = change.write_bytes(core, &bytes[part]).await;
    change.conclude(core, written).await
}

/// Writes clusters that are compressed, in the order of the disk, and has the tables name them. They are claimed.
async fn store(core: &LaneCore, all: &[&NewCluster]) -> Result<(), FailKind> {
    let (geometry, space) = (core.image.geometry, core.image.space()?);
    let last = geometry.start_of(all[all.len() - 1].cluster);
    let mut before = look(core, &(geometry.start_of(all[0].cluster)..last + 1)).await?;
    before.retain(|(cluster, _)| all.binary_search_by_key(cluster, |new| new.cluster).is_ok());
    for NewCluster { cluster, .. } in all {
        core.ensure_table(*cluster).await?;
    }
    let packed = |new: &&NewCluster| new.compressed.as_ref().map_or(0, |bytes| bytes.len() as u64);
    let counts: Vec<u64> = all.iter().map(packed).collect();
    let starts = core.image.take_bytes(&core.file, &counts).await?;
    let entries = write_durably(core, all, &starts).await;
    let entries = match entries {
        Ok(entries) => entries,
        Err(kind) => {
            // Nothing names them.
            for (start, count) in starts.iter().zip(&counts) {
                space.free(space.clusters_of(*start, *count));
            }
            return Err(kind);
        }
    };
    // If that fails the tables may name them or not, so they are not used again.
    core.image.link(&core.file, &entries).await?;
    for (_, entry) in before {
        let left = match entry {
            L2Entry::Compressed { descriptor } => host_clusters(core, descriptor),
            L2Entry::Cluster(StandardCluster { place, .. }) => place.map_or(0..0, |place| {
                let cluster = geometry.cluster_of(place.host).0;
                cluster..cluster + 1
            }),
        };
        if !left.is_empty() {
            space.free(left);
        }
    }
    Ok(())
}

/// Writes compressed clusters to places that were taken for them, and makes them and their references durable; what the tables
/// will say.
async fn write_durably(
    core: &LaneCore,
    all: &[&NewCluster],
    starts: &[u64],
) -> Result<Vec<(GuestCluster, RawL2Entry)>, FailKind> {
    let mut entries = Vec::with_capacity(all.len());
    let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
    for (NewCluster { cluster, compressed }, start) in all.iter().zip(starts) {
        let bytes = compressed.as_deref().unwrap_or_default();
        let entry = core.image.geometry.compressed(*start, bytes.len() as u64);
        entries.push((*cluster, entry.ok_or(FailKind::NoSpace)?));
        match writes.last_mut() {
            Some((at, before)) if *at + before.len() as u64 == *start => before.extend(bytes),
            Some(_) | None => writes.push((*start, bytes.to_vec())),
        }
    }
    for (start, mut bytes) in writes {
        bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        core.file.write(start, HostMemory::of(&bytes)).await?;
    }
    core.sync().await?;
    Ok(entries)
}
