//! The node: an image of a Ceph cluster, how it is opened, and what its lanes answer.
//!
//! Invariants: an image is changed only under a claim that has the exclusive lock. An image that cannot be locked is only
//! read. Threads: shared by all; a lane belongs to its iothread. Limits: [`OPEN_MAX`].

mod claim;

use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use block::{
    Access, BlockLimits, ChannelLane, Claim, ClaimError, DiscardPolicy, DiskSize, FlushPolicy,
    InternalSnapshots, Lane, LaneContext, LaneError, Node, Permission, Rights, SECTOR_BYTES,
    StoragePolicy,
};
use claim::WriteClaim;

use crate::bounded_call::ThreadFences;
use crate::channel::RbdChannel;
use crate::cluster::{CallError, Cluster};
use crate::disk::{Disk, LockError};
use crate::header::Header;
use crate::header_watch::UpdateSignal;
use crate::image::Image;
use crate::library::LibraryError;
use crate::options::{RbdOptions, check_image_options};

/// How long opening an image may take, once the cluster was reached as well.
const OPEN_MAX: Duration = Duration::from_secs(60);

/// Below that an OSD rewrites more than it was asked to.
const PHYSICAL_BLOCK: u32 = 4096;

/// What discards are a multiple of that have an effect (`rbd_discard_granularity_bytes`).
const DISCARD_GRANULARITY: u32 = 1 << 16;

/// An image cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum RbdOpenError {
    /// There is no library.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// There is no client.
    #[error("no client of a Ceph cluster can be made")]
    Client(#[source] CallError),
    /// Its configuration cannot be read.
    #[error("the configuration file {path} of the Ceph cluster cannot be read")]
    Configuration {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// An option is not taken.
    #[error("librbd does not take {option}={value}")]
    Option {
        /// Which.
        option: &'static str,
        /// What it was to be.
        value: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// The key is none.
    #[error("librbd does not take the key of the client")]
    Key(#[source] CallError),
    /// A monitor is not known.
    #[error("the monitor {host} cannot be looked up")]
    Monitor {
        /// Which.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no thread for it, or it took too long.
    #[error("image {image}: the cluster does not answer")]
    Late {
        /// Which.
        image: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No monitor answers, or they refuse the client.
    #[error("{} of the Ceph cluster cannot be connected to", the_monitors(monitors))]
    Connect {
        /// Which, if that is known.
        monitors: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// There is no such pool.
    #[error("pool {pool} of the Ceph cluster")]
    Pool {
        /// Which.
        pool: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// The image, or its snapshot, cannot be opened.
    #[error("image {image}")]
    Image {
        /// Which.
        image: String,
        /// Why.
        #[source]
        source: CallError,
    },
    /// It has no lock.
    #[error(
        "image {image} has no exclusive-lock, by which its other users are kept out: rbd feature enable {image} \
         exclusive-lock gives it one, and read-only=on reads it"
    )]
    NoLock {
        /// Which, as rbd's tools call it.
        image: String,
    },
    /// The image or its pool has an option that this daemon cannot live with.
    #[error("the image or its pool has {option}={value}, and {required} is needed: see rbd config")]
    ImageOption {
        /// Which.
        option: &'static str,
        /// What it is.
        value: String,
        /// What it has to be.
        required: &'static str,
    },
    /// It has a part of a sector.
    #[error("image {image} has {bytes} bytes, which is no multiple of 512")]
    Size {
        /// Which.
        image: String,
        /// How many.
        bytes: u64,
    },
    /// No thread for it.
    #[error("image {image} cannot be watched")]
    Watch {
        /// Which.
        image: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// An image of a Ceph cluster.
#[derive(Debug)]
pub struct RbdNode {
    name: String,
    /// `None` only at its end.
    disk: Option<Arc<Disk>>,
    policy: StoragePolicy,
}

impl RbdNode {
    /// Connects to the cluster and opens the image, on a thread behind these fences. Blocks, for a minute.
    pub fn open(
        name: &str,
        options: &RbdOptions,
        policy: StoragePolicy,
        fences: &ThreadFences,
    ) -> Result<Self, RbdOpenError> {
        // Here files can be read.
        let cluster = options.client()?;
        let (wanted, access) = (options.clone(), policy.access);
        let signal = Arc::<UpdateSignal>::default();
        let theirs = Arc::clone(&signal);
        let open = move || open_image(cluster, &wanted, access, theirs);
        let opened = fences.call("rbd open", OPEN_MAX, open);
        let late = |source| RbdOpenError::Late { image: options.name(), source };
        let (image, header, object_bytes) = opened.map_err(late)??;
        let disk = Disk::new(options.name(), (image, object_bytes), header, signal, fences.clone());
        let disk = disk.map_err(|source| RbdOpenError::Watch { image: options.name(), source })?;
        Ok(Self { name: name.to_owned(), disk: Some(disk), policy })
    }
}

/// The monitors with their addresses, in a sentence.
fn the_monitors(addresses: &str) -> String {
    format!("the monitors {addresses}").trim_end().to_owned()
}

/// Connects, and opens an image; gives its size and that of its objects. Blocks.
fn open_image(
    cluster: Cluster,
    options: &RbdOptions,
    access: Access,
    signal: Arc<UpdateSignal>,
) -> Result<(Image, Arc<Header>, u64), RbdOpenError> {
    let RbdOptions { pool, namespace, image, snapshot, .. } = options;
    if let Err(source) = cluster.connect() {
        let monitors = cluster.get("mon_host").unwrap_or_default();
        return Err(RbdOpenError::Connect { monitors, source });
    }
    let no_pool = |source| RbdOpenError::Pool { pool: pool.clone(), source };
    let place = cluster.into_pool(pool, namespace).map_err(no_pool)?;
    let failed = |source| RbdOpenError::Image { image: options.name(), source };
    let mut opened = Image::open(place, image, snapshot.as_deref(), access).map_err(failed)?;
    check_image_options(&opened.options().map_err(failed)?)?;
    if access == Access::ReadWrite && !opened.can_be_locked().map_err(failed)? {
        let name = options.name();
        return Err(RbdOpenError::NoLock { image: name.trim_start_matches("rbd:").to_owned() });
    }
    opened.watch(signal).map_err(failed)?;
    // After the watch, so that no change goes by.
    let info = opened.info().map_err(failed)?;
    if !info.size.is_multiple_of(SECTOR_BYTES) {
        return Err(RbdOpenError::Size { image: options.name(), bytes: info.size });
    }
    let header = Header::new(info.size);
    header.look_for_snapshots(&options.name(), &opened);
    Ok((opened, header, info.object_bytes))
}

impl Node for RbdNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> DiskSize {
        self.disk().size()
    }

    fn limits(&self) -> BlockLimits {
        let number = |bytes: u32| NonZeroU32::new(bytes).expect("no constant here is zero");
        BlockLimits {
            request_alignment: number(512),
            physical_block: number(PHYSICAL_BLOCK),
            discard: self.policy.discard == DiscardPolicy::Unmap,
            discard_granularity: number(DISCARD_GRANULARITY),
            allocation_unit: number(512),
        }
    }

    fn access(&self) -> Access {
        self.policy.access
    }

    fn flush(&self) -> io::Result<()> {
        match self.policy.flushes {
            FlushPolicy::Ignored => Ok(()),
            FlushPolicy::Obeyed => self.disk().flush(),
        }
    }

    fn internal_snapshots(&self) -> Option<Arc<dyn InternalSnapshots>> {
        Some(Arc::clone(self.disk()) as Arc<dyn InternalSnapshots>)
    }

    fn claim(&self, rights: Rights) -> Result<Claim, ClaimError> {
        if self.access() == Access::ReadWrite && rights.uses.has(Permission::Write) {
            let claim = WriteClaim::new(self.disk()).map_err(|error| self.not_claimed(error))?;
            return Ok(Claim::of(claim));
        }
        Ok(Claim::nothing())
    }

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        let channel = io.enter(Box::new(RbdChannel::new(self.disk(), io.waker())));
        Ok(Box::new(ChannelLane { channel, policy: self.policy }))
    }
}

impl RbdNode {
    fn disk(&self) -> &Arc<Disk> {
        self.disk.as_ref().expect("it is there until the end")
    }

    fn not_claimed(&self, error: LockError) -> ClaimError {
        let outlook = error.outlook();
        ClaimError { node: self.name.clone(), outlook, source: Box::new(error) }
    }
}

impl Drop for RbdNode {
    fn drop(&mut self) {
        if let Some(disk) = self.disk.take() {
            disk.leave();
        }
    }
}
