//! The rows of qcow2 images: what a format costs beside raw, and beside qemu-storage-daemon's.

use super::{Client, Disk, Kind, Load, Row, load, load_row, special};
use crate::images::{Content, Image};

/// How the names of the rows begin that compare images with raw files.
pub(crate) const PREFIX: &str = "qcow2-";
/// How those begin that make the table of clusters and caches.
pub(crate) const LITERATURE: &str = "literature-";

const GIB: u64 = 1 << 30;
const CLUSTER: u64 = 64 << 10;
/// Of this, a cache of 1 MiB covers an eighth.
const LITERATURE_BYTES: u64 = 64 * GIB;
/// What had to do before caches were as large as the tables.
const SMALL_CACHE: u64 = 1 << 20;

pub(crate) const FULL: Image =
    Image { name: "qcow2", content: Content::Full, cluster_bytes: CLUSTER, l2_cache: None };
const CHAIN: Image = Image { name: "qcow2-chain4", content: Content::Chain, ..FULL };
/// Its L2 tables have 32 MiB: of 32 reads 31 miss the cache.
const COLD: Image = Image {
    name: "qcow2-cold",
    content: Content::Mapped(256 * GIB),
    l2_cache: Some(SMALL_CACHE),
    ..FULL
};
/// So large that random writes hardly meet a cluster twice.
const NEW: Image = Image { name: "qcow2-new", content: Content::Empty(64 * GIB), ..FULL };
const OPENED: Image = Image { name: "qcow2-open", content: Content::Mapped(1024 * GIB), ..FULL };

/// The disks of the table of clusters and caches, with what they are called there.
pub(crate) const LITERATURE_DISKS: [(&str, Disk); 4] = [
    ("raw", Disk::Sparse { bytes: LITERATURE_BYTES }),
    ("64k", Disk::Image(literature("literature-64k", CLUSTER, SMALL_CACHE))),
    ("64k-16m", Disk::Image(literature("literature-64k-16m", CLUSTER, 16 << 20))),
    ("2m", Disk::Image(literature("literature-2m", 2 << 20, SMALL_CACHE))),
];
/// Its operations.
pub(crate) const LITERATURE_OPERATIONS: [&str; 2] = ["randread", "50/50"];

const fn literature(name: &'static str, cluster_bytes: u64, l2_cache: u64) -> Image {
    let content = Content::Mapped(LITERATURE_BYTES);
    Image { name, content, cluster_bytes, l2_cache: Some(l2_cache) }
}

fn polling(image: Image, operation: &str, block: u64, depth: u16, rings: u16) -> Load {
    load(Disk::Image(image), operation, block, depth, rings, Client::Polling)
}

/// Those of the table of figures.
pub(super) fn quick() -> Vec<Row> {
    let mut rows = Vec::new();
    for operation in ["randread", "randwrite"] {
        for rings in [1, 4] {
            let wanted = "0.95 × raw, 1.1 × its CPU, 2.2 × qsd";
            rows.push(load_row(polling(FULL, operation, 4096, 64, rings), wanted));
        }
    }
    let refill = Kind::Refill(Disk::Image(FULL));
    rows.push(special("refill-qcow2", refill, "two threads 1.8 × one"));
    rows.push(load_row(polling(COLD, "randread", 4096, 64, 1), "1.2 × qsd"));
    for block in [4096, 64 << 10] {
        for rings in [1, 4] {
            rows.push(load_row(polling(NEW, "randwrite", block, 64, rings), "3 × qsd"));
        }
    }
    rows.push(load_row(polling(CHAIN, "randread", 4096, 64, 1), "0.9 × raw"));
    rows.push(special("qcow2-open-1t", Kind::Opening(OPENED), "50 ms, 16 MiB"));
    rows
}

/// Those of the table of clusters and caches.
pub(super) fn literature_rows() -> Vec<Row> {
    let of = |disk| {
        LITERATURE_OPERATIONS
            .map(|operation| load_row(load(disk, operation, 4096, 1, 1, Client::Polling), ""))
    };
    LITERATURE_DISKS.into_iter().flat_map(|(_, disk)| of(disk)).collect()
}

/// The name of a row of that table.
pub(crate) fn literature_name(disk: &str, operation: &str) -> String {
    format!("{LITERATURE}{disk}-{operation}-4k-d1-r1-polling")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_finds_its_rows() {
        let mut names = literature_rows().into_iter().map(|row| row.name);
        for (disk, _) in LITERATURE_DISKS {
            for operation in LITERATURE_OPERATIONS {
                assert_eq!(names.next(), Some(literature_name(disk, operation)));
            }
        }
    }
}
