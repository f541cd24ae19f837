//! An image that changes hands while it is in use: another process goes on with it (`--takeover`).
//!
//! Where it stands: no request is under way. The old process says what it knows and the file does not
//! ([`Qcow2Node::state`](crate::Qcow2Node::state)); the new one loads the image by reading alone and takes that
//! over. Whichever owns the image closes it; until the new one does, the old one can go on as if nothing had been.
//!
//! Invariants: nothing of this writes to the image.
//! Threads: control threads.

use std::ops::Range;

use block::FailKind;

use crate::geometry::OFFSET;
use crate::image::Image;

/// The state of an image that is only in memory, as it is handed over in a takeover. Ranges are clusters of its file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageState {
    /// Taken ahead of need: they read as zeroes, and their refcount is 1, durably.
    pub reserved: Vec<Range<u64>>,
    /// No table names them any more, and they keep their refcount until that is durable.
    pub freed: Vec<Range<u64>>,
    /// Whether all that was written of tables is durable.
    pub tables_durable: bool,
}

/// Why an image cannot be handed over now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ImageHandOverError {
    /// Clusters are being freed.
    #[error("clusters are still being freed")]
    Busy,
    /// It is not written any more.
    #[error("it is damaged")]
    Damaged,
    /// Its file may say something else than its memory.
    #[error("a write of its tables has failed")]
    Doubtful,
}

/// What another process says of an image contradicts its file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("clusters {} to {} of the image cannot have been {what}", .clusters.start, .clusters.end)]
pub struct InvalidImageState {
    clusters: Range<u64>,
    what: &'static str,
}

impl Image {
    /// What the file does not say. No request is under way, and no task is at work.
    pub(crate) async fn state(&self) -> Result<ImageState, ImageHandOverError> {
        let space = match self.space() {
            Ok(space) => space,
            Err(FailKind::ReadOnly) => return Ok(ImageState::default()),
            Err(_) => return Err(ImageHandOverError::Damaged),
        };
        if self.slices.has_failed_writes() {
            return Err(ImageHandOverError::Doubtful);
        }
        space.state().await.map_err(|_written| ImageHandOverError::Doubtful)
    }

    /// Goes on from what another process knew. What cannot be is refused; it may still be wrong.
    pub(crate) fn inherit(&self, state: ImageState) -> Result<(), InvalidImageState> {
        let Ok(space) = self.space() else { return Ok(()) };
        let end = OFFSET >> self.geometry.cluster_bytes().trailing_zeros();
        let checked = |ranges: &[Range<u64>], what| {
            let is_wrong = |clusters: &&Range<u64>| {
                clusters.is_empty()
                    || clusters.end > end
                    || self.is_metadata(clusters.start..clusters.end)
            };
            match ranges.iter().find(is_wrong) {
                Some(clusters) => Err(InvalidImageState { clusters: clusters.clone(), what }),
                None => Ok(()),
            }
        };
        checked(&state.reserved, "taken ahead")?;
        checked(&state.freed, "freed")?;
        space.inherit(state);
        Ok(())
    }
}
