//! The words of `ringloom ctl` and what they take.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde_json::Value;

use crate::backup::BackupArgs;
use crate::restore::RestoreArgs;
use crate::units::{
    Limit, SizeChange, parse_bytes, parse_limit, parse_object, parse_queue, parse_size,
};

/// Which daemon, what to do, and how to print it.
#[derive(Debug, Args)]
pub struct CtlArgs {
    /// The daemon's monitor; default: $RINGLOOM_MONITOR
    #[arg(short, long, global = true, value_name = "SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Print JSON, for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) word: Word,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Word {
    /// List exports, or what else there is
    #[command(visible_alias = "ls")]
    List {
        /// What to list
        #[arg(value_enum, default_value = "exports")]
        what: Kind,
    },
    /// Show one export, node or object in detail, or everything
    Show {
        /// Its name; export:NAME, node:NAME or object:NAME if several
        name: Option<String>,
    },
    /// Change the size of a disk
    Resize {
        /// Its name; export:NAME or node:NAME if both are called so
        #[arg(value_name = "EXPORT|NODE")]
        target: String,
        /// As 20G, or as +5G for what is added (powers of 1024)
        #[arg(value_parser = parse_size)]
        size: SizeChange,
        /// Allow a smaller size: what lies behind it is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Put a qcow2 overlay on a disk: what is there stays as it is
    Snapshot {
        /// The export or node
        #[arg(value_name = "EXPORT|NODE")]
        target: String,
        /// The file of the overlay, which the daemon makes
        file: String,
        /// The name of its node (qemu-storage-daemon needs one)
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// A restart need not know it (daemons without --state)
        #[arg(long)]
        volatile: bool,
    },
    /// Show or change the limits of a throttle group
    Throttle {
        /// The group; without it all are listed
        group: Option<String>,
        /// As iops-total=2000 or bps-read=100M; 0 is no limit
        #[arg(value_name = "LIMIT=VALUE", value_parser = parse_limit)]
        limits: Vec<Limit>,
    },
    /// Show or change how long iothreads look for work
    Polling {
        /// The iothread; without it all are listed
        iothread: Option<String>,
        /// Nanoseconds; 0 never polls
        #[arg(value_name = "NS")]
        nanoseconds: Option<u64>,
    },
    /// Add or delete iothreads
    #[command(subcommand)]
    Iothread(IothreadWord),
    /// Add or delete exports
    #[command(subcommand)]
    Export(ExportWord),
    /// Start or stop the NBD server
    #[command(subcommand)]
    Nbd(NbdWord),
    /// Add or delete disks (nodes)
    #[command(subcommand)]
    Disk(DiskWord),
    /// Put a filter between a node and all who use it, or take it away
    #[command(subcommand)]
    Filter(FilterWord),
    /// Have a job rest, go on, end or be waited for
    #[command(subcommand)]
    Job(JobWord),
    /// Move a disk to another file, device or server while it is used
    MoveDisk(MoveDiskArgs),
    /// Copy disks as they are at one instant: full first, then what was changed
    Backup(Box<BackupArgs>),
    /// Have a disk as it was when it was backed up; needs no daemon
    Restore(RestoreArgs),
    /// Move a queue, or all of an export, to another iothread
    Move {
        /// With :QUEUE that queue alone, until its client leaves
        #[arg(value_name = "EXPORT[:QUEUE]", value_parser = parse_queue)]
        target: (String, Option<u16>),
        /// The iothread; none: the main thread (not for one queue)
        iothread: String,
    },
    /// Have a queue stay on an iothread of its pool
    Pin {
        /// The queue
        #[arg(value_name = "EXPORT:QUEUE", value_parser = parse_queue)]
        target: (String, Option<u16>),
        /// The number of the iothread in the pool, from 0; none: the pool places it
        #[arg(value_name = "N")]
        iothread: String,
    },
    /// Have a pool place queues as the load asks, or leave them where they are
    Placement {
        /// The pool
        pool: String,
        /// auto: queues are placed; frozen: they stay, but for those that are pinned
        #[arg(value_enum)]
        mode: PlacementMode,
    },
    /// Show or change what the daemon logs, until it ends
    Log {
        /// As debug, or exports=debug for a part of the program; exports= has it log as all do
        #[arg(value_name = "[PART=]LEVEL")]
        setting: Option<String>,
    },
    /// Carry out a QMP command and print what it returns
    Qmp {
        /// The command, as query-block-exports
        command: String,
        /// Its arguments, a JSON object
        #[arg(value_name = "JSON", default_value = "{}", value_parser = parse_object)]
        arguments: Value,
    },
    /// Print events until Ctrl-C; it needs a monitor for itself
    Events,
    /// End the daemon: it finishes what is open and flushes
    Quit,
}

/// What a pool does with queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementMode {
    /// Places them
    Auto,
    /// Leaves them where they are
    Frozen,
}

impl PlacementMode {
    /// The word of a pool's `mode`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Frozen => "frozen",
        }
    }
}

/// What can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// What guests see
    Exports,
    /// Images and what is between them and the exports
    Nodes,
    /// Threads that serve queues
    Iothreads,
    /// Queues that are served now, and how fast
    Queues,
    /// Limits that disks share
    ThrottleGroups,
    /// What goes on: copies, merges
    Jobs,
}

/// What is done with iothreads.
#[derive(Debug, Subcommand)]
pub(crate) enum IothreadWord {
    /// Start an iothread
    Add {
        /// Its name
        id: String,
        /// How long it looks for work before it sleeps
        #[arg(long, value_name = "NS")]
        polling: Option<u64>,
    },
    /// End an iothread that serves nothing
    Del {
        /// Its name
        id: String,
    },
}

/// What is done with exports.
#[derive(Debug, Subcommand)]
pub(crate) enum ExportWord {
    /// Offer a node over vhost-user-blk, or on the NBD server
    #[command(
        group(ArgGroup::new("front").required(true).args(["path", "nbd"])),
        override_usage = "ringloom ctl export add [OPTIONS] <ID> <NODE> <PATH|--nbd>"
    )]
    Add {
        /// The name of the export
        id: String,
        /// The node
        node: String,
        /// The UNIX socket for vhost-user-blk
        path: Option<String>,
        /// Over NBD, on the server that runs (`nbd start`)
        #[arg(long)]
        nbd: bool,
        /// The name that NBD clients ask for; default: the node's
        #[arg(long, requires = "nbd")]
        name: Option<String>,
        /// The guest or client cannot write
        #[arg(long)]
        read_only: bool,
        /// How many queues are offered
        #[arg(long, value_name = "N", conflicts_with = "nbd")]
        num_queues: Option<u16>,
        /// The iothread that serves it; several times for several
        #[arg(long = "iothread", value_name = "ID")]
        iothreads: Vec<String>,
    },
    /// Take an export away
    Del {
        /// The name of the export
        id: String,
        /// Disconnect its client
        #[arg(long)]
        force: bool,
    },
}

/// What is done with the NBD server.
#[derive(Debug, Subcommand)]
pub(crate) enum NbdWord {
    /// Start it; exports are added with `export add --nbd`
    Start {
        /// HOST:PORT, or the path of a UNIX socket
        #[arg(value_name = "HOST:PORT|PATH")]
        address: String,
        /// The tls-creds-x509 object; clients then have to use TLS
        #[arg(long, value_name = "ID")]
        tls_creds: Option<String>,
        /// The most clients at a time; 0: any number; default: 100
        #[arg(long, value_name = "N")]
        max_connections: Option<u32>,
    },
    /// Stop it: its exports go, its clients are disconnected
    Stop,
}

/// What is done with filters.
#[derive(Debug, Subcommand)]
pub(crate) enum FilterWord {
    /// All who use the node use the filter on it
    Insert {
        /// The node
        node: String,
        /// The filter, whose 'file' is the node
        filter: String,
        /// A restart need not know it (daemons without --state)
        #[arg(long)]
        volatile: bool,
    },
    /// All who use the filter use the node below it
    Remove {
        /// The filter
        filter: String,
        /// A restart need not know it (daemons without --state)
        #[arg(long)]
        volatile: bool,
    },
}

/// What is done with jobs.
#[derive(Debug, Subcommand)]
pub(crate) enum JobWord {
    /// Show its progress until it is over, or can be completed
    Wait {
        /// The job
        job: String,
    },
    /// Have it rest
    Pause {
        /// The job
        job: String,
    },
    /// Have it go on
    Resume {
        /// The job
        job: String,
    },
    /// Have it copy at most so much in a second
    Speed {
        /// The job
        job: String,
        /// As 100M; 0 is no limit
        #[arg(value_name = "BYTES", value_parser = parse_bytes)]
        speed: u64,
    },
    /// End it with its result: a mirror's guests go on on the target
    Complete {
        /// The job
        job: String,
    },
    /// End it without its result
    Cancel {
        /// The job
        job: String,
        /// The target of a mirror keeps what the disk has at this moment
        #[arg(long)]
        keep: bool,
    },
    /// Have its result count (auto-finalize=false)
    Finalize {
        /// The job
        job: String,
    },
    /// Forget a job that is over (auto-dismiss=false)
    Dismiss {
        /// The job
        job: String,
    },
}

/// Which disk moves, and where to.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
pub(crate) struct MoveDiskArgs {
    /// The export or node
    #[arg(value_name = "EXPORT|NODE")]
    pub(crate) target: String,
    /// A file that the daemon makes, a block device, or nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH
    #[arg(long, value_name = "FILE|DEVICE|URI")]
    pub(crate) to: String,
    /// What is made of it; default: qcow2 of a new file NAME.qcow2, raw of NAME.img, NAME.raw, devices and URIs
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
    /// What is on the device, or on the server, may go
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// The most that is copied in a second, as 100M
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) speed: Option<u64>,
    /// The name of the new node
    #[arg(long = "node", value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// A restart need not know it (daemons without --state)
    #[arg(long)]
    pub(crate) volatile: bool,
    /// The old node stays open
    #[arg(long)]
    pub(crate) keep: bool,
    /// Compare all of it before the switch, and say what was found
    #[arg(long)]
    pub(crate) verify: bool,
}

/// What is done with nodes.
#[derive(Debug, Subcommand)]
pub(crate) enum DiskWord {
    /// Open an image or a block device
    Add {
        /// The name of the node
        node: String,
        /// The image or block device
        file: String,
        /// What the file is, which is never guessed
        #[arg(long, value_enum)]
        format: Format,
        /// Nothing is written
        #[arg(long)]
        read_only: bool,
        /// Use the host's page cache; default: go past it
        #[arg(long)]
        cached: bool,
        /// The node below a qcow2 image; default: what the image names
        #[arg(long, value_name = "NODE")]
        backing: Option<String>,
    },
    /// Close a node that nothing uses
    Del {
        /// The name of the node
        node: String,
    },
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// The bytes of the disk
    Raw,
    /// A qcow2 image
    Qcow2,
}
