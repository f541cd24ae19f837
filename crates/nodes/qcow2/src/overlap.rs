//! Which clusters of the file are metadata: nothing else may be in them (`overlap-check`).
//!
//! Where it stands: made when an image is opened for writing. Slices of L2 tables are held against it
//! when they are loaded, clusters when they are taken from what refcounts call free; so the fast path
//! never asks.
//!
//! Invariants: what is here has been found in exactly one role. It has what QEMU's `overlap-check=cached`
//! has (header, active L1 and L2 tables, refcount table and blocks, snapshot table), with the L1 tables of
//! snapshots and the directory and tables of bitmaps.
//! Threads: any. A lock is held for the look at a slice.
//! Limits: [`CHUNKS_MAX`].

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::geometry::OFFSET;
use crate::refcount::HostClusters;
use crate::snapshots::Snapshot;
use crate::table_reader::{MetadataError, MetadataTables, TableReader, wrong};

/// Clusters that have their bits together.
const CHUNK: u64 = 4096;

/// How many of those there may be: 64 MiB of memory, and with clusters of 64 KiB files of 32 TiB.
const CHUNKS_MAX: usize = 128 << 10;

pub(crate) const PROBLEM: &str = "is in a cluster that is something else too";

/// Which metadata structures a write is checked against (`overlap-check`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverlapCheck {
    /// Nothing.
    None,
    /// What is known without reading more than is read anyway.
    #[default]
    Cached,
    /// The L2 tables of snapshots as well.
    All,
}

/// The set of clusters that hold metadata.
#[derive(Debug, Default)]
pub(crate) struct MetadataClusters {
    chunks: Mutex<ClusterBitmap>,
    is_damaged: AtomicBool,
    check: OverlapCheck,
}

/// A sparse bitmap of clusters.
#[derive(Debug, Default)]
struct ClusterBitmap(HashMap<u64, Box<[u64; (CHUNK / 64) as usize]>>);

impl MetadataClusters {
    /// Finds all there is, and proves that it is inside the file and that no two things are in one
    /// cluster.
    pub(crate) async fn load(
        tables: &TableReader<'_>,
        check: OverlapCheck,
    ) -> Result<Self, MetadataError> {
        let (header, cluster) = (tables.header, tables.cluster_bytes());
        let found = Self { check, ..Self::default() };
        if check == OverlapCheck::None {
            return Ok(found);
        }
        let note = |what, clusters| found.note(what, clusters, cluster);
        let MetadataTables { snapshots, .. } = tables.metadata(note).await?;
        let l1_bytes = u64::from(header.l1_entries) * 8;
        let l2_table = |word: u64, _| match word & OFFSET {
            0 => Ok(()),
            table => {
                tables.check_place("an L2 table", table, cluster)?;
                found.note("an L2 table", table / cluster..table / cluster + 1, cluster)
            }
        };
        tables.for_words("the L1 table", header.l1_offset, l1_bytes, l2_table).await?;
        if check == OverlapCheck::All {
            for Snapshot { l1_offset, l1_entries } in snapshots {
                // Most of them are those of the image as well.
                let l2_table = |word: u64, _| {
                    let table = word & OFFSET;
                    if table != 0 {
                        tables.check_place("an L2 table of a snapshot", table, cluster)?;
                        found.add(table / cluster..table / cluster + 1);
                    }
                    Ok(())
                };
                let what = "the L1 table of a snapshot";
                tables.for_words(what, l1_offset, l1_entries * 8, l2_table).await?;
            }
        }
        Ok(found)
    }

    /// Adds clusters that must not be there yet.
    fn note(
        &self,
        what: &'static str,
        clusters: HostClusters,
        cluster_bytes: u64,
    ) -> Result<(), MetadataError> {
        let mut chunks = self.lock();
        for at in clusters {
            if !chunks.insert(at) {
                return Err(wrong(what, at * cluster_bytes, PROBLEM));
            }
        }
        if chunks.0.len() > CHUNKS_MAX {
            let bound = CHUNKS_MAX as u64 * CHUNK / 8;
            return Err(MetadataError::TooMuch { what: "the places of metadata", bound });
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ClusterBitmap> {
        self.chunks.lock().expect("nobody panics here")
    }

    /// These clusters are metadata from now on.
    pub(crate) fn add(&self, clusters: HostClusters) {
        let mut chunks = self.lock();
        for cluster in clusters {
            chunks.insert(cluster);
        }
    }

    /// These are no longer, before they are given back.
    pub(crate) fn remove(&self, clusters: HostClusters) {
        let mut chunks = self.lock();
        clusters.for_each(|cluster| chunks.remove(cluster));
    }

    /// The first of these clusters that is metadata.
    pub(crate) fn first_of(&self, clusters: impl Iterator<Item = Range<u64>>) -> Option<u64> {
        if self.check == OverlapCheck::None {
            return None;
        }
        let chunks = self.lock();
        // Neighbours are mostly in one chunk: it is looked up once.
        let mut last = (u64::MAX, None);
        clusters.flatten().find(|cluster| {
            let number = cluster / CHUNK;
            if number != last.0 {
                last = (number, chunks.0.get(&number));
            }
            let (word, bit) = place(*cluster);
            last.1.is_some_and(|chunk| chunk[word] & bit != 0)
        })
    }

    /// Notes that the image is damaged; whether that is news.
    pub(crate) fn set_damaged(&self) -> bool {
        !self.is_damaged.swap(true, Ordering::Relaxed)
    }

    /// Whether the image was found damaged.
    pub(crate) fn is_damaged(&self) -> bool {
        // It only gets true, and nothing else is read because of it.
        self.is_damaged.load(Ordering::Relaxed)
    }
}

impl ClusterBitmap {
    /// Whether it was not there.
    fn insert(&mut self, cluster: u64) -> bool {
        let chunk = self.0.entry(cluster / CHUNK).or_insert_with(|| Box::new([0; 64]));
        let (word, bit) = place(cluster);
        let is_new = chunk[word] & bit == 0;
        chunk[word] |= bit;
        is_new
    }

    fn remove(&mut self, cluster: u64) {
        if let Some(chunk) = self.0.get_mut(&(cluster / CHUNK)) {
            let (word, bit) = place(cluster);
            chunk[word] &= !bit;
        }
    }
}

/// The word of a chunk and the bit in it.
fn place(cluster: u64) -> (usize, u64) {
    let within = cluster % CHUNK;
    (usize::try_from(within / 64).expect("one of 64"), 1 << (within % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_come_and_go() {
        let metadata = MetadataClusters::default();
        metadata.add(60..70);
        metadata.add(1 << 40..(1 << 40) + 1);
        metadata.remove(62..64);
        let first_of = |range: Range<u64>| metadata.first_of(std::iter::once(range));
        assert_eq!(
            (first_of(0..100), first_of(62..64), first_of(62..100)),
            (Some(60), None, Some(64))
        );
        assert_eq!((first_of(70..9000), first_of(1 << 40..1 << 41)), (None, Some(1 << 40)));
        assert!(!metadata.is_damaged() && metadata.set_damaged());
        assert!(metadata.is_damaged() && !metadata.set_damaged());
    }
}
