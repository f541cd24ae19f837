//! What each signal means: one that comes twice at once, one that was ignored at the start, one that asks for a look, and
//! those that mean nothing.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use testkit::client::{Client, Shape};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Program, STOP_LIMIT, Server, Signal};

use super::{ensure_gone, use_disk};
use crate::support::{ringloom, ringloom_that_hears, with};

/// A disk without content.
fn line(socket: &str, more: &[&str]) -> Vec<String> {
    let export = format!("vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path={socket}");
    let line = ["--blockdev", "null-co,node-name=n,size=1048576", "--export", &export];
    line.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

fn start(bench: &Bench, program: &Program, more: &[&str]) -> Result<(Server, PathBuf)> {
    let socket = bench.path("e0.sock");
    let line = line(&bench.text("e0.sock"), more);
    let server = program.start(&line, std::slice::from_ref(&socket))?;
    // It listens before signals end it in good order.
    server.wait_for_log("listening", STOP_LIMIT)?;
    Ok((server, socket))
}

/// The program as a shell starts it that ignores these signals.
fn ignoring(signals: &str) -> Program {
    let script = format!("trap '' {signals}; exec \"$0\" serve \"$@\"");
    Program::named("ringloom", "sh", &["-c", &script, env!("CARGO_BIN_EXE_ringloom")])
}

/// timeout(1) signals its child and the group that the child is in.
#[test]
fn signals_that_come_at_once_are_one_and_the_log_names_it() {
    with(&ringloom_that_hears(), |program| {
        for _ in 0..3 {
            let bench = Bench::new()?;
            let (mut server, socket) = start(&bench, program, &[])?;
            server.freeze()?;
            for signal in [Signal::TERM, Signal::INT, Signal::CONT] {
                server.signal(signal)?;
            }
            server.wait_for_leave()?;
            let log = server.log();
            // Of two that are pending the kernel delivers the one with the smaller number first.
            let is_named =
                ["SIGTERM", "SIGINT"].iter().any(|name| log.contains(&format!("{name}: stopping")));
            ensure!(is_named, "the log does not name the signal: {log}");
            ensure_gone(&[&socket])?;
        }
        Ok(())
    });
}

#[test]
fn a_signal_that_was_ignored_at_the_start_is_ignored_to_the_end() {
    with(&ignoring("HUP INT"), |program| {
        let bench = Bench::new()?;
        let (mut server, socket) = start(&bench, program, &[])?;
        for signal in [Signal::HUP, Signal::INT, Signal::HUP] {
            server.signal(signal)?;
        }
        use_null(&socket)?;
        ensure!(server.is_alive()?, "it has ended: {}", server.log());
        server.stop()?;
        ensure!(server.log().contains("SIGTERM: stopping"), "{}", server.log());
        ensure_gone(&[&socket])
    });
}

#[test]
fn signals_without_meaning_are_said_and_end_nothing() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let (mut server, socket) = start(&bench, program, &[])?;
        for (signal, name) in [(Signal::USR2, "SIGUSR2"), (Signal::ALARM, "SIGALRM")] {
            server.signal(signal)?;
            server.wait_for_log(&format!("{name} means nothing"), STOP_LIMIT)?;
        }
        // What somebody repeats fills no log.
        for _ in 0..40 {
            server.signal(Signal::USR2)?;
            use_null(&socket)?;
        }
        let said = server.log().matches("means nothing").count();
        ensure!((2..=10).contains(&said), "said {said} times: {}", server.log());
        server.stop()?;
        ensure_gone(&[&socket])
    });
}

/// SIGUSR1 asks what iothreads and queues have done since it came the last time.
#[test]
fn a_table_says_what_iothreads_and_queues_do() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        image::create_sparse(&bench.path("d.img"), 1 << 20)?;
        let socket = bench.path("d.sock");
        let line = [&bench.text("d.img"), "--socket", &bench.text("d.sock"), "--iothreads", "2"];
        let mut server = program.start(&line.map(str::to_owned), std::slice::from_ref(&socket))?;
        server.signal(Signal::USR1)?;
        server.wait_for_log("iothread iothread1: 0 queues; ", STOP_LIMIT)?;
        let mut client = Client::connect(&socket, Shape::small())?;
        for block in 0..32 {
            client.write(block * 4096, &[1; 4096], 0)?;
        }
        server.signal(Signal::USR1)?;
        server.wait_for_log("queue 0 on iothread0: ", STOP_LIMIT)?;
        let log = server.log();
        let queue = log.lines().find(|it| it.contains("queue 0 on iothread0: "));
        // The answer is in the ring before the request is out of the count: up to one is in flight.
        let words = ["requests/s, ", " MiB/s, ", " in flight, half within ", "s and 99 % within "];
        ensure!(queue.is_some_and(|it| words.iter().all(|word| it.contains(word))), "{log}");
        // For the same reason the table after that may have one request more.
        for tables in 3..=4 {
            server.signal(Signal::USR1)?;
            poll_until("the next table", STOP_LIMIT, || {
                Ok((server.log().matches("iothread iothread1: ").count() > tables).then_some(()))
            })?;
        }
        server.wait_for_log("1 queues had no requests", STOP_LIMIT)?;
        drop(client);
        server.stop()?;
        ensure!(!server.log().contains("means nothing"), "{}", server.log());
        Ok(())
    });
}

/// SIGXFSZ would end the daemon for the write of one guest.
#[test]
fn a_write_beyond_the_limit_of_file_sizes_fails_alone() {
    let script = "ulimit -f 1024; exec \"$0\" serve \"$@\"";
    let program = Program::named("ringloom", "sh", &["-c", script, env!("CARGO_BIN_EXE_ringloom")]);
    for direct in ["on", "off"] {
        with(&program, |program| {
            let bench = Bench::new()?;
            image::create_sparse(&bench.path("d.img"), 4 << 20)?;
            let socket = bench.path("d.sock");
            let line =
                [&bench.text("d.img"), "--socket", &bench.text("d.sock"), "--direct", direct];
            let line = line.map(str::to_owned);
            let mut server = program.start(&line, std::slice::from_ref(&socket))?;
            let mut client = Client::connect(&socket, Shape::small())?;
            client.write(0, &[1; 4096], 0)?;
            ensure!(client.write(3 << 20, &[2; 4096], 0).is_err(), "{direct}: behind the limit");
            server.wait_for_log("File too large", STOP_LIMIT)?;
            client.write(4096, &[3; 4096], 0)?;
            ensure!(client.read(0, 4096, 0)? == [1; 4096], "{direct}: another content");
            server.stop()?;
            Ok(())
        });
    }
}

/// Where there is no terminal to lose.
#[test]
fn sighup_asks_for_a_look_where_the_log_is_a_file() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        image::create_sparse(&bench.path("d.img"), 1 << 20)?;
        let (socket, log) = (bench.path("d.sock"), bench.path("ringloom.log"));
        let words = [
            &bench.text("d.img"),
            "--socket",
            &bench.text("d.sock"),
            "--log-file",
            &bench.text("ringloom.log"),
        ];
        let line: Vec<String> = words.map(str::to_owned).into();
        let mut server = program.start(&line, std::slice::from_ref(&socket))?;
        let said = |text: &str| {
            poll_until(text, STOP_LIMIT, || {
                Ok(std::fs::read_to_string(&log)?.contains(text).then_some(()))
            })
        };
        said("listening")?;
        image::create_sparse(&bench.path("d.img"), 3 << 20)?;
        server.signal(Signal::HUP)?;
        said("SIGHUP: files are measured again")?;
        said("has grown from 1048576 to 3145728 bytes")?;
        use_disk(&socket, 0x21)?;
        server.stop()?;
        said("SIGTERM: stopping")?;
        ensure!(server.log().is_empty(), "stderr: {}", server.log());
        ensure_gone(&[&socket])
    });
}

fn use_null(socket: &Path) -> Result<()> {
    Client::connect(socket, Shape::small())?.read(0, 4096, 0).map(drop)
}
