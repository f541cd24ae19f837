//! The tasks that serve requests which the tables in memory do not answer.
//!
//! Where it stands in the life of a request: its lane holds it; the task answers it through
//! [`Core`], at once or in rounds.

mod compressed;
mod read;
mod write;
mod zero;

use std::rc::Rc;

use block::{FailKind, Operation, Piece, Token};

use crate::core::Core;
use crate::storage::Storage;

pub(crate) use compressed::Decoder;
pub(crate) use read::read;
pub(crate) use write::write;
pub(crate) use zero::{Zeroing, zero};

/// A part of a request that was asked of a lane below.
#[derive(Debug)]
pub(crate) enum Part {
    /// It is answered.
    Known(Result<Vec<Piece>, FailKind>),
    /// The lane below holds it, under that name.
    Held(Storage, Token),
}

/// Waits for the parts of a request that lanes below hold; each begins at its place in the request.
pub(crate) async fn parts(
    core: Rc<Core>,
    token: Token,
    operation: Operation,
    parts: Vec<(u64, Part)>,
) {
    let mut pieces = Vec::new();
    let mut failed = None;
    for (skip, part) in parts {
        let answer = match part {
            Part::Known(answer) => answer,
            Part::Held(storage, token) => storage.answer(token).await.map(|(_, pieces)| pieces),
        };
        match answer {
            Ok(part) => {
                pieces.extend(part.iter().map(|piece| Piece { skip: skip + piece.skip, ..*piece }));
            }
            Err(kind) => failed = Some(kind),
        }
    }
    match failed {
        None => core.answer(token, operation, pieces),
        Some(kind) => {
            core.file.io().let_go(&pieces);
            core.end(token, operation, Err(kind));
        }
    }
}

/// Waits for a flush that the lane below holds.
pub(crate) async fn held_flush(core: Rc<Core>, token: Token, asked: Token) {
    match core.data.storage.answer(asked).await {
        Ok((_, pieces)) => core.answer_flush(token, pieces),
        Err(kind) => core.end(token, Operation::Flush, Err(kind)),
    }
}

/// Has a flush cover the tables and the file with the data.
pub(crate) async fn flush(core: Rc<Core>, token: Token) {
    let data = core.data.storage.resolve(Operation::Flush).await;
    let tables = core.file.resolve(Operation::Flush).await;
    match (data, tables) {
        (Ok((_, mut pieces)), Ok((_, tables))) => {
            pieces.extend(tables);
            core.answer_flush(token, pieces);
        }
        (Err(kind), _) | (_, Err(kind)) => core.end(token, Operation::Flush, Err(kind)),
    }
}

/// Frees clusters that nobody can find any more.
pub(crate) async fn reclaim(core: Rc<Core>) {
    let _at_work = core.image.begin_work();
    if let Ok(space) = core.image.space()
        && let Err(kind) = space.reclaim(&core.file, false).await
    {
        // They leak; the operator was told of the error.
        tracing::debug!("freeing clusters: {kind:?}");
    }
}
