//! Compressed clusters: where one is, what it holds, and how one is made.
//!
//! Where it stands: a task that reads a compressed cluster takes its place from the L2 entry
//! ([`place`]), reads those bytes and has them decoded ([`Decompression`]). One that writes a cluster has it compressed
//! ([`compress`]), and the entry say where it is ([`descriptor`]). The specification is
//! `docs/interop/qcow2.rst`, "Compressed Clusters Descriptor" and `compression_type`.
//!
//! Invariants: a cluster is decoded whole or not at all, and never into more memory than a cluster:
//! the bytes may come from a stranger. The bytes of a compressed cluster are written once, before an entry names them; they
//! may be those of another one when nobody can find it any more, so who keeps decoded clusters asks whether places were
//! used again ([`ClusterCache::set_generation`]).
//! Limits: [`WINDOW_BITS_MAX`] of zstd; [`ClusterCache`] says how much it keeps.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use block::HostMemory;
use flate2::{Compress, Compression, FlushCompress, Status};
use miniz_oxide::inflate::stream::{InflateState, inflate as inflate_stream};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use crate::header::OFFSET_END;

/// The largest window of zstd, 8 MiB: what RFC 8878 (section 3.1.1.1.2) asks decoders to support. A
/// cluster never needs more than its own 2 MiB.
const WINDOW_BITS_MAX: u32 = 23;

/// The window of deflate, 4 KiB: all that a reader has to remember, and what QEMU's has.
const DEFLATE_WINDOW_BITS: u8 = 12;

/// How hard zstd tries: its default, as in QEMU.
const ZSTD_LEVEL: i32 = 3;

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

/// The same the other way round: the descriptor of so many bytes, fewer than a cluster has, that begin there. None if they begin
/// where no descriptor reaches.
pub(crate) fn descriptor(offset: u64, bytes: u64, cluster_bits: u32) -> Option<u64> {
    let offset_bits = 62 - (cluster_bits - 8);
    let sectors = (offset + bytes - 1) / SECTOR - offset / SECTOR;
    let is_reached = offset < OFFSET_END && offset >> offset_bits == 0;
    is_reached.then_some(sectors << offset_bits | offset)
}

/// A whole cluster in fewer bytes than it has; none if it does not shrink.
pub(crate) fn compress(method: CompressionMethod, cluster: &[u8]) -> Option<Vec<u8>> {
    let mut compressed = vec![0; cluster.len() - 1];
    let count = match method {
        CompressionMethod::Deflate => {
            let level = Compression::default();
            let mut stream = Compress::new_with_window_bits(level, false, DEFLATE_WINDOW_BITS);
            let status = stream.compress(cluster, &mut compressed, FlushCompress::Finish).ok()?;
            let count = usize::try_from(stream.total_out()).expect("in a buffer");
            (status == Status::StreamEnd).then_some(count)?
        }
        CompressionMethod::Zstd => {
            zstd_safe::compress(&mut compressed[..], cluster, ZSTD_LEVEL).ok()?
        }
    };
    compressed.truncate(count);
    Some(compressed)
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

/// The state of the decompression library: of deflate the one that is written in Rust, since the bytes may come from a
/// stranger.
enum Stream {
    Deflate(Box<InflateState>),
    /// None if there is no memory for it.
    Zstd(Option<DCtx<'static>>),
}

impl Decompression {
    /// Of a cluster with so many bytes.
    pub(crate) fn new(method: CompressionMethod, cluster_bytes: usize) -> Self {
        let stream = match method {
            CompressionMethod::Deflate => Stream::Deflate(InflateState::new_boxed(DataFormat::Raw)),
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

fn inflate(stream: &mut InflateState, input: &[u8], output: &mut [u8]) -> Option<DecodeCallResult> {
    let step = inflate_stream(stream, input, output, MZFlush::None);
    let is_end = match step.status {
        Ok(MZStatus::StreamEnd) => true,
        // Nothing more can be done with this input and this output.
        Ok(MZStatus::Ok) | Err(MZError::Buf) => false,
        Ok(MZStatus::NeedDict) | Err(_) => return None,
    };
    Some(DecodeCallResult { read: step.bytes_consumed, decoded: step.bytes_written, is_end })
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
    /// How often places had been used again when these were decoded.
    generation: u64,
    bytes_max: usize,
    count_max: usize,
}

impl ClusterCache {
    /// Keeps so many bytes and clusters, and always the last cluster.
    pub(crate) fn new(bytes_max: usize, count_max: usize) -> Self {
        Self { clusters: VecDeque::new(), generation: 0, bytes_max, count_max }
    }

    /// Places were used again so often by now: forgets all if that is more than before. Call it after looking at the tables.
    pub(crate) fn set_generation(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.clusters.clear();
        }
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
