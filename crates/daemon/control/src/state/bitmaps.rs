//! Dirty bitmaps in images that nobody uses, and those that an NBD export shows.

use std::sync::Arc;

use bitmaps::{BitmapRefusal, BusyBitmap, NodeBitmaps};
use block::{Access, Claim, Permissions, Rights};
use exports::{ExportKind, ExportOptions, ExportedBitmap, MissingBitmaps};
use graph::Activity;
use nbd_server::EXPORT_BITMAPS_MAX;

use super::{ControlError, DaemonState, GraphChangeError};

/// A bitmap cannot be shown by an export. QEMU's sentences where it has some.
#[derive(Debug, thiserror::Error)]
pub enum ExportedBitmapError {
    /// Neither the node nor what it stands on has it.
    #[error("Bitmap '{0}' is not found")]
    Missing(String),
    /// There is no such node.
    #[error("Node '{0}' not found")]
    NoNode(String),
    /// It is in use, or inconsistent.
    #[error(transparent)]
    Refused(#[from] BitmapRefusal),
    /// Its node is changed by others than the clients of the export.
    #[error("Enabled bitmap '{0}' incompatible with readonly export")]
    Enabled(String),
    /// An export shows [`EXPORT_BITMAPS_MAX`] at most.
    #[error("an export shows {EXPORT_BITMAPS_MAX} bitmaps at most, not {0}")]
    TooMany(usize),
}

impl ExportedBitmapError {
    /// Whether the bitmap is gone, as one that was in memory alone is after a restart, or one of a daemon that was killed.
    fn is_of_lost_bitmap(&self) -> bool {
        match self {
            Self::Missing(_) | Self::NoNode(_) => true,
            Self::Refused(BitmapRefusal::Missing(_) | BitmapRefusal::Inconsistent(_)) => true,
            Self::Refused(_) | Self::Enabled(_) | Self::TooMany(_) => false,
        }
    }
}

impl DaemonState {
    /// Has the bitmaps of an image be in memory as long as the claim is held, if they can be; afterwards they are in the image
    /// again, unless somebody else uses it.
    pub fn hold_bitmaps(&self, node: &str) -> Result<Option<Claim>, ControlError> {
        let info = self.graph.node_info(node)?;
        let is_held = info.image.is_some_and(|image| image.check_bitmaps().is_ok())
            && info.access == Access::ReadWrite
            && info.activity == Activity::Active;
        if !is_held {
            return Ok(None);
        }
        self.hold_image(node).map(Some)
    }

    /// Has an image be in use for writing as long as the claim is held, beside whoever else uses it.
    pub fn hold_image(&self, node: &str) -> Result<Claim, ControlError> {
        let rights = Rights { uses: Permissions::WRITES, shares: Permissions::ALL };
        Ok(self.graph.node(node)?.claim(rights).map_err(GraphChangeError::from)?)
    }

    /// Takes the bitmaps into use that an export is to show.
    pub(super) fn exported_bitmaps(
        &self,
        options: &ExportOptions,
    ) -> Result<Vec<BusyBitmap>, ExportedBitmapError> {
        let ExportKind::Nbd(own) = &options.kind else { return Ok(Vec::new()) };
        if own.bitmaps.len() > EXPORT_BITMAPS_MAX {
            return Err(ExportedBitmapError::TooMany(own.bitmaps.len()));
        }
        let is_beside = !options.writable
            && matches!(self.graph.model().access(&options.node_name), Ok(Access::ReadWrite));
        let take = |wanted: &ExportedBitmap| {
            let of = self.bitmaps_with(&options.node_name, wanted)?;
            let bitmap = of.occupy(&wanted.name)?;
            if is_beside && of.is_recording(&wanted.name)? {
                return Err(ExportedBitmapError::Enabled(wanted.name.clone()));
            }
            Ok(bitmap)
        };
        let mut shown = Vec::new();
        for wanted in &own.bitmaps {
            match take(wanted) {
                Ok(bitmap) => shown.push(bitmap),
                Err(error)
                    if own.missing_bitmaps == MissingBitmaps::LeftOut
                        && error.is_of_lost_bitmap() =>
                {
                    let (id, name) = (&options.id, &wanted.name);
                    tracing::warn!("export {id}: does not show bitmap '{name}' any more: {error}");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(shown)
    }

    /// The set that has that bitmap.
    fn bitmaps_with(
        &self,
        export_node: &str,
        wanted: &ExportedBitmap,
    ) -> Result<Arc<NodeBitmaps>, ExportedBitmapError> {
        let name = &wanted.name;
        if let Some(node) = &wanted.node {
            let of = self.graph.bitmaps(node);
            return of
                .map(Arc::clone)
                .map_err(|_missing| ExportedBitmapError::NoNode(node.clone()));
        }
        let chain = self.graph.chain_below(export_node);
        let mut all = chain.into_iter().filter_map(|node| self.graph.bitmaps(node).ok());
        let has_it = |of: &&Arc<NodeBitmaps>| of.is_recording(name).is_ok();
        let found = all.find(has_it).map(Arc::clone);
        found.ok_or_else(|| ExportedBitmapError::Missing(name.clone()))
    }
}
