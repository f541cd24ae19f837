//! What is wrong with an in-flight region.

use crate::MemoryError;

/// An in-flight region could not be created or mapped.
#[derive(Debug, thiserror::Error)]
pub enum InflightError {
    /// A description that no device has.
    #[error(
        "in-flight region for {queues} queues of {queue_size} descriptors: 1 to 256 queues of 1 to 32768 descriptors are possible"
    )]
    Shape {
        /// Queues.
        queues: u16,
        /// Descriptors of each.
        queue_size: u16,
    },
    /// The system gives no memory for it.
    #[error("cannot create an in-flight region of {bytes} bytes")]
    Create {
        /// Its size.
        bytes: u64,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A descriptor that tells nothing about itself.
    #[error("cannot look at the file of the in-flight region")]
    Stat(#[source] std::io::Error),
    /// A region that would fault when touched.
    #[error("in-flight region of {bytes} bytes at byte {offset} of a file of {file_bytes} bytes")]
    BeyondFile {
        /// Its size.
        bytes: u64,
        /// Its place in the file.
        offset: u64,
        /// The size of the file.
        file_bytes: u64,
    },
    /// A region whose fields would not be aligned.
    #[error("in-flight region at byte {offset} of its file is not aligned to 8 bytes")]
    Misaligned {
        /// Its place in the file.
        offset: u64,
    },
    /// The system refused the mapping.
    #[error("cannot map the in-flight region")]
    Map(#[source] MemoryError),
}

impl InflightError {
    /// Whether this process takes no more memory, by a limit of its own.
    pub fn is_want_of_room(&self) -> bool {
        matches!(self, Self::Map(source) if source.is_want_of_room())
    }
}

/// An in-flight region does not fit a ring, or its content is inconsistent. It is part of what every pop may return, so
/// it stays small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InflightFault {
    /// A queue that the region was not made for.
    #[error("queue {queue} is not in the in-flight region, which has {queues} queues")]
    NoSuchQueue {
        /// The queue.
        queue: u16,
        /// How many there are.
        queues: u16,
    },
    /// A ring that is larger than the region was made for.
    #[error("ring of {size} descriptors in an in-flight region for rings of at most {queue_size}")]
    RingTooLarge {
        /// The ring's size.
        size: u16,
        /// What the region is for.
        queue_size: u16,
    },
    /// A region that does not hold all its queues.
    #[error("in-flight region has {bytes} bytes and needs {needed}")]
    TooSmall {
        /// Its size, as far as it was mapped.
        bytes: u32,
        /// What its queues need.
        needed: u32,
    },
    /// A version that nobody has defined.
    #[error("in-flight region has version {version}, only 1 is known")]
    Version {
        /// What it says.
        version: u16,
    },
    /// Features that nobody has defined.
    #[error("in-flight region has features {features:#x}, none is known")]
    Features {
        /// What it says.
        features: u64,
    },
    /// A region that was used for another ring size.
    #[error("in-flight region has {found} entries for each ring and was said to have {entries}")]
    Entries {
        /// What it says.
        found: u16,
        /// What the front end says.
        entries: u16,
    },
    /// The used ring is not where it can be after a crash.
    #[error(
        "in-flight region belongs to used index {noted}, the ring of {size} descriptors is at {found}"
    )]
    Stale {
        /// What the region says.
        noted: u16,
        /// What the ring says.
        found: u16,
        /// The ring's size.
        size: u16,
    },
    /// A marked chain that the ring cannot have.
    #[error("in-flight region marks chain {head} of a ring of {size} descriptors")]
    Head {
        /// The chain.
        head: u16,
        /// The ring's size.
        size: u16,
    },
    /// A link to an entry that is not there, or that was met before.
    #[error("in-flight region has a broken list at entry {entry}")]
    List {
        /// The entry.
        entry: u16,
    },
    /// A position that is not in the ring.
    #[error(
        "in-flight region has used position {slot} (wrap counter {wrap}) of {size} descriptors"
    )]
    Position {
        /// The slot.
        slot: u16,
        /// The wrap counter.
        wrap: u8,
        /// The ring's size.
        size: u16,
    },
    /// Two marked chains of the same name, or one without a possible name.
    #[error("in-flight region marks buffer id {id}, which is in use or beyond the ring")]
    Id {
        /// The buffer id.
        id: u16,
    },
    /// More descriptors in flight than the ring has, or fewer free entries than it may need.
    #[error(
        "in-flight region has {marked} descriptors in flight and {free} free entries for a ring of {size}"
    )]
    Room {
        /// Descriptors of marked chains.
        marked: u32,
        /// Free entries.
        free: u32,
        /// The ring's size.
        size: u16,
    },
    /// The region was gone when it was touched.
    #[error("the front end has taken the in-flight region away (its file was truncated)")]
    Lost,
}
