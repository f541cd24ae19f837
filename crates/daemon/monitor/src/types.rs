//! The types that answers are made of: QAPI's, member by member, each described to the schema where it is defined.
//!
//! Specification: QEMU, qapi/block-core.json, qapi/qom.json, qapi/char.json, qapi/job.json.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::schema::Schema;

/// A type that the schema describes.
pub(crate) trait QapiType {
    /// The name of the type in the schema.
    fn describe(schema: &mut Schema) -> String;

    /// Whether a member of this type may be left out.
    const IS_OPTIONAL: bool = false;

    /// Whether it is left out now.
    fn is_absent(&self) -> bool {
        false
    }
}

macro_rules! builtin {
    ($($of:ty => $name:literal),*) => { $(
        impl QapiType for $of {
            fn describe(_: &mut Schema) -> String {
                $name.to_owned()
            }
        }
    )* };
}

builtin!(String => "str", &'static str => "str", u64 => "int", i64 => "int", bool => "bool", f64 => "number", Value => "any");

impl<T: QapiType> QapiType for Option<T> {
    fn describe(schema: &mut Schema) -> String {
        T::describe(schema)
    }

    const IS_OPTIONAL: bool = true;

    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

impl<T: QapiType> QapiType for Vec<T> {
    fn describe(schema: &mut Schema) -> String {
        let of = T::describe(schema);
        schema.array(&of)
    }
}

impl<T: QapiType> QapiType for Box<T> {
    fn describe(schema: &mut Schema) -> String {
        T::describe(schema)
    }
}

/// Nothing but that it was done.
impl QapiType for () {
    fn describe(schema: &mut Schema) -> String {
        schema.nothing()
    }
}

/// A structure: each member with its name in JSON.
macro_rules! structure {
    ($($(#[$doc:meta])* struct $of:ident { $($(#[$member:meta])* $name:literal $field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Serialize)]
        pub(crate) struct $of {
            $(
                $(#[$member])*
                #[serde(rename = $name, skip_serializing_if = "QapiType::is_absent")]
                pub(crate) $field: $type,
            )*
        }

        impl QapiType for $of {
            fn describe(schema: &mut Schema) -> String {
                schema.structure(stringify!($of), |schema| vec![
                    $(($name.to_owned(), <$type>::describe(schema), <$type>::IS_OPTIONAL)),*
                ])
            }
        }
    )* };
}

/// An enumeration, of which the values that are here are said.
macro_rules! enumeration {
    ($($(#[$doc:meta])* $of:ident: $($word:literal)*;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        pub(crate) struct $of(pub(crate) &'static str);

        impl QapiType for $of {
            fn describe(schema: &mut Schema) -> String {
                schema.words(&[$($word),*])
            }
        }
    )* };
}

enumeration! {
    /// The type of an export (`BlockExportType`).
    ExportType: "vhost-user-blk";
    /// The type of a job (`JobType`).
    JobType: "create" "mirror" "commit" "stream";
    /// Where a job is (`JobStatus`).
    JobStatus: "undefined" "created" "running" "paused" "ready" "standby" "waiting" "pending" "aborting"
        "concluded" "null";
    /// What becomes of zeroes (`BlockdevDetectZeroesOptions`).
    DetectZeroes: "off";
    /// What a vertex of the graph is (`XDbgBlockGraphNodeType`).
    GraphNodeType: "block-backend" "block-driver";
    /// A permission (`BlockPermission`).
    PermissionName: "consistent-read" "write" "write-unchanged" "resize";
    /// How images are compressed (`Qcow2CompressionType`).
    CompressionType: "zlib" "zstd";
    /// Whether requests failed (`BlockDeviceIoStatus`).
    IoStatus: "ok" "failed" "nospace";
}

structure! {
    /// Three numbers (`VersionTriple`).
    struct VersionTriple {
        "major" major: u64,
        "minor" minor: u64,
        "micro" micro: u64,
    }

    /// What the daemon is (`VersionInfo`).
    struct VersionInfo {
        "qemu" qemu: VersionTriple,
        "package" package: String,
    }

    /// A command (`CommandInfo`).
    struct CommandInfo {
        "name" name: &'static str,
    }

    /// A property of an object (`ObjectPropertyInfo`).
    struct ObjectPropertyInfo {
        "name" name: String,
        "type" kind: String,
        "description" description: Option<String>,
        "default-value" default: Option<Value>,
    }

    /// A type of objects (`ObjectTypeInfo`).
    struct ObjectTypeInfo {
        "name" name: &'static str,
        "abstract" is_abstract: Option<bool>,
        "parent" parent: Option<&'static str>,
    }

    /// An export (`BlockExportInfo`).
    struct BlockExportInfo {
        "id" id: String,
        "type" kind: ExportType,
        "node-name" node_name: String,
        "shutting-down" is_shutting_down: bool,
    }

    /// A job (`JobInfo`).
    struct JobInfo {
        "id" id: String,
        "type" kind: JobType,
        "status" status: JobStatus,
        "current-progress" current: u64,
        "total-progress" total: u64,
        "error" error: Option<String>,
    }

    /// A job of a block device (`BlockJobInfo`).
    struct BlockJobInfo {
        "type" kind: JobType,
        "device" device: String,
        "len" length: u64,
        "offset" offset: u64,
        "busy" is_busy: bool,
        "paused" is_paused: bool,
        "speed" speed: u64,
        "io-status" io_status: IoStatus,
        "ready" is_ready: bool,
        "status" status: JobStatus,
        "auto-finalize" finalizes_itself: bool,
        "auto-dismiss" dismisses_itself: bool,
        "error" error: Option<String>,
        "actively-synced" is_actively_synced: Option<bool>,
        "ringloom-compared" compared_bytes: Option<u64>,
        "ringloom-differing" differing_bytes: Option<u64>,
    }

    /// How a node uses the page cache (`BlockdevCacheInfo`).
    struct CacheInfo {
        "writeback" is_write_back: bool,
        "direct" is_direct: bool,
        "no-flush" ignores_flushes: bool,
    }

    /// A node (`BlockDeviceInfo`).
    struct BlockDeviceInfo {
        "file" file: String,
        "node-name" node_name: Option<String>,
        "ro" is_read_only: bool,
        "drv" driver: String,
        "backing_file" backing_file: Option<String>,
        "backing_file_depth" backing_depth: u64,
        "active" is_active: bool,
        "encrypted" is_encrypted: bool,
        "detect_zeroes" detect_zeroes: DetectZeroes,
        "bps" bps: u64,
        "bps_rd" bps_read: u64,
        "bps_wr" bps_written: u64,
        "iops" iops: u64,
        "iops_rd" iops_read: u64,
        "iops_wr" iops_written: u64,
        "image" image: ImageInfo,
        "cache" cache: CacheInfo,
        "write_threshold" write_threshold: u64,
        "dirty-bitmaps" bitmaps: Option<Vec<BlockDirtyInfo>>,
    }

    /// A dirty bitmap (`BlockDirtyInfo`).
    struct BlockDirtyInfo {
        "name" name: Option<String>,
        "recording" is_recording: bool,
        "persistent" is_persistent: bool,
        "inconsistent" is_inconsistent: Option<bool>,
        "busy" is_busy: bool,
        "granularity" granularity: u64,
        "count" count: u64,
    }

    /// The hash of a dirty bitmap (`BlockDirtyBitmapSha256`).
    struct BlockDirtyBitmapSha256 {
        "sha256" sha256: String,
    }

    /// An image (`ImageInfo`).
    struct ImageInfo {
        "filename" file_name: String,
        "format" format: String,
        "dirty-flag" is_dirty: Option<bool>,
        "actual-size" actual_size: Option<u64>,
        "virtual-size" virtual_size: u64,
        "cluster-size" cluster_size: Option<u64>,
        "backing-filename" backing: Option<String>,
        "full-backing-filename" full_backing: Option<String>,
        "backing-filename-format" backing_format: Option<String>,
        "snapshots" snapshots: Option<Vec<SnapshotInfo>>,
        "format-specific" specific: Option<ImageInfoSpecific>,
        "backing-image" backing_image: Option<Box<ImageInfo>>,
    }

    /// An internal snapshot of an image (`SnapshotInfo`).
    struct SnapshotInfo {
        "id" id: String,
        "name" name: String,
        "vm-state-size" state_bytes: u64,
        "date-sec" date_seconds: u64,
        "date-nsec" date_nanoseconds: u64,
        "vm-clock-sec" clock_seconds: u64,
        "vm-clock-nsec" clock_nanoseconds: u64,
        "icount" instructions: Option<u64>,
    }

    /// What is known of a qcow2 image (`ImageInfoSpecificQCow2`).
    struct Qcow2Info {
        "compat" compat: &'static str,
        "data-file" data_file: Option<String>,
        "data-file-raw" is_data_file_raw: Option<bool>,
        "extended-l2" has_extended_l2: Option<bool>,
        "lazy-refcounts" has_lazy_refcounts: Option<bool>,
        "corrupt" is_corrupt: Option<bool>,
        "refcount-bits" refcount_bits: u64,
        "compression-type" compression: CompressionType,
    }

    /// What a file on the host is known for (`ImageInfoSpecificFile`).
    struct FileInfo {
        "extent-size-hint" extent_size_hint: Option<u64>,
    }

    /// A block device as a guest sees it, of which a storage daemon has none (`BlockInfo`).
    struct BlockInfo {
        "device" device: String,
        "type" kind: String,
        "removable" is_removable: bool,
        "locked" is_locked: bool,
        "inserted" inserted: Option<BlockDeviceInfo>,
    }

    /// What was done with a node (`BlockStats`).
    struct BlockStats {
        "device" device: Option<String>,
        "node-name" node_name: Option<String>,
        "stats" stats: BlockDeviceStats,
        "parent" parent: Option<Box<BlockStats>>,
        "backing" backing: Option<Box<BlockStats>>,
    }

    /// The counters of a node (`BlockDeviceStats`).
    #[derive(Default)]
    struct BlockDeviceStats {
        "rd_bytes" read_bytes: u64,
        "wr_bytes" written_bytes: u64,
        "zone_append_bytes" zone_append_bytes: u64,
        "unmap_bytes" discarded_bytes: u64,
        "rd_operations" reads: u64,
        "wr_operations" writes: u64,
        "zone_append_operations" zone_appends: u64,
        "flush_operations" flushes: u64,
        "unmap_operations" discards: u64,
        "rd_total_time_ns" read_ns: u64,
        "wr_total_time_ns" write_ns: u64,
        "zone_append_total_time_ns" zone_append_ns: u64,
        "flush_total_time_ns" flush_ns: u64,
        "unmap_total_time_ns" discard_ns: u64,
        "wr_highest_offset" highest_written: u64,
        "rd_merged" reads_merged: u64,
        "wr_merged" writes_merged: u64,
        "zone_append_merged" zone_appends_merged: u64,
        "unmap_merged" discards_merged: u64,
        "failed_rd_operations" reads_failed: u64,
        "failed_wr_operations" writes_failed: u64,
        "failed_zone_append_operations" zone_appends_failed: u64,
        "failed_flush_operations" flushes_failed: u64,
        "failed_unmap_operations" discards_failed: u64,
        "invalid_rd_operations" reads_invalid: u64,
        "invalid_wr_operations" writes_invalid: u64,
        "invalid_zone_append_operations" zone_appends_invalid: u64,
        "invalid_flush_operations" flushes_invalid: u64,
        "invalid_unmap_operations" discards_invalid: u64,
        "account_invalid" counts_invalid: bool,
        "account_failed" counts_failed: bool,
        "timed_stats" timed: Vec<TimedStats>,
    }

    /// Counters of an interval, which are not kept (`BlockDeviceTimedStats`).
    struct TimedStats {
        "interval_length" seconds: u64,
        "min_rd_latency_ns" read_ns_min: u64,
        "max_rd_latency_ns" read_ns_max: u64,
        "avg_rd_latency_ns" read_ns: u64,
        "min_wr_latency_ns" write_ns_min: u64,
        "max_wr_latency_ns" write_ns_max: u64,
        "avg_wr_latency_ns" write_ns: u64,
        "min_zone_append_latency_ns" zone_append_ns_min: u64,
        "max_zone_append_latency_ns" zone_append_ns_max: u64,
        "avg_zone_append_latency_ns" zone_append_ns: u64,
        "min_flush_latency_ns" flush_ns_min: u64,
        "max_flush_latency_ns" flush_ns_max: u64,
        "avg_flush_latency_ns" flush_ns: u64,
        "avg_rd_queue_depth" reads: f64,
        "avg_wr_queue_depth" writes: f64,
        "avg_zone_append_queue_depth" zone_appends: f64,
    }

    /// The graph (`XDbgBlockGraph`).
    struct BlockGraph {
        "nodes" nodes: Vec<BlockGraphNode>,
        "edges" edges: Vec<BlockGraphEdge>,
    }

    /// A vertex of the graph (`XDbgBlockGraphNode`).
    struct BlockGraphNode {
        "id" id: u64,
        "type" kind: GraphNodeType,
        "name" name: String,
    }

    /// An edge of the graph (`XDbgBlockGraphEdge`).
    struct BlockGraphEdge {
        "parent" parent: u64,
        "child" child: u64,
        "name" name: String,
        "perm" uses: Vec<PermissionName>,
        "shared-perm" shares: Vec<PermissionName>,
    }

    /// A character device (`ChardevInfo`).
    struct ChardevInfo {
        "label" label: String,
        "filename" file_name: String,
        "frontend-open" is_open: bool,
    }

    /// A kind of character devices (`ChardevBackendInfo`).
    struct ChardevBackendInfo {
        "name" name: &'static str,
    }

    /// A queue that is served now (ringloom's own).
    struct RingloomQueueInfo {
        "export" export: String,
        "queue" queue: u64,
        "iothread" iothread: String,
        "reads" reads: u64,
        "writes" writes: u64,
        "flushes" flushes: u64,
        "discards" discards: u64,
        "write-zeroes" write_zeroes: u64,
        "errors" errors: u64,
        "read-bytes" read_bytes: u64,
        "written-bytes" written_bytes: u64,
        "in-flight" in_flight: u64,
        "moves" moves: u64,
        "move-ns" move_ns: u64,
        "open-ns" open_ns: u64,
        "take-wait-ns" take_wait_ns: u64,
        "answer-wait-ns" answer_wait_ns: u64,
        "latency" latency: Vec<RingloomLatencyBucket>,
    }

    /// How many requests took so long: from, below, and how many (ringloom's own).
    struct RingloomLatencyBucket {
        "from-ns" from: u64,
        "to-ns" to: u64,
        "count" count: u64,
    }

    /// An iothread (ringloom's own).
    struct RingloomIothreadInfo {
        "name" name: String,
        "queues" queues: u64,
        "work-ns" work_ns: u64,
        "poll-ns" poll_ns: u64,
        "sleep-ns" sleep_ns: u64,
        "cpu-ns" cpu_ns: Option<u64>,
        "run-delay-ns" run_delay_ns: Option<u64>,
        "stalled-ns" stalled_ns: u64,
    }

    /// A pool of iothreads (ringloom's own).
    struct RingloomPoolInfo {
        "name" name: String,
        "max" max: u64,
        "mode" mode: &'static str,
        "iothreads" iothreads: Vec<String>,
        "exports" exports: Vec<RingloomPlacementInfo>,
    }

    /// How a pool places an export (ringloom's own).
    struct RingloomPlacementInfo {
        "export" export: String,
        "iothreads" iothreads: Option<u64>,
        "gain-max" gain_max: Option<f64>,
        "trying" is_trying: bool,
        "tries" tries: Option<u64>,
        "gain-predicted" gain_predicted: Option<f64>,
        "note" note: Option<String>,
    }

    /// A node on an NBD server (ringloom's own).
    struct RingloomNbdNodeInfo {
        "node-name" node_name: String,
        "server" server: String,
        "disconnected-ns" disconnected_ns: u64,
    }

    /// What was found of the storage of an export (ringloom's own).
    struct RingloomStorageInfo {
        "export" export: String,
        "removed" is_removed: bool,
        "size-difference" size_difference: i64,
    }

    /// What is logged (ringloom's own).
    struct RingloomLogInfo {
        "level" level: &'static str,
        "parts" parts: Vec<RingloomLogPart>,
    }

    /// What a part of the program logs (ringloom's own).
    struct RingloomLogPart {
        "part" part: &'static str,
        "level" level: &'static str,
        "own" is_own: bool,
    }

    /// What a new character device says (`ChardevReturn`).
    struct ChardevReturn {
        "pty" pty: Option<String>,
    }
}

/// What is known of an image, by its format (`ImageInfoSpecific`).
#[derive(Debug, Serialize)]
#[serde(tag = "type", content = "data", rename_all = "lowercase")]
pub(crate) enum ImageInfoSpecific {
    Qcow2(Qcow2Info),
    File(FileInfo),
}

impl QapiType for ImageInfoSpecific {
    fn describe(schema: &mut Schema) -> String {
        schema.union("ImageInfoSpecific", "type", |schema| {
            let tag = schema.words(&["qcow2", "file"]);
            let (qcow2, file) = (Qcow2Info::describe(schema), FileInfo::describe(schema));
            let data = |schema: &mut Schema, name: &str, of: String| {
                schema.structure(name, |_| vec![("data".to_owned(), of, false)])
            };
            let qcow2 = data(schema, "ImageInfoSpecificQCow2Wrapper", qcow2);
            let file = data(schema, "ImageInfoSpecificFileWrapper", file);
            (vec![("type".to_owned(), tag, false)], vec![("qcow2", qcow2), ("file", file)])
        })
    }
}

/// The schema as it is answered; its own description follows QEMU's.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct SchemaInfo(pub(crate) Value);

impl QapiType for SchemaInfo {
    fn describe(schema: &mut Schema) -> String {
        const KINDS: [&str; 7] =
            ["builtin", "enum", "array", "object", "alternate", "command", "event"];
        schema.union("SchemaInfo", "meta-type", |schema| {
            let texts = schema.array("str");
            let text = |name: &str, is_optional| (name.to_owned(), "str".to_owned(), is_optional);
            let json_types =
                ["string", "number", "int", "boolean", "null", "object", "array", "value"];
            let json_type = schema.words(&json_types);
            let of_enum = schema.structure("SchemaInfoEnumMember", |_| {
                vec![text("name", false), ("features".to_owned(), texts.clone(), true)]
            });
            let of_object = schema.structure("SchemaInfoObjectMember", |_| {
                vec![
                    text("name", false),
                    text("type", false),
                    ("default".to_owned(), "any".to_owned(), true),
                    ("features".to_owned(), texts.clone(), true),
                ]
            });
            let of_variant = schema.structure("SchemaInfoObjectVariant", |_| {
                vec![text("case", false), text("type", false)]
            });
            let of_alternate =
                schema.structure("SchemaInfoAlternateMember", |_| vec![text("type", false)]);
            let lists: BTreeMap<&str, String> = [
                ("enum", of_enum),
                ("object", of_object),
                ("variant", of_variant),
                ("alternate", of_alternate),
            ]
            .map(|(name, of)| (name, schema.array(&of)))
            .into();
            let list = |name: &str, of: &str| (name.to_owned(), lists[of].clone(), false);
            let parts = [
                vec![("json-type".to_owned(), json_type, false)],
                vec![list("members", "enum"), ("values".to_owned(), texts.clone(), false)],
                vec![text("element-type", false)],
                vec![
                    list("members", "object"),
                    text("tag", true),
                    ("variants".to_owned(), lists["variant"].clone(), true),
                ],
                vec![list("members", "alternate")],
                vec![
                    text("arg-type", false),
                    text("ret-type", false),
                    ("allow-oob".to_owned(), "bool".to_owned(), true),
                ],
                vec![text("arg-type", false)],
            ];
            let variants = KINDS.iter().zip(parts).map(|(kind, members)| {
                (*kind, schema.structure(&format!("SchemaInfo {kind}"), |_| members))
            });
            let variants = variants.collect();
            let kind = ("meta-type".to_owned(), schema.words(&KINDS), false);
            let features = ("features".to_owned(), texts, true);
            (vec![text("name", false), kind, features], variants)
        })
    }
}

/// The version: of QEMU that of the storage daemon whose interface this is, and what it really is.
pub(crate) fn version() -> VersionInfo {
    let qemu = VersionTriple { major: 10, minor: 0, micro: 2 };
    VersionInfo { qemu, package: concat!("ringloom ", env!("CARGO_PKG_VERSION")).to_owned() }
}
