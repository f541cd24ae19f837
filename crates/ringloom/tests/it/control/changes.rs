//! What commands change under a client that works, behind all fences.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;

use super::{export, monitor_socket, overlay, start};
use crate::support::{qemu_img, ringloom, stop, with};

const BYTES: usize = 4 << 20;

#[expect(clippy::needless_pass_by_value, reason = "the commands read better with json! in place")]
fn do_it(qmp: &mut QmpClient, command: &str, arguments: Value) -> Result<Value> {
    qmp.execute(command, &arguments)
}

fn everything_is_made_by_commands(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_filled(&bench.path("disk"), BYTES, 0x31)?;
    let (server, mut qmp) = start(program, &bench, &[], &[])?;
    do_it(&mut qmp, "object-add", json!({"qom-type": "iothread", "id": "t0"}))?;
    do_it(
        &mut qmp,
        "blockdev-add",
        json!({"driver": "file", "node-name": "disk", "filename": bench.text("disk"), "discard": "unmap"}),
    )?;
    let mut asked = export(&bench, "e", "disk");
    asked["iothread"] = json!(["t0"]);
    do_it(&mut qmp, "block-export-add", asked)?;
    let socket = bench.path("e.sock");
    let mut client = Client::connect(&socket, Shape::small())?;
    client.write(0, &[0x51; 4096], 0)?;

    // Names that are there, things in use, and what would be lost after a restart.
    let (class, desc) = qmp.refused("blockdev-del", &json!({"node-name": "disk"}))?;
    ensure!(class == "GenericError" && desc.contains("disk") && desc.contains("in use"), "{desc}");
    let (_, desc) = qmp.refused("object-del", &json!({"id": "t0"}))?;
    ensure!(desc.contains("'t0' is in use"), "{desc}");
    let (_, desc) = qmp.refused("block-export-del", &json!({"id": "e"}))?;
    ensure!(desc.contains("still in use"), "{desc}");
    let new = bench.text("snap");
    let sync = json!({"node-name": "disk", "snapshot-file": new, "snapshot-node-name": "snap"});
    let (_, desc) = qmp.refused("blockdev-snapshot-sync", &sync)?;
    ensure!(desc.contains("--state FILE, or say ringloom-volatile=true"), "{desc}");
    ensure!(!bench.path("snap").exists(), "what was refused is left behind");
    let (_, desc) = qmp.refused(
        "blockdev-add",
        &json!({"driver": "file", "node-name": "x", "filename": "/etc/passwd"}),
    )?;
    ensure!(desc.contains("/etc/passwd") && desc.contains("below --allow-below"), "{desc}");

    put_overlays_on(&bench, &mut qmp, &mut client, sync)?;
    let expected = client.read(0, 16384, 0)?;
    drop(client);
    do_it(&mut qmp, "block-export-del", json!({"id": "e", "mode": "hard"}))?;
    qmp.event("BLOCK_EXPORT_DELETED")?;
    for node in ["top", "top-file", "snap", "disk"] {
        do_it(&mut qmp, "blockdev-del", json!({"node-name": node}))?;
    }
    do_it(&mut qmp, "object-del", json!({"id": "t0"}))?;
    do_it(&mut qmp, "quit", json!({}))?;
    let grown = 2 * BYTES as u64;
    stop(server, &[&socket, &monitor_socket(&bench)])?;
    for name in ["top", "snap"] {
        qemu_img(&bench, &format!("check -q -f qcow2 {name}"))?;
    }
    qemu_img(&bench, "convert -f qcow2 -O raw top flat")?;
    let flat = std::fs::read(bench.path("flat"))?;
    ensure!(flat.len() as u64 == grown && flat[..16384] == expected[..], "the chain differs");
    ensure!(flat[flat.len() - 4096..] == [0x53; 4096], "the end differs");
    Ok(())
}

/// An overlay, another size, and a second overlay on top, all under the client.
fn put_overlays_on(
    bench: &Bench,
    qmp: &mut QmpClient,
    client: &mut Client,
    mut sync: Value,
) -> Result<()> {
    let (new, grown) = (bench.text("snap"), 2 * BYTES as u64);
    sync["ringloom-volatile"] = true.into();
    do_it(qmp, "blockdev-snapshot-sync", sync)?;
    client.write(4096, &[0x52; 4096], 0)?;
    do_it(qmp, "block_resize", json!({"node-name": "snap", "size": grown}))?;
    ensure!(client.configuration()?.capacity_bytes == grown, "the guest is not told");
    client.write(grown - 4096, &[0x53; 4096], 0)?;
    let (_, desc) = qmp.refused("block_resize", &json!({"node-name": "snap", "size": 4096}))?;
    ensure!(desc.contains("can only grow"), "{desc}");
    let (_, desc) = qmp.refused("block_resize", &json!({"node-name": "disk", "size": grown}))?;
    ensure!(desc.contains("does not allow another size"), "{desc}");
    do_it(
        qmp,
        "blockdev-create",
        json!({"job-id": "j0", "options": {"driver": "file", "filename": bench.text("top"), "size": 0}}),
    )?;
    concluded(qmp, "j0")?;
    do_it(
        qmp,
        "blockdev-add",
        json!({"driver": "file", "node-name": "top-file", "filename": bench.text("top")}),
    )?;
    do_it(
        qmp,
        "blockdev-create",
        json!({"job-id": "j1", "options": {
            "driver": "qcow2", "file": "top-file", "size": grown,
            "backing-file": new, "backing-fmt": "qcow2",
        }}),
    )?;
    concluded(qmp, "j1")?;
    do_it(
        qmp,
        "blockdev-add",
        json!({"driver": "qcow2", "node-name": "top", "file": "top-file", "backing": null}),
    )?;
    let actions = json!([
        {"type": "blockdev-snapshot",
         "data": {"node": "snap", "overlay": "top", "ringloom-volatile": true}},
        {"type": "abort", "data": {}},
    ]);
    let (_, desc) = qmp.refused("transaction", &json!({"actions": actions}))?;
    ensure!(desc.contains("Abort"), "{desc}");
    // The same twice, and an image over what a guest uses.
    let (_, desc) = qmp.refused("transaction", &json!({"actions": [actions[0], actions[0]]}))?;
    ensure!(desc.contains("twice"), "{desc}");
    let over = json!({"driver": "qcow2", "file": "snap/file", "size": grown});
    do_it(qmp, "blockdev-create", json!({"job-id": "j2", "options": over}))?;
    let jobs = jobs_after(qmp, "j2")?;
    let error = jobs[0]["error"].as_str().unwrap_or_default();
    ensure!(error.contains("'snap/file' is used by node 'snap'"), "{jobs}");
    do_it(qmp, "transaction", json!({"actions": [actions[0]]}))?;
    client.write(8192, &[0x54; 4096], 0)?;
    ensure!(client.read(4096, 4096, 0)? == [0x52; 4096], "the middle image is lost");
    let shown = do_it(qmp, "query-block-exports", json!({}))?;
    ensure!(shown[0]["node-name"] == "top", "{shown}");
    let nodes = do_it(qmp, "query-named-block-nodes", json!({}))?;
    let top = nodes.as_array().and_then(|all| all.iter().find(|it| it["node-name"] == "top"));
    ensure!(top.is_some_and(|it| it["backing_file_depth"] == 2), "{nodes}");
    Ok(())
}

/// Waits until a job is over, without an error, and dismisses it.
fn concluded(qmp: &mut QmpClient, id: &str) -> Result<()> {
    let jobs = jobs_after(qmp, id)?;
    ensure!(jobs[0]["error"].is_null() && jobs[0]["id"] == id, "{jobs}");
    qmp.execute("job-dismiss", &json!({"id": id})).map(drop)
}

/// All jobs, when that one has concluded.
fn jobs_after(qmp: &mut QmpClient, id: &str) -> Result<Value> {
    loop {
        let event = qmp.event("JOB_STATUS_CHANGE")?;
        if event["data"]["id"] == id && event["data"]["status"] == "concluded" {
            return qmp.execute("query-jobs", &json!({}));
        }
    }
}

#[test]
fn all_that_is_served_is_made_and_taken_away_by_commands() {
    with(&ringloom(), everything_is_made_by_commands);
}

/// Whoever gives a thin volume more space hears once that a guest has gone beyond a place, in a file and below an image,
/// which takes its clusters ahead.
fn a_threshold_is_told_once(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("disk"), 4 << 20)?;
    qemu_img(&bench, "create -q -f qcow2 over 4M")?;
    let (server, mut qmp) = start(program, &bench, &[], &[])?;
    let node = json!({"driver": "file", "node-name": "disk", "filename": bench.text("disk")});
    qmp.execute("blockdev-add", &node)?;
    let mut image = overlay(&bench, "over");
    image["file"]["node-name"] = "below".into();
    qmp.execute("blockdev-add", &image)?;
    let (_, desc) = qmp.refused(
        "block-set-write-threshold",
        &json!({"node-name": "over", "write-threshold": 1}),
    )?;
    ensure!(desc.contains("'over' is no file"), "{desc}");
    for (id, root, file, offset) in
        [("e", "disk", "disk", 8192), ("g", "over", "below", 1400 << 10)]
    {
        qmp.execute("block-export-add", &export(&bench, id, root))?;
        let set = json!({"node-name": file, "write-threshold": offset});
        qmp.execute("block-set-write-threshold", &set)?;
        let mut client = Client::connect(&bench.path(&format!("{id}.sock")), Shape::small())?;
        client.write(4096, &[1; 4096], 0)?;
        let all = qmp.execute("query-named-block-nodes", &json!({}))?;
        let shown = all.as_array().and_then(|all| all.iter().find(|it| it["node-name"] == file));
        ensure!(shown.is_some_and(|it| it["write_threshold"] == offset), "{all}");
        for place in (0..16).map(|block| block * (256 << 10)) {
            client.write(place, &[2; 8192], 0)?;
        }
        let event = qmp.event("BLOCK_WRITE_THRESHOLD")?;
        let data = &event["data"];
        ensure!(data["node-name"] == file && data["write-threshold"] == offset, "{event}");
        ensure!(data["amount-exceeded"].as_u64().is_some_and(|it| it > 0), "{event}");
        qmp.execute("query-jobs", &json!({}))?;
        ensure!(qmp.events.is_empty(), "told twice: {:?}", qmp.events);
    }
    stop(server, &[&bench.path("e.sock"), &bench.path("g.sock")]).map(drop)
}

#[test]
fn a_write_beyond_a_threshold_is_told_once() {
    with(&ringloom(), a_threshold_is_told_once);
}
