//! Writes to clusters that have no place of their own yet.
//!
//! Where it stands in the life of a request: clusters are claimed and taken, what the request leaves of
//! them is copied, the request is carried out there, the tables name them; then it is over.
//!
//! Invariants: if what was there before is not zeroes, the new bytes are durable before the tables name
//! them: a lost one would uncover zeroes. If it was zeroes, a lost one is what was there.

use std::ops::Range;
use std::rc::Rc;

use block::{Durability, Extent, FailKind, HostMemory, Operation, Target};
use tasks::{RequestParts, extent};

use super::compressed;
use super::read::in_memory;
use crate::geometry::{
    Geometry, GuestCluster, HostClusterReference, L2Entry, RawL2Entry, StandardCluster, Subcluster,
    bits_of,
};
use crate::lane_core::{LaneCore, ServedRequest};
use crate::refcount::HostClusters;
use crate::table_reader::with_zeroes;

/// How much is copied at once.
const COPY_BYTES: u64 = 64 << 10;

/// A write of more clusters is carried out in rounds of so many.
const ROUND_CLUSTERS: u64 = 256;

/// Serves a write.
pub(crate) async fn write(
    core: Rc<LaneCore>,
    request: ServedRequest,
    bytes: Extent,
    durability: Durability,
) {
    // What must be durable is made so at the end.
    let cached =
        ServedRequest { operation: Operation::Write(bytes, Durability::Cached), ..request };
    let round_bytes = ROUND_CLUSTERS * core.image.geometry.cluster_bytes();
    let Range { start, end } = bytes.bytes();
    if end - start <= round_bytes {
        return write_at_once(core, request, cached, start..end, durability).await;
    }
    Box::pin(write_in_rounds(&core, request, cached, start..end)).await;
}

async fn write_in_rounds(
    core: &LaneCore,
    request: ServedRequest,
    cached: ServedRequest,
    bytes: Range<u64>,
) {
    let round_bytes = ROUND_CLUSTERS * core.image.geometry.cluster_bytes();
    let (mut at, mut result) = (bytes.start, Ok(()));
    while at < bytes.end && result.is_ok() {
        // Up to a border between clusters.
        let next = bytes.end.min((at + round_bytes) / round_bytes * round_bytes);
        result = write_round(core, cached, at..next, at - bytes.start).await;
        core.pause().await;
        at = next;
    }
    finish(core, request, result).await;
}

/// Carries out a part of a write, which begins there in it.
pub(super) async fn write_round(
    core: &LaneCore,
    cached: ServedRequest,
    part: Range<u64>,
    skip: u64,
) -> Result<(), FailKind> {
    let _claimed = core.image.claim(clusters_of(core, &part)).await;
    WriteAllocation::prepare(core, part).await?.carry_out(core, cached, skip).await
}

/// Serves a write of few clusters.
async fn write_at_once(
    core: Rc<LaneCore>,
    request: ServedRequest,
    cached: ServedRequest,
    bytes: Range<u64>,
    durability: Durability,
) {
    let claimed = core.image.claim(clusters_of(&core, &bytes)).await;
    let result = match WriteAllocation::prepare(&core, bytes).await {
        Ok(change)
            if change.is_in_place()
                && (durability == Durability::Cached || core.image.table_writes_are_durable()) =>
        {
            drop(claimed);
            return core.answer(request, change.parts(&core, request.operation, 0)).await;
        }
        Ok(mut change) => change.carry_out(&core, cached, 0).await,
        Err(kind) => Err(kind),
    };
    drop(claimed);
    finish(&core, request, result).await;
}

/// The clusters of the disk that bytes are in.
pub(super) fn clusters_of(core: &LaneCore, bytes: &Range<u64>) -> Range<u64> {
    let geometry = core.image.geometry;
    geometry.cluster_of(bytes.start).0..geometry.cluster_of(bytes.end - 1).0 + 1
}

/// Ends a change that was handed to the kernel: with a sync if it has to be durable.
pub(super) async fn finish(core: &LaneCore, request: ServedRequest, result: Result<(), FailKind>) {
    let result = match (result, request.operation.durability()) {
        (Ok(()), Durability::Stable) => Box::pin(core.sync()).await,
        (result, _) => result,
    };
    core.end(request, result);
}

/// The clusters that are allocated for a write, and the L2 entries that will name them.
#[derive(Debug)]
pub(super) struct WriteAllocation {
    /// The bytes of the disk that are written.
    guest: Range<u64>,
    /// The place of each cluster.
    hosts: Vec<u64>,
    /// What the tables will say, of clusters whose entry changes.
    entries: Vec<(GuestCluster, RawL2Entry)>,
    /// Clusters of the file that were taken, and those of them without a use.
    taken: Vec<HostClusters>,
    spare: HostClusters,
    /// Clusters of the file that one reference less will have.
    left: Vec<HostClusters>,
    /// Whether anything but zeroes was there.
    must_sync: bool,
}

impl WriteAllocation {
    /// Takes clusters, and copies what the write leaves of them. The clusters of the disk are claimed.
    pub(super) async fn prepare(core: &LaneCore, guest: Range<u64>) -> Result<Self, FailKind> {
        let before = look(core, &guest).await?;
        let mut change = Self {
            guest,
            hosts: Vec::new(),
            entries: Vec::new(),
            taken: Vec::new(),
            spare: 0..0,
            left: Vec::new(),
            must_sync: false,
        };
        if let Err(kind) = change.place_all(core, &before).await {
            change.abandon(core);
            return Err(kind);
        }
        Ok(change)
    }

    /// Whether all clusters have places of their own already.
    fn is_in_place(&self) -> bool {
        self.entries.is_empty()
    }

    async fn place_all(
        &mut self,
        core: &LaneCore,
        before: &[(GuestCluster, L2Entry)],
    ) -> Result<(), FailKind> {
        let mut missing =
            before.iter().filter(|(at, entry)| own(core, *at, *entry).is_none()).count() as u64;
        for &(cluster, entry) in before {
            let own = own(core, cluster, entry);
            let host = match own {
                Some(host) => host,
                None => self.take_one(core, &mut missing).await?,
            };
            self.hosts.push(host);
            if own.is_some() || !self.change_empty(core, cluster, entry, host) {
                // What is rare has memory of its own: tasks stay small.
                Box::pin(self.change(core, cluster, entry, host, own.is_none())).await?;
            }
        }
        Ok(())
    }

    /// Notes what the tables will say of a cluster that has nothing, above nothing, and was given a place: nothing is
    /// copied, and the place reads as zeroes, durably. Whether it is so.
    fn change_empty(
        &mut self,
        core: &LaneCore,
        cluster: GuestCluster,
        entry: L2Entry,
        host: u64,
    ) -> bool {
        let geometry = core.image.geometry;
        let start = geometry.start_of(cluster);
        let L2Entry::Cluster(before @ StandardCluster { place: None, .. }) = entry else {
            return false;
        };
        let has_below = core.backing.as_ref().is_some_and(|backing| start < backing.size);
        if has_below || !core.image.has_table(cluster) {
            return false;
        }
        let bits = bits_of(geometry.units_of(&self.touched(geometry, start)));
        let place = Some(HostClusterReference { host, is_exclusive: true });
        let after = StandardCluster { place, data: bits, zero: before.zero & !bits };
        self.entries.push((cluster, geometry.write(after)));
        true
    }

    /// The bytes that are written of the cluster that begins there, counted from its start.
    fn touched(&self, geometry: Geometry, start: u64) -> Range<u64> {
        self.guest.start.max(start) - start
            ..self.guest.end.min(start + geometry.cluster_bytes()) - start
    }

    /// Copies what the write leaves of a cluster, and notes what the tables will say of it. A place that was just taken
    /// reads as zeroes, durably.
    async fn change(
        &mut self,
        core: &LaneCore,
        cluster: GuestCluster,
        entry: L2Entry,
        host: u64,
        is_taken: bool,
    ) -> Result<(), FailKind> {
        let geometry = core.image.geometry;
        let start = geometry.start_of(cluster);
        let within = self.touched(geometry, start);
        let touched = geometry.units_of(&within);
        let bits = bits_of(touched.clone());
        let place = HostClusterReference { host, is_exclusive: true };
        let before = match entry {
            L2Entry::Cluster(before) => before,
            L2Entry::Compressed { descriptor } => {
                self.left.push(compressed::host_clusters(core, descriptor));
                return self.unpack(core, cluster, entry, within, place).await;
            }
        };
        let is_in_place = before.place == Some(place);
        if is_in_place && before.data & bits == bits {
            return Ok(());
        }
        core.ensure_table(cluster).await?;
        let bytes = geometry.subcluster_bytes();
        let whole = u64::from(touched.start) * bytes..u64::from(touched.end) * bytes;
        let below_is_zero = is_zero(core, start + whole.start..start + whole.end).await?;
        for unit in touched {
            let first = u64::from(unit) * bytes;
            let rest =
                [first..within.start.max(first), within.end.min(first + bytes)..first + bytes];
            let before = before.subcluster(unit);
            match before {
                Subcluster::Data(_) if is_in_place => continue,
                Subcluster::Zero | Subcluster::Nothing
                    if before == Subcluster::Zero || below_is_zero =>
                {
                    if !is_taken {
                        self.must_sync = true;
                        for part in rest.into_iter().filter(|part| !part.is_empty()) {
                            core.data.storage.zero(host + part.start..host + part.end).await?;
                        }
                    }
                }
                Subcluster::Data(_) | Subcluster::Zero | Subcluster::Nothing => {
                    self.must_sync = true;
                    for part in rest {
                        self.copy(core, entry, start, part, host).await?;
                    }
                }
            }
        }
        // The other subclusters leave the place of a snapshot as well.
        if !is_in_place && before.data & !bits != 0 {
            self.must_sync = true;
            for unit in
                (0..geometry.subclusters()).filter(|unit| before.data & !bits & 1 << unit != 0)
            {
                let first = u64::from(unit) * bytes;
                self.copy(core, entry, start, first..first + bytes, host).await?;
            }
        }
        let (data, zero) = (before.data | bits, before.zero & !bits);
        let after = StandardCluster { place: Some(place), data, zero };
        self.entries.push((cluster, geometry.write(after)));
        if let Some(old) = before.place.filter(|old| !old.is_exclusive && !core.has_data_file()) {
            let old = geometry.cluster_of(old.host).0;
            self.left.push(old..old + 1);
        }
        Ok(())
    }

    /// Copies what the write leaves of a compressed cluster.
    async fn unpack(
        &mut self,
        core: &LaneCore,
        cluster: GuestCluster,
        entry: L2Entry,
        within: Range<u64>,
        place: HostClusterReference,
    ) -> Result<(), FailKind> {
        let geometry = core.image.geometry;
        core.ensure_table(cluster).await?;
        self.must_sync = true;
        for part in [0..within.start, within.end..geometry.cluster_bytes()] {
            self.copy(core, entry, geometry.start_of(cluster), part, place.host).await?;
        }
        let after =
            StandardCluster { place: Some(place), data: geometry.all_subclusters(), zero: 0 };
        self.entries.push((cluster, geometry.write(after)));
        Ok(())
    }

    /// Copies a part of a cluster, which begins there on the disk, to its new place.
    async fn copy(
        &self,
        core: &LaneCore,
        entry: L2Entry,
        start: u64,
        part: Range<u64>,
        host: u64,
    ) -> Result<(), FailKind> {
        // Bit by bit, or many small writes to large clusters would take all memory.
        let most = match entry {
            L2Entry::Cluster(_) => COPY_BYTES,
            L2Entry::Compressed { .. } => core.image.geometry.cluster_bytes(),
        };
        let mut at = part.start;
        while at < part.end {
            let next = part.end.min(at + most);
            let bytes = usize::try_from(next - at).expect("at most a cluster");
            let _copied = core.limits.copied.take(bytes).await;
            let memory = read_before(core, entry, start + at..start + next).await?;
            core.data.storage.write(host + at, memory).await?;
            at = next;
        }
        Ok(())
    }

    /// The place of the next cluster of those that are missing. They follow each other if they can.
    async fn take_one(&mut self, core: &LaneCore, missing: &mut u64) -> Result<u64, FailKind> {
        if self.spare.is_empty() {
            self.spare = core.image.take_clusters(&core.file, *missing).await?;
            self.taken.push(self.spare.clone());
        }
        *missing -= 1;
        let cluster = self.spare.start;
        self.spare.start += 1;
        Ok(core.image.geometry.start_of(GuestCluster(cluster)))
    }

    /// Where the bytes go that begin there in the write.
    fn parts(&self, core: &LaneCore, operation: Operation, first: u64) -> RequestParts {
        let mut parts = RequestParts::default();
        for (skip, bytes) in self.runs(core) {
            parts.ask(&core.data.storage, operation, first + skip, bytes);
        }
        parts
    }

    /// Makes zeroes of the bytes that are written, for a write that has no others.
    pub(super) async fn write_zeroes(&self, core: &LaneCore) -> Result<(), FailKind> {
        for (_, bytes) in self.runs(core) {
            core.data.storage.zero(bytes).await?;
        }
        Ok(())
    }

    /// Writes bytes that were taken out of the memory of a write.
    pub(super) async fn write_bytes(&self, core: &LaneCore, bytes: &[u8]) -> Result<(), FailKind> {
        for (skip, place) in self.runs(core) {
            let part = in_memory(skip..skip + (place.end - place.start));
            core.data.storage.write(place.start, HostMemory::of(&bytes[part])).await?;
        }
        Ok(())
    }

    /// The bytes of the file that are written, where they begin in the write, and together what follows
    /// each other.
    fn runs(&self, core: &LaneCore) -> Vec<(u64, Range<u64>)> {
        let geometry = core.image.geometry;
        let mut runs: Vec<(u64, Range<u64>)> = Vec::new();
        let mut at = self.guest.start;
        for host in &self.hosts {
            let start = host + geometry.within(at);
            let count = (geometry.cluster_bytes() - geometry.within(at)).min(self.guest.end - at);
            match runs.last_mut() {
                Some((_, last)) if last.end == start => last.end += count,
                Some(_) | None => runs.push((at - self.guest.start, start..start + count)),
            }
            at += count;
        }
        runs
    }

    /// The bytes were handed to the kernel: has the tables name them, if they do not yet.
    async fn link(&mut self, core: &LaneCore) -> Result<(), FailKind> {
        if self.is_in_place() {
            return Ok(());
        }
        if self.must_sync {
            let synced = Box::pin(core.sync()).await;
            if let Err(kind) = synced {
                self.abandon(core);
                return Err(kind);
            }
        }
        // If that fails the tables may name them or not, so they are not used again.
        core.image.link(&core.file, &self.entries).await?;
        let space = core.image.space()?;
        self.left.drain(..).for_each(|clusters| space.free(clusters));
        Ok(())
    }

    /// Has the request write there, from so many of its bytes on, and then the tables name it.
    async fn carry_out(
        &mut self,
        core: &LaneCore,
        request: ServedRequest,
        skip: u64,
    ) -> Result<(), FailKind> {
        let mut parts = self.parts(core, request.operation, skip);
        let written = core.carry_out(request, &mut parts).await;
        self.conclude(core, written).await
    }

    /// The bytes were handed to the kernel, or not.
    pub(super) async fn conclude(
        &mut self,
        core: &LaneCore,
        written: Result<(), FailKind>,
    ) -> Result<(), FailKind> {
        if let Err(kind) = written {
            self.abandon(core);
            return Err(kind);
        }
        self.link(core).await
    }

    /// Nothing names what was taken: gives it back.
    fn abandon(&mut self, core: &LaneCore) {
        if let Ok(space) = core.image.space() {
            self.taken.drain(..).for_each(|clusters| space.free(clusters));
        }
    }
}

/// The place that a cluster has for itself: in a data file each has one.
fn own(core: &LaneCore, cluster: GuestCluster, entry: L2Entry) -> Option<u64> {
    match entry {
        _ if core.has_data_file() => Some(core.image.geometry.start_of(cluster)),
        L2Entry::Cluster(cluster) => cluster.exclusive_host(),
        L2Entry::Compressed { .. } => None,
    }
}

/// What the tables say of the clusters that these bytes are in, in memory and in the file. The clusters
/// are claimed.
pub(super) async fn look(
    core: &LaneCore,
    guest: &Range<u64>,
) -> Result<Vec<(GuestCluster, L2Entry)>, FailKind> {
    let geometry = core.image.geometry;
    let mut entries = Vec::new();
    for (cluster, _) in geometry.clusters_in(guest.clone()) {
        let pinned = core.image.slice(&core.file, geometry.slice_of(cluster)).await?;
        core.image.settle(&core.file, pinned.slice()).await?;
        entries.push((cluster, core.image.entry(pinned.slice(), cluster)?));
    }
    Ok(entries)
}

/// Whether bytes that the image does not have read as zeroes, as far as the lanes below know.
pub(super) async fn is_zero(core: &LaneCore, guest: Range<u64>) -> Result<bool, FailKind> {
    let Some(backing) = core.backing.as_ref().filter(|backing| guest.start < backing.size) else {
        return Ok(true);
    };
    let bytes = extent(guest.start..guest.end.min(backing.size))?;
    let found = backing.storage.resolve(Operation::Read(bytes)).await?;
    Ok(found.pieces.iter().all(|piece| piece.target == Target::Zeroes))
}

/// What the disk has there, inside one cluster that has no place of its own. Of a cluster with
/// subclusters it is inside one of them.
async fn read_before(
    core: &LaneCore,
    entry: L2Entry,
    guest: Range<u64>,
) -> Result<HostMemory, FailKind> {
    let geometry = core.image.geometry;
    let within = geometry.within(guest.start);
    let unit = match entry {
        L2Entry::Compressed { descriptor } => {
            let cluster = geometry.cluster_of(guest.start);
            let decoded = compressed::cluster(core, cluster, descriptor).await?;
            let within = in_memory(within..within + (guest.end - guest.start));
            return Ok(HostMemory::of(&decoded[within]));
        }
        L2Entry::Cluster(cluster) => {
            cluster.subcluster(geometry.units_of(&(within..within + 1)).start)
        }
    };
    let count = usize::try_from(guest.end - guest.start).expect("at most a cluster");
    match (unit, &core.backing) {
        (Subcluster::Data(place), _) => {
            let start = place.host + within;
            core.data.storage.read(start..start + (guest.end - guest.start)).await
        }
        (Subcluster::Nothing, Some(backing)) if guest.start < backing.size => {
            let there = guest.start..guest.end.min(backing.size);
            Ok(with_zeroes(backing.storage.read(there).await?, count))
        }
        (Subcluster::Zero | Subcluster::Nothing, _) => Ok(HostMemory::zeroed(count)),
    }
}
