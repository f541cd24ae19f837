//! Addresses that metrics are not served at, and what a client is told that asks for something else.

use std::net::{TcpListener, TcpStream};

use super::*;
use crate::support::Disk;

/// The address of TCP that a daemon says in its log.
pub(super) fn address(server: &Server) -> Result<String> {
    server.wait_for_log("metrics: listening on http://", LIMIT)?;
    let log = server.log();
    let (_, rest) = log.split_once("metrics: listening on http://").context("no address")?;
    Ok(rest.split('/').next().unwrap_or_default().to_owned())
}

#[test]
fn an_address_that_others_can_reach_is_refused_with_the_reason() {
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |program| {
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(1 << 20, 1)?;
        let with = |more: &[&str]| {
            let more = more.iter().map(|word| (*word).to_owned());
            disk.arguments().into_iter().chain(more).collect::<Vec<_>>()
        };
        let exit = program.refusal(&with(&["--metrics", "0.0.0.0:0"]), LIMIT)?;
        let said = "--metrics 0.0.0.0:0: 0.0.0.0:0 can be reached from other hosts, and metrics are neither encrypted \
                    nor guarded by a password: give an address of this host alone (127.0.0.1, [::1], unix:PATH), or \
                    add --metrics-insecure";
        ensure!(exit.status.code() == Some(1) && exit.stderr.contains(said), "{exit:?}");
        ensure!(exit.stderr.lines().count() == 1, "not one sentence: {}", exit.stderr);
        let line = with(&["--metrics-insecure", "--metrics", "0.0.0.0:0", "--sandbox", "on"]);
        let server = program.start(&line, &[disk.socket()])?;
        let address = address(&server)?;
        let port = address.rsplit(':').next().unwrap_or_default();
        let (_, text) = get(TcpStream::connect(format!("127.0.0.1:{port}"))?)?;
        ensure!(text.contains("ringloom_build_info{"), "{text}");
        stop(server, &[&disk.socket()])?;
        // One that somebody else has.
        let taken = TcpListener::bind("127.0.0.1:0")?;
        let theirs = taken.local_addr()?.to_string();
        let exit = program.refusal(&with(&["--metrics", &theirs]), LIMIT)?;
        let said = format!("metrics: cannot listen on {theirs}: Address already in use");
        ensure!(exit.status.code() == Some(1) && exit.stderr.contains(&said), "{exit:?}");
        ensure!(!disk.socket().exists(), "a socket is left behind");
        Ok(())
    });
}

#[test]
fn two_daemons_do_not_take_one_socket() {
    let bench = Bench::new().expect("a directory");
    with(&ringloom(), |program| {
        let server = start(&bench, &[])?;
        let other = Disk::new(&bench, "e1", 1);
        other.create(1 << 20, 2)?;
        let line = [other.arguments(), metrics(&bench)].concat();
        let exit = program.refusal(&line, LIMIT)?;
        let said = format!("socket {} is served by a live process", bench.text("m.sock"));
        ensure!(exit.status.code() == Some(1) && exit.stderr.contains(&said), "{exit:?}");
        scrape(&bench.path("m.sock"))?;
        stop(server, &[&bench.path("m.sock")]).map(drop)
    });
}
