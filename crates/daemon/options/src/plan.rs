//! What the command line of `ringloom serve` asks for, checked and in order.
//!
//! Where it stands: written by [`parse`](super::parse), read by the graph and export builders.
//!
//! Invariants: ids and node-names are well formed and unique; a step names only what an earlier
//! step made; every number is within its bound. [`parse`](super::parse) is the only maker.

use std::os::fd::RawFd;
use std::path::PathBuf;

use exports::{AttachLinesFormat, ExportOptions, GuestMemoryOptions};
use graph::{Blockdev, NamedFilesPolicy, ObjectOptions};
use sandbox::{SandboxMode, SandboxNeeds};

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
    pub steps: Vec<PlanStep>,
    /// Where to write the process id once everything is set up.
    pub pidfile: Option<PathBuf>,
    /// Where the log goes, if not to stderr, or in the background to the host's journal or syslog.
    pub log_file: Option<PathBuf>,
    /// Whether the process leaves the terminal.
    pub daemonize: Daemonize,
    /// Whether it may take the place of the process that serves its sockets.
    pub takeover: TakeoverMode,
    /// In which form to print the lines that attach a guest, if at all.
    pub print: Option<AttachLinesFormat>,
    /// What the daemon gives up once everything is set up.
    pub sandbox: SandboxMode,
    /// Which files images may name.
    pub named_files: NamedFilesPolicy,
    /// What front ends may share.
    pub guest_memory: GuestMemoryOptions,
    /// The descriptor to which gauges are written, if any.
    pub gauges: Option<RawFd>,
}

impl Plan {
    /// The exports in the order given.
    pub fn exports(&self) -> impl Iterator<Item = &ExportOptions> {
        self.steps.iter().filter_map(|step| match step {
            PlanStep::Export(export) => Some(export),
            PlanStep::Object(_) | PlanStep::Blockdev(_) => None,
        })
    }

    /// What the fences have to let through.
    pub fn sandbox_needs(&self) -> SandboxNeeds<'_> {
        let sockets = self.exports().map(|export| &*export.socket.path);
        SandboxNeeds {
            removed: sockets.chain(self.pidfile.as_deref()).collect(),
            log_file: self.log_file.as_deref(),
            writes_devices: self.may_write_devices(),
        }
    }

    /// Whether a block device may be written: one that it names, or one that an image may name.
    fn may_write_devices(&self) -> bool {
        let may_name_any = self.named_files == NamedFilesPolicy::Anywhere;
        self.steps.iter().any(|step| match step {
            PlanStep::Blockdev(blockdev) => {
                blockdev.nodes().iter().any(|node| node.may_write_device(may_name_any))
            }
            PlanStep::Object(_) | PlanStep::Export(_) => false,
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

/// Whether a process that serves the same sockets is taken over (`--takeover`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeoverMode {
    /// It keeps it, and this one does not start.
    Never,
    /// This one takes its place.
    WhereServed,
}

/// One object, node or export that the plan creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanStep {
    /// `--object`.
    Object(ObjectOptions),
    /// `--blockdev`.
    Blockdev(Blockdev),
    /// `--export`.
    Export(ExportOptions),
}
