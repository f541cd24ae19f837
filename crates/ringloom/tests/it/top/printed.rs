//! What is printed for scripts.

use std::os::unix::net::UnixListener;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, Request, Segment, Shape};
use testkit::image;
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;

use super::{command, printed, quick, serve, under_load};
use crate::control::monitor_socket;
use crate::support::{ringloom, stop, with};

/// A line that must end well.
fn said(bench: &Bench, line: &str) -> Result<String> {
    let (code, stdout, stderr) = printed(command(bench, line))?;
    ensure!(code == Some(0) && stderr.is_empty(), "{line}: {code:?}: {stdout}{stderr}");
    Ok(stdout)
}

/// The sums of a queue.
fn queue(qmp: &mut QmpClient, number: usize) -> Result<Value> {
    let queues = qmp.execute("query-ringloom-queues", &json!({}))?;
    Ok(queues[number].clone())
}

fn number(of: &Value, key: &str) -> Result<f64> {
    of[key].as_f64().with_context(|| format!("no {key} in {of}"))
}

/// What was counted while it looked was counted by the daemon before and after, too.
fn rates_are_those_of_the_daemon(bench: &Bench) -> Result<()> {
    let mut qmp = QmpClient::connect(&monitor_socket(bench))?;
    let before = queue(&mut qmp, 1)?;
    let text = said(bench, "--once --json -i 0.5 -s top-qmp.sock")?;
    let after = queue(&mut qmp, 1)?;
    let found: Value = serde_json::from_str(&text).context(text)?;
    let daemon = &found["daemons"][0];
    let interval = number(daemon, "interval-s")?;
    ensure!((0.4..2.0).contains(&interval), "{daemon}");
    let top = &daemon["queues"][1];
    ensure!(top["export"] == "vm1" && top["queue"] == 1 && top["iothread"] == "t0", "{top}");
    let (first, last) = (number(&before, "reads")?, number(&after, "reads")?);
    let (answered, requests) = (number(top, "answered")?, number(top, "requests")?);
    ensure!(answered > 0.0 && answered <= last - first, "{top}: {before} {after}");
    ensure!((first..=last).contains(&requests), "{top}: {before} {after}");
    let rate = number(top, "iops")?;
    ensure!((rate * interval - answered).abs() < 0.5, "{top} in {interval} s");
    ensure!((number(top, "read-bytes-per-s")? / rate - 4096.0).abs() < 1.0, "{top}");
    // The guest has one request open at a time, in both queues together.
    ensure!((0.01..=1.1).contains(&number(top, "depth")?), "{top}");
    let ends = after["latency"].as_array().context("latency")?;
    ensure!(ends.iter().any(|it| it["to-ns"] == top["p99-ns"]), "{top}: {after}");
    let exports = daemon["exports"].as_array().context("exports")?;
    let queues = |id: &str| exports.iter().find(|it| it["export"] == id).map(|it| &it["queues"]);
    ensure!(queues("vm1") == Some(&json!(2)) && queues("idle") == Some(&json!(0)), "{daemon}");
    let iothread = &daemon["iothreads"][0];
    let parts = ["work", "look", "sleep"].map(|key| number(iothread, key).unwrap_or(-1.0));
    ensure!((parts.iter().sum::<f64>() - 1.0).abs() < 0.01, "{iothread}");
    Ok(())
}

fn tables_and_lines(bench: &Bench) -> Result<()> {
    let tables = said(bench, "--count 2 -i 0.2 --sort name top-qmp.sock")?;
    let heads = tables.lines().filter(|line| line.starts_with("EXPORT  IOPS")).count();
    ensure!(heads == 2 || tables.matches("\nvm1 ").count() >= 4, "{tables}");
    ensure!(tables.contains("no client") && tables.contains("IOTHREAD  "), "{tables}");
    let filtered = said(bench, "--once -i 0.2 --filter idle top-qmp.sock")?;
    ensure!(!filtered.contains("vm1"), "{filtered}");
    let lines = said(bench, "--count 2 --json -i 0.2 top-qmp.sock")?;
    ensure!(lines.lines().count() == 2, "{lines}");
    for line in lines.lines() {
        let value: Value = serde_json::from_str(line)?;
        ensure!(value["format"] == 1, "{line}");
    }
    Ok(())
}

/// Clients come and go, each with sums of its own: no rate is absurd, and nothing is counted twice.
fn clients_come_back(bench: &Bench) -> Result<()> {
    const REQUESTS: u64 = 2000;
    const CLIENTS: u64 = 4;
    let watching = command(bench, "--count 10 --json -i 0.2 top-qmp.sock").spawn()?;
    let segments = || vec![Segment { offset: 0, length: 512 }];
    for _ in 0..CLIENTS {
        let mut client = Client::connect(&bench.path("vm1.sock"), Shape::small())?;
        for _ in 0..REQUESTS {
            client.execute(0, &Request::Read { offset: 0, segments: segments() })?;
        }
    }
    let output = watching.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut seen = 0.0;
    for line in text.lines() {
        let value: Value = serde_json::from_str(line)?;
        for queue in value["daemons"][0]["queues"].as_array().into_iter().flatten() {
            ensure!((0.0..1e6).contains(&number(queue, "iops")?), "{queue}");
            seen += number(queue, "answered")?;
        }
    }
    let all = CLIENTS * REQUESTS;
    ensure!(text.lines().count() == 10 && seen <= f64::from(u32::try_from(all)?), "{seen}: {text}");
    Ok(())
}

/// A job that is slowed down has the rate that it is slowed down to.
fn jobs_have_rates(bench: &Bench) -> Result<()> {
    let mut qmp = QmpClient::connect(&monitor_socket(bench))?;
    let target = json!({"driver": "null-co", "node-name": "target", "size": 64 << 20});
    qmp.execute("blockdev-add", &target)?;
    let backup = json!({
        "job-id": "j", "device": "disk", "target": "target", "sync": "full", "speed": 4 << 20,
    });
    qmp.execute("blockdev-backup", &backup)?;
    let text = said(bench, "--once --json -i 1 top-qmp.sock")?;
    let found: Value = serde_json::from_str(&text).context(text)?;
    let job = &found["daemons"][0]["jobs"][0];
    let is_it = job["job"] == "j" && job["type"] == "backup" && job["status"] == "running";
    ensure!(is_it && job["speed"] == 4 << 20 && job["total-progress"] == 64 << 20, "{job}");
    ensure!((1e6..2e7).contains(&number(job, "rate-per-s")?), "{job}");
    ensure!((1.0..80.0).contains(&number(job, "left-s")?), "{job}");
    qmp.execute("job-cancel", &json!({"id": "j"}))?;
    qmp.event("BLOCK_JOB_CANCELLED").map(drop)
}

#[test]
fn what_is_printed_is_what_the_daemon_counts() {
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let server = serve(&bench)?;
        under_load(&bench, || {
            rates_are_those_of_the_daemon(&bench)?;
            tables_and_lines(&bench)
        })?;
        clients_come_back(&bench)?;
        jobs_have_rates(&bench)?;
        // Both daemons' monitors of a directory: those called so, and not the disks' sockets.
        let both = said(&bench, "--once -i 0.2 .")?;
        ensure!(both.contains("DAEMON") && both.contains("top-qmp  vm1"), "{both}");
        stop(server, &[&monitor_socket(&bench)]).map(drop)
    });
}

#[test]
fn what_cannot_be_asked_is_told_and_fails() -> Result<()> {
    let bench = Bench::new()?;
    let refused = |line: &str, code: i32, expected: &str| -> Result<()> {
        let (found, stdout, stderr) = printed(command(&bench, line))?;
        let is_right = found == Some(code) && stdout.is_empty() && stderr.contains(expected);
        ensure!(is_right, "{line}: {found:?}: {stdout}{stderr}");
        ensure!(stderr.lines().count() <= 2, "{line}: {stderr}");
        Ok(())
    };
    refused("--once -i 0.2 none.sock", 1, "there is no socket none.sock")?;
    refused("--once nowhere/*.sock", 1, "no socket is called nowhere/*.sock")?;
    refused("--once .", 1, "has qmp or monitor in its name")?;
    refused("--once", 1, "--monitor chardev=qmp")?;
    refused("none.sock", 2, "standard output is no terminal")?;
    let (code, _, stderr) = printed(command(&bench, "--interval 0 none.sock"))?;
    ensure!(code == Some(2) && stderr.contains("say 0.1 to 3600 seconds"), "{code:?}: {stderr}");
    let (code, _, stderr) = printed(command(&bench, "--sort iop none.sock"))?;
    ensure!(code == Some(2) && stderr.contains("'iops'"), "{code:?}: {stderr}");
    let listener = UnixListener::bind(bench.path("hung.sock"))?;
    drop(listener);
    refused("--once -i 0.2 hung.sock", 1, "nobody serves hung.sock")
}

fn the_peer_is_watched(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = monitor_socket(&bench);
    image::create_sparse(&bench.path("disk.img"), 64 << 20)?;
    let line = [
        "--chardev".to_owned(),
        format!("socket,id=qmp,path={},server=on,wait=off", socket.display()),
        "--monitor".to_owned(),
        "chardev=qmp".to_owned(),
        "--blockdev".to_owned(),
        format!("file,node-name=disk,filename={}", bench.text("disk.img")),
        "--export".to_owned(),
        format!(
            "vhost-user-blk,id=vm1,node-name=disk,writable=on,addr.type=unix,addr.path={}",
            bench.text("vm1.sock")
        ),
    ];
    let mut server = program.start(&line, std::slice::from_ref(&socket))?;
    let text = said(&bench, &format!("--once {}", quick(&socket)))?;
    ensure!(text.contains("vm1") && text.contains("it is not ringloom"), "{text}");
    let text = said(&bench, &format!("--once --json {}", quick(&socket)))?;
    let found: Value = serde_json::from_str(&text).context(text)?;
    let daemon = &found["daemons"][0];
    ensure!(daemon["exports"][0]["export"] == "vm1" && daemon["queues"].is_null(), "{daemon}");
    server.stop().map(drop)
}

#[test]
fn qemu_storage_daemon_is_shown_as_far_as_it_says_something() {
    with(&Program::qemu_storage_daemon(), the_peer_is_watched);
}
