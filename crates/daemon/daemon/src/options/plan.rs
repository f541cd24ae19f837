//! What the command line of `ringloom serve` asks for, checked and in order.
//!
//! Where it stands: written by [`parse`](super::parse), read by the graph and export builders and
//! by [`attach`](crate::attach).
//!
//! Invariants: ids and node-names are well formed and unique; a step names only what an earlier
//! step made; every number is within its bound. [`parse`](super::parse) is the only maker.

use std::path::PathBuf;

use block::Access;
use layers::ThrottleLimits;

use crate::drivers::Blockdev;
use crate::graph::NamedFilesPolicy;
use crate::log::{Log, LogFileError};
use crate::model::{IOTHREAD, NewExport, ObjectName, THROTTLE_GROUP};

/// What the command line asks for: serve, help or version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeCommand {
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
    pub(crate) steps: Vec<PlanStep>,
    /// Where to write the process id once everything is set up.
    pub pidfile: Option<PathBuf>,
    /// Where the log goes, if not to stderr, or in the background to the host's journal or syslog.
    pub log_file: Option<PathBuf>,
    /// Whether the process leaves the terminal.
    pub daemonize: Daemonize,
    /// Whether it may take the place of the process that serves its sockets.
    pub takeover: TakeoverMode,
    /// In which form to print the lines that attach a guest, if at all.
    pub print: Option<AttachFormat>,
    /// What the daemon gives up once everything is set up.
    pub sandbox: SandboxMode,
    /// Which files images may name.
    pub(crate) named_files: NamedFilesPolicy,
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
    pub(crate) fn exports(&self) -> impl Iterator<Item = &ExportOptions> {
        self.steps.iter().filter_map(|step| match step {
            PlanStep::Export(export) => Some(export),
            PlanStep::Object(_) | PlanStep::Blockdev(_) => None,
        })
    }

    /// Whether a block device may be written: one that it names, or one that an image may name.
    pub(crate) fn may_write_devices(&self) -> bool {
        let may_name_any = self.named_files == NamedFilesPolicy::Anywhere;
        self.steps.iter().any(|step| match step {
            PlanStep::Blockdev(blockdev) => {
                blockdev.nodes().iter().any(|node| node.may_write_device(may_name_any))
            }
            PlanStep::Object(_) | PlanStep::Export(_) => false,
        })
    }

    /// The log that it asks for. Call it before the process goes to the background.
    pub fn open_log(&self) -> Result<Log, LogFileError> {
        let log_file = self.log_file.as_deref();
        match self.daemonize {
            Daemonize::Foreground => Log::of_foreground(log_file),
            Daemonize::Background => Log::of_background(log_file),
        }
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

/// Whether the sandbox is off, used as far as possible, or required (`--sandbox`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxMode {
    /// Nothing.
    Off,
    /// What the host lets it; the rest is said.
    Possible,
    /// All of it; if something cannot be given up, it does not serve.
    Required,
}

/// Whether a process that serves the same sockets is taken over (`--takeover`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeoverMode {
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

/// One object, node or export that the plan creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlanStep {
    /// `--object`.
    Object(ObjectOptions),
    /// `--blockdev`.
    Blockdev(Blockdev),
    /// `--export`.
    Export(ExportOptions),
}

/// The argument of `--object`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectOptions {
    /// Its name, which no other object has.
    pub(crate) id: String,
    /// What it is.
    pub(crate) kind: ObjectKind,
}

/// What an object is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    /// A thread, and how long it looks for work before it sleeps.
    Iothread(PollOptions),
    /// What the nodes that name it may do together.
    ThrottleGroup(ThrottleLimits),
}

impl ObjectOptions {
    /// The object for the model.
    pub(crate) fn name(&self) -> ObjectName<'_> {
        let kind = match self.kind {
            ObjectKind::Iothread(_) => IOTHREAD,
            ObjectKind::ThrottleGroup(_) => THROTTLE_GROUP,
        };
        ObjectName { kind, id: &self.id }
    }
}

/// The polling of an iothread, as in QEMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PollOptions {
    /// The longest time to look, in nanoseconds; 0 switches polling off. `None` leaves it to the
    /// daemon.
    pub(crate) max_ns: Option<u64>,
    /// By how much a time that was too short grows; 0 leaves it to the daemon.
    pub(crate) grow: u32,
    /// By how much a time that was in vain shrinks; 0 leaves it to the daemon.
    pub(crate) shrink: u32,
}

/// The argument of `--export`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExportOptions {
    /// Its name.
    pub(crate) id: String,
    /// The node to offer.
    pub(crate) node_name: String,
    /// Where to listen.
    pub(crate) socket: SocketOptions,
    /// Whether clients may write.
    pub(crate) writable: bool,
    /// The block size a guest sees in bytes: a power of two, 512 to 2 MiB.
    pub(crate) logical_block_size: u32,
    /// How many queues are offered, 1 to 256; `None` is as many as the front end asks for.
    pub(crate) num_queues: Option<u16>,
    /// The iothreads that serve the queues, round-robin. Empty is `none`.
    pub(crate) iothreads: Vec<String>,
    /// Whether changes are durable as soon as they are answered, until a driver asks for another
    /// mode.
    pub(crate) writethrough: bool,
}

impl ExportOptions {
    /// The export for the model.
    pub(crate) fn entry(&self) -> NewExport<'_> {
        NewExport {
            id: &self.id,
            node: &self.node_name,
            access: if self.writable { Access::ReadWrite } else { Access::ReadOnly },
            iothreads: &self.iothreads,
            socket: &self.socket.path,
        }
    }
}

/// The UNIX socket of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketOptions {
    /// Its path as written, at most 107 bytes.
    pub(crate) path: PathBuf,
    /// Its permission bits, if not those the umask leaves.
    pub(crate) mode: Option<u32>,
    /// Its group, by name or number, if not the process's.
    pub(crate) group: Option<String>,
}
