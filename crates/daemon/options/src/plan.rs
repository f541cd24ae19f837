//! What the command line of `ringloom serve` asks for, checked and in order.
//!
//! Where it stands: written by [`parse`](super::parse), read by the graph and export builders.
//!
//! Invariants: ids and node-names are well formed and unique; a step names only what an earlier
//! step made; every number is within its bound. [`parse`](super::parse) is the only maker.

use std::iter;
use std::os::fd::RawFd;
use std::path::PathBuf;

use block::Access;
use control::{Configuration, ConnectRights};
use exports::{AttachLinesFormat, ExportOptions, GuestMemoryOptions};
use graph::{Blockdev, ConnectGrant, NamedFilesPolicy, ObjectOptions, ServerAddress};
use metrics::MetricsOptions;
use monitor::{ChardevKind, ChardevOptions, MonitorOptions};
use nbd_server::{ListenGrant, NbdServerOptions};
use sandbox::{AllowedDirectory, ConnectNeeds, SandboxMode, SandboxNeeds};

use super::config::ConfigSource;
use super::log_settings::{LevelSetting, LogFormat};

/// What the command line asks for: serve, help or version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServeCommand {
    /// Serve disks.
    Serve(Box<Plan>),
    /// Print a help text and leave.
    Help(HelpTopic),
    /// Print the version and leave.
    Version,
    /// Print the line as a configuration file and leave.
    Config(String),
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
    /// How its lines look, if that was said.
    pub log_format: Option<LogFormat>,
    /// How much it says, in the order given.
    pub log_levels: Vec<LevelSetting>,
    /// Whether the process leaves the terminal.
    pub daemonize: Daemonize,
    /// Whether it may take the place of the process that serves its sockets.
    pub takeover: TakeoverMode,
    /// In which form to print the lines that attach a guest, if at all.
    pub print: Option<AttachLinesFormat>,
    /// In which form if nobody has said one: not to a journal, where nobody looks for them.
    pub print_by_default: Option<AttachLinesFormat>,
    /// What the daemon gives up once everything is set up.
    pub sandbox: SandboxMode,
    /// Which files images may name.
    pub named_files: NamedFilesPolicy,
    /// What front ends may share.
    pub guest_memory: GuestMemoryOptions,
    /// The descriptor to which gauges are written, if any.
    pub gauges: Option<RawFd>,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<MetricsOptions>,
    /// The permission bits and the group of all sockets of exports, if they are not left to the umask and the process.
    pub socket_rights: SocketRights,
    /// The NBD server, if there is to be one.
    pub nbd_server: Option<NbdServerOptions>,
    /// Where commands may have an NBD server listen.
    pub allow_listen: Vec<ListenGrant>,
    /// Servers that nodes of commands may connect to.
    pub allow_connect: Vec<ConnectGrant>,
    /// The character devices of monitors.
    pub chardevs: Vec<ChardevOptions>,
    /// The monitors; each has a character device of its own.
    pub monitors: Vec<MonitorOptions>,
    /// Where what is served with is kept for the next start.
    pub state: Option<PathBuf>,
    /// What becomes of what is kept there already.
    pub old_state: OldState,
    /// Directories below which commands may open files, and make sockets where they may be written.
    pub allowed: Vec<AllowedDirectory>,
    /// The files that said some of this.
    pub config: Vec<ConfigSource>,
}

/// Permission bits and group of a socket.
pub type SocketRights = (Option<u32>, Option<String>);

/// What becomes of a state that was kept before (`--state-reset`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldState {
    /// It is served with, whatever the line says.
    Used,
    /// It is forgotten.
    Forgotten,
}

impl Plan {
    /// Who asked for all this, for messages.
    pub fn source(&self) -> String {
        let files = self.config.iter().map(|source| format!(" and {}", source.path.display()));
        iter::once("the command line".to_owned()).chain(files).collect()
    }

    /// The exports in the order given.
    pub fn exports(&self) -> impl Iterator<Item = &ExportOptions> {
        self.steps.iter().filter_map(|step| match step {
            PlanStep::Export(export) => Some(export),
            PlanStep::Object(_) | PlanStep::Blockdev(_) => None,
        })
    }

    /// All that the steps make, as it would be kept. Nodes as they were written.
    pub fn configuration(&self) -> Configuration {
        let mut configuration = Configuration::default();
        for step in &self.steps {
            match step {
                PlanStep::Object(object) => {
                    configuration.objects.extend(object.kept().map(Into::into));
                }
                PlanStep::Blockdev(blockdev) => configuration.nodes.push(blockdev.to_json()),
                PlanStep::Export(export) => configuration.exports.push(export.written().into()),
            }
        }
        configuration.nbd_server = self.nbd_server.as_ref().map(|options| options.written().into());
        configuration
    }

    /// What the fences have to let through.
    pub fn sandbox_needs(&self) -> SandboxNeeds<'_> {
        let devices = self.exports().filter_map(ExportOptions::vhost_user_blk);
        // What whoever started the process has made, stays.
        let own = devices.filter(|own| own.socket.listening_at().is_none());
        let sockets = own.map(|own| &*own.socket.path);
        let monitors = self.chardevs.iter().filter_map(|chardev| match &chardev.kind {
            ChardevKind::Socket { path, descriptor: None, .. } => Some(&**path),
            ChardevKind::Socket { .. } => None,
            ChardevKind::Stdio | ChardevKind::File { .. } | ChardevKind::Null => None,
        });
        SandboxNeeds {
            removed: sockets
                .chain(monitors)
                .chain(self.nbd_server.as_ref().and_then(NbdServerOptions::path))
                .chain(self.metrics.as_ref().and_then(MetricsOptions::path))
                .chain(self.pidfile.as_deref())
                .collect(),
            listens: self.allow_listen.iter().map(|grant| grant.port).collect(),
            connects: self.connect_needs(),
            allowed: &self.allowed,
            log_file: self.log_file.as_deref(),
            writes_devices: self.may_write_devices(),
        }
    }

    /// All nodes, with those that are written inside others.
    fn blockdevs(&self) -> impl Iterator<Item = &Blockdev> {
        let nodes = self.steps.iter().filter_map(|step| match step {
            PlanStep::Blockdev(blockdev) => Some(blockdev.nodes()),
            PlanStep::Object(_) | PlanStep::Export(_) => None,
        });
        nodes.flatten()
    }

    /// The servers that nodes connect to.
    fn servers(&self) -> impl Iterator<Item = &ServerAddress> {
        self.blockdevs().filter_map(Blockdev::server)
    }

    /// Which servers nodes of commands may connect to: `--allow-connect` lets the UNIX sockets below directories of
    /// `--allow-below` be used, too.
    pub fn connect_rights(&self) -> ConnectRights {
        let written = self.allowed.iter().filter(|it| it.access == Access::ReadWrite);
        let written = written.filter(|_| !self.allow_connect.is_empty());
        ConnectRights {
            of_line: self.servers().cloned().collect(),
            grants: self.allow_connect.clone(),
            below: written.map(|it| it.path.clone()).collect(),
        }
    }

    fn connect_needs(&self) -> ConnectNeeds {
        let mut needs = ConnectNeeds {
            ports: self.allow_connect.iter().map(|grant| grant.port).collect(),
            all_ports: self.blockdevs().any(Blockdev::joins_cluster),
            sockets: Vec::new(),
            below_allowed: !self.allow_connect.is_empty(),
        };
        for server in self.servers() {
            match server {
                ServerAddress::Inet { port, .. } => needs.ports.push(*port),
                ServerAddress::Unix(path) => needs.sockets.push(path.clone()),
                ServerAddress::Descriptor(_) => {}
            }
        }
        needs
    }

    /// Whether a block device may be written: one that it names, or one that an image may name.
    fn may_write_devices(&self) -> bool {
        // What a command opens may be one.
        if self.allowed.iter().any(|allowed| allowed.access == Access::ReadWrite) {
            return true;
        }
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
