//! Makes qcow2 images of any shape, with known content, without qemu-img.
//!
//! Where it stands: before the first life of the rig.
//!
//! Invariants: the image is consistent, without leaks, and each sector of the disk holds a stamp of its own.

use std::io::Read;
use std::ops::Range;

use anyhow::{Result, ensure};

use super::image::{
    COMPRESSED, COMPRESSION, COPIED, DATA_FILE, EXTENDED_L2, MAGIC, ZERO, put_refcount,
    refcount_max,
};
use crate::conformance::stamp::{SECTOR_BYTES, Stamp};
use crate::conformance::{index, number};
use crate::rng::Rng;

/// What compressed bytes are counted in.
const SECTOR: u64 = 512;

/// What an image is to be like.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says whether the image has a feature")]
pub struct Recipe {
    /// 2 or 3.
    pub version: u32,
    /// The size of a cluster is 2 to this.
    pub cluster_bits: u32,
    /// A refcount has 2 to this bits; 4 with version 2.
    pub refcount_order: u32,
    /// Whether L2 entries have 128 bits.
    pub extended_l2: bool,
    /// The bytes of the disk.
    pub size: u64,
    /// The bytes of its backing file, which is raw.
    pub backing: Option<u64>,
    /// Whether guest clusters are in another file.
    pub data_file: bool,
    /// Whether a snapshot shares what is there.
    pub snapshot: bool,
    /// Whether refcounts may be written late.
    pub lazy_refcounts: bool,
    /// How some clusters that are in the image first are compressed.
    pub compression: Option<Compression>,
    /// So many clusters of 100 are in the image first.
    pub filled: u64,
    /// Whether the file ends with its last sector that is not zeroes, in the middle of a cluster; and a data file with
    /// the last cluster that is there.
    pub cut: bool,
}

impl Recipe {
    /// Version 3, nothing special.
    #[must_use]
    pub fn plain(cluster_bits: u32, size: u64) -> Self {
        Self {
            version: 3,
            cluster_bits,
            refcount_order: 4,
            extended_l2: false,
            size,
            backing: None,
            data_file: false,
            snapshot: false,
            lazy_refcounts: false,
            compression: None,
            filled: 0,
            cut: false,
        }
    }

    /// Anything, with clusters of these sizes. Small images, so that requests meet.
    #[must_use]
    pub fn any(rng: &mut Rng, cluster_bits: Range<u32>) -> Self {
        if cluster_bits.start == 9 && rng.one_in(8) {
            return Self::crowded(rng);
        }
        let span = u64::from(cluster_bits.end - cluster_bits.start);
        let cluster_bits = cluster_bits.start + u32::try_from(rng.below(span)).expect("small");
        let clusters = if cluster_bits < 14 { 16 << rng.below(6) } else { 2 << rng.below(4) };
        let cut = if rng.one_in(3) { (1 + rng.below((1 << cluster_bits) / 512)) * 512 } else { 0 };
        let plain = Self::plain(cluster_bits, (clusters << cluster_bits) - cut + 512);
        let is_2 = rng.one_in(6);
        let refcount_order = if is_2 || rng.one_in(2) { 4 } else { [0, 1, 3, 5, 6][rng.index(5)] };
        let data_file = !is_2 && rng.one_in(8);
        let backing = (plain.size * (1 + rng.below(20)) / 10).next_multiple_of(512);
        Self {
            version: if is_2 { 2 } else { 3 },
            refcount_order,
            extended_l2: !is_2 && cluster_bits >= 14 && rng.one_in(4),
            backing: rng.one_in(3).then_some(backing),
            data_file,
            snapshot: !data_file && refcount_order > 0 && rng.one_in(5),
            lazy_refcounts: !is_2 && rng.one_in(8),
            compression: match rng.below(6) {
                _ if data_file => None,
                0 | 1 => Some(Compression::Deflate),
                2 if !is_2 => Some(Compression::Zstd),
                _ => None,
            },
            filled: [0, 0, 30, 100][rng.index(4)],
            cut: false,
            ..plain
        }
    }

    /// The smallest clusters and the widest refcounts: a block counts 64 clusters, and the first table 64 blocks, so
    /// blocks are made all the time, and the table may move.
    #[must_use]
    pub fn crowded(rng: &mut Rng) -> Self {
        // Three of four clusters that are filled have a place: the largest images are about to outgrow the table.
        let clusters = 3600 + rng.below(1850);
        Self { refcount_order: 6, filled: 75 + rng.below(21), ..Self::plain(9, clusters << 9) }
    }

    /// Makes the files.
    pub fn make(&self, rng: &mut Rng) -> Result<Made> {
        ensure!((9..=21).contains(&self.cluster_bits), "{self:?}: no such clusters");
        ensure!(
            self.version == 3 || (self.refcount_order, self.extended_l2) == (4, false),
            "{self:?}"
        );
        ensure!(
            !self.extended_l2 || self.cluster_bits >= 14,
            "{self:?}: subclusters are too small"
        );
        ensure!(!(self.data_file && self.snapshot), "{self:?}: both are not made");
        ensure!(self.compression.is_none() || !self.data_file, "{self:?}: nobody reads that");
        ensure!(self.compression != Some(Compression::Zstd) || self.version == 3, "{self:?}");
        ensure!(
            !self.snapshot || self.refcount_order > 0,
            "{self:?}: a refcount has no room for two"
        );
        let mut maker = Maker::new(self, None);
        maker.fill(rng);
        Ok(maker.finish())
    }

    /// Makes the files of a disk that holds what a file of that number holds first ([`Stamp::of_file`]): some of it in
    /// the image, the rest in the backing file. Without a backing file all is in the image.
    pub fn make_as_file(&self, file: usize, rng: &mut Rng) -> Result<Made> {
        let whole = Self {
            backing: self.backing.map(|_| self.size),
            filled: if self.backing.is_some() { self.filled } else { 100 },
            ..self.clone()
        };
        let mut maker = Maker::new(&whole, Some(file));
        maker.fill(rng);
        Ok(maker.finish())
    }
}

/// Images of so large clusters that hold these bytes together, the lowest first: it has all clusters, with other bytes in those
/// that the image above it has.
#[must_use]
pub fn chain(bytes: &[u8], cluster_bits: u32) -> Vec<Vec<u8>> {
    let recipe = Recipe::plain(cluster_bits, number(bytes.len()));
    let image = |is_upper: bool| {
        let mut maker = Maker::new(&recipe, None);
        for (place, part) in (0..).zip(bytes.chunks(1 << cluster_bits)) {
            let is_above = place % 2 == 1;
            if is_upper && !is_above {
                continue;
            }
            let entry = maker.entry(place);
            let host = maker.allocate(1);
            maker.put(entry, host | COPIED);
            let place = &mut maker.image[index(host)..][..part.len()];
            if is_upper == is_above { place.copy_from_slice(part) } else { place.fill(0x5a) }
        }
        maker.finish().image
    };
    vec![image(false), image(true)]
}

/// How clusters are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As a stream of deflate without a header.
    Deflate,
    /// As a frame of zstd.
    Zstd,
}

impl Compression {
    fn compress(self, cluster: &[u8]) -> Vec<u8> {
        let mut compressed = Vec::new();
        match self {
            Self::Deflate => {
                let level = flate2::Compression::default();
                let mut stream = flate2::read::DeflateEncoder::new(cluster, level);
                stream.read_to_end(&mut compressed).expect("memory is read");
            }
            Self::Zstd => {
                compressed.resize(zstd_safe::compress_bound(cluster.len()), 0);
                let result = zstd_safe::compress(&mut compressed[..], cluster, 3);
                compressed.truncate(result.expect("there is room"));
            }
        }
        compressed
    }
}

/// The files of an image, and what the disk holds.
#[derive(Clone, Debug)]
pub struct Made {
    /// The image.
    pub image: Vec<u8>,
    /// Its backing file.
    pub backing: Option<Vec<u8>>,
    /// Its data file.
    pub data: Option<Vec<u8>>,
    /// What the disk holds.
    pub content: Vec<u8>,
    /// Bytes of a cluster.
    pub cluster: u64,
}

/// The name in the image of its backing file, and of its data file.
pub const BACKING_NAME: &str = "backing.raw";
/// The name of its data file.
pub const DATA_NAME: &str = "data.raw";

struct Maker<'a> {
    recipe: &'a Recipe,
    /// The file whose stamps all sectors have, if they are one file's.
    file: Option<usize>,
    cluster: u64,
    /// The image, cluster by cluster, and how often each is used.
    image: Vec<u8>,
    refs: Vec<u64>,
    data: Vec<u8>,
    backing: Option<Vec<u8>>,
    content: Vec<u8>,
    l1: u64,
    l1_size: u64,
    snapshot_l1: u64,
    /// Where the last compressed cluster ends.
    packed: u64,
}

impl<'a> Maker<'a> {
    fn new(recipe: &'a Recipe, file: Option<usize>) -> Self {
        let cluster = 1 << recipe.cluster_bits;
        let backing = recipe.backing.map(|bytes| stamped(file.unwrap_or(0), bytes));
        let mut content = vec![0; index(recipe.size)];
        let behind = backing.as_deref().unwrap_or_default();
        let count = behind.len().min(content.len());
        content[..count].copy_from_slice(&behind[..count]);
        let entry = if recipe.extended_l2 { 16 } else { 8 };
        let l1_size = recipe.size.div_ceil(cluster * cluster / entry);
        let (image, refs, data) = (Vec::new(), Vec::new(), Vec::new());
        let mut maker = Self {
            recipe,
            file,
            cluster,
            image,
            refs,
            data,
            backing,
            content,
            l1: 0,
            l1_size,
            snapshot_l1: 0,
            packed: 0,
        };
        maker.allocate(1);
        maker.l1 = maker.allocate((l1_size * 8).div_ceil(cluster));
        maker
    }

    /// Clusters at the end of the image; where they begin.
    fn allocate(&mut self, clusters: u64) -> u64 {
        let at = number(self.image.len());
        self.image.resize(index(at + clusters * self.cluster), 0);
        self.refs.resize(self.refs.len() + index(clusters), 1);
        at
    }

    fn put(&mut self, at: u64, value: u64) {
        self.image[index(at)..index(at) + 8].copy_from_slice(&value.to_be_bytes());
    }

    fn get(&self, at: u64) -> u64 {
        u64::from_be_bytes(self.image[index(at)..index(at) + 8].try_into().expect("eight bytes"))
    }

    /// Where the L2 entry of a cluster of the disk is.
    fn entry(&mut self, place: u64) -> u64 {
        let bytes = if self.recipe.extended_l2 { 16 } else { 8 };
        let entries = self.cluster / bytes;
        let at = self.l1 + place / entries * 8;
        if self.get(at) == 0 {
            let l2 = self.allocate(1);
            self.put(at, l2 | COPIED);
        }
        (self.get(at) & !COPIED) + place % entries * bytes
    }

    fn fill(&mut self, rng: &mut Rng) {
        for place in 0..self.recipe.size.div_ceil(self.cluster) {
            if rng.below(100) >= self.recipe.filled {
                continue;
            }
            let entry = self.entry(place);
            let may_compress = self.recipe.compression.is_some() && self.file.is_none();
            if may_compress && rng.one_in(2) && self.compress(place, entry) {
                continue;
            }
            let has_zeroes = self.recipe.version == 3 && self.file.is_none();
            let kind = if has_zeroes { rng.below(4) } else { 0 };
            match kind {
                0 | 1 => {
                    let host = self.host(place);
                    self.put(entry, host | COPIED);
                    self.put_bitmap(entry, 0xffff_ffff);
                    self.store(place, host);
                }
                2 => {
                    let host = self.host(place);
                    let zero = if self.recipe.extended_l2 { 0 } else { ZERO };
                    self.put(entry, host | zero | COPIED);
                    self.put_bitmap(entry, 0xffff_ffff << 32);
                    self.zero(place);
                }
                _ => {
                    self.put(entry, if self.recipe.extended_l2 { 0 } else { ZERO });
                    self.put_bitmap(entry, 0xffff_ffff << 32);
                    self.zero(place);
                }
            }
        }
    }

    fn put_bitmap(&mut self, entry: u64, bitmap: u64) {
        if self.recipe.extended_l2 {
            self.put(entry + 8, bitmap);
        }
    }

    /// A cluster for the bytes of a cluster of the disk.
    fn host(&mut self, place: u64) -> u64 {
        if !self.recipe.data_file {
            return self.allocate(1);
        }
        let end = index((place + 1) * self.cluster).max(self.data.len());
        self.data.resize(end, 0);
        place * self.cluster
    }

    /// The bytes of a cluster are there: stamps that nobody else has.
    fn store(&mut self, place: u64, host: u64) {
        let start = index(place * self.cluster);
        let end = self.content.len().min(start + index(self.cluster));
        for (sector, bytes) in (0..).zip(self.content[start..end].chunks_exact_mut(SECTOR_BYTES)) {
            let sector = number(start / SECTOR_BYTES) + sector;
            Stamp::of_file(self.file.unwrap_or(1), sector).fill(bytes);
        }
        let file = if self.recipe.data_file { &mut self.data } else { &mut self.image };
        let host = index(host);
        file[host..host + end - start].copy_from_slice(&self.content[start..end]);
        // What lies behind the end of the disk is nobody's.
        file[host + end - start..host + index(self.cluster)].fill(0);
    }

    /// Stamps whose cluster is compressed, behind the one that was compressed before, if it gets smaller by
    /// that, and the refcounts have room. Compressed clusters may begin and end anywhere.
    fn compress(&mut self, place: u64, entry: u64) -> bool {
        let Some(compression) = self.recipe.compression else { return false };
        let start = index(place * self.cluster);
        let end = self.content.len().min(start + index(self.cluster));
        let mut cluster = vec![0; index(self.cluster)];
        // Every second stamp: zeroes can be compressed.
        for (sector, bytes) in (0..).zip(cluster[..end - start].chunks_exact_mut(SECTOR_BYTES)) {
            let sector: u64 = number(start / SECTOR_BYTES) + sector;
            if sector.is_multiple_of(2) {
                Stamp::of_file(1, sector).fill(bytes);
            }
        }
        let bytes = compression.compress(&cluster);
        let count = number(bytes.len());
        if count >= self.cluster {
            return false;
        }
        let users_max = refcount_max(self.recipe.refcount_order) / 2;
        let last = self.packed / self.cluster;
        let has_room = !self.packed.is_multiple_of(self.cluster)
            && self.refs[index(last)] < users_max
            && (self.packed % self.cluster + count <= self.cluster
                || (last + 1) * self.cluster == number(self.image.len()));
        let at = if has_room { self.packed } else { number(self.image.len()) };
        let sectors = (at + count - 1) / SECTOR - at / SECTOR;
        let touched =
            at / self.cluster..((at / SECTOR + sectors + 1) * SECTOR).div_ceil(self.cluster);
        while number(self.image.len()) < touched.end * self.cluster {
            self.allocate(1);
            *self.refs.last_mut().expect("just added") = 0;
        }
        touched.for_each(|cluster| self.refs[index(cluster)] += 1);
        self.image[index(at)..index(at) + bytes.len()].copy_from_slice(&bytes);
        self.packed = at + count;
        self.put(entry, COMPRESSED | sectors << (62 - (self.recipe.cluster_bits - 8)) | at);
        self.content[start..end].copy_from_slice(&cluster[..end - start]);
        true
    }

    fn zero(&mut self, place: u64) {
        let start = index(place * self.cluster);
        let end = self.content.len().min(start + index(self.cluster));
        self.content[start..end].fill(0);
    }

    /// A snapshot of what is there: all of it is used twice, and no entry says COPIED.
    fn take_snapshot(&mut self) -> u64 {
        self.snapshot_l1 = self.allocate((self.l1_size * 8).div_ceil(self.cluster));
        for place in 0..self.l1_size {
            let l2 = self.get(self.l1 + place * 8) & !COPIED;
            self.put(self.l1 + place * 8, l2);
            self.put(self.snapshot_l1 + place * 8, l2);
            if l2 == 0 {
                continue;
            }
            self.refs[index(l2 / self.cluster)] += 1;
            let entry_bytes = if self.recipe.extended_l2 { 16 } else { 8 };
            for at in (l2..l2 + self.cluster).step_by(index(entry_bytes)) {
                let entry = self.get(at) & !COPIED;
                self.put(at, entry);
                if entry & COMPRESSED != 0 {
                    let split = 62 - (self.recipe.cluster_bits - 8);
                    let start = (entry & ((1 << split) - 1)) / SECTOR;
                    let sectors = (entry & (COMPRESSED - 1)) >> split;
                    let end = (start + sectors + 1) * SECTOR;
                    for cluster in start * SECTOR / self.cluster..end.div_ceil(self.cluster) {
                        self.refs[index(cluster)] += 1;
                    }
                } else if entry & !ZERO != 0 {
                    self.refs[index((entry & !ZERO) / self.cluster)] += 1;
                }
            }
        }
        let table = self.allocate(1);
        self.put(table, self.snapshot_l1);
        let (size, at) = (u32::try_from(self.l1_size).expect("a small image"), index(table));
        self.image[at + 8..at + 12].copy_from_slice(&size.to_be_bytes());
        // Identity and name of a byte each; 24 bytes more, the second of which is the size of the disk.
        self.image[at + 12..at + 16].copy_from_slice(&[0, 1, 0, 1]);
        self.image[at + 36..at + 40].copy_from_slice(&24_u32.to_be_bytes());
        self.put(table + 48, self.recipe.size);
        self.put(table + 56, u64::MAX);
        self.image[at + 64..at + 66].copy_from_slice(b"1s");
        table
    }

    fn finish(mut self) -> Made {
        let snapshots = if self.recipe.snapshot { self.take_snapshot() } else { 0 };
        let order = self.recipe.refcount_order;
        let per_block = (self.cluster * 8) >> order;
        let (mut blocks, mut tables) = (1, 1);
        loop {
            let all = number(self.refs.len()) + blocks + tables;
            let wanted = (all.div_ceil(per_block), (blocks * 8).div_ceil(self.cluster));
            if wanted <= (blocks, tables) {
                break;
            }
            (blocks, tables) = (blocks.max(wanted.0), tables.max(wanted.1));
        }
        let table = self.allocate(tables);
        for block in 0..blocks {
            let at = self.allocate(1);
            self.put(table + block * 8, at);
        }
        for (place, count) in (0..).zip(self.refs.clone()) {
            assert!(count <= refcount_max(order), "a refcount of {count} in 2^{order} bits");
            let block = index(self.get(table + place / per_block * 8));
            put_refcount(&mut self.image[block..], order, place % per_block, count);
        }
        self.header(table, tables, snapshots);
        if !self.recipe.cut && self.recipe.data_file {
            // As qemu-img makes it.
            let end = self.content.len().max(self.data.len());
            self.data.resize(end, 0);
        }
        if self.recipe.cut {
            let last = self.image.iter().rposition(|byte| *byte != 0).expect("a header");
            self.image.truncate((last + 1).next_multiple_of(SECTOR_BYTES));
        }
        let Self { recipe, image, data, backing, content, cluster, .. } = self;
        Made { image, backing, data: recipe.data_file.then_some(data), content, cluster }
    }

    fn header(&mut self, refcounts: u64, refcount_clusters: u64, snapshots: u64) {
        let Recipe { version, cluster_bits, refcount_order, .. } = *self.recipe;
        let small = |value: u64| u32::try_from(value).expect("a small image");
        let mut bytes = Vec::new();
        let word = |bytes: &mut Vec<u8>, value: u32| bytes.extend(value.to_be_bytes());
        let long = |bytes: &mut Vec<u8>, value: u64| bytes.extend(value.to_be_bytes());
        let name = if self.backing.is_some() { BACKING_NAME } else { "" };
        let length = if version == 3 { 112 } else { 72 };
        let mut extensions: Vec<(u32, &[u8])> = Vec::new();
        if self.backing.is_some() {
            extensions.push((0xe279_2aca, b"raw"));
        }
        if self.recipe.data_file {
            extensions.push((0x4441_5441, DATA_NAME.as_bytes()));
        }
        let padded = |(_, bytes): &(u32, &[u8])| 8 + number(bytes.len()).next_multiple_of(8);
        let name_at = length + extensions.iter().map(padded).sum::<u64>() + 8;
        word(&mut bytes, MAGIC);
        word(&mut bytes, version);
        long(&mut bytes, if name.is_empty() { 0 } else { name_at });
        word(&mut bytes, small(number(name.len())));
        word(&mut bytes, cluster_bits);
        long(&mut bytes, self.recipe.size);
        word(&mut bytes, 0);
        word(&mut bytes, small(self.l1_size));
        long(&mut bytes, self.l1);
        long(&mut bytes, refcounts);
        word(&mut bytes, small(refcount_clusters));
        word(&mut bytes, u32::from(self.recipe.snapshot));
        long(&mut bytes, snapshots);
        if version == 3 {
            let feature = |is_there, bit| if is_there { bit } else { 0 };
            let is_zstd = self.recipe.compression == Some(Compression::Zstd);
            let incompatible = feature(self.recipe.data_file, DATA_FILE)
                | feature(is_zstd, COMPRESSION)
                | feature(self.recipe.extended_l2, EXTENDED_L2);
            long(&mut bytes, incompatible);
            long(&mut bytes, u64::from(self.recipe.lazy_refcounts));
            long(&mut bytes, 0);
            word(&mut bytes, refcount_order);
            word(&mut bytes, small(length));
            // The type of compression, and padding.
            long(&mut bytes, feature(is_zstd, 1 << 56));
        }
        for (kind, value) in extensions {
            word(&mut bytes, kind);
            word(&mut bytes, small(number(value.len())));
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        long(&mut bytes, 0);
        bytes.extend(name.as_bytes());
        self.image[..bytes.len()].copy_from_slice(&bytes);
    }
}

/// Bytes with a stamp in each sector.
fn stamped(file: usize, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; index(count)];
    for (sector, bytes) in (0..).zip(bytes.chunks_exact_mut(SECTOR_BYTES)) {
        Stamp::of_file(file, sector).fill(bytes);
    }
    bytes
}
