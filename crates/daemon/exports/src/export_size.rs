//! The size of an export's disk, and who is told when it changes.
//!
//! A block device may grow or shrink under its users, and so may a file. The sizes of the files below a node are looked
//! at when a front end asks for the configuration, when it starts its first ring, when the kernel says that a block
//! device has changed (`uevents`), and when the operator asks for it (SIGHUP): nobody grows a disk by what he says. Storage
//! that is no file and knows of its changes is asked every few seconds.
//! First the files are measured, then the node says its size, then rings see it ([`Capacity`], read once for each
//! batch), and only then the front end is told, if it gave a channel and the size is not the one that it was told last.
//! It asks for the configuration then, and interrupts the driver. What it was told by the process before is in its
//! in-flight region, if it keeps one.
//!
//! Invariants: the size is a multiple of the logical block. What lies behind the end is refused when a request is
//! decoded, or by the kernel: no request reads something else instead.
//! Threads: the first one and that of the session. Neither waits for a front end here, and the first one for no file
//! system: for disks without a block device it does nothing.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use block::{ByteCount, Capacity, DiskSize, Node};
use graph::StorageFiles;
use kernel_io::{FileKind, FilePlace, OpenFile};
use vhost_user::BackendChannel;

/// The size of an export's disk, which may change, and what its front end was told.
#[derive(Debug)]
pub struct ExportSize {
    /// The export, for messages.
    export: String,
    node: Arc<dyn Node>,
    logical_block: u32,
    /// The files below the node.
    files: Mutex<StorageFiles>,
    capacity: Arc<Capacity>,
    listener: Mutex<SizeListener>,
    /// Whether it was said that a file has been removed, or is elsewhere, and it still is.
    is_removal_told: AtomicBool,
    /// What was said last of a file that is not as large as its disk.
    difference_told: AtomicI64,
}

/// What is found of storage by looking at it, without a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct StorageCondition {
    /// Whether a file was removed, renamed or replaced.
    pub is_removed: bool,
    /// By how many bytes the file whose bytes the disk is has grown since it was measured, or shrunk.
    pub size_difference: i64,
}

/// The present front end's channel, and the size that it was told.
#[derive(Debug, Default)]
struct SizeListener {
    channel: Option<Arc<BackendChannel>>,
    /// The size that it was told last.
    announced: Option<DiskSize>,
    /// The size of which it was sent news, and has not asked since: news of the same are not sent again.
    news: Option<DiskSize>,
}

impl ExportSize {
    /// The size of that node, which stands on those files.
    pub(crate) fn new(
        export: &str,
        node: &Arc<dyn Node>,
        logical_block: u32,
        files: StorageFiles,
    ) -> Self {
        let size = whole_blocks(node.size(), logical_block);
        Self {
            export: export.to_owned(),
            node: Arc::clone(node),
            logical_block,
            files: Mutex::new(files),
            capacity: Arc::new(Capacity::new(size)),
            listener: Mutex::default(),
            is_removal_told: AtomicBool::new(false),
            difference_told: AtomicI64::new(0),
        }
    }

    /// What rings look at.
    pub fn capacity(&self) -> &Arc<Capacity> {
        &self.capacity
    }

    /// The node stands on these files from now on.
    pub fn set_files(&self, files: StorageFiles) {
        *self.files.lock().expect("no holder of this lock panics") = files;
    }

    /// Says that there is nothing to serve yet, and how that may change.
    pub(crate) fn warn_if_empty(&self) {
        if self.capacity.get() != DiskSize(ByteCount(0)) {
            return;
        }
        let (files, export) = (self.files(), &self.export);
        let empty = files.iter().find(|file| file.bytes() == 0);
        match empty.map(|file| (file.kind(), file.path().display())) {
            Some((FileKind::BlockDevice, path)) => tracing::warn!(
                "export {export}: {path} has no size, so its client finds a disk of 0 bytes: nothing is \
                 attached to it, or no medium is in it"
            ),
            Some((FileKind::Regular, path)) => tracing::warn!(
                "export {export}: {path} is empty, so its client finds a disk of 0 bytes: truncate -s 10G \
                 {path} makes it one of 10 GiB"
            ),
            None => tracing::warn!("export {export}: its client finds a disk of 0 bytes"),
        }
    }

    /// Says, once, that a file below has been removed or is not where it was any more: guests do not notice. Looked at when a
    /// client comes and leaves, and with the size. Blocks as far as a file system does.
    pub(crate) fn warn_if_removed(&self) -> bool {
        let place = |file: Arc<OpenFile>| {
            let place = file.look_for_place().unwrap_or(FilePlace::InPlace);
            (place != FilePlace::InPlace).then_some((file, place))
        };
        let export = &self.export;
        let Some((file, place)) = self.files().into_iter().find_map(place) else {
            if self.is_removal_told.swap(false, Ordering::Relaxed) {
                tracing::info!("export {export}: its files are where they were again");
            }
            return false;
        };
        if !self.is_removal_told.swap(true, Ordering::Relaxed) {
            let (path, link) = (file.path().display(), file.link());
            let link = link.display();
            match place {
                FilePlace::InPlace => {}
                FilePlace::Removed => tracing::warn!(
                    "export {export}: {path} was removed or replaced; its client goes on with the old file, which is gone \
                     when this process ends. As long as it runs, {link} is that file"
                ),
                FilePlace::Elsewhere => tracing::warn!(
                    "export {export}: {path} was renamed or replaced; its client goes on with the old file, which the next \
                     start does not find there. As long as this process runs, {link} is that file"
                ),
            }
        }
        true
    }

    fn files(&self) -> Vec<Arc<OpenFile>> {
        self.files.lock().expect("no holder of this lock panics").all.clone()
    }

    /// Looks at the files below, and says what is wrong with them; changes nothing but the size of what is no file. Blocks as
    /// far as a file system does.
    pub fn examine(&self) -> StorageCondition {
        let is_removed = self.warn_if_removed();
        self.review_size_without_file();
        let whole = self.files.lock().expect("no holder of this lock panics").whole.clone();
        let regular = whole.filter(|file| file.kind() == FileKind::Regular);
        let size_difference = regular.map_or(0, |file| self.look_for_difference(&file));
        StorageCondition { is_removed, size_difference }
    }

    /// Storage that is no file says itself when it has another size, as an image of a cluster does; only who may change the
    /// image can have given it that.
    fn review_size_without_file(&self) {
        let now = whole_blocks(self.node.size(), self.logical_block);
        if self.files().is_empty() && now != self.capacity.get() {
            self.review();
        }
    }

    /// By how much a file differs from the disk that it is; said whenever that changes.
    fn look_for_difference(&self, file: &OpenFile) -> i64 {
        let known = file.bytes();
        let whole = |bytes| whole_blocks(DiskSize(ByteCount(bytes)), self.logical_block);
        // Of a part of a file nothing is known here.
        let Ok(now) = file.bytes_now() else { return 0 };
        if whole(known) != self.capacity.get() {
            return 0;
        }
        let difference = whole(now).0.0.cast_signed() - whole(known).0.0.cast_signed();
        if self.difference_told.swap(difference, Ordering::Relaxed) == difference {
            return difference;
        }
        let (export, path) = (&self.export, file.path().display());
        match difference {
            0 => tracing::info!("export {export}: {path} is as large as its disk again"),
            1.. => tracing::warn!(
                "export {export}: {path} has grown from {known} to {now} bytes, and its client has not been told: \
                 block_resize does it (ringloom ctl resize), and SIGHUP to a daemon with --log-file or --daemonize"
            ),
            ..0 => tracing::warn!(
                "export {export}: {path} has shrunk from {known} to {now} bytes below its disk: what was behind its end \
                 is lost, and reads there fail"
            ),
        }
        difference
    }

    /// There is another front end, which was told nothing.
    pub(crate) fn reset_front_end(&self) {
        *self.listener() = SizeListener::default();
    }

    /// The front end wants to hear of changes here.
    pub(crate) fn set_channel(&self, channel: Arc<BackendChannel>) {
        let mut listener = self.listener();
        (listener.channel, listener.news) = (Some(channel), None);
    }

    /// Looks, and says how large the disk is: the front end asks. Blocks as far as a file system does.
    pub(crate) fn answer(&self) -> DiskSize {
        let mut listener = self.listener();
        let size = self.look();
        (listener.announced, listener.news) = (Some(size), None);
        size
    }

    /// What the front end was told last, by this process or the one before.
    pub(crate) fn announced(&self) -> Option<DiskSize> {
        self.listener().announced
    }

    /// Another process has told the front end this size.
    pub(crate) fn was_told(&self, size: DiskSize) {
        self.listener().announced = Some(size);
        let (was, is) = (size.0.0, self.capacity.get().0.0);
        if was != is {
            let changed = if was < is { "grown" } else { "shrunk" };
            tracing::info!(
                "export {}: node {} has {changed} from {was} to {is} bytes since its client was told",
                self.export,
                self.node.name()
            );
        }
    }

    /// A block device has changed: [`ExportSize::review`], if there is one below.
    pub fn review_devices(&self) {
        if self.files().iter().any(|file| file.kind() == FileKind::BlockDevice) {
            self.review();
        }
    }

    /// Looks, and tells the front end if the disk is not as large as it was told. Blocks as far as a file
    /// system does.
    pub fn review(&self) {
        let mut listener = self.listener();
        let size = self.look();
        if listener.announced == Some(size) || listener.news == Some(size) {
            return;
        }
        let Some(channel) = &listener.channel else { return };
        match channel.config_changed() {
            Ok(()) => {
                tracing::debug!("export {}: the front end is told of the size", self.export);
                listener.news = Some(size);
            }
            // One that does not listen finds out when it asks.
            Err(error) => {
                tracing::debug!("export {}: the front end does not hear: {error}", self.export);
            }
        }
    }

    /// Asks all files for their sizes. One thread at a time: the caller has the listener's lock.
    fn look(&self) -> DiskSize {
        self.warn_if_removed();
        for file in self.files() {
            if let Err(error) = file.measure() {
                let (export, path) = (&self.export, file.path().display());
                tracing::warn!("export {export}: the size of {path} cannot be had: {error}");
            }
        }
        let size = whole_blocks(self.node.size(), self.logical_block);
        let before = self.capacity.get();
        if size != before {
            let (export, node) = (&self.export, self.node.name());
            let (now, before) = (size.0.0, before.0.0);
            if now > before {
                tracing::info!(
                    "export {export}: node {node} has grown from {before} to {now} bytes"
                );
            } else {
                tracing::warn!(
                    "export {export}: node {node} has shrunk from {before} to {now} bytes; requests \
                     behind its end fail"
                );
            }
            self.capacity.set(size);
        }
        size
    }

    fn listener(&self) -> MutexGuard<'_, SizeListener> {
        self.listener.lock().expect("no holder of this lock panics")
    }
}

/// A part of a block at the end cannot be used.
fn whole_blocks(size: DiskSize, block: u32) -> DiskSize {
    let bytes = size.0.0;
    DiskSize(ByteCount(bytes - bytes % u64::from(block)))
}
