//! Block jobs of a running daemon: what they leave is judged by QEMU's tools, while a client writes.

mod campaign;
mod databases;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, Request, Shape, Unmap};
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;
use testkit::rng::Rng;

use crate::control::{monitor, monitor_socket, state};
use crate::support::{qemu_img, ringloom, stop};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;

/// For how long it is looked what a daemon costs that has nothing to do.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// What is read at once.
const PART: usize = 256 << 10;

/// How often a client writes at least.
const ROUNDS_MIN: u64 = 300;

/// A daemon that serves `disk` to a client on the socket `s`, and keeps its state.
fn serve(bench: &Bench) -> Result<(Server, QmpClient)> {
    let line = [
        "--object".to_owned(),
        "iothread,id=t0".to_owned(),
        "--object".to_owned(),
        "iothread,id=t1".to_owned(),
        "--blockdev".to_owned(),
        format!("file,node-name=disk,filename={},discard=unmap", bench.text("disk")),
        "--allow-connect".to_owned(),
        "127.0.0.1:1".to_owned(),
        "--export".to_owned(),
        format!(
            "vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path={},num-queues=2,\
             iothread.0=t0,iothread.1=t1",
            bench.text("s")
        ),
    ];
    let arguments = [monitor(bench), state(bench), line.to_vec()].concat();
    let server = ringloom().start(&arguments, &[bench.path("s"), monitor_socket(bench)])?;
    let qmp = QmpClient::connect(&monitor_socket(bench))?;
    Ok((server, qmp))
}

/// Writes, zeroes and discards at random until it is told to end.
fn work(client: &mut Client, seed: u64, is_over: &AtomicBool) -> Result<()> {
    let (rng, mut rounds) = (&mut Rng::new(seed), 0);
    while rounds < ROUNDS_MIN || !is_over.load(Ordering::Relaxed) {
        let length = 512 << rng.below(9);
        let at = rng.below(SIZE / 512 - length / 512 + 1) * 512;
        match rng.below(8) {
            0 => {
                let unmap = if rng.below(2) == 0 { Unmap::Allowed } else { Unmap::Forbidden };
                client.execute(0, &Request::WriteZeroes { offset: at, length, unmap })?;
            }
            1 => {
                client.execute(0, &Request::Discard { offset: at, length })?;
            }
            _ => {
                let bytes = vec![u8::try_from(rounds % 251)?; usize::try_from(length)?];
                client.write(at, &bytes, usize::try_from(rounds % 2)?)?;
            }
        }
        rounds += 1;
    }
    Ok(())
}

/// All that a client sees.
fn read_all(client: &mut Client) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for at in (0..SIZE).step_by(PART) {
        all.extend(client.read(at, PART, 0)?);
    }
    Ok(all)
}

/// Waits for the event of a job; fails with what a job that has ended says.
fn wait(qmp: &mut QmpClient, name: &str) -> Result<Value> {
    let event = qmp.event(name)?;
    let error = event["data"]["error"].as_str();
    ensure!(error.is_none(), "{event}");
    Ok(event)
}

/// A client writes while `begin` has a mirror come to where it can be completed, and until its disk has moved to node `new`.
fn moved_beside_a_client(
    bench: &Bench,
    (server, qmp): (&Server, &mut QmpClient),
    seed: u64,
    begin: impl FnOnce(&mut QmpClient) -> Result<()>,
) -> Result<Client> {
    let (mut client, is_over) =
        (Client::connect(&bench.path("s"), Shape::small())?, AtomicBool::new(false));
    std::thread::scope(|scope| -> Result<()> {
        let guest = scope.spawn(|| work(&mut client, seed, &is_over));
        let result = begin(qmp).and_then(|()| {
            qmp.execute("job-complete", &json!({"id": "j"}))?;
            wait(qmp, "BLOCK_JOB_COMPLETED").map(drop)
        });
        is_over.store(true, Ordering::Relaxed);
        guest.join().expect("it does not panic")?;
        result
    })
    .with_context(|| format!("log: {}", server.log()))?;
    let exports = qmp.execute("query-block-exports", &json!({}))?;
    ensure!(exports[0]["node-name"] == "new", "{exports}");
    Ok(client)
}

/// A client writes while its disk moves to that node; then `judge` compares, with the path of what the client wrote last.
fn moved(
    bench: &Bench,
    target: &Value,
    mode: &str,
    judge: impl FnOnce(&Bench) -> Result<()>,
) -> Result<()> {
    image::create_filled(&bench.path("disk"), usize::try_from(SIZE)?, 0x51)?;
    let (server, mut qmp) = serve(bench)?;
    let mut client = moved_beside_a_client(bench, (&server, &mut qmp), 5, |qmp| {
        qmp.execute("blockdev-add", target)?;
        let mirror = json!({
            "job-id": "j", "device": "disk", "target": "new", "sync": "full", "copy-mode": mode,
        });
        qmp.execute("blockdev-mirror", &mirror)?;
        wait(qmp, "BLOCK_JOB_READY").map(drop)
    })?;
    // What the client sees now is what the target has.
    std::fs::write(bench.path("seen"), read_all(&mut client)?)?;
    qmp.execute("blockdev-del", &json!({"node-name": "disk"}))?;
    drop((client, qmp));
    stop(server, &[&bench.path("s")])?;
    judge(bench)
}

#[test]
fn a_disk_moves_into_a_qcow2_image() {
    let bench = Bench::new().unwrap();
    qemu_img(&bench, &format!("create -q -f qcow2 new.qcow2 {SIZE}")).unwrap();
    let file = json!({"driver": "file", "filename": bench.text("new.qcow2"), "discard": "unmap"});
    let target = json!({"driver": "qcow2", "node-name": "new", "discard": "unmap", "file": file});
    moved(&bench, &target, "background", |bench| {
        qemu_img(bench, "check -q -f qcow2 new.qcow2")?;
        qemu_img(bench, "compare -q -f raw -F qcow2 seen new.qcow2").map(drop)
    })
    .unwrap_or_else(|error| panic!("{error:#}"));
}

/// A disk is backed up to a file, then moves to a file, by one command each; nothing that was opened is left.
fn files_as_targets(bench: &Bench) -> Result<()> {
    image::create_filled(&bench.path("disk"), usize::try_from(SIZE)?, 0x55)?;
    let (server, mut qmp) = serve(bench)?;
    let nodes = |qmp: &mut QmpClient| -> Result<usize> {
        let all = qmp.execute("query-named-block-nodes", &json!({"flat": true}))?;
        Ok(all.as_array().context("a list")?.len())
    };
    let before = nodes(&mut qmp)?;
    let backup = |format: &str| json!({"job-id": "j", "device": "disk", "target": bench.text(format), "sync": "full", "format": format});
    for format in ["raw", "qcow2"] {
        qmp.execute("drive-backup", &backup(format))?;
        wait(&mut qmp, "BLOCK_JOB_COMPLETED")?;
        qemu_img(bench, &format!("compare -q -f raw -F {format} disk {format}"))?;
        let (_, desc) = qmp.refused("drive-backup", &backup(format))?;
        ensure!(desc.contains("not empty"), "{desc}");
        ensure!(nodes(&mut qmp)? == before, "a node is left");
    }
    let mut client = moved_beside_a_client(bench, (&server, &mut qmp), 6, |qmp| {
        let mirror = json!({
            "job-id": "j", "device": "disk", "target": bench.text("moved"), "sync": "full",
            "format": "qcow2", "node-name": "new", "buf-size": 1 << 20,
        });
        qmp.execute("drive-mirror", &mirror)?;
        wait(qmp, "BLOCK_JOB_READY")?;
        let change = json!({"id": "j", "type": "mirror", "copy-mode": "write-blocking"});
        qmp.execute("block-job-change", &change).map(drop)
    })?;
    std::fs::write(bench.path("seen"), read_all(&mut client)?)?;
    drop((client, qmp));
    stop(server, &[&bench.path("s")])?;
    qemu_img(bench, "check -q -f qcow2 moved")?;
    qemu_img(bench, "compare -q -f raw -F qcow2 seen moved").map(drop)
}

#[test]
fn disks_are_backed_up_and_moved_to_files_by_one_command() {
    let result = Bench::new().and_then(|bench| files_as_targets(&bench));
    result.unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn a_disk_moves_to_an_nbd_server() {
    let qemu_nbd = Program::named("qemu-nbd", "qemu-nbd", &[]);
    if let Some(reason) = qemu_nbd.missing() {
        testkit::report::skipped(&reason);
        return;
    }
    for mode in ["background", "write-blocking"] {
        let bench = Bench::new().unwrap();
        image::create_sparse(&bench.path("new"), SIZE).unwrap();
        let arguments =
            ["-f", "raw", "-t", "-k", &bench.text("nbd"), "--discard=unmap", &bench.text("new")];
        let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let mut other = qemu_nbd.start(&arguments, &[bench.path("nbd")]).unwrap();
        let server = json!({"type": "unix", "path": bench.text("nbd")});
        let target =
            json!({"driver": "nbd", "node-name": "new", "server": server, "discard": "unmap"});
        moved(&bench, &target, mode, |bench| {
            other.terminate()?;
            ensure!(
                std::fs::read(bench.path("new"))? == std::fs::read(bench.path("seen"))?,
                "they differ"
            );
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{mode}: {error:#}"));
    }
}

#[test]
fn a_daemon_that_ends_cancels_its_jobs_and_serves_the_source_afterwards() {
    let check = || -> Result<()> {
        let bench = Bench::new()?;
        let content = image::create_filled(&bench.path("disk"), usize::try_from(SIZE)?, 0x52)?;
        image::create_sparse(&bench.path("new"), SIZE)?;
        let (server, mut qmp) = serve(&bench)?;
        let file = json!({"driver": "file", "node-name": "new", "filename": bench.text("new")});
        qmp.execute("blockdev-add", &file)?;
        let mirror = json!({
            "job-id": "j", "device": "disk", "target": "new", "sync": "full", "speed": 65536,
        });
        qmp.execute("blockdev-mirror", &mirror)?;
        let log = stop(server, &[&bench.path("s")])?;
        ensure!(log.contains("block job 'j': cancelled, because the daemon ends"), "{log}");
        let (server, mut qmp) = serve(&bench)?;
        ensure!(qmp.execute("query-jobs", &json!({}))? == json!([]), "a job is left");
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        ensure!(read_all(&mut client)? == content, "the disk is another one");
        drop(client);
        stop(server, &[&bench.path("s")]).map(drop)
    };
    check().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn a_killed_daemon_tells_of_its_jobs_and_one_that_waits_costs_nothing() {
    let check = || -> Result<()> {
        let bench = Bench::new()?;
        image::create_filled(&bench.path("disk"), usize::try_from(SIZE)?, 0x53)?;
        image::create_sparse(&bench.path("new"), SIZE)?;
        let (mut server, mut qmp) = serve(&bench)?;
        let file = json!({"driver": "file", "node-name": "new", "filename": bench.text("new")});
        qmp.execute("blockdev-add", &file)?;
        let mirror = json!({"job-id": "j", "device": "disk", "target": "new", "sync": "full"});
        qmp.execute("blockdev-mirror", &mirror)?;
        wait(&mut qmp, "BLOCK_JOB_READY")?;
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        client.write(0, &[1; 4096], 0)?;
        server.wait_while_running(IDLE_TIME)?;
        let before = server.cpu_time()?;
        server.wait_while_running(IDLE_TIME)?;
        let used = server.cpu_time()? - before;
        ensure!(used < IDLE_TIME / 50, "{used:?} of CPU time in {IDLE_TIME:?} with nothing to do");
        server.kill()?;
        drop((client, qmp));
        let (server, qmp) = serve(&bench)?;
        let said = "block job 'j' ended with the daemon, and its result does not count; begin it anew: \
                    it mirrors node 'disk' to node 'new'";
        ensure!(server.log().contains(said), "{}", server.log());
        drop(qmp);
        let log = stop(server, &[&bench.path("s")])?;
        let (server, qmp) = serve(&bench)?;
        ensure!(!server.log().contains("block job"), "it is told twice: {log} {}", server.log());
        drop(qmp);
        stop(server, &[&bench.path("s")]).map(drop)
    };
    check().unwrap_or_else(|error| panic!("{error:#}"));
}
