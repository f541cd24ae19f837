//! Requests whose bytes lie in one run: neighbours in the file or in an image below, or zeroes.
//!
//! Where it stands in the life of a request: the first that a lane tries. A look into the table of each cluster, and the
//! lane below says where the run is ([`Lane::locate`](block::Lane::locate)). Of a chain each image is looked into so, one
//! after the other, each for all of the batch that is not found yet. What this does not answer is planned with the rest.
//!
//! What could go wrong: a place that is used after the cluster has left the tables. So nothing that was found here is
//! kept: it is found inside the request's epoch, which ends with the request, or, in an image below another one, in
//! tables that nobody writes; of an image that is written nothing is told to whoever stands above.
//! Limits: requests of [`RUN_CLUSTERS`] clusters; larger ones are planned.

use std::ops::Range;

use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, ByteCount, Durability, EofPolicy, Extent,
    LocateQuery, Mapping, Operation, Piece, Target, Token,
};
use tasks::extent;

use super::Qcow2Lane;
use crate::epoch::MappingEpoch;
use crate::geometry::{Geometry, L2Entry, RawL2Entry, Subcluster};
use crate::lane_core::LaneCore;
use crate::lane_slices::LaneSlices;

/// The most clusters of a request that is answered here: a batch of 64 looks at no more entries than are planned at once.
const RUN_CLUSTERS: u64 = 64;

/// What the lane keeps of requests that are located.
#[derive(Debug, Default)]
pub(super) struct LocatedRequests {
    /// The epochs that requests were found in which are carried out now, by token.
    epochs: Vec<Option<MappingEpoch>>,
    /// What the tables say of the first cluster of each request of a batch.
    entries: Vec<RawL2Entry>,
    /// What the backing file is asked for a batch.
    queries: Vec<LocateQuery>,
}

impl LocatedRequests {
    fn add(&mut self, token: Token, epoch: MappingEpoch) {
        let place = token.0 as usize;
        if place >= self.epochs.len() {
            self.epochs.resize(place + 1, None);
        }
        self.epochs[place] = Some(epoch);
    }

    /// The epoch of a request that is over; `None` if it was answered otherwise.
    #[inline]
    pub(super) fn take(&mut self, token: Token) -> Option<MappingEpoch> {
        self.epochs.get_mut(token.0 as usize)?.take()
    }
}

/// What the bytes of a request are, all of them the same.
#[derive(Clone, Copy)]
enum Run {
    /// Data, from this byte of the data file on.
    Data(u64),
    /// What the backing file has there.
    Backing,
    Zeroes,
}

impl Qcow2Lane {
    /// Answers the requests of a batch whose bytes lie in one run, found in that epoch, and plans the others. How many it
    /// answered.
    pub(super) fn answer_located(
        &mut self,
        batch: &mut [Mapping],
        epoch: Option<MappingEpoch>,
        pieces: &mut BatchPieces,
    ) -> usize {
        self.load_entries(batch.iter().map(|mapping| mapping.operation));
        let mut located = 0;
        let mut queries = std::mem::take(&mut self.located.queries);
        for (place, mapping) in batch.iter_mut().enumerate() {
            let run = self.find_run(mapping.operation, self.located.entries[place]);
            if let Some((Run::Backing, extent)) = run {
                queries.push(LocateQuery { extent, target: None, number: place });
                continue;
            }
            let target = run.and_then(|(run, extent)| self.target(run, mapping.operation, extent));
            located += self.answer_or_plan(place, mapping, target, epoch, pieces);
        }
        if let Some(backing) = &self.core.backing
            && !queries.is_empty()
        {
            backing.storage.locate_reads(&mut queries);
            for LocateQuery { target, number, .. } in queries.drain(..) {
                located += self.answer_or_plan(number, &mut batch[number], target, epoch, pieces);
            }
        }
        self.located.queries = queries;
        located
    }

    /// Answers a request whose bytes are there, or plans it. How many it answered.
    #[inline(always)]
    fn answer_or_plan(
        &mut self,
        place: usize,
        mapping: &mut Mapping,
        target: Option<Target>,
        epoch: Option<MappingEpoch>,
        pieces: &mut BatchPieces,
    ) -> usize {
        let Some(target) = target else {
            let plan = self.plan(mapping.operation, pieces);
            self.plans.push((place, plan));
            return 0;
        };
        let count = mapping.operation.extent().map_or(ByteCount(0), Extent::count);
        mapping.answer = Answer::Now(pieces.one(Piece { skip: 0, count, target }));
        mapping.eof_policy = EofPolicy::Zeroes;
        if let Some(epoch) = epoch {
            self.located.add(mapping.token, epoch);
            mapping.after = AfterPiecesAction::NotifyLane;
        }
        1
    }

    /// As [`Lane::locate`](block::Lane::locate), of an image that is not written.
    pub(super) fn locate_one(&mut self, operation: Operation) -> Option<Target> {
        let geometry = self.core.image.geometry;
        let entry = first_entry(&self.core, &mut self.seen, geometry, operation);
        let (run, extent) = self.find_run(operation, entry)?;
        self.target(run, operation, extent)
    }

    /// As [`Lane::locate_reads`](block::Lane::locate_reads), of an image that is not written.
    pub(super) fn locate_all(&mut self, queries: &mut [LocateQuery]) {
        self.load_entries(queries.iter().map(|query| Operation::Read(query.extent)));
        // Those come first that the backing file is asked about.
        let mut below = 0;
        for place in 0..queries.len() {
            let extent = queries[place].extent;
            match self.find_read(extent, self.located.entries[place]) {
                Some(Run::Backing) => {
                    queries.swap(below, place);
                    below += 1;
                }
                Some(run) => {
                    queries[place].target = self.target(run, Operation::Read(extent), extent);
                }
                None => {}
            }
        }
        if let Some(backing) = &self.core.backing
            && below > 0
        {
            backing.storage.locate_reads(&mut queries[..below]);
        }
    }

    /// Takes the first entry of each request out of the tables before the first of them is needed: they come from memory, and
    /// waited for one after the other they cost more than all the rest.
    fn load_entries(&mut self, operations: impl Iterator<Item = Operation>) {
        let Self { core, seen, located: LocatedRequests { entries, .. }, .. } = self;
        let geometry = core.image.geometry;
        entries.clear();
        entries.extend(operations.map(|operation| first_entry(core, seen, geometry, operation)));
    }

    /// What the bytes of a read or a write are, if they lie in one run, and the bytes. The entry is that of the first
    /// cluster. Call it inside an epoch if the image is written.
    #[inline(always)]
    fn find_run(&mut self, operation: Operation, entry: RawL2Entry) -> Option<(Run, Extent)> {
        match operation {
            Operation::Read(bytes) => Some((self.find_read(bytes, entry)?, bytes)),
            Operation::Write(bytes, durability) => {
                Some((self.find_write(bytes, durability, entry)?, bytes))
            }
            Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => None,
        }
    }

    /// What the bytes of a read are.
    #[inline(always)]
    fn find_read(&mut self, bytes: Extent, entry: RawL2Entry) -> Option<Run> {
        let bytes = bytes.bytes();
        let run = self.find_same(&bytes, entry, false)?;
        match (run, &self.core.backing) {
            (Subcluster::Data(place), _) => Some(Run::Data(place.host)),
            (Subcluster::Nothing, Some(backing)) if bytes.start < backing.size => {
                (bytes.end <= backing.size).then_some(Run::Backing)
            }
            (Subcluster::Zero | Subcluster::Nothing, _) => Some(Run::Zeroes),
        }
    }

    /// What the bytes of a write are: it needs places that are its own, in tables that the file has.
    #[inline(always)]
    fn find_write(
        &mut self,
        bytes: Extent,
        durability: Durability,
        entry: RawL2Entry,
    ) -> Option<Run> {
        let image = &self.core.image;
        let is_compressed = self.core.compression.is_some();
        if self.access == Access::ReadOnly || !image.is_written() || is_compressed {
            return None;
        }
        match self.find_same(&bytes.bytes(), entry, true)? {
            // Asked after the tables were looked at.
            Subcluster::Data(place)
                if durability == Durability::Cached
                    || self.core.image.table_writes_are_durable() =>
            {
                Some(Run::Data(place.host))
            }
            Subcluster::Data(_) | Subcluster::Zero | Subcluster::Nothing => None,
        }
    }

    /// Where a run is that the lane below finds at once.
    #[inline(always)]
    fn target(&self, run: Run, operation: Operation, bytes: Extent) -> Option<Target> {
        match run {
            Run::Data(host) => {
                let host = extent(host..host.checked_add(bytes.count().0)?).ok()?;
                self.core.data.storage.locate(operation.on(host))
            }
            Run::Backing => self.core.backing.as_ref()?.storage.locate(operation),
            Run::Zeroes => Some(Target::Zeroes),
        }
    }

    /// What bytes of the disk are, all of them the same; of data the place is that of the first byte.
    #[inline(always)]
    fn find_same(
        &mut self,
        bytes: &Range<u64>,
        entry: RawL2Entry,
        is_write: bool,
    ) -> Option<Subcluster> {
        let image = &self.core.image;
        if bytes.is_empty() || bytes.end > image.size() || image.is_closed() {
            return None;
        }
        let (part, count) = part_of(image.geometry, entry, bytes.clone(), is_write)?;
        if bytes.start + count == bytes.end {
            return Some(part);
        }
        self.continue_run((part, count), bytes, is_write)
    }

    /// The same of bytes that do not all lie in the cluster of the part.
    fn continue_run(
        &mut self,
        (run, mut count): (Subcluster, u64),
        bytes: &Range<u64>,
        is_write: bool,
    ) -> Option<Subcluster> {
        let geometry = self.core.image.geometry;
        if (bytes.end - bytes.start) >> geometry.cluster_bits() >= RUN_CLUSTERS {
            return None;
        }
        let mut at = bytes.start;
        while at + count < bytes.end {
            at += count;
            let entry = entry_at(&self.core, &mut self.seen, geometry, at, is_write);
            let (part, more) = part_of(geometry, entry, at..bytes.end, is_write)?;
            match (run, part) {
                (Subcluster::Data(first), Subcluster::Data(next))
                    if next.host == first.host + (at - bytes.start) => {}
                (Subcluster::Zero, Subcluster::Zero)
                | (Subcluster::Nothing, Subcluster::Nothing) => {}
                (_, _) => return None,
            }
            count = more;
        }
        Some(run)
    }
}

/// What the tables say of the first cluster of a read or a write.
#[inline(always)]
fn first_entry(
    core: &LaneCore,
    seen: &mut LaneSlices,
    geometry: Geometry,
    operation: Operation,
) -> RawL2Entry {
    let at = |bytes: Extent| entry_at(core, seen, geometry, bytes.start().0, operation.is_change());
    operation.extent().map_or(RawL2Entry::UNKNOWN, at)
}

/// What the tables say of the cluster of a byte; for a write only if the file says that as well.
#[inline(always)]
fn entry_at(
    core: &LaneCore,
    seen: &mut LaneSlices,
    geometry: Geometry,
    byte: u64,
    is_write: bool,
) -> RawL2Entry {
    let cluster = geometry.cluster_of(byte);
    let Some(slice) = seen.find(core, geometry.slice_of(cluster)) else {
        return RawL2Entry::UNKNOWN;
    };
    let entry = slice.entry(geometry.index_of(cluster));
    if is_write && slice.has_failed_write() { RawL2Entry::UNKNOWN } else { entry }
}

/// What the first of these bytes are, as far as they lie in the cluster of that entry, and how many those are.
#[inline(always)]
fn part_of(
    geometry: Geometry,
    entry: RawL2Entry,
    bytes: Range<u64>,
    is_write: bool,
) -> Option<(Subcluster, u64)> {
    let start = geometry.within(bytes.start);
    let count = (bytes.end - bytes.start).min(geometry.cluster_bytes() - start);
    let mut part = match geometry.data_of(entry) {
        Some(place) => Subcluster::Data(place),
        None if entry == RawL2Entry::default() => Subcluster::Nothing,
        None => other_part(geometry, entry, start..start + count)?,
    };
    match &mut part {
        Subcluster::Data(place) if !is_write || place.is_exclusive => place.host += start,
        Subcluster::Zero | Subcluster::Nothing if !is_write => {}
        Subcluster::Data(_) | Subcluster::Zero | Subcluster::Nothing => return None,
    }
    Some((part, count))
}

/// What all of these bytes inside a cluster are, if they are the same, and not compressed.
fn other_part(geometry: Geometry, words: RawL2Entry, within: Range<u64>) -> Option<Subcluster> {
    match geometry.read(words) {
        Ok(L2Entry::Cluster(found)) => geometry.whole(found, &within),
        Ok(L2Entry::Compressed { .. }) | Err(_) => None,
    }
}
