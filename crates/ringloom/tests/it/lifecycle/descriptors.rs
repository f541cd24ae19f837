//! Descriptors that whoever starts the daemon has left open: closed unless they are meant.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use testkit::image;
use testkit::process::{Bench, Daemon, Program};

use super::{REFUSAL_LIMIT, use_disk};
use crate::support::{stop, with};

/// Leaks `secret` as 5 and 9, opens `disk.img` as 8, passes `passed` as 3 and 4, and becomes the daemon.
const LEAKS: &str = "exec 3<passed 4<passed 5<secret 8<>disk.img 9<secret; \
     export LISTEN_PID=$$ LISTEN_FDS=2; exec \"$@\"";

fn program(bench: &Bench) -> Program {
    let binary = env!("CARGO_BIN_EXE_ringloom");
    Program::named("ringloom", "sh", &["-c", LEAKS, "sh", binary, "serve"])
        .in_directory(bench.path(""))
}

/// Which of a process's descriptors lead there.
fn leading_to(pid: u32, path: &Path) -> Result<Vec<String>> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).context("list descriptors")?;
    let mut found = Vec::new();
    for link in links {
        let link = link?.path();
        // Those that are closed meanwhile are none.
        if link.read_link().is_ok_and(|target| target == path) {
            found.push(link.file_name().context("a name")?.display().to_string());
        }
    }
    found.sort();
    Ok(found)
}

fn check(pid: u32, bench: &Bench) -> Result<()> {
    let leading_to = |name| leading_to(pid, &bench.path(name).canonicalize()?);
    ensure!(leading_to("secret")? == [""; 0], "a leaked descriptor: {:?}", leading_to("secret"));
    // It is named, and what was opened by it is open too.
    ensure!(leading_to("disk.img")?.contains(&"8".to_owned()), "8 was named and is closed");
    ensure!(leading_to("passed")? == ["3", "4"], "passed: {:?}", leading_to("passed"));
    use_disk(&bench.path("e0.sock"), 0x94)
}

fn bench() -> Result<Bench> {
    let bench = Bench::new()?;
    image::create_filled(&bench.path("disk.img"), 1 << 20, 0x93)?;
    for name in ["secret", "passed"] {
        std::fs::write(bench.path(name), name).context("write")?;
    }
    Ok(bench)
}

fn line(disk: &str, more: &[&str]) -> Vec<String> {
    let node = format!("driver=file,node-name=f0,filename={disk}");
    let export =
        "type=vhost-user-blk,id=e0,node-name=f0,addr.type=unix,addr.path=e0.sock,writable=on";
    let line = ["--blockdev", &node, "--export", export];
    line.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

/// In the foreground.
#[track_caller]
fn check_started(disk: &str, host: impl FnOnce(Program) -> Program) {
    let bench = bench().expect("files");
    with(&host(program(&bench)), |program| {
        let socket = bench.path("e0.sock");
        let server = program.start(&line(disk, &[]), std::slice::from_ref(&socket))?;
        check(server.pid(), &bench)?;
        stop(server, &[&socket]).map(drop)
    });
}

#[test]
fn descriptors_that_nobody_means_are_closed_at_the_start() {
    check_started("/dev/fd/8", |program| program);
    check_started("/proc/self/fd/8", |program| program);
}

#[test]
fn hosts_that_close_one_by_one_close_the_same() {
    check_started("/dev/fd/8", Program::without_close_range);
}

/// The process that stays has another id, and what was passed is meant all the same.
#[test]
fn a_daemon_in_the_background_has_none_either() {
    let bench = bench().expect("files");
    with(&program(&bench), |program| {
        let pidfile: PathBuf = bench.path("pid");
        let words = ["--daemonize", "--pidfile", "pid"];
        let exit = program.refusal(&line("/dev/fd/8", &words), REFUSAL_LIMIT)?;
        ensure!(exit.status.code() == Some(0), "{exit:?}");
        let daemon = Daemon::from_pidfile(&pidfile)?;
        check(daemon.pid(), &bench)
    });
}
