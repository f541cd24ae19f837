//! An image as a node of the graph: opened by its header, loaded when it is claimed, closed with the
//! last claim.
//!
//! Where it stands: above the file with the image, and above the backing file's node if it has one.
//!
//! Invariants: all lanes share one [`Image`], which exists while the node is claimed: the files are
//! locked before it is read, and it is closed before they are given back, by the process that owns it. A node
//! that may be written changes its file also when its users only read, unless nobody may write: below another image.
//! Threads: control threads, but for [`Node::open_lane`].

mod bitmaps;
mod resize;
pub(crate) mod snapshots;

use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use ::bitmaps::NodeBitmaps;
use block::{
    Access, BlockLimits, ByteCount, Child, Claim, ClaimError, ClaimGuard, DiskSize, EngineFactory,
    FailKind, InternalSnapshots, Lane, LaneContext, LaneError, Node, Permission, Permissions,
    ResizeError, RetryHint, Rights, SnapshotInfo, TakeoverOwner, display_name,
};
use tasks::{AsyncChild, ControlExecutor, TaskExecutor, block_on};

use crate::cluster_allocator::FreedClusterDiscards;
use crate::corruption::CorruptionReports;
use crate::geometry::SLICE_BYTES_MAX;
use crate::handover::{ImageHandOverError, ImageState};
use crate::header::Header;
use crate::image::backing_name::{BackingNameError, ChangeBackingError};
use crate::image::{CacheSizes, Image};
use crate::lane::Qcow2Lane;
use crate::lane_core::{BackingFile, DataLocation, DataStore, LaneCore};
use crate::open::{OpenError, fill_up, make_writable_with, read_header};
use crate::overlap::{MetadataClusters, OverlapCheck};
use crate::table_reader::TableReader;

/// How long a lane that no ring uses any more may take to end what it has begun.
const WORK_LIMIT: Duration = Duration::from_secs(30);

/// The children of an image: file, backing, data-file.
#[derive(Debug, Clone)]
pub struct Children {
    /// The file with the image.
    pub file: Arc<Child>,
    /// The disk that shows through where the image has nothing.
    pub backing: Option<Arc<Child>>,
    /// The file with the data, of an image that has them outside.
    pub data_file: Option<Arc<Child>>,
}

/// The options of an image's node: access, discards, cache sizes, overlap check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Qcow2Settings {
    /// Whether it takes changes.
    pub access: Access,
    /// Whether discards free clusters, and zeroings may.
    pub discards: FreedClusterDiscards,
    /// How much memory L2 tables may take, in bytes (`l2-cache-size`).
    pub l2_cache: ByteCount,
    /// How much memory refcounts may take, in bytes (`refcount-cache-size`).
    pub refcount_cache: ByteCount,
    /// After how long without use an L2 table goes from memory (`cache-clean-interval`).
    pub clean_after: Option<Duration>,
    /// What is held against metadata before it is written (`overlap-check`).
    pub overlap_check: OverlapCheck,
}

/// A qcow2 image as a node.
#[derive(Debug)]
pub struct Qcow2Node {
    shared: Arc<Shared>,
}

/// What the node and the claims on it share.
#[derive(Debug)]
struct Shared {
    name: String,
    children: Children,
    /// The backing file now; that of `children` is the first one.
    backing: Mutex<Option<Arc<Child>>>,
    settings: Qcow2Settings,
    /// Where changes are recorded, if they are.
    bitmaps: OnceLock<Arc<NodeBitmaps>>,
    /// Who is told of damage.
    reports: OnceLock<Arc<CorruptionReports>>,
    engines: Arc<dyn EngineFactory>,
    /// As it was when the node was made, or got another size.
    header: Mutex<Arc<Header>>,
    /// Its internal snapshots then, and since.
    snapshots: Mutex<Vec<SnapshotInfo>>,
    state: Mutex<UseState>,
}

/// Who uses the image now: claims, writers, the loaded image, and which process owns it.
#[derive(Debug, Default)]
struct UseState {
    claims: usize,
    /// Those of them that the image may be written for.
    writers: usize,
    image: Option<Arc<Image>>,
    /// Who closes it.
    owner: TakeoverOwner,
    /// What another process knew of it, until it is loaded.
    inherited: Option<ImageState>,
    /// Whether its bitmaps were loaded: what is in memory is all there is.
    has_bitmaps: bool,
}

impl Qcow2Node {
    /// Makes a node of an image whose header can be read. Blocks.
    pub fn open(
        name: &str,
        children: Children,
        settings: Qcow2Settings,
        engines: Arc<dyn EngineFactory>,
    ) -> Result<Self, OpenError> {
        let file = children.file.node();
        let header = read_header(&file, &*engines)?;
        let features = header.features;
        if features.external_data != children.data_file.is_some() {
            let (image, has_data_file) = (display_name(&*file), features.external_data);
            return Err(OpenError::DataFile { image, has_data_file });
        }
        if settings.access == Access::ReadWrite && features.corrupt {
            return Err(OpenError::Corrupt { image: display_name(&*file) });
        }
        let (name, header) = (name.to_owned(), Mutex::new(Arc::new(header)));
        let (state, backing) = (Mutex::default(), Mutex::new(children.backing.clone()));
        let (bitmaps, reports) = (OnceLock::new(), OnceLock::new());
        let shared = Shared {
            name,
            children,
            backing,
            settings,
            bitmaps,
            reports,
            engines,
            header,
            snapshots: Mutex::default(),
            state,
        };
        shared.look_for_snapshots();
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Has damage that is found in the image reported there. Called once, before the image is claimed.
    pub fn report_to(&self, reports: &Arc<CorruptionReports>) {
        let _is_first = self.shared.reports.set(Arc::clone(reports));
    }

    /// What the header said when the node was made, or got another size.
    pub fn header(&self) -> Arc<Header> {
        self.shared.header()
    }

    /// Has the header name another backing file and its format, or none if the name is empty; what stands below the node
    /// stays. The caller holds a claim for writing; requests may be under way. Blocks. Durable when it returns: a loss of
    /// power leaves the old name with the old format, or the new ones.
    pub fn change_backing(
        &self,
        name: &str,
        format: Option<&str>,
    ) -> Result<(), ChangeBackingError> {
        self.shared.name_backing(name, format).map_err(|source| {
            let (image, name) = (self.shared.display_name(), name.to_owned());
            ChangeBackingError { image, name, source }
        })
    }

    /// How much memory its tables may take.
    pub fn cache_bytes(&self) -> ByteCount {
        let Qcow2Settings { l2_cache, refcount_cache, .. } = self.shared.settings;
        ByteCount(l2_cache.0 + refcount_cache.0)
    }

    /// The backing file that is below the image now.
    pub fn backing(&self) -> Option<Arc<Child>> {
        self.shared.lock_backing().clone()
    }

    /// Puts another backing file below the image, or none, and returns the one that was there. Only while no lane is open
    /// on it; a claim that is held does not know it. The header is not changed.
    pub fn replace_backing(&self, backing: Option<Arc<Child>>) -> Option<Arc<Child>> {
        std::mem::replace(&mut *self.shared.lock_backing(), backing)
    }

    /// What another process needs to go on with the image beside its file; `None` if the image is not in use, or
    /// not written. No request may be under way, and none may begin before it is known who goes on. Waits so long
    /// for clusters that are being freed; no more are meanwhile, since only a request's end begins that. Blocks.
    pub fn state(&self, limit: Duration) -> Result<Option<ImageState>, ImageHandOverError> {
        let shared = &self.shared;
        let used = shared.used();
        let Some(image) = used.image.as_ref().filter(|image| image.is_written()) else {
            return Ok(None);
        };
        if !image.background_tasks.wait(limit) {
            return Err(ImageHandOverError::Busy);
        }
        block_on(image.state()).map(Some)
    }

    /// The next claim goes on with the image that another process has in use, who owns it until
    /// [`Qcow2Node::own`]. Nobody has claimed it yet.
    pub fn inherit(&self, state: ImageState) {
        let mut used = self.shared.used();
        (used.owner, used.inherited) = (TakeoverOwner::Other, Some(state));
    }

    /// From now on this process owns the image: it closes it.
    pub fn own(&self) {
        let mut used = self.shared.used();
        (used.owner, used.inherited) = (TakeoverOwner::This, None);
    }

    /// From now on another process owns the image: it is not touched here any more.
    pub fn leave(&self) {
        self.shared.used().owner = TakeoverOwner::Other;
    }
}

impl Shared {
    fn used(&self) -> MutexGuard<'_, UseState> {
        self.state.lock().expect("nobody panics here")
    }

    fn header(&self) -> Arc<Header> {
        Arc::clone(&self.header.lock().expect("nobody panics here"))
    }

    fn lock_backing(&self) -> MutexGuard<'_, Option<Arc<Child>>> {
        self.backing.lock().expect("no holder of this lock panics")
    }

    fn display_name(&self) -> String {
        display_name(&*self.children.file.node())
    }

    fn io_error(&self, kind: FailKind) -> OpenError {
        OpenError::Io { image: self.display_name(), kind }
    }

    /// Does this with the image's file, which is claimed.
    fn run(
        &self,
        work: impl AsyncFnOnce(&AsyncChild) -> Result<(), FailKind>,
    ) -> Result<(), OpenError> {
        let mut control = ControlExecutor::open(&*self.engines, &self.children.file.node())?;
        let storage = control.storage();
        control.run(work(&storage)).map_err(|kind| self.io_error(kind))
    }

    fn set_header(&self, header: Header) {
        *self.header.lock().expect("nobody panics here") = Arc::new(header);
    }

    /// The image, if it is in use for writing and no other process owns it.
    fn written(&self) -> Option<Arc<Image>> {
        let used = self.used();
        let image = used.image.clone().filter(|image| image.is_written());
        image.filter(|_| used.owner == TakeoverOwner::This)
    }

    fn name_backing(&self, name: &str, format: Option<&str>) -> Result<(), BackingNameError> {
        let file = self.children.file.node();
        let image = self.written().ok_or(BackingNameError::NotWritten)?;
        let mut control = ControlExecutor::open(&*self.engines, &file)?;
        let storage = control.storage();
        let named = control.run(image.name_backing(&storage, name, format));
        match named {
            Ok(header) => self.set_header(header),
            Err(error) => {
                // It may be there all the same.
                if let Ok(header) = read_header(&file, &*self.engines) {
                    self.set_header(header);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Loads the image, whose files are claimed. One that another process owns is only read. The disk has that size if the
    /// header does not say so yet.
    fn load(
        &self,
        access: Access,
        inherited: Option<ImageState>,
        size: Option<u64>,
    ) -> Result<Image, OpenError> {
        let file = self.children.file.node();
        let mut header = match (access, &inherited) {
            (Access::ReadWrite, None) => {
                make_writable_with(&file, &*self.engines, self.marked_bitmaps())?
            }
            (Access::ReadWrite, Some(_)) | (Access::ReadOnly, _) => {
                read_header(&file, &*self.engines)?
            }
        };
        let identity = |header: &Header| {
            let Header { size, cluster_bits, features, .. } = *header;
            let data = (features.external_data, features.raw_external, features.extended_l2);
            (size, cluster_bits, data, header.backing.clone(), header.data_file.clone())
        };
        if identity(&header) != identity(&self.header()) {
            return Err(OpenError::Changed { image: self.display_name() });
        }
        header.size = size.unwrap_or(header.size);
        let mut control = ControlExecutor::open(&*self.engines, &file)?;
        let storage = control.storage();
        let bytes = file.size().0.0;
        self.note_snapshots(&mut control, &header, bytes);
        let writing = match access {
            Access::ReadOnly => None,
            Access::ReadWrite => {
                let tables = TableReader::new(&header, &storage, bytes);
                let metadata =
                    control.run(MetadataClusters::load(&tables, self.settings.overlap_check));
                let damaged = |source| OpenError::Damaged { image: self.display_name(), source };
                Some((self.settings.discards, metadata.map_err(damaged)?))
            }
        };
        let begins = access == Access::ReadWrite && inherited.is_none();
        let bytes = if begins { control.run(fill_up(&header, &storage, bytes)) } else { bytes };
        let loaded = control.run(self.load_with(&header, &storage, bytes, writing));
        let image = loaded.map_err(|kind| self.io_error(kind))?;
        if begins {
            let begun = control.run(image.begin_writing(&storage));
            begun.map_err(|kind| self.io_error(kind))?;
        }
        if let Some(state) = inherited {
            let foreign = |source| OpenError::Foreign { image: self.display_name(), source };
            image.inherit(state).map_err(foreign)?;
        }
        Ok(image)
    }

    /// Loads the image for reading what is there now. Its files may not be claimed.
    fn look(&self) -> Result<Image, OpenError> {
        let file = self.children.file.node();
        let header = read_header(&file, &*self.engines)?;
        let mut control = ControlExecutor::before_claim(&*self.engines, &file)?;
        let storage = control.storage();
        let bytes = file.size().0.0;
        let image = control.run(self.load_with(&header, &storage, bytes, None));
        image.map_err(|kind| self.io_error(kind))
    }

    async fn load_with(
        &self,
        header: &Header,
        storage: &AsyncChild,
        bytes: u64,
        writing: Option<(FreedClusterDiscards, MetadataClusters)>,
    ) -> Result<Image, FailKind> {
        let Qcow2Settings { l2_cache, refcount_cache, clean_after, .. } = self.settings;
        let clusters = header.size.div_ceil(1 << header.cluster_bits);
        let count = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let slice_bytes = SLICE_BYTES_MAX.min(1 << header.cluster_bits);
        let all = (clusters * header.l2_entry_bytes()).div_ceil(slice_bytes);
        let caches = CacheSizes {
            slices: count((l2_cache.0 / slice_bytes).min(all)),
            clean_after,
            blocks: count(refcount_cache.0 >> header.cluster_bits),
        };
        let image =
            Image::load(self.display_name(), header, storage, bytes, caches, writing).await?;
        if let Some(reports) = self.reports.get() {
            image.log.report_to(&self.name, reports);
        }
        Ok(image)
    }

    /// For what an image is used that is claimed like this. Below another image nobody writes to it. Who reads and
    /// bears with writers may meet some, which change tables that they share.
    fn access_for(&self, rights: Rights) -> Access {
        let writes = Permissions::CHANGES.and(Permission::WriteUnchanged);
        if rights.uses.both(writes) != Permissions::NONE || rights.shares.has(Permission::Write) {
            self.settings.access
        } else {
            Access::ReadOnly
        }
    }

    /// The files are claimed: has the image be there, for being written if it shall be.
    fn begin(&self, used: &mut UseState, access: Access) -> Result<(), OpenError> {
        let known = used.image.clone();
        match (known, access) {
            (Some(_), Access::ReadOnly) => {}
            (Some(image), Access::ReadWrite) if image.is_written() => {}
            (Some(image), Access::ReadWrite) if image.was_written() => {
                // Nobody has written since.
                self.load_bitmaps(used)?;
                make_writable_with(
                    &self.children.file.node(),
                    &*self.engines,
                    self.marked_bitmaps(),
                )?;
                self.run(async |storage| image.begin_writing(storage).await)?;
                image.set_writing(true);
            }
            // Lanes that only read go on with the image that they have: they are gone when somebody writes.
            (Some(_), Access::ReadWrite) | (None, _) => {
                let inherited = match access {
                    Access::ReadOnly => None,
                    Access::ReadWrite => used.inherited.take(),
                };
                if access == Access::ReadWrite {
                    self.load_bitmaps(used)?;
                }
                used.image = Some(Arc::new(self.load(access, inherited, None)?));
            }
        }
        Ok(())
    }

    /// A claim is given back, whose files still are claimed.
    fn end(&self, used: &mut UseState, access: Access) {
        used.claims -= 1;
        used.writers -= usize::from(access == Access::ReadWrite);
        let (Some(image), is_over) = (used.image.clone(), used.claims == 0) else { return };
        let stops = image.is_written() && used.writers == 0;
        if stops && used.owner == TakeoverOwner::This {
            self.store_bitmaps(used, &image);
        }
        if stops {
            image.set_writing(false);
        }
        if is_over {
            used.image = None;
            image.set_closed();
        }
        if (stops || is_over)
            && used.owner == TakeoverOwner::This
            && let Err(error) = self.close(&image)
        {
            tracing::warn!("closing the image, of which some clusters leak: {error}");
        }
    }

    /// Nobody writes to the image any more.
    fn close(&self, image: &Image) -> Result<(), OpenError> {
        // Before that the files are not given back: a late write would meet their next owner.
        while !image.background_tasks.wait(WORK_LIMIT) {
            let image = self.display_name();
            tracing::warn!("{image}: waits for clusters that are being freed");
        }
        self.run(async |storage| image.close(storage).await)
    }
}

/// A claim on an image.
#[derive(Debug)]
struct ImageClaim {
    shared: Arc<Shared>,
    access: Access,
}

impl ClaimGuard for ImageClaim {
    /// What was written is in the files.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// It was loaded after the files were claimed.
    fn refresh(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ImageClaim {
    fn drop(&mut self) {
        self.shared.end(&mut self.shared.used(), self.access);
    }
}

impl Node for Qcow2Node {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn image_file(&self) -> Option<PathBuf> {
        self.shared.children.file.node().image_file()
    }

    fn size(&self) -> DiskSize {
        DiskSize(ByteCount(self.shared.header().size))
    }

    fn limits(&self) -> BlockLimits {
        let below = self.shared.children.file.node().limits();
        let header = self.shared.header();
        let cluster = 1 << header.cluster_bits;
        let subclusters = if header.features.extended_l2 { 32 } else { 1 };
        let bytes = |count| NonZeroU32::new(count).expect("a cluster has bytes");
        BlockLimits {
            discard: self.shared.settings.discards == FreedClusterDiscards::Passed,
            discard_granularity: bytes(cluster),
            allocation_unit: bytes(cluster / subclusters),
            ..below
        }
    }

    fn access(&self) -> Access {
        self.shared.settings.access
    }

    fn flush(&self) -> io::Result<()> {
        if let Some(data) = &self.shared.children.data_file {
            data.node().flush()?;
        }
        self.shared.children.file.node().flush()
    }

    /// Claims the file as the node may change it, and the backing file for reading; loads the image. Others
    /// may only read them, also if nobody writes here: what is known of tables must stay true.
    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        let shared = &self.shared;
        let access = shared.access_for(rights);
        let of_file = Rights::unchanged_by_others(access);
        let mut below = shared.children.file.node().claim(of_file)?;
        if let Some(data) = &shared.children.data_file {
            below = below.and(data.node().claim(of_file)?);
        }
        if let Some(backing) = &*shared.lock_backing() {
            let rights = Rights::unchanged_by_others(Access::ReadOnly);
            below = below.and(backing.node().claim(rights)?);
        }
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| ClaimError {
            node: shared.name.clone(),
            outlook: RetryHint::Permanent,
            source,
        };
        let mut used = shared.used();
        // Who wrote last may have made the file longer, when bitmaps were stored.
        let is_known = used.image.as_ref().is_some_and(|image| match access {
            Access::ReadOnly => true,
            Access::ReadWrite => image.is_written(),
        });
        if !is_known {
            below.refresh().map_err(|error| failed(error.into()))?;
        }
        shared.begin(&mut used, access).map_err(|error| failed(error.into()))?;
        used.claims += 1;
        used.writers += usize::from(access == Access::ReadWrite);
        drop(used);
        // Given back first.
        Ok(Claim::of(ImageClaim { shared: Arc::clone(shared), access }).and(below))
    }

    fn resize(&self, DiskSize(ByteCount(size)): DiskSize) -> Result<(), ResizeError> {
        resize::resize(self, size)
    }

    fn internal_snapshots(&self) -> Option<Arc<dyn InternalSnapshots>> {
        Some(Arc::clone(&self.shared) as Arc<dyn InternalSnapshots>)
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let (shared, image) = (&self.shared, self.shared.used().image.clone());
        let failed = |source| LaneError { node: shared.name.clone(), source };
        let (image, access) = match image {
            Some(image) => (image, shared.settings.access),
            // What is in this image may be another one, of which only the header is of interest yet.
            None if io.is_before_claim() => {
                let image = shared.look().map_err(|error| failed(io::Error::other(error)))?;
                (Arc::new(image), Access::ReadOnly)
            }
            None => return Err(failed(io::Error::other("the image is not claimed"))),
        };
        let below = io.plain();
        let open = |node: &Arc<dyn Node>| {
            let alignment = node.limits().request_alignment.get();
            Ok::<_, LaneError>(AsyncChild::new(node.open_lane(&below)?, &below, alignment.into()))
        };
        let file = open(&shared.children.file.node())?;
        let backing = match &*shared.lock_backing() {
            None => None,
            Some(child) => {
                let node = child.node();
                Some(BackingFile { storage: open(&node)?, size: node.size().0.0 })
            }
        };
        let data = match &shared.children.data_file {
            None => DataStore { storage: file.clone(), kind: DataLocation::Inside },
            Some(child) => {
                let is_raw = shared.header().features.raw_external;
                let kind = if is_raw { DataLocation::Raw } else { DataLocation::External };
                DataStore { storage: open(&child.node())?, kind }
            }
        };
        let tasks = TaskExecutor::new(io.waker().clone());
        let core = LaneCore::new(image, file, data, backing, io.compression(), tasks.pauses());
        Ok(Box::new(Qcow2Lane::new(core, tasks, access, shared.settings.discards)))
    }
}
