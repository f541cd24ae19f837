//! Compressed clusters: their bytes are read, decoded, and kept for the next ones who ask.
//!
//! Where it stands in the life of a request: reads are answered with pieces of decoded clusters; writes and
//! zeroings that leave a part of a cluster copy it from there.
//!
//! Invariants: a cluster that several requests of a lane wait for is decoded once. Its bytes stay what they are until all
//! requests are over that have found it in the tables, so what one has decoded is right for all who wait. What a request keeps in
//! memory is at most twice what it asks for, or one cluster more.
//! Threads: belongs to one lane, whose thread decodes, some of a cluster in each of its rounds.
//! Limits: [`DECODED_BYTES_MAX`] and [`DECODED_CLUSTERS_MAX`] of each lane, and the rooms `compressed` and `decoding`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};

use block::{ByteCount, FailKind, HostMemory, Piece, Target};

use crate::compressed::{ClusterCache, DecodeProgress, Decompression, place};
use crate::geometry::GuestCluster;
use crate::image::Image;
use crate::lane_core::LaneCore;
use crate::refcount::HostClusters;

/// How much one lane keeps of what it has decoded, in bytes: two of the largest clusters.
const DECODED_BYTES_MAX: usize = 4 << 20;

/// And how many clusters: they are searched one by one.
const DECODED_CLUSTERS_MAX: usize = 64;

/// What bytes are read by, in the file.
const SECTOR: u64 = 512;

/// Decompresses clusters for one lane, each once, and caches them.
#[derive(Debug)]
pub(crate) struct ClusterDecoder {
    state: RefCell<State>,
}

/// The cached clusters, and those that a task is decoding.
#[derive(Debug)]
struct State {
    decoded: ClusterCache,
    /// Descriptors of those that a task is at, and who waits for it.
    busy: BTreeMap<u64, Vec<Waker>>,
}

/// The right to decode a cluster. Dropped, whoever waits looks again.
struct DecodeGuard<'a> {
    decoder: &'a ClusterDecoder,
    descriptor: u64,
}

impl ClusterDecoder {
    /// With nothing in it.
    pub(crate) fn new() -> Self {
        let decoded = ClusterCache::new(DECODED_BYTES_MAX, DECODED_CLUSTERS_MAX);
        Self { state: RefCell::new(State { decoded, busy: BTreeMap::new() }) }
    }

    /// The cluster, if it is here, or the right to make it.
    async fn find(
        &self,
        descriptor: u64,
        image: &Image,
    ) -> Result<Rc<HostMemory>, DecodeGuard<'_>> {
        poll_fn(|context| {
            let State { decoded, busy } = &mut *self.state.borrow_mut();
            decoded.set_generation(image.compressed_generation());
            if let Some(cluster) = decoded.get(descriptor) {
                return Poll::Ready(Ok(cluster));
            }
            if let Some(waiting) = busy.get_mut(&descriptor) {
                waiting.push(context.waker().clone());
                return Poll::Pending;
            }
            busy.insert(descriptor, Vec::new());
            Poll::Ready(Err(DecodeGuard { decoder: self, descriptor }))
        })
        .await
    }
}

impl DecodeGuard<'_> {
    fn done(self, cluster: &Rc<HostMemory>) {
        let state = &mut *self.decoder.state.borrow_mut();
        state.decoded.keep(self.descriptor, Rc::clone(cluster));
    }
}

impl Drop for DecodeGuard<'_> {
    fn drop(&mut self) {
        let waiting = self.decoder.state.borrow_mut().busy.remove(&self.descriptor);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

/// A compressed cluster of the disk as it was.
pub(super) async fn cluster(
    core: &LaneCore,
    cluster: GuestCluster,
    descriptor: u64,
) -> Result<Rc<HostMemory>, FailKind> {
    let turn = match core.decoder.find(descriptor, &core.image).await {
        Ok(decoded) => return Ok(decoded),
        Err(turn) => turn,
    };
    let image = &core.image;
    let cluster_bytes = image.geometry.cluster_bytes();
    let bytes = place(descriptor, cluster_bytes.ilog2())
        .map_err(|error| image.refuse_compressed(cluster, &error))?;
    // The data may end with the file, in the middle of a sector.
    let start = bytes.start - bytes.start % SECTOR;
    let read = start..bytes.end.min(image.file_bytes()).max(bytes.start);
    let _one = core.limits.compressed.take(1).await;
    let memory = core.file.read(read).await?;
    let skip = usize::try_from(bytes.start - start).expect("less than a sector");
    let count = usize::try_from(cluster_bytes).expect("a cluster fits into memory");
    let decoded = {
        let _turn = core.limits.decoding.take(1).await;
        let wrong = |error| image.refuse_compressed(cluster, &error);
        let mut decoding = Decompression::new(image.compression, count);
        while decoding.go_on(&memory[skip..]).map_err(wrong)? == DecodeProgress::More {
            core.pause().await;
        }
        Rc::new(decoding.finish())
    };
    turn.done(&decoded);
    Ok(decoded)
}

/// A piece that names these bytes of a decoded cluster.
pub(super) fn keep(
    core: &LaneCore,
    cluster: &Rc<HostMemory>,
    skip: u64,
    within: Range<usize>,
) -> Result<Piece, FailKind> {
    let count = within.len();
    let (memory, offset) = if count * 2 >= cluster.len() {
        (Rc::clone(cluster), u32::try_from(within.start).expect("a cluster is small"))
    } else {
        (Rc::new(HostMemory::of(&cluster[within])), 0)
    };
    let memory = core.file.io().keep(memory).map_err(|error| {
        core.image.log.error(format_args!("a compressed cluster cannot be read: {error}"));
        FailKind::Io
    })?;
    let target = Target::Memory { memory, offset };
    Ok(Piece { skip, count: ByteCount(count as u64), target })
}

/// The clusters of the file that a compressed cluster has a reference to each: those of its sectors.
pub(super) fn host_clusters(core: &LaneCore, descriptor: u64) -> HostClusters {
    core.image.geometry.compressed_clusters(descriptor).unwrap_or(0..0)
}
