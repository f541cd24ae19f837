//! The daemon dies at each step of the commands that change what it serves; started again with the old line it has all
//! that was completed, and its client goes on.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::RingLayout;
use testkit::image;
use testkit::process::{Bench, Server};
use testkit::qmp::QmpClient;
use testkit::rawring::{Collected, Survivor};
use testkit::rng::Rng;

use super::{monitor, monitor_socket, state};
use crate::support::{qemu_img, ringloom, stop};

const VARIABLE: &str = "RINGLOOM_CONTROL_FAULT";
/// Stands for a command: the event of that name is waited for.
const EVENT: &str = "event";

const QUEUES: u16 = 2;
const CRASH_LIMIT: Duration = Duration::from_secs(20);

/// What a server begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// A disk.
    Disk,
    /// An image on a disk of half its size, which is only read.
    Chain,
}

fn serve(bench: &Bench, line: Line, fault: Option<&str>) -> Result<Server> {
    let program = match fault {
        Some(fault) => ringloom().with_variable(VARIABLE, fault),
        None => ringloom(),
    };
    let disk = format!("file,node-name=disk,filename={}", bench.text("disk"));
    let (nodes, root) = match line {
        Line::Disk => (vec![disk], "disk"),
        Line::Chain => {
            let over = format!(
                "qcow2,node-name=over,backing=disk,file.driver=file,file.filename={}",
                bench.text("over")
            );
            (vec![format!("{disk},read-only=on"), over], "over")
        }
    };
    let nodes: Vec<String> =
        nodes.into_iter().flat_map(|it| ["--blockdev".to_owned(), it]).collect();
    let line = [
        "--object".to_owned(),
        "iothread,id=t0".to_owned(),
        "--export".to_owned(),
        format!(
            "vhost-user-blk,id=e,node-name={root},writable=on,addr.type=unix,addr.path={},num-queues={QUEUES},\
             iothread=t0",
            bench.text("e.sock")
        ),
    ];
    let arguments = [monitor(bench), state(bench), nodes, line.to_vec()].concat();
    program.start(&arguments, &[bench.path("e.sock"), monitor_socket(bench)])
}

/// Works until the server has died, or the command was answered.
fn work(
    client: &mut Survivor,
    rng: &mut Rng,
    bench: &Bench,
    commands: &[(String, Value)],
) -> Result<bool> {
    let socket = monitor_socket(bench);
    let commands = commands.to_vec();
    let asking = std::thread::spawn(move || ask(&socket, &commands));
    let mut is_gone = false;
    while !is_gone && !asking.is_finished() {
        client.submit(rng)?;
        is_gone = client.collect()? == Collected::Gone;
    }
    let answered = asking.join().expect("it does not panic");
    Ok(answered.is_ok() && !is_gone)
}

fn ask(socket: &Path, commands: &[(String, Value)]) -> Result<()> {
    let mut qmp = QmpClient::connect(socket)?;
    for (command, arguments) in commands {
        if command == EVENT {
            qmp.event(arguments.as_str().context("the name of an event")?)?;
        } else {
            qmp.execute(command, arguments)?;
        }
    }
    Ok(())
}

/// One server that dies at a step of these commands, and one that goes on.
fn check(
    (line, commands): (Line, &[(String, Value)]),
    bench: &Bench,
    fault: &str,
    seed: u64,
) -> Result<()> {
    let bytes = Survivor::disk_bytes(QUEUES);
    let disk_bytes = if line == Line::Chain { bytes / 2 } else { bytes };
    image::create_sparse(&bench.path("disk"), disk_bytes)?;
    qemu_img(bench, &format!("create -q -f qcow2 over {bytes}"))?;
    image::create_sparse(&bench.path("other"), bytes)?;
    let mut rng = Rng::new(seed);
    let mut server = serve(bench, line, Some(fault))?;
    let mut client = Survivor::connect(&bench.path("e.sock"), RingLayout::Split, QUEUES)?;
    let lived = work(&mut client, &mut rng, bench, commands)?;
    ensure!(!lived, "the step {fault} was not reached: {}", server.log());
    let status = server.wait(CRASH_LIMIT)?;
    ensure!(
        status.signal() == Some(rustix::process::Signal::ABORT.as_raw())
            && !server.log().contains("panicked"),
        "{status}: {}",
        server.log()
    );
    let server = serve(bench, line, None).context("started again")?;
    client.reconnect()?;
    client.drain().with_context(|| format!("log: {}", server.log()))?;
    for _ in 0..20 {
        client.submit(&mut rng)?;
        ensure!(client.collect()? != Collected::Gone, "the server is gone: {}", server.log());
    }
    client.drain()?;
    let expected = client.expected();
    drop(client);
    // What the export stands on now.
    let mut qmp = QmpClient::connect(&monitor_socket(bench))?;
    let exports = qmp.execute("query-block-exports", &json!({}))?;
    let all = exports.as_array().context("a list")?;
    let export = all.iter().find(|export| export["id"] == "e").context("the export is gone")?;
    let root = export["node-name"].as_str().context("a node")?.to_owned();
    drop(qmp);
    stop(server, &[&bench.path("e.sock")])?;
    let found = if root == "disk" || root == "other" {
        std::fs::read(bench.path(&root))?
    } else {
        let file = if root == "over" { "over" } else { "snap" };
        // A killed daemon leaks clusters at worst.
        qemu_img(bench, &format!("check -q -f qcow2 -r leaks {file}"))?;
        let backing = bench.text("disk");
        qemu_img(bench, &format!("rebase -q -u -f qcow2 -F raw -b {backing} {file}"))?;
        qemu_img(bench, &format!("convert -f qcow2 -O raw {file} flat"))?;
        std::fs::read(bench.path("flat"))?
    };
    ensure!(
        found[..expected.len()] == expected[..],
        "{root} does not hold the last completed writes"
    );
    Ok(())
}

#[track_caller]
fn check_all(commands: impl Fn(&Bench) -> Vec<(String, Value)>, faults: &[&str]) {
    check_on(Line::Disk, commands, faults);
}

#[track_caller]
fn check_on(line: Line, commands: impl Fn(&Bench) -> Vec<(String, Value)>, faults: &[&str]) {
    for (fault, seed) in faults.iter().zip(1..) {
        let result =
            Bench::new().and_then(|bench| check((line, &commands(&bench)), &bench, fault, seed));
        if let Err(error) = result {
            panic!("{fault}: {error:#}");
        }
    }
}

fn add_overlay(bench: &Bench) -> (String, Value) {
    ("blockdev-add".to_owned(), super::overlay(bench, "over"))
}

#[test]
fn a_snapshot_that_was_cut_loses_nothing() {
    let commands = |bench: &Bench| {
        let snapshot = json!({"node": "disk", "overlay": "over"});
        vec![add_overlay(bench), ("blockdev-snapshot".to_owned(), snapshot)]
    };
    // Kept: by keep_state at the start there is no step; then the node, then the snapshot.
    check_all(commands, &["Keeping:1", "Kept:1", "Swapped:1", "Kept:2", "GoingOn:1"]);
}

#[test]
fn a_snapshot_with_a_new_file_that_was_cut_loses_nothing() {
    let commands = |bench: &Bench| {
        let snapshot = json!({"node-name": "disk", "snapshot-file": bench.text("snap")});
        vec![("blockdev-snapshot-sync".to_owned(), snapshot)]
    };
    check_all(commands, &["Keeping:1", "Kept:1", "Swapped:1", "Kept:2", "GoingOn:1"]);
}

#[test]
fn exports_nodes_and_sizes_that_were_cut_lose_nothing() {
    let commands = |bench: &Bench| {
        let node = json!({"driver": "file", "node-name": "other", "filename": bench.text("other")});
        let bytes = Survivor::disk_bytes(QUEUES) * 2;
        vec![
            ("object-add".to_owned(), json!({"qom-type": "iothread", "id": "t1"})),
            ("blockdev-add".to_owned(), node),
            ("block-export-add".to_owned(), super::export(bench, "g", "other")),
            ("block_resize".to_owned(), json!({"node-name": "disk", "size": bytes})),
            ("block-export-del".to_owned(), json!({"id": "g", "mode": "hard"})),
            ("blockdev-del".to_owned(), json!({"node-name": "other"})),
            ("object-del".to_owned(), json!({"id": "t1"})),
        ]
    };
    let faults = [
        "Keeping:1",
        "Keeping:2",
        "Listening:1",
        "Kept:3",
        "Resized:1",
        "Removed:1",
        "Kept:5",
        "Kept:6",
    ];
    check_all(commands, &faults);
}

#[test]
fn a_disk_that_moves_and_was_cut_loses_nothing() {
    let commands = |mode: &'static str| {
        move |bench: &Bench| {
            let other = bench.text("other");
            let node = json!({"driver": "file", "node-name": "other", "filename": other});
            let mirror = json!({
                "job-id": "j", "device": "disk", "target": "other", "sync": "full", "copy-mode": mode,
            });
            vec![
                ("blockdev-add".to_owned(), node),
                ("blockdev-mirror".to_owned(), mirror),
                (EVENT.to_owned(), json!("BLOCK_JOB_READY")),
                ("job-complete".to_owned(), json!({"id": "j"})),
                (EVENT.to_owned(), json!("BLOCK_JOB_COMPLETED")),
            ]
        }
    };
    // The filter is there; the switch is made, kept, and requests go on; the filter is gone.
    check_all(commands("background"), &["GoingOn:1", "Swapped:1", "Kept:2", "GoingOn:2"]);
    check_all(commands("write-blocking"), &["Swapped:1", "Kept:2", "GoingOn:3"]);
}

#[test]
fn a_commit_into_a_base_that_was_read_only_and_too_small_loses_nothing() {
    let commands = |_: &Bench| {
        vec![
            ("block-commit".to_owned(), json!({"job-id": "j", "device": "over"})),
            (EVENT.to_owned(), json!("BLOCK_JOB_READY")),
            ("job-complete".to_owned(), json!({"id": "j"})),
            (EVENT.to_owned(), json!("BLOCK_JOB_COMPLETED")),
        ]
    };
    // The base is writable; it has grown; the filter is there; the switch is made, kept, and requests go on.
    let faults = ["GoingOn:1", "Resized:1", "GoingOn:2", "Swapped:1", "Kept:1", "GoingOn:3"];
    check_on(Line::Chain, commands, &faults);
}

#[test]
fn a_reopening_that_was_cut_loses_nothing() {
    let commands = |bench: &Bench| {
        let options = json!({
            "driver": "file", "node-name": "disk", "filename": bench.text("disk"), "discard": "unmap",
            "cache": {"direct": true},
        });
        vec![("blockdev-reopen".to_owned(), json!({"options": [options]}))]
    };
    check_all(commands, &["Swapped:1", "Kept:1", "GoingOn:1"]);
}
