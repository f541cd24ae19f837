//! From a chain to a virtio-blk request (virtio 1.2, 5.2.6).
//!
//! Where it stands in the life of a request: `virtio_blk` calls [`decode`] for every popped
//! chain and gives the operation to the lane.
//!
//! Invariants: an operation that leaves here is inside the disk, allowed by the rules and of whole
//! sectors; header and range are copied before they are checked. How the driver cuts a request
//! into descriptors makes no difference (virtio 1.2, 2.7.4).
//! Limits: [`DATA_BYTES_MAX`] bytes of data, [`RANGE_SECTORS_MAX`] sectors to discard or zero.

mod status;

use block::{
    Access, Buffers, ByteCount, DiskSize, Durability, Extent, FailKind, Operation, SECTOR_BYTES,
    Sector, Segment, ZeroTerms,
};

use crate::{Chain, RANGE_SECTORS_MAX};

pub use status::{status_byte, write_status};

/// The most data one request may carry, QEMU's bound: what fits in a signed 32-bit count.
pub const DATA_BYTES_MAX: u64 = (1 << 31) - SECTOR_BYTES;

/// Bytes of the answer to VIRTIO_BLK_T_GET_ID.
pub const ID_BYTES: usize = 20;

const HEADER_BYTES: usize = 16;
const RANGE_BYTES: usize = 16;
/// VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP.
const FLAG_UNMAP: u32 = 1;

const TYPE_IN: u32 = 0;
const TYPE_OUT: u32 = 1;
const TYPE_FLUSH: u32 = 4;
const TYPE_GET_ID: u32 = 8;
const TYPE_DISCARD: u32 = 11;
const TYPE_WRITE_ZEROES: u32 = 13;

/// A decoded request. Its data stay in the chain: after [`decode`], `writable` holds exactly what
/// a read or GET_ID fills, `readable` exactly what a write stores.
#[derive(Debug, Clone, Copy)]
pub struct BlkRequest {
    /// What the guest has asked for, in its own words.
    pub header: BlkHeader,
    /// What to do.
    pub kind: BlkRequestKind,
    /// Where the status byte goes.
    pub status: Segment,
}

/// What the header of a request says. Anything may be in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlkHeader {
    /// The number of the request's type, VIRTIO_BLK_T_*.
    pub request_type: u32,
    /// Where it begins, of a read or a write.
    pub sector: Sector,
}

/// What a virtio-blk request asks for: an operation, GET_ID, or something that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlkRequestKind {
    /// An operation on the disk.
    Disk(Operation),
    /// The disk's name, see [`write_id`].
    GetId,
    /// Nothing that can be done; only the status is to be written.
    Refused(FailKind),
}

/// What requests are checked against: size, read-only, offered features, durability.
#[derive(Debug, Clone, Copy)]
pub struct BlkRules {
    /// The size of the disk.
    pub size: DiskSize,
    /// Whether it takes changes.
    pub access: Access,
    /// When changes must survive a power loss.
    pub durability: Durability,
    /// Whether discards were offered.
    pub discard: bool,
    /// Whether write-zeroes were offered.
    pub write_zeroes: bool,
}

/// A request that cannot even be failed: no room for status byte or header. It breaks the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedRequest {
    /// There is no byte for the status.
    #[error("request without a writable byte for its status")]
    Status,
    /// There is no room for a header.
    #[error("request with a header of {bytes} instead of {HEADER_BYTES} bytes")]
    Header {
        /// The readable bytes.
        bytes: usize,
    },
}

/// Decodes a chain; takes the status byte off its writable and the header off its readable memory.
// Returned through memory, and read back in other parts than it was written, it waits for the stores: 4 ns.
#[inline(always)]
pub fn decode(chain: &mut Chain, rules: &BlkRules) -> Result<BlkRequest, MalformedRequest> {
    let status = chain.writable.take_last(1).ok_or(MalformedRequest::Status)?;
    let header: [u8; HEADER_BYTES] = take_first(&mut chain.readable)
        .ok_or(MalformedRequest::Header { bytes: chain.readable.count() })?;
    let [t0, t1, t2, t3, _, _, _, _, s0, s1, s2, s3, s4, s5, s6, s7] = header;
    let sector = Sector(u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]));
    let header = BlkHeader { request_type: u32::from_le_bytes([t0, t1, t2, t3]), sector };
    let kind = match header.request_type {
        TYPE_IN => rules.data(sector, &chain.writable).map(Operation::Read),
        TYPE_OUT => rules.write(sector, &chain.readable),
        TYPE_FLUSH => Ok(Operation::Flush),
        TYPE_GET_ID => return Ok(BlkRequest { header, kind: BlkRequestKind::GetId, status }),
        TYPE_DISCARD => rules.discard(&mut chain.readable),
        TYPE_WRITE_ZEROES => rules.write_zeroes(&mut chain.readable),
        _ => Err(FailKind::Unsupported),
    };
    let kind = match kind {
        Ok(operation) => BlkRequestKind::Disk(operation),
        Err(kind) => BlkRequestKind::Refused(kind),
    };
    Ok(BlkRequest { header, kind, status })
}

/// Answers GET_ID: the name, filled up with zeroes to 20 bytes; what fits in the guest's memory.
/// A name of 20 bytes has no zero at its end (virtio 1.2, 5.2.6.1). Returns the bytes written.
pub fn write_id(writable: &mut Buffers, id: &str) -> usize {
    let mut bytes = [0; ID_BYTES];
    let count = id.len().min(ID_BYTES);
    bytes[..count].copy_from_slice(&id.as_bytes()[..count]);
    writable.copy_from(0, &bytes)
}

impl BlkRules {
    fn data(&self, sector: Sector, buffers: &Buffers) -> Result<Extent, FailKind> {
        let count = buffers.count() as u64;
        if !count.is_multiple_of(SECTOR_BYTES) || count > DATA_BYTES_MAX {
            return Err(FailKind::Malformed);
        }
        self.extent(sector, count)
    }

    fn write(&self, sector: Sector, buffers: &Buffers) -> Result<Operation, FailKind> {
        self.refuse_read_only()?;
        let extent = self.data(sector, buffers)?;
        Ok(Operation::Write(extent, self.durability))
    }

    fn discard(&self, buffers: &mut Buffers) -> Result<Operation, FailKind> {
        match self.range(self.discard, buffers)? {
            (extent, 0) => Ok(Operation::Discard(extent, self.durability)),
            // Unmap is not for discards, and unknown flags are for nobody (virtio 1.2, 5.2.6.2).
            (_, _flags) => Err(FailKind::Unsupported),
        }
    }

    fn write_zeroes(&self, buffers: &mut Buffers) -> Result<Operation, FailKind> {
        let (extent, terms) = match self.range(self.write_zeroes, buffers)? {
            (extent, 0) => (extent, ZeroTerms::KEEP),
            (extent, FLAG_UNMAP) => (extent, ZeroTerms::UNMAP),
            (_, _flags) => return Err(FailKind::Unsupported),
        };
        Ok(Operation::WriteZeroes(extent, terms, self.durability))
    }

    /// What a discard or write-zeroes request changes, and its flags (struct virtio_blk_discard_write_zeroes). One
    /// range is offered (`max_discard_seg`, `max_write_zeroes_seg`), so more are unsupported and less is malformed,
    /// as qemu-storage-daemon answers.
    fn range(&self, is_offered: bool, buffers: &mut Buffers) -> Result<(Extent, u32), FailKind> {
        self.refuse_read_only()?;
        if !is_offered || buffers.count() > RANGE_BYTES {
            return Err(FailKind::Unsupported);
        }
        let bytes: [u8; RANGE_BYTES] = take_first(buffers).ok_or(FailKind::Malformed)?;
        let [sector @ .., n0, n1, n2, n3, f0, f1, f2, f3] = bytes;
        let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
        if sectors > RANGE_SECTORS_MAX {
            return Err(FailKind::Malformed);
        }
        let sector = Sector(u64::from_le_bytes(sector));
        let extent = self.extent(sector, u64::from(sectors) * SECTOR_BYTES)?;
        Ok((extent, u32::from_le_bytes([f0, f1, f2, f3])))
    }

    fn extent(&self, sector: Sector, count: u64) -> Result<Extent, FailKind> {
        let start = sector.to_offset().ok_or(FailKind::OutOfRange)?;
        self.size.check(start, ByteCount(count)).map_err(|_beyond| FailKind::OutOfRange)
    }

    fn refuse_read_only(&self) -> Result<(), FailKind> {
        match self.access {
            Access::ReadOnly => Err(FailKind::ReadOnly),
            Access::ReadWrite => Ok(()),
        }
    }
}

/// Copies the first bytes and drops them; `None` if there are fewer.
fn take_first<const N: usize>(buffers: &mut Buffers) -> Option<[u8; N]> {
    // What is checked must be what is used: the compiler may not read the guest's memory again.
    buffers.take_first().map(std::hint::black_box)
}
