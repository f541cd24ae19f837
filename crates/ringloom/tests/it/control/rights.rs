//! Sockets of exports that commands make have the mode and the group that the line says, behind all fences.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use anyhow::{Result, ensure};
use serde_json::json;
use testkit::client::{Client, Shape};
use testkit::process::{Bench, Program};
use testkit::report::skipped;

use super::{export, start};
use crate::support::{is_root, ringloom, stop, with};

/// A group that every Debian has, beside root's.
const GROUP: (&str, u32) = ("daemon", 1);

/// The daemon, started with a umask that takes everything from all others.
fn strict() -> Program {
    let script = "umask 077; exec \"$@\"";
    Program::named(
        "ringloom",
        "sh",
        &["-c", script, "sh", env!("CARGO_BIN_EXE_ringloom"), "serve", "--sandbox", "on"],
    )
}

fn modes_are_those_of_the_line(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let more = ["--socket-mode", "0660", "--blockdev", "null-co,node-name=n,size=1048576"];
    let (server, mut qmp) = start(program, &bench, &more.map(str::to_owned), &[])?;
    qmp.execute("block-export-add", &export(&bench, "e", "n"))?;
    let mode = std::fs::metadata(bench.path("e.sock"))?.permissions().mode() & 0o777;
    ensure!(mode == 0o660, "{mode:o}: {}", server.log());
    // The umask is as it was.
    let create = json!({
        "job-id": "j", "options": {"driver": "file", "filename": bench.text("made"), "size": 4096},
    });
    qmp.execute("blockdev-create", &create)?;
    while qmp.event("JOB_STATUS_CHANGE")?["data"]["status"] != "concluded" {}
    let mode = std::fs::metadata(bench.path("made"))?.permissions().mode() & 0o077;
    ensure!(mode == 0, "{mode:o}");
    drop(Client::connect(&bench.path("e.sock"), Shape::small())?.read(0, 512, 0)?);
    stop(server, &[&bench.path("e.sock")]).map(drop)
}

#[test]
fn the_mode_of_the_line_is_that_of_sockets_made_at_run_time() {
    with(&strict(), modes_are_those_of_the_line);
}

fn groups_are_those_of_the_directory(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let more = ["--socket-group", GROUP.0, "--blockdev", "null-co,node-name=n,size=1048576"];
    let (server, mut qmp) = start(program, &bench, &more.map(str::to_owned), &[])?;
    // Behind the fences the daemon cannot give files away.
    let (class, desc) = qmp.refused("block-export-add", &export(&bench, "e", "n"))?;
    ensure!(class == "GenericError" && desc.contains("set-group-ID bit (chmod g+s)"), "{desc}");
    ensure!(!bench.path("e.sock").exists(), "the socket is left behind");
    let exports = qmp.execute("query-block-exports", &json!({}))?;
    ensure!(exports == json!([]), "{exports}");
    std::os::unix::fs::chown(bench.path(""), None, Some(GROUP.1))?;
    std::fs::set_permissions(bench.path(""), std::fs::Permissions::from_mode(0o2750))?;
    qmp.execute("block-export-add", &export(&bench, "e", "n"))?;
    let group = std::fs::metadata(bench.path("e.sock"))?.gid();
    ensure!(group == GROUP.1, "{group}");
    stop(server, &[&bench.path("e.sock")]).map(drop)
}

#[test]
fn the_group_of_the_line_comes_from_the_directory() {
    if !is_root() {
        skipped("giving a directory to another group needs root");
        return;
    }
    with(&strict(), groups_are_those_of_the_directory);
}

fn without_fences_groups_are_given(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let more = ["--socket-group", GROUP.0, "--sandbox", "off"];
    let node = ["--blockdev", "null-co,node-name=n,size=1048576"];
    let line: Vec<String> = more.into_iter().chain(node).map(str::to_owned).collect();
    let (server, mut qmp) = start(program, &bench, &line, &[])?;
    qmp.execute("block-export-add", &export(&bench, "e", "n"))?;
    let group = std::fs::metadata(bench.path("e.sock"))?.gid();
    ensure!(group == GROUP.1, "{group}");
    stop(server, &[&bench.path("e.sock")]).map(drop)
}

#[test]
fn without_fences_sockets_are_given_to_the_group() {
    if !is_root() {
        skipped("giving a socket to another group needs root");
        return;
    }
    with(&ringloom(), without_fences_groups_are_given);
}
