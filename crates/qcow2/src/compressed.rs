//! Compressed clusters: where one is, and what it holds.
//!
//! Where it stands: a task that reads a compressed cluster takes its place from the L2 entry
//! ([`place`]), reads those bytes and has them decoded ([`decode`]). The specification is
//! `docs/interop/qcow2.rst`, "Compressed Clusters Descriptor" and `compression_type`.
//!
//! Invariants: a cluster is decoded whole or not at all, and never into more memory than a cluster:
//! the bytes may come from a stranger. Compressed clusters are never written, so what was decoded once
//! stays right for as long as an entry names it.
//! Limits: [`WINDOW_BITS_MAX`] of zstd; [`Decoded`] says how much it keeps.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use block::HostMemory;
use flate2::{Decompress, FlushDecompress};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use crate::header::OFFSET_END;

/// The largest window of zstd, 8 MiB: what RFC 8878 (section 3.1.1.1.2) asks decoders to support. A
/// cluster never needs more than its own 2 MiB.
const WINDOW_BITS_MAX: u32 = 23;

/// The unit in which descriptors count compressed bytes.
const SECTOR: u64 = 512;

/// How the clusters of an image are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// Deflate without a header (RFC 1951); QEMU says zlib.
    Deflate,
    Zstd,
}

/// What is wrong with a compressed cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CompressedError {
    /// Its descriptor has bits that are reserved.
    #[error("the compressed cluster's descriptor {descriptor:#018x} names no place below 2^56")]
    Place { descriptor: u64 },
    /// The bytes are no compressed data, or those of something else than one cluster.
    #[error("the compressed cluster is not {cluster_bytes} bytes compressed by {method:?}")]
    Data { method: Method, cluster_bytes: usize },
}

/// The bytes of the file that may hold the cluster: up to the end of a sector, which may be behind the
/// end of the file. `descriptor` is the L2 entry without its bits 62 and 63.
pub(crate) fn place(descriptor: u64, cluster_bits: u32) -> Result<Range<u64>, CompressedError> {
    let count_bits = cluster_bits - 8;
    let offset_bits = 62 - count_bits;
    let offset = descriptor & ((1 << offset_bits) - 1);
    let sectors = (descriptor >> offset_bits) & ((1 << count_bits) - 1);
    if offset >= OFFSET_END {
        return Err(CompressedError::Place { descriptor });
    }
    // The first sector is the one that the offset is in.
    let end = offset - offset % SECTOR + (sectors + 1) * SECTOR;
    Ok(offset..end)
}

/// Decodes a cluster. Behind the compressed data there may be anything.
pub(crate) fn decode(
    method: Method,
    bytes: &[u8],
    cluster_bytes: usize,
) -> Result<HostMemory, CompressedError> {
    let mut cluster = HostMemory::zeroed(cluster_bytes);
    let is_whole = match method {
        Method::Deflate => inflate(bytes, &mut cluster),
        Method::Zstd => unzstd(bytes, &mut cluster),
    };
    match is_whole {
        Some(()) => Ok(cluster),
        None => Err(CompressedError::Data { method, cluster_bytes }),
    }
}

/// As QEMU: what fills the cluster is good, also if the stream would go on.
fn inflate(bytes: &[u8], cluster: &mut [u8]) -> Option<()> {
    let mut stream = Decompress::new(false);
    stream.decompress(bytes, cluster, FlushDecompress::Finish).ok()?;
    (stream.total_out() == cluster.len() as u64).then_some(())
}

/// As QEMU: the frame ends with the cluster.
fn unzstd(bytes: &[u8], cluster: &mut [u8]) -> Option<()> {
    let mut context = DCtx::create();
    context.set_parameter(DParameter::WindowLogMax(WINDOW_BITS_MAX)).ok()?;
    let count = cluster.len();
    let mut input = InBuffer::around(bytes);
    let mut output = OutBuffer::around(cluster);
    let mut left = 1;
    while output.pos() < count {
        let before = (input.pos(), output.pos());
        left = context.decompress_stream(&mut output, &mut input).ok()?;
        if (input.pos(), output.pos()) == before {
            return None;
        }
    }
    (left == 0).then_some(())
}

/// The clusters that were decoded last, by descriptor: of one lane, for reads that follow each other.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// The one that was used last is in front.
    clusters: VecDeque<(u64, Rc<HostMemory>)>,
    bytes_max: usize,
    count_max: usize,
}

impl Decoded {
    /// Keeps so many bytes and clusters, and always the last cluster.
    pub(crate) fn new(bytes_max: usize, count_max: usize) -> Self {
        Self { clusters: VecDeque::new(), bytes_max, count_max }
    }

    /// The cluster of that descriptor.
    pub(crate) fn get(&mut self, descriptor: u64) -> Option<Rc<HostMemory>> {
        let place = self.clusters.iter().position(|(known, _)| *known == descriptor)?;
        let found = self.clusters.remove(place)?;
        let cluster = Rc::clone(&found.1);
        self.clusters.push_front(found);
        Some(cluster)
    }

    /// Keeps a cluster.
    pub(crate) fn keep(&mut self, descriptor: u64, cluster: Rc<HostMemory>) {
        self.clusters.retain(|(known, _)| *known != descriptor);
        self.clusters.push_front((descriptor, cluster));
        let mut bytes: usize = self.clusters.iter().map(|(_, cluster)| cluster.len()).sum();
        while (bytes > self.bytes_max || self.clusters.len() > self.count_max)
            && self.clusters.len() > 1
        {
            bytes -= self.clusters.pop_back().map_or(0, |(_, cluster)| cluster.len());
        }
    }
}

#[cfg(test)]
mod tests;
