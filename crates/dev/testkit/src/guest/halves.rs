//! A guest that is migrated live, any number of times: each QEMU is one half of a migration.
//!
//! Where it stands: a test starts a server per half. `Origin` has the guest's files; `Half` is one QEMU, in which the guest
//! runs or arrives. The guest runs the witness (`guest::witness`) on its one disk.
//!
//! Invariants: a half whose guest has left is ended by the test, before or after the other goes on.
//! Limits: `BANDWIDTH_MAX`, `DOWNTIME_MAX_MS` and the limit of each wait.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use guest::{Kernel, Monitor};
use serde_json::{Value, json};

use super::{Console, Equipment, Guest, Qemu, kernel, witness};
use crate::client::RingLayout;
use crate::deadline::poll_until;
use crate::process::Bench;

/// Bytes per second: a guest of some 150 MiB takes a second or two in which it goes on working.
const BANDWIDTH_MAX: u64 = 48 << 20;
/// The witness writes its memory faster than the guest could be sent without stopping it.
const DOWNTIME_MAX_MS: u64 = 2000;
const MEMORY_MIB: u32 = 256;
/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a QEMU that does not answer any more may take to end.
const ANSWER_AGAIN: Duration = Duration::from_secs(5);
/// Operations that show that a guest works.
const OPERATIONS_MIN: u64 = 300;

/// What a guest is made of.
#[derive(Debug)]
pub struct Origin {
    bench: Bench,
    guest: Guest,
    equipment: Equipment,
    kernel: Kernel,
    initramfs: PathBuf,
}

/// Where the guest of a QEMU comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coming {
    Boots,
    Arrives,
}

/// Where the disk of a guest is.
#[derive(Debug, Clone, Copy)]
pub enum DiskAddress<'a> {
    /// At this socket of vhost-user-blk.
    VhostUser(&'a Path),
    /// The export `disk` of the NBD server at this socket: QEMU is its client, and has the node [`QEMU_NODE`] for it.
    Nbd(&'a Path),
}

/// The node of a disk that QEMU has itself.
pub const QEMU_NODE: &str = "disk";

impl<'a> From<&'a PathBuf> for DiskAddress<'a> {
    fn from(socket: &'a PathBuf) -> Self {
        Self::VhostUser(socket)
    }
}

impl Origin {
    /// Why there can be none here, if so.
    pub fn missing() -> Option<String> {
        super::missing().or_else(witness::missing)
    }

    /// A guest with this many queues and processors.
    pub fn new(queues: usize, layout: RingLayout) -> Result<Self> {
        let bench = Bench::new()?;
        let program = witness::compile(&bench)?;
        let equipment = Equipment {
            programs: &[],
            modules: &[],
            files: vec![("bin/witness".to_owned(), program)],
            memory_mib: MEMORY_MIB,
            arguments: Vec::new(),
        };
        let script = "witness /dev/vda".to_owned();
        let guest = Guest { disks: Vec::new(), queues, layout, script };
        let kernel = kernel()?;
        let initramfs = guest.initramfs(&equipment, &kernel, &bench)?;
        Ok(Self { bench, guest, equipment, kernel, initramfs })
    }

    /// Boots it with the disk there.
    pub fn boot<'a>(&self, name: &str, disk: impl Into<DiskAddress<'a>>) -> Result<Half> {
        self.start(name, disk.into(), Coming::Boots)
    }

    /// Starts a QEMU in which it can arrive.
    pub fn expect<'a>(&self, name: &str, disk: impl Into<DiskAddress<'a>>) -> Result<Half> {
        self.start(name, disk.into(), Coming::Arrives)
    }

    fn start(&self, name: &str, disk: DiskAddress<'_>, coming: Coming) -> Result<Half> {
        let (disks, of_disk) = match disk {
            DiskAddress::VhostUser(socket) => (vec![socket.to_path_buf()], Vec::new()),
            DiskAddress::Nbd(socket) => (Vec::new(), self.nbd_arguments(socket)),
        };
        let guest = Guest { disks, ..self.guest.clone() };
        let control = self.bench.path(&format!("{name}.qmp"));
        let migration = self.bench.text(&format!("{name}.migration"));
        let mut arguments = guest.arguments(&self.equipment, &self.kernel, &self.initramfs)?;
        arguments.last_mut().context("the kernel's words")?.push_str(super::PAGES_AS_THEY_ARE);
        arguments.extend(of_disk);
        arguments.push("-qmp".to_owned());
        arguments.push(format!("unix:{},server=on,wait=off", control.display()));
        if coming == Coming::Arrives {
            arguments.extend(["-incoming".to_owned(), "defer".to_owned()]);
        }
        let mut qemu = Qemu::start(&arguments)?;
        poll_until("QEMU's control socket", LIMIT, || {
            qemu.must_run()?;
            Ok(crate::process::is_listening(&control)?.then_some(()))
        })?;
        let mut monitor = Monitor::connect(&control)?;
        if coming == Coming::Arrives {
            let uri = format!("unix:{migration}");
            monitor.command("migrate-incoming", json!({"uri": uri}))?;
        }
        Ok(Half { qemu, monitor, migration })
    }

    /// A disk that QEMU has from an NBD server.
    fn nbd_arguments(&self, socket: &Path) -> Vec<String> {
        let Guest { queues, layout, .. } = &self.guest;
        let packed = if *layout == RingLayout::Packed { "on" } else { "off" };
        let socket = socket.display();
        let words = [
            "-blockdev",
            &format!(
                "nbd,node-name={QEMU_NODE},server.type=unix,server.path={socket},export=disk,cache.direct=on,discard=unmap"
            ),
            "-device",
            &format!("virtio-blk-pci,drive={QEMU_NODE},num-queues={queues},packed={packed}"),
        ];
        words.map(str::to_owned).to_vec()
    }
}

/// What may be asked of a migration beside the usual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// It is carried through.
    Whole,
    /// So slowly that it never ends.
    Endless,
    /// It pauses when the guest has been stopped.
    Pausing,
}

/// What QEMU said about a migration, in its words.
#[derive(Debug, Clone)]
pub struct Progress {
    answer: Value,
}

impl Progress {
    /// `completed`, `active`, `pre-switchover` …
    pub fn status(&self) -> &str {
        self.answer["status"].as_str().unwrap_or("none")
    }

    /// A number of the answer, or of its part `ram`.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.answer.get(key).or_else(|| self.answer["ram"].get(key))?.as_u64()
    }
}

/// One QEMU.
#[derive(Debug)]
pub struct Half {
    qemu: Qemu,
    monitor: Monitor,
    migration: String,
}

impl Half {
    /// Waits until the guest has worked for a while from now on; an error if it saw something wrong.
    pub fn works(&mut self) -> Result<()> {
        let qemu = &mut self.qemu;
        let before = witness::operations(&qemu.stdout.text())?.last().copied();
        let mut begin = before;
        let worked = poll_until("the guest to work", LIMIT, || {
            qemu.must_run()?;
            let now = witness::operations(&qemu.stdout.text())?.last().copied();
            begin = begin.or(now);
            let done = now.unwrap_or(0).saturating_sub(begin.unwrap_or(0));
            Ok((done >= OPERATIONS_MIN).then_some(()))
        });
        worked.with_context(|| self.told())
    }

    /// Begins to migrate its guest into the other.
    pub fn begin(&mut self, target: &Self, course: Course) -> Result<()> {
        let bandwidth = if course == Course::Endless { 1 << 20 } else { BANDWIDTH_MAX };
        let pauses = course == Course::Pausing;
        let capability = json!({"capability": "pause-before-switchover", "state": pauses});
        let values = json!({"max-bandwidth": bandwidth, "downtime-limit": DOWNTIME_MAX_MS});
        self.command("migrate-set-parameters", values)?;
        self.command("migrate-set-capabilities", json!({"capabilities": [capability]}))?;
        self.command("migrate", json!({"uri": format!("unix:{}", target.migration)})).map(drop)
    }

    /// How the migration goes.
    pub fn progress(&mut self) -> Result<Progress> {
        Ok(Progress { answer: self.command("query-migrate", Value::Null)? })
    }

    /// Waits until the migration has come to this.
    pub fn comes_to(&mut self, status: &str) -> Result<Progress> {
        let waited = poll_until(&format!("a migration that is {status}"), LIMIT, || {
            self.qemu.must_run()?;
            let progress = self.progress()?;
            if progress.status() == "failed" && status != "failed" {
                bail!("it failed: {}", progress.answer);
            }
            Ok((progress.status() == status).then_some(progress))
        });
        waited.with_context(|| self.told())
    }

    /// Cancels the migration.
    pub fn cancel(&mut self) -> Result<()> {
        self.command("migrate_cancel", Value::Null).map(drop)
    }

    /// Goes on with a migration that pauses.
    pub fn switch_over(&mut self) -> Result<()> {
        self.command("migrate-continue", json!({"state": "pre-switchover"})).map(drop)
    }

    /// Has the guest go on here after it was migrated.
    pub fn go_on(&mut self) -> Result<()> {
        self.command("cont", Value::Null).map(drop)
    }

    /// Ends QEMU, but not its guest.
    pub fn quit(mut self) -> Result<()> {
        self.command("quit", Value::Null)?;
        self.qemu.end(LIMIT).map(drop)
    }

    /// Has the witness check everything, and waits until the guest is off. Gives the digest of what must be
    /// on the disk.
    pub fn finish(mut self) -> Result<String> {
        self.qemu.stdin.write_all(b"stop\n").context("type on the guest's console")?;
        let text = self.qemu.end(LIMIT)?;
        witness::operations(&text)?;
        let tail = || Console::new(&text).tail();
        witness::digest(&text).with_context(|| format!("no digest: {}", tail()))
    }

    /// Has QEMU carry out a command; an error has what QEMU and the guest said.
    pub fn command(&mut self, command: &str, arguments: Value) -> Result<Value> {
        match self.monitor.command(command, arguments) {
            Ok(answer) => Ok(answer),
            Err(error) => {
                // It may take a moment until one that died can be seen to have ended.
                let ended = poll_until("QEMU's end", ANSWER_AGAIN, || {
                    self.qemu.child.try_wait().context("look at QEMU")
                });
                let ended =
                    ended.map_or("QEMU goes on".to_owned(), |it| format!("QEMU ended: {it}"));
                Err(error.context(format!("{command}: {ended}; {}", self.told())))
            }
        }
    }

    /// What QEMU and the guest have said, for messages.
    pub fn told(&self) -> String {
        let console = Console::new(&self.qemu.stdout.text()).tail();
        format!("QEMU said: {}\nconsole: {console}", self.qemu.stderr.text())
    }
}
