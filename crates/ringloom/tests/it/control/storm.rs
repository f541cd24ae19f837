//! Many commands, good and bad, from three monitors at once, under a client that verifies what it reads on four queues.
//!
//! Once the daemon lives, once it is killed every 60 commands and started again with the same line.
//!
//! `RINGLOOM_STORM_COMMANDS` says how many; 2,000 is the long form, before a change of `control` or `monitor`. The seed
//! repeats the commands and their order in each monitor, not how monitors interleave.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::RingLayout;
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program, START_LIMIT, Server};
use testkit::qmp::QmpClient;
use testkit::rawring::{Collected, Survivor};
use testkit::report::note;
use testkit::rng::Rng;

use super::{monitor, monitor_socket, start, state};
use crate::support::{qemu_img, ringloom, stop, with};

const MONITORS: usize = 3;
const QUEUES: u16 = 4;
const COMMANDS: usize = 300;
const SEED: u64 = 0x57;

/// After how many commands the daemon is killed.
const KILL_EVERY: usize = 60;

/// How many overlays are put on the disk at most.
const OVERLAYS: usize = 5;

/// A monitor more.
fn socket(bench: &Bench, number: usize) -> PathBuf {
    if number == 0 { monitor_socket(bench) } else { bench.path(&format!("qmp{number}.sock")) }
}

fn line(bench: &Bench) -> Vec<String> {
    let mut all = state(bench);
    for number in 1..MONITORS {
        let socket = socket(bench, number);
        let chardev = format!("socket,id=q{number},path={},server=on,wait=off", socket.display());
        all.extend(["--chardev".to_owned(), chardev]);
        all.extend(["--monitor".to_owned(), format!("chardev=q{number}")]);
    }
    let words = [
        "--object",
        "iothread,id=a",
        "--object",
        "iothread,id=b",
        "--blockdev",
        &format!("file,node-name=disk,filename={}", bench.text("disk")),
        "--export",
        &format!(
            "vhost-user-blk,id=e,node-name=disk,writable=on,num-queues={QUEUES},iothread=a,addr.type=unix,\
             addr.path={}",
            bench.text("e.sock")
        ),
    ];
    all.extend(words.map(str::to_owned));
    all
}

/// One who asks.
struct Asker {
    number: usize,
    rng: Rng,
    directory: PathBuf,
    overlays: usize,
    bytes: u64,
}

impl Asker {
    fn text(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn one_of<'a>(&mut self, names: &[&'a str]) -> &'a str {
        names[self.rng.index(names.len())]
    }

    /// The next command. What it names may be there or not.
    fn next(&mut self, root: &str) -> (&'static str, Value) {
        let number = self.number;
        let (own, file) = (format!("n{number}"), format!("f{number}"));
        let export = format!("x{number}");
        match self.rng.below(20) {
            0 => ("object-add", json!({"qom-type": "iothread", "id": format!("t{number}")})),
            1 => ("object-del", json!({"id": format!("t{number}")})),
            2 => (
                "blockdev-add",
                json!({
                    "driver": "file", "node-name": file, "filename": self.text(&format!("other{number}")),
                }),
            ),
            3 => ("blockdev-add", json!({"driver": "raw", "node-name": own, "file": file})),
            4 => {
                ("blockdev-del", json!({"node-name": self.one_of(&[&own, &file, "disk", "none"])}))
            }
            5 => (
                "block-export-add",
                json!({
                    "type": "vhost-user-blk", "id": export, "node-name": self.one_of(&[&own, &file]),
                    "writable": true, "iothread": self.one_of(&["a", "b"]),
                    "addr": {"type": "unix", "path": self.text(&format!("x{number}.sock"))},
                }),
            ),
            6 => ("block-export-del", json!({"id": export, "mode": "hard"})),
            7 => {
                self.bytes += 65536;
                ("block_resize", json!({"node-name": root, "size": self.bytes}))
            }
            8 => ("block_resize", json!({"node-name": root, "size": 4096})),
            9 if number == 0 && self.overlays < OVERLAYS => {
                self.overlays += 1;
                let name = format!("over{}", self.overlays);
                (
                    "blockdev-snapshot-sync",
                    json!({
                        "node-name": root, "snapshot-file": self.text(&name), "snapshot-node-name": name,
                    }),
                )
            }
            9 => ("blockdev-snapshot", json!({"node": root, "overlay": own})),
            10..=15 => self.placement(root),
            16 => (
                "transaction",
                json!({"actions": [
                    {"type": "blockdev-snapshot", "data": {"node": root, "overlay": own}},
                    {"type": "abort", "data": {}},
                ]}),
            ),
            17 => ("blockdev-add", json!({"driver": "qcow2", "node-name": own, "file": root})),
            18 => (
                "block-export-add",
                json!({
                    "type": "vhost-user-blk", "id": "e", "node-name": own, "writable": true,
                    "addr": {"type": "unix", "path": self.text("e.sock")},
                }),
            ),
            _ => ("nonsense", json!({"a": [[{"b": null}]]})),
        }
    }

    /// A command about who serves what, or a question.
    fn placement(&mut self, root: &str) -> (&'static str, Value) {
        match self.rng.below(6) {
            0 | 1 => (
                "ringloom-move-queue",
                json!({
                    "export": "e", "queue": self.rng.below(u64::from(QUEUES) + 1),
                    "iothread": self.one_of(&["a", "b", "a", "b", "none"]),
                }),
            ),
            2 => (
                "x-blockdev-set-iothread",
                json!({
                    "node-name": root, "iothread": self.one_of(&["a", "b", "none"]), "force": true,
                }),
            ),
            3 => (
                "qom-set",
                json!({
                    "path": "/objects/a", "property": "poll-max-ns", "value": self.rng.below(40_000),
                }),
            ),
            4 => ("query-named-block-nodes", json!({})),
            _ => ("query-blockstats", json!({"query-nodes": true})),
        }
    }

    /// Asks so many times; how often it was done.
    fn ask(mut self, socket: &Path, count: usize) -> Result<usize> {
        let mut qmp = QmpClient::connect(socket)?;
        let mut done = 0;
        for _ in 0..count {
            done += usize::from(self.ask_once(&mut qmp)?);
        }
        Ok(done)
    }

    fn ask_once(&mut self, qmp: &mut QmpClient) -> Result<bool> {
        let root = root(qmp)?;
        let (command, arguments) = self.next(&root);
        let answer = qmp.ask(command, &arguments)?;
        qmp.events.clear();
        Ok(answer.get("return").is_some())
    }

    /// The same while the daemon is killed and started again now and then: a command without an answer may have been done.
    fn ask_on(mut self, socket: &Path, count: usize, asked: &AtomicUsize) -> Result<usize> {
        let mut done = 0;
        let mut qmp = None;
        for _ in 0..count {
            if qmp.is_none() {
                // A daemon that is killed while it greets is one that is not there yet.
                let connected = || Ok(QmpClient::connect(socket).ok());
                qmp = Some(poll_until("the monitor", START_LIMIT, connected)?);
            }
            match qmp.as_mut().map(|qmp| self.ask_once(qmp)) {
                Some(Ok(is_done)) => done += usize::from(is_done),
                Some(Err(_)) | None => qmp = None,
            }
            asked.fetch_add(1, Ordering::Relaxed);
        }
        Ok(done)
    }
}

/// The node below the export.
fn root(qmp: &mut QmpClient) -> Result<String> {
    let exports = qmp.execute("query-block-exports", &json!({}))?;
    let all = exports.as_array().context("a list")?;
    let export = all.iter().find(|export| export["id"] == "e").context("the export is gone")?;
    Ok(export["node-name"].as_str().context("a node")?.to_owned())
}

/// Descriptors, and threads but for those that are started when there is work for them, of which there are so many at most.
fn holdings(server: &Server) -> Result<(usize, Vec<String>)> {
    let process = PathBuf::from(format!("/proc/{}", server.pid()));
    let mut threads = Vec::new();
    for thread in std::fs::read_dir(process.join("task"))? {
        // One may end meanwhile.
        let name = std::fs::read_to_string(thread?.path().join("comm")).unwrap_or_default();
        let comes_with_work = ["iou-", "IO worker", "interrupt watch"];
        if !name.is_empty() && !comes_with_work.iter().any(|it| name.starts_with(it)) {
            threads.push(name.trim().to_owned());
        }
    }
    threads.sort();
    Ok((std::fs::read_dir(process.join("fd"))?.count(), threads))
}

/// Takes away what commands have made, but for what the export stands on; what is there or not is all the same.
fn clean_up(qmp: &mut QmpClient) -> Result<()> {
    for number in 0..MONITORS {
        let export = json!({"id": format!("x{number}"), "mode": "hard"});
        qmp.ask("block-export-del", &export)?;
        for node in [format!("n{number}"), format!("f{number}")] {
            qmp.ask("blockdev-del", &json!({"node-name": node}))?;
        }
        qmp.ask("object-del", &json!({"id": format!("t{number}")}))?;
    }
    Ok(())
}

fn count() -> usize {
    let count = std::env::var("RINGLOOM_STORM_COMMANDS").ok().and_then(|it| it.parse().ok());
    count.unwrap_or(COMMANDS)
}

fn bench_of_a_storm() -> Result<Bench> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("disk"), Survivor::disk_bytes(QUEUES))?;
    for number in 0..MONITORS {
        image::create_sparse(&bench.path(&format!("other{number}")), 1 << 20)?;
    }
    Ok(bench)
}

/// Those that are there from the start, but for that of the first monitor.
fn sockets(bench: &Bench) -> Vec<PathBuf> {
    (1..MONITORS).map(|number| socket(bench, number)).chain([bench.path("e.sock")]).collect()
}

fn all_is_well_in_a_storm(program: &Program) -> Result<()> {
    let count = count();
    let bench = bench_of_a_storm()?;
    let bytes = Survivor::disk_bytes(QUEUES);
    let sockets = sockets(&bench);
    let (server, qmp) = start(program, &bench, &line(&bench), &sockets)?;
    // A monitor has one client at a time.
    drop(qmp);
    let mut client = Survivor::connect(&bench.path("e.sock"), RingLayout::Packed, QUEUES)?;
    let before = holdings(&server)?;
    let askers: Vec<_> = (0..MONITORS)
        .map(|number| {
            let (rng, directory) = (Rng::new(SEED + number as u64), bench.path(""));
            let asker = Asker { number, rng, directory, overlays: 0, bytes };
            let socket = socket(&bench, number);
            std::thread::spawn(move || asker.ask(&socket, count / MONITORS))
        })
        .collect();
    let mut rng = Rng::new(SEED);
    while askers.iter().any(|asker| !asker.is_finished()) {
        client.submit(&mut rng)?;
        ensure!(client.collect()? != Collected::Gone, "the server is gone: {}", server.log());
    }
    let mut done = 0;
    for asker in askers {
        let asked = asker.join().expect("it does not panic");
        done += asked.with_context(|| format!("log: {}", server.log()))?;
    }
    client.drain()?;
    let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
    clean_up(&mut qmp)?;
    let root = root(&mut qmp)?;
    let overlays = root.strip_prefix("over").map_or(Ok(0), str::parse)?;
    let after = holdings(&server)?;
    // An overlay has a file and its format; a client of a monitor more or less is one descriptor.
    let files = before.0 + 2 * overlays + MONITORS;
    ensure!(after.0 <= files && after.1 == before.1, "{before:?} -> {after:?}: {}", server.log());
    ensure!(done * 5 > count && overlays > 0, "only {done} were done, with {overlays} overlays");
    note(&format!("storm: {done} of {count} commands done, {overlays} overlays"));
    let expected = client.expected();
    drop((client, qmp));
    stop(server, &[&monitor_socket(&bench)])?;
    for overlay in 1..=overlays {
        qemu_img(&bench, &format!("check -q -f qcow2 over{overlay}"))?;
    }
    compare(&bench, &root, &expected)
}

/// The disk holds what was completed.
fn compare(bench: &Bench, root: &str, expected: &[u8]) -> Result<()> {
    let is_overlay = root.starts_with("over");
    let format = if is_overlay { "qcow2" } else { "raw" };
    let file = if is_overlay { root } else { "disk" };
    qemu_img(bench, &format!("convert -f {format} -O raw {file} flat"))?;
    let found = std::fs::read(bench.path("flat"))?;
    let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
    ensure!(wrong.is_none() && found.len() >= expected.len(), "another byte at {wrong:?}");
    Ok(())
}

/// The same while the daemon is killed and started again with the same line, and all clients come back.
fn all_is_well_with_kills(program: &Program) -> Result<()> {
    let count = count();
    let bench = bench_of_a_storm()?;
    let all = [monitor(&bench), line(&bench)].concat();
    let awaited = [sockets(&bench), vec![monitor_socket(&bench)]].concat();
    let mut server = program.start(&all, &awaited)?;
    let mut client = Survivor::connect(&bench.path("e.sock"), RingLayout::Packed, QUEUES)?;
    let asked = Arc::new(AtomicUsize::new(0));
    let askers: Vec<_> = (0..MONITORS)
        .map(|number| {
            let (rng, directory) = (Rng::new(SEED + number as u64), bench.path(""));
            let bytes = Survivor::disk_bytes(QUEUES);
            let asker = Asker { number, rng, directory, overlays: 0, bytes };
            let (socket, asked) = (socket(&bench, number), Arc::clone(&asked));
            std::thread::spawn(move || asker.ask_on(&socket, count / MONITORS, &asked))
        })
        .collect();
    let (mut rng, mut kills) = (Rng::new(SEED), 0);
    while askers.iter().any(|asker| !asker.is_finished()) {
        if asked.load(Ordering::Relaxed) >= (kills + 1) * KILL_EVERY {
            server.kill()?;
            kills += 1;
            server = program.start(&all, &[bench.path("e.sock")])?;
            client.reconnect()?;
        }
        client.submit(&mut rng)?;
        ensure!(client.collect()? != Collected::Gone, "the server is gone: {}", server.log());
    }
    let mut done = 0;
    for asker in askers {
        let asked = asker.join().expect("it does not panic");
        done += asked.with_context(|| format!("log: {}", server.log()))?;
    }
    client.drain().with_context(|| format!("log: {}", server.log()))?;
    let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
    let root = root(&mut qmp)?;
    note(&format!("storm: {done} of {count} commands done, {kills} kills, the disk is {root}"));
    ensure!(done * 5 > count && kills > 0, "only {done} were done, with {kills} kills");
    let expected = client.expected();
    drop((client, qmp));
    stop(server, &[&monitor_socket(&bench)])?;
    if root.starts_with("over") {
        // A killed daemon leaks clusters at worst.
        qemu_img(&bench, &format!("check -q -f qcow2 -r leaks {root}"))?;
    }
    compare(&bench, &root, &expected)
}

#[test]
fn commands_and_kills_change_no_byte_under_load() {
    with(&ringloom(), all_is_well_with_kills);
}

#[test]
fn commands_from_three_monitors_change_no_byte_under_load() {
    with(&ringloom(), all_is_well_in_a_storm);
}
