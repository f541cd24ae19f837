//! The tasks that serve requests which the tables in memory do not answer.
//!
//! Where it stands in the life of a request: its lane holds it; the task answers it through
//! [`LaneCore`], at once or in rounds.

mod compress;
mod compressed;
mod read;
mod status;
mod write;
mod zero;

use std::rc::Rc;

use block::Operation;
use tasks::RequestParts;

use crate::lane_core::{LaneCore, ServedRequest};

pub(crate) use compress::compress;
pub(crate) use compressed::ClusterDecoder;
pub(crate) use read::read;
pub(crate) use status::status;
pub(crate) use write::write;
pub(crate) use zero::{ZeroMode, zero};

/// Has a flush cover the tables and the file with the data.
pub(crate) async fn flush(core: Rc<LaneCore>, request: ServedRequest) {
    let mut parts = RequestParts::default();
    parts.add(0, core.data.storage.ask(Operation::Flush));
    parts.add(0, core.file.ask(Operation::Flush));
    core.answer(request, parts).await;
}

/// Frees clusters that nobody can find any more.
pub(crate) async fn reclaim(core: Rc<LaneCore>) {
    let _at_work = core.image.background_tasks.begin();
    if let Ok(space) = core.image.space()
        && let Err(kind) = space.reclaim(&core.file, false).await
    {
        // They leak; the operator was told of the error.
        tracing::debug!("freeing clusters: {kind:?}");
    }
}
