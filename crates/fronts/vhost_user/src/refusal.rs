//! Why a session refuses a message. Each refusal ends the session; its sentence is for the
//! operator.

use virtio::{DirtyLogError, Features, InflightError, InflightFault, MemoryError, RingError};

use crate::{DeviceError, QueueIndex, VringFdKind};

/// Why a session refuses a message of the front end.
#[derive(Debug, thiserror::Error)]
pub enum MessageRefusal {
    /// Feature bits that were not offered.
    #[error("front end chose features {chosen} but only {offered} are offered")]
    Features {
        /// What it chose.
        chosen: Features,
        /// What it could choose from.
        offered: Features,
    },
    /// Other features while a ring depends on the present ones.
    #[error("front end changed the features while queue {queue} is being served")]
    FeaturesInUse {
        /// A queue that is being served.
        queue: QueueIndex,
    },
    /// More descriptors than the session's share.
    #[error(
        "the front end would have this process hold {held} descriptors; a session may hold {max} (see the limit of open files)"
    )]
    Descriptors {
        /// What it holds, and may need for a moment.
        held: usize,
        /// What it may hold.
        max: usize,
    },
    /// A file of the session could not be copied for a successor.
    #[error("cannot copy a descriptor of guest memory")]
    Copy(#[source] std::io::Error),
    /// Protocol feature bits that were not offered.
    #[error("front end chose protocol features {chosen:#x} but only {offered:#x} are offered")]
    ProtocolFeatures {
        /// What it chose.
        chosen: u64,
        /// What it could choose from.
        offered: u64,
    },
    /// A ring of a driver from before virtio 1.0.
    #[error(
        "queue {queue}: driver did not choose VIRTIO_F_VERSION_1; legacy drivers are not served"
    )]
    Legacy {
        /// Which.
        queue: QueueIndex,
    },
    /// A queue that the device does not have.
    #[error("queue {queue} does not exist, the export has {queues} queues")]
    NoSuchQueue {
        /// What was named.
        queue: u32,
        /// How many there are.
        queues: u16,
    },
    /// A ring size that a split ring cannot have.
    #[error("queue {queue}: ring size {size} is no power of two up to 32768")]
    RingSize {
        /// Which.
        queue: QueueIndex,
        /// What was asked for.
        size: u32,
    },
    /// A ring size that a packed ring cannot have.
    #[error("queue {queue}: packed ring size {size} is not from 1 to 32768")]
    PackedRingSize {
        /// Which.
        queue: QueueIndex,
        /// What was asked for.
        size: u32,
    },
    /// A ring position that does not fit.
    #[error("queue {queue}: {base} is not an available index of a split ring")]
    RingBase {
        /// Which.
        queue: QueueIndex,
        /// What was asked for.
        base: u32,
    },
    /// A ring that cannot be served as it was described.
    #[error("queue {queue} cannot be served")]
    Ring {
        /// Which.
        queue: QueueIndex,
        /// Why.
        #[source]
        source: RingError,
    },
    /// A change to a ring that is in use.
    #[error("queue {queue}: {message} while it is being served")]
    RingInUse {
        /// Which.
        queue: QueueIndex,
        /// The message.
        message: &'static str,
    },
    /// A ring without kick descriptor.
    #[error("queue {queue}: front end gives no kick descriptor; polling for kicks is not served")]
    NoKick {
        /// Which.
        queue: QueueIndex,
    },
    /// A descriptor that is no eventfd.
    #[error("queue {queue}: its {descriptor} descriptor is no eventfd")]
    NoEventfd {
        /// Which.
        queue: QueueIndex,
        /// What it is for.
        descriptor: VringFdKind,
    },
    /// A descriptor that could not be made non-blocking.
    #[error("queue {queue}: cannot make its {descriptor} descriptor non-blocking")]
    Mode {
        /// Which.
        queue: QueueIndex,
        /// What it is for.
        descriptor: VringFdKind,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A descriptor that could not be duplicated.
    #[error("queue {queue}: cannot duplicate its {descriptor} descriptor")]
    Duplicate {
        /// Which.
        queue: QueueIndex,
        /// What it is for.
        descriptor: VringFdKind,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A ring that has no place in the in-flight region.
    #[error("queue {queue} cannot be tracked")]
    InflightQueue {
        /// Which.
        queue: QueueIndex,
        /// Why.
        #[source]
        source: InflightFault,
    },
    /// An in-flight region that cannot be had.
    #[error(transparent)]
    Inflight(#[from] InflightError),
    /// Guest memory that cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A descriptor that may keep whoever closes it.
    #[error(
        "the front end sent a descriptor that is no eventfd, no UNIX socket and no memory (memfd, tmpfs, hugetlbfs, dax), so \
         closing it may wait for somebody for ever. For guest memory use memory-backend-memfd,share=on (libvirt: <source \
         type='memfd'/>), or allow files of one file system with --memory-files DIRECTORY"
    )]
    ForeignDescriptor,
    /// A dirty log that cannot be had.
    #[error(transparent)]
    Log(#[from] DirtyLogError),
    /// The device could not follow.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A change of the configuration space.
    #[error(
        "front end writes {bytes} bytes at {offset} of the configuration space, of which only the byte at {} is writable",
        virtio::WRITEBACK_OFFSET
    )]
    ConfigReadOnly {
        /// Where.
        offset: u32,
        /// How many.
        bytes: usize,
    },
    /// A message that belongs to a protocol feature that was not offered.
    #[error("front end sent {message}, which was not offered")]
    NotOffered {
        /// Its name.
        message: &'static str,
    },
}
