//! What a guest or client may ask of a disk, and how it ends.
//!
//! Invariants: each operation carries exactly what it needs. Memory travels beside it, in
//! [`crate::Buffers`], because only reads, writes and status have any.

use crate::Extent;

/// The number of a request among those that one source has in flight: the head of a virtio chain, or its counterpart in
/// another protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceRequestSlot(pub u16);

/// One request to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffers from the extent.
    Read(Extent),
    /// Say what the bytes of the extent are, or of its beginning, in the buffers ([`crate::StatusRecord`]).
    Status(Extent),
    /// Store the buffers in the extent.
    Write(Extent, Durability),
    /// The guest no longer needs the extent: a hint. Its content is undefined afterwards.
    Discard(Extent, Durability),
    /// The extent reads as zeroes afterwards.
    WriteZeroes(Extent, ZeroTerms, Durability),
    /// All writes completed before this request was made survive a power loss.
    Flush,
}

impl Operation {
    /// Whether the operation may change what a later read returns.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Read(_) | Self::Status(_) | Self::Flush => false,
            Self::Write(..) | Self::Discard(..) | Self::WriteZeroes(..) => true,
        }
    }

    /// Whether it is asked for only if that is fast: that it is not is an answer, and no failure.
    pub fn is_only_if_fast(&self) -> bool {
        matches!(self, Self::WriteZeroes(_, ZeroTerms { cost: ZeroCost::Fast, .. }, _))
    }

    /// The bytes the operation is about; `None` for a flush, which is about all.
    pub fn extent(&self) -> Option<Extent> {
        match *self {
            Self::Read(extent)
            | Self::Status(extent)
            | Self::Write(extent, _)
            | Self::Discard(extent, _)
            | Self::WriteZeroes(extent, _, _) => Some(extent),
            Self::Flush => None,
        }
    }

    /// The same asked of other bytes. A flush is about all and stays as it is.
    #[must_use]
    pub fn on(self, extent: Extent) -> Self {
        match self {
            Self::Read(_) => Self::Read(extent),
            Self::Status(_) => Self::Status(extent),
            Self::Write(_, durability) => Self::Write(extent, durability),
            Self::Discard(_, durability) => Self::Discard(extent, durability),
            Self::WriteZeroes(_, terms, durability) => Self::WriteZeroes(extent, terms, durability),
            Self::Flush => Self::Flush,
        }
    }

    /// When a change must survive a power loss. What changes nothing has nothing to keep.
    pub fn durability(&self) -> Durability {
        match *self {
            Self::Read(_) | Self::Status(_) | Self::Flush => Durability::Cached,
            Self::Write(_, durability)
            | Self::Discard(_, durability)
            | Self::WriteZeroes(_, _, durability) => durability,
        }
    }

    /// The operation's name in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Read(_) => "read",
            Self::Status(_) => "block status",
            Self::Write(..) => "write",
            Self::Discard(..) => "discard",
            Self::WriteZeroes(..) => "write-zeroes",
            Self::Flush => "flush",
        }
    }
}

/// When a change must survive a power loss; the stronger is the larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// With the next flush (write-back).
    Cached,
    /// Before the request completes (write-through).
    Stable,
}

/// Whether zeroed space may be given back to the host; who allows it is the larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unmap {
    /// The space stays allocated.
    Keep,
    /// The space may be deallocated if it still reads as zeroes.
    Allowed,
}

/// What zeroes may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZeroCost {
    /// Bytes are written where the storage cannot make zeroes by itself.
    Any,
    /// It has to be faster than a write of as many bytes. Otherwise the request fails as [`FailKind::Unsupported`], soon;
    /// a part of the extent may have been zeroed.
    Fast,
}

/// On what terms an extent becomes zeroes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZeroTerms {
    /// What becomes of the space.
    pub unmap: Unmap,
    /// What it may cost.
    pub cost: ZeroCost,
}

impl ZeroTerms {
    /// Whatever it costs; the space stays.
    pub const KEEP: Self = Self { unmap: Unmap::Keep, cost: ZeroCost::Any };

    /// Whatever it costs; the space may be given back.
    pub const UNMAP: Self = Self { unmap: Unmap::Allowed, cost: ZeroCost::Any };

    /// The same, but only if it is fast.
    #[must_use]
    pub const fn only_if_fast(self) -> Self {
        Self { cost: ZeroCost::Fast, ..self }
    }

    /// The same, whatever it costs.
    #[must_use]
    pub const fn at_any_cost(self) -> Self {
        Self { cost: ZeroCost::Any, ..self }
    }

    /// The same; the space stays.
    #[must_use]
    pub const fn keeping_space(self) -> Self {
        Self { unmap: Unmap::Keep, ..self }
    }

    /// What satisfies both.
    #[must_use]
    pub fn both(self, other: Self) -> Self {
        Self { unmap: self.unmap.min(other.unmap), cost: self.cost.max(other.cost) }
    }
}

impl From<Unmap> for ZeroTerms {
    fn from(unmap: Unmap) -> Self {
        Self { unmap, cost: ZeroCost::Any }
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "an outcome that is dropped leaves its guest waiting for ever"]
pub enum Outcome {
    /// It was carried out completely.
    Done,
    /// It was not carried out, or only in part.
    Failed(FailKind),
}

/// Why a request failed, for code to branch on. Each protocol maps it to its own codes in one
/// function; the sentence for the operator is written where the cause is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailKind {
    /// The host could not read or write.
    Io,
    /// The host has no space left.
    NoSpace,
    /// A change was asked of something read-only.
    ReadOnly,
    /// The request reaches beyond the end of the disk.
    OutOfRange,
    /// The request is not of a known form.
    Malformed,
    /// The request is of a known form that this disk does not serve.
    Unsupported,
    /// Whoever asked for it did not want it any more; a change may have been made in part.
    Cancelled,
}
