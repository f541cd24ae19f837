//! What is wrong with a ring. Each of these breaks it: the guest can no longer be told what
//! became of its requests, so the ring is served no further.

use std::fmt;
use std::ptr::NonNull;

use super::{RING_SIZE_MAX, RingBase, RingLayout, SEGMENTS_MAX};
use crate::{GuestAddress, GuestMemory, InflightFault, UnmappedAddress};

/// One of the three parts of a ring (virtio 1.2, 2.7 and 2.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// The descriptor table.
    Descriptors,
    /// The available ring, written by the driver.
    Available,
    /// The used ring, written by the device.
    Used,
    /// The descriptors of a packed ring, written by both.
    DescriptorRing,
    /// When the driver of a packed ring wants interrupts, written by the driver.
    DriverEvents,
    /// When the device of a packed ring wants kicks, written by the device.
    DeviceEvents,
}

impl Area {
    /// Finds this part of a ring at a front-end address.
    pub(crate) fn find(
        self,
        memory: &GuestMemory,
        address: u64,
        bytes: u64,
        alignment: usize,
    ) -> Result<NonNull<u8>, RingError> {
        let area = self;
        let base = memory.at_user_address(address, bytes).ok_or(RingError::AreaNotMapped {
            area,
            address,
            bytes,
        })?;
        if base.addr().get().is_multiple_of(alignment) {
            Ok(base)
        } else {
            Err(RingError::AreaMisaligned { area, address, alignment })
        }
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptors => "descriptor table",
            Self::Available => "available ring",
            Self::Used => "used ring",
            Self::DescriptorRing => "descriptor ring",
            Self::DriverEvents => "driver event suppression",
            Self::DeviceEvents => "device event suppression",
        })
    }
}

/// Why a ring cannot be served (any further).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// A size that a split ring cannot have.
    #[error("ring size {size} is not a power of two from 1 to {RING_SIZE_MAX}")]
    Size {
        /// The size asked for.
        size: u16,
    },
    /// A size that a packed ring cannot have.
    #[error("packed ring size {size} is not from 1 to {RING_SIZE_MAX}")]
    PackedSize {
        /// The size asked for.
        size: u16,
    },
    /// A base that names no place in the ring, or more descriptors in flight than there are.
    #[error("base {base} is no position in a {layout} ring of {size} descriptors")]
    Base {
        /// What was asked for.
        base: RingBase,
        /// How the ring lies in memory.
        layout: RingLayout,
        /// The ring size.
        size: u16,
    },
    /// A part of the ring lies outside guest memory, or crosses a border of regions.
    #[error("the {area} of {bytes} bytes at front-end address {address:#x} is not in guest memory")]
    AreaNotMapped {
        /// Which part.
        area: Area,
        /// Where it should be.
        address: u64,
        /// Its size.
        bytes: u64,
    },
    /// A part of the ring is not aligned as virtio 1.2, 2.7 and 2.8.10.1 ask.
    #[error("the {area} at front-end address {address:#x} is not aligned to {alignment} bytes")]
    AreaMisaligned {
        /// Which part.
        area: Area,
        /// Where it is.
        address: u64,
        /// What it needs.
        alignment: usize,
    },
    /// Memory was gone when it was touched. What was read is not what the driver wrote.
    #[error("the front end has taken guest memory away (its file was truncated)")]
    MemoryLost,
    /// The in-flight region cannot be used, or tells nothing sensible.
    #[error(transparent)]
    Inflight(#[from] InflightFault),
    /// The dirty log has no bit for something that the device may write.
    #[error("a dirty log of {bytes} bytes does not reach to guest address {last}")]
    LogTooSmall {
        /// The size of the log.
        bytes: u64,
        /// The last address that it should have a bit for.
        last: GuestAddress,
    },
    /// The dirty log was gone when a mark was set: a page could be missing after a migration.
    #[error("the front end has taken the dirty log away (its file was truncated)")]
    LogLost,
    /// The driver claims more available chains than the ring has room for.
    #[error("available index went from {next} to {found}, more than the ring size {size}")]
    AvailableJump {
        /// The next chain to be served.
        next: u16,
        /// What the driver wrote.
        found: u16,
        /// The ring size.
        size: u16,
    },
    /// A chain starts at a descriptor that does not exist.
    #[error("descriptor head {head} is beyond the ring size {size}")]
    HeadOutOfRange {
        /// The head.
        head: u16,
        /// The ring size.
        size: u16,
    },
    /// A chain was made available a second time before it was returned.
    #[error("descriptor head {head} was made available while its request is in flight")]
    HeadInFlight {
        /// The head.
        head: u16,
    },
    /// A packed chain has a buffer id that no slot can be kept for.
    #[error("buffer id {id} is beyond the ring size {size}")]
    IdOutOfRange {
        /// The buffer id.
        id: u16,
        /// The ring size.
        size: u16,
    },
    /// A buffer id was used a second time before its chain was returned.
    #[error("buffer id {id} was made available while its request is in flight")]
    IdInFlight {
        /// The buffer id.
        id: u16,
    },
    /// A chain is not taken.
    #[error("chain {head}{problem}")]
    Chain {
        /// Its head, or in a packed ring where it starts.
        head: u16,
        /// What is wrong with it.
        problem: ChainProblem,
    },
}

/// What is wrong with a chain: the rest of a sentence about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChainProblem {
    /// A packed chain would use descriptors that the driver cannot have made available.
    #[error(" is longer than the {free} descriptors of the ring that are not in use")]
    TooLong {
        /// How many those are.
        free: u16,
    },
    /// A descriptor lies beyond its table.
    #[error(": descriptor {index} is beyond its table of {entries}")]
    DescriptorOutOfRange {
        /// The descriptor.
        index: u16,
        /// The size of its table.
        entries: u16,
    },
    /// It visits more descriptors than its table has.
    #[error(" loops: it is longer than its table of {entries} descriptors")]
    Loop {
        /// The size of the table.
        entries: u16,
    },
    /// It has more segments than any request needs.
    #[error(" has more than {SEGMENTS_MAX} segments")]
    TooManySegments,
    /// A descriptor has no memory.
    #[error(": buffer at guest address {address:#x} is empty")]
    EmptyBuffer {
        /// What it says of where it is.
        address: u64,
    },
    /// A buffer, or an indirect table, is not in guest memory.
    #[error(": {0}")]
    NotMapped(#[from] UnmappedAddress),
    /// What the device may only read follows what it may write (virtio 1.2, 2.7.4.2).
    #[error(": a readable descriptor follows a writable one")]
    ReadableAfterWritable,
    /// There is an indirect table, but none was agreed on.
    #[error(": indirect descriptor, but indirect descriptors were not negotiated")]
    IndirectNotNegotiated,
    /// An indirect table leads to another (virtio 1.2, 2.7.5.3.1).
    #[error(": indirect table inside an indirect table")]
    IndirectNested,
    /// The chain goes on behind an indirect descriptor (virtio 1.2, 2.7.5.3.1).
    #[error(": indirect descriptor with a next descriptor")]
    IndirectWithNext,
    /// A packed chain has an indirect descriptor behind plain ones (virtio 1.2, 2.8.8).
    #[error(": indirect descriptor behind a plain one")]
    IndirectMixed,
    /// An indirect table has a size that no table has.
    #[error(
        ": indirect table of {bytes} bytes is not 1 to {RING_SIZE_MAX} descriptors of 16 bytes"
    )]
    IndirectLength {
        /// Its size.
        bytes: u32,
    },
}
