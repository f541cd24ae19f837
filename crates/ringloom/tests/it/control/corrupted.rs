//! Errors of disks as events: of damaged images there is one, of requests that fail there is none, as with the peer.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::client::{Client, Request, Segment, Shape};
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;

use super::{monitor, monitor_socket};
use crate::support::{qemu_img, qemu_io, ringloom, stop, with};

/// In the header of an image, where its L1 table and its refcount table are; in an entry, the place of a cluster, and that
/// nothing else uses it.
const L1_OFFSET_AT: u64 = 40;
const REFCOUNT_TABLE_AT: u64 = 48;
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COPIED: u64 = 1 << 63;

fn number(bytes: &[u8], at: u64) -> Result<u64> {
    let at = usize::try_from(at)?;
    let eight = bytes.get(at..at + 8).context("the file is short")?;
    Ok(u64::from_be_bytes(eight.try_into()?))
}

/// Has the first cluster of the disk be where the refcount table is.
fn damage(bench: &Bench) -> Result<()> {
    qemu_img(bench, "create -q -f qcow2 image 1M")?;
    qemu_io(bench, &["-f", "qcow2", "-c", "write 0 64k", "image"])?;
    let mut bytes = std::fs::read(bench.path("image"))?;
    let l1 = number(&bytes, L1_OFFSET_AT)?;
    let table = usize::try_from(number(&bytes, l1)? & OFFSET)?;
    let entry = number(&bytes, REFCOUNT_TABLE_AT)? | COPIED;
    bytes[table..table + 8].copy_from_slice(&entry.to_be_bytes());
    std::fs::write(bench.path("image"), bytes).context("write the image")
}

fn write(client: &mut Client) -> Result<testkit::client::Status> {
    let segments = vec![Segment { offset: 0, length: 4096 }];
    client.execute(0, &Request::Write { offset: 0, segments })
}

fn damage_is_told_once(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    damage(&bench)?;
    let mut line = monitor(&bench);
    line.truncate(4);
    let socket = bench.path("e.sock");
    let words = [
        "--blockdev",
        &format!("qcow2,node-name=q,file.driver=file,file.filename={}", bench.text("image")),
        "--export",
        &format!(
            "vhost-user-blk,id=e,node-name=q,writable=on,addr.type=unix,addr.path={}",
            socket.display()
        ),
    ];
    line.extend(words.map(str::to_owned));
    let server = program.start(&line, &[socket.clone(), monitor_socket(&bench)])?;
    let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    for _ in 0..3 {
        ensure!(write(&mut client)? != testkit::client::Status::Ok, "metadata were overwritten");
    }
    let event = qmp.event("BLOCK_IMAGE_CORRUPTED")?;
    let data = &event["data"];
    let is_it = data["node-name"] == "q" && data["device"] == "" && data["fatal"] == true;
    ensure!(is_it && data["msg"].is_string() && data["offset"].is_u64(), "{event}");
    // Not of each request, and no BLOCK_IO_ERROR of any.
    qmp.execute("query-jobs", &json!({}))?;
    ensure!(qmp.events.is_empty(), "{:?}", qmp.events);
    drop((client, qmp));
    stop(server, &[])?;
    let info = qemu_img(&bench, "info -f qcow2 image")?;
    ensure!(info.contains("corrupt: true"), "it is not marked: {info}");
    Ok(())
}

#[test]
fn damage_of_an_image_is_told_once() {
    with(&ringloom(), damage_is_told_once);
}

#[test]
fn the_peer_tells_it_so_too() {
    with(&Program::qemu_storage_daemon(), damage_is_told_once);
}
