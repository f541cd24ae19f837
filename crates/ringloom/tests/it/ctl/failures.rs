//! Sockets that are none, that nobody serves, or that are somebody else's, and readers that go away.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use testkit::process::Bench;

use super::{check_refused, command, greet, run};

/// What a word says of a socket that answers its first client with this, and hangs up.
fn check_answer(answer: &[u8], expected: &str) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("s");
    let listener = UnixListener::bind(&socket)?;
    std::thread::scope(|scope| {
        let answered = scope.spawn(|| -> Result<()> {
            let (mut stream, _) = listener.accept()?;
            std::io::Write::write_all(&mut stream, answer)?;
            stream.shutdown(std::net::Shutdown::Write)?;
            // What it says is read, so that it hears no reset.
            stream.read_to_end(&mut Vec::new()).context("read what it asks")?;
            Ok(())
        });
        check_refused(&bench, &socket, "list", 1, expected)?;
        answered.join().expect("it does not panic")
    })
}

#[test]
fn a_socket_that_is_no_monitor_is_told() -> Result<()> {
    check_answer(b"NBDMAGIC", "s is no monitor: what answers there does not speak QMP")?;
    check_answer(b"{\"return\": {}}", "is no monitor")?;
    check_answer(b"", "the daemon has hung up before its greeting")?;
    let mut greeting = Vec::new();
    greet(&mut greeting)?;
    check_answer(&greeting, "the daemon has hung up before the answer to query-block-exports")?;
    let whole = [greeting.as_slice(), br#"{"error": {"desc": "a\u001b[2Jb"}}"#].concat();
    check_answer(&whole, "ringloom ctl: a\u{fffd}[2Jb")?;
    check_answer(&whole[..whole.len() - 1], "hung up before the answer to query-block-exports")?;
    for (answer, expected) in [
        (&b"nonsense"[..], "the answer to query-block-exports is no object of JSON"),
        (b"[]", "is no object of JSON"),
        (b"{\"return\": 5}", "the answer to query-block-exports is no list of objects"),
        (b"{\"return\": [5]}", "is no list of objects"),
    ] {
        check_answer(&[greeting.as_slice(), answer].concat(), expected)?;
    }
    check_answer(b"5", "is no monitor")
}

#[test]
fn a_socket_that_nobody_serves_is_told() -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("s");
    check_refused(&bench, &socket, "list", 1, "there is no socket ")?;
    drop(UnixListener::bind(&socket)?);
    check_refused(&bench, &socket, "list", 1, "nobody serves ")?;
    std::fs::write(bench.path("file"), "")?;
    check_refused(&bench, &bench.path("file"), "list", 1, "nobody serves ")?;
    check_refused(&bench, &bench.path(&"x".repeat(120)), "list", 1, "File name too long")
}

#[test]
fn a_socket_of_somebody_else_is_told() -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("s");
    let _listener = UnixListener::bind(&socket)?;
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o600))?;
    if !crate::support::is_root() {
        testkit::report::skipped("only root can become somebody else");
        return Ok(());
    }
    let binary = bench.path("ringloom");
    std::fs::set_permissions(bench.path(""), std::fs::Permissions::from_mode(0o755))?;
    crate::support::copy_binary(&bench, "ringloom")?;
    let mut other = std::process::Command::new("setpriv");
    other.args(["--reuid=65534", "--clear-groups"]).arg(binary).args(["ctl", "-s"]).arg(&socket);
    other.arg("list").stdin(Stdio::null());
    let (code, _, stderr) = run(other)?;
    ensure!(code == Some(1) && stderr.contains("no permission to use "), "{code:?}: {stderr}");
    Ok(())
}

#[test]
fn whoever_says_no_socket_is_told_how_a_daemon_gets_one() -> Result<()> {
    let bench = Bench::new()?;
    let mut nowhere = std::process::Command::new(env!("CARGO_BIN_EXE_ringloom"));
    nowhere.args(["ctl", "list"]).env_remove("RINGLOOM_MONITOR");
    let (code, _, stderr) = run(nowhere)?;
    ensure!(code == Some(1) && stderr.contains("--monitor chardev=qmp"), "{code:?}: {stderr}");
    let mut named = std::process::Command::new(env!("CARGO_BIN_EXE_ringloom"));
    named.args(["ctl", "list"]).env("RINGLOOM_MONITOR", bench.path("named"));
    let (code, _, stderr) = run(named)?;
    ensure!(code == Some(1) && stderr.contains("/named"), "{code:?}: {stderr}");
    Ok(())
}

#[test]
fn wrong_words_are_answered_with_the_nearest() -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("s");
    check_refused(&bench, &socket, "resiz", 2, "'resize'")?;
    check_refused(&bench, &socket, "resize", 2, "<SIZE>")?;
    check_refused(&bench, &socket, "list --jsn", 2, "'--json'")?;
    check_refused(&bench, &socket, "", 2, "requires a subcommand")
}

/// After some seconds it is said what is waited for.
#[test]
fn a_socket_that_says_nothing_is_waited_for_aloud() -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("s");
    let listener = UnixListener::bind(&socket)?;
    let mut list = command(&bench, &socket, "list").spawn()?;
    let mut said = BufReader::new(list.stderr.take().context("its stderr")?).lines();
    let line = said.next().context("it says nothing")??;
    ensure!(line.contains("waiting for ") && line.contains("another client"), "{line}");
    drop(listener);
    let line = said.next().context("it says nothing")??;
    ensure!(line.contains("hung up before its greeting"), "{line}");
    ensure!(list.wait()?.code() == Some(1), "another status");
    Ok(())
}

/// The greeting and the answers come; nobody reads the list.
#[test]
fn a_reader_that_has_gone_away_is_no_error() -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("s");
    let listener = UnixListener::bind(&socket)?;
    std::thread::scope(|scope| {
        let answered = scope.spawn(|| -> Result<()> {
            let (mut stream, _) = listener.accept()?;
            greet(&mut stream)?;
            std::io::Write::write_all(&mut stream, b"{\"return\": {\"a\": 1}}")?;
            stream.read_to_end(&mut Vec::new()).context("read what it asks")?;
            Ok(())
        });
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut list = command(&bench, &socket, "qmp query-version");
        let status = list.stdout(writer).stderr(Stdio::inherit()).status()?;
        ensure!(status.success(), "{status}");
        answered.join().expect("it does not panic")
    })
}
