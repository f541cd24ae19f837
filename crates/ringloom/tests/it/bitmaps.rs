//! Dirty bitmaps, beside those of qemu-storage-daemon: the same writes leave the same bits.

mod persistent;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;
use testkit::report::skipped;
use testkit::rng::Rng;

use crate::control::{monitor, monitor_socket};
use crate::support::{qemu_io, ringloom, stop};

/// The bytes of the disks: they end within a granule.
const DISK: u64 = (8 << 20) + 512 * 7;

/// A daemon with a monitor and an NBD server.
struct Daemon {
    bench: Bench,
    server: Server,
    client: QmpClient,
}

impl Daemon {
    /// One with a disk, node `d`.
    fn start(program: &Program) -> Result<Self> {
        let bench = Bench::new()?;
        image::create_filled(&bench.path("disk"), usize::try_from(DISK)?, 5)?;
        let file = bench.text("disk");
        let node =
            json!({"driver": "file", "node-name": "d", "filename": file, "discard": "unmap"});
        Self::start_with(program, bench, node)
    }

    /// One with that node.
    fn start_with(program: &Program, bench: Bench, node: Value) -> Result<Self> {
        let mut arguments = monitor(&bench);
        if program.name() != "ringloom" {
            arguments.truncate(4);
        }
        let server = program.start(&arguments, &[monitor_socket(&bench)])?;
        let client = QmpClient::connect(&monitor_socket(&bench))?;
        let mut daemon = Self { bench, server, client };
        let socket = daemon.nbd_socket();
        daemon
            .run("nbd-server-start", json!({"addr": {"type": "unix", "data": {"path": socket}}}))?;
        daemon.run("blockdev-add", node)?;
        Ok(daemon)
    }

    fn nbd_socket(&self) -> PathBuf {
        self.bench.path("nbd.sock")
    }

    fn export(&mut self) -> Result<()> {
        let export = json!({"type": "nbd", "id": "d", "node-name": "d", "writable": true});
        self.run("block-export-add", export).map(drop)
    }

    #[expect(clippy::needless_pass_by_value, reason = "arguments are written where they are used")]
    fn run(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.client.execute(command, &arguments)
    }

    /// Does something with a bitmap of the node.
    fn bitmap(&mut self, verb: &str, arguments: &Value) -> Result<Value> {
        let mut all = json!({"node": "d"});
        all.as_object_mut()
            .context("an object")?
            .extend(arguments.as_object().context("an object")?.clone());
        self.run(&format!("block-dirty-bitmap-{verb}"), all)
    }

    /// Has a client write.
    fn writes(&self, commands: &[String]) -> Result<()> {
        let uri = format!("nbd+unix:///d?socket={}", self.nbd_socket().display());
        let mut words = vec!["-f", "raw", "-d", "unmap"];
        words.extend(commands.iter().flat_map(|command| ["-c", command]));
        words.push(&uri);
        qemu_io(&self.bench, &words).map(drop)
    }

    /// The bitmaps of the node, and the hash of each.
    fn bitmaps(&mut self) -> Result<Vec<(Value, Value)>> {
        let nodes = self.run("query-named-block-nodes", json!({"flat": true}))?;
        let mut nodes = nodes.as_array().context("nodes")?.iter();
        let node = nodes.find(|node| node["node-name"] == "d").context("the node")?;
        let mut found = Vec::new();
        for bitmap in node["dirty-bitmaps"].as_array().cloned().unwrap_or_default() {
            let name = json!({"node": "d", "name": bitmap["name"]});
            found.push((bitmap, self.run("x-debug-block-dirty-bitmap-sha256", name)?));
        }
        Ok(found)
    }
}

/// Some changes, as qemu-io has them.
fn some_changes(rng: &mut Rng) -> Vec<String> {
    let change = |_| {
        let start = rng.below(DISK / 512);
        let count = (1 + rng.below(300)).min(DISK / 512 - start);
        let verb = ["write", "write -z", "write -z -u", "discard", "read"][rng.index(5)];
        format!("{verb} {} {}", start * 512, count * 512)
    };
    (0..12).map(change).collect()
}

/// Carries all of it out on one of the daemons; what there is at each stop.
fn course(program: &Program, seed: u64) -> Result<Vec<Vec<(Value, Value)>>> {
    let mut rng = Rng::new(seed);
    let mut daemon = Daemon::start(program)?;
    let mut stops = Vec::new();
    daemon.bitmap("add", &json!({"name": "usual"}))?;
    // It serves already when the first bitmap comes.
    daemon.export()?;
    daemon.bitmap("add", &json!({"name": "fine", "granularity": 512}))?;
    daemon.bitmap("add", &json!({"name": "off", "granularity": 4096, "disabled": true}))?;
    daemon.writes(&some_changes(&mut rng))?;
    stops.push(daemon.bitmaps()?);
    daemon.bitmap("enable", &json!({"name": "off"}))?;
    daemon.bitmap("disable", &json!({"name": "usual"}))?;
    daemon.writes(&some_changes(&mut rng))?;
    stops.push(daemon.bitmaps()?);
    daemon.bitmap("merge", &json!({"target": "off", "bitmaps": ["usual", "fine"]}))?;
    stops.push(daemon.bitmaps()?);
    let action = |verb: &str, data: Value| json!({"type": format!("block-dirty-bitmap-{verb}"), "data": data});
    let actions = json!({"actions": [
        action("clear", json!({"node": "d", "name": "fine"})),
        action("add", json!({"node": "d", "name": "next", "granularity": 1024})),
        action("merge", json!({"node": "d", "target": "next", "bitmaps": ["off"]})),
        action("enable", json!({"node": "d", "name": "usual"})),
        action("remove", json!({"node": "d", "name": "off"})),
    ]});
    daemon.run("transaction", actions)?;
    stops.push(daemon.bitmaps()?);
    daemon.writes(&some_changes(&mut rng))?;
    stops.push(daemon.bitmaps()?);
    let failing = json!({"actions": [
        action("clear", json!({"node": "d", "name": "usual"})),
        action("merge", json!({"node": "d", "target": "fine", "bitmaps": ["next"]})),
        action("disable", json!({"node": "d", "name": "next"})),
        action("remove", json!({"node": "d", "name": "next"})),
        action("remove", json!({"node": "d", "name": "none"})),
    ]});
    ensure!(daemon.run("transaction", failing).is_err(), "there is no such bitmap");
    stops.push(daemon.bitmaps()?);
    daemon.bitmap("clear", &json!({"name": "usual"}))?;
    daemon.writes(&some_changes(&mut rng))?;
    stops.push(daemon.bitmaps()?);
    stop(daemon.server, &[])?;
    Ok(stops)
}

/// What libnbd's tool says of a bitmap that is shown, and what is there after a bitmap is shown no more.
fn maps(program: &Program, seed: u64) -> Result<Vec<String>> {
    let mut rng = Rng::new(seed);
    let mut daemon = Daemon::start(program)?;
    daemon.bitmap("add", &json!({"name": "b", "granularity": 4096}))?;
    daemon.bitmap("add", &json!({"name": "c"}))?;
    let export = json!({
        "type": "nbd", "id": "d", "node-name": "d", "writable": true,
        "bitmaps": ["b", {"node": "d", "name": "c"}],
    });
    daemon.run("block-export-add", export)?;
    let uri = format!("nbd+unix:///d?socket={}", daemon.nbd_socket().display());
    let mut all = Vec::new();
    for _ in 0..3 {
        daemon.writes(&some_changes(&mut rng))?;
        for name in ["b", "c"] {
            let map = format!("--map=qemu:dirty-bitmap:{name}");
            let output = std::process::Command::new("nbdinfo").args([&map, &uri]).output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            all.push(String::from_utf8(output.stdout)?);
        }
    }
    ensure!(daemon.bitmap("clear", &json!({"name": "b"})).is_err(), "it is shown");
    daemon.run("block-export-del", json!({"id": "d", "mode": "hard"}))?;
    stop(daemon.server, &[])?;
    Ok(all)
}

#[test]
fn a_client_sees_the_same_dirty_bytes_as_with_the_peer() {
    let peer = Program::qemu_storage_daemon();
    if let Some(reason) = peer.missing() {
        skipped(&reason);
        return;
    }
    let [expected, found] = [peer, ringloom()]
        .map(|it| maps(&it, 9).unwrap_or_else(|error| panic!("{}: {error:#}", it.name())));
    assert_eq!(expected, found);
    assert!(found.iter().all(|map| map.contains("dirty") && map.contains("clean")), "{found:?}");
}

#[test]
fn the_same_writes_leave_the_same_bits_as_in_the_peer() {
    let peer = Program::qemu_storage_daemon();
    if let Some(reason) = peer.missing() {
        skipped(&reason);
        return;
    }
    for seed in 0..3 {
        let [expected, found] = [peer.clone(), ringloom()]
            .map(|it| course(&it, seed).unwrap_or_else(|error| panic!("{}: {error:#}", it.name())));
        for (place, (expected, found)) in expected.iter().zip(&found).enumerate() {
            assert_eq!(expected, found, "seed {seed}, stop {place}");
        }
        assert!(found.iter().flatten().any(|(bitmap, _)| bitmap["count"] != 0));
    }
}
