//! Clients that say nothing, too many clients, and what they cost.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::report::note;

use super::client::{Client, Command};
use super::{disk, server, socket, start, tool, uri};
use crate::support::{ringloom, stop, with};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(20);

/// How many descriptors a process has.
fn descriptors(server: &Server) -> Result<usize> {
    Ok(std::fs::read_dir(format!("/proc/{}/fd", server.pid()))?.count())
}

/// A thousand clients that say nothing: the next one is served, and what they cost has a bound.
fn silence_keeps_nobody_out(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), 1 << 20)?;
    let mut line = server(&bench, &[]);
    line.extend(disk(&bench, "a", ""));
    let server = start(program, &bench, &line)?;
    let before = descriptors(&server)?;
    let mut silent = Vec::new();
    for number in 0..1000 {
        let connect = || UnixStream::connect(socket(&bench));
        let stream = poll_until("a connection", LIMIT, || Ok(connect().ok()))?;
        silent.push(stream);
        if number % 100 == 99 {
            tool("nbdinfo", &["--size", &uri(&bench, "a")])?;
        }
    }
    let after = descriptors(&server)?;
    ensure!(after <= before + 80, "{before} -> {after} descriptors");
    // Those that came first were let go.
    let mut greeting = Vec::new();
    silent[0].set_read_timeout(Some(Duration::from_secs(10)))?;
    silent[0].read_to_end(&mut greeting).context("it was not hung up on")?;
    drop(silent);
    poll_until("descriptors to be given back", LIMIT, || {
        Ok((descriptors(&server)? <= before).then_some(()))
    })?;
    stop(server, &[&socket(&bench)]).map(drop)
}

/// Whoever takes too long is told to go, and whoever is one too many waits.
fn limits_hold(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), 1 << 20)?;
    let mut line = server(&bench, &[]);
    line[1] += ",handshake-max-seconds=1,max-connections=1";
    line.extend(disk(&bench, "a", ""));
    let server = start(program, &bench, &line)?;
    let mut slow = UnixStream::connect(socket(&bench))?;
    slow.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut greeting = Vec::new();
    slow.read_to_end(&mut greeting).context("it was not hung up on")?;
    ensure!(greeting.starts_with(b"NBDMAGICIHAVEOPT"), "{greeting:?}");
    server.wait_for_log("its handshake took too long", Duration::from_secs(10))?;
    stop(server, &[&socket(&bench)]).map(drop)
}

/// A client that asks for nothing and leaves, with a word or without one, is no news.
fn leaving_is_no_fault(program: &Program) -> Result<()> {
    /// The flags of a client, then `NBD_OPT_ABORT`.
    const ABORT: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x02\0\0\0\0";
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), 1 << 20)?;
    let mut line = server(&bench, &[]);
    line.extend(disk(&bench, "a", ""));
    let server = start(program, &bench, &line)?;
    let before = descriptors(&server)?;
    for words in [b"".as_slice(), &ABORT[..4], ABORT] {
        for greeted in [false, true] {
            for _ in 0..20 {
                let mut stream = UnixStream::connect(socket(&bench))?;
                if greeted {
                    stream.read_exact(&mut [0; 18])?;
                }
                // It may have hung up already.
                drop(stream.write_all(words));
            }
        }
    }
    tool("nbdinfo", &["--list", &uri(&bench, "a")])?;
    poll_until(
        "clients to be gone",
        LIMIT,
        || Ok((descriptors(&server)? <= before).then_some(())),
    )?;
    let log = stop(server, &[&socket(&bench)])?;
    ensure!(!log.contains("WARN"), "{log}");
    Ok(())
}

/// What the process has in memory, in KiB, without what it shares with others.
fn resident_kib(server: &Server) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next()).context("no RssAnon")?;
    Ok(number.parse()?)
}

/// Connections that have been used and do nothing cost no CPU and little memory.
fn idle_connections_are_cheap(program: &Program) -> Result<()> {
    const CONNECTIONS: u64 = 500;
    let bench = Bench::new()?;
    image::create_sparse(&bench.path("a.img"), 1 << 20)?;
    let mut line = server(&bench, &[]);
    line[1] += ",max-connections=0";
    line.extend(disk(&bench, "a", ""));
    let mut server = start(program, &bench, &line)?;
    let connect = || -> Result<Client> {
        let mut client = Client::connect(&socket(&bench), "a")?;
        client.send(Command::Read, 1, (0, 4096), &[])?;
        client.reply()?;
        client.data(4096)?;
        Ok(client)
    };
    let first = connect()?;
    let before = resident_kib(&server)?;
    let idle = (0..CONNECTIONS).map(|_| connect()).collect::<Result<Vec<_>>>()?;
    // What was kept for requests is given back a second after the last one, which takes some CPU once.
    server.wait_while_running(Duration::from_secs(2))?;
    let each = poll_until("memory to be given back", LIMIT, || {
        let each = resident_kib(&server)?.saturating_sub(before) / CONNECTIONS;
        Ok((each <= 100).then_some(each))
    })?;
    let cpu = server.cpu_time()?;
    server.wait_while_running(Duration::from_secs(2))?;
    let spent = server.cpu_time()? - cpu;
    ensure!(spent <= Duration::from_millis(20), "{spent:?} of CPU in 2 s");
    note(&format!("{each} KiB for each connection, {spent:?} of CPU in 2 s"));
    drop((first, idle));
    stop(server, &[&socket(&bench)]).map(drop)
}

#[test]
fn five_hundred_idle_connections_are_cheap() {
    with(&ringloom(), idle_connections_are_cheap);
}

#[test]
fn a_thousand_silent_clients_keep_nobody_out() {
    with(&ringloom(), silence_keeps_nobody_out);
}

#[test]
fn clients_that_leave_are_no_news() {
    with(&ringloom(), leaving_is_no_fault);
}

#[test]
fn a_handshake_has_its_time() {
    with(&ringloom(), limits_hold);
}
