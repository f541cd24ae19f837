//! What a session needs from the export it speaks for.

use std::error::Error;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use block::DiskSize;
use virtio::{
    CacheMode, Features, GuestMemory, InflightQueue, MemoryRules, RingBase, RingDirtyLog, RingSetup,
};

use crate::BackendChannel;

/// One of the queues of a device, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueIndex(pub u16);

impl fmt::Display for QueueIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The device that a session serves, implemented by the daemon's export: features, configuration space, start and stop
/// of rings. After an error of `start` or `stop` the queue counts as stopped and the session ends. All calls may wait
/// for the threads that serve rings.
pub trait Device {
    /// The features of the device and its rings that a driver may choose from.
    fn features(&self) -> Features;

    /// How many queues a front end may use, at most 256.
    fn queues_max(&self) -> u16;

    /// The configuration space, as a driver sees it that chose these features; none if it has not
    /// chosen yet.
    fn config(&self, chosen: Features) -> Vec<u8>;

    /// What the front end may share with this process.
    fn memory_rules(&self) -> &Arc<MemoryRules>;

    /// How many descriptors this process may hold for the session ([`DESCRIPTORS_PER_QUEUE`](crate::DESCRIPTORS_PER_QUEUE)
    /// and its fellows say what it takes).
    fn descriptors_max(&self) -> usize;

    /// Finds out what it means to close the descriptors that come with the header of the next message
    /// ([`HEADER_BYTES`](crate::HEADER_BYTES)), [`DESCRIPTORS_PER_MESSAGE`](crate::DESCRIPTORS_PER_MESSAGE) of them at
    /// most. The message stays where it is, and this process gets none of them.
    fn inspect_descriptors(
        &mut self,
        connection: BorrowedFd<'_>,
    ) -> Result<DescriptorCloseRisk, DeviceError>;

    /// What may be told to the front end from now on, whatever thread finds it out; nothing, as long as this was
    /// not called. Not while another call is under way.
    fn set_channel(&mut self, channel: Arc<BackendChannel>);

    /// The size that the front end was told last; none if it has not asked.
    fn announced_size(&self) -> Option<DiskSize>;

    /// Another back end has told the front end this size. Called before any ring is served.
    fn set_announced_size(&mut self, size: DiskSize);

    /// A ring is ready to be served, and the front end has shared no memory so far. It may be said again and again.
    fn no_memory_shared(&mut self, queue: QueueIndex);

    /// When a change that was answered is durable.
    fn cache_mode(&self) -> CacheMode;

    /// Changes that from now on. No ring is served meanwhile. When this returns after a change to
    /// write-through, everything that was answered before is durable. After an error the device is in
    /// write-through and the session ends.
    fn set_cache_mode(&mut self, mode: CacheMode) -> Result<(), DeviceError>;

    /// Serves a ring from now on, beginning with one look at it whether a kick came or not. Called again
    /// after the pause if that was postponed.
    fn start(&mut self, queue: QueueIndex, start: RingStart) -> Result<StartResult, DeviceError>;

    /// Serves a ring no longer. Returns when nothing of it is in flight any more and nothing
    /// touches its memory, with how far it was served.
    fn stop(&mut self, queue: QueueIndex) -> Result<RingBase, DeviceError>;

    /// No ring is served, and none will be before the front end asks for something more: what is held only
    /// while rings are served is given back before this returns. Not called while rings only pause, be it
    /// because their memory was taken away. May be called when nothing is held. After an error it is still
    /// held, and the session ends.
    fn rings_stopped(&mut self) -> Result<(), DeviceError>;

    /// Interrupts the guest through another descriptor, or not at all, from now on. The ring is
    /// being served and goes on without a pause.
    fn set_call(&mut self, queue: QueueIndex, call: Option<OwnedFd>);

    /// Marks in this log from now on what the device writes, also for requests that were begun
    /// before; or nothing any more. The ring is being served and goes on without a pause. When this
    /// returns nobody uses the log before.
    fn set_log(&mut self, queue: QueueIndex, log: Option<RingDirtyLog>);
}

/// Whether closing a descriptor may block on a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DescriptorCloseRisk {
    /// It is memory, an eventfd or a UNIX socket: closing it asks nobody but the kernel.
    None,
    /// It may be a file whose file system is asked, and does not answer.
    MayBlock,
}

/// Whether a ring was started, or its start was postponed because another process is taking over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a ring whose start was postponed is not served"]
pub enum StartResult {
    /// It is served.
    Served,
    /// It is not: what it needs was not to be had yet, and somebody rings who wants the session to pause
    /// ([`SessionControl::bell`](crate::SessionControl::bell)). Without a bell nothing may be postponed.
    Postponed,
}

/// All that is needed to serve a ring. The session has found that it lies in the memory.
#[derive(Debug)]
pub struct RingStart {
    /// Where it lies and where it begins.
    pub setup: RingSetup,
    /// The guest's memory; to be kept until nothing of the ring is in flight.
    pub memory: Arc<GuestMemory>,
    /// Where its requests in flight are tracked, if the front end asks for that. The session has
    /// found that the ring has a place there.
    pub inflight: Option<InflightQueue>,
    /// Readable when the driver made chains available.
    pub kick: OwnedFd,
    /// To be written to interrupt the guest; none if it polls.
    pub call: Option<OwnedFd>,
    /// To be written when the ring is broken.
    pub error: Option<OwnedFd>,
    /// What device and driver agreed on.
    pub features: Features,
    /// Where what the device writes is marked, if it is.
    pub log: Option<RingDirtyLog>,
}

/// A ring that the device could not serve or stop.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It is not served.
    #[error("queue {queue} cannot be served")]
    Start {
        /// Which.
        queue: QueueIndex,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// What the front end has sent is not taken.
    #[error("cannot find out what descriptors the front end has sent")]
    Descriptors(#[source] Box<dyn Error + Send + Sync>),
    /// What was written before the switch to write-through may be lost.
    #[error("cannot switch to write-through: what was written before cannot be made durable")]
    CacheMode(#[source] Box<dyn Error + Send + Sync>),
    /// It holds what it should give back.
    #[error("cannot give back what was held for the queues")]
    Rest(#[source] Box<dyn Error + Send + Sync>),
    /// It may still be in use.
    #[error("queue {queue} cannot be stopped")]
    Stop {
        /// Which.
        queue: QueueIndex,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}
