//! Zeroing and discarding: whole clusters in the tables, parts of clusters in the file.
//!
//! Where it stands in the life of a request: always a task. What the tables no longer name is freed
//! when that is durable.

use std::ops::Range;
use std::rc::Rc;

use block::{Durability, Extent, FailKind, Operation, Token, Unmap};

use super::compressed;
use super::write::{Change, finish, is_zero as is_zero_below, look};
use crate::core::{Core, DataKind};
use crate::shape::{Cluster, Entry, GuestCluster, Unit, Words};

/// How many clusters are changed in one go: others wait for those.
const CLUSTERS_AT_ONCE: u64 = 512;

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zeroing {
    /// Zeroes; the space is kept.
    Keep,
    /// Zeroes; the space may go.
    Unmap,
    /// The space may go; what is there afterwards does not matter.
    Discard,
}

/// Serves a zeroing or a discard.
pub(crate) async fn zero(
    core: Rc<Core>,
    token: Token,
    bytes: Extent,
    how: Zeroing,
    durability: Durability,
) {
    let operation = match how {
        Zeroing::Keep => Operation::WriteZeroes(bytes, Unmap::Keep, durability),
        Zeroing::Unmap => Operation::WriteZeroes(bytes, Unmap::Allowed, durability),
        Zeroing::Discard => Operation::Discard(bytes, durability),
    };
    let result = zero_all(&core, bytes.bytes(), how).await;
    finish(&core, token, operation, durability, result).await;
}

async fn zero_all(core: &Core, bytes: Range<u64>, how: Zeroing) -> Result<(), FailKind> {
    let shape = core.image.shape();
    let cluster_bytes = shape.cluster_bytes();
    let first = bytes.start.div_ceil(cluster_bytes);
    // Of the last cluster of the disk nothing more may be there.
    let end = if bytes.end == core.image.size() {
        bytes.end.div_ceil(cluster_bytes)
    } else {
        bytes.end / cluster_bytes
    };
    if first >= end {
        return zero_part(core, bytes, how).await;
    }
    let (head, tail) = (bytes.start..first * cluster_bytes, end * cluster_bytes..bytes.end);
    zero_part(core, head, how).await?;
    let mut at = first;
    while at < end {
        let next = end.min(at + CLUSTERS_AT_ONCE);
        zero_clusters(core, at..next, how).await?;
        core.pause().await;
        at = next;
    }
    zero_part(core, tail, how).await
}

/// Zeroes a part of a cluster.
async fn zero_part(core: &Core, bytes: Range<u64>, how: Zeroing) -> Result<(), FailKind> {
    if bytes.is_empty() || how == Zeroing::Discard {
        return Ok(());
    }
    let shape = core.image.shape();
    let cluster = shape.cluster_of(bytes.start);
    // It may reach over a border, if it fills neither cluster.
    let border = shape.start_of(cluster) + shape.cluster_bytes();
    for part in [bytes.start..bytes.end.min(border), bytes.end.min(border)..bytes.end] {
        if !part.is_empty() {
            zero_in_cluster(core, part).await?;
        }
    }
    Ok(())
}

async fn zero_in_cluster(core: &Core, bytes: Range<u64>) -> Result<(), FailKind> {
    let cluster = core.image.shape().cluster_of(bytes.start);
    let _claimed = core.image.claim(cluster.0..cluster.0 + 1).await;
    let start = core.image.shape().start_of(cluster);
    let mut is_zero = true;
    match look(core, &bytes).await?[0].1 {
        Entry::Compressed { .. } => is_zero = false,
        Entry::Cluster(before) => {
            let parts = core.image.shape().parts(before, bytes.start - start..bytes.end - start);
            for (unit, part) in parts {
                is_zero &= match unit {
                    Unit::Zero => true,
                    Unit::Nothing => {
                        is_zero_below(core, start + part.start..start + part.end).await?
                    }
                    Unit::Data(_) => false,
                };
            }
        }
    }
    if is_zero {
        return Ok(());
    }
    write_over(core, bytes).await
}

/// Zeroes whole clusters.
async fn zero_clusters(core: &Core, clusters: Range<u64>, how: Zeroing) -> Result<(), FailKind> {
    let image = &core.image;
    let shape = image.shape();
    let _claimed = image.claim(clusters.clone()).await;
    let bytes =
        shape.start_of(GuestCluster(clusters.start))..shape.start_of(GuestCluster(clusters.end));
    let mut changes = Vec::new();
    let mut left = Vec::new();
    for (cluster, entry) in look(core, &bytes).await? {
        match after(core, cluster, entry, how) {
            After::Same => {}
            After::Written => {
                let start = shape.start_of(cluster);
                write_over(core, start..start + shape.cluster_bytes()).await?;
            }
            After::Entry(after) => {
                core.ensure_table(cluster).await?;
                changes.push((cluster, shape.write(after)));
                if let Entry::Cluster(Cluster { place: Some(place), .. }) = entry
                    && after.place.is_none()
                    && !core.has_data_file()
                {
                    left.push(shape.cluster_of(place.host).0);
                }
                if let Entry::Compressed { descriptor } = entry {
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
    core: &Core,
    changes: &[(GuestCluster, Words)],
    how: Zeroing,
) -> Result<(), FailKind> {
    let (image, shape) = (&core.image, core.image.shape());
    let next_to =
        |one: &(GuestCluster, Words), next: &(GuestCluster, Words)| one.0.0 + 1 == next.0.0;
    let runs = || {
        changes.chunk_by(next_to).map(|run| {
            let start = shape.start_of(run[0].0);
            start..start + run.len() as u64 * shape.cluster_bytes()
        })
    };
    if core.data.kind == DataKind::Raw {
        for bytes in runs() {
            core.data.storage.zero(bytes.start..bytes.end.min(image.size())).await?;
        }
    }
    image.link(&core.file, changes).await?;
    if core.data.kind == DataKind::External && how != Zeroing::Keep {
        for bytes in runs() {
            core.data.storage.discard(bytes).await?;
        }
    }
    Ok(())
}

/// What becomes of a cluster.
#[derive(Debug, Clone, Copy)]
enum After {
    /// The tables say already what they shall.
    Same,
    /// The tables shall say that.
    Entry(Cluster),
    /// The tables cannot say it: only version 2.
    Written,
}

fn after(core: &Core, cluster: GuestCluster, entry: Entry, how: Zeroing) -> After {
    let shape = core.image.shape();
    let start = shape.start_of(cluster);
    let shines_through = core.backing.as_ref().is_some_and(|backing| start < backing.size);
    let can_say = core.image.has_zero_clusters();
    let zeroes = Cluster::zeroes(shape);
    let empty = match (shines_through, can_say) {
        (false, _) => After::Entry(Cluster::default()),
        (true, true) => After::Entry(zeroes),
        (true, false) if how == Zeroing::Discard => After::Same,
        (true, false) => After::Written,
    };
    let Entry::Cluster(before) = entry else { return empty };
    let is_zero = before.zero == shape.all_units();
    let keeps = how == Zeroing::Keep || core.has_data_file();
    match before.place {
        None if is_zero => After::Same,
        // With and without subclusters that are zeroes.
        None if before.data == 0 && !shines_through => After::Same,
        // A discard uncovers nothing: like QEMU it leaves zeroes where the tables can say that.
        None => empty,
        Some(_) if keeps && is_zero => After::Same,
        Some(place) if keeps && place.is_ours => match (can_say, how) {
            (true, _) => After::Entry(Cluster { place: Some(place), ..zeroes }),
            (false, Zeroing::Discard) => After::Same,
            (false, Zeroing::Keep | Zeroing::Unmap) => After::Written,
        },
        Some(_) => empty,
    }
}

/// Writes zeroes over bytes whose clusters are claimed.
async fn write_over(core: &Core, bytes: Range<u64>) -> Result<(), FailKind> {
    let change = Change::prepare(core, bytes).await?;
    if let Err(kind) = change.write_zeroes(core).await {
        change.abandon(core);
        return Err(kind);
    }
    change.link(core).await
}
