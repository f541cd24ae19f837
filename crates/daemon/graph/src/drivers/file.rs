//! The drivers `file` and `host_device`: what holds a disk on the host.

use std::path::PathBuf;
use std::sync::Arc;

use disk::FileNode;
use kernel_io::{Aio, Caching, FileKind, LockOptions, Locking, OpenOptions, Sharing};
use syntax::{ArgumentError, Key, Keys, OptionFields, ValueType, optional, required};

use super::base::{BASE, BASE_LATER, BaseOptions, CHANGEABLE, pair};
use super::driver::{
    Driver, DriverOptions, HostFileSpec, MadeNode, NodeContext, NodeError, NodeRequirements,
    Options, ThrottleGroups,
};

const OWN: &[Key] = &[
    required("filename", ValueType::Text),
    optional("aio", ValueType::Word(&["threads", "native", "io_uring"])),
    optional("locking", ValueType::Word(&["auto", "on", "off"])),
];

const LATER: &[&str] = &["aio-max-batch", "drop-cache", "pr-manager", "x-check-cache-dropped"];

/// `driver=file`.
pub(super) static FILE: Driver = Driver {
    name: "file",
    keys: Keys {
        of: "--blockdev driver=file",
        supported: &[BASE, OWN],
        later: &[BASE_LATER, LATER],
    },
    changeable: CHANGEABLE,
    roles: &[],
    help: "  --blockdev [driver=]file,node-name=N,filename=PATH
                         a regular file
",
    as_format: None,
    read: |fields, base| read(FileKind::Regular, fields, base),
};

/// `driver=host_device`.
pub(super) static HOST_DEVICE: Driver = Driver {
    name: "host_device",
    keys: Keys {
        of: "--blockdev driver=host_device",
        supported: &[BASE, OWN],
        later: &[BASE_LATER, LATER],
    },
    changeable: CHANGEABLE,
    roles: &[],
    help: "  --blockdev [driver=]host_device,node-name=N,filename=PATH
                         a block device of the host
             both: [,aio=io_uring|native|threads]
                         which engine does the I/O; native (Linux AIO) needs cache.direct=on.
                         Default: io_uring; where the host forbids it, the better of the others
                   [,locking=auto|on|off]
                         lock the image as QEMU does; auto, the default: where the host can
",
    as_format: None,
    read: |fields, base| read(FileKind::BlockDevice, fields, base),
};

/// The driver for a file of that kind, and its options when nothing else is said.
pub(super) fn host_file(filename: PathBuf, kind: FileKind) -> (&'static Driver, Options) {
    let driver = match kind {
        FileKind::Regular => &FILE,
        FileKind::BlockDevice => &HOST_DEVICE,
    };
    let (aio, locking) = (Aio::Automatic, Locking::Automatic);
    (driver, Arc::new(FileOptions { kind, filename, aio, locking }))
}

/// The options of `driver=file` and `driver=host_device`.
#[derive(Debug)]
struct FileOptions {
    kind: FileKind,
    /// As written.
    filename: PathBuf,
    aio: Aio,
    locking: Locking,
}

/// `aio=native` without `cache.direct=on`: Linux AIO blocks on what goes through the page cache. QEMU's sentence.
#[derive(Debug, thiserror::Error)]
#[error("aio=native was specified, but it requires cache.direct=on, which was not specified.")]
struct NativeAioWithoutDirect;

fn read(
    kind: FileKind,
    fields: &mut OptionFields,
    base: &BaseOptions,
) -> Result<Options, ArgumentError> {
    let filename = fields.required_text("filename")?;
    if filename.is_empty() {
        return Err(ArgumentError::EmptyPath("filename"));
    }
    let aio = match fields.word("aio")? {
        None => Aio::Automatic,
        Some("threads") => Aio::Threads,
        Some("native") if !base.cache_direct => {
            return Err(ArgumentError::own(NativeAioWithoutDirect));
        }
        Some("native") => Aio::Native,
        Some(_) => Aio::IoUring,
    };
    let locking = match fields.word("locking")? {
        Some("on") => Locking::On,
        Some("off") => Locking::Off,
        Some(_) | None => Locking::Automatic,
    };
    Ok(Arc::new(FileOptions { kind, filename: filename.into(), aio, locking }))
}

impl DriverOptions for FileOptions {
    fn needs(&self) -> NodeRequirements<'_> {
        let files = vec![HostFileSpec { path: &self.filename, kind: self.kind }];
        NodeRequirements { files, ..NodeRequirements::default() }
    }

    fn describe(&self, _: &ThrottleGroups) -> Vec<(String, String)> {
        let aio = match self.aio {
            Aio::Automatic => "any",
            Aio::IoUring => "io_uring",
            Aio::Native => "native",
            Aio::Threads => "threads",
        };
        let locking = match self.locking {
            Locking::Automatic => "auto",
            Locking::On => "on",
            Locking::Off => "off",
        };
        vec![pair("aio", aio), pair("locking", locking)]
    }

    fn make(&self, context: &NodeContext<'_>) -> Result<MadeNode, NodeError> {
        let NodeContext { name, base, .. } = context;
        let options = OpenOptions {
            path: self.filename.clone(),
            kind: self.kind,
            access: base.access(),
            caching: if base.cache_direct { Caching::Direct } else { Caching::Buffered },
            aio: self.aio,
            flushes: base.flushes,
            lock: LockOptions {
                locking: self.locking,
                sharing: if base.force_share { Sharing::Forced } else { Sharing::AsClaimed },
            },
        };
        let what = format!("node {name}: file {}", self.filename.display());
        let open = || FileNode::open(name, &options, base.discard, context.files);
        let mut node = context.watch.during(what, open).map_err(|error| context.failed(error))?;
        if let Some(threshold) = context.before.and_then(|before| before.write_threshold.as_ref()) {
            node = node.with_write_threshold(Arc::clone(threshold));
        }
        let file = Some(Arc::clone(node.file()));
        let write_threshold = Some(Arc::clone(node.write_threshold()));
        Ok(MadeNode { file, write_threshold, ..MadeNode::of(Arc::new(node)) })
    }
}
