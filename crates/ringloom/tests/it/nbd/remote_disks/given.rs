//! A connection that the daemon was started with (`server.type=fd`): one end of a pair of sockets, with nbdkit at the other.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::deadline::poll_until;
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;
use testkit::report::skipped;

use super::{line, use_it};
use crate::control::{monitor, monitor_socket};
use crate::nbd::{outcome, start, uri};

/// How long clients are tried until the log has the reason.
const LOG_LIMIT: Duration = Duration::from_secs(20);

/// Starts nbdkit at one end of a pair of sockets, has the other one at descriptor 3, and becomes the program.
const PARENT: &str = "
import os, socket, subprocess, sys
ours, theirs = socket.socketpair()
kit = subprocess.Popen(['nbdkit', '-s', '--exit-with-parent', 'memory', '64M'], stdin=theirs, stdout=theirs)
open(sys.argv[1], 'w').write(str(kit.pid))
theirs.close()
os.dup2(ours.fileno(), 103)
os.dup2(103, 3)
os.execv(sys.argv[2], sys.argv[2:])
";

fn program(bench: &Bench, command: &[&str]) -> Program {
    let pidfile = bench.text("kit.pid");
    let words = [&["-c", PARENT, &pidfile], command].concat();
    Program::named("ringloom", "python3", &words)
}

fn given(more: &str) -> [String; 2] {
    let keys = "discard=unmap,server.type=fd,server.str=3";
    ["--blockdev".to_owned(), format!("nbd,node-name=n,{keys}{more}")]
}

/// Two iothreads share it; when it is lost, so is the disk.
fn a_connection_is_used_till_its_end(ringloom: &str) -> Result<()> {
    let bench = Bench::new()?;
    let threads = ["--object", "iothread,id=t0", "--object", "iothread,id=t1"].map(str::to_owned);
    let iothreads = ",iothread.0=t0,iothread.1=t1";
    let words = [&threads[..], &line(&bench, &given(""), iothreads), &monitor(&bench)].concat();
    let mut ours = start(&program(&bench, &[ringloom, "serve"]), &bench, &words)?;
    use_it(&bench)?;
    super::connections::verify(&bench, 4, 2)?;
    let mut commands = QmpClient::connect(&monitor_socket(&bench))?;
    let node = json!({"driver": "nbd", "node-name": "m", "server": {"type": "fd", "str": "3"}});
    let (_, sentence) = commands.refused("blockdev-add", &node)?;
    ensure!(sentence.contains("server.type=fd is for the command line"), "{sentence}");
    let kit: i32 = std::fs::read_to_string(bench.path("kit.pid"))?.parse()?;
    let kit = rustix::process::Pid::from_raw(kit).expect("a process");
    rustix::process::kill_process(kit, rustix::process::Signal::KILL)?;
    // A client that leaves at once does not hear why there is no other connection, and the log does not either.
    poll_until("the log to say that there is no other connection", LOG_LIMIT, || {
        let read = outcome("qemu-io", &["-f", "raw", "-c", "read 0 4096", &uri(&bench, "x")])?;
        ensure!(!read.status.success(), "{read:?}");
        Ok(ours.log().contains("is over, and there is no other").then_some(()))
    })
    .with_context(|| ours.log())?;
    drop(commands);
    // What fio wrote was never flushed.
    let status = ours.terminate()?;
    ensure!(!status.success(), "{status}: {}", ours.log());
    ensure!(ours.log().contains("'' at descriptor 3: the last flush failed"), "{}", ours.log());
    Ok(())
}

/// What cannot be used is said.
fn refusals_have_a_sentence(ringloom: &str) -> Result<()> {
    let bench = Bench::new()?;
    let ours = program(&bench, &[ringloom, "serve"]);
    let check = |more: &str, sentence: &str| -> Result<()> {
        let line = line(&bench, &given(more), "");
        let exit = ours.refusal(&line, Duration::from_secs(30))?;
        ensure!(!exit.status.success() && exit.stderr.contains(sentence), "{}", exit.stderr);
        Ok(())
    };
    check(",reconnect-delay=5", "reconnect-delay is of no use with server.type=fd")?;
    check(",open-timeout=5", "open-timeout is of no use with server.type=fd")?;
    check(",export=none,tls-creds=c", "tls-creds on a descriptor needs tls-hostname")?;
    for (number, sentence) in
        [("9", "the descriptor is not open"), ("x", "Unable to parse FD number x"), ("2", "socket")]
    {
        let node = format!("nbd,node-name=n,server.type=fd,server.str={number}");
        let line = line(&bench, &["--blockdev".to_owned(), node], "");
        let exit = ours.refusal(&line, Duration::from_secs(30))?;
        ensure!(!exit.status.success() && exit.stderr.contains(sentence), "{}", exit.stderr);
    }
    Ok(())
}

#[track_caller]
fn with_python(behaviour: impl FnOnce(&str) -> Result<()>) {
    if let Some(reason) = Program::named("python3", "python3", &[]).missing() {
        skipped(&reason);
        return;
    }
    let ringloom = env!("CARGO_BIN_EXE_ringloom");
    behaviour(ringloom).unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn a_connection_that_the_daemon_was_started_with_is_used_till_its_end() {
    with_python(a_connection_is_used_till_its_end);
}

#[test]
fn a_descriptor_that_is_no_connection_is_refused() {
    with_python(refusals_have_a_sentence);
}
