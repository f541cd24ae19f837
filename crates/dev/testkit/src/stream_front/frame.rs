//! The frames on the socket: what a request and an answer look like.

use std::error::Error;
use std::fmt;

use block::{Durability, Extent, FailKind, Operation, Outcome, SourceRequestSlot, Unmap};
use request_path::LogicalUnitIndex;

/// The bytes of the frame of a request; the data of a write follow.
pub const REQUEST_BYTES: usize = 24;

/// The bytes of the frame of an answer; the data of a read follow.
pub const ANSWER_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"RLST";

/// A request, as its frame names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestFrame {
    /// Names it; free again when its answer was sent.
    pub slot: SourceRequestSlot,
    /// Which disk.
    pub unit: LogicalUnitIndex,
    /// What to do.
    pub kind: FrameKind,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub count: u64,
    /// That, once it was checked.
    pub(super) operation: Option<Operation>,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Reads.
    Read,
    /// Writes, durable or not.
    Write(Durability),
    /// Makes durable.
    Flush,
    /// Discards, durable or not.
    Discard(Durability),
    /// Zeroes.
    WriteZeroes(Unmap, Durability),
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// To which request.
    pub slot: SourceRequestSlot,
    /// How it ended.
    pub outcome: Outcome,
    /// How many bytes of data follow.
    pub count: usize,
}

/// What the peer has sent is no request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rubbish {
    /// It does not begin like one.
    Magic([u8; 4]),
    /// Nothing is asked in this way.
    Kind(u8),
    /// There is no such slot, or it has a request.
    Slot(u16),
    /// There is no such disk.
    Unit(u16),
    /// More than there is, or may be asked for at once.
    Count(u64),
}

impl fmt::Display for Rubbish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(bytes) => write!(f, "a frame begins with {bytes:?}"),
            Self::Kind(kind) => write!(f, "a request of kind {kind}"),
            Self::Slot(slot) => write!(f, "a request with slot {slot}"),
            Self::Unit(unit) => write!(f, "a request to disk {unit}"),
            Self::Count(count) => write!(f, "a request of {count} bytes"),
        }
    }
}

impl Error for Rubbish {}

impl FrameKind {
    fn code(self) -> u8 {
        let stable = |durability| u8::from(durability == Durability::Stable);
        match self {
            Self::Read => 0,
            Self::Write(durability) => 2 + stable(durability),
            Self::Flush => 4,
            Self::Discard(durability) => 6 + stable(durability),
            Self::WriteZeroes(Unmap::Keep, durability) => 8 + stable(durability),
            Self::WriteZeroes(Unmap::Allowed, durability) => 10 + stable(durability),
        }
    }

    fn of(code: u8) -> Option<Self> {
        let durability =
            if code.is_multiple_of(2) { Durability::Cached } else { Durability::Stable };
        Some(match code {
            0 => Self::Read,
            2 | 3 => Self::Write(durability),
            4 => Self::Flush,
            6 | 7 => Self::Discard(durability),
            8 | 9 => Self::WriteZeroes(Unmap::Keep, durability),
            10 | 11 => Self::WriteZeroes(Unmap::Allowed, durability),
            _ => return None,
        })
    }

    /// That, done there.
    pub(super) fn operation(self, extent: Extent) -> Operation {
        match self {
            Self::Read => Operation::Read(extent),
            Self::Write(durability) => Operation::Write(extent, durability),
            Self::Flush => Operation::Flush,
            Self::Discard(durability) => Operation::Discard(extent, durability),
            Self::WriteZeroes(unmap, durability) => {
                Operation::WriteZeroes(extent, unmap.into(), durability)
            }
        }
    }
}

impl RequestFrame {
    /// A request of that operation; there is none for a status.
    pub fn of(
        slot: SourceRequestSlot,
        unit: LogicalUnitIndex,
        operation: Operation,
    ) -> Option<Self> {
        let kind = match operation {
            Operation::Read(_) => FrameKind::Read,
            Operation::Write(_, durability) => FrameKind::Write(durability),
            Operation::Flush => FrameKind::Flush,
            Operation::Discard(_, durability) => FrameKind::Discard(durability),
            Operation::WriteZeroes(_, terms, durability) => {
                FrameKind::WriteZeroes(terms.unmap, durability)
            }
            Operation::Status(_) => return None,
        };
        let extent = operation.extent();
        let (offset, count) = extent.map_or((0, 0), |extent| (extent.start().0, extent.count().0));
        Some(Self { slot, unit, kind, offset, count, operation: None })
    }

    /// Its frame.
    pub fn to_bytes(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.slot.0.to_le_bytes());
        bytes[6] = self.kind.code();
        // Units are few here.
        bytes[7] = self.unit.0.to_le_bytes()[0];
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// The request of a frame.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Rubbish> {
        let [m0, m1, m2, m3, s0, s1, kind, unit, rest @ ..] = *bytes;
        let magic = [m0, m1, m2, m3];
        if magic != MAGIC {
            return Err(Rubbish::Magic(magic));
        }
        let (offset, count) = rest.split_at(8);
        let number =
            |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("cut to eight bytes"));
        Ok(Self {
            slot: SourceRequestSlot(u16::from_le_bytes([s0, s1])),
            unit: LogicalUnitIndex(unit.into()),
            kind: FrameKind::of(kind).ok_or(Rubbish::Kind(kind))?,
            offset: number(offset),
            count: number(count),
            operation: None,
        })
    }

    /// How many bytes of data follow its frame.
    pub fn data_bytes(&self) -> usize {
        if matches!(self.kind, FrameKind::Write(_)) { self.bytes() } else { 0 }
    }

    /// How many follow the frame of its answer, if all went well.
    pub fn answer_bytes(&self) -> usize {
        if self.kind == FrameKind::Read { self.bytes() } else { 0 }
    }

    pub(super) fn has_memory(&self) -> bool {
        matches!(self.kind, FrameKind::Read | FrameKind::Write(_))
    }

    fn bytes(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }
}

impl Answer {
    /// Writes its frame.
    pub(super) fn write_to(self, bytes: &mut [u8]) {
        let code = match self.outcome {
            Outcome::Done => 0,
            Outcome::Failed(FailKind::Io) => 1,
            Outcome::Failed(_) => 2,
        };
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.slot.0.to_le_bytes());
        bytes[6..8].copy_from_slice(&[code, 0]);
        bytes[8..].copy_from_slice(&(self.count as u64).to_le_bytes());
    }

    /// The answer of a frame.
    pub fn parse(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, Rubbish> {
        let [m0, m1, m2, m3, s0, s1, code, _, count @ ..] = *bytes;
        let magic = [m0, m1, m2, m3];
        if magic != MAGIC {
            return Err(Rubbish::Magic(magic));
        }
        let outcome = match code {
            0 => Outcome::Done,
            1 => Outcome::Failed(FailKind::Io),
            _ => Outcome::Failed(FailKind::Unsupported),
        };
        let count = u64::from_le_bytes(count);
        let slot = SourceRequestSlot(u16::from_le_bytes([s0, s1]));
        let count = usize::try_from(count).ok().ok_or(Rubbish::Count(count))?;
        Ok(Self { slot, outcome, count })
    }
}
