//! Nodes become inactive and active while exports stand on them, and other programs get the image or do not.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program, STOP_LIMIT};
use testkit::qmp::QmpClient;

use super::{monitor_socket, start, state};
use crate::support::{qemu_img, qemu_io, ringloom, stop, with};

fn line(bench: &Bench) -> Vec<String> {
    let words = [
        "--blockdev",
        &format!("raw,node-name=disk,file.driver=file,file.filename={}", bench.text("disk")),
        "--export",
        &format!(
            "vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path={}",
            bench.text("e.sock")
        ),
    ];
    [state(bench), words.map(str::to_owned).to_vec()].concat()
}

/// Whether another program can write to the image: it writes the byte to the first sector.
fn others_write(bench: &Bench, byte: u8) -> bool {
    let write = format!("write -P {byte} 0 512");
    qemu_io(bench, &["-f", "raw", "-c", &write, "disk"]).is_ok()
}

fn set(node: &str, is_active: bool) -> Value {
    json!({"node-name": node, "active": is_active})
}

/// The names of the nodes that are active.
fn active(qmp: &mut QmpClient) -> Result<Vec<String>> {
    let nodes = qmp.execute("query-named-block-nodes", &json!({"flat": true}))?;
    let active = nodes.as_array().into_iter().flatten().filter(|node| node["active"] == true);
    Ok(active.map(|node| node["node-name"].as_str().unwrap_or_default().to_owned()).collect())
}

fn locks_follow_the_node(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    let sockets = std::slice::from_ref(&socket);
    image::create_filled(&bench.path("disk"), 1 << 20, 0x11)?;
    let (server, mut qmp) = start(program, &bench, &line(&bench), sockets)?;
    ensure!(!others_write(&bench, 1), "the image is not locked");
    let (_, desc) = qmp.refused("blockdev-set-active", &set("disk/file", false))?;
    ensure!(desc.contains("Node has active parent node"), "{desc}");

    // A guest that may write keeps its disk.
    let mut client = Client::connect(&socket, Shape::small())?;
    client.write(4096, &[0x22; 4096], 0)?;
    for all in [set("disk", false), json!({"active": false})] {
        let (class, desc) = qmp.refused("blockdev-set-active", &all)?;
        ensure!(class == "GenericError" && desc.contains("export 'e' is writable"), "{desc}");
    }
    client.write(8192, &[0x23; 4096], 0)?;
    drop(client);
    poll_until("the end of the client", STOP_LIMIT, || {
        let answer = qmp.ask("blockdev-set-active", &set("disk", false))?;
        Ok(answer.get("return").map(drop))
    })?;
    ensure!(active(&mut qmp)?.is_empty(), "{:?}", active(&mut qmp)?);
    ensure!(others_write(&bench, 0x31), "the image is still locked");

    // The next client has it, with what others wrote.
    let mut client = Client::connect(&socket, Shape::small())?;
    ensure!(client.read(0, 512, 0)? == [0x31; 512], "other bytes");
    ensure!(!others_write(&bench, 1), "the image of a guest is not locked");
    drop(client);
    poll_until("the lock of the client", STOP_LIMIT, || {
        Ok(others_write(&bench, 0x32).then_some(()))
    })?;
    drop(qmp);
    stop(server, &[&socket, &monitor_socket(&bench)])?;

    // It is so after a restart, and can be taken back.
    let (server, mut qmp) = start(program, &bench, &line(&bench), sockets)?;
    ensure!(active(&mut qmp)?.is_empty(), "{:?}", active(&mut qmp)?);
    ensure!(others_write(&bench, 0x33), "the image is locked");
    qmp.execute("blockdev-set-active", &json!({"active": true}))?;
    ensure!(active(&mut qmp)? == ["disk", "disk/file"], "{:?}", active(&mut qmp)?);
    ensure!(!others_write(&bench, 1), "the image is not locked");
    let mut client = Client::connect(&socket, Shape::small())?;
    ensure!(client.read(0, 512, 0)? == [0x33; 512], "other bytes");
    drop(client);
    stop(server, &[&socket, &monitor_socket(&bench)]).map(drop)
}

#[test]
fn a_node_that_is_made_inactive_is_everybodys_until_a_guest_or_a_command_takes_it() {
    with(&ringloom(), locks_follow_the_node);
}

/// An image that another daemon has cannot be activated; nothing has changed then.
fn what_is_taken_stays_inactive(program: &Program) -> Result<()> {
    let (bench, other) = (Bench::new()?, Bench::new()?);
    image::create_filled(&bench.path("disk"), 1 << 20, 0x11)?;
    qemu_img(&bench, "create -q -f qcow2 image 1M")?;
    let (server, mut qmp) = start(program, &bench, &line(&bench), &[bench.path("e.sock")])?;
    qmp.execute("blockdev-set-active", &json!({"active": false}))?;
    let image = json!({
        "driver": "qcow2", "node-name": "image", "active": false,
        "file": {"driver": "file", "filename": bench.text("image"), "active": false},
    });
    qmp.execute("blockdev-add", &image)?;
    let export = |id: &str, node: &str| {
        json!({
            "type": "vhost-user-blk", "id": id, "node-name": node, "writable": true,
            "addr": {"type": "unix", "path": bench.text(&format!("{id}.sock"))},
        })
    };
    qmp.execute("block-export-add", &export("i", "image"))?;
    let more = [
        "--blockdev".to_owned(),
        format!("file,node-name=disk,filename={}", bench.text("disk")),
        "--export".to_owned(),
        format!(
            "vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path={}",
            other.text("e.sock")
        ),
    ];
    let (second, theirs) = start(program, &other, &more, &[other.path("e.sock")])?;
    for all in [set("disk", true), json!({"active": true})] {
        let (_, desc) = qmp.refused("blockdev-set-active", &all)?;
        ensure!(desc.contains("Failed to get"), "{desc}");
        ensure!(active(&mut qmp)?.is_empty(), "{:?}", active(&mut qmp)?);
        // What was had before the one that could not be had is given back.
        qemu_io(&bench, &["-f", "qcow2", "-c", "write 0 64k", "image"])?;
    }
    drop(theirs);
    stop(second, &[&other.path("e.sock")])?;
    qmp.execute("blockdev-set-active", &json!({"active": true}))?;
    let all = active(&mut qmp)?;
    ensure!(all == ["disk", "disk/file", "image", "image/file"], "{all:?}");
    ensure!(
        qemu_io(&bench, &["-f", "qcow2", "-c", "write 0 64k", "image"]).is_err(),
        "the image is not locked"
    );
    stop(server, &[&bench.path("e.sock"), &bench.path("i.sock")]).map(drop)
}

#[test]
fn a_node_whose_image_somebody_has_stays_inactive() {
    with(&ringloom(), what_is_taken_stays_inactive);
}
