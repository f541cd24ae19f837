//! Live migration without shared storage: each host has an image of its own, and the disk is mirrored over NBD to the other
//! daemon while the guest works; the copy ends when the guest has been stopped, and it goes on with that.
//!
//! Who copies is QEMU, whose disk is an export of the daemon of its host, or that daemon, whose guest comes by vhost-user-blk.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use testkit::client::RingLayout;
use testkit::deadline::{Deadline, poll_until};
use testkit::guest::{Course, DiskAddress, Half, Origin, QEMU_NODE, witness};
use testkit::image;
use testkit::process::{Bench, Program, START_LIMIT, Server};
use testkit::qmp::QmpClient;
use testkit::report::note;

use super::{QUEUES, ROUNDS_VARIABLE, rounds, with_guests};
use crate::control::{monitor, monitor_socket};
use crate::support::stop;

/// How long a copy, or its end, may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

const JOB: &str = "copy";

/// Who copies the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copier {
    /// QEMU, which has the disk from the daemon over NBD.
    Qemu,
    /// The daemon, from which QEMU has it over vhost-user-blk.
    Ringloom,
}

/// A host: an image that no other one has, and the daemon that serves it.
struct Host {
    bench: Bench,
    server: Server,
    qmp: QmpClient,
}

impl Host {
    fn new(program: &Program) -> Result<Self> {
        let bench = Bench::new()?;
        witness::create_image(&bench.path("disk.img"))?;
        // What is there before is of no use to anybody.
        let bytes = std::fs::metadata(bench.path("disk.img"))?.len();
        image::create_filled(&bench.path("disk.img"), usize::try_from(bytes)?, 0x5eed)?;
        Self::serve(program, bench)
    }

    fn with_the_disk(program: &Program) -> Result<Self> {
        let bench = Bench::new()?;
        witness::create_image(&bench.path("disk.img"))?;
        Self::serve(program, bench)
    }

    /// What the administrators of all hosts write: a disk for a guest, and for who copies to it.
    fn serve(program: &Program, bench: Bench) -> Result<Self> {
        let (image, blk, nbd) =
            (bench.text("disk.img"), bench.text("blk.sock"), bench.text("nbd.sock"));
        let line = [
            "--object=iothread,id=t0".to_owned(),
            "--object=iothread,id=t1".to_owned(),
            format!("--blockdev=file,node-name=n,filename={image},discard=unmap,cache.direct=on"),
            format!("--nbd-server=addr.type=unix,addr.path={nbd}"),
            "--export=nbd,id=over-nbd,node-name=n,name=disk,writable=on,iothread.0=t0,iothread.1=t1".to_owned(),
            format!(
                "--export=vhost-user-blk,id=disk,node-name=n,addr.type=unix,addr.path={blk},writable=on,\
                 num-queues={QUEUES},iothread.0=t0,iothread.1=t1"
            ),
            // The daemons of other hosts; here all are in directories.
            "--allow-connect=127.0.0.1:1".to_owned(),
            "--allow-below=/var/tmp".to_owned(),
        ];
        let words = [monitor(&bench).as_slice(), &line].concat();
        let sockets = [bench.path("blk.sock"), bench.path("nbd.sock"), monitor_socket(&bench)];
        let server = program.start(&words, &sockets)?;
        let qmp = QmpClient::connect(&monitor_socket(&bench))?;
        Ok(Self { bench, server, qmp })
    }

    fn sockets(&self) -> (PathBuf, PathBuf) {
        (self.bench.path("blk.sock"), self.bench.path("nbd.sock"))
    }

    fn stop(self) -> Result<Bench> {
        let Self { bench, server, qmp } = self;
        drop(qmp);
        let (blk, nbd) = (bench.path("blk.sock"), bench.path("nbd.sock"));
        stop(server, &[&blk, &nbd])?;
        Ok(bench)
    }
}

impl Copier {
    /// Where QEMU finds the disk of a host.
    fn disk((blk, nbd): &(PathBuf, PathBuf), copier: Self) -> DiskAddress<'_> {
        match copier {
            Self::Qemu => DiskAddress::Nbd(nbd),
            Self::Ringloom => DiskAddress::VhostUser(blk),
        }
    }

    /// The node that is copied.
    fn source(self) -> &'static str {
        match self {
            Self::Qemu => QEMU_NODE,
            Self::Ringloom => "n",
        }
    }

    /// Has whoever copies do something.
    fn command(
        self,
        half: &mut Half,
        here: &mut Host,
        command: &str,
        arguments: Value,
    ) -> Result<Value> {
        match self {
            Self::Qemu => half.command(command, arguments),
            Self::Ringloom => here.qmp.execute(command, &arguments),
        }
    }

    /// Begins to copy the disk to the other host, and waits until both are equal but for what the guest writes.
    fn begin(self, half: &mut Half, here: &mut Host, there: &Host) -> Result<()> {
        let (_, nbd) = there.sockets();
        let target = json!({
            "driver": "nbd", "node-name": "target", "export": "disk",
            "server": {"type": "unix", "path": nbd},
        });
        self.command(half, here, "blockdev-add", target)?;
        let job =
            json!({"job-id": JOB, "device": self.source(), "target": "target", "sync": "full"});
        self.command(half, here, "blockdev-mirror", job)?;
        self.comes_to(half, here, "the copy to be ready", |job| {
            job.is_some_and(|job| job["status"] == "ready")
        })
    }

    /// Ends the copy of a guest that has been stopped.
    fn end(self, half: &mut Half, here: &mut Host) -> Result<()> {
        self.command(half, here, "block-job-cancel", json!({"device": JOB}))?;
        self.comes_to(half, here, "the end of the copy", |job| job.is_none())?;
        self.command(half, here, "blockdev-del", json!({"node-name": "target"})).map(drop)
    }

    fn comes_to(
        self,
        half: &mut Half,
        here: &mut Host,
        what: &str,
        is_there: impl Fn(Option<&Value>) -> bool,
    ) -> Result<()> {
        poll_until(what, LIMIT, || {
            let jobs = self.command(half, here, "query-jobs", json!({}))?;
            let job = jobs.as_array().and_then(|jobs| jobs.iter().find(|job| job["id"] == JOB));
            if let Some(error) = job.and_then(|job| job.get("error")) {
                bail!("the copy failed: {error}");
            }
            Ok(is_there(job).then_some(()))
        })
        .with_context(|| here.server.log())
    }
}

/// Takes a guest from host to host so many times, with its disk.
fn campaign(program: &Program, layout: RingLayout, copier: Copier) -> Result<()> {
    let rounds = if std::env::var_os(ROUNDS_VARIABLE).is_some() { rounds()? } else { 1 };
    let origin = Origin::new(QUEUES, layout)?;
    let mut here = Host::with_the_disk(program)?;
    let mut half = origin.boot("q0", Copier::disk(&here.sockets(), copier))?;
    half.works().with_context(|| here.server.log())?;
    for round in 1..=rounds {
        let clock = Deadline::after(START_LIMIT);
        let mut there = Host::new(program)?;
        copier.begin(&mut half, &mut here, &there)?;
        let copied = clock.elapsed();
        half.works().with_context(|| here.server.log())?;
        let mut next =
            origin.expect(&format!("q{round}"), Copier::disk(&there.sockets(), copier))?;
        half.begin(&next, Course::Pausing)?;
        half.comes_to("pre-switchover")?;
        copier.end(&mut half, &mut here)?;
        half.switch_over()?;
        half.comes_to("completed")?;
        next.works().with_context(|| format!("round {round}: {}", there.server.log()))?;
        half.quit()?;
        half = next;
        std::mem::swap(&mut here, &mut there);
        // Nobody comes back to it.
        there.stop()?;
        note(&format!(
            "{copier:?} {layout:?} round {round}: copied in {copied:?}, all in {:?}",
            clock.elapsed()
        ));
    }
    let expected = half.finish()?;
    let bench = here.stop()?;
    let found = witness::digest_of_image(&bench.path("disk.img"))?;
    ensure!(found == expected, "the image has {found}, the guest wrote {expected}");
    Ok(())
}

#[test]
fn by_a_mirror_of_qemu() {
    with_guests(|program| campaign(program, RingLayout::Split, Copier::Qemu));
}

#[test]
fn by_a_mirror_of_the_daemon() {
    with_guests(|program| campaign(program, RingLayout::Packed, Copier::Ringloom));
}
