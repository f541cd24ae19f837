//! What the log says of clients: who comes and with what it is served, who waits, and who comes to serve what is served.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, EventIndex, RingLayout, Shape};
use testkit::deadline::{Deadline, poll_until};
use testkit::process::{Bench, STOP_LIMIT, Server};
use testkit::rawring::{FrontEnd, request};

use super::REFUSAL_LIMIT;
use crate::support::{Disk, ringloom, stop, with};

fn shape(queues: usize, layout: RingLayout) -> Shape {
    Shape { queues, layout, event_index: EventIndex::On, ..Shape::small() }
}

#[test]
fn a_client_is_said_with_its_process_its_queues_and_features() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 4);
        disk.create(1 << 20, 0x41)?;
        let server = disk.serve(program)?;
        let client = Client::connect(&disk.socket(), shape(4, RingLayout::Split))?;
        let pid = std::process::id();
        let came = format!("export e0: a client has come (process {pid}): 4 queues of ");
        server.wait_for_log(&came, STOP_LIMIT)?;
        server.wait_for_log(", split, event_idx, write-back", STOP_LIMIT)?;
        drop(client);
        server.wait_for_log("the client has left", STOP_LIMIT)?;
        // One that leaves before its queues have settled is said as well.
        drop(Client::connect(&disk.socket(), shape(1, RingLayout::Packed))?);
        server.wait_for_log("1 queue of ", STOP_LIMIT)?;
        server.wait_for_log(", packed, event_idx, write-back", STOP_LIMIT)?;
        // One that says nothing is heard of, too.
        let silent = UnixStream::connect(disk.socket()).context("connect")?;
        server.wait_for_log("and has started no queue yet", STOP_LIMIT)?;
        drop(silent);
        let log = stop(server, &[&disk.socket()])?;
        let (first, last) = (log.find("has come"), log.find("has left"));
        ensure!(first < last, "out of order: {log}");
        Ok(())
    });
}

/// A client may come and go as often as it likes.
#[test]
fn clients_that_come_and_go_fill_no_log() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(1 << 20, 0x42)?;
        let server = disk.serve(program)?;
        for _ in 0..100 {
            drop(Client::connect(&disk.socket(), Shape::small())?);
        }
        let log = stop(server, &[&disk.socket()])?;
        for line in ["has come", "has left"] {
            let said = log.matches(line).count();
            // 10 in any 10 s.
            ensure!((1..=50).contains(&said), "{line:?} {said} times");
        }
        Ok(())
    });
}

/// Waits until it was said so often that somebody waits.
fn wait_for_waiting(server: &Server, times: usize) -> Result<()> {
    poll_until("who waits", STOP_LIMIT, || {
        let said = server.log().matches("another client waits").count();
        Ok((said == times).then_some(()))
    })
}

#[test]
fn a_second_client_on_a_served_socket_is_said_and_costs_nothing() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(1 << 20, 0x43)?;
        let mut server = disk.serve(program)?;
        let mut client = Client::connect(&disk.socket(), Shape::small())?;
        // Front ends speak, and are said at once. A machine that is busy may take its time.
        let mut soonest = Duration::MAX;
        for times in 1..=3 {
            let clock = Deadline::after(STOP_LIMIT);
            let front_end = FrontEnd::connect(&disk.socket())?;
            front_end.send(request::GET_FEATURES, &[], &[])?;
            wait_for_waiting(&server, times)?;
            soonest = soonest.min(clock.elapsed());
        }
        ensure!(soonest < Duration::from_millis(700), "it was said after {soonest:?}");
        // Who only asks who serves the socket does not wait. Whoever stays without a word does.
        drop(UnixStream::connect(disk.socket()).context("connect")?);
        let second = UnixStream::connect(disk.socket()).context("connect")?;
        wait_for_waiting(&server, 4)?;
        let said = format!(
            "WARN export e0: another client waits at {} and is served when this one has left (process {}): a \
             socket serves one at a time",
            disk.socket().display(),
            std::process::id()
        );
        server.wait_for_log(&said, STOP_LIMIT)?;
        let third = FrontEnd::connect(&disk.socket())?;
        third.send(request::GET_FEATURES, &[], &[])?;
        let before = server.cpu_time()?;
        server.wait_while_running(Duration::from_secs(1))?;
        let spent = server.cpu_time()? - before;
        ensure!(spent < Duration::from_millis(300), "it looks all the time: {spent:?}");
        client.read(0, 4096, 0)?;
        // It is still there, and said once; whoever comes after it is said when it has left, and served then.
        wait_for_waiting(&server, 4)?;
        drop(second);
        wait_for_waiting(&server, 5)?;
        drop(client);
        ensure!(third.receive(request::GET_FEATURES)?.is_some(), "it was hung up on");
        drop(third);
        stop(server, &[&disk.socket()]).map(drop)
    });
}

/// A line that is started by hand a second time, with an image that is locked.
#[test]
fn the_same_line_twice_is_refused_at_once_with_process_and_remedy() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(1 << 20, 0x44)?;
        let server = disk.serve(program)?;
        let exit = program.refusal(&disk.arguments(), REFUSAL_LIMIT)?;
        let said = format!(
            "export e0: socket {} is served by a live process ({}); --takeover takes its place without a lost \
             request",
            disk.socket().display(),
            server.pid()
        );
        ensure!(exit.status.code() == Some(1) && exit.stderr.contains(&said), "{exit:?}");
        ensure!(!exit.stderr.contains("lock"), "it waited for a lock: {}", exit.stderr);
        // Whoever asked is no client that has left.
        ensure!(!server.log().contains("has left"), "{}", server.log());
        stop(server, &[&disk.socket()]).map(drop)
    });
}

/// A process that was just killed listens for some milliseconds more.
#[test]
fn a_process_that_is_about_to_end_is_not_taken_for_one_that_serves() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(1 << 20, 0x45)?;
        let old = disk.serve(program)?;
        // Stopped, it listens on; it ends when the next one has asked.
        old.freeze()?;
        let new = program.spawn(&disk.arguments())?;
        let killer = old.kill_after(Duration::from_millis(300));
        new.wait_for_log("listening", STOP_LIMIT)?;
        killer.wait()?;
        drop(old);
        Client::connect(&disk.socket(), Shape::small())?.read(0, 4096, 0)?;
        stop(new, &[&disk.socket()]).map(drop)
    });
}
