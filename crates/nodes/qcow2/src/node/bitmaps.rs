//! The persistent bitmaps of an image: in memory while it is claimed for writing, and in its file otherwise.
//!
//! Invariants: they are loaded before they are marked as in use, and marked before anything is written; they are stored when
//! nobody writes any more, after all data are durable. Who dies in between leaves them marked, and nobody trusts them.
//! Threads: whoever claims.

use std::sync::Arc;

use ::bitmaps::NodeBitmaps;
use block::{ByteCount, DiskSize, TakeoverOwner};
use tasks::ControlExecutor;

use super::{Qcow2Node, Shared, UseState};
use crate::bitmaps::MarkedBitmaps;
use crate::image::Image;
use crate::image::stored_bitmaps::{self, StoreError};
use crate::open::{OpenError, read_header};
use crate::table_reader::TableReader;

impl Qcow2Node {
    /// Whoever changes the node has it recorded in these bitmaps. From now on the persistent ones of the image are loaded there
    /// when it is claimed for writing, and stored when it is closed. Called once, before the image is claimed.
    pub fn record_in(&self, bitmaps: &Arc<NodeBitmaps>) {
        let _is_first = self.shared.bitmaps.set(Arc::clone(bitmaps));
    }

    /// Whether the image can have bitmaps in it. QEMU's sentence.
    pub fn check_bitmaps(&self) -> Result<(), &'static str> {
        if self.header().version < 3 {
            return Err("Cannot store dirty bitmaps in qcow2 v2 files");
        }
        Ok(())
    }
}

impl Shared {
    /// Which bitmaps are marked before the image is written.
    pub(super) fn marked_bitmaps(&self) -> MarkedBitmaps {
        match self.bitmaps.get() {
            Some(_) => MarkedBitmaps::InMemory,
            None => MarkedBitmaps::MissingChanges,
        }
    }

    /// Loads the bitmaps of the image, whose file is claimed, in place of those that were known of it.
    pub(super) fn load_bitmaps(&self, used: &mut UseState) -> Result<(), OpenError> {
        let Some(bitmaps) = self.bitmaps.get() else { return Ok(()) };
        if used.owner == TakeoverOwner::Other {
            // They come from the process that has it, and not those that it has removed.
            bitmaps.forget_persistent();
            used.has_bitmaps = true;
            return Ok(());
        }
        let file = self.children.file.node();
        let header = read_header(&file, &*self.engines)?;
        let mut control = ControlExecutor::open(&*self.engines, &file)?;
        let storage = control.storage();
        let tables = TableReader::new(&header, &storage, file.size().0.0);
        let size = DiskSize(ByteCount(header.size));
        let loaded = control.run(stored_bitmaps::load(&tables, size));
        let damaged = |source| OpenError::Damaged { image: self.display_name(), source };
        let loaded = loaded.map_err(damaged)?;
        bitmaps.forget_persistent();
        for stored in loaded {
            if stored.bits.is_none() {
                tracing::warn!(
                    "{}: dirty bitmap '{}' was not stored by who used the image last; it can only be removed",
                    self.display_name(),
                    stored.name
                );
            }
            let refused = |source| OpenError::Bitmaps { image: self.display_name(), source };
            bitmaps.add_stored(stored).map_err(refused)?;
        }
        used.has_bitmaps = true;
        Ok(())
    }

    /// Stores the bitmaps of an image to which nobody writes any more; they stay known.
    pub(super) fn store_bitmaps(&self, used: &mut UseState, image: &Image) {
        let Some(bitmaps) = self.bitmaps.get().filter(|_| used.has_bitmaps) else { return };
        used.has_bitmaps = false;
        if let Err(error) = self.try_store(bitmaps, image) {
            tracing::error!(
                "{}: its dirty bitmaps cannot be stored, and are inconsistent from now on: {error}",
                self.display_name()
            );
        }
    }

    fn try_store(&self, bitmaps: &NodeBitmaps, image: &Image) -> Result<(), StoreError> {
        let stored = bitmaps.persistent();
        let file = self.children.file.node();
        let header = read_header(&file, &*self.engines).map_err(StoreError::other)?;
        if stored.is_empty() && header.bitmaps.is_none() {
            return Ok(());
        }
        // What they say of data is true of those that are there after a loss of power.
        if let Some(data) = &self.children.data_file {
            data.node().flush().map_err(StoreError::other)?;
        }
        file.flush().map_err(StoreError::other)?;
        let mut control = ControlExecutor::open(&*self.engines, &file)?;
        let storage = control.storage();
        control.run(image.store_bitmaps(&storage, file.size().0.0, &stored))?;
        let header = read_header(&file, &*self.engines).map_err(StoreError::other)?;
        self.set_header(header);
        Ok(())
    }
}
