//! Requests whose bytes lie in one run: neighbours in the file or in an image below, or zeroes.
//!
//! Where it stands in the life of a request: the first that a lane tries. A look into the table of each cluster, and the
//! lane below says where the run is ([`Lane::locate`](block::Lane::locate)); of a chain each image is looked into so. What
//! this does not answer is planned with the rest of the batch.
//!
//! What could go wrong: a place that is used after the cluster has left the tables. So nothing that was found here is
//! kept: it is found inside the request's epoch, which ends with the request, or, in an image below another one, in
//! tables that nobody writes; of an image that is written nothing is told to whoever stands above.
//! Limits: requests of [`RUN_CLUSTERS`] clusters; larger ones are planned.

use std::ops::Range;

use block::{
    Access, AfterPiecesAction, Answer, BatchPieces, ByteCount, Durability, EofPolicy, Extent,
    Mapping, Operation, Piece, Target, Token,
};
use tasks::extent;

use super::Qcow2Lane;
use crate::epoch::MappingEpoch;
use crate::geometry::{Geometry, L2Entry, RawL2Entry, Subcluster};

/// The most clusters of a request that is answered here: a batch of 64 looks at no more entries than are planned at once.
const RUN_CLUSTERS: u64 = 64;

/// The epochs that requests were found in which are carried out now, by token.
#[derive(Debug, Default)]
pub(super) struct LocatedRequests(Vec<Option<MappingEpoch>>);

impl LocatedRequests {
    fn add(&mut self, token: Token, epoch: MappingEpoch) {
        let place = token.0 as usize;
        if place >= self.0.len() {
            self.0.resize(place + 1, None);
        }
        self.0[place] = Some(epoch);
    }

    /// The epoch of a request that is over; `None` if it was answered otherwise.
    #[inline]
    pub(super) fn take(&mut self, token: Token) -> Option<MappingEpoch> {
        self.0.get_mut(token.0 as usize)?.take()
    }
}

impl Qcow2Lane {
    /// Answers a request whose bytes lie in one run, found in that epoch; whether it did.
    pub(super) fn answer_located(
        &mut self,
        mapping: &mut Mapping,
        epoch: Option<MappingEpoch>,
        pieces: &mut BatchPieces,
    ) -> bool {
        let Some(target) = self.locate_run(mapping.operation) else { return false };
        let count = mapping.operation.extent().map_or(ByteCount(0), Extent::count);
        mapping.answer = Answer::Now(pieces.one(Piece { skip: 0, count, target }));
        mapping.eof_policy = EofPolicy::Zeroes;
        if let Some(epoch) = epoch {
            self.located.add(mapping.token, epoch);
            mapping.after = AfterPiecesAction::NotifyLane;
        }
        true
    }

    /// Has the entries of a batch on their way from memory before the first of them is needed: waited for one after the
    /// other they cost more than all the rest.
    pub(super) fn look_ahead(&self, batch: &[Mapping]) {
        let geometry = self.core.image.geometry;
        let mut words = 0;
        for extent in batch.iter().filter_map(|mapping| mapping.operation.extent()) {
            let cluster = geometry.cluster_of(extent.start().0);
            let slice = self.seen.known(geometry.slice_of(cluster));
            words ^= slice.map_or(0, |slice| slice.entry(geometry.index_of(cluster)).word);
        }
        // Nobody needs them, but they are loaded.
        std::hint::black_box(words);
    }

    /// Where the bytes of a read or a write are, if they lie in one run that the lanes below find at once. Call it inside an
    /// epoch if the image is written.
    pub(super) fn locate_run(&mut self, operation: Operation) -> Option<Target> {
        let image = &self.core.image;
        let (bytes, durability) = match operation {
            Operation::Read(bytes) => (bytes.bytes(), None),
            Operation::Write(bytes, durability) => (bytes.bytes(), Some(durability)),
            Operation::Status(_)
            | Operation::Discard(..)
            | Operation::WriteZeroes(..)
            | Operation::Flush => return None,
        };
        let may_write = self.access == Access::ReadWrite && image.is_written();
        let is_bad = bytes.is_empty() || bytes.end > image.size() || image.is_closed();
        if is_bad || durability.is_some() && !may_write {
            return None;
        }
        let run = self.find_run(&bytes, durability.is_some())?;
        let core = &self.core;
        if durability == Some(Durability::Stable) && !core.image.table_writes_are_durable() {
            return None;
        }
        match (run, &core.backing) {
            (Subcluster::Data(place), _) => {
                let host = place.host..place.host + (bytes.end - bytes.start);
                core.data.storage.locate(operation.on(extent(host).ok()?))
            }
            (Subcluster::Nothing, Some(backing)) if bytes.start < backing.size => {
                if bytes.end > backing.size {
                    return None;
                }
                backing.storage.locate(operation)
            }
            (Subcluster::Zero | Subcluster::Nothing, _) => Some(Target::Zeroes),
        }
    }

    /// What bytes of the disk are, all of them the same; of data the place is that of the first byte. A write needs places
    /// that are its own, in tables that the file has.
    #[inline(always)]
    fn find_run(&mut self, bytes: &Range<u64>, is_write: bool) -> Option<Subcluster> {
        let geometry = self.core.image.geometry;
        let mut at = bytes.start;
        let (run, mut count) = self.find_part(geometry, at..bytes.end, is_write)?;
        if (bytes.end - bytes.start) >> geometry.cluster_bits() >= RUN_CLUSTERS {
            return None;
        }
        while at + count < bytes.end {
            at += count;
            let (part, more) = self.find_part(geometry, at..bytes.end, is_write)?;
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

    /// What the first of these bytes are, as far as they lie in one cluster, and how many those are.
    #[inline(always)]
    fn find_part(
        &mut self,
        geometry: Geometry,
        bytes: Range<u64>,
        is_write: bool,
    ) -> Option<(Subcluster, u64)> {
        let cluster = geometry.cluster_of(bytes.start);
        let slice = self.seen.find(&self.core, geometry.slice_of(cluster))?;
        let words = slice.entry(geometry.index_of(cluster));
        let start = geometry.within(bytes.start);
        let count = (bytes.end - bytes.start).min(geometry.cluster_bytes() - start);
        let mut part = match geometry.data_of(words) {
            Some(place) => Subcluster::Data(place),
            None if words == RawL2Entry::default() => Subcluster::Nothing,
            None => other_part(geometry, words, start..start + count)?,
        };
        match &mut part {
            Subcluster::Data(place)
                if !is_write || place.is_exclusive && !slice.has_failed_write() =>
            {
                place.host += start;
            }
            Subcluster::Zero | Subcluster::Nothing if !is_write => {}
            Subcluster::Data(_) | Subcluster::Zero | Subcluster::Nothing => return None,
        }
        Some((part, count))
    }
}

/// What all of these bytes inside a cluster are, if they are the same, and not compressed.
fn other_part(geometry: Geometry, words: RawL2Entry, within: Range<u64>) -> Option<Subcluster> {
    match geometry.read(words) {
        Ok(L2Entry::Cluster(found)) => geometry.whole(found, &within),
        Ok(L2Entry::Compressed { .. }) | Err(_) => None,
    }
}
