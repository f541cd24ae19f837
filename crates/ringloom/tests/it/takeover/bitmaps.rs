//! Dirty bitmaps change hands: what was marked is marked, and what is changed afterwards is recorded.

use serde_json::{Value, json};
use testkit::image;
use testkit::qmp::QmpClient;

use super::*;
use crate::control::{monitor, monitor_socket};
use crate::support::{qemu_img, ringloom, with};

const QUEUES: u16 = 2;

/// A raw disk `r` and an image `q`, each with an export named as it.
fn arguments(bench: &Bench) -> Vec<String> {
    let nodes = [
        format!("file,node-name=r,filename={}", bench.text("r.img")),
        format!("qcow2,node-name=q,file.driver=file,file.filename={}", bench.text("q.qcow2")),
    ];
    let mut line = monitor(bench);
    for id in ["t0", "t1"] {
        line.extend(["--object".to_owned(), format!("iothread,id={id}")]);
    }
    line.extend(nodes.into_iter().flat_map(|node| ["--blockdev".to_owned(), node]));
    for name in ["r", "q"] {
        let export = format!(
            "vhost-user-blk,id={name},node-name={name},writable=on,addr.type=unix,addr.path={},num-queues={QUEUES},\
             iothread.0=t0,iothread.1=t1",
            bench.text(&format!("{name}.sock"))
        );
        line.extend(["--export".to_owned(), export]);
    }
    line
}

/// What there is to know of all bitmaps, and the hash of each.
fn bitmaps(bench: &Bench) -> Result<Vec<(Value, Value)>> {
    let mut qmp = QmpClient::connect(&monitor_socket(bench))?;
    let nodes = qmp.execute("query-named-block-nodes", &json!({"flat": true}))?;
    let mut found = Vec::new();
    for node in nodes.as_array().context("nodes")? {
        for bitmap in node["dirty-bitmaps"].as_array().cloned().unwrap_or_default() {
            let which = json!({"node": node["node-name"], "name": bitmap["name"]});
            let hash = qmp.execute("x-debug-block-dirty-bitmap-sha256", &which)?;
            found.push((bitmap, json!([which, hash])));
        }
    }
    Ok(found)
}

fn count_of(all: &[(Value, Value)], name: &str) -> u64 {
    let bitmap = all.iter().find(|(bitmap, _)| bitmap["name"] == name);
    bitmap.and_then(|(bitmap, _)| bitmap["count"].as_u64()).unwrap_or(u64::MAX)
}

fn changes_hands(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let bytes = Survivor::disk_bytes(QUEUES);
    image::create_sparse(&bench.path("r.img"), bytes)?;
    qemu_img(&bench, &format!("create -q -f qcow2 q.qcow2 {bytes}"))?;
    qemu_img(&bench, "bitmap --add -f qcow2 q.qcow2 gone")?;
    let line = arguments(&bench);
    let sockets = ["r.sock", "q.sock"].map(|name| bench.path(name));
    let mut server =
        program.start(&line, &[sockets.as_slice(), &[monitor_socket(&bench)]].concat())?;
    let mut clients = Vec::new();
    for socket in &sockets {
        clients.push(Survivor::connect(socket, RingLayout::Split, QUEUES)?);
    }
    let mut rng = Rng::new(7);
    let mut work_of_all = |clients: &mut Vec<Survivor>| -> Result<()> {
        for client in clients {
            work(client, &mut rng, 3)?;
            client.drain()?;
        }
        Ok(())
    };
    let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
    let mut run = |verb: &str, arguments: Value| {
        qmp.execute(&format!("block-dirty-bitmap-{verb}"), &arguments).map(drop)
    };
    run("add", json!({"node": "r", "name": "since", "granularity": 4096}))?;
    run("add", json!({"node": "r", "name": "still", "granularity": 512}))?;
    run("add", json!({"node": "q", "name": "kept", "granularity": 4096, "persistent": true}))?;
    // It stays in the image as long as that is written.
    run("remove", json!({"node": "q", "name": "gone"}))?;
    work_of_all(&mut clients)?;
    run("disable", json!({"node": "r", "name": "still"}))?;
    run("add", json!({"node": "r", "name": "clean"}))?;
    run("add", json!({"node": "q", "name": "memory"}))?;
    // A monitor has one client at a time.
    drop(qmp);
    let takeover = [line.as_slice(), &["--takeover".to_owned()]].concat();
    let mut still = None;
    for _ in 0..2 {
        let before = bitmaps(&bench)?;
        server = replace(program, &takeover, server)?;
        let after = bitmaps(&bench)?;
        ensure!(before == after, "{before:?}\nafter: {after:?}\n{}", server.log());
        ensure!(!server.log().contains("can only be removed"), "{}", server.log());
        for name in ["clean", "memory"] {
            ensure!(count_of(&after, name) == 0 || still.is_some(), "{name}: {after:?}");
        }
        still.get_or_insert(count_of(&after, "still"));
        work_of_all(&mut clients)?;
        let later = bitmaps(&bench)?;
        for name in ["clean", "memory"] {
            ensure!(count_of(&later, name) > 0, "{name} records nothing: {later:?}");
        }
        ensure!(Some(count_of(&later, "still")) == still, "{later:?}");
    }
    let expected: Vec<Vec<u8>> = clients.iter().map(Survivor::expected).collect();
    drop(clients);
    stop(server, &[&sockets[0], &sockets[1]])?;
    ensure!(std::fs::read(bench.path("r.img"))? == expected[0], "the raw disk");
    let info = qemu_img(&bench, "info --output=json q.qcow2")?;
    let info: Value = serde_json::from_str(&info)?;
    let stored = &info["format-specific"]["data"]["bitmaps"];
    ensure!(stored[0]["name"] == "kept" && stored[0]["flags"] == json!(["auto"]), "{info}");
    qemu_img(&bench, "check -q -f qcow2 q.qcow2").map(drop)
}

#[test]
fn bitmaps_change_hands() {
    with(&ringloom(), changes_hands);
}
