//! `--export type=vhost-user-blk`: a virtio-blk device on a UNIX socket.
//!
//! Limits: 256 queues (docs/limits.md), logical blocks of 512 bytes to 2 MiB
//! (QEMU's), socket paths of 107 bytes (the kernel's `sun_path` with its terminating zero).

use std::os::fd::RawFd;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use syntax::{
    ArgumentError, Keys, OptionFields, UNIX_KEYS, UNIX_LATER, Union, ValueType, optional,
    parse_number, required,
};

use crate::export_keys::EXPORT_KEYS;
use crate::inherited_socket::{descriptor_number, passed_at};

/// The most queues of one export; so many offers one that offers as many as a front end asks for.
pub const QUEUES_MAX: u16 = 256;

/// The block size without `logical-block-size`.
pub const LOGICAL_BLOCK_BYTES: u32 = 512;

/// The largest block size, as in QEMU.
const LOGICAL_BLOCK_BYTES_MAX: u32 = 2 << 20;

/// The longest path that fits `sun_path`.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The keys of `type=vhost-user-blk`.
pub const VHOST_USER_BLK: Keys = Keys {
    of: "--export type=vhost-user-blk",
    supported: &[
        EXPORT_KEYS,
        &[
            required("addr", ValueType::Union(&ADDR)),
            optional("logical-block-size", ValueType::Size),
            optional("num-queues", ValueType::Number),
            optional("pin", ValueType::Texts),
        ],
    ],
    later: &[&["allow-inactive", "fixed-iothread"]],
};

/// The kinds of addresses.
static ADDR: Union =
    Union { tag: "type", default: None, branches: &[("fd", FD), ("unix", UNIX)], later: &[] };

const FD: Keys = Keys {
    of: "addr.type=fd",
    supported: &[&[required("type", ValueType::Text), required("str", ValueType::Text)]],
    later: &[],
};

const UNIX: Keys = Keys {
    of: "addr.type=unix",
    supported: &[&[required("type", ValueType::Text)], UNIX_KEYS],
    later: &[UNIX_LATER],
};

/// What only vhost-user-blk exports have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VhostUserBlkOptions {
    /// Where to listen.
    pub socket: SocketOptions,
    /// The block size a guest sees in bytes: a power of two, 512 to 2 MiB.
    pub logical_block_size: u32,
    /// How many queues are offered, 1 to 256; `None` is as many as the front end asks for.
    pub num_queues: Option<u16>,
    /// Queues that stay where they are put, though a pool serves them.
    pub pins: Vec<QueuePin>,
}

/// A queue that one iothread of a pool serves, whatever the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePin {
    /// Its number.
    pub queue: u16,
    /// The number of the iothread in the pool.
    pub iothread: u16,
}

/// The UNIX socket of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOptions {
    /// Its path as written, at most 107 bytes.
    pub path: PathBuf,
    /// The descriptor at which the line says that it listens already: then its file and rights are another's.
    pub descriptor: Option<RawFd>,
    /// Its permission bits, if not those the umask leaves.
    pub mode: Option<u32>,
    /// Its group, by name or number, if not the process's.
    pub group: Option<String>,
}

impl SocketOptions {
    /// The descriptor at which it listens already, by the line or because a service manager passes the socket of that path.
    pub fn listening_at(&self) -> Option<RawFd> {
        self.descriptor.or_else(|| passed_at(&self.path))
    }

    /// A socket that is made at that path, with the rights that it has by itself.
    pub fn at(path: PathBuf) -> Self {
        Self { path, descriptor: None, mode: None, group: None }
    }
}

/// Reads `QUEUE:IOTHREAD`, of queues that the export has, each at most once.
fn pins(fields: &mut OptionFields, queues: Option<u16>) -> Result<Vec<QueuePin>, ArgumentError> {
    if !fields.has("pin") {
        return Ok(Vec::new());
    }
    let mut pins: Vec<QueuePin> = Vec::new();
    for text in fields.texts("pin")? {
        let number = |text| parse_number(text).and_then(|it| u16::try_from(it).ok());
        let pair =
            text.split_once(':').and_then(|(queue, thread)| number(queue).zip(number(thread)));
        let expected = "QUEUE:IOTHREAD, as 0:2";
        let fault = || ArgumentError::Expects { key: "pin".to_owned(), expected };
        let (queue, iothread) = pair.ok_or_else(fault)?;
        let queues = queues.unwrap_or(QUEUES_MAX);
        if queue >= queues {
            return Err(ArgumentError::own(ExportOptionsError::PinnedQueue { queue, queues }));
        }
        if pins.iter().any(|it| it.queue == queue) {
            return Err(ArgumentError::own(ExportOptionsError::PinnedTwice(queue)));
        }
        pins.push(QueuePin { queue, iothread });
    }
    Ok(pins)
}

/// A value that an export's options cannot have.
#[derive(Debug, thiserror::Error)]
enum ExportOptionsError {
    /// A block size that no guest can have.
    #[error("parameter logical-block-size must be a power of 2 between 512 and 2097152, not {0}")]
    LogicalBlockSize(u64),
    /// Too few or too many queues.
    #[error("parameter num-queues must be between 1 and 256, not {0}")]
    NumQueues(u64),
    /// A queue that there is not.
    #[error("parameter pin: there is no queue {queue}; there are {queues}, the first is 0")]
    PinnedQueue {
        /// The queue.
        queue: u16,
        /// How many there are.
        queues: u16,
    },
    /// A queue with two places.
    #[error("parameter pin: queue {0} is there twice")]
    PinnedTwice(u16),
    /// A socket path that the kernel cannot take.
    #[error("socket path '{}' has {bytes} bytes; the limit is 107", path.display())]
    SocketPathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
}

impl VhostUserBlkOptions {
    pub(crate) fn read(fields: &mut OptionFields) -> Result<Self, ArgumentError> {
        let num_queues = fields.number("num-queues")?.map(check_num_queues).transpose()?;
        Ok(Self {
            socket: addr(fields)?,
            logical_block_size: match fields.size("logical-block-size")? {
                Some(bytes) => check_logical_block_size(bytes)?,
                None => LOGICAL_BLOCK_BYTES,
            },
            num_queues,
            pins: pins(fields, num_queues)?,
        })
    }

    pub(crate) fn write(&self, written: &mut Map<String, Value>) {
        let mut put = |key: &str, value: Value| drop(written.insert(key.to_owned(), value));
        put(
            "addr",
            match self.socket.descriptor {
                Some(number) => json!({"type": "fd", "str": number.to_string()}),
                None => json!({"type": "unix", "path": self.socket.path.to_string_lossy()}),
            },
        );
        put("logical-block-size", self.logical_block_size.into());
        if let Some(queues) = self.num_queues {
            put("num-queues", queues.into());
        }
        if !self.pins.is_empty() {
            let pin = |pin: &QueuePin| format!("{}:{}", pin.queue, pin.iothread);
            put("pin", self.pins.iter().map(pin).collect::<Vec<_>>().into());
        }
    }
}

/// Checks a socket's path.
pub fn check_socket_path(path: PathBuf) -> Result<PathBuf, ArgumentError> {
    let bytes = path.as_os_str().len();
    if bytes == 0 {
        return Err(ArgumentError::EmptyPath("socket path"));
    }
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Err(ArgumentError::own(ExportOptionsError::SocketPathTooLong { path, bytes }));
    }
    Ok(path)
}

/// Checks a number of queues.
pub fn check_num_queues(queues: u64) -> Result<u16, ArgumentError> {
    u16::try_from(queues)
        .ok()
        .filter(|queues| (1..=QUEUES_MAX).contains(queues))
        .ok_or_else(|| ArgumentError::own(ExportOptionsError::NumQueues(queues)))
}

fn check_logical_block_size(bytes: u64) -> Result<u32, ArgumentError> {
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_power_of_two())
        .filter(|bytes| (LOGICAL_BLOCK_BYTES..=LOGICAL_BLOCK_BYTES_MAX).contains(bytes))
        .ok_or_else(|| ArgumentError::own(ExportOptionsError::LogicalBlockSize(bytes)))
}

fn addr(fields: &mut OptionFields) -> Result<SocketOptions, ArgumentError> {
    let missing = ArgumentError::Missing(fields.path("addr"));
    let (kind, mut addr) = fields.union("addr")?.ok_or(missing)?;
    let (path, descriptor) = match kind {
        "fd" => (PathBuf::new(), Some(descriptor_number(&addr.required_text("str")?)?)),
        _ => (check_socket_path(addr.required_text("path")?.into())?, None),
    };
    Ok(SocketOptions { path, descriptor, mode: None, group: None })
}
