//! The NBD server at run time: commands, the fences, what a restart serves, a client that is there when things end.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;

use super::{outcome, socket, tool, uri};
use crate::control::{monitor, monitor_socket, state};
use crate::support::{ringloom, stop, with};

fn begin(program: &Program, bench: &Bench, more: &[String]) -> Result<(Server, QmpClient)> {
    let line = [monitor(bench).as_slice(), more].concat();
    let server = program.start(&line, &[monitor_socket(bench)])?;
    let client = QmpClient::connect(&monitor_socket(bench))?;
    Ok((server, client))
}

fn address(bench: &Bench) -> Value {
    json!({"addr": {"type": "unix", "data": {"path": socket(bench)}}})
}

/// Why a command is refused.
fn refusal(client: &mut QmpClient, command: &str, arguments: &Value) -> Result<String> {
    match client.execute(command, arguments) {
        Ok(answer) => bail!("{command} {arguments}: {answer}"),
        Err(error) => Ok(error.to_string()),
    }
}

/// Server and exports come and go by commands; names are QEMU's, and so are errors.
fn commands_are_qemus(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), 1 << 20)?;
    let (server, mut client) = begin(program, &bench, &[])?;
    let file = bench.text("a.img");
    client
        .execute("blockdev-add", &json!({"driver": "file", "node-name": "n", "filename": file}))?;
    let export = json!({"type": "nbd", "id": "e", "node-name": "n", "name": "x", "writable": true});
    let refused = refusal(&mut client, "block-export-add", &export)?;
    ensure!(refused.contains("NBD server not running"), "{refused}");
    client.execute("nbd-server-start", &address(&bench))?;
    let refused = refusal(&mut client, "nbd-server-start", &address(&bench))?;
    ensure!(refused.contains("NBD server already running"), "{refused}");
    client.execute("block-export-add", &export)?;
    let size = tool("nbdinfo", &["--size", &uri(&bench, "x")])?;
    ensure!(size.trim() == "1048576", "{size}");
    let exports = client.execute("query-block-exports", &json!({}))?;
    ensure!(exports[0]["type"] == "nbd" && exports[0]["id"] == "e", "{exports}");
    client.execute("nbd-server-add", &json!({"device": "n", "name": "second"}))?;
    tool("nbdinfo", &["--size", &uri(&bench, "second")])?;
    client.execute("nbd-server-remove", &json!({"name": "second", "mode": "hard"}))?;
    ensure!(
        !outcome("nbdinfo", &["--size", &uri(&bench, "second")])?.status.success(),
        "still there"
    );
    client.execute("nbd-server-stop", &json!({}))?;
    ensure!(!socket(&bench).exists(), "the socket is still there");
    let left = client.execute("query-block-exports", &json!({}))?;
    ensure!(left == json!([]), "{left}");
    stop(server, &[&monitor_socket(&bench)]).map(drop)
}

/// TCP is a right of its own.
fn tcp_comes_from_the_line(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let inet = |host: &str| {
        let data = json!({"host": host, "port": port.to_string()});
        json!({"addr": {"type": "inet", "data": data}})
    };
    let (server, mut client) = begin(program, &bench, &[])?;
    let refused = refusal(&mut client, "nbd-server-start", &inet("127.0.0.1"))?;
    ensure!(refused.contains("--allow-listen"), "{refused}");
    drop(client);
    stop(server, &[&monitor_socket(&bench)])?;
    let allowed = ["--allow-listen".to_owned(), format!("127.0.0.1:{port}")];
    let (server, mut client) = begin(program, &bench, &allowed)?;
    for other in ["127.0.0.2", "localhost"] {
        let refused = refusal(&mut client, "nbd-server-start", &inet(other))?;
        ensure!(refused.contains("--allow-listen"), "{other}: {refused}");
    }
    client.execute("nbd-server-start", &inet("127.0.0.1"))?;
    client
        .execute("blockdev-add", &json!({"driver": "null-co", "node-name": "n", "size": 4096}))?;
    client.execute("block-export-add", &json!({"type": "nbd", "id": "e", "node-name": "n"}))?;
    let size = tool("nbdinfo", &["--size", &format!("nbd://127.0.0.1:{port}/n")])?;
    ensure!(size.trim() == "4096", "{size}");
    stop(server, &[&monitor_socket(&bench)]).map(drop)
}

/// What commands have made is there after a kill.
fn a_restart_serves_it(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), 1 << 20)?;
    let (mut server, mut client) = begin(program, &bench, &state(&bench))?;
    let file = bench.text("a.img");
    client
        .execute("blockdev-add", &json!({"driver": "file", "node-name": "n", "filename": file}))?;
    client.execute("nbd-server-start", &address(&bench))?;
    client.execute("block-export-add", &json!({"type": "nbd", "id": "e", "node-name": "n"}))?;
    server.kill()?;
    let (server, client) = begin(program, &bench, &state(&bench))?;
    server.wait_for_log("NBD server: listening", Duration::from_secs(10))?;
    tool("nbdinfo", &["--size", &uri(&bench, "n")])?;
    drop(client);
    stop(server, &[&monitor_socket(&bench)]).map(drop)
}

#[test]
fn commands_make_and_end_server_and_exports() {
    with(&ringloom(), commands_are_qemus);
}

#[test]
fn commands_listen_on_tcp_only_where_the_line_allows_it() {
    with(&ringloom(), tcp_comes_from_the_line);
}

#[test]
fn a_restart_serves_what_commands_have_made() {
    with(&ringloom(), a_restart_serves_it);
}
