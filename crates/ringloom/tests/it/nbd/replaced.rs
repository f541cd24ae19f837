//! A server whose process is taken over: clients of NBD cannot be handed over, so its exports are ended before and made
//! again after that. QEMU's client waits meanwhile (`reconnect-delay`), and what is above it sees no error.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;

use super::{socket, tool, uri};
use crate::control::{monitor, monitor_socket};
use crate::support::{ringloom, stop, with};

const LIMIT: Duration = Duration::from_secs(30);

/// What is served: a disk by vhost-user-blk, another one over NBD.
fn line(bench: &Bench) -> Vec<String> {
    let (a, b) = (bench.text("a.img"), bench.text("b.img"));
    let line = [
        format!("--nbd-server=addr.type=unix,addr.path={}", bench.text("ours.sock")),
        format!("--blockdev=file,node-name=a,filename={a}"),
        format!(
            "--export=vhost-user-blk,id=a,node-name=a,writable=on,addr.type=unix,addr.path={}",
            bench.text("a.sock")
        ),
        format!("--blockdev=file,node-name=b,filename={b}"),
        "--export=nbd,id=b,node-name=b,name=b,writable=on".to_owned(),
    ];
    [monitor(bench).as_slice(), &line].concat()
}

/// QEMU, whose disk is the export, and which offers it as `x` to fio.
fn qemu(bench: &Bench) -> Result<Server> {
    let line = [
        format!(
            "--blockdev=nbd,node-name=r,server.type=unix,server.path={},export=b,reconnect-delay=60",
            bench.text("ours.sock")
        ),
        format!("--nbd-server=addr.type=unix,addr.path={}", socket(bench).display()),
        "--export=nbd,id=x,node-name=r,name=x,writable=on".to_owned(),
    ];
    Program::qemu_storage_daemon().start(&line, &[socket(bench)])
}

/// Some twelve seconds of writes that are read again.
fn load(bench: &Bench) -> Result<()> {
    let words = "--name=v --ioengine=nbd --rw=randwrite --bs=4k --size=8M --iodepth=8 --rate_iops=1000,1000 --loops=3 \
                 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --randrepeat=0";
    let uri = format!("--uri={}", uri(bench, "x"));
    let words: Vec<&str> = words.split_whitespace().chain([uri.as_str()]).collect();
    let said = tool("fio", &words)?;
    ensure!(!said.contains("verify:") && said.contains("err= 0"), "{said}");
    Ok(())
}

/// Replaces a process with an NBD server, step by step.
fn replace(program: &Program, bench: &Bench, mut old: Server) -> Result<Server> {
    let takes_over = [line(bench).as_slice(), &["--takeover".to_owned()]].concat();
    let exit = program.refusal(&takes_over, LIMIT)?;
    ensure!(exit.stderr.contains("export b is served over NBD"), "{}", exit.stderr);
    QmpClient::connect(&monitor_socket(bench))?.execute("nbd-server-stop", &json!({}))?;
    let new = program.spawn(&takes_over)?;
    new.wait_for_log("has handed over", LIMIT).with_context(|| new.log())?;
    let status = old.wait(LIMIT)?;
    ensure!(status.success(), "{status}: {}", old.log());
    let mut commands = QmpClient::connect(&monitor_socket(bench))?;
    let address = json!({"addr": {"type": "unix", "data": {"path": bench.text("ours.sock")}}});
    commands.execute("nbd-server-start", &address)?;
    let export = json!({"type": "nbd", "id": "b", "node-name": "b", "name": "b", "writable": true});
    commands.execute("block-export-add", &export)?;
    Ok(new)
}

fn clients_wait(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), 1 << 20)?;
    image::create_sparse(&bench.path("b.img"), 64 << 20)?;
    let blk = bench.path("a.sock");
    let sockets = [blk.clone(), bench.path("ours.sock"), monitor_socket(&bench)];
    let old = program.start(&line(&bench), &sockets)?;
    let mut guest = Client::connect(&blk, Shape::small())?;
    guest.write(4096, &[5; 4096], 0)?;
    let mut qemu = qemu(&bench)?;
    let new = std::thread::scope(|scope| -> Result<Server> {
        let load = scope.spawn(|| load(&bench));
        let new = replace(program, &bench, old)?;
        ensure!(!load.is_finished(), "the load has ended before: {:?}", load.join());
        load.join().expect("it does not panic").with_context(|| new.log())?;
        Ok(new)
    })?;
    ensure!(guest.read(4096, 4096, 0)? == [5; 4096], "other bytes");
    drop(guest);
    qemu.stop()?;
    stop(new, &[&sockets[0], &sockets[1]]).map(drop)
}

#[test]
fn clients_that_reconnect_wait_while_a_server_is_replaced() {
    if let Some(reason) = Program::qemu_storage_daemon().missing() {
        testkit::report::skipped(&reason);
        return;
    }
    with(&ringloom(), clients_wait);
}
