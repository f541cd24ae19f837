//! How often clusters are referred to: counted in memory, only where there are any.
//!
//! Limits: [`BYTES_MAX`] of memory, and 65535 references to a cluster.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::table_reader::MetadataError;

/// The most memory that counting takes: for 134 million clusters if they are near each other, 8 TiB with
/// clusters of 64 KiB.
pub(crate) const BYTES_MAX: u64 = 256 << 20;

/// Clusters that are counted together.
const CHUNK: u64 = 4096;

/// How often each cluster is referred to, counted in memory.
#[derive(Debug)]
pub(crate) struct ReferenceCounts {
    cluster_bits: u32,
    /// Which of `chunks` has those clusters.
    places: BTreeMap<u64, usize>,
    chunks: Vec<Box<[u16]>>,
    /// The chunk that was used last, and its place.
    last: Option<(u64, usize)>,
    bytes_max: u64,
}

impl ReferenceCounts {
    pub(crate) fn new(cluster_bits: u32, bytes_max: u64) -> Self {
        let (places, chunks) = (BTreeMap::new(), Vec::new());
        Self { cluster_bits, places, chunks, last: None, bytes_max }
    }

    pub(crate) fn get(&self, cluster: u64) -> u16 {
        let place = match self.last {
            Some((chunk, place)) if chunk == cluster / CHUNK => Some(place),
            Some(_) | None => self.places.get(&(cluster / CHUNK)).copied(),
        };
        place.map_or(0, |place| self.chunks[place][index(cluster)])
    }

    /// Counts references to a cluster.
    pub(crate) fn add(&mut self, cluster: u64, times: u16) -> Result<(), MetadataError> {
        let offset = cluster << self.cluster_bits;
        let count = &mut self.chunk(cluster / CHUNK)?[index(cluster)];
        let sum = count.checked_add(times);
        *count = sum.ok_or(MetadataError::References { offset, most: u64::from(u16::MAX) })?;
        Ok(())
    }

    /// Nobody refers to the cluster any more.
    pub(crate) fn forget(&mut self, cluster: u64) {
        if let Some(place) = self.places.get(&(cluster / CHUNK)) {
            self.chunks[*place][index(cluster)] = 0;
        }
    }

    fn chunk(&mut self, chunk: u64) -> Result<&mut [u16], MetadataError> {
        let place = match self.last {
            Some((last, place)) if last == chunk => place,
            Some(_) | None => match self.places.get(&chunk) {
                Some(place) => *place,
                None => self.new_chunk(chunk)?,
            },
        };
        self.last = Some((chunk, place));
        Ok(&mut self.chunks[place])
    }

    fn new_chunk(&mut self, chunk: u64) -> Result<usize, MetadataError> {
        let place = self.chunks.len();
        if (place as u64 + 1) * CHUNK * 2 > self.bytes_max {
            return Err(MetadataError::TooMuch {
                what: "the counted clusters",
                bound: self.bytes_max,
            });
        }
        self.chunks.push(vec![0; index(CHUNK - 1) + 1].into());
        self.places.insert(chunk, place);
        Ok(place)
    }

    /// The clusters that are referred to, in order, and how often.
    pub(crate) fn used(&self) -> impl Iterator<Item = (u64, u16)> {
        self.places.iter().flat_map(|(chunk, place)| {
            let counts = self.chunks[*place].iter().zip(chunk * CHUNK..);
            counts.filter(|(count, _)| **count > 0).map(|(count, cluster)| (cluster, *count))
        })
    }

    /// The same of clusters between these.
    pub(crate) fn used_in(&self, clusters: Range<u64>) -> impl Iterator<Item = (u64, u16)> {
        let chunks = clusters.start / CHUNK..=clusters.end / CHUNK;
        self.places.range(chunks).flat_map(move |(chunk, place)| {
            let counts = self.chunks[*place].iter().zip(chunk * CHUNK..);
            let clusters = clusters.clone();
            let used = counts.filter(move |(count, at)| **count > 0 && clusters.contains(at));
            used.map(|(count, cluster)| (cluster, *count))
        })
    }

    /// How often each of these clusters is referred to.
    pub(crate) fn copy_to(&self, clusters: Range<u64>, counts: &mut Vec<u16>) {
        counts.clear();
        let mut at = clusters.start;
        while at < clusters.end {
            let end = clusters.end.min((at / CHUNK + 1) * CHUNK);
            let count = usize::try_from(end - at).expect("a chunk is small");
            match self.chunk_of(at / CHUNK) {
                Some(chunk) => counts.extend(&chunk[index(at)..index(at) + count]),
                None => counts.resize(counts.len() + count, 0),
            }
            at = end;
        }
    }

    /// The first run of so many clusters, not before `from`, that nobody refers to here or there.
    pub(crate) fn free_beside(&self, other: &Self, from: u64, count: u64) -> u64 {
        let (mut start, mut at) = (from, from);
        while at < start + count {
            let number = at / CHUNK;
            let end = (number + 1) * CHUNK;
            let chunks = [self.chunk_of(number), other.chunk_of(number)];
            if chunks == [None, None] {
                at = end;
            }
            let is_used = |at| chunks.iter().flatten().any(|chunk| chunk[index(at)] > 0);
            while at < end && at < start + count {
                if is_used(at) {
                    start = at + 1;
                }
                at += 1;
            }
        }
        start
    }

    fn chunk_of(&self, number: u64) -> Option<&[u16]> {
        self.places.get(&number).map(|place| &*self.chunks[*place])
    }
}

fn index(cluster: u64) -> usize {
    usize::try_from(cluster % CHUNK).expect("a chunk is small")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_counted_where_there_are_any() {
        let mut counts = ReferenceCounts::new(16, BYTES_MAX);
        for (cluster, times) in [(7, 1), (1 << 40, 2), (7, 3), (4096, 1)] {
            counts.add(cluster, times).unwrap();
        }
        let used: Vec<_> = counts.used().collect();
        assert_eq!(used, [(7, 4), (4096, 1), (1 << 40, 2)]);
        let used_in = |range| counts.used_in(range).collect::<Vec<_>>();
        assert_eq!(used_in(7..4096), [(7, 4)]);
        assert_eq!(used_in(8..5000), [(4096, 1)]);
        assert_eq!((counts.get(7), counts.get(8), counts.get(1 << 50)), (4, 0, 0));
        counts.forget(7);
        assert_eq!(counts.get(7), 0);
        let most = MetadataError::References { offset: 4096 << 16, most: 65535 };
        assert_eq!(counts.add(4096, 65535), Err(most));
    }

    #[test]
    fn counts_of_neighbours_are_copied() {
        let mut counts = ReferenceCounts::new(16, BYTES_MAX);
        [4095, 4096, 9000].into_iter().for_each(|cluster| counts.add(cluster, 2).unwrap());
        let mut copied = vec![7];
        counts.copy_to(4094..9001, &mut copied);
        let used: Vec<usize> = (0..copied.len()).filter(|at| copied[*at] == 2).collect();
        assert_eq!((copied.len(), used), (4907, vec![1, 2, 4906]));
    }

    #[test]
    fn memory_has_a_bound() {
        let mut counts = ReferenceCounts::new(16, 3 * 2 * CHUNK);
        let added = (0..10).filter(|at| counts.add(at * CHUNK * 7, 1).is_ok()).count();
        assert_eq!(added, 3);
    }

    #[test]
    fn free_runs_lie_between_what_is_used() {
        let mut counts = ReferenceCounts::new(16, BYTES_MAX);
        [0, 1, 3, 6, 4095].into_iter().for_each(|cluster| counts.add(cluster, 1).unwrap());
        let mut other = ReferenceCounts::new(16, BYTES_MAX);
        let free = |from, count| counts.free_beside(&other, from, count);
        assert_eq!((free(0, 1), free(0, 2), free(0, 3), free(4090, 6)), (2, 4, 7, 4096));
        [2, 4, 4097].into_iter().for_each(|cluster| other.add(cluster, 1).unwrap());
        let free = |from, count| counts.free_beside(&other, from, count);
        assert_eq!((free(0, 1), free(0, 2), free(4090, 6), free(4096, 9)), (5, 7, 4098, 4098));
    }
}
