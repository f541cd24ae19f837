//! `--metrics`: what Prometheus is told of a daemon, and what becomes of counters when clients, exports and processes go.

mod conditions;
mod contributed;
mod prometheus;
mod refusals;
mod thousand;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::client::{Client, Shape};
use testkit::deadline::poll_until;
use testkit::process::{Bench, Server};
use testkit::qmp::QmpClient;

use crate::control::{export, monitor, monitor_socket};
use crate::support::{Disk, Iothreads, ringloom, serve_beside, stop, with};

/// How long a change may take to be seen.
const LIMIT: Duration = Duration::from_secs(30);

/// The head and the body of the answer to a GET of metrics.
fn get(mut stream: impl Read + Write) -> Result<(String, String)> {
    let accept = "Accept: application/openmetrics-text; version=1.0.0";
    let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).context("ask for metrics")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("read metrics")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of the head")?;
    ensure!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    Ok((head.to_owned(), body.to_owned()))
}

/// All metrics of a UNIX socket.
fn scrape(socket: &Path) -> Result<String> {
    let stream = UnixStream::connect(socket).context("connect to the metrics")?;
    stream.set_read_timeout(Some(LIMIT))?;
    let (head, body) = get(stream)?;
    ensure!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    ensure!(body.ends_with("\n# EOF\n"), "cut off: {body}");
    Ok(body)
}

/// The value of a line, by its name and labels.
fn value(text: &str, line: &str) -> Option<f64> {
    text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' ')?.parse().ok())
}

/// Waits until a line has that value; gives all metrics then.
fn wait_for(socket: &Path, line: &str, expected: f64) -> Result<String> {
    poll_until(&format!("{line} to be {expected}"), LIMIT, || {
        let text = scrape(socket)?;
        let found = value(&text, line);
        Ok(found.is_some_and(|found| (found - expected).abs() < 1e-9).then_some(text))
    })
}

fn metrics(bench: &Bench) -> Vec<String> {
    vec!["--metrics".to_owned(), format!("unix:{}", bench.text("m.sock"))]
}

fn disk(bench: &Bench) -> Disk<'_> {
    Disk { iothreads: Iothreads::Two, ..Disk::new(bench, "e0", 2) }
}

/// A daemon behind all fences with a disk, a monitor and metrics.
fn start(bench: &Bench, more: &[&str]) -> Result<Server> {
    let disk = disk(bench);
    disk.create(1 << 20, 0x31)?;
    let mut line = [metrics(bench), monitor(bench)].concat();
    line.extend(["--sandbox".to_owned(), "on".to_owned()]);
    line.extend(more.iter().map(|word| (*word).to_owned()));
    let server = serve_beside(&ringloom(), &[disk], &line)?;
    let socket = bench.path("m.sock");
    poll_until("the socket of metrics", LIMIT, || Ok(socket.exists().then_some(())))?;
    Ok(server)
}

fn write(disk: &Disk<'_>, blocks: u64) -> Result<Client> {
    let mut client = Client::connect(&disk.socket(), Shape::small())?;
    for block in 0..blocks {
        client.write(block * 4096, &[7; 4096], 0)?;
    }
    client.flush()?;
    Ok(client)
}

const WRITES: &str = "ringloom_queue_requests_total{export=\"e0\",queue=\"0\",op=\"write\"}";
const WRITTEN: &str = "ringloom_queue_bytes_total{export=\"e0\",queue=\"0\",op=\"write\"}";
const TIMED: &str = "ringloom_request_duration_seconds_count{export=\"e0\",op=\"write\"}";

#[test]
fn counters_go_on_when_clients_go_and_begin_anew_with_the_export() {
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |_| {
        let (server, socket) =
            (start(&bench, &["--state", &bench.text("state")])?, bench.path("m.sock"));
        let mode = std::fs::metadata(&socket)?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "the socket has mode {mode:o}");
        let disk = disk(&bench);
        let client = write(&disk, 32)?;
        let text = wait_for(&socket, WRITES, 32.0)?;
        ensure!(value(&text, WRITTEN) == Some(32.0 * 4096.0), "{text}");
        ensure!(value(&text, "ringloom_export_clients{export=\"e0\"}") == Some(1.0), "{text}");
        let flushes = "ringloom_queue_requests_total{export=\"e0\",queue=\"0\",op=\"flush\"}";
        ensure!(value(&text, flushes) == Some(1.0), "{text}");
        let timed = value(&text, TIMED);
        ensure!(timed.is_some_and(|timed| (1.0..=32.0).contains(&timed)), "{timed:?} were timed");
        let served = "ringloom_queue_info{export=\"e0\",queue=\"0\",iothread=\"t0\"}";
        ensure!(value(&text, served) == Some(1.0), "{text}");
        drop(client);
        // Nobody is there, and what was done counts.
        let text = wait_for(&socket, "ringloom_export_clients{export=\"e0\"}", 0.0)?;
        ensure!(value(&text, WRITES) == Some(32.0), "{text}");
        ensure!(value(&text, served).is_none(), "{text}");
        drop(write(&disk, 5)?);
        let text = wait_for(&socket, WRITES, 37.0)?;
        ensure!(value(&text, TIMED) >= timed, "fewer were timed than before: {text}");
        let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
        qmp.execute("block-export-del", &json!({"id": "e0", "mode": "hard"}))?;
        poll_until("the export to be gone", LIMIT, || {
            Ok(value(&scrape(&socket)?, WRITES).is_none().then_some(()))
        })?;
        qmp.execute("block-export-add", &export(&bench, "e0", "file-e0"))?;
        drop(write(&disk, 3)?);
        wait_for(&socket, WRITES, 3.0)?;
        let log = stop(server, &[&disk.socket(), &socket])?;
        ensure!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
        Ok(())
    });
}

/// All that the first thread knows: jobs, bitmaps, the NBD server, pools.
#[test]
fn what_commands_make_is_there_too() {
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |_| {
        let (server, socket) = (start(&bench, &[])?, bench.path("m.sock"));
        let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
        let bitmap = json!({"node": "file-e0", "name": "a \"b\"", "granularity": 65536});
        qmp.execute("block-dirty-bitmap-add", &bitmap)?;
        let nbd = json!({"addr": {"type": "unix", "data": {"path": bench.text("nbd.sock")}}});
        qmp.execute("nbd-server-start", &nbd)?;
        let null = json!({"driver": "null-co", "node-name": "z", "size": 1 << 20});
        qmp.execute("blockdev-add", &null)?;
        let backup = json!({
            "job-id": "b0", "device": "file-e0", "target": "z", "sync": "full", "speed": 4096,
        });
        qmp.execute("blockdev-backup", &backup)?;
        let text = wait_for(
            &socket,
            "ringloom_job_speed_limit_bytes{job_id=\"b0\",type=\"backup\"}",
            4096.0,
        )?;
        let lines = [
            ("ringloom_job_length_bytes{job_id=\"b0\",type=\"backup\"}", f64::from(1 << 20)),
            ("ringloom_job_info{job_id=\"b0\",type=\"backup\",status=\"running\"}", 1.0),
            ("ringloom_bitmaps{node=\"file-e0\"}", 1.0),
            ("ringloom_bitmap_memory_bytes{node=\"file-e0\"}", 8.0),
            ("ringloom_nbd_connections{state=\"connected\"}", 0.0),
            ("ringloom_nbd_connections_max", 100.0),
            ("ringloom_iothread_queues{iothread=\"t0\"}", 0.0),
            ("ringloom_control_age_seconds", 0.0),
        ];
        for (line, expected) in lines {
            ensure!(value(&text, line) == Some(expected), "{line} is not {expected}: {text}");
        }
        qmp.execute("job-cancel", &json!({"id": "b0"}))?;
        stop(server, &[&socket]).map(drop)
    });
}

#[test]
fn a_successor_has_the_address_and_a_start_of_its_own() {
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |program| {
        let (old, socket) = (start(&bench, &[])?, bench.path("m.sock"));
        let disk = disk(&bench);
        drop(write(&disk, 9)?);
        let before = wait_for(&socket, WRITES, 9.0)?;
        let objects = ["--object", "iothread,id=t0", "--object", "iothread,id=t1", "--takeover"];
        let objects = objects.iter().map(|word| (*word).to_owned()).collect();
        let line = [objects, disk.arguments(), metrics(&bench), monitor(&bench)].concat();
        let new = program.spawn(&line)?;
        new.wait_for_log("metrics: listening", LIMIT)?;
        let mut old = old;
        ensure!(old.wait(LIMIT)?.code() == Some(0), "{}", old.log());
        drop(write(&disk, 2)?);
        let after = wait_for(&socket, WRITES, 2.0)?;
        let began = |text: &str| value(text, "process_start_time_seconds");
        ensure!(began(&before) < began(&after), "no later start: {before} {after}");
        stop(new, &[&disk.socket(), &socket]).map(drop)
    });
}

#[test]
fn a_daemon_in_the_background_serves_metrics() {
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |_| {
        let disk = disk(&bench);
        disk.create(1 << 20, 0x32)?;
        let mut line = vec!["--object".to_owned(), "iothread,id=t0".to_owned()];
        line.extend(["--object".to_owned(), "iothread,id=t1".to_owned()]);
        line.extend(disk.arguments());
        line.extend(metrics(&bench));
        line.extend(["--daemonize".to_owned(), "--pidfile".to_owned(), bench.text("pid")]);
        line.extend(["--log-file".to_owned(), bench.text("d.log")]);
        let started = std::process::Command::new(env!("CARGO_BIN_EXE_ringloom"));
        let status = { started }.arg("serve").args(&line).status().context("start a daemon")?;
        ensure!(status.success(), "{status}");
        let daemon = testkit::process::Daemon::from_pidfile(&bench.path("pid"))?;
        drop(write(&disk, 4)?);
        wait_for(&bench.path("m.sock"), WRITES, 4.0)?;
        daemon.terminate()?;
        poll_until("the daemon to end", LIMIT, || Ok((!daemon.is_alive()).then_some(())))
    });
}
