//! What was written to a disk of a server is durable when the node is given back: nbdkit's log counts the flushes.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use testkit::client::{Client as BlkClient, Shape};
use testkit::deadline::poll_until;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;

use super::{line, nbdkit, node};
use crate::control::{monitor, monitor_socket};
use crate::nbd::client::{Client, Command};
use crate::nbd::{socket, start};
use crate::support::{qemu_img, ringloom, stop, with};

/// A server that notes what it is asked.
pub(super) fn noting(bench: &Bench, plugin: &[&str]) -> Result<Server> {
    let log = format!("logfile={}", bench.text("kit.log"));
    nbdkit(bench, &[&["--filter=log"], plugin, &[&log]].concat())
}

/// What the server was asked to change or to make durable, in order.
fn noted(bench: &Bench) -> Result<Vec<&'static str>> {
    let log = std::fs::read_to_string(bench.path("kit.log"))?;
    let words = [" Write id=", " Zero id=", " Trim id=", " Flush id="];
    let kinds = log.lines().filter_map(|line| words.into_iter().find(|it| line.contains(it)));
    Ok(kinds.map(|kind| kind[1..].split(' ').next().unwrap_or_default()).collect())
}

/// Writes through the export, as a client that never flushes.
fn write(bench: &Bench) -> Result<()> {
    let mut client = Client::connect(&socket(bench), "x")?;
    for cookie in 0..4 {
        client.send(Command::Write, cookie, (cookie * 4096, 4096), &[7; 4096])?;
    }
    (0..4).try_for_each(|_| client.reply().map(drop))
}

/// How many flushes there were, after all changes; none of them in vain.
fn flushes(bench: &Bench) -> Result<usize> {
    let noted = noted(bench)?;
    let last_change = noted.iter().rposition(|it| *it != "Flush");
    let after = noted.iter().skip(last_change.map_or(0, |place| place + 1)).count();
    ensure!(noted.iter().filter(|it| **it == "Flush").count() == after, "{noted:?}");
    Ok(after)
}

fn the_end_flushes(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let mut kit = noting(&bench, &["memory", "64M"])?;
    let line = line(&bench, &node(&bench, ""), "");
    // Nobody has changed anything: the server hears nothing.
    let ours = start(program, &bench, &line)?;
    stop(ours, &[&socket(&bench)])?;
    ensure!(noted(&bench)?.is_empty(), "{:?}", noted(&bench));
    let ours = start(program, &bench, &line)?;
    write(&bench)?;
    ensure!(flushes(&bench)? == 0, "{:?}", noted(&bench));
    stop(ours, &[&socket(&bench)])?;
    ensure!(flushes(&bench)? == 1, "{:?}", noted(&bench));
    kit.kill()
}

/// What an image writes when it is closed comes after the data, and is flushed, too.
fn an_image_is_closed_before(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    qemu_img(&bench, "create -q -f qcow2 a.qcow2 64M")?;
    std::fs::File::options().write(true).open(bench.path("a.qcow2"))?.set_len(80 << 20)?;
    let mut kit = noting(&bench, &["file", &bench.text("a.qcow2")])?;
    let below = format!(
        "file.driver=nbd,file.server.type=unix,file.server.path={}",
        bench.text("kit.sock")
    );
    let node = ["--blockdev".to_owned(), format!("qcow2,node-name=n,{below}")];
    let ours = start(program, &bench, &line(&bench, &node, ""))?;
    write(&bench)?;
    stop(ours, &[&socket(&bench)])?;
    ensure!(noted(&bench)?.last() == Some(&"Flush"), "{:?}", noted(&bench));
    kit.kill()?;
    let checked = qemu_img(&bench, "check -f qcow2 a.qcow2")?;
    ensure!(checked.contains("No errors"), "{checked}");
    Ok(())
}

fn commands_flush(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let mut kit = noting(&bench, &["memory", "64M"])?;
    let words = [line(&bench, &node(&bench, ""), ""), monitor(&bench)].concat();
    let ours = start(program, &bench, &words)?;
    let mut commands = QmpClient::connect(&monitor_socket(&bench))?;
    write(&bench)?;
    commands.execute("block-export-del", &json!({"id": "e", "mode": "hard"}))?;
    ensure!(flushes(&bench)? == 1, "{:?}", noted(&bench));
    commands.execute("blockdev-del", &json!({"node-name": "n"}))?;
    drop(commands);
    stop(ours, &[&socket(&bench)])?;
    ensure!(flushes(&bench)? == 1, "{:?}", noted(&bench));
    kit.kill()
}

/// A node that is held only while a guest uses it is flushed when the guest goes.
fn an_inactive_node_is_flushed(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let mut kit = noting(&bench, &["memory", "64M"])?;
    let blk = bench.path("e.sock");
    let export = format!(
        "vhost-user-blk,id=e,node-name=n,writable=on,addr.type=unix,addr.path={}",
        blk.display()
    );
    let words = [&node(&bench, ",active=off")[..], &["--export".to_owned(), export]].concat();
    let ours = program.start(&words, std::slice::from_ref(&blk))?;
    let mut client = BlkClient::connect(&blk, Shape::small())?;
    client.write(4096, &[9; 4096], 0)?;
    ensure!(flushes(&bench)? == 0, "{:?}", noted(&bench));
    drop(client);
    poll_until("the flush", Duration::from_secs(20), || Ok((flushes(&bench)? == 1).then_some(())))?;
    stop(ours, &[&blk])?;
    ensure!(flushes(&bench)? == 1, "{:?}", noted(&bench));
    kit.kill()
}

/// A flush that fails is said, once, and the daemon does not end as if all were well.
fn a_failed_flush_is_said(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let mut kit = nbdkit(
        &bench,
        &[
            "eval",
            "get_size=echo 67108864",
            "pread=dd if=/dev/zero bs=$3 count=1 2>/dev/null",
            "pwrite=cat >/dev/null",
            "can_write=exit 0",
            "can_flush=exit 0",
            "flush=echo EIO the disk is gone >&2; exit 1",
        ],
    )?;
    let mut ours = start(program, &bench, &line(&bench, &node(&bench, ""), ""))?;
    write(&bench)?;
    let status = ours.terminate()?;
    let said = ours.log();
    ensure!(!status.success(), "{status}: {said}");
    ensure!(said.matches("the last flush failed: Input/output error").count() == 1, "{said}");
    ensure!(said.contains(&format!("socket={}", bench.text("kit.sock"))), "{said}");
    kit.kill()
}

#[test]
fn the_end_of_the_daemon_flushes_what_was_written() {
    with(&ringloom(), the_end_flushes);
}

#[test]
fn what_an_image_writes_when_it_is_closed_is_flushed() {
    with(&ringloom(), an_image_is_closed_before);
}

#[test]
fn the_end_of_an_export_flushes_what_was_written() {
    with(&ringloom(), commands_flush);
}

#[test]
fn a_guest_that_goes_leaves_an_inactive_node_flushed() {
    with(&ringloom(), an_inactive_node_is_flushed);
}

#[test]
fn a_last_flush_that_fails_is_said() {
    with(&ringloom(), a_failed_flush_is_said);
}
