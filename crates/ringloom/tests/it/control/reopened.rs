//! Nodes get other options while guests work on them: `blockdev-reopen`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, RingLayout, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;
use testkit::rawring::{Collected, Survivor};
use testkit::rng::Rng;

use super::{export, monitor_socket, start, state};
use crate::support::{qemu_img, ringloom, stop, with};

/// How often a node is reopened under load.
const ROUNDS: u64 = 40;

/// O_DIRECT, in octal.
const DIRECT: i32 = 0o40_000;

fn reopen(options: &Value) -> Value {
    json!({"options": [options]})
}

/// What the daemon has opened of a file: the flags of each descriptor.
fn flags(server: &Server, path: &Path) -> Result<Vec<i32>> {
    let process = format!("/proc/{}", server.pid());
    let mut all = Vec::new();
    for entry in std::fs::read_dir(format!("{process}/fd"))? {
        let entry = entry?;
        if std::fs::read_link(entry.path()).is_ok_and(|link| link == path) {
            let number = entry.file_name().to_string_lossy().into_owned();
            let info = std::fs::read_to_string(format!("{process}/fdinfo/{number}"))?;
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
            all.push(i32::from_str_radix(flags.context("no flags")?.trim(), 8)?);
        }
    }
    Ok(all)
}

fn info(qmp: &mut QmpClient, node: &str) -> Result<Value> {
    let all = qmp.execute("query-named-block-nodes", &json!({"flat": true}))?;
    let found = all.as_array().into_iter().flatten().find(|it| it["node-name"] == node);
    found.cloned().with_context(|| format!("no node {node}"))
}

/// A file below a throttle: its cache, discards and group change under a verifying load.
fn options_change_under_load(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let (socket, disk) = (bench.path("e.sock"), bench.path("disk"));
    image::create_sparse(&disk, Survivor::disk_bytes(2))?;
    let file = |more: Value| {
        let mut all = json!({"driver": "file", "node-name": "f", "filename": bench.text("disk")});
        let more = more.as_object().cloned().unwrap_or_default();
        all.as_object_mut().expect("an object").extend(more);
        all
    };
    let limited = |group: &str| json!({"driver": "throttle", "node-name": "t", "file": "f", "throttle-group": group});
    let (server, mut qmp) = start(program, &bench, &state(&bench), &[])?;
    for group in ["one", "two"] {
        qmp.execute("object-add", &json!({"qom-type": "throttle-group", "id": group}))?;
    }
    qmp.execute("blockdev-add", &file(json!({})))?;
    qmp.execute("blockdev-add", &limited("one"))?;
    qmp.execute("block-export-add", &export(&bench, "e", "t"))?;
    let threshold = json!({"node-name": "f", "write-threshold": 1_u64 << 40});
    qmp.execute("block-set-write-threshold", &threshold)?;
    let (mut client, mut rng) = (Survivor::connect(&socket, RingLayout::Packed, 2)?, Rng::new(9));
    for round in 0..ROUNDS {
        client.submit(&mut rng)?;
        let options = match round % 4 {
            0 => file(json!({"cache": {"direct": true}})),
            1 => limited("two"),
            2 => file(json!({"discard": "unmap", "cache": {"no-flush": true}})),
            _ => limited("one"),
        };
        qmp.execute("blockdev-reopen", &reopen(&options))?;
        ensure!(client.collect()? != Collected::Gone, "the server is gone: {}", server.log());
    }
    let both = json!({"options": [file(json!({"cache": {"direct": true}})), limited("two")]});
    qmp.execute("blockdev-reopen", &both)?;
    // The old files are closed once their last requests are over, and what is no option has stayed.
    client.drain()?;
    let mut open = Vec::new();
    poll_until("the old files to be closed", Duration::from_secs(10), || {
        open = flags(&server, &disk)?;
        Ok((open.len() == 1).then_some(()))
    })
    .with_context(|| server.log())?;
    ensure!(open[0] & DIRECT != 0, "{open:?}: {}", server.log());
    let found = info(&mut qmp, "f")?;
    ensure!(found["cache"]["direct"] == true && found["write_threshold"] == 1_u64 << 40, "{found}");
    qmp.execute("object-del", &json!({"id": "one"}))?;
    let (_, desc) = qmp.refused("object-del", &json!({"id": "two"}))?;
    ensure!(desc.contains("in use"), "{desc}");
    let expected = client.expected();
    drop((client, qmp));
    stop(server, &[&socket, &monitor_socket(&bench)])?;
    ensure!(std::fs::read(&disk)? == expected, "other bytes");

    // It is so after a restart.
    let (server, mut qmp) = start(program, &bench, &state(&bench), std::slice::from_ref(&socket))?;
    let open = flags(&server, &disk)?;
    ensure!(open.len() == 1 && open[0] & DIRECT != 0, "{open:?}");
    let (_, desc) = qmp.refused("object-del", &json!({"id": "two"}))?;
    ensure!(desc.contains("in use"), "{desc}");
    stop(server, &[&socket]).map(drop)
}

#[test]
fn a_file_and_its_limits_get_other_options_under_a_client() {
    with(&ringloom(), options_change_under_load);
}

/// What is read-only and what is not; a guest's disk is not taken away.
fn disks_become_read_only(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    let disk = image::create_filled(&bench.path("disk"), 1 << 20, 0x31)?;
    // Without a state file: with other options a node has the same bytes.
    let (server, mut qmp) = start(program, &bench, &[], &[])?;
    let file = |is_read_only: bool| json!({"driver": "file", "node-name": "f", "filename": bench.text("disk"), "read-only": is_read_only});
    let raw = |is_read_only: bool| json!({"driver": "raw", "node-name": "r", "file": "f", "read-only": is_read_only});
    qmp.execute("blockdev-add", &file(false))?;
    qmp.execute("blockdev-add", &raw(false))?;
    qmp.execute("block-export-add", &export(&bench, "e", "r"))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    for options in [file(true), raw(true)] {
        let (class, desc) = qmp.refused("blockdev-reopen", &reopen(&options))?;
        let is_told = desc.contains("cannot support read-write users");
        ensure!(class == "GenericError" && is_told, "{desc}");
    }
    client.write(4096, &[0x44; 4096], 0)?;
    drop(client);
    qmp.execute("block-export-del", &json!({"id": "e", "mode": "hard"}))?;
    let (_, desc) = qmp.refused("blockdev-reopen", &reopen(&file(true)))?;
    ensure!(desc.contains("node f is read-only, and node 'r' is not"), "{desc}");
    qmp.execute("blockdev-reopen", &json!({"options": [file(true), raw(true)]}))?;
    ensure!(info(&mut qmp, "f")?["ro"] == true && info(&mut qmp, "r")?["ro"] == true, "not ro");
    let open = flags(&server, &bench.path("disk"))?;
    ensure!(open.len() == 1 && open[0] & 3 == 0, "{open:?}");
    let (_, desc) = qmp.refused("block-export-add", &export(&bench, "e", "r"))?;
    ensure!(desc.contains("cannot export read-only node"), "{desc}");
    let mut reader = export(&bench, "e", "r");
    reader["writable"] = false.into();
    qmp.execute("block-export-add", &reader)?;
    let mut client = Client::connect(&socket, Shape::small())?;
    ensure!(client.read(0, 4096, 0)? == disk[..4096], "other bytes");
    let (_, desc) = qmp.refused("blockdev-reopen", &reopen(&raw(false)))?;
    ensure!(desc.contains("node f is read-only, and node 'r' is not"), "{desc}");
    qmp.execute("blockdev-reopen", &json!({"options": [raw(false), file(false)]}))?;
    ensure!(client.read(4096, 4096, 0)? == [0x44; 4096], "other bytes");
    for (options, expected) in [
        (json!([file(true), file(true)]), "'f' is reopened twice"),
        (
            json!([file(false), raw(false), {"driver": "raw", "node-name": "r", "file": "f", "size": 512}]),
            "Cannot change the option 'size'",
        ),
        (
            json!([{"driver": "file", "node-name": "f", "filename": bench.text("none")}]),
            "Cannot change the option 'filename'",
        ),
        (
            json!([{"driver": "file", "node-name": "f", "filename": bench.text("disk"), "aio": "threads"}]),
            "Cannot change the option 'aio'",
        ),
        (
            json!([{"driver": "file", "node-name": "f", "filename": bench.text("disk"), "locking": "off"}]),
            "Cannot change the option 'locking'",
        ),
        (
            json!([{"driver": "file", "node-name": "f", "filename": bench.text("disk"), "read-only": true,
                 "force-share": true}]),
            "Cannot change the option 'force-share'",
        ),
    ] {
        if expected.contains("'filename'") {
            image::create_sparse(&bench.path("none"), 1 << 20)?;
        }
        let (class, desc) = qmp.refused("blockdev-reopen", &json!({"options": options}))?;
        ensure!(class == "GenericError" && desc.contains(expected), "{desc}");
    }
    ensure!(client.read(0, 4096, 0)? == disk[..4096], "other bytes");
    drop(client);
    stop(server, &[&socket]).map(drop)
}

#[test]
fn nodes_become_read_only_if_nobody_writes() {
    with(&ringloom(), disks_become_read_only);
}

/// A file below an image that is used stays as it is; below one that nobody uses it changes.
fn files_of_images_wait_for_their_users(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    qemu_img(&bench, "create -q -f qcow2 image 1M")?;
    let (server, mut qmp) = start(program, &bench, &[], &[])?;
    let file = |is_direct: bool| json!({"driver": "file", "node-name": "f", "filename": bench.text("image"), "cache": {"direct": is_direct}});
    let image = json!({"driver": "qcow2", "node-name": "q", "file": "f"});
    qmp.execute("blockdev-add", &file(false))?;
    qmp.execute("blockdev-add", &image)?;
    qmp.execute("blockdev-reopen", &reopen(&file(true)))?;
    qmp.execute("block-export-add", &export(&bench, "e", "q"))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    client.write(0, &[0x51; 4096], 0)?;
    let (_, desc) = qmp.refused("blockdev-reopen", &reopen(&file(false)))?;
    ensure!(desc.contains("node 'f' is below image 'q', which an export uses"), "{desc}");
    let mut fixed = image.clone();
    fixed["read-only"] = true.into();
    let (_, desc) = qmp.refused("blockdev-reopen", &reopen(&fixed))?;
    ensure!(desc.contains("Cannot change the option 'read-only'"), "{desc}");
    client.write(65536, &[0x52; 4096], 0)?;
    ensure!(client.read(0, 4096, 0)? == [0x51; 4096], "other bytes");
    drop(client);
    stop(server, &[&socket])?;
    qemu_img(&bench, "check -q -f qcow2 image").map(drop)
}

#[test]
fn a_file_below_an_image_in_use_stays_as_it_is_opened() {
    with(&ringloom(), files_of_images_wait_for_their_users);
}
