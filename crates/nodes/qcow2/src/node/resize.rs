//! The size of an image, while nobody uses its lanes (QEMU's `qcow2_co_truncate`).
//!
//! Invariants, for a loss of power at any time: the disk has its old size and all of it, or the new one, where what is new
//! reads as zeroes. So a smaller size is in the header before anything is freed, in one sector with the table that has
//! nothing behind it; and a larger one is there after what would show through is hidden: what a cluster has behind the old
//! end, and the backing file.
//! Threads: the control thread that calls; the image is its own. Not here: tables (`image::cut`).

use std::sync::Arc;

use block::{Access, ByteCount, Child, DiskSize, Node, ResizeError, Rights};
use tasks::ControlExecutor;

use super::{Qcow2Node, Shared, UseState};
use crate::header::{Header, L1_BYTES_MAX};
use crate::image::Image;
use crate::open::{OpenError, read_header};

/// What is zeroed of a data file with one operation, in bytes.
const ZEROED_AT_ONCE: u64 = 256 << 20;

/// Gives the disk of a node another size.
pub(super) fn resize(node: &Qcow2Node, size: u64) -> Result<(), ResizeError> {
    let shared = &node.shared;
    let header = shared.header();
    let image = check(node, &header, size)?;
    let failed = |what, error: OpenError| ResizeError::failed(node, what, error);
    if size == header.size {
        return Ok(());
    }
    let needed = l1_entries(&header, size);
    if size < header.size {
        let cut = async |storage: &_| image.cut(storage, size, needed.max(1), size).await;
        shared.run(cut).map_err(|error| failed("Failed to discard cropped clusters", error))?;
        shared.reload(None).map_err(|error| failed("Failed to update the image size", error))?;
        return resize_data(shared, |bytes| bytes > size, size);
    }
    resize_data(shared, |bytes| bytes < size, size)?;
    let entries = needed.max(header.l1_entries as usize);
    let cut = async |storage: &_| image.cut(storage, header.size, entries, header.size).await;
    shared.run(cut).map_err(|error| failed("Failed to grow the L1 table", error))?;
    drop(image);
    let grown = shared.reload(Some(size)).and_then(|()| grow(node, &header, size));
    // Without success the disk has the size that the file says.
    let reloaded = if grown.is_err() { shared.reload(None) } else { Ok(()) };
    grown.and(reloaded).map_err(|error| failed("Failed to update the image size", error))
}

/// Refuses what cannot be; the image.
fn check(node: &Qcow2Node, header: &Header, size: u64) -> Result<Arc<Image>, ResizeError> {
    let shared = &node.shared;
    let backing = shared.children.backing.as_deref().map_or(0, child_bytes);
    let shows = size > header.size && backing > header.size;
    let too_large = l1_entries(header, size) as u64 * 8 > L1_BYTES_MAX;
    for (is_refused, why) in [
        (shared.settings.access == Access::ReadOnly, "Image is read-only"),
        (!size.is_multiple_of(512), "The new size must be a multiple of 512"),
        (header.snapshots > 0 && header.version < 3, "Can't resize a v2 image which has snapshots"),
        (
            header.bitmaps.is_some() && !shared.used().has_bitmaps,
            "Cannot resize qcow2 with persistent bitmaps that were not loaded into memory",
        ),
        (too_large, "Failed to grow the L1 table: File too large"),
        (shows && header.version < 3, "Failed to zero out new clusters: Operation not supported"),
    ] {
        if is_refused {
            return Err(ResizeError::refused(node, why));
        }
    }
    let image = shared.written();
    image.ok_or_else(|| ResizeError::refused(node, "the image is not in use for writing here"))
}

fn l1_entries(header: &Header, size: u64) -> usize {
    let entries = size.div_ceil(1 << header.cluster_bits).div_ceil(header.l2_entries());
    usize::try_from(entries).expect("64-bit host")
}

fn child_bytes(child: &Child) -> u64 {
    child.node().size().0.0
}

/// Gives the data file, if there is one, the size of the disk, if it is to have another one.
fn resize_data(
    shared: &Shared,
    is_wrong: impl Fn(u64) -> bool,
    size: u64,
) -> Result<(), ResizeError> {
    match &shared.children.data_file {
        Some(data) if is_wrong(child_bytes(data)) => data.node().resize(DiskSize(ByteCount(size))),
        Some(_) | None => Ok(()),
    }
}

/// Hides what would show through behind the old end of an image that is loaded with its new size, and has the header say
/// that size.
fn grow(node: &Qcow2Node, old: &Header, size: u64) -> Result<(), OpenError> {
    let shared = &node.shared;
    let cluster = 1_u64 << old.cluster_bits;
    if old.features.raw_external {
        map_data(shared, old, size)?;
    }
    let backing = shared.children.backing.as_deref().map_or(0, child_bytes);
    let end = backing.max(old.size).next_multiple_of(cluster).min(size);
    let disk: Arc<dyn Node> = Arc::new(Qcow2Node { shared: Arc::clone(shared) });
    let mut control = ControlExecutor::open(&*shared.engines, &disk)?;
    let storage = control.storage();
    control
        .run(async {
            if end > old.size {
                storage.zero(old.size..end).await?;
            }
            storage.sync().await
        })
        .map_err(|kind| shared.io_error(kind))?;
    drop((control, storage));
    let image = shared.image()?;
    shared.run(async |storage| image.name_size(storage).await)?;
    let header = read_header(&shared.children.file.node(), &*shared.engines)?;
    shared.set_header(header);
    Ok(())
}

/// Has the tables of an image name what a data file has that is the disk by itself: zeroes where it is new.
fn map_data(shared: &Shared, old: &Header, size: u64) -> Result<(), OpenError> {
    let Some(data) = &shared.children.data_file else { return Ok(()) };
    let mut control = ControlExecutor::open(&*shared.engines, &data.node())?;
    let storage = control.storage();
    let zeroed = control.run(async {
        let mut at = old.size;
        while at < size {
            let next = size.min(at + ZEROED_AT_ONCE);
            storage.zero(at..next).await?;
            at = next;
        }
        storage.sync().await
    });
    zeroed.map_err(|kind| shared.io_error(kind))?;
    let image = shared.image()?;
    let cluster = 1_u64 << old.cluster_bits;
    let clusters = old.size.div_ceil(cluster)..size.div_ceil(cluster);
    shared.run(async |storage| image.map_raw(storage, clusters).await)
}

impl Shared {
    /// The image that is in use.
    fn image(&self) -> Result<Arc<Image>, OpenError> {
        let image = self.used().image.clone();
        image.ok_or_else(|| OpenError::Changed { image: self.display_name() })
    }

    /// Asks how long the file is now.
    pub(super) fn measure(&self) -> Result<(), OpenError> {
        let rights = Rights::unchanged_by_others(Access::ReadWrite);
        let claim = self.children.file.node().claim(rights).map_err(Into::into);
        let measured = claim.and_then(|claim| claim.refresh().map_err(Into::into));
        measured.map_err(|source| OpenError::Measure { image: self.display_name(), source })
    }

    /// Closes the image that is in use for writing, and loads what the file says now; the disk has that size if the header
    /// does not say so yet. After an error no image is in use: the next claim loads it.
    fn reload(&self, size: Option<u64>) -> Result<(), OpenError> {
        let mut used = self.used();
        if let Some(image) = used.image.take() {
            image.set_closed();
            if let Err(error) = self.close(&image) {
                tracing::warn!("some clusters of the image leak: {error}");
            }
        }
        self.load_again(&mut used, size)
    }

    /// Loads what the file says now, for writing, after the image that was in use is closed.
    pub(super) fn load_again(
        &self,
        used: &mut UseState,
        size: Option<u64>,
    ) -> Result<(), OpenError> {
        self.measure()?;
        self.set_header(read_header(&self.children.file.node(), &*self.engines)?);
        used.image = Some(Arc::new(self.load(Access::ReadWrite, None, size)?));
        Ok(())
    }
}
