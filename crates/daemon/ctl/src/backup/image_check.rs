//! Whether all that an image names lies inside its file: its tables, and the clusters that they name. A file of which the end was
//! lost is found so; bytes that were changed inside it are not, which only reading all of it can.
//!
//! Invariants: nothing in an image is trusted. What is read is bounded by the file: no table is read twice.
//! Limits: of each kind of table a cluster is in memory at a time, 2 MiB at most (`Header::parse`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use qcow2::Header;

/// The offset in an entry of a table, in standard entries of L2 tables too.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// The offset in an entry of the refcount table.
const REFCOUNT_OFFSET: u64 = !0x1ff;

/// An L2 entry of a cluster that is compressed.
const COMPRESSED: u64 = 1 << 62;

/// An L2 entry of a cluster that reads as zeroes, whatever it has a place for.
const ZERO: u64 = 1;

/// What of an image is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageGap {
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("it is cut off: {what} at byte {at} ends behind its {file_bytes} bytes")]
    Behind { what: &'static str, at: u64, file_bytes: u64 },
    #[error("{what} at byte {at} is no cluster")]
    Misplaced { what: &'static str, at: u64 },
    #[error("it has {found} clusters of L2 tables and refcount blocks, more than its file")]
    TooMany { found: u64 },
}

/// How exactly the last cluster has to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileEnd {
    /// All of it, as in each backup that has its name.
    Whole,
    /// Some of it: somebody may be writing it.
    Begun,
}

/// Checks it.
pub(crate) fn check_clusters(file: &File, header: &Header, end: FileEnd) -> Result<(), ImageGap> {
    let file_bytes = file.metadata()?.len();
    let cluster = 1_u64 << header.cluster_bits;
    let bytes = match end {
        FileEnd::Whole => file_bytes,
        FileEnd::Begun => file_bytes.next_multiple_of(cluster),
    };
    let mut check = ClusterCheck { file, header, cluster, file_bytes, bytes, tables: 0 };
    check.refcounts()?;
    check.disk()
}

struct ClusterCheck<'a> {
    file: &'a File,
    header: &'a Header,
    cluster: u64,
    file_bytes: u64,
    /// Where all has to end.
    bytes: u64,
    /// How many were found: not more than the file has clusters, if it names each of them once.
    tables: u64,
}

impl ClusterCheck<'_> {
    /// The refcount table, and the blocks that it names.
    fn refcounts(&mut self) -> Result<(), ImageGap> {
        let Header { refcount_table_offset: at, refcount_table_clusters: clusters, .. } =
            *self.header;
        let bytes = u64::from(clusters) << self.header.cluster_bits;
        self.each_entry("the refcount table", at, bytes, |check, entry| {
            let block = entry & REFCOUNT_OFFSET;
            if block == 0 { Ok(()) } else { check.table("a refcount block", block) }
        })
    }

    /// The L1 table, the L2 tables that it names, and the clusters of the disk that they name.
    fn disk(&mut self) -> Result<(), ImageGap> {
        let Header { l1_offset, l1_entries, .. } = *self.header;
        self.each_entry("the L1 table", l1_offset, u64::from(l1_entries) * 8, |check, entry| {
            let table = entry & OFFSET;
            if table == 0 {
                return Ok(());
            }
            check.table("an L2 table", table)?;
            check.l2_table(table)
        })
    }

    fn l2_table(&self, at: u64) -> Result<(), ImageGap> {
        let table = self.read(at, self.cluster)?;
        let words = if self.header.features.extended_l2 { 2 } else { 1 };
        let mut entries = table.chunks_exact(8 * words);
        entries.try_for_each(|entry| {
            let (word, subclusters) = (word(entry), entry.get(8..16).map(word));
            let is_data = match subclusters {
                // The lower half says which of them have data.
                Some(bits) => bits & u64::from(u32::MAX) != 0,
                None => word & ZERO == 0,
            };
            if word & COMPRESSED != 0 {
                let bits = 62 - (self.header.cluster_bits - 8);
                return self.inside("a compressed cluster", word & ((1 << bits) - 1), 1);
            }
            match word & OFFSET {
                0 => Ok(()),
                _ if !is_data => Ok(()),
                cluster => self.cluster("a cluster of the disk", cluster),
            }
        })
    }

    /// Looks at the entries of a table, of 8 bytes each, a part of it at a time.
    fn each_entry(
        &mut self,
        what: &'static str,
        at: u64,
        bytes: u64,
        mut look: impl FnMut(&mut Self, u64) -> Result<(), ImageGap>,
    ) -> Result<(), ImageGap> {
        self.inside(what, at, bytes)?;
        let mut done = 0;
        while done < bytes {
            let part = self.read(at + done, self.cluster.min(bytes - done))?;
            done += part.len() as u64;
            part.chunks_exact(8).try_for_each(|entry| look(self, word(entry)))?;
        }
        Ok(())
    }

    /// A cluster with a table.
    fn table(&mut self, what: &'static str, at: u64) -> Result<(), ImageGap> {
        self.tables += 1;
        if self.tables > self.bytes / self.cluster {
            return Err(ImageGap::TooMany { found: self.tables });
        }
        self.cluster(what, at)
    }

    fn cluster(&self, what: &'static str, at: u64) -> Result<(), ImageGap> {
        if !at.is_multiple_of(self.cluster) {
            return Err(ImageGap::Misplaced { what, at });
        }
        self.inside(what, at, self.cluster)
    }

    fn inside(&self, what: &'static str, at: u64, bytes: u64) -> Result<(), ImageGap> {
        match at.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(ImageGap::Behind { what, at, file_bytes: self.file_bytes }),
        }
    }

    /// Bytes of the file; what lies behind its end is zeroes.
    fn read(&self, at: u64, bytes: u64) -> Result<Vec<u8>, ImageGap> {
        let there = self.file_bytes.saturating_sub(at).min(bytes);
        let [bytes, there] =
            [bytes, there].map(|it| usize::try_from(it).expect("a cluster fits memory"));
        let mut found = vec![0; bytes];
        self.file.read_exact_at(&mut found[..there], at)?;
        Ok(found)
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().expect("it has 8 bytes"))
}
