//! Which servers commands may connect to, behind the fences.

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;

use super::nbdkit;
use crate::control::{monitor, monitor_socket};
use crate::support::{ringloom, stop, with};

fn add(client: &mut QmpClient, name: &str, server: &Value) -> Result<Option<String>> {
    let node = json!({"driver": "nbd", "node-name": name, "server": server});
    match client.execute("blockdev-add", &node) {
        Ok(_) => Ok(None),
        Err(error) => Ok(Some(error.to_string())),
    }
}

/// Servers of TCP come from the line, one by one; so do UNIX sockets, by their directory.
fn servers_come_from_the_line(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let mut kit = nbdkit(&bench, &["memory", "1M"])?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let tcp = ["-f", "--exit-with-parent", "-p", &port.to_string(), "memory", "1M"];
    let mut on_tcp = Program::named("nbdkit", "nbdkit", &tcp).start(&[], &[])?;
    testkit::deadline::poll_until("the port", std::time::Duration::from_secs(10), || {
        Ok(std::net::TcpStream::connect(("127.0.0.1", port)).ok())
    })?;
    let inet = |host: &str| json!({"type": "inet", "host": host, "port": port.to_string()});
    let unix = json!({"type": "unix", "path": bench.path("kit.sock")});
    let begin = |more: &[String]| -> Result<_> {
        let line = [monitor(&bench).as_slice(), more].concat();
        let server = program.start(&line, &[monitor_socket(&bench)])?;
        Ok((server, QmpClient::connect(&monitor_socket(&bench))?))
    };
    let (server, mut client) = begin(&[])?;
    for wanted in [&inet("127.0.0.1"), &inet("localhost"), &unix] {
        let Some(refused) = add(&mut client, "n", wanted)? else { bail!("{wanted} was allowed") };
        ensure!(refused.contains("--allow-connect"), "{refused}");
    }
    drop(client);
    stop(server, &[&monitor_socket(&bench)])?;
    let directory = bench.path("kit.sock").parent().expect("it is in a directory").to_owned();
    let allowed = [
        "--allow-connect".to_owned(),
        format!("localhost:{port}"),
        "--allow-below".to_owned(),
        directory.display().to_string(),
    ];
    let (server, mut client) = begin(&allowed)?;
    for other in [&inet("127.0.0.2"), &json!({"type": "unix", "path": "/run/other.sock"})] {
        ensure!(add(&mut client, "n", other)?.is_some(), "{other} was allowed");
    }
    for (name, wanted) in [("a", &inet("localhost")), ("b", &unix)] {
        let refused = add(&mut client, name, wanted)?;
        ensure!(refused.is_none(), "{wanted}: {refused:?}: {}", server.log());
        client.execute("blockdev-del", &json!({"node-name": name}))?;
    }
    drop(client);
    stop(server, &[&monitor_socket(&bench)])?;
    kit.kill()?;
    on_tcp.kill()
}

#[test]
fn commands_connect_only_where_the_line_allows_it() {
    with(&ringloom(), servers_come_from_the_line);
}
