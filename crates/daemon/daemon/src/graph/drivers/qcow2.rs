//! The driver `qcow2`: the disk in an image.

use std::sync::Arc;
use std::time::Duration;

use block::{ByteCount, ErrandRunner, Node};
use qcow2::{Children, Discards, Header, Qcow2Node, Settings};

use super::{Below, Graph, GraphError, access};
use crate::options::{Blockdev, Discard, Qcow2Caches};
use crate::permissions::{BACKING, DATA_FILE, IMAGE};

/// The largest L2 cache that nobody asked for, as in QEMU on Linux: 32 MiB, enough for a disk of 256 GiB
/// in clusters of 64 KiB.
const L2_BYTES: u64 = 32 << 20;

/// How many seconds tables without use stay in memory, as in QEMU.
const CLEAN_SECONDS: u64 = 600;

/// The fewest tables, and refcount blocks, that QEMU keeps.
const L2_TABLES_MIN: u64 = 2;
const REFCOUNT_BLOCKS_MIN: u64 = 4;

/// QEMU counts them in a signed number of 32 bits.
const TABLES_MAX: u64 = i32::MAX as u64;

impl Graph {
    /// Opens an image. Blocks.
    pub(super) fn make_qcow2(
        &mut self,
        name: &str,
        caches: Qcow2Caches,
        blockdev: &Blockdev,
        below: &[Below],
    ) -> Result<Arc<dyn Node>, GraphError> {
        let header = self.header(name, below)?;
        let child = |role| {
            let below = below.iter().find(|below| below.edge.role == role);
            below.map(|below| Arc::clone(&below.place))
        };
        let children = Children {
            file: child(IMAGE).expect("the reader of this driver takes it"),
            backing: child(BACKING),
            data_file: child(DATA_FILE),
        };
        let too_big = |what| GraphError::Cache { node: name.to_owned(), what };
        let (l2_cache, refcount_cache) = sizes(caches, &header).map_err(too_big)?;
        let access = access(blockdev);
        let discards = match blockdev.discard {
            Discard::Ignore => Discards::Ignored,
            Discard::Unmap => Discards::Passed,
        };
        let seconds = caches.clean_seconds.unwrap_or(CLEAN_SECONDS);
        let clean_after = (seconds > 0).then_some(Duration::from_secs(seconds));
        let overlap_check = caches.overlap_check;
        let settings =
            Settings { access, discards, l2_cache, refcount_cache, clean_after, overlap_check };
        let runner = Arc::clone(&self.files) as Arc<dyn ErrandRunner>;
        match Qcow2Node::open(name, children, settings, runner) {
            Ok(node) => {
                let node = Arc::new(node);
                self.image = Some(Arc::clone(&node));
                Ok(node)
            }
            Err(source) => Err(GraphError::Image { node: name.to_owned(), source }),
        }
    }
}

/// How large the caches are for L2 tables and refcount blocks, by QEMU's rules; or which of them is too
/// big.
fn sizes(caches: Qcow2Caches, header: &Header) -> Result<(ByteCount, ByteCount), &'static str> {
    let cluster = 1_u64 << header.cluster_bits;
    let entry = if header.features.extended_l2 { 16 } else { 8 };
    // Tables for the whole disk. The largest disk has 2^63 bytes, in clusters of 512 bytes at least.
    let all = (header.size.div_ceil(cluster) * entry).next_multiple_of(cluster);
    let least = REFCOUNT_BLOCKS_MIN * cluster;
    let l2 = caches.l2.unwrap_or(L2_BYTES).min(all);
    let (l2, refcount) = match (caches.both, caches.l2, caches.refcount) {
        (None, _, refcount) => (l2, refcount.unwrap_or(0)),
        (Some(both), Some(_), _) => (l2, both - l2),
        (Some(both), None, Some(refcount)) => (both - refcount, refcount),
        (Some(both), None, None) if both >= all + least => (all, both - all),
        (Some(both), None, None) => (both - both.min(least), both.min(least)),
    };
    let tables = |bytes: u64, least: u64, what| match bytes / cluster {
        count if count > TABLES_MAX => Err(what),
        count => Ok(ByteCount(count.max(least) * cluster)),
    };
    Ok((
        tables(l2, L2_TABLES_MIN, "L2 cache size")?,
        tables(refcount, REFCOUNT_BLOCKS_MIN, "Refcount cache size")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// The header of an image of this size that qemu-img would make.
    fn header(size: u64, cluster_bits: u32) -> Header {
        let image = tempfile::NamedTempFile::new().unwrap();
        let mut bytes = vec![0; 1 << cluster_bits];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let cluster = 1_u64 << cluster_bits;
        let l1 = size.div_ceil(cluster).div_ceil(cluster / 8);
        put(0, b"QFI\xfb\0\0\0\x03");
        put(20, &cluster_bits.to_be_bytes());
        put(24, &size.to_be_bytes());
        put(36, &u32::try_from(l1).unwrap().to_be_bytes());
        put(40, &(3 * cluster).to_be_bytes());
        put(48, &cluster.to_be_bytes());
        put(56, &1_u32.to_be_bytes());
        put(96, &4_u32.to_be_bytes());
        put(100, &104_u32.to_be_bytes());
        std::fs::write(image.path(), bytes).unwrap();
        let text = format!("--blockdev=file,node-name=n,filename={}", image.path().display());
        let Ok(crate::options::Command::Serve(plan)) = crate::options::parse([text.into()]) else {
            panic!("it can be parsed")
        };
        let [crate::options::Step::Blockdev(file)] = plan.steps.as_slice() else {
            panic!("a node")
        };
        let files: Arc<kernel_io::FileTable> = Arc::default();
        let mut graph = Graph::new(Arc::clone(&files), Arc::new(block::SystemClock));
        graph.add(file).unwrap();
        let runner = files as Arc<dyn ErrandRunner>;
        qcow2::read_header(graph.node("n").unwrap(), &runner).unwrap()
    }

    #[track_caller]
    fn check(
        header: &Header,
        (both, l2, refcount): (Option<u64>, Option<u64>, Option<u64>),
        expected: (u64, u64),
    ) {
        let found = sizes(Qcow2Caches { l2, refcount, both, ..Qcow2Caches::default() }, header);
        assert_eq!(found, Ok((ByteCount(expected.0), ByteCount(expected.1))));
    }

    /// As QEMU's documentation of the caches has it (docs/qcow2-cache.txt).
    #[test]
    fn what_is_not_said_of_the_caches_follows_from_the_disk() {
        let small = &header(1 << 30, 16);
        let least = 256 * KIB;
        check(small, (None, None, None), (128 * KIB, least));
        check(small, (None, Some(0), Some(0)), (128 * KIB, least));
        check(small, (None, Some(64 * MIB), Some(MIB)), (128 * KIB, MIB));
        check(small, (Some(MIB), None, None), (128 * KIB, 896 * KIB));
        check(small, (Some(320 * KIB), None, None), (128 * KIB, least));
        check(small, (Some(MIB), None, Some(512 * KIB)), (512 * KIB, 512 * KIB));
        check(small, (Some(MIB), Some(MIB), None), (128 * KIB, 896 * KIB));
        let large = &header(1 << 40, 16);
        check(large, (None, None, None), (32 * MIB, least));
        check(large, (None, Some(1 << 40), None), (128 * MIB, least));
        check(large, (Some(8 * MIB), None, None), (8 * MIB - least, least));
        check(&header(1 << 40, 21), (None, None, None), (4 * MIB, 8 * MIB));
        let caches = Qcow2Caches { refcount: Some(1 << 62), ..Qcow2Caches::default() };
        assert_eq!(sizes(caches, small), Err("Refcount cache size"));
    }
}
