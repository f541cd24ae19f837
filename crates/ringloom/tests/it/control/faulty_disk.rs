//! Commands on a disk that hangs, or that fails.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;
use testkit::client::{Client, Request, Segment, Shape};
use testkit::deadline::poll_until;
use testkit::fuse_faults::{Effect, Errno, Fault, FaultDisk, Operation};
use testkit::process::{Bench, Program};
use testkit::report::skipped;

use super::{start, state};
use crate::support::{ringloom, with};

const BYTES: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// The options that serve the disk, with a state file.
fn served(bench: &Bench, disk: &FaultDisk) -> Vec<String> {
    let socket = bench.text("e.sock");
    let more = [
        "--allow-below".to_owned(),
        bench.text("fuse"),
        "--blockdev".to_owned(),
        format!("file,node-name=disk,filename={}", disk.image().display()),
        "--export".to_owned(),
        format!("vhost-user-blk,id=e,node-name=disk,writable=on,addr.type=unix,addr.path={socket}"),
    ];
    [state(bench).as_slice(), &more].concat()
}

/// A command waits for a disk that does not answer, and that is said: the first signal has to wait for it, the second one does not.
fn a_second_signal_leaves_a_hanging_command(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let disk = FaultDisk::mount(&bench.path("fuse"), BYTES)?;
    let socket = bench.path("e.sock");
    let options = served(&bench, &disk);
    let (mut server, mut qmp) = start(program, &bench, &options, std::slice::from_ref(&socket))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    disk.inject(Fault::new(Operation::Write, Effect::Held, u32::MAX));
    let segments = vec![Segment { offset: 0, length: 4096 }];
    client.submit(0, &Request::Write { offset: 0, segments }, 0)?;
    client.kick(0)?;
    poll_until("a write that hangs", LIMIT, || Ok((disk.held() > 0).then_some(())))?;
    let sync = json!({
        "execute": "blockdev-snapshot-sync",
        "arguments": {"node-name": "disk", "snapshot-file": bench.text("snap")},
    });
    qmp.send(format!("{sync}\n").as_bytes())?;
    poll_until("the image of the snapshot", LIMIT, || {
        Ok(bench.path("snap").exists().then_some(()))
    })?;
    server.wait_for_log("blockdev-snapshot-sync disk: its storage has not answered", LIMIT)?;
    // The kernel holds what is in the disk, also after SIGKILL, and lets all else go. The first signal, and what comes within
    // half a second of it, has to wait.
    let tasks = PathBuf::from(format!("/proc/{}/task", server.pid()));
    let left = poll_until("its end", LIMIT, || {
        server.signal(Signal::TERM)?;
        Ok((!has_thread(&tasks, "watch")?).then_some(()))
    });
    disk.release();
    left.with_context(|| format!("log: {}", server.log()))?;
    let status = server.wait(LIMIT)?;
    ensure!(status.code() == Some(128 + 15), "{status}\n{}", server.log());
    Ok(())
}

/// Whether one of these threads has that name.
fn has_thread(tasks: &Path, name: &str) -> Result<bool> {
    for task in std::fs::read_dir(tasks)? {
        // One that is gone meanwhile has no name.
        let comm = std::fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        if comm.trim_end() == name {
            return Ok(true);
        }
    }
    Ok(false)
}

#[test]
fn a_daemon_whose_command_hangs_ends_by_the_second_signal() {
    if let Some(reason) = FaultDisk::missing() {
        skipped(&reason);
        return;
    }
    with(&ringloom(), a_second_signal_leaves_a_hanging_command);
}

/// What was written is not durable, and the client of the monitor hears of it; the export is gone all the same, also
/// after a restart.
fn an_export_whose_flush_fails_is_gone(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let disk = FaultDisk::mount(&bench.path("fuse"), BYTES)?;
    let socket = bench.path("e.sock");
    let options = served(&bench, &disk);
    let (mut server, mut qmp) = start(program, &bench, &options, std::slice::from_ref(&socket))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    client.write(0, &[0x71; 4096], 0)?;
    drop(client);
    disk.inject(Fault::new(Operation::Sync, Effect::Fails(Errno::IO), u32::MAX));
    let del = json!({"id": "e", "mode": "hard"});
    let (class, desc) = qmp.refused("block-export-del", &del)?;
    ensure!(class == "GenericError" && desc.contains("flush failed"), "{desc}");
    qmp.event("BLOCK_EXPORT_DELETED")?;
    let left = qmp.execute("query-block-exports", &json!({}))?;
    ensure!(left == json!([]), "{left}");
    ensure!(!socket.exists(), "its socket is left behind");
    disk.release();
    server.signal(Signal::KILL)?;
    server.wait(LIMIT)?;
    let (server, mut qmp) = start(program, &bench, &options, &[])?;
    let left = qmp.execute("query-block-exports", &json!({}))?;
    ensure!(left == json!([]), "{left}\n{}", server.log());
    Ok(())
}

#[test]
fn an_export_that_cannot_be_flushed_is_removed_and_stays_so() {
    if let Some(reason) = FaultDisk::missing() {
        skipped(&reason);
        return;
    }
    with(&ringloom(), an_export_whose_flush_fails_is_gone);
}
