//! Compressed clusters: where one is, and what it holds.
//!
//! Where it stands: a task that reads a compressed cluster takes its place from the L2 entry
//! ([`place`]), reads those bytes and has them decoded ([`Decompression`]). The specification is
//! `docs/interop/qcow2.rst`, "Compressed Clusters Descriptor" and `compression_type`.
//!
//! Invariants: a cluster is decoded whole or not at all, and never into more memory than a cluster:
//! the bytes may come from a stranger. Compressed clusters are never written, so what was decoded once
//! stays right for as long as an entry names it.
//! Limits: [`WINDOW_BITS_MAX`] of zstd; [`ClusterCache`] says how much it keeps.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use block::HostMemory;
use flate2::{Decompress, FlushDecompress, Status};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use crate::header::OFFSET_END;

/// The largest window of zstd, 8 MiB: what RFC 8878 (section 3.1.1.1.2) asks decoders to support. A
/// cluster never needs more than its own 2 MiB.
const WINDOW_BITS_MAX: u32 = 23;

/// How much is decoded in one go, and how much is read for that: an iothread's other requests wait so long.
const STEP_BYTES: usize = 128 << 10;

/// The unit in which descriptors count compressed bytes.
const SECTOR: u64 = 512;

/// How the clusters of an image are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionMethod {
    /// Deflate without a header (RFC 1951); QEMU says zlib.
    Deflate,
    /// Zstandard; only version 3 has it.
    Zstd,
}

/// Why a compressed cluster cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CompressedError {
    /// Its descriptor has bits that are reserved.
    #[error("the compressed cluster's descriptor {descriptor:#018x} names no place below 2^56")]
    Place { descriptor: u64 },
    /// The bytes are no compressed data, or those of something else than one cluster.
    #[error("the compressed cluster is not {cluster_bytes} bytes compressed by {method:?}")]
    Data { method: CompressionMethod, cluster_bytes: usize },
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

/// The decompression of one cluster, some bytes at a time. Behind the compressed data there may be anything.
pub(crate) struct Decompression {
    method: CompressionMethod,
    stream: Stream,
    cluster: HostMemory,
    /// How much was read and how much is decoded.
    read: usize,
    done: usize,
}

/// Whether a cluster is fully decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodeProgress {
    More,
    Whole,
}

/// The state of the decompression library.
enum Stream {
    Deflate(Decompress),
    /// None if there is no memory for it.
    Zstd(Option<DCtx<'static>>),
}

impl Decompression {
    /// Of a cluster with so many bytes.
    pub(crate) fn new(method: CompressionMethod, cluster_bytes: usize) -> Self {
        let stream = match method {
            CompressionMethod::Deflate => Stream::Deflate(Decompress::new(false)),
            CompressionMethod::Zstd => Stream::Zstd(zstd()),
        };
        Self { method, stream, cluster: HostMemory::zeroed(cluster_bytes), read: 0, done: 0 }
    }

    /// Decodes some more of the compressed bytes, which are the same in each call.
    pub(crate) fn go_on(&mut self, bytes: &[u8]) -> Result<DecodeProgress, CompressedError> {
        let cluster_bytes = self.cluster.len();
        let input = &bytes[self.read..bytes.len().min(self.read + STEP_BYTES)];
        let output = &mut self.cluster[self.done..cluster_bytes.min(self.done + STEP_BYTES)];
        let step = match &mut self.stream {
            Stream::Deflate(stream) => inflate(stream, input, output),
            Stream::Zstd(context) => context.as_mut().and_then(|it| unzstd(it, input, output)),
        };
        let wrong = CompressedError::Data { method: self.method, cluster_bytes };
        let Some(DecodeCallResult { read, decoded, is_end }) = step else { return Err(wrong) };
        (self.read, self.done) = (self.read + read, self.done + decoded);
        let is_whole = self.done == cluster_bytes;
        match self.method {
            // As QEMU: what fills the cluster is good, also if the stream would go on.
            CompressionMethod::Deflate if is_whole => return Ok(DecodeProgress::Whole),
            // As QEMU: the frame ends with the cluster.
            CompressionMethod::Zstd if is_whole && is_end => return Ok(DecodeProgress::Whole),
            CompressionMethod::Deflate | CompressionMethod::Zstd => {}
        }
        // Another frame may follow, but no other stream.
        let is_over =
            is_end && self.method == CompressionMethod::Deflate || read == 0 && decoded == 0;
        if is_over { Err(wrong) } else { Ok(DecodeProgress::More) }
    }

    /// The cluster, when it is whole.
    pub(crate) fn finish(self) -> HostMemory {
        self.cluster
    }
}

/// What one call of a decompression library has read and written.
struct DecodeCallResult {
    read: usize,
    decoded: usize,
    /// Whether the compressed data end here.
    is_end: bool,
}

fn inflate(stream: &mut Decompress, input: &[u8], output: &mut [u8]) -> Option<DecodeCallResult> {
    let before = (stream.total_in(), stream.total_out());
    let status = stream.decompress(input, output, FlushDecompress::None).ok()?;
    let count = |after: u64, before: u64| usize::try_from(after - before).expect("in a buffer");
    Some(DecodeCallResult {
        read: count(stream.total_in(), before.0),
        decoded: count(stream.total_out(), before.1),
        is_end: status == Status::StreamEnd,
    })
}

fn zstd() -> Option<DCtx<'static>> {
    let mut context = DCtx::try_create()?;
    context.set_parameter(DParameter::WindowLogMax(WINDOW_BITS_MAX)).ok()?;
    Some(context)
}

fn unzstd(context: &mut DCtx<'_>, input: &[u8], output: &mut [u8]) -> Option<DecodeCallResult> {
    let mut input = InBuffer::around(input);
    let mut output = OutBuffer::around(output);
    let left = context.decompress_stream(&mut output, &mut input).ok()?;
    Some(DecodeCallResult { read: input.pos(), decoded: output.pos(), is_end: left == 0 })
}

/// A cache of decompressed clusters, by descriptor: the last ones of one lane.
#[derive(Debug)]
pub(crate) struct ClusterCache {
    /// The one that was used last is in front.
    clusters: VecDeque<(u64, Rc<HostMemory>)>,
    bytes_max: usize,
    count_max: usize,
}

impl ClusterCache {
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
