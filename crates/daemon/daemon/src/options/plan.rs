//! What the command line of `ringloom serve` asks for, checked and in order.
//!
//! Where it stands: written by [`parse`](super::parse), read by the graph and export builders and
//! by [`attach`](crate::attach).
//!
//! Invariants: ids and node-names are well formed and unique; a step names only what an earlier
//! step made; every number is within its bound. [`parse`](super::parse) is the only maker.

use std::path::PathBuf;
use std::time::Duration;

use block::Access;
use layers::{Chunk, DelaySettings};

use crate::permissions::{BACKING, PassesOn};

use layers::ThrottleLimits;
use qcow2::OverlapCheck;

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Serve disks.
    Serve(Plan),
    /// Print a help text and leave.
    Help(HelpTopic),
    /// Print the version and leave.
    Version,
}

/// Which help text is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HelpTopic {
    /// `ringloom serve --help`: everything.
    Serve,
    /// `--object help`.
    Object,
    /// `--blockdev help`.
    Blockdev,
    /// `--export help`.
    Export,
}

/// Everything `ringloom serve` is to set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What to create, in the order given.
    pub steps: Vec<Step>,
    /// Where to write the process id once everything is set up.
    pub pidfile: Option<PathBuf>,
    /// Where the log goes, if not to stderr, or in the background to the host's journal or syslog.
    pub log_file: Option<PathBuf>,
    /// Whether the process leaves the terminal.
    pub daemonize: Daemonize,
    /// Whether it may take the place of the process that serves its sockets.
    pub takeover: Takeover,
    /// In which form to print the lines that attach a guest, if at all.
    pub print: Option<AttachFormat>,
    /// What the daemon gives up once everything is set up.
    pub sandbox: Sandboxing,
    /// What front ends may share.
    pub guest_memory: GuestMemoryOptions,
}

/// What front ends may share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuestMemoryOptions {
    /// Files of the file systems of these directories, besides what is nothing but memory.
    pub directories: Vec<PathBuf>,
    /// How many bytes a session may map, if it was said.
    pub bytes_max: Option<u64>,
}

impl Plan {
    /// The exports in the order given.
    pub fn exports(&self) -> impl Iterator<Item = &ExportOptions> {
        self.steps.iter().filter_map(|step| match step {
            Step::Export(export) => Some(export),
            Step::Object(_) | Step::Blockdev(_) => None,
        })
    }

    /// Whether a block device may be written: one that it names, or one that an image may name.
    pub(crate) fn may_write_devices(&self) -> bool {
        let is_written = |node: &&Blockdev| match &node.driver {
            Driver::HostDevice { .. } => !node.read_only,
            Driver::Qcow2 { named_files, .. } => {
                !node.read_only && *named_files == NamedFiles::Anywhere
            }
            Driver::File { .. }
            | Driver::Raw { .. }
            | Driver::NullCo { .. }
            | Driver::Throttle { .. }
            | Driver::Delay { .. }
            | Driver::Stripe { .. } => false,
        };
        self.steps.iter().any(|step| match step {
            Step::Blockdev(blockdev) => blockdev.nodes().iter().any(is_written),
            Step::Object(_) | Step::Export(_) => false,
        })
    }
}

/// Whether the process leaves the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Daemonize {
    /// It stays.
    Foreground,
    /// It forks; the parent leaves with the child's verdict.
    Background,
}

/// What the daemon gives up once everything is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandboxing {
    /// Nothing.
    Off,
    /// What the host lets it; the rest is said.
    Possible,
    /// All of it; if something cannot be given up, it does not serve.
    Required,
}

/// What becomes of a process that serves one of the sockets already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// It keeps it, and this one does not start.
    Never,
    /// This one takes its place.
    WhereServed,
}

/// For whom to print the lines that attach a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachFormat {
    /// A QEMU command line.
    Qemu,
    /// Elements of a libvirt domain.
    Libvirt,
}

/// One thing to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// `--object`.
    Object(Object),
    /// `--blockdev`.
    Blockdev(Blockdev),
    /// `--export`.
    Export(ExportOptions),
}

/// `--object`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A thread.
    Iothread(IothreadObject),
    /// Limits that several nodes share.
    ThrottleGroup(ThrottleGroupObject),
}

impl Object {
    /// Its name, which no other object has.
    pub fn id(&self) -> &str {
        match self {
            Self::Iothread(object) => &object.id,
            Self::ThrottleGroup(object) => &object.id,
        }
    }
}

/// `--object iothread`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IothreadObject {
    /// Its name.
    pub id: String,
    /// How long it looks for work before it sleeps.
    pub polling: PollOptions,
}

/// `--object throttle-group`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThrottleGroupObject {
    /// Its name.
    pub id: String,
    /// What its members may do together.
    pub limits: ThrottleLimits,
}

/// The polling of an iothread, as in QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PollOptions {
    /// The longest time to look, in nanoseconds; 0 switches polling off. `None` leaves it to the
    /// daemon.
    pub max_ns: Option<u64>,
    /// By how much a time that was too short grows; 0 leaves it to the daemon.
    pub grow: u32,
    /// By how much a time that was in vain shrinks; 0 leaves it to the daemon.
    pub shrink: u32,
}

/// `--blockdev`, or a node written inside another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blockdev {
    /// Its name. `None` only for a node written inside another one.
    pub node_name: Option<String>,
    /// What it is.
    pub driver: Driver,
    /// The nodes below it, in the order in which its driver takes them.
    pub children: Vec<NamedChild>,
    /// Whether it refuses changes. A nested node takes its parent's answer unless it has its own.
    pub read_only: bool,
    /// Whether it was opened read-only because nobody on the line writes to it
    /// (`auto-read-only=on`): [`parse`](super::parse) has set `read_only`. A nested node takes its parent's answer
    /// unless it has its own.
    pub auto_read_only: AutoReadOnly,
    /// What a discard does. A nested node passes it on, as in QEMU.
    pub discard: Discard,
    /// Whether the host's page cache is left out. A nested node takes its parent's answer unless
    /// it has its own.
    pub cache_direct: bool,
    /// What becomes of flushes. A nested node takes its parent's answer unless it has its own.
    pub flushes: Flushes,
    /// Whether others may do with its image what they like. Only with `read_only`. A nested node
    /// takes its parent's answer unless it has its own.
    pub force_share: bool,
    /// Whether its exports hold it from the start. Not inherited.
    pub activity: Activity,
}

impl Blockdev {
    /// Its name in messages: a node written inside another one may have none of its own.
    /// `parent` is the name of the other one, `key` what it stands under there.
    pub fn name_below(&self, parent: &str, key: &str) -> String {
        self.node_name.clone().unwrap_or_else(|| format!("{parent}/{key}"))
    }

    /// What it does to what is asked of the node, on the way to its children.
    pub(crate) fn passes_on(&self) -> PassesOn {
        match &self.driver {
            Driver::File { .. }
            | Driver::HostDevice { .. }
            | Driver::Raw { .. }
            | Driver::NullCo { .. }
            | Driver::Throttle { .. }
            | Driver::Delay { .. } => PassesOn::AsAsked,
            Driver::Stripe { .. } => PassesOn::Alone,
            Driver::Qcow2 { .. } if self.read_only => PassesOn::Image(Access::ReadOnly),
            Driver::Qcow2 { .. } => PassesOn::Image(Access::ReadWrite),
        }
    }

    /// Has it and every node written inside it open these files that only images name.
    pub(crate) fn allow_named_files(&mut self, allowed: &NamedFiles) {
        if let Driver::Qcow2 { named_files, .. } = &mut self.driver {
            named_files.clone_from(allowed);
        }
        for child in &mut self.children {
            if let Child::Inline(inner) = &mut child.node {
                inner.allow_named_files(allowed);
            }
        }
    }

    /// The node and every node written inside it, the lower ones first.
    pub fn nodes(&self) -> Vec<&Self> {
        let below = self.children.iter().filter_map(|child| match &child.node {
            Child::Inline(inner) => Some(inner.nodes()),
            Child::Reference(_) => None,
        });
        below.flatten().chain([self]).collect()
    }
}

/// Whether a node is opened read-only as long as nobody writes to it (`auto-read-only=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoReadOnly {
    /// It is opened as it is told.
    Off,
    /// It is; only files know the difference.
    On,
}

/// Whether a node is held from the start (`active=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// From the start of an export to its end.
    Active,
    /// While an export of it serves rings.
    Inactive,
}

impl Activity {
    /// Whether a node that is like this may have a child that is like that.
    pub(crate) fn may_stand_on(self, child: Self) -> bool {
        match (self, child) {
            (Self::Active, Self::Inactive) => false,
            (Self::Active, Self::Active) | (Self::Inactive, _) => true,
        }
    }
}

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Driver {
    /// A regular file.
    File {
        /// Its path as written.
        filename: PathBuf,
        /// Which engine does its I/O; `None` is the best that the host allows.
        aio: Option<AioEngine>,
        /// Whether it is locked against other processes.
        locking: Locking,
    },
    /// A block device of the host.
    HostDevice {
        /// Its path as written.
        filename: PathBuf,
        /// Which engine does its I/O; `None` is the best that the host allows.
        aio: Option<AioEngine>,
        /// Whether it is locked against other processes.
        locking: Locking,
    },
    /// The bytes of its one child as they are.
    Raw {
        /// Where they begin in the child.
        offset: u64,
        /// How many they are; `None` is all that follow.
        size: Option<u64>,
    },
    /// A disk without content.
    NullCo {
        /// Its size in bytes.
        size: u64,
        /// Whether reads give zeroes, or whatever the guest's memory holds.
        read_zeroes: bool,
        /// How long every request takes.
        latency: Duration,
    },
    /// Its one child, answering later.
    Delay {
        /// How much later.
        settings: DelaySettings,
        /// What random delays depend on.
        seed: u64,
    },
    /// Its children's chunks in turn.
    Stripe {
        /// How many neighbouring bytes lie on one child.
        chunk: Chunk,
    },
    /// The disk in an image. Its children are `file` and, as they are given, `backing` and `data-file`.
    Qcow2 {
        /// What it may keep of the image's tables in memory.
        caches: Qcow2Caches,
        /// Who says what is below the image.
        backing: Backing,
        /// Which files it opens that only the image names.
        named_files: NamedFiles,
    },
    /// Its one child, within the limits of a group.
    Throttle {
        /// The group's name.
        group: String,
    },
}

impl Driver {
    /// Whether what is written to it is written to the child under this key.
    pub(crate) fn writes_to(&self, role: &str) -> bool {
        match self {
            Self::Qcow2 { .. } => role != BACKING,
            Self::File { .. }
            | Self::HostDevice { .. }
            | Self::Raw { .. }
            | Self::NullCo { .. }
            | Self::Throttle { .. }
            | Self::Delay { .. }
            | Self::Stripe { .. } => true,
        }
    }

    /// Whether it opens something that it may not be allowed to write.
    pub(crate) fn opens_a_file(&self) -> bool {
        match self {
            Self::File { .. } | Self::HostDevice { .. } => true,
            Self::Raw { .. }
            | Self::NullCo { .. }
            | Self::Throttle { .. }
            | Self::Delay { .. }
            | Self::Stripe { .. }
            | Self::Qcow2 { .. } => false,
        }
    }
}

/// What a qcow2 node may keep of its image's tables in memory, in bytes, as far as it was said. Each of
/// the three sizes fits the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Qcow2Caches {
    /// L2 tables (`l2-cache-size`).
    pub l2: Option<u64>,
    /// Refcount blocks (`refcount-cache-size`).
    pub refcount: Option<u64>,
    /// Both (`cache-size`).
    pub both: Option<u64>,
    /// After how many seconds without use a table goes; 0: never (`cache-clean-interval`).
    pub clean_seconds: Option<u64>,
    /// What is held against metadata (`overlap-check`).
    pub overlap_check: OverlapCheck,
}

/// Who says what is below an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// The image.
    OfImage,
    /// The command line: the child `backing`, or nothing if there is none.
    OfLine,
}

/// Which files are opened that only an image names (`--named-files`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedFiles {
    /// None.
    Refused,
    /// Those in one of these directories or below it. Each is there, and has no links in its path.
    Below(Vec<PathBuf>),
    /// All.
    Anywhere,
}

/// What does a file's I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AioEngine {
    /// io_uring.
    IoUring,
    /// Linux AIO.
    Native,
    /// Threads that do blocking calls.
    Threads,
}

/// Whether an image is locked against other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locking {
    /// Where the host can.
    Automatic,
    /// Always.
    On,
    /// Never.
    Off,
}

/// A node below another one, and the key that it stands under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedChild {
    /// The key, as `file` or `children.0`.
    pub name: String,
    /// The node.
    pub node: Child,
}

/// A node below another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Child {
    /// A node made before, by its node-name.
    Reference(String),
    /// A node written in place.
    Inline(Box<Blockdev>),
}

/// What a discard does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discard {
    /// Nothing.
    Ignore,
    /// It gives the space back to the host.
    Unmap,
}

/// What becomes of flushes (`cache.no-flush`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushes {
    /// They make durable what was written.
    Obeyed,
    /// They complete without any effect.
    Ignored,
}

/// `--export vhost-user-blk`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportOptions {
    /// Its name.
    pub id: String,
    /// The node to offer.
    pub node_name: String,
    /// Where to listen.
    pub socket: SocketOptions,
    /// Whether clients may write.
    pub writable: bool,
    /// The block size a guest sees in bytes: a power of two, 512 to 2 MiB.
    pub logical_block_size: u32,
    /// How many queues are offered, 1 to 256; `None` is as many as the front end asks for.
    pub num_queues: Option<u16>,
    /// The iothreads that serve the queues, round-robin. Empty is `none`.
    pub iothreads: Vec<String>,
    /// Whether changes are durable as soon as they are answered, until a driver asks for another
    /// mode.
    pub writethrough: bool,
}

/// The UNIX socket of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketOptions {
    /// Its path as written, at most 107 bytes.
    pub path: PathBuf,
    /// Its permission bits, if not those the umask leaves.
    pub mode: Option<u32>,
    /// Its group, by name or number, if not the process's.
    pub group: Option<String>,
}
