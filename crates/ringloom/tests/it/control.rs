//! A running daemon takes commands (QMP): what they change, and what is there after a restart.

mod active;
mod backup;
mod chains;
mod changes;
mod clients;
mod corrupted;
mod faulty_disk;
pub(crate) mod filters;
mod guest;
pub(crate) mod internal_snapshots;
#[cfg(feature = "fault-points")]
mod killed;
mod leaks;
mod monitored;
mod moved;
mod parity;
mod python;
mod reopened;
mod restart;
mod rights;
mod secrets;
mod storm;

use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;

/// The socket of the monitor of a bench.
pub(crate) fn monitor_socket(bench: &Bench) -> PathBuf {
    bench.path("qmp.sock")
}

/// The options of a monitor on that socket, which may open what is in the bench.
pub(crate) fn monitor(bench: &Bench) -> Vec<String> {
    let socket = monitor_socket(bench);
    vec![
        "--chardev".to_owned(),
        format!("socket,id=qmp,path={},server=on,wait=off", socket.display()),
        "--monitor".to_owned(),
        "chardev=qmp".to_owned(),
        "--allow-below".to_owned(),
        bench.path("").display().to_string(),
    ]
}

/// Starts a daemon with a monitor, these options, and sockets that it is to listen on.
pub(crate) fn start(
    program: &Program,
    bench: &Bench,
    more: &[String],
    sockets: &[PathBuf],
) -> Result<(Server, QmpClient)> {
    let arguments = [monitor(bench).as_slice(), more].concat();
    let mut sockets = sockets.to_vec();
    sockets.push(monitor_socket(bench));
    let server = program.start(&arguments, &sockets)?;
    let client = QmpClient::connect(&monitor_socket(bench))?;
    Ok((server, client))
}

/// The options of a state file.
pub(crate) fn state(bench: &Bench) -> Vec<String> {
    vec!["--state".to_owned(), bench.text("state")]
}

/// A writable export of a node, by a socket named as it.
pub(crate) fn export(bench: &Bench, id: &str, node: &str) -> Value {
    json!({
        "type": "vhost-user-blk", "id": id, "node-name": node, "writable": true,
        "num-queues": 2, "addr": {"type": "unix", "path": bench.text(&format!("{id}.sock"))},
    })
}

/// A qcow2 image in a file of the bench, without a backing file.
fn overlay(bench: &Bench, name: &str) -> Value {
    let file = json!({"driver": "file", "filename": bench.text(name)});
    json!({"driver": "qcow2", "node-name": name, "backing": null, "file": file})
}
