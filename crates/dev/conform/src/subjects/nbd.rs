//! `nbd`: a disk of an NBD server that nobody here wrote, another end of the stacks on iothreads.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use block::{
    Access, DiscardPolicy, FlushPolicy, Lane, LaneContext, LaneError, Node, StoragePolicy,
};
use nbd_client::{KnownHosts, NbdNode, RemoteOptions, ServerAddress};
use testkit::conformance::stack::{Chosen, Home, Parts, Shape, Subject};
use testkit::deadline::poll_until;
use testkit::rng::Rng;

use super::file::Medium;

/// The longest disk.
const SECTORS_MAX: u64 = 4096;

/// How long a server may take until it listens.
const START_MAX: Duration = Duration::from_secs(30);

/// How servers differ, as nbdkit's filters have it. What stands behind the plugin are the filter's parameters.
const KINDS: [(&[&str], &[&str]); 6] = [
    (&[], &[]),
    (&["--filter=multi-conn"], &["multi-conn-mode=disable"]),
    (&["--filter=noextents", "--filter=nozero"], &[]),
    (&["--filter=fua"], &["fuamode=force"]),
    (&["--no-sr"], &[]),
    (
        &["--filter=multi-conn", "--filter=delay"],
        &["multi-conn-mode=disable", "delay-read=1ms", "delay-write=1ms"],
    ),
];

/// Disks of servers whose bytes are on a medium.
#[derive(Debug)]
pub(crate) struct NbdEnd(pub(crate) Arc<Medium>);

impl Subject for NbdEnd {
    fn name(&self) -> &'static str {
        "nbd"
    }

    /// None where there is no nbdkit.
    fn choose(&self, rng: &mut Rng, _: &Shape) -> Option<Arc<dyn Chosen>> {
        let (kind, ceiling) = (rng.index(KINDS.len()), SECTORS_MAX >> rng.below(5));
        let size = (1 + rng.below(ceiling)) * block::SECTOR_BYTES;
        let discard = if rng.one_in(3) { DiscardPolicy::Ignore } else { DiscardPolicy::Unmap };
        let medium = Arc::clone(&self.0);
        is_there().then(|| Arc::new(ChosenNbd { medium, size, kind, discard }) as _)
    }
}

fn is_there() -> bool {
    let mut version = Command::new("nbdkit");
    version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    version.status().is_ok_and(|status| status.success())
}

#[derive(Debug)]
struct ChosenNbd {
    medium: Arc<Medium>,
    size: u64,
    kind: usize,
    discard: DiscardPolicy,
}

impl Chosen for ChosenNbd {
    fn describe(&self) -> String {
        format!("{} B, {:?}, discard {:?}", self.size, KINDS[self.kind], self.discard)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn home(&self, at: u64) -> Home {
        Home::File(at)
    }

    fn build(&self, parts: Parts<'_>) -> Result<Arc<dyn Node>> {
        let path = self.medium.write_stamped(parts.file, self.size)?;
        let server = Process::start(&path, KINDS[self.kind])?;
        let remote = RemoteOptions {
            address: ServerAddress::Unix(server.socket.clone()),
            given: None,
            export: String::new(),
            tls: None,
            open_timeout: Duration::ZERO,
            reconnect_delay: Duration::ZERO,
        };
        let (access, flushes) = (Access::ReadWrite, FlushPolicy::Obeyed);
        let policy = StoragePolicy { access, discard: self.discard, flushes };
        let node = NbdNode::open(parts.name, remote, policy, &KnownHosts::default())?;
        Ok(Arc::new(ServedNode { node, _server: server }))
    }

    fn drops_discards(&self) -> bool {
        self.discard == DiscardPolicy::Ignore
    }
}

/// A server as a process.
#[derive(Debug)]
struct Process {
    child: Child,
    socket: PathBuf,
}

impl Process {
    fn start(file: &Path, (filters, parameters): (&[&str], &[&str])) -> Result<Self> {
        let socket = file.with_extension("sock");
        // Of one that was killed for the same file.
        drop(std::fs::remove_file(&socket));
        let mut command = Command::new("nbdkit");
        command.args(["-f", "--exit-with-parent", "-U"]).arg(&socket).args(filters);
        command.arg("file").arg(file).args(parameters);
        let child = command.stdin(Stdio::null()).spawn().context("start nbdkit")?;
        let mut started = Self { child, socket };
        poll_until("nbdkit to listen", START_MAX, || {
            if let Some(status) = started.child.try_wait()? {
                bail!("nbdkit has ended: {status}");
            }
            // Its name is there a moment before it listens.
            Ok(UnixStream::connect(&started.socket).is_ok().then_some(()))
        })?;
        Ok(started)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A node with its server.
#[derive(Debug)]
struct ServedNode {
    node: NbdNode,
    _server: Process,
}

impl Node for ServedNode {
    testkit::same_node_as!(node);

    fn open_lane(&self, io: &LaneContext) -> Result<Box<dyn Lane>, LaneError> {
        self.node.open_lane(io)
    }
}
