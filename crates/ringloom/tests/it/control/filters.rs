//! Filters come between disks and their guests, and leave again, while these write: `ringloom-insert-filter`,
//! `ringloom-remove-filter`. With `copy-before-write` among them, several disks are copied as they were at one instant.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;

use super::{export, monitor_socket, start, state};
use crate::support::{ringloom, stop, with};

pub(crate) const SECTOR: usize = 512;
const SECTORS: u64 = 8192;
pub(crate) const BYTES: u64 = SECTORS * SECTOR as u64;

/// How often filters come and go.
const ROUNDS: usize = 6;

/// A file of the bench as a node.
pub(super) fn file(bench: &Bench, name: &str) -> Value {
    let path = bench.text(&format!("{name}.img"));
    json!({"driver": "file", "node-name": name, "filename": path, "discard": "unmap"})
}

/// Disks `a` and `b`, each behind two exports, of which one is used.
pub(super) fn line(bench: &Bench) -> Vec<String> {
    let nbd = bench.text("nbd.sock");
    let server = format!("addr.type=unix,addr.path={nbd}");
    let mut line = [state(bench), vec!["--nbd-server".to_owned(), server]].concat();
    for name in ["a", "b"] {
        line.extend(["--blockdev".to_owned(), file(bench, name).to_string()]);
        for id in [name.to_owned(), format!("{name}2")] {
            line.extend(["--export".to_owned(), export(bench, &id, name).to_string()]);
        }
    }
    line
}

pub(crate) fn sockets(bench: &Bench) -> Vec<PathBuf> {
    ["a.sock", "a2.sock", "b.sock", "b2.sock"].map(|name| bench.path(name)).to_vec()
}

/// What the write of that number writes.
pub(crate) fn stamp(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(SECTOR / 8)
}

/// Writes to one disk and to the other, one sector after the other, until it is told to end.
pub(crate) fn write_in_order(sockets: &[PathBuf; 2], is_over: &AtomicBool) -> Result<u64> {
    let connect = |path: &PathBuf| Client::connect(path, Shape::small());
    let (mut a, mut b) = (connect(&sockets[0])?, connect(&sockets[1])?);
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) {
        number += 1;
        let at = number % SECTORS * SECTOR as u64;
        for disk in [&mut a, &mut b] {
            disk.write(at, &stamp(number), 0)?;
        }
    }
    Ok(number)
}

/// The number of the last write that is in a copy, which has all before it and none after it.
pub(crate) fn last_write(copy: &[u8]) -> Result<u64> {
    ensure!(copy.len() as u64 == BYTES, "{} bytes", copy.len());
    let number = |sector: &[u8]| u64::from_le_bytes(sector[..8].try_into().expect("8 bytes"));
    let last = copy.chunks_exact(SECTOR).map(number).max().unwrap_or(0);
    for (sector, found) in (0..).zip(copy.chunks_exact(SECTOR)) {
        let newest = (last.saturating_sub(SECTORS - 1)..=last).find(|it| it % SECTORS == sector);
        let expected = stamp(newest.unwrap_or(0));
        ensure!(
            found == expected,
            "sector {sector} has {} and not {newest:?} of {last}",
            number(found)
        );
    }
    Ok(last)
}

fn action(command: &str, data: &Value) -> Value {
    json!({"type": command, "data": data})
}

fn filter_of(disk: &str) -> Value {
    json!({"node": disk, "filter": format!("{disk}-kept")})
}

/// Nodes that keep a disk as it is, and are not above it yet.
fn prepare(qmp: &mut QmpClient, bench: &Bench, disk: &str) -> Result<()> {
    let target = format!("{disk}-target");
    let path = bench.path(&format!("{target}.img"));
    if path.exists() {
        std::fs::remove_file(&path)?;
    }
    image::create_sparse(&path, BYTES)?;
    qmp.execute("blockdev-add", &file(bench, &target))?;
    let kept = json!({
        "driver": "copy-before-write", "node-name": format!("{disk}-kept"), "file": disk, "target": target,
    });
    qmp.execute("blockdev-add", &kept).map(drop)
}

/// Copies what is kept of a disk over NBD; the number of the last write that it has.
fn copy(qmp: &mut QmpClient, bench: &Bench, disk: &str) -> Result<u64> {
    let (instant, kept) = (format!("{disk}-instant"), format!("{disk}-kept"));
    let shown = json!({"driver": "snapshot-access", "node-name": instant, "file": kept});
    qmp.execute("blockdev-add", &shown)?;
    let export = json!({"type": "nbd", "id": instant, "node-name": instant, "name": instant});
    qmp.execute("block-export-add", &export)?;
    let uri = format!("nbd+unix:///{instant}?socket={}", bench.text("nbd.sock"));
    let path = bench.text("copy");
    let copied = std::process::Command::new("timeout")
        .args(["60", "nbdcopy", "--connections=4", &uri, &path])
        .output()
        .context("nbdcopy")?;
    ensure!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
    last_write(&std::fs::read(path)?).with_context(|| format!("disk {disk}"))
}

/// Takes all of it away again but the filter's place.
fn hide(qmp: &mut QmpClient, disk: &str) -> Result<()> {
    let instant = format!("{disk}-instant");
    qmp.execute("block-export-del", &json!({"id": instant, "mode": "hard"}))?;
    qmp.event("BLOCK_EXPORT_DELETED")?;
    qmp.execute("blockdev-del", &json!({"node-name": instant})).map(drop)
}

fn forget(qmp: &mut QmpClient, disk: &str) -> Result<()> {
    for node in ["kept", "target"] {
        let name = format!("{disk}-{node}");
        qmp.execute("blockdev-del", &json!({"node-name": name}))?;
    }
    Ok(())
}

/// Both disks at one instant, again and again.
fn round(qmp: &mut QmpClient, bench: &Bench) -> Result<()> {
    for disk in ["a", "b"] {
        prepare(qmp, bench, disk)?;
    }
    let insert = |disk| action("ringloom-insert-filter", &filter_of(disk));
    qmp.execute("transaction", &json!({"actions": [insert("a"), insert("b")]}))?;
    let (a, b) = (copy(qmp, bench, "a")?, copy(qmp, bench, "b")?);
    // A write goes to the one disk first.
    ensure!(a == b || a == b + 1, "not of one instant: {a} and {b}");
    let (_, why) = qmp.refused("ringloom-remove-filter", &json!({"filter": "a-kept"}))?;
    ensure!(why.contains("'a-instant' shows what filter 'a-kept' keeps"), "{why}");
    for disk in ["a", "b"] {
        hide(qmp, disk)?;
    }
    let remove = |filter| action("ringloom-remove-filter", &json!({"filter": filter}));
    qmp.execute("transaction", &json!({"actions": [remove("a-kept"), remove("b-kept")]}))?;
    for disk in ["a", "b"] {
        forget(qmp, disk)?;
    }
    Ok(())
}

fn disks_of_one_instant(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    for name in ["a.img", "b.img"] {
        image::create_sparse(&bench.path(name), BYTES)?;
    }
    let (server, mut qmp) = start(program, &bench, &line(&bench), &sockets(&bench))?;
    let is_over = AtomicBool::new(false);
    let guests = [bench.path("a.sock"), bench.path("b.sock")];
    std::thread::scope(|scope| -> Result<()> {
        let guest = scope.spawn(|| write_in_order(&guests, &is_over));
        let rounds = (0..ROUNDS).try_for_each(|_| round(&mut qmp, &bench));
        is_over.store(true, Ordering::Relaxed);
        let writes = guest.join().expect("it does not panic")?;
        rounds.with_context(|| server.log())?;
        ensure!(writes > 100, "{writes} writes");
        for name in ["a.img", "b.img"] {
            ensure!(last_write(&std::fs::read(bench.path(name))?)? == writes, "{name}");
        }
        Ok(())
    })?;
    drop(qmp);
    stop(server, &[&bench.path("a.sock"), &monitor_socket(&bench)]).map(drop)
}

#[test]
fn disks_are_copied_as_they_were_at_one_instant() {
    with(&ringloom(), disks_of_one_instant);
}

/// The node below an export.
fn root(qmp: &mut QmpClient, id: &str) -> Result<String> {
    let exports = qmp.execute("query-block-exports", &json!({}))?;
    let mut all = exports.as_array().into_iter().flatten();
    let found = all.find(|export| export["id"] == id).context("the export is there")?;
    Ok(found["node-name"].as_str().unwrap_or_default().to_owned())
}

fn a_restart_knows(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    for name in ["a.img", "b.img"] {
        image::create_sparse(&bench.path(name), BYTES)?;
    }
    let (line, sockets) = (line(&bench), sockets(&bench));
    let (mut server, mut qmp) = start(program, &bench, &line, &sockets)?;
    prepare(&mut qmp, &bench, "a")?;
    for (command, arguments, expected) in [
        ("ringloom-insert-filter", json!({"node": "b", "filter": "a-kept"}), "no filter that has"),
        (
            "ringloom-insert-filter",
            json!({"node": "a", "filter": "b"}),
            "'b' is no filter that has",
        ),
        ("ringloom-insert-filter", json!({"node": "a", "filter": "none"}), "'none'"),
        ("ringloom-insert-filter", json!({"filter": "a-kept"}), "'node' is missing"),
        ("ringloom-remove-filter", json!({"filter": "a"}), "node 'a' is no filter"),
        ("ringloom-remove-filter", json!({"filter": "none"}), "'none'"),
    ] {
        let (_, why) = qmp.refused(command, &arguments)?;
        ensure!(why.contains(expected), "{command} {arguments}: {why}");
    }
    qmp.execute("ringloom-insert-filter", &filter_of("a"))?;
    // Nobody is left below it.
    qmp.execute("ringloom-insert-filter", &filter_of("a"))?;
    for id in ["a", "a2"] {
        ensure!(root(&mut qmp, id)? == "a-kept", "{id}");
    }
    let mut client = Client::connect(&bench.path("a.sock"), Shape::small())?;
    client.write(0, &stamp(7), 0)?;
    drop((client, qmp));
    server.kill()?;
    let (mut server, mut qmp) = start(program, &bench, &line, &sockets)?;
    ensure!(root(&mut qmp, "a")? == "a-kept", "it is forgotten");
    let mut client = Client::connect(&bench.path("a.sock"), Shape::small())?;
    ensure!(client.read(0, SECTOR, 0)? == stamp(7), "what was completed is lost");
    qmp.execute("ringloom-remove-filter", &json!({"filter": "a-kept"}))?;
    ensure!(root(&mut qmp, "a2")? == "a", "it is still there");
    drop((client, qmp));
    server.kill()?;
    let (server, mut qmp) = start(program, &bench, &line, &sockets)?;
    ensure!(root(&mut qmp, "a")? == "a", "it has come back");
    forget(&mut qmp, "a")?;
    drop(qmp);
    stop(server, &[&bench.path("a.sock"), &monitor_socket(&bench)]).map(drop)
}

#[test]
fn a_restart_knows_which_filters_are_there() {
    with(&ringloom(), a_restart_knows);
}
