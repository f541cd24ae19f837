//! Disks are copied as they were at one instant, by jobs, while their guests write: `blockdev-backup`.

mod compressed;
mod discarded;
mod hanging;
mod overlays;
mod together;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;

use super::filters::{BYTES, SECTOR, file, last_write, line, sockets, stamp, write_in_order};
use super::{monitor_socket, start};
use crate::support::{qemu_img, qemu_io, ringloom, stop, with};

const LIMIT: Duration = Duration::from_secs(60);

/// The options of the daemon; it may connect to sockets of the bench.
fn options(bench: &Bench) -> Vec<String> {
    let connects = ["--allow-connect", "localhost:1"].map(str::to_owned);
    [line(bench), connects.to_vec()].concat()
}

/// What is backed up: two disks, whose guests may write.
struct Place {
    bench: Bench,
    server: Server,
    qmp: QmpClient,
}

impl Place {
    fn new(program: &Program) -> Result<Self> {
        let bench = Bench::new()?;
        for name in ["a.img", "b.img"] {
            // Zeroes that a job has to read.
            image::create_with(&bench.path(name), &vec![0; usize::try_from(BYTES)?])?;
        }
        let (server, qmp) = start(program, &bench, &options(&bench), &sockets(&bench))?;
        Ok(Self { bench, server, qmp })
    }

    /// A new file as a node of that name.
    fn add_target(&mut self, name: &str) -> Result<()> {
        let path = self.bench.path(&format!("{name}.img"));
        if path.exists() {
            std::fs::remove_file(&path)?;
        }
        image::create_sparse(&path, BYTES)?;
        self.qmp.execute("blockdev-add", &file(&self.bench, name)).map(drop)
    }

    fn del(&mut self, name: &str) -> Result<()> {
        self.qmp.execute("blockdev-del", &json!({"node-name": name})).map(drop)
    }

    /// The event of that name about that job.
    fn event(&mut self, name: &str, job: &str) -> Result<Value> {
        loop {
            let event = self.qmp.event(name)?;
            if event["data"]["device"] == job {
                return Ok(event["data"].clone());
            }
        }
    }

    fn content(&self, name: &str) -> Result<Vec<u8>> {
        Ok(std::fs::read(self.bench.path(&format!("{name}.img")))?)
    }

    fn end(self) -> Result<()> {
        let Self { bench, server, qmp } = self;
        drop(qmp);
        stop(server, &[&bench.path("a.sock") as &Path, &monitor_socket(&bench)]).map(drop)
    }
}

fn backup(disk: &str, more: &Value) -> Value {
    let mut all = json!({
        "job-id": disk, "device": disk, "target": format!("{disk}-copy"), "sync": "full",
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    all
}

/// How many writes there are before anything is done beside them.
const FIRST_WRITES: usize = 6;

/// Waits until the guests write.
fn has_begun(place: &Place) -> Result<()> {
    poll_until("the first writes", LIMIT, || {
        let content = place.content("b")?;
        Ok(content[FIRST_WRITES * SECTOR..][..SECTOR].iter().any(|byte| *byte != 0).then_some(()))
    })
}

/// Does something while guests write to both disks in order; then all that they wrote has to be there.
fn while_written(place: &mut Place, work: impl FnOnce(&mut Place) -> Result<()>) -> Result<()> {
    let is_over = AtomicBool::new(false);
    let sockets = [place.bench.path("a.sock"), place.bench.path("b.sock")];
    let writes = std::thread::scope(|scope| -> Result<u64> {
        let guest = scope.spawn(|| write_in_order(&sockets, &is_over));
        let worked = has_begun(place).and_then(|()| work(place));
        is_over.store(true, Ordering::Relaxed);
        let writes = guest.join().expect("it does not panic")?;
        worked.with_context(|| place.server.log())?;
        Ok(writes)
    })?;
    ensure!(writes >= FIRST_WRITES as u64, "{writes} writes");
    for name in ["a", "b"] {
        let found = last_write(&place.content(name)?)?;
        ensure!(found == writes, "disk {name} has {found} of {writes} writes");
    }
    Ok(())
}

/// Both disks at one instant, again and again, with one job fast and one slow.
fn of_one_instant(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    while_written(&mut place, |place| {
        for round in 0..6 {
            for name in ["a-copy", "b-copy"] {
                place.add_target(name)?;
            }
            let speed = [0, 4 << 20][round % 2];
            let action = |disk: &str, speed: u64| {
                let perf = json!({"max-workers": 3, "max-chunk": 131_072});
                let data = backup(disk, &json!({"speed": speed, "x-perf": perf}));
                json!({"type": "blockdev-backup", "data": data})
            };
            let actions = json!({"actions": [action("a", 0), action("b", speed)]});
            place.qmp.execute("transaction", &actions)?;
            for _ in ["a", "b"] {
                let end = place.qmp.event("BLOCK_JOB_COMPLETED")?["data"].clone();
                let is_whole = end["error"].is_null() && end["len"] == end["offset"];
                ensure!(is_whole && end["len"] == BYTES && end["type"] == "backup", "{end}");
            }
            let (a, b) =
                (last_write(&place.content("a-copy")?)?, last_write(&place.content("b-copy")?)?);
            ensure!(a == b || a == b + 1, "round {round}: not of one instant: {a} and {b}");
            for name in ["a-copy", "b-copy"] {
                place.del(name)?;
            }
        }
        Ok(())
    })?;
    place.end()
}

/// One disk is backed up and the other one gets an overlay at the same instant; then the overlay is merged again.
fn beside_a_snapshot(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    while_written(&mut place, |place| {
        for round in 0..4 {
            place.add_target("a-copy")?;
            let path = place.bench.text(&format!("over{round}"));
            let snapshot = json!({
                "node-name": "b", "snapshot-file": path, "snapshot-node-name": "over",
                "ringloom-volatile": true,
            });
            let actions = json!([
                {"type": "blockdev-snapshot-sync", "data": snapshot},
                {"type": "block-dirty-bitmap-add", "data": {"node": "a", "name": "since"}},
                {"type": "blockdev-backup", "data": backup("a", &json!({}))},
            ]);
            place.qmp.execute("transaction", &json!({"actions": actions}))?;
            let end = place.qmp.event("BLOCK_JOB_COMPLETED")?["data"].clone();
            ensure!(end["error"].is_null() && end["len"] == BYTES, "{end}");
            let (a, b) =
                (last_write(&place.content("a-copy")?)?, last_write(&place.content("b")?)?);
            ensure!(a == b || a == b + 1, "round {round}: not of one instant: {a} and {b}");
            let commit = json!({"job-id": "c", "device": "over", "ringloom-volatile": true});
            place.qmp.execute("block-commit", &commit)?;
            place.qmp.event("BLOCK_JOB_READY")?;
            place.qmp.execute("job-complete", &json!({"id": "c"}))?;
            let end = place.qmp.event("BLOCK_JOB_COMPLETED")?["data"].clone();
            ensure!(end["error"].is_null(), "{end}");
            let bitmap = json!({"node": "a", "name": "since"});
            place.qmp.execute("block-dirty-bitmap-remove", &bitmap)?;
            place.del("over")?;
            place.del("a-copy")?;
        }
        Ok(())
    })?;
    place.end()
}

#[test]
fn a_disk_is_backed_up_at_the_instant_of_a_snapshot_of_another_one() {
    with(&ringloom(), beside_a_snapshot);
}

#[test]
fn disks_are_backed_up_as_they_were_at_one_instant() {
    with(&ringloom(), of_one_instant);
}

/// A job that is cancelled, or killed with the daemon, leaves its guests everything.
fn what_is_cut_off(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    while_written(&mut place, |place| {
        for is_paused in [false, true] {
            place.add_target("a-copy")?;
            place.qmp.execute("blockdev-backup", &backup("a", &json!({"speed": 1 << 20})))?;
            if is_paused {
                place.qmp.execute("job-pause", &json!({"id": "a"}))?;
            }
            let refused = place.qmp.refused("blockdev-del", &json!({"node-name": "a-copy"}))?;
            ensure!(refused.0 == "GenericError", "{refused:?}");
            let again = backup("a", &json!({"job-id": "again", "target": "b"}));
            let (_, why) = place.qmp.refused("blockdev-backup", &again)?;
            ensure!(why.contains("'a'"), "{why}");
            place.qmp.execute("block-job-cancel", &json!({"device": "a"}))?;
            let end = place.event("BLOCK_JOB_CANCELLED", "a")?;
            ensure!(end["offset"].as_u64() < Some(BYTES), "{end}");
            place.del("a-copy")?;
        }
        Ok(())
    })?;
    place.add_target("a-copy")?;
    place.qmp.execute("blockdev-backup", &backup("a", &json!({"speed": 65536})))?;
    let mut client = Client::connect(&place.bench.path("a2.sock"), Shape::small())?;
    for at in 0..64 {
        client.write(at * 65536, &stamp(at + 1), 0)?;
    }
    drop(client);
    place.server.kill()?;
    let written = place.content("a")?;
    for at in 0..64 {
        let start = usize::try_from(at * 65536)?;
        ensure!(written[start..start + SECTOR] == stamp(at + 1), "write {at} is lost");
    }
    let options = options(&place.bench);
    let (server, qmp) = start(program, &place.bench, &options, &sockets(&place.bench))?;
    (place.server, place.qmp) = (server, qmp);
    let jobs = place.qmp.execute("query-jobs", &json!({}))?;
    ensure!(jobs == json!([]), "{jobs}");
    place.end()
}

#[test]
fn a_backup_that_is_cut_off_leaves_the_guest_everything() {
    with(&ringloom(), what_is_cut_off);
}

/// A target that has no space until it gets some.
struct FullTarget {
    kit: Server,
}

impl FullTarget {
    /// As node `a-copy`, full as long as the file `full` is there.
    fn add(place: &mut Place) -> Result<Self> {
        std::fs::write(place.bench.path("full"), "")?;
        let socket = place.bench.path("kit.sock");
        if socket.exists() {
            std::fs::remove_file(&socket)?;
        }
        let (path, full) = (place.bench.text("kit.sock"), place.bench.text("full"));
        let words = [
            "--filter=error",
            "memory",
            &BYTES.to_string(),
            "error=ENOSPC",
            "error-pwrite-rate=100%",
            "error-zero-rate=100%",
            &format!("error-file={full}"),
        ];
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let options = ["-f", "--exit-with-parent", "-U", &path];
        let kit = Program::named("nbdkit", "nbdkit", &options).start(&words, &[socket])?;
        let node = json!({
            "driver": "nbd", "node-name": "a-copy", "server": {"type": "unix", "path": path},
        });
        place.qmp.execute("blockdev-add", &node)?;
        Ok(Self { kit })
    }

    fn read(&self, bench: &Bench) -> Result<Vec<u8>> {
        let uri = format!("nbd+unix:///?socket={}", bench.text("kit.sock"));
        let path = bench.text("read");
        let output = std::process::Command::new("nbdcopy").args([&uri, &path]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(std::fs::read(path)?)
    }

    fn end(mut self, place: &mut Place) -> Result<()> {
        place.del("a-copy")?;
        self.kit.kill()
    }
}

/// ENOSPC: the job fails, or rests until there is space; guests go on, and what was copied then is of the instant.
fn no_space(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    while_written(&mut place, |place| {
        let target = FullTarget::add(place)?;
        // A guest's write that cannot be copied would fail with the other policy.
        let policy = json!({"on-cbw-error": "break-snapshot"});
        place.qmp.execute("blockdev-backup", &backup("a", &policy))?;
        let end = place.event("BLOCK_JOB_COMPLETED", "a")?;
        ensure!(end["error"].as_str().is_some_and(|it| it.contains("no space left")), "{end}");
        target.end(place)
    })?;
    // Other guests, whose count begins anew. Nobody writes until there is space.
    place.end()?;
    let mut place = Place::new(program)?;
    let target = FullTarget::add(&mut place)?;
    let stops = json!({"on-target-error": "enospc"});
    place.qmp.execute("blockdev-backup", &backup("a", &stops))?;
    let error = place.event("BLOCK_JOB_ERROR", "a")?;
    ensure!(error["action"] == "stop" && error["operation"] == "write", "{error}");
    let at_rest = |place: &mut Place| -> Result<bool> {
        let jobs = place.qmp.execute("query-block-jobs", &json!({}))?;
        Ok(jobs[0]["status"] == "paused" && jobs[0]["io-status"] == "nospace")
    };
    poll_until("the job rests", LIMIT, || at_rest(&mut place).map(|it| it.then_some(())))?;
    let instant = place.content("a")?;
    std::fs::remove_file(place.bench.path("full"))?;
    while_written(&mut place, |place| {
        place.qmp.execute("block-job-resume", &json!({"device": "a"}))?;
        let end = place.event("BLOCK_JOB_COMPLETED", "a")?;
        ensure!(end["error"].is_null(), "{end}");
        ensure!(target.read(&place.bench)? == instant, "other bytes than those of the instant");
        target.end(place)
    })?;
    place.end()
}

#[test]
fn a_target_without_space_ends_the_job_or_has_it_rest() {
    with(&ringloom(), no_space);
}

/// An overlay with a backing file: only what it has itself is copied; by hand finalized, and what is left of it.
fn only_the_top(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    let bench = &place.bench;
    image::create_filled(&bench.path("base"), usize::try_from(BYTES)?, 5)?;
    for name in ["over", "copy"] {
        qemu_img(bench, &format!("create -q -f qcow2 -b base -F raw {name}"))?;
    }
    qemu_io(bench, &["-f", "qcow2", "-c", "write -P 7 1M 200k", "-c", "write -z 3M 64k", "over"])?;
    for (name, node) in [("over", "o"), ("copy", "p")] {
        let node = json!({
            "driver": "qcow2", "node-name": node,
            "file": {"driver": "file", "filename": bench.text(name)},
            "backing": {"driver": "raw", "file": {"driver": "file", "filename": bench.text("base")}},
        });
        place.qmp.execute("blockdev-add", &node)?;
    }
    let job = json!({
        "job-id": "j", "device": "o", "target": "p", "sync": "top", "auto-finalize": false,
        "auto-dismiss": false,
    });
    place.qmp.execute("blockdev-backup", &job)?;
    place.qmp.event("BLOCK_JOB_PENDING")?;
    let (_, why) = place.qmp.refused("job-complete", &json!({"id": "j"}))?;
    ensure!(why == "Job 'j' in state 'pending' cannot accept command verb 'complete'", "{why}");
    place.qmp.execute("job-finalize", &json!({"id": "j"}))?;
    place.event("BLOCK_JOB_COMPLETED", "j")?;
    let jobs = place.qmp.execute("query-jobs", &json!({}))?;
    ensure!(jobs[0]["status"] == "concluded" && jobs[0]["type"] == "backup", "{jobs}");
    place.qmp.execute("job-dismiss", &json!({"id": "j"}))?;
    for node in ["o", "p"] {
        place.del(node)?;
    }
    let bench = &place.bench;
    qemu_img(bench, "compare -q -f qcow2 -F qcow2 over copy")?;
    qemu_img(bench, "check -q -f qcow2 copy")?;
    let size = |name: &str| std::fs::metadata(bench.path(name)).map(|it| it.len());
    ensure!(size("copy")? < 2 << 20, "{} bytes were copied", size("copy")?);
    place.end()
}

#[test]
fn only_what_an_overlay_has_itself_is_copied() {
    with(&ringloom(), only_the_top);
}

/// `sync=none`: the target gets what guests change, as it was, for as long as the job lasts.
fn what_guests_change(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    let mut client = Client::connect(&place.bench.path("a.sock"), Shape::small())?;
    for at in 0..4 {
        client.write(at * 65536, &stamp(9), 0)?;
    }
    place.add_target("a-copy")?;
    place.qmp.execute("blockdev-backup", &backup("a", &json!({"sync": "none"})))?;
    client.write(65536, &stamp(10), 0)?;
    client.write(65536, &stamp(11), 0)?;
    place.qmp.execute("job-cancel", &json!({"id": "a"}))?;
    place.event("BLOCK_JOB_CANCELLED", "a")?;
    client.write(2 * 65536, &stamp(12), 0)?;
    let copy = place.content("a-copy")?;
    for (at, expected) in [(0, 0), (1, 9), (2, 0), (3, 0)] {
        ensure!(copy[at * 65536..at * 65536 + SECTOR] == stamp(expected), "cluster {at}");
    }
    drop(client);
    place.del("a-copy")?;
    place.end()
}

#[test]
fn what_guests_change_is_copied_as_it_was() {
    with(&ringloom(), what_guests_change);
}

/// What is dirty in a bitmap of disk `a`.
fn dirty_bytes(place: &mut Place) -> Result<(u64, bool)> {
    let nodes = place.qmp.execute("query-named-block-nodes", &json!({"flat": true}))?;
    let mut nodes = nodes.as_array().into_iter().flatten();
    let node = nodes.find(|node| node["node-name"] == "a").context("disk a")?;
    let bitmap = &node["dirty-bitmaps"][0];
    let is_busy = bitmap["busy"] == true;
    Ok((bitmap["count"].as_u64().with_context(|| node.to_string())?, is_busy))
}

/// A full backup and the beginning of its bitmap at one instant; then only what was changed is copied, again and again, each time
/// with the guest writing: each copy is a prefix of its writes. A backup that is cancelled loses nothing of its bitmap.
fn only_what_was_changed(program: &Program) -> Result<()> {
    let mut place = Place::new(program)?;
    while_written(&mut place, |place| {
        place.add_target("a-copy")?;
        let bitmap = json!({"node": "a", "name": "b0"});
        let actions = json!({"actions": [
            {"type": "block-dirty-bitmap-add", "data": bitmap},
            {"type": "blockdev-backup", "data": backup("a", &json!({}))},
        ]});
        place.qmp.execute("transaction", &actions)?;
        place.event("BLOCK_JOB_COMPLETED", "a")?;
        let mut last = last_write(&place.content("a-copy")?)?;
        for round in 0..6 {
            let since = json!({"sync": "incremental", "bitmap": "b0"});
            if round % 3 == 1 {
                let mut slow = since.clone();
                // It stays until it is finalized.
                slow["auto-finalize"] = json!(false);
                place.qmp.execute("blockdev-backup", &backup("a", &slow))?;
                ensure!(dirty_bytes(place)?.1, "the bitmap is not in use");
                let (_, why) = place.qmp.refused("block-dirty-bitmap-clear", &bitmap)?;
                ensure!(why.contains("in use"), "{why}");
                place.qmp.execute("job-cancel", &json!({"id": "a"}))?;
                place.event("BLOCK_JOB_CANCELLED", "a")?;
            }
            let mode = json!({"sync": "bitmap", "bitmap": "b0", "bitmap-mode": "on-success"});
            let more = if round % 2 == 0 { &since } else { &mode };
            place.qmp.execute("blockdev-backup", &backup("a", more))?;
            let end = place.event("BLOCK_JOB_COMPLETED", "a")?;
            ensure!(end["error"].is_null(), "{end}");
            let now = last_write(&place.content("a-copy")?).with_context(|| round.to_string())?;
            ensure!(now >= last, "round {round}: {now} after {last}");
            last = now;
        }
        place.del("a-copy")
    })?;
    // Nobody writes any more: one more makes it equal.
    place.add_target("a-copy")?;
    std::fs::copy(place.bench.path("a.img"), place.bench.path("a-copy.img"))?;
    let (dirty, _) = dirty_bytes(&mut place)?;
    ensure!(dirty < BYTES, "{dirty} bytes are dirty");
    let always = json!({"sync": "bitmap", "bitmap": "b0", "bitmap-mode": "always"});
    place.qmp.execute("blockdev-backup", &backup("a", &always))?;
    let end = place.event("BLOCK_JOB_COMPLETED", "a")?;
    ensure!(end["len"] == dirty, "{end}: {dirty} bytes are dirty");
    ensure!(dirty_bytes(&mut place)? == (0, false), "something is dirty");
    ensure!(place.content("a")? == place.content("a-copy")?, "they differ");
    place.end()
}

#[test]
fn only_what_was_changed_is_copied_and_nothing_is_lost() {
    with(&ringloom(), only_what_was_changed);
}

/// How many bytes the server has sent of a disk of 64 MiB, of which a part is dirty, for a backup of that.
fn reads_of_a_backup(program: &Program) -> Result<()> {
    const CLUSTER: u64 = 65536;
    let bench = Bench::new()?;
    let (size, log) = (64_u64 << 20, bench.text("log"));
    image::create_filled(&bench.path("source"), usize::try_from(size)?, 9)?;
    image::create_sparse(&bench.path("target"), size)?;
    let kit = ["--filter=log", "file", &bench.text("source"), &format!("logfile={log}")];
    let kit: Vec<String> = kit.iter().map(|word| (*word).to_owned()).collect();
    let path = bench.text("kit.sock");
    let options = ["-f", "--exit-with-parent", "-U", &path];
    let mut kit =
        Program::named("nbdkit", "nbdkit", &options).start(&kit, &[path.clone().into()])?;
    let guest = super::export(&bench, "a", "a").to_string();
    let target = json!({"driver": "file", "node-name": "t", "filename": bench.text("target")});
    let words = [
        "--blockdev",
        &format!("nbd,node-name=a,server.type=unix,server.path={path}"),
        "--blockdev",
        &target.to_string(),
        "--export",
        &guest,
    ];
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let (server, mut qmp) = start(program, &bench, &words, &[bench.path("a.sock")])?;
    qmp.execute("block-dirty-bitmap-add", &json!({"node": "a", "name": "b0"}))?;
    let mut client = Client::connect(&bench.path("a.sock"), Shape::small())?;
    for at in [0, 3, 4, 500, 1023] {
        client.write(at * CLUSTER, &stamp(at), 0)?;
    }
    drop(client);
    let job = json!({
        "job-id": "j", "device": "a", "target": "t", "sync": "incremental", "bitmap": "b0",
    });
    qmp.execute("blockdev-backup", &job)?;
    let end = qmp.event("BLOCK_JOB_COMPLETED")?["data"].clone();
    ensure!(end["error"].is_null() && end["len"] == 5 * CLUSTER, "{end}");
    drop(qmp);
    stop(server, &[&bench.path("a.sock") as &Path])?;
    kit.kill()?;
    let log = std::fs::read_to_string(bench.path("log"))?;
    let count = |line: &str| {
        let hex = line.split("count=0x").nth(1)?.split_whitespace().next()?;
        u64::from_str_radix(hex, 16).ok()
    };
    let reads = log.lines().filter(|line| line.contains(" Read ") && line.contains("count="));
    let read: u64 = reads.filter_map(count).sum();
    ensure!(read == 5 * CLUSTER, "{read} bytes were read: {log}");
    let (source, target) =
        (std::fs::read(bench.path("source"))?, std::fs::read(bench.path("target"))?);
    for (at, bytes) in (0..).zip(target.chunks(usize::try_from(CLUSTER)?)) {
        let is_copied = [0, 3, 4, 500, 1023].contains(&at);
        let start = at * usize::try_from(CLUSTER)?;
        let expected = if is_copied { &source[start..start + bytes.len()] } else { &[0; 65536] };
        ensure!(bytes == expected, "cluster {at}");
    }
    Ok(())
}

#[test]
fn a_backup_by_a_bitmap_reads_what_is_dirty_and_nothing_else() {
    with(&ringloom(), reads_of_a_backup);
}
