//! Writes to clusters that have no place of their own yet.
//!
//! Where it stands in the life of a request: clusters are claimed and taken, what the request leaves of
//! them is copied, the request is carried out there, the tables name them; then it is over.
//!
//! Invariants: if what was there before is not zeroes, the new bytes are durable before the tables name
//! them: a lost one would uncover zeroes. If it was zeroes, a lost one is what was there.

use std::ops::Range;
use std::rc::Rc;

use block::{
    Durability, Extent, FailKind, HostMemory, Operation, PIECES_MAX, Piece, Target, Token,
};

use crate::core::Core;
use crate::refcount::Clusters;
use crate::shape::{Entry, GuestCluster, Place, data_at};
use crate::storage::extent;

/// Serves a write.
pub(crate) async fn write(core: Rc<Core>, token: Token, bytes: Extent, durability: Durability) {
    let operation = Operation::Write(bytes, durability);
    let shape = core.image.shape();
    let first = shape.cluster_of(bytes.bytes().start).0;
    let clusters = first..shape.cluster_of(bytes.bytes().end - 1).0 + 1;
    let claimed = core.image.claim(clusters).await;
    let change = match Change::prepare(&core, bytes.bytes()).await {
        Ok(change) => change,
        Err(kind) => return core.end(token, operation, Err(kind)),
    };
    let pieces = match change.pieces(&core, operation).await {
        Ok(pieces) => pieces,
        Err(kind) => {
            change.abandon(&core);
            return core.end(token, operation, Err(kind));
        }
    };
    if change.is_in_place() {
        drop(claimed);
        return core.answer(token, operation, pieces);
    }
    // What must be durable is made so at the end.
    let round = Operation::Write(bytes, Durability::Cached);
    let result = match core.carry_out(token, round, pieces).await {
        Ok(()) => change.link(&core).await,
        Err(kind) => {
            change.abandon(&core);
            Err(kind)
        }
    };
    drop(claimed);
    end(&core, token, operation, durability, result).await;
}

/// Ends a change that was handed to the kernel: with a sync if it has to be durable.
pub(super) async fn end(
    core: &Core,
    token: Token,
    operation: Operation,
    durability: Durability,
    result: Result<(), FailKind>,
) {
    let result = match (result, durability) {
        (Ok(()), Durability::Stable) => core.image.sync(&core.file).await,
        (result, _) => result,
    };
    core.end(token, operation, result);
}

/// New places for the clusters of a write.
#[derive(Debug)]
pub(super) struct Change {
    /// The bytes of the disk that are written.
    guest: Range<u64>,
    /// The place of each cluster.
    hosts: Vec<u64>,
    /// What the tables will say, of clusters whose entry changes.
    entries: Vec<(GuestCluster, u64)>,
    /// Clusters of the file that were taken, and those of them without a use.
    taken: Vec<Clusters>,
    spare: Clusters,
    /// Clusters of the file that one reference less will have.
    left: Vec<Clusters>,
    /// Whether anything but zeroes was there.
    must_sync: bool,
}

impl Change {
    /// Takes clusters, and copies what the write leaves of them. The clusters of the disk are claimed.
    pub(super) async fn prepare(core: &Core, guest: Range<u64>) -> Result<Self, FailKind> {
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
        match change.place_all(core, &before).await {
            Ok(()) => Ok(change),
            Err(kind) => {
                change.abandon(core);
                Err(kind)
            }
        }
    }

    /// Whether all clusters have places of their own already.
    pub(super) fn is_in_place(&self) -> bool {
        self.entries.is_empty()
    }

    async fn place_all(
        &mut self,
        core: &Core,
        before: &[(GuestCluster, Entry)],
    ) -> Result<(), FailKind> {
        let mut missing = before.iter().filter(|(_, entry)| kept(*entry).is_none()).count() as u64;
        for &(cluster, entry) in before {
            let kept = kept(entry);
            let host = match kept {
                Some(host) => host,
                None => self.take_one(core, &mut missing).await?,
            };
            self.hosts.push(host);
            if let Entry::Data(Place { is_ours: true, .. }) = entry {
                continue;
            }
            core.image.ensure_table(&core.file, cluster).await?;
            match kept {
                // Nobody knows what is there.
                Some(host) => self.zero_rest(core, cluster, host).await?,
                None => self.copy_rest(core, cluster, entry, host).await?,
            }
            self.entries.push((cluster, data_at(host)));
            if let Entry::Data(place) | Entry::Zero { place: Some(place) } = entry
                && !place.is_ours
            {
                let old = core.image.shape().cluster_of(place.host).0;
                self.left.push(old..old + 1);
            }
        }
        Ok(())
    }

    /// The place of the next cluster of those that are missing. They follow each other if they can.
    async fn take_one(&mut self, core: &Core, missing: &mut u64) -> Result<u64, FailKind> {
        if self.spare.is_empty() {
            self.spare = core.image.take_clusters(&core.file, *missing).await?;
            self.taken.push(self.spare.clone());
        }
        *missing -= 1;
        let cluster = self.spare.start;
        self.spare.start += 1;
        Ok(core.image.shape().start_of(GuestCluster(cluster)))
    }

    /// What the write leaves of a cluster: before it and behind it.
    fn rest(&self, core: &Core, cluster: GuestCluster) -> impl Iterator<Item = Range<u64>> {
        let shape = core.image.shape();
        let start = shape.start_of(cluster);
        let end = start + shape.cluster_bytes();
        let parts = [start..self.guest.start.max(start), self.guest.end.min(end)..end];
        parts.into_iter().filter(|part| !part.is_empty())
    }

    async fn zero_rest(
        &mut self,
        core: &Core,
        cluster: GuestCluster,
        host: u64,
    ) -> Result<(), FailKind> {
        self.must_sync = true;
        let shape = core.image.shape();
        for part in self.rest(core, cluster) {
            let start = host + shape.within(part.start);
            core.file.zero(start..start + (part.end - part.start)).await?;
        }
        Ok(())
    }

    /// Copies what was there into a place that reads as zeroes.
    async fn copy_rest(
        &mut self,
        core: &Core,
        cluster: GuestCluster,
        entry: Entry,
        host: u64,
    ) -> Result<(), FailKind> {
        let shape = core.image.shape();
        match entry {
            Entry::Zero { .. } => return Ok(()),
            Entry::Nothing if is_zero(core, cluster).await? => return Ok(()),
            Entry::Nothing | Entry::Data(_) | Entry::Compressed { .. } => {}
        }
        self.must_sync = true;
        for part in self.rest(core, cluster) {
            let memory = read_before(core, entry, part.clone()).await?;
            core.file.write(host + shape.within(part.start), memory).await?;
        }
        Ok(())
    }

    /// Where the write goes.
    pub(super) async fn pieces(
        &self,
        core: &Core,
        operation: Operation,
    ) -> Result<Vec<Piece>, FailKind> {
        let mut pieces = Vec::new();
        for (skip, bytes) in self.runs(core) {
            core.place(operation, skip, bytes, &mut pieces).await?;
        }
        if pieces.len() > PIECES_MAX {
            return Err(FailKind::Unsupported);
        }
        Ok(pieces)
    }

    /// Makes zeroes of the bytes that are written, for a write that has no others.
    pub(super) async fn write_zeroes(&self, core: &Core) -> Result<(), FailKind> {
        for (_, bytes) in self.runs(core) {
            core.file.zero(bytes).await?;
        }
        Ok(())
    }

    /// The bytes of the file that are written, where they begin in the write, and together what follows
    /// each other.
    fn runs(&self, core: &Core) -> Vec<(u64, Range<u64>)> {
        let shape = core.image.shape();
        let mut runs: Vec<(u64, Range<u64>)> = Vec::new();
        let mut at = self.guest.start;
        for host in &self.hosts {
            let start = host + shape.within(at);
            let count = (shape.cluster_bytes() - shape.within(at)).min(self.guest.end - at);
            match runs.last_mut() {
                Some((_, last)) if last.end == start => last.end += count,
                Some(_) | None => runs.push((at - self.guest.start, start..start + count)),
            }
            at += count;
        }
        runs
    }

    /// The bytes were handed to the kernel: has the tables name them.
    pub(super) async fn link(self, core: &Core) -> Result<(), FailKind> {
        if self.must_sync {
            let synced = core.image.sync(&core.file).await;
            if let Err(kind) = synced {
                self.abandon(core);
                return Err(kind);
            }
        }
        // If that fails the tables may name them or not, so they are not used again.
        core.image.link(&core.file, &self.entries).await?;
        let space = core.image.space()?;
        self.left.into_iter().for_each(|clusters| space.free(clusters));
        Ok(())
    }

    /// Nothing names what was taken: gives it back.
    pub(super) fn abandon(self, core: &Core) {
        if let Ok(space) = core.image.space() {
            self.taken.into_iter().for_each(|clusters| space.free(clusters));
        }
    }
}

/// The place that a cluster has, or keeps, for itself.
fn kept(entry: Entry) -> Option<u64> {
    match entry {
        Entry::Data(Place { host, is_ours: true })
        | Entry::Zero { place: Some(Place { host, is_ours: true }) } => Some(host),
        Entry::Data(_) | Entry::Zero { .. } | Entry::Nothing | Entry::Compressed { .. } => None,
    }
}

/// What the tables say of the clusters that these bytes are in.
pub(super) async fn look(
    core: &Core,
    guest: &Range<u64>,
) -> Result<Vec<(GuestCluster, Entry)>, FailKind> {
    let shape = core.image.shape();
    let clusters = shape.cluster_of(guest.start).0..shape.cluster_of(guest.end - 1).0 + 1;
    let mut entries = Vec::new();
    for cluster in clusters.map(GuestCluster) {
        let pinned = core.image.slice(&core.file, shape.slice_of(cluster)).await?;
        entries.push((cluster, core.image.entry(pinned.slice(), cluster)?));
    }
    Ok(entries)
}

/// Whether a cluster that the image does not have reads as zeroes, as far as the lanes below know.
pub(super) async fn is_zero(core: &Core, cluster: GuestCluster) -> Result<bool, FailKind> {
    let shape = core.image.shape();
    let start = shape.start_of(cluster);
    let Some(backing) = &core.backing else { return Ok(true) };
    if start >= backing.size {
        return Ok(true);
    }
    let end = (start + shape.cluster_bytes()).min(backing.size);
    let (_, pieces) = backing.storage.resolve(Operation::Read(extent(start..end)?)).await?;
    Ok(pieces.iter().all(|piece| piece.target == Target::Zeroes))
}

/// What the disk has there, inside one cluster that has no place of its own.
async fn read_before(core: &Core, entry: Entry, guest: Range<u64>) -> Result<HostMemory, FailKind> {
    let shape = core.image.shape();
    match entry {
        Entry::Data(place) => {
            let start = place.host + shape.within(guest.start);
            core.file.read(start..start + (guest.end - guest.start)).await
        }
        Entry::Compressed { .. } => Err(FailKind::Unsupported),
        Entry::Nothing | Entry::Zero { .. } => {
            let count = usize::try_from(guest.end - guest.start).expect("at most a cluster");
            let Some(backing) = core.backing.as_ref().filter(|backing| guest.start < backing.size)
            else {
                return Ok(HostMemory::zeroed(count));
            };
            let end = guest.end.min(backing.size);
            let mut memory = backing.storage.read(guest.start..end).await?;
            if memory.len() < count {
                let mut longer = HostMemory::zeroed(count);
                longer[..memory.len()].copy_from_slice(&memory);
                memory = longer;
            }
            Ok(memory)
        }
    }
}
