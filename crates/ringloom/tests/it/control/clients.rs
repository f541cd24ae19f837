//! What clients of monitors may do, and cannot do to others.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::deadline::Deadline;
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;

use super::{monitor_socket, start};
use crate::support::{ringloom, stop, with};

/// A second monitor, whose clients may only ask.
fn second(bench: &Bench) -> Vec<String> {
    let socket = bench.path("second.sock");
    vec![
        "--chardev".to_owned(),
        format!("socket,id=second,path={},server=on,wait=off", socket.display()),
        "--monitor".to_owned(),
        "chardev=second,readonly=on,pretty=on".to_owned(),
    ]
}

fn the_protocol_is_qemus(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let second_socket = bench.path("second.sock");
    let (server, mut client) = start(program, &bench, &second(&bench), &[])?;
    let greeting = &client.greeting["QMP"];
    ensure!(greeting["capabilities"] == json!(["oob"]), "{greeting}");
    ensure!(greeting["version"]["qemu"]["major"] == 10, "{greeting}");
    for (sent, class, desc) in [
        ("{'execute':'qmp_capabilities','id':1}", "CommandNotFound", "already complete"),
        ("{'execute':'nonsense','id':{'a':[2]}}", "CommandNotFound", "nonsense has not been found"),
        ("{'execute':'x-blockdev-amend'}", "CommandNotFound", "not supported yet"),
        ("{'execute':'blockdev-del'}", "GenericError", "'node-name' is missing"),
        ("{'execute':'query-version','arguments':{'x':1}}", "GenericError", "'x'"),
        ("{'exec':'query-version'}", "GenericError", "'exec' is unexpected"),
        ("nonsense", "GenericError", "JSON parse error"),
        ("[]", "GenericError", "must be a JSON object"),
    ] {
        client.send(format!("{sent}\n").as_bytes())?;
        let answer = client.answer()?;
        ensure!(answer["error"]["class"] == class, "{sent}: {answer}");
        ensure!(answer["error"]["desc"].as_str().is_some_and(|it| it.contains(desc)), "{answer}");
        ensure!(sent.contains("'id'") == answer.get("id").is_some(), "{sent}: {answer}");
    }
    client.send(
        b"{\"execute\":\"query-version\",\"id\":\"a\"}{\"execute\":\"query-jobs\",\"id\":7}",
    )?;
    let answers = [client.answer()?, client.answer()?];
    ensure!(answers[0]["id"] == "a" && answers[1]["id"] == 7, "{answers:?}");
    // Another monitor at the same time, which only asks.
    let mut text = String::new();
    let mut stream = UnixStream::connect(&second_socket)?;
    stream.write_all(
        b"{\"execute\":\"qmp_capabilities\"}{\"execute\":\"query-commands\"}{\"execute\":\"quit\",\"id\":9}",
    )?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut bytes = [0; 4096];
    while !text.contains("\"id\": 9") {
        let read = stream.read(&mut bytes).with_context(|| text.clone())?;
        ensure!(read > 0, "hung up: {text}");
        text.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    ensure!(text.contains("this monitor is read-only") && text.contains("\n    \"QMP\""), "{text}");
    let mode = std::fs::metadata(monitor_socket(&bench))?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "mode {mode:o}");
    let log = stop(server, &[&monitor_socket(&bench), &second_socket])?;
    ensure!(log.contains("monitor qmp: process "), "{log}");
    Ok(())
}

/// Clients that do not read, send half a message, a hundred megabytes, or ten thousand brackets.
fn nobody_is_held_up(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let mut more = second(&bench);
    more.truncate(2);
    more.extend(["--monitor".to_owned(), "second".to_owned()]);
    let (server, mut client) = start(program, &bench, &more, &[])?;
    let path = bench.path("second.sock");
    let check = |client: &mut QmpClient| {
        let began = Deadline::after(Duration::from_secs(2));
        client.execute("query-version", &json!({}))?;
        ensure!(!began.has_passed(), "held up");
        Ok(())
    };
    let before = resident(server.pid())?;
    for hostile in 0..4 {
        let mut stream = UnixStream::connect(&path)?;
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"{\"execute\":\"qmp_capabilities\"}")?;
        match hostile {
            0 => stream.write_all(b"{\"execute\":\"query-v")?,
            1 => stream.write_all("[".repeat(10_000).as_bytes())?,
            2 => {
                stream.write_all(b"{\"execute\":\"")?;
                for _ in 0..1600 {
                    stream.write_all(&[b'x'; 1 << 16])?;
                }
            }
            // It asks, and does not read; at some point nothing more is taken from it.
            _ => {
                let asked = b"{\"execute\":\"query-qmp-schema\"}".repeat(64);
                while stream.write_all(&asked).is_ok() {}
            }
        }
        check(&mut client)?;
    }
    let after = resident(server.pid())?;
    ensure!(after < before + (32 << 20), "{before} -> {after} bytes of memory");
    // Whoever comes next is served.
    QmpClient::connect(&path)?.execute("query-commands", &json!({}))?;
    stop(server, &[&monitor_socket(&bench)]).map(drop)
}

fn resident(process: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm"))?;
    let pages: u64 = text.split_whitespace().nth(1).context("pages")?.parse()?;
    Ok(pages * 4096)
}

#[test]
fn monitors_speak_the_protocol_of_the_peer() {
    with(&ringloom(), the_protocol_is_qemus);
}

#[test]
fn a_hostile_client_of_a_monitor_holds_up_nobody() {
    with(&ringloom(), nobody_is_held_up);
}
