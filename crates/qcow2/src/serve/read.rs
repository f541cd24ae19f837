//! Reads of clusters whose table is not in memory.

use std::rc::Rc;

use block::{ByteCount, Extent, FailKind, Operation, PIECES_MAX, Piece, Target, Token};

use crate::core::{Core, place};
use crate::shape::Entry;

/// Serves a read.
pub(crate) async fn read(core: Rc<Core>, token: Token, bytes: Extent) {
    let operation = Operation::Read(bytes);
    let mut pieces = Vec::new();
    match find(&core, bytes, &mut pieces).await {
        Ok(()) => core.answer(token, operation, pieces),
        Err(kind) => core.end(token, operation, Err(kind)),
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
        let (skip, count) = (at - start, next - at);
        match image.entry(pinned.slice(), cluster)? {
            Entry::Compressed { .. } => return Err(FailKind::Unsupported),
            Entry::Zero { .. } => into.push(zeroes(skip, count)),
            Entry::Data(found) => {
                let host = found.host + shape.within(at);
                core.place(operation, skip, host..host + count, into).await?;
            }
            Entry::Nothing => match &core.backing {
                Some(backing) if at < backing.size => {
                    let end = next.min(backing.size);
                    place(&backing.storage, operation, skip, at..end, into).await?;
                    if end < next {
                        into.push(zeroes(end - start, next - end));
                    }
                }
                Some(_) | None => into.push(zeroes(skip, count)),
            },
        }
        if into.len() > PIECES_MAX {
            return Err(FailKind::Unsupported);
        }
        at = next;
    }
    Ok(())
}

fn zeroes(skip: u64, count: u64) -> Piece {
    Piece { skip, count: ByteCount(count), target: Target::Zeroes }
}
