//! Reads of clusters whose table is not in memory.

use std::ops::Range;
use std::rc::Rc;

use block::{ByteCount, Extent, FailKind, Operation, PIECES_MAX, Piece, Target, Token};

use super::compressed;
use crate::core::{Core, place};
use crate::shape::{Entry, Unit};

/// Serves a read.
pub(crate) async fn read(core: Rc<Core>, token: Token, bytes: Extent) {
    let operation = Operation::Read(bytes);
    let mut pieces = Vec::new();
    match find(&core, bytes, &mut pieces).await {
        Ok(()) => core.answer(token, operation, pieces),
        Err(kind) => {
            core.file.io().let_go(&pieces);
            core.end(token, operation, Err(kind));
        }
    }
}

/// Where bytes of the disk are.
pub(super) async fn find(
    core: &Core,
    bytes: Extent,
    into: &mut Vec<Piece>,
) -> Result<(), FailKind> {
    let image = &core.image;
    let shape = image.shape();
    let (start, end) = (bytes.bytes().start, bytes.bytes().end);
    let operation = Operation::Read(bytes);
    let mut at = start;
    while at < end {
        let cluster = shape.cluster_of(at);
        let next = (at - shape.within(at) + shape.cluster_bytes()).min(end);
        let pinned = image.slice(&core.file, shape.slice_of(cluster)).await?;
        let cluster_start = shape.start_of(cluster);
        let found = match image.entry(pinned.slice(), cluster)? {
            Entry::Cluster(found) => found,
            Entry::Compressed { descriptor } => {
                let decoded = compressed::cluster(core, cluster, descriptor).await?;
                let within = in_memory(at - cluster_start, next - at);
                compressed::keep(core, &decoded, at - start, within, into)?;
                at = next;
                if into.len() > PIECES_MAX {
                    return Err(FailKind::Unsupported);
                }
                continue;
            }
        };
        for (unit, part) in shape.parts(found, at - cluster_start..next - cluster_start) {
            let guest = cluster_start + part.start..cluster_start + part.end;
            let (skip, count) = (guest.start - start, guest.end - guest.start);
            match (unit, &core.backing) {
                (Unit::Data(found), _) => {
                    let host = found.host + part.start..found.host + part.end;
                    core.place(operation, skip, host, into).await?;
                }
                (Unit::Nothing, Some(backing)) if guest.start < backing.size => {
                    let end = guest.end.min(backing.size);
                    place(&backing.storage, operation, skip, guest.start..end, into).await?;
                    if end < guest.end {
                        into.push(zeroes(end - start, guest.end - end));
                    }
                }
                (Unit::Zero | Unit::Nothing, _) => into.push(zeroes(skip, count)),
            }
        }
        if into.len() > PIECES_MAX {
            return Err(FailKind::Unsupported);
        }
        at = next;
    }
    Ok(())
}

/// Bytes of a cluster.
pub(super) fn in_memory(start: u64, count: u64) -> Range<usize> {
    let bytes = |number: u64| usize::try_from(number).expect("a cluster fits into memory");
    bytes(start)..bytes(start + count)
}

fn zeroes(skip: u64, count: u64) -> Piece {
    Piece { skip, count: ByteCount(count), target: Target::Zeroes }
}
