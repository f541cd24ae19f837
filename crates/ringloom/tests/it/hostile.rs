//! Clients that break every rule, beside one that keeps them all.
//!
//! Each attack runs against one export of a daemon while a well-behaved client does verified I/O on another. What the
//! attacker may see is IOERR, UNSUPP, a refused message or the end of its session; the daemon lives, the attacked
//! export serves the next client, and the other client notices nothing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use testkit::client::{Client, Shape};
use testkit::deadline::{Deadline, poll_until};
use testkit::model::{self, DiskModel, Plan};
use testkit::process::{Bench, Program, Server};
use testkit::rawring::{BlockRequest, Form, RawDevice, RawShape, flag, kind};
use testkit::report::note;

use crate::support::{Disk, Iothreads, ringloom, serve_beside, stop, with};

mod campaign;
mod floods;
mod foreign;
mod hung;
mod inflight;
mod interrupts;
mod log;
mod memory;
mod messages;
mod packed;
mod requests;
mod rings;
mod room;

/// Bytes of the attacked disk.
const VICTIM_BYTES: usize = 4 << 20;
const VICTIM_SECTORS: u64 = 8192;

/// The longest that the well-behaved client's 40 requests of a round may take, whatever is done to the others. They take
/// some 20 ms on an idle machine; the bound leaves room for a machine that is busy with other tests.
const STALL_MAX: Duration = Duration::from_secs(5);

/// What an attack is given.
struct Target<'a> {
    /// The well-behaved client, which is served by the same iothreads.
    bystander: &'a Bystander,
    /// The process that is attacked.
    server: &'a Server,
    pid: u32,
    /// The socket of a disk with 256 queues; of ringloom only.
    wide: &'a Path,
    /// The socket of a writable disk.
    socket: &'a Path,
    /// The socket of a read-only disk.
    read_only: &'a Path,
}

impl Target<'_> {
    /// A correct device on the writable disk, to be spoilt.
    fn device(&self) -> Result<RawDevice> {
        RawDevice::connect(self.socket, shape())
    }

    /// Waits until the well-behaved client has done its I/O for a while on both iothreads, with the attacker still here.
    fn others_go_on(&self) -> Result<()> {
        self.bystander.progress("during the attack", || Ok(()))
    }
}

fn shape() -> RawShape {
    RawShape { queues: 2, ..RawShape::default() }
}

/// Runs one attack beside a well-behaved client.
fn check(program: &Program, attack: fn(&Target<'_>) -> Result<()>) -> Result<()> {
    check_beside(program, &[], attack)
}

/// The same with a server that is given more arguments.
fn check_beside(
    program: &Program,
    more: &[String],
    attack: impl Fn(&Target<'_>) -> Result<()>,
) -> Result<()> {
    let bench = Bench::new()?;
    let iothreads = if program.name() == "ringloom" { Iothreads::Two } else { Iothreads::One };
    let disk = |id| Disk { iothreads, ..Disk::new(&bench, id, 2) };
    let (good, victim) = (disk("good"), disk("victim"));
    let read_only = Disk { writable: "off", ..disk("ro") };
    let good_content = good.create(8 << 20, 0x31)?;
    let victim_content = victim.create(VICTIM_BYTES, 0x32)?;
    read_only.create(VICTIM_BYTES, 0x33)?;
    let wide = Disk { queues: 256, ..disk("wide") };
    let mut disks = vec![good.clone(), victim.clone(), read_only.clone()];
    if program.name() == "ringloom" {
        wide.create(VICTIM_BYTES, 0x35)?;
        disks.push(wide.clone());
    }
    let mut server = serve_beside(program, &disks, more)?;
    let by = Bystander::start(&good.socket(), good_content)?;
    by.wait_for_progress(&mut server, "before the attack")?;
    let (socket, other, wide) = (victim.socket(), read_only.socket(), wide.socket());
    let (pid, bystander) = (server.pid(), &by);
    let result = attack(&Target {
        bystander,
        server: &server,
        pid,
        wide: &wide,
        socket: &socket,
        read_only: &other,
    });
    ensure!(server.is_alive()?, "the daemon died: {}; attack: {result:?}", server.log());
    result.with_context(|| format!("log: {}", server.log()))?;
    by.wait_for_progress(&mut server, "after the attack")?;
    next_client_is_served(&victim.socket(), &victim_content).context("the next client")?;
    let model = by.finish().context("the well-behaved client")?;
    if program.name() == "ringloom" {
        stop(server, &[])?;
    } else {
        // The peer was seen to crash on its way out after some attacks; that is its own affair.
        server.terminate()?;
    }
    model.check_image(&good.image())
}

/// The attacked disk still serves, and its first page (which no attack touches) is right.
fn next_client_is_served(socket: &Path, content: &[u8]) -> Result<()> {
    let mut device = RawDevice::connect(socket, shape())?;
    for queue in 0..2 {
        let data = vec![device.data(0, 4096, flag::WRITE)];
        let read = BlockRequest { kind: kind::IN, sector: 0, data, form: Form::Indirect };
        let outcome = device.request(queue, &read)?;
        ensure!(outcome.is_ok(), "a read after the attack: {outcome:?}");
        ensure!(device.get(0, 4096) == content[..4096], "wrong bytes after the attack");
    }
    Ok(())
}

/// A client that does verified I/O all the time, in a thread of its own.
struct Bystander {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<Result<DiskModel>>,
}

impl Bystander {
    fn start(socket: &Path, content: Vec<u8>) -> Result<Self> {
        let plan = Plan { seed: 0x34, operations: 40, depth: 4, block_bytes: 512 };
        let memory_bytes = plan.memory_bytes(2);
        let shape = Shape { queues: 2, memory_bytes, ..Shape::small() };
        let mut client = Client::connect(socket, shape)?;
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let thread = std::thread::spawn(move || {
            let mut model = DiskModel::new(content);
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let seed = plan.seed + counted.fetch_add(1, Ordering::Relaxed);
                let clock = Deadline::after(STALL_MAX);
                model::run(&mut client, &mut model, &Plan { seed, ..plan })?;
                ensure!(!clock.has_passed(), "40 requests took more than {STALL_MAX:?}");
                longest = longest.max(clock.elapsed());
            }
            note(&format!("the well-behaved client's longest round: {longest:?}"));
            model::verify_through(&mut client, &model)?;
            Ok(model)
        });
        Ok(Self { stop, rounds, thread })
    }

    /// Waits until two more rounds have been begun, so that at least one has been done as a whole.
    fn wait_for_progress(&self, server: &mut Server, when: &str) -> Result<()> {
        self.progress(when, || {
            ensure!(server.is_alive()?, "the daemon died, log: {}", server.log());
            Ok(())
        })
    }

    fn progress(&self, when: &str, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let start = self.rounds.load(Ordering::Relaxed);
        poll_until(&format!("the well-behaved client {when}"), Duration::from_secs(30), || {
            check()?;
            ensure!(!self.thread.is_finished(), "the well-behaved client gave up {when}");
            Ok((self.rounds.load(Ordering::Relaxed) >= start + 2).then_some(()))
        })
    }

    fn finish(self) -> Result<DiskModel> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|panic| anyhow!("its thread panicked: {panic:?}"))?
    }
}

/// One test per attack on ringloom, and one on the peer for those that the peer withstands.
macro_rules! attacks {
    (both { $($both:ident,)* } ringloom { $($own:ident,)* }) => {
        #[cfg(test)]
        mod on_ringloom {
            $(#[test] fn $both() {
                crate::support::with(&crate::support::ringloom(), |program| {
                    crate::hostile::check(program, super::$both)
                });
            })*
            $(#[test] fn $own() {
                crate::support::with(&crate::support::ringloom(), |program| {
                    crate::hostile::check(program, super::$own)
                });
            })*
        }
        #[cfg(test)]
        mod on_the_peer {
            $(#[test] fn $both() {
                let peer = testkit::process::Program::qemu_storage_daemon();
                crate::support::with(&peer, |program| {
                    crate::hostile::check(program, super::$both)
                });
            })*
        }
    };
}
pub(crate) use attacks;

/// The rig itself: without an attack all is well.
fn no_attack(target: &Target<'_>) -> Result<()> {
    target.device().map(drop)
}

#[test]
fn without_an_attack_all_is_well() {
    with(&ringloom(), |program| check(program, no_attack));
    with(&Program::qemu_storage_daemon(), |program| check(program, no_attack));
}
