//! A checker of qcow2 images, written from the specification: judges as `qemu-img check` does.
//!
//! Where it stands: after each life of the rig. A refcount that is too low, two users of one cluster, a table outside
//! the file, a reserved bit and a wrong COPIED flag are errors; a refcount that is too high is a leak.
//!
//! Limits: refcounts of an image with the dirty bit are not judged; whoever opens it counts them anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

use super::disk::Snapshot;
use super::image::{
    BITMAPS, BITMAPS_EXTENSION, COMPRESSED, COPIED, CORRUPT, DATA_FILE, DIRTY, EXTENDED_L2, Header,
    L2Entry, OFFSET, ZERO, be16, be32, be64, bound, clusters, get_refcount, refcount,
};
use crate::conformance::{index, number};

/// What was found.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What must not be.
    pub errors: Vec<ImageError>,
    /// Clusters whose refcount is higher than the number of their users.
    pub leaks: u64,
    /// The last cluster that anybody uses, and one more.
    pub used_clusters: u64,
}

/// Something that must not be, and the bytes of the file that are concerned.
#[derive(Debug)]
pub struct ImageError {
    /// A sentence.
    pub text: String,
    /// The bytes.
    pub bytes: Range<u64>,
}

/// What a cluster is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Header,
    L1,
    L2,
    Data,
    Compressed,
    RefcountTable,
    RefcountBlock,
    SnapshotTable,
    SnapshotL1,
    Bitmap,
}

#[derive(Debug)]
struct Checker<'a> {
    image: &'a Snapshot,
    header: Header,
    uses: BTreeMap<u64, Vec<Use>>,
    /// Where entries name clusters, for messages: the last one.
    named: BTreeMap<u64, String>,
    /// The clusters that the L1 table names which is being checked: none twice.
    below: BTreeSet<u64>,
    verdict: Verdict,
}

/// Checks an image; the error is that it is none.
pub fn check(image: &Snapshot) -> Result<Verdict, String> {
    let header = Header::read(image)?;
    let mut checker = Checker {
        image,
        header,
        uses: BTreeMap::new(),
        named: BTreeMap::new(),
        below: BTreeSet::new(),
        verdict: Verdict::default(),
    };
    if header.has(CORRUPT) {
        checker.error("the image is marked corrupt".to_owned(), 72..80);
    }
    checker.add(0, header.cluster(), Use::Header, "the header");
    checker.active_table()?;
    checker.snapshots()?;
    checker.bitmaps()?;
    checker.refcounts()?;
    if !header.has(DIRTY) {
        checker.compare();
    }
    Ok(checker.verdict)
}

/// How the image names the cluster of a byte of the disk.
pub fn describe_place(image: &Snapshot, byte: u64) -> String {
    let header = match Header::read(image) {
        Ok(header) => header,
        Err(error) => return error,
    };
    let cluster = byte / header.cluster();
    let l1 = be64(image, header.l1_offset + cluster / header.l2_entries() * 8);
    let entry = header.entry(image, header.l1_offset, cluster);
    let mut text = format!(
        "byte {byte:#x} is in guest cluster {cluster} of {:#x} bytes: L1 {l1:#x}, L2 {:#x} {:#x} at {:#x}",
        header.cluster(),
        entry.word,
        entry.bitmap,
        entry.at
    );
    if let Some(host) = header.host(entry).filter(|_| entry.word & COMPRESSED == 0) {
        let count = refcount(image, &header, host >> header.cluster_bits);
        write!(text, ", refcount {count}").expect("a string takes all");
    }
    text
}

impl Checker<'_> {
    fn error(&mut self, text: String, bytes: Range<u64>) {
        self.verdict.errors.push(ImageError { text, bytes });
    }

    /// Somebody uses the clusters of some bytes.
    fn add(&mut self, at: u64, count: u64, what: Use, by: &str) {
        let cluster = self.header.cluster();
        if count == 0 {
            return;
        }
        let end = at.saturating_add(count);
        // As qemu-img judges: the end of the file may be missing, but no whole cluster.
        if end >= self.image.bytes().saturating_add(cluster) {
            let file = self.image.bytes();
            let text = format!("{by} at {at:#x} lies outside the file, which has {file:#x} bytes");
            return self.error(text, at..end);
        }
        for place in at / cluster..end.div_ceil(cluster) {
            let users = self.uses.entry(place).or_default();
            // Compressed clusters share sectors; tables and data are shared with snapshots.
            let may_share = users.is_empty()
                || (matches!(what, Use::Compressed | Use::L2 | Use::Data)
                    && users.iter().all(|other| *other == what));
            let is_second = matches!(what, Use::L2 | Use::Data) && !self.below.insert(place);
            users.push(what);
            let before = self.named.insert(place, by.to_owned());
            if !may_share || is_second {
                let users = users.clone();
                let before = before.unwrap_or_default();
                let text = format!("cluster {place:#x} is used as {users:?}: {before}, and {by}");
                self.error(text, place * cluster..(place + 1) * cluster);
            }
        }
        self.verdict.used_clusters = self.verdict.used_clusters.max(end.div_ceil(cluster));
    }

    fn is_aligned(&mut self, offset: u64, by: &str, at: u64) -> bool {
        let is_aligned = offset.is_multiple_of(self.header.cluster());
        if !is_aligned {
            self.error(format!("{by} is at {offset:#x}, in the middle of a cluster"), at..at + 8);
        }
        is_aligned
    }

    fn active_table(&mut self) -> Result<(), String> {
        let Header { l1_offset, l1_size, .. } = self.header;
        let needed = clusters(&self.header).div_ceil(self.header.l2_entries());
        if u64::from(l1_size) < needed {
            self.error(format!("the L1 table has {l1_size} entries, and needs {needed}"), 36..40);
        }
        self.table(l1_offset, l1_size, Use::L1, "the L1 table")
    }

    /// An L1 table and all below it.
    fn table(&mut self, offset: u64, size: u32, what: Use, by: &str) -> Result<(), String> {
        bound(size.into(), self.image.bytes())?;
        if !self.is_aligned(offset, by, 40) {
            return Ok(());
        }
        self.add(offset, u64::from(size) * 8, what, by);
        let is_active = what == Use::L1;
        self.below.clear();
        for place in 0..u64::from(size) {
            let at = offset + place * 8;
            let entry = be64(self.image, at);
            let l2 = entry & OFFSET;
            let by = format!("L2 table {place} of {by}, named at {at:#x}");
            if entry & !(OFFSET | COPIED) != 0 {
                self.error(format!("reserved bits in {entry:#x}: {by}"), at..at + 8);
            }
            if l2 == 0 {
                continue;
            }
            if !self.is_aligned(l2, &by, at) {
                continue;
            }
            self.copied(entry, l2, is_active, &by, at);
            self.add(l2, self.header.cluster(), Use::L2, &by);
            self.l2_table(l2, is_active, &by);
        }
        Ok(())
    }

    fn l2_table(&mut self, l2: u64, is_active: bool, table: &str) {
        let entry_bytes = index(self.header.l2_entry_bytes());
        let mut bytes = vec![0; index(self.header.cluster())];
        self.image.read(l2, &mut bytes);
        for (place, bytes) in (0..).zip(bytes.chunks_exact(entry_bytes)) {
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            let entry = self.header.entry_at(self.image, l2 + place * self.header.l2_entry_bytes());
            let at = entry.at;
            let by = format!(
                "entry {place} of {table}, {:#x} {:#x} at {at:#x}",
                entry.word, entry.bitmap
            );
            if entry.word & COMPRESSED != 0 {
                self.compressed(entry, &by);
                continue;
            }
            self.reserved(entry, &by);
            let Some(host) = self.header.host(entry) else { continue };
            if !self.is_aligned(host, &by, at) {
                continue;
            }
            if self.header.has(DATA_FILE) {
                if is_active && entry.word & COPIED == 0 {
                    self.error(format!("no COPIED flag: {by}"), at..at + 8);
                }
                continue;
            }
            self.copied(entry.word, host, is_active, &by, at);
            self.add(host, self.header.cluster(), Use::Data, &by);
        }
    }

    fn reserved(&mut self, entry: L2Entry, by: &str) {
        let mut known = OFFSET | COPIED;
        if self.header.version == 3 && !self.header.has(EXTENDED_L2) {
            known |= ZERO;
        }
        if entry.word & !known != 0 {
            self.error(format!("reserved bits: {by}"), entry.at..entry.at + 8);
        }
        if self.header.has(EXTENDED_L2) {
            for part in 0..32 {
                if let Err(error) = self.header.content(entry, part) {
                    self.error(format!("{error}: {by}"), entry.at..entry.at + 16);
                }
            }
        }
    }

    /// Bits 0 to x of a compressed entry are its place in bytes, the others count sectors of 512 bytes.
    fn compressed(&mut self, entry: L2Entry, by: &str) {
        let bytes = self.header.compressed_bytes(entry);
        if entry.word & COPIED != 0 {
            self.error(
                format!("a compressed cluster has the COPIED flag: {by}"),
                entry.at..entry.at + 8,
            );
        }
        let start = bytes.start & !511;
        self.add(start, bytes.end - start, Use::Compressed, by);
    }

    /// In the active tables the flag says that the refcount is one. An image whose refcounts may be wrong is not judged.
    fn copied(&mut self, entry: u64, offset: u64, is_active: bool, by: &str, at: u64) {
        if !is_active || self.header.has(DIRTY) {
            return;
        }
        let count = refcount(self.image, &self.header, offset >> self.header.cluster_bits);
        if (count == 1) != (entry & COPIED != 0) {
            let text =
                format!("the COPIED flag does not fit refcount {count} of {offset:#x}: {by}");
            self.error(text, at..at + 8);
        }
    }

    fn snapshots(&mut self) -> Result<(), String> {
        let Header { snapshots, snapshots_offset, .. } = self.header;
        bound(snapshots.into(), self.image.bytes())?;
        let mut at = snapshots_offset;
        for place in 0..snapshots {
            let (l1_offset, l1_size) = (be64(self.image, at), be32(self.image, at + 8));
            let names = u64::from(be16(self.image, at + 12)) + u64::from(be16(self.image, at + 14));
            let extra = u64::from(be32(self.image, at + 36));
            self.table(l1_offset, l1_size, Use::SnapshotL1, &format!("snapshot {place}"))?;
            at = (at + 40 + extra + names).next_multiple_of(8);
        }
        self.add(snapshots_offset, at - snapshots_offset, Use::SnapshotTable, "the snapshot table");
        Ok(())
    }

    fn bitmaps(&mut self) -> Result<(), String> {
        let mut at = u64::from(self.header.length);
        while self.header.autoclear & BITMAPS != 0 && at + 8 <= self.header.cluster() {
            let (kind, count) = (be32(self.image, at), u64::from(be32(self.image, at + 4)));
            match kind {
                0 => break,
                BITMAPS_EXTENSION => {
                    let bitmaps = be32(self.image, at + 8);
                    let (bytes, offset) = (be64(self.image, at + 16), be64(self.image, at + 24));
                    self.add(offset, bytes, Use::Bitmap, "the directory of bitmaps");
                    self.bitmap_tables(bitmaps, offset)?;
                }
                _ => {}
            }
            at = (at + 8 + count).next_multiple_of(8);
        }
        Ok(())
    }

    fn bitmap_tables(&mut self, bitmaps: u32, directory: u64) -> Result<(), String> {
        let mut at = directory;
        for place in 0..bitmaps {
            let (offset, entries) = (be64(self.image, at), u64::from(be32(self.image, at + 8)));
            let (name, extra) = (be16(self.image, at + 18), be32(self.image, at + 20));
            bound(entries, self.image.bytes())?;
            self.add(offset, entries * 8, Use::Bitmap, &format!("the table of bitmap {place}"));
            for entry in 0..entries {
                let cluster = be64(self.image, offset + entry * 8) & OFFSET;
                if cluster != 0 {
                    let by = format!("entry {entry} of bitmap {place}");
                    self.add(cluster, self.header.cluster(), Use::Bitmap, &by);
                }
            }
            at = (at + 24 + u64::from(extra) + u64::from(name)).next_multiple_of(8);
        }
        Ok(())
    }

    fn refcounts(&mut self) -> Result<(), String> {
        let Header { refcount_offset, refcount_clusters, .. } = self.header;
        let cluster = self.header.cluster();
        bound(refcount_clusters.into(), self.image.bytes())?;
        let bytes = u64::from(refcount_clusters) * cluster;
        self.add(refcount_offset, bytes, Use::RefcountTable, "the refcount table");
        for place in 0..bytes / 8 {
            let at = refcount_offset + place * 8;
            let block = be64(self.image, at);
            let by = format!("refcount block {place}, named at {at:#x}");
            if block & 0x1ff != 0 {
                self.error(format!("reserved bits in {block:#x}: {by}"), at..at + 8);
            }
            if block != 0 && self.is_aligned(block, &by, at) {
                self.add(block, cluster, Use::RefcountBlock, &by);
            }
        }
        Ok(())
    }

    /// Every cluster that is used or counted.
    fn compare(&mut self) {
        let header = self.header;
        let (order, cluster) = (header.refcount_order, header.cluster());
        let per_block = (cluster * 8) >> order;
        let entries = u64::from(header.refcount_clusters) * cluster / 8;
        let mut counted = BTreeMap::new();
        for place in 0..entries {
            let block = be64(self.image, header.refcount_offset + place * 8);
            if block == 0 || !block.is_multiple_of(cluster) {
                continue;
            }
            let mut bytes = vec![0; index(cluster)];
            self.image.read(block, &mut bytes);
            for it in 0..per_block {
                let count = get_refcount(&bytes, order, it);
                if count > 0 {
                    counted.insert(place * per_block + it, count);
                }
            }
        }
        let uses = std::mem::take(&mut self.uses);
        for (place, users) in &uses {
            let count = counted.get(place).copied().unwrap_or(0);
            let wanted = number(users.len());
            if count < wanted {
                let by = &self.named[place];
                let text = format!(
                    "cluster {place:#x} at {:#x} has {wanted} users {users:?} and refcount {count}: {by}",
                    place * cluster
                );
                self.error(text, place * cluster..(place + 1) * cluster);
            }
        }
        let users = |place: &u64| uses.get(place).map_or(0, |users| number(users.len()));
        let leaks = counted.iter().filter(|(place, count)| **count > users(place)).count();
        self.verdict.leaks = number(leaks);
    }
}
