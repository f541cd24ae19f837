//! Zeroing and discarding: whole clusters in the tables, parts of clusters in the file.
//!
//! Where it stands in the life of a request: always a task. What the tables no longer name is freed
//! when that is durable.

use std::ops::Range;
use std::rc::Rc;

use block::{Durability, Extent, FailKind, Operation, Token, Unmap};

use super::write::{Change, end, is_zero, look};
use crate::core::Core;
use crate::shape::{Entry, GuestCluster, Place, zero_at};

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
    end(&core, token, operation, durability, result).await;
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
    let before = look(core, &bytes).await?;
    let is_zero = match before[0].1 {
        Entry::Zero { .. } => true,
        Entry::Nothing => is_zero(core, cluster).await?,
        Entry::Data(_) | Entry::Compressed { .. } => false,
    };
    if is_zero {
        return Ok(());
    }
    let change = Change::prepare(core, bytes).await?;
    if let Err(kind) = change.write_zeroes(core).await {
        change.abandon(core);
        return Err(kind);
    }
    if change.is_in_place() { Ok(()) } else { change.link(core).await }
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
        let Some(word) = new_entry(core, cluster, entry, how) else { continue };
        let Some(word) = word else {
            // Only version 2 cannot say it.
            if how != Zeroing::Discard {
                write_over(core, cluster).await?;
            }
            continue;
        };
        image.ensure_table(&core.file, cluster).await?;
        changes.push((cluster, word));
        if let Entry::Data(place) | Entry::Zero { place: Some(place) } = entry
            && word & crate::shape::OFFSET == 0
        {
            left.push(shape.cluster_of(place.host).0);
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    image.link(&core.file, &changes).await?;
    let space = image.space()?;
    left.sort_unstable();
    for together in left.chunk_by(|one, next| one + 1 == *next) {
        space.free(together[0]..together[0] + together.len() as u64);
    }
    Ok(())
}

/// What the tables shall say of a cluster: `None` if that is what they say, `Some(None)` if they cannot.
fn new_entry(
    core: &Core,
    cluster: GuestCluster,
    entry: Entry,
    how: Zeroing,
) -> Option<Option<u64>> {
    let shines_through = core
        .backing
        .as_ref()
        .is_some_and(|backing| core.image.shape().start_of(cluster) < backing.size);
    let empty = match (shines_through, core.image.has_zero_clusters()) {
        (false, _) => Some(0),
        (true, true) => Some(zero_at(None)),
        (true, false) => None,
    };
    match (entry, how) {
        (Entry::Nothing, Zeroing::Discard) => None,
        (Entry::Nothing, Zeroing::Keep | Zeroing::Unmap) => shines_through.then_some(empty),
        (Entry::Zero { place: None }, _) | (Entry::Zero { .. }, Zeroing::Keep) => None,
        (Entry::Zero { place: Some(_) }, _) => Some(Some(zero_at(None))),
        (Entry::Data(place @ Place { is_ours: true, .. }), Zeroing::Keep) => {
            Some(core.image.has_zero_clusters().then(|| zero_at(Some(place))))
        }
        (Entry::Data(_) | Entry::Compressed { .. }, _) => Some(empty),
    }
}

/// Writes zeroes over a cluster.
async fn write_over(core: &Core, cluster: GuestCluster) -> Result<(), FailKind> {
    let shape = core.image.shape();
    let start = shape.start_of(cluster);
    let change = Change::prepare(core, start..start + shape.cluster_bytes()).await?;
    if let Err(kind) = change.write_zeroes(core).await {
        change.abandon(core);
        return Err(kind);
    }
    if change.is_in_place() { Ok(()) } else { change.link(core).await }
}
