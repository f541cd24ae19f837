//! Disks over NBD, as clients that nobody here wrote see them: libnbd's tools, QEMU 10, fio.

mod certificates;
mod client;
mod control;
mod crowd;
mod fleecing;
mod guest;
mod kills;
mod peers;
mod remote_disks;
mod replaced;
mod tls;

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use testkit::process::{Bench, Program, Server};

pub(crate) use remote_disks::verify;

/// The socket of the NBD server of a bench.
pub(crate) fn socket(bench: &Bench) -> PathBuf {
    bench.path("nbd.sock")
}

/// Where libnbd and QEMU find an export there.
pub(crate) fn uri(bench: &Bench, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket(bench).display())
}

/// A server on that socket, with these options besides.
pub(crate) fn server(bench: &Bench, more: &[&str]) -> Vec<String> {
    let addr = format!("addr.type=unix,addr.path={}", socket(bench).display());
    let mut line = vec!["--nbd-server".to_owned(), addr];
    line.extend(more.iter().map(|word| (*word).to_owned()));
    line
}

/// A writable node and export of a file of the bench, named alike.
fn disk(bench: &Bench, name: &str, more: &str) -> [String; 4] {
    let image = bench.text(&format!("{name}.img"));
    [
        "--blockdev".to_owned(),
        format!("file,node-name={name},filename={image},cache.direct=off,discard=unmap"),
        "--export".to_owned(),
        format!("nbd,id={name},node-name={name},writable=on{more}"),
    ]
}

/// Starts it, and waits until it listens.
pub(crate) fn start(program: &Program, bench: &Bench, line: &[String]) -> Result<Server> {
    program.start(line, &[socket(bench)])
}

/// Runs a tool; what it prints.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> Result<String> {
    let output = outcome(program, arguments)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{program} {arguments:?}: {}: {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a tool that may fail.
pub(crate) fn outcome(program: &str, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.arg("180").arg(program).args(arguments);
    command.output().with_context(|| format!("{program} {arguments:?}"))
}
