//! The driver `qcow2`: the disk in an image.

use std::sync::Arc;
use std::time::Duration;

use block::{ByteCount, DiscardPolicy};
use qcow2::{Children, FreedClusterDiscards, Header, OverlapCheck, Qcow2Node, Qcow2Settings};
use request_path::ControlEngineFactory;
use syntax::{ArgumentError, Key, Keys, OptionFields, ValueType, optional, required};

use super::base::{BASE, BASE_LATER, BaseOptions, pair};
use super::driver::{
    Driver, DriverOptions, ImageFileFinder, ImageFileReference, MadeNode, NodeContext, NodeError,
    NodeRequirements, Options, ThrottleGroups,
};
use crate::model::ChildRole;

const IMAGE: &str = "file";
pub(crate) const BACKING: &str = "backing";
const DATA_FILE: &str = "data-file";

const OWN: &[Key] = &[
    required(IMAGE, ValueType::Node),
    optional(BACKING, ValueType::NodeOrNull),
    optional(DATA_FILE, ValueType::Node),
    optional("l2-cache-size", ValueType::Int),
    optional("refcount-cache-size", ValueType::Int),
    optional("cache-size", ValueType::Int),
    optional("cache-clean-interval", ValueType::Int),
    optional("overlap-check", ValueType::WordOrObject(TEMPLATES, &OVERLAP)),
];

const LATER: &[&str] = &[
    "discard-no-unref",
    "encrypt",
    "l2-cache-entry-size",
    "lazy-refcounts",
    "pass-discard-other",
    "pass-discard-request",
    "pass-discard-snapshot",
];

/// QEMU's flags, which add to a template or take from it.
const OVERLAP_FLAGS: &[&str] = &[
    "active-l1",
    "active-l2",
    "bitmap-directory",
    "inactive-l1",
    "inactive-l2",
    "main-header",
    "refcount-block",
    "refcount-table",
    "snapshot-table",
];

static OVERLAP: Keys = Keys {
    of: "--blockdev driver=qcow2",
    supported: &[&[optional("template", ValueType::Word(TEMPLATES))]],
    later: &[OVERLAP_FLAGS],
};

const TEMPLATES: &[&str] = &["none", "constant", "cached", "all"];

/// `driver=qcow2`.
pub(super) static QCOW2: Driver = Driver {
    name: "qcow2",
    keys: Keys {
        of: "--blockdev driver=qcow2",
        supported: &[BASE, OWN],
        later: &[BASE_LATER, LATER],
    },
    changeable: &[],
    roles: &[
        (IMAGE, ChildRole::Metadata),
        (BACKING, ChildRole::Backing),
        (DATA_FILE, ChildRole::Data),
    ],
    help: "  --blockdev [driver=]qcow2,node-name=N,file=NODE[,backing=NODE|null][,data-file=NODE]
                   [,cache-size=BYTES][,l2-cache-size=BYTES][,refcount-cache-size=BYTES]
                   [,cache-clean-interval=SECONDS]
                   [,overlap-check=none|constant|cached|all] (or overlap-check.template)
                         the disk in the qcow2 image that another node holds. backing: what shows
                         where the image has nothing, null for zeroes; default: what the image
                         names, if --named-files allows it. data-file: where its data are, if the
                         image has them elsewhere. The sizes bound the tables in memory
",
    as_format: Some(|| Arc::new(Qcow2Options::default())),
    read,
};

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

/// The options of `driver=qcow2`.
#[derive(Debug, Default)]
struct Qcow2Options {
    caches: CacheSizes,
    /// After how many seconds without use a table goes from memory; 0: never.
    clean_seconds: Option<u64>,
    /// Which structures of metadata a write is checked against.
    overlap_check: OverlapCheck,
    backing: BackingSource,
}

/// The sizes of the metadata caches in bytes, as far as they were given. Each of the three sizes fits the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct CacheSizes {
    /// L2 tables.
    l2: Option<u64>,
    /// Refcount blocks.
    refcount: Option<u64>,
    /// Both.
    both: Option<u64>,
}

/// Where a backing file comes from: the image's header, or the options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum BackingSource {
    /// The image.
    #[default]
    OfImage,
    /// The options: the child `backing`, or nothing if there is none.
    OfOptions,
}

/// Cache sizes that contradict each other. QEMU's sentences.
#[derive(Debug, thiserror::Error)]
enum CacheSizeError {
    /// All at once.
    #[error("cache-size, l2-cache-size and refcount-cache-size may not be set at the same time")]
    Thrice,
    /// One of them is larger than both.
    #[error("{key} may not exceed cache-size")]
    AboveBoth { key: &'static str },
}

fn read(fields: &mut OptionFields, _: &BaseOptions) -> Result<Options, ArgumentError> {
    let caches = CacheSizes {
        l2: fields.int("l2-cache-size")?,
        refcount: fields.int("refcount-cache-size")?,
        both: fields.int("cache-size")?,
    };
    let options = Qcow2Options {
        clean_seconds: fields.int("cache-clean-interval")?,
        overlap_check: overlap_check(fields)?,
        caches: caches.check().map_err(ArgumentError::own)?,
        backing: if fields.has(BACKING) {
            BackingSource::OfOptions
        } else {
            BackingSource::OfImage
        },
    };
    Ok(Arc::new(options))
}

impl CacheSizes {
    fn check(self) -> Result<Self, CacheSizeError> {
        let above = |part: Option<u64>| part.zip(self.both).is_some_and(|(part, all)| part > all);
        match self {
            Self { l2: Some(_), refcount: Some(_), both: Some(_) } => Err(CacheSizeError::Thrice),
            Self { l2, .. } if above(l2) => Err(CacheSizeError::AboveBoth { key: "l2-cache-size" }),
            Self { refcount, .. } if above(refcount) => {
                Err(CacheSizeError::AboveBoth { key: "refcount-cache-size" })
            }
            Self { .. } => Ok(self),
        }
    }
}

/// A template, by itself or in an object. What `constant` asks for costs nothing less than `cached` here.
fn overlap_check(fields: &mut OptionFields) -> Result<OverlapCheck, ArgumentError> {
    const KEY: &str = "overlap-check";
    let template = if fields.is_object(KEY) {
        fields.object(KEY)?.expect("it is one").word("template")?
    } else {
        fields.word(KEY)?
    };
    Ok(match template {
        Some("none") => OverlapCheck::None,
        Some("all") => OverlapCheck::All,
        Some(_) | None => OverlapCheck::Cached,
    })
}

/// A cache size that nobody can have. QEMU's sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0} too big")]
struct CacheTooBig(&'static str);

impl DriverOptions for Qcow2Options {
    fn needs(&self) -> NodeRequirements<'_> {
        NodeRequirements { names_files: Some(self), ..NodeRequirements::default() }
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        // Files that the image names stand below it like all others.
        let Self {
            caches: CacheSizes { l2, refcount, both },
            clean_seconds,
            overlap_check,
            backing: _,
        } = self;
        let size =
            |given: &Option<u64>| given.map_or_else(|| "auto".to_owned(), |it| it.to_string());
        let overlap_check = match overlap_check {
            OverlapCheck::None => "none",
            OverlapCheck::Cached => "cached",
            OverlapCheck::All => "all",
        };
        vec![
            pair("l2-cache-size", &size(l2)),
            pair("refcount-cache-size", &size(refcount)),
            pair("cache-size", &size(both)),
            pair("cache-clean-interval", &size(clean_seconds)),
            pair("overlap-check", overlap_check),
        ]
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let header = header(context)?;
        let (file, backing) = (context.file(), context.child(BACKING));
        let children = Children { file, backing, data_file: context.child(DATA_FILE) };
        let sizes = sizes(self.caches, &header).map_err(CacheTooBig);
        let (l2_cache, refcount_cache) = sizes.map_err(|error| context.failed(error))?;
        let discards = match context.base.discard {
            DiscardPolicy::Ignore => FreedClusterDiscards::Ignored,
            DiscardPolicy::Unmap => FreedClusterDiscards::Passed,
        };
        let seconds = self.clean_seconds.unwrap_or(CLEAN_SECONDS);
        let clean_after = (seconds > 0).then_some(Duration::from_secs(seconds));
        let (access, overlap_check) = (context.base.access(), self.overlap_check);
        let settings = Qcow2Settings {
            access,
            discards,
            l2_cache,
            refcount_cache,
            clean_after,
            overlap_check,
        };
        let node = Qcow2Node::open(context.name, children, settings, Arc::new(engines(context)));
        let node = Arc::new(node.map_err(|error| context.failed(error))?);
        node.report_to(context.corruptions);
        Ok(MadeNode { image: Some(Arc::clone(&node)), ..MadeNode::of(node) })
    }
}

impl ImageFileFinder for Qcow2Options {
    fn named(&self, context: &NodeContext<'_>) -> Result<Vec<ImageFileReference>, NodeError> {
        let header = header(context)?;
        let mut named = Vec::new();
        if let (BackingSource::OfImage, Some(name)) = (self.backing, header.backing) {
            let format = header.backing_format;
            named.push(ImageFileReference::Backing { key: BACKING, name, format });
        }
        if header.features.external_data && context.child(DATA_FILE).is_none() {
            named.push(ImageFileReference::Data { key: DATA_FILE, name: header.data_file });
        }
        Ok(named)
    }
}

/// What the image says of itself.
fn header(context: &NodeContext<'_>) -> Result<Header, NodeError> {
    let file = context.file().node();
    let path = file.image_file().unwrap_or_default();
    let what = format!("node {}: image {}", context.name, path.display());
    let header = context.watch.during(what, || qcow2::read_header(&file, &engines(context)));
    header.map_err(|error| context.failed(error))
}

/// What control threads read and write the image with.
fn engines(context: &NodeContext<'_>) -> ControlEngineFactory {
    ControlEngineFactory::new(context.files, context.clock)
}

/// How large the caches are for L2 tables and refcount blocks, by QEMU's rules; or which of them is too
/// big.
fn sizes(caches: CacheSizes, header: &Header) -> Result<(ByteCount, ByteCount), &'static str> {
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
        let files: Arc<kernel_io::FileTable> = Arc::default();
        let options = kernel_io::OpenOptions::regular(image.path(), block::Access::ReadOnly);
        let file = disk::FileNode::open("n", &options, DiscardPolicy::Ignore, &files).unwrap();
        let file = Arc::new(file) as Arc<dyn block::Node>;
        let clock = Arc::new(block::SystemClock) as Arc<dyn block::Clock>;
        qcow2::read_header(&file, &ControlEngineFactory::new(&files, &clock)).unwrap()
    }

    #[track_caller]
    fn check(
        header: &Header,
        (both, l2, refcount): (Option<u64>, Option<u64>, Option<u64>),
        expected: (u64, u64),
    ) {
        let found = sizes(CacheSizes { l2, refcount, both }, header);
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
        let caches = CacheSizes { refcount: Some(1 << 62), ..CacheSizes::default() };
        assert_eq!(sizes(caches, small), Err("Refcount cache size"));
    }
}
