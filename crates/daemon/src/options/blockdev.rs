//! `--blockdev`: nodes and the nodes written inside them.
//!
//! Limits: nodes nest at most [`NESTING_MAX`] deep.

use super::fault::Fault;
use super::fields::{Fields, Keys, TextOrObject};
use super::names::is_identifier;
use super::plan::{Activity, AioEngine, Blockdev, Child, Discard, Driver, Flushes, Locking};

/// QEMU's default size of a null-co disk: 1 GiB.
const NULL_CO_BYTES: u64 = 1 << 30;

/// How deep nodes written inside nodes may go; it bounds the recursion that reads them.
const NESTING_MAX: usize = 8;

/// The longest node-name; QEMU keeps 32 bytes with the terminating zero.
const NODE_NAME_BYTES_MAX: usize = 31;

/// The drivers that work.
const SUPPORTED: &[&str] = &["file", "host_device", "raw", "null-co"];

/// The drivers that qemu-storage-daemon has and ringloom does not have yet.
const LATER: &[&str] = &[
    "blkdebug",
    "blklogwrites",
    "blkreplay",
    "blkverify",
    "bochs",
    "cloop",
    "compress",
    "copy-before-write",
    "copy-on-read",
    "dmg",
    "ftp",
    "ftps",
    "gluster",
    "host_cdrom",
    "http",
    "https",
    "io_uring",
    "iscsi",
    "luks",
    "nbd",
    "nfs",
    "null-aio",
    "nvme",
    "nvme-io_uring",
    "parallels",
    "preallocate",
    "qcow",
    "qcow2",
    "qed",
    "quorum",
    "rbd",
    "replication",
    "snapshot-access",
    "ssh",
    "throttle",
    "vdi",
    "vhdx",
    "virtio-blk-vfio-pci",
    "virtio-blk-vhost-user",
    "virtio-blk-vhost-vdpa",
    "vmdk",
    "vpc",
    "vvfat",
];

const BASE: &[&str] =
    &["active", "driver", "node-name", "read-only", "discard", "cache", "force-share"];

const BASE_LATER: &[&str] = &["auto-read-only", "detect-zeroes"];

const FILE_LATER: &[&str] = &["aio-max-batch", "drop-cache", "pr-manager", "x-check-cache-dropped"];

/// The keys of `driver=file`.
pub(super) const FILE: Keys = Keys {
    of: "--blockdev driver=file",
    supported: &[BASE, &["filename", "aio", "locking"]],
    later: &[BASE_LATER, FILE_LATER],
};

/// The keys of `driver=host_device`.
pub(super) const HOST_DEVICE: Keys = Keys {
    of: "--blockdev driver=host_device",
    supported: &[BASE, &["filename", "aio", "locking"]],
    later: &[BASE_LATER, FILE_LATER],
};

/// The keys of `driver=raw`.
pub(super) const RAW: Keys = Keys {
    of: "--blockdev driver=raw",
    supported: &[BASE, &["file"]],
    later: &[BASE_LATER, &["offset", "size"]],
};

/// The keys of `driver=null-co`.
pub(super) const NULL_CO: Keys = Keys {
    of: "--blockdev driver=null-co",
    supported: &[BASE, &["size", "read-zeroes"]],
    later: &[BASE_LATER, &["latency-ns"]],
};

/// The keys of `cache`.
pub(super) const CACHE: Keys =
    Keys { of: "--blockdev cache", supported: &[&["direct", "no-flush"]], later: &[] };

/// What a node has unless it says otherwise.
#[derive(Debug, Clone, Copy)]
struct Inherited {
    read_only: bool,
    discard: Discard,
    cache_direct: bool,
    flushes: Flushes,
    force_share: bool,
}

/// Reads the argument of `--blockdev`.
pub(super) fn parse(text: &str) -> Result<Blockdev, Fault> {
    let fields = Fields::parse(text, "driver")?;
    let root = Inherited {
        read_only: false,
        discard: Discard::Ignore,
        cache_direct: false,
        flushes: Flushes::Obeyed,
        force_share: false,
    };
    let node = read(fields, root, 0)?;
    if node.node_name.is_none() {
        return Err(Fault::NoNodeName);
    }
    Ok(node)
}

fn read(mut fields: Fields, inherited: Inherited, depth: usize) -> Result<Blockdev, Fault> {
    let name = fields.required_text("driver")?;
    let keys = keys(&fields, name)?;
    fields.check_keys(&keys.1)?;
    let node_name = fields.text("node-name")?.map(check_node_name).transpose()?;
    let read_only = fields.flag("read-only")?.unwrap_or(inherited.read_only);
    let force_share = fields.flag("force-share")?.unwrap_or(inherited.force_share);
    if force_share && !read_only {
        return Err(Fault::ForceShareWritable);
    }
    let activity = match fields.flag("active")? {
        Some(false) => Activity::Inactive,
        Some(true) | None => Activity::Active,
    };
    let discard = match fields.choice("discard", &["ignore", "unmap"])? {
        Some("unmap") => Discard::Unmap,
        Some(_) => Discard::Ignore,
        None => inherited.discard,
    };
    let (cache_direct, flushes) = cache(&mut fields, inherited)?;
    // A format passes discards on: its child takes them whatever the format itself was told.
    let below =
        Inherited { read_only, discard: Discard::Unmap, cache_direct, flushes, force_share };
    let driver = match keys.0 {
        DriverName::File => Driver::File {
            filename: filename(&mut fields)?.into(),
            aio: aio(&mut fields, cache_direct)?,
            locking: locking(&mut fields)?,
        },
        DriverName::HostDevice => Driver::HostDevice {
            filename: filename(&mut fields)?.into(),
            aio: aio(&mut fields, cache_direct)?,
            locking: locking(&mut fields)?,
        },
        DriverName::Raw => Driver::Raw { file: child(&mut fields, below, depth)? },
        DriverName::NullCo => Driver::NullCo {
            size: null_co_size(&mut fields)?,
            read_zeroes: fields.flag("read-zeroes")?.unwrap_or(false),
        },
    };
    Ok(Blockdev {
        node_name,
        driver,
        read_only,
        discard,
        cache_direct,
        flushes,
        force_share,
        activity,
    })
}

#[derive(Debug, Clone, Copy)]
enum DriverName {
    File,
    HostDevice,
    Raw,
    NullCo,
}

fn keys(fields: &Fields, name: String) -> Result<(DriverName, Keys), Fault> {
    match name.as_str() {
        "file" => Ok((DriverName::File, FILE)),
        "host_device" => Ok((DriverName::HostDevice, HOST_DEVICE)),
        "raw" => Ok((DriverName::Raw, RAW)),
        "null-co" => Ok((DriverName::NullCo, NULL_CO)),
        later if LATER.contains(&later) => Err(Fault::ValueNotYet {
            key: fields.path("driver"),
            value: name,
            accepted: SUPPORTED.to_vec(),
        }),
        _ => Err(fields.unknown_value("driver", name, SUPPORTED)),
    }
}

fn check_node_name(name: String) -> Result<String, Fault> {
    if !is_identifier(&name) {
        return Err(Fault::NotAnIdentifier { key: "node-name", value: name });
    }
    if name.len() > NODE_NAME_BYTES_MAX {
        return Err(Fault::NodeNameTooLong { name, bytes_max: NODE_NAME_BYTES_MAX });
    }
    Ok(name)
}

/// Whether the page cache is left out, and what becomes of flushes.
fn cache(fields: &mut Fields, inherited: Inherited) -> Result<(bool, Flushes), Fault> {
    let Some(mut cache) = fields.object("cache")? else {
        return Ok((inherited.cache_direct, inherited.flushes));
    };
    cache.check_keys(&CACHE)?;
    let direct = cache.flag("direct")?.unwrap_or(inherited.cache_direct);
    let flushes = match cache.flag("no-flush")? {
        Some(true) => Flushes::Ignored,
        Some(false) => Flushes::Obeyed,
        None => inherited.flushes,
    };
    Ok((direct, flushes))
}

fn filename(fields: &mut Fields) -> Result<String, Fault> {
    let filename = fields.required_text("filename")?;
    if filename.is_empty() {
        return Err(Fault::EmptyPath { what: "filename" });
    }
    Ok(filename)
}

fn aio(fields: &mut Fields, cache_direct: bool) -> Result<Option<AioEngine>, Fault> {
    match fields.choice("aio", &["threads", "native", "io_uring"])? {
        None => Ok(None),
        Some("threads") => Ok(Some(AioEngine::Threads)),
        Some("native") if !cache_direct => Err(Fault::NativeBuffered),
        Some("native") => Ok(Some(AioEngine::Native)),
        Some(_) => Ok(Some(AioEngine::IoUring)),
    }
}

fn locking(fields: &mut Fields) -> Result<Locking, Fault> {
    Ok(match fields.choice("locking", &["auto", "on", "off"])? {
        Some("on") => Locking::On,
        Some("off") => Locking::Off,
        Some(_) | None => Locking::Automatic,
    })
}

fn child(fields: &mut Fields, below: Inherited, depth: usize) -> Result<Child, Fault> {
    match fields.text_or_object("file")? {
        TextOrObject::Text(node_name) => Ok(Child::Reference(node_name)),
        TextOrObject::Object(_) if depth + 1 >= NESTING_MAX => {
            Err(Fault::TooDeep { key: fields.path("file"), levels_max: NESTING_MAX })
        }
        TextOrObject::Object(inner) => Ok(Child::Inline(Box::new(read(inner, below, depth + 1)?))),
    }
}

/// A disk's size fits a signed file offset, as in QEMU.
fn null_co_size(fields: &mut Fields) -> Result<u64, Fault> {
    let size = fields.number("size")?.unwrap_or(NULL_CO_BYTES);
    if i64::try_from(size).is_err() {
        return Err(Fault::Expects { key: fields.path("size"), expected: "at most 2^63 - 1" });
    }
    Ok(size)
}
