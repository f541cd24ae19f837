//! Internal snapshots under writing guests: what `qemu-img convert -l` shows is the disk at an instant, that of all disks of a
//! transaction; daemons that are killed meanwhile; one image in the hands of qemu-storage-daemon and ours.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, Request, Segment, Shape};
use testkit::deadline::{Deadline, poll_until};
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;
use testkit::report::skipped;
use testkit::rng::Rng;

use super::filters::{BYTES, SECTOR, last_write, sockets, stamp};
use super::{export, monitor, monitor_socket, start, state};
use crate::support::{qemu_img, qemu_io, ringloom, stop, with};

/// How many snapshots each disk gets, of which some go again.
const ROUNDS: usize = 8;

/// How many writes of a guest are between two rounds.
const WRITES_BETWEEN: u64 = 20;

/// How often a daemon is killed.
const KILLS: u64 = 6;

/// An image of the bench as a node.
fn image(bench: &Bench, name: &str) -> Value {
    let file = json!({"driver": "file", "filename": bench.text(&format!("{name}.qcow2")), "discard": "unmap"});
    json!({"driver": "qcow2", "node-name": name, "discard": "unmap", "file": file})
}

/// Disks `a` and `b` of such nodes, each behind two exports, of which one is used.
pub(crate) fn line(bench: &Bench, node: impl Fn(&str) -> Value) -> Vec<String> {
    let mut line = state(bench);
    for name in ["a", "b"] {
        line.extend(["--blockdev".to_owned(), node(name).to_string()]);
        for id in [name.to_owned(), format!("{name}2")] {
            line.extend(["--export".to_owned(), export(bench, &id, name).to_string()]);
        }
    }
    line
}

fn make(bench: &Bench) -> Result<()> {
    qemu_img(bench, &format!("create -q -f qcow2 -o cluster_size=4k a.qcow2 {BYTES}"))?;
    qemu_img(bench, &format!("create -q -f qcow2 -o compat=0.10 b.qcow2 {BYTES}"))?;
    Ok(())
}

pub(crate) fn create(disk: &str, name: &str) -> Value {
    json!({"type": "blockdev-snapshot-internal-sync", "data": {"device": disk, "name": name}})
}

/// The names of the snapshots of a node, as the daemon shows them.
pub(crate) fn shown(qmp: &mut QmpClient, node: &str) -> Result<Vec<String>> {
    let nodes = qmp.execute("query-named-block-nodes", &json!({"flat": true}))?;
    let mut nodes = nodes.as_array().context("nodes")?.iter();
    let node = nodes.find(|it| it["node-name"] == node).context("the node")?;
    let all = node["image"]["snapshots"].as_array().cloned().unwrap_or_default();
    Ok(all.iter().map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect())
}

/// The last write that a snapshot of a closed image has, or the disk.
fn written(bench: &Bench, disk: &str, snapshot: Option<&str>) -> Result<u64> {
    let of = snapshot.map_or_else(String::new, |name| format!("-l {name} "));
    qemu_img(bench, &format!("convert -f qcow2 -O raw {of}{disk}.qcow2 raw"))?;
    last_write(&std::fs::read(bench.path("raw"))?)
        .with_context(|| format!("disk {disk}, snapshot {snapshot:?}"))
}

/// Transactions of which nothing may stay; disk `b` has a snapshot of that name.
pub(crate) fn fail(qmp: &mut QmpClient, name: &str) -> Result<()> {
    let failing = json!({"actions": [create("a", "none"), create("b", name)]});
    let said = qmp.execute("transaction", &failing).err().context("the name is there")?;
    ensure!(said.to_string().contains("already exists on device 'b'"), "{said}");
    let aborted = json!({"actions": [create("b", "none"), {"type": "abort", "data": {}}]});
    ensure!(qmp.execute("transaction", &aborted).is_err(), "it is aborted");
    Ok(())
}

/// Each snapshot of both disks is of one instant, and they follow each other; `written` finds the last write that one has.
pub(crate) fn check_instants(
    names: &[String],
    written: impl Fn(&str, &str) -> Result<u64>,
) -> Result<()> {
    let mut before = 0;
    for name in names {
        let (a, b) = (written("a", name)?, written("b", name)?);
        // A write goes to the one disk first.
        ensure!(a == b || a == b + 1, "{name} is not of one instant: {a} and {b}");
        ensure!(a >= before, "{name}: {a} after {before}");
        before = a;
    }
    Ok(())
}

/// Makes snapshots of both disks at one instant while a guest writes, and deletes some again.
fn rounds(qmp: &mut QmpClient, writer: &Writer) -> Result<Vec<String>> {
    let mut kept = Vec::new();
    for round in 0..ROUNDS {
        writer.wait()?;
        let name = format!("s{round}");
        let bitmap = json!({"node": "a", "name": name, "persistent": true});
        let bitmap = json!({"type": "block-dirty-bitmap-add", "data": bitmap});
        let actions = json!({"actions": [create("a", &name), bitmap, create("b", &name)]});
        qmp.execute("transaction", &actions)?;
        fail(qmp, &name)?;
        kept.push(name);
        if round % 3 == 2 {
            let gone = kept.remove(round / 3);
            for disk in ["a", "b"] {
                let arguments = json!({"device": disk, "name": gone});
                let info = qmp.execute("blockdev-snapshot-delete-internal-sync", &arguments)?;
                ensure!(info["name"] == *gone && info["vm-state-size"] == 0, "{info}");
            }
        }
        for disk in ["a", "b"] {
            let names = shown(qmp, disk)?;
            ensure!(names == kept, "{disk} has {names:?}, not {kept:?}");
        }
    }
    Ok(kept)
}

/// A guest that writes to both disks in order.
#[derive(Default)]
pub(crate) struct Writer {
    is_over: AtomicBool,
    /// How much it has written.
    written: AtomicU64,
}

impl Writer {
    /// Writes to one disk and to the other until it is told to end, or a daemon that is gone makes that impossible.
    fn write(&self, sockets: &[PathBuf; 2]) -> Result<()> {
        let connect = |path: &PathBuf| Client::connect(path, Shape::small());
        let (mut a, mut b) = (connect(&sockets[0])?, connect(&sockets[1])?);
        for number in 1.. {
            let offset = number * SECTOR as u64 % BYTES;
            for disk in [&mut a, &mut b] {
                disk.memory().write(0, &stamp(number));
                let segments = vec![Segment { offset: 0, length: SECTOR }];
                disk.submit(0, &Request::Write { offset, segments }, 0)?;
                disk.kick(0)?;
                while disk.wait_any(Deadline::after(Duration::from_secs(1))).is_err() {
                    if self.is_over.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                }
            }
            self.written.store(number, Ordering::Relaxed);
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }

    /// Waits until it has written some more.
    pub(crate) fn wait(&self) -> Result<()> {
        let before = self.written.load(Ordering::Relaxed);
        poll_until("the guest", Duration::from_secs(30), || {
            let written = self.written.load(Ordering::Relaxed);
            Ok((written >= before + WRITES_BETWEEN).then_some(()))
        })
    }
}

/// Does something while a guest writes to both disks; how much it has written.
pub(crate) fn while_written(
    bench: &Bench,
    server: &Server,
    work: impl FnOnce(&Writer) -> Result<()>,
) -> Result<u64> {
    let writer = Writer::default();
    let sockets = [bench.path("a.sock"), bench.path("b.sock")];
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| writer.write(&sockets));
        let worked = work(&writer);
        writer.is_over.store(true, Ordering::Relaxed);
        guest.join().expect("it does not panic")?;
        worked.with_context(|| server.log())?;
        Ok(writer.written.load(Ordering::Relaxed))
    })
}

fn of_one_instant(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    make(&bench)?;
    let (server, mut qmp) =
        start(program, &bench, &line(&bench, |name| image(&bench, name)), &sockets(&bench))?;
    let mut kept = Vec::new();
    let writes = while_written(&bench, &server, |writer| {
        kept = rounds(&mut qmp, writer)?;
        Ok(())
    })?;
    drop(qmp);
    stop(server, &[&bench.path("a.sock") as &Path, &monitor_socket(&bench)])?;
    check_instants(&kept, |disk, name| written(&bench, disk, Some(name)))?;
    for disk in ["a", "b"] {
        let found = written(&bench, disk, None)?;
        ensure!(found == writes, "disk {disk} has {found} of {writes} writes");
        // Neither errors nor leaks.
        qemu_img(&bench, &format!("check {disk}.qcow2"))?;
    }
    Ok(())
}

#[test]
fn snapshots_hold_disks_as_they_were_at_one_instant() {
    with(&ringloom(), of_one_instant);
}

/// Makes and deletes snapshots until the daemon is gone; how many transactions it has answered.
fn until_it_is_gone(qmp: &mut QmpClient) -> u64 {
    for number in 0.. {
        let name = format!("s{number}");
        let both = json!({"actions": [create("a", &name), create("b", &name)]});
        let gone = json!({"device": "a", "name": format!("s{}", number / 2)});
        if qmp.execute("transaction", &both).is_err() {
            return number;
        }
        if number % 4 == 3 && qmp.execute("blockdev-snapshot-delete-internal-sync", &gone).is_err()
        {
            return number + 1;
        }
    }
    0
}

/// What a daemon leaves that is killed while it makes and deletes snapshots: no error, whole snapshots, and all that was answered.
fn killed(program: &Program) -> Result<()> {
    for kill in 0..KILLS {
        let bench = Bench::new()?;
        make(&bench)?;
        let (mut server, mut qmp) =
            start(program, &bench, &line(&bench, |name| image(&bench, name)), &sockets(&bench))?;
        let sockets = [bench.path("a.sock"), bench.path("b.sock")];
        let writer = Writer::default();
        let made = std::thread::scope(|scope| -> Result<u64> {
            let guest = scope.spawn(|| writer.write(&sockets));
            let killer = server.kill_after(Duration::from_millis(200 + kill * 77));
            let made = until_it_is_gone(&mut qmp);
            writer.is_over.store(true, Ordering::Relaxed);
            killer.wait()?;
            guest.join().expect("it does not panic")?;
            Ok(made)
        })?;
        server.kill()?;
        for disk in ["a", "b"] {
            // What the kernel still does for the process keeps the image locked.
            let list = poll_until("the locks of a killed daemon", Duration::from_secs(30), || {
                Ok(qemu_img(&bench, &format!("snapshot -l {disk}.qcow2")).ok())
            })?;
            let names = list.lines().skip(2).filter_map(|line| line.split_whitespace().nth(1));
            let names: Vec<String> = names.map(str::to_owned).collect();
            ensure!(disk == "a" || names.len() as u64 >= made, "{made} were made: {list}");
            for name in &names {
                written(&bench, disk, Some(name))?;
            }
            written(&bench, disk, None)?;
            // Leaks at most.
            qemu_img(&bench, &format!("check -q -r leaks {disk}.qcow2"))?;
            qemu_img(&bench, &format!("check -q {disk}.qcow2"))?;
        }
    }
    Ok(())
}

#[test]
fn a_killed_daemon_leaves_whole_snapshots() {
    with(&ringloom(), killed);
}

/// A daemon with the image `a.qcow2`, which a client can write by NBD.
struct Daemon {
    bench: Bench,
    server: Server,
    qmp: QmpClient,
}

impl Daemon {
    fn start(program: &Program, bench: Bench) -> Result<Self> {
        let mut arguments = monitor(&bench);
        if program.name() != "ringloom" {
            arguments.truncate(4);
        }
        let server = program.start(&arguments, &[monitor_socket(&bench)])?;
        let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
        let address = json!({"type": "unix", "data": {"path": bench.text("nbd.sock")}});
        qmp.execute("nbd-server-start", &json!({"addr": address}))?;
        qmp.execute("blockdev-add", &image(&bench, "a"))?;
        let export = json!({"type": "nbd", "id": "a", "node-name": "a", "writable": true});
        qmp.execute("block-export-add", &export)?;
        Ok(Self { bench, server, qmp })
    }

    fn write(&self, rng: &mut Rng) -> Result<()> {
        let uri = format!("nbd+unix:///a?socket={}", self.bench.text("nbd.sock"));
        let mut words =
            vec!["-f".to_owned(), "raw".to_owned(), "-d".to_owned(), "unmap".to_owned()];
        for _ in 0..12 {
            let start = rng.below(BYTES / 512);
            let count = (1 + rng.below(300)).min(BYTES / 512 - start);
            let verb = [
                format!("write -P {}", 1 + rng.below(255)),
                "write -z -u".to_owned(),
                "discard".to_owned(),
            ];
            let verb = &verb[rng.index(3)];
            words.extend(["-c".to_owned(), format!("{verb} {} {}", start * 512, count * 512)]);
        }
        words.push(uri);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        qemu_io(&self.bench, &words).map(drop)
    }

    /// What the disk holds now.
    fn content(&self) -> Result<Vec<u8>> {
        let uri = format!("nbd+unix:///a?socket={}", self.bench.text("nbd.sock"));
        qemu_img(&self.bench, &format!("convert -f raw -O raw {uri} now"))?;
        Ok(std::fs::read(self.bench.path("now"))?)
    }

    fn end(self) -> Result<Bench> {
        let Self { bench, server, qmp } = self;
        drop(qmp);
        stop(server, &[])?;
        for socket in ["qmp.sock", "nbd.sock"] {
            let _may_be_gone = std::fs::remove_file(bench.path(socket));
        }
        qemu_img(&bench, "check a.qcow2")?;
        Ok(bench)
    }
}

/// One program after the other makes and deletes snapshots of one image.
fn relay(peer: &Program, options: &str) -> Result<()> {
    let rng = &mut Rng::new(5);
    let mut bench = Bench::new()?;
    qemu_img(&bench, &format!("create -q -f qcow2 -o {options} a.qcow2 {BYTES}"))?;
    let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
    let programs = [ringloom(), peer.clone(), ringloom(), peer.clone(), ringloom()];
    for (turn, program) in programs.iter().enumerate() {
        let mut daemon = Daemon::start(program, bench)?;
        let names: Vec<String> = kept.iter().map(|(name, _)| name.clone()).collect();
        let found = shown(&mut daemon.qmp, "a")?;
        ensure!(found == names, "{}: {found:?}, not {names:?}", program.name());
        for number in 0..3 {
            daemon.write(rng)?;
            let (name, content) = (format!("s{turn}-{number}"), daemon.content()?);
            let arguments = json!({"device": "a", "name": name});
            daemon.qmp.execute("blockdev-snapshot-internal-sync", &arguments)?;
            kept.push((name, content));
        }
        daemon.write(rng)?;
        let (gone, _) = kept.remove(rng.index(kept.len()));
        let arguments = json!({"device": "a", "name": gone});
        daemon.qmp.execute("blockdev-snapshot-delete-internal-sync", &arguments)?;
        daemon.write(rng)?;
        let content = daemon.content()?;
        bench = daemon.end()?;
        qemu_img(&bench, "convert -f qcow2 -O raw a.qcow2 raw")?;
        ensure!(std::fs::read(bench.path("raw"))? == content, "the disk after {turn}");
        for (name, content) in &kept {
            qemu_img(&bench, &format!("convert -f qcow2 -O raw -l {name} a.qcow2 raw"))?;
            ensure!(std::fs::read(bench.path("raw"))? == *content, "{name} after {turn}");
        }
    }
    Ok(())
}

#[test]
fn the_peer_and_we_make_snapshots_of_one_image() {
    let peer = Program::qemu_storage_daemon();
    if let Some(reason) = peer.missing() {
        skipped(&reason);
        return;
    }
    for options in
        ["cluster_size=64k", "compat=0.10,cluster_size=4k", "cluster_size=16k,extended_l2=on"]
    {
        relay(&peer, options).unwrap_or_else(|error| panic!("{options}: {error:#}"));
    }
}
