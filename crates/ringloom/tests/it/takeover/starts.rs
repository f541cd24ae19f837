//! The start of a new process around the takeover: exports of its own, signals, and what fails last.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use testkit::client::{Client, RingLayout, Shape};
use testkit::deadline::{Deadline, poll_until};
use testkit::image;
use testkit::process::{Bench, Daemon, Program, Server, is_listening};
use testkit::rawring::{FrontEnd, request};

use super::{Busy, HANDED_OVER, LIMIT, disk, line, replace, work};
use crate::support::{Disk, Format, ringloom, stop, with};

const QUEUES: u16 = 2;

/// What the log says when the fences are up.
const FENCED: &str = "sandbox: ";

/// A new process with an export of its own, which waits for an old one that does not answer.
struct Halfway<'a> {
    /// What the old process serves.
    old: Busy<'a>,
    new: Server,
    /// What nobody served.
    fresh: Disk<'a>,
}

impl<'a> Halfway<'a> {
    fn new(program: &Program, bench: &'a Bench) -> Result<Self> {
        let fresh = Disk { id: "e1", ..disk(bench, 1) };
        fresh.create_sparse(1 << 20)?;
        let old = Busy::begin(program, disk(bench, QUEUES), RingLayout::Split)?;
        old.server.freeze()?;
        let new = program.spawn(&[line(&old.disk), fresh.arguments()].concat())?;
        poll_until("the fresh export's socket", LIMIT, || {
            Ok(is_listening(&fresh.socket())?.then_some(()))
        })
        .with_context(|| new.log())?;
        Ok(Self { old, new, fresh })
    }
}

/// A client of an export that nobody served waits until the fences are up, as after any start.
#[test]
fn an_export_that_nobody_served_accepts_clients_behind_the_fences() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let Halfway { old, new, fresh } = Halfway::new(program, &bench)?;
        let Busy { disk: taken, server: mut old, mut client, mut rng } = old;
        let early = FrontEnd::connect(&fresh.socket())?;
        early.send(request::GET_FEATURES, &[], &[])?;
        let mut fds = [PollFd::from_borrowed_fd(early.socket(), PollFlags::IN)];
        let while_stopped = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
        let answers = poll(&mut fds, Some(&while_stopped)).context("poll")?;
        ensure!(answers == 0, "it was answered before the fences are up: {}", new.log());
        old.signal(Signal::CONT)?;
        new.wait_for_log(HANDED_OVER, LIMIT).with_context(|| old.log())?;
        ensure!(early.receive(request::GET_FEATURES)?.is_some(), "it was hung up on");
        drop(early);
        old.wait(LIMIT)?;
        work(&mut client, &mut rng, 3)?;
        client.drain()?;
        Client::connect(&fresh.socket(), Shape::small())?.write(0, &[7; 4096], 0)?;
        drop(client);
        let log = stop(new, &[&taken.socket(), &fresh.socket()])?;
        let place = |words: &str| log.find(words).with_context(|| format!("{words:?} in {log}"));
        ensure!(place(FENCED)? < place("export e1: listening")?, "not behind the fences: {log}");
        Ok(())
    });
}

/// A new export on the node of one that is taken over has what that has: neither waits for the other's lock.
#[test]
fn a_new_export_uses_the_node_of_one_that_is_taken_over() {
    for (writable, format) in [("on", Format::Raw), ("off", Format::Raw), ("on", Format::Overlay)] {
        with(&ringloom(), |program| {
            let bench = Bench::new()?;
            let disk = Disk { writable, format, ..disk(&bench, 1) };
            disk.create_sparse(1 << 20)?;
            let old = disk.serve(program)?;
            let mut client = Client::connect(&disk.socket(), Shape::small())?;
            if writable == "on" {
                client.write(0, &[7; 4096], 0)?;
            }
            let before = client.read(0, 4096, 0)?;
            let socket = bench.path("second");
            let second = format!(
                "vhost-user-blk,id=second,node-name=file-e0,addr.type=unix,addr.path={},writable={writable}",
                socket.display()
            );
            let more = ["--export".to_owned(), second];
            let new = replace(program, &[&line(&disk)[..], &more].concat(), old)?;
            let mut other = Client::connect(&socket, Shape::small())?;
            ensure!(other.read(0, 4096, 0)? == before, "the new export has other bytes");
            ensure!(client.read(0, 4096, 0)? == before, "the old one has other bytes");
            drop((client, other));
            stop(new, &[&disk.socket(), &socket]).map(drop)
        });
    }
}

/// The same if there is nobody to take anything over from.
#[test]
fn without_a_predecessor_clients_are_accepted_behind_the_fences() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, QUEUES);
        image::create_sparse(&disk.image(), 1 << 20)?;
        let server = program.start(&line(&disk), &[disk.socket()])?;
        Client::connect(&disk.socket(), Shape::small())?.write(0, &[7; 4096], 0)?;
        let log = stop(server, &[&disk.socket()])?;
        let place = |words: &str| log.find(words).with_context(|| format!("{words:?} in {log}"));
        ensure!(place(FENCED)? < place("export e0: listening")?, "not behind the fences: {log}");
        Ok(())
    });
}

/// Whoever sees the socket of a new process may count on an end in good order, whatever that waits for.
#[test]
fn a_signal_in_the_middle_ends_the_new_process_in_good_order() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let Halfway { mut old, mut new, fresh } = Halfway::new(program, &bench)?;
        let clock = Deadline::after(LIMIT);
        let status = new.terminate()?;
        let (took, log) = (clock.elapsed(), new.log());
        ensure!(status.code() == Some(0), "it ended with {status}: {log}");
        ensure!(took < Duration::from_secs(4), "it took {took:?}: {log}");
        ensure!(!fresh.socket().exists(), "its socket is left behind");
        old.server.signal(Signal::CONT)?;
        work(&mut old.client, &mut old.rng, 3)?;
        old.end().map(drop)
    });
}

/// Guests are being served by then, which counts more than a line on a full disk.
#[test]
fn a_new_process_that_cannot_print_serves_all_the_same() {
    let to_full = |program: &str| {
        let script = format!("exec {program} serve \"$@\" >/dev/full");
        Program::named("sh", "sh", &["-c", &script, "sh"])
    };
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let Busy { disk, server: mut old, mut client, mut rng } =
            Busy::begin(program, disk(&bench, QUEUES), RingLayout::Packed)?;
        let full = to_full(env!("CARGO_BIN_EXE_ringloom"));
        let printing = [&line(&disk)[..], &["--print".to_owned(), "qemu".to_owned()]].concat();
        let mut new = full.spawn(&printing)?;
        let sentence = "cannot print how to attach a guest: No space left on device";
        new.wait_for_log(sentence, LIMIT).with_context(|| old.log())?;
        old.wait(LIMIT)?;
        work(&mut client, &mut rng, 20).with_context(|| new.log())?;
        client.drain()?;
        drop(client);
        // Another client, and another takeover.
        Client::connect(&disk.socket(), Shape::small())?.write(0, &[7; 4096], 0)?;
        ensure!(new.is_alive()?, "it has ended: {}", new.log());
        stop(new, &[&disk.socket()])?;
        // Where nobody is served yet it is a reason to end.
        let exit = full.refusal(&printing, LIMIT)?;
        ensure!(exit.status.code() == Some(1) && exit.stderr.contains(sentence), "{exit:?}");
        Ok(())
    });
}

/// Who started it is gone before it is ready. It has taken guests over, and serves them.
#[test]
fn a_new_process_whose_starter_is_gone_serves_all_the_same() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let Busy { disk, server: mut old, mut client, mut rng } =
            Busy::begin(program, disk(&bench, QUEUES), RingLayout::Split)?;
        old.freeze()?;
        let more = ["--daemonize".to_owned(), "--pidfile".to_owned(), bench.text("pid")];
        let starter = program.spawn(&[&line(&disk)[..], &more].concat())?;
        let children = format!("/proc/{0}/task/{0}/children", starter.pid());
        poll_until("the fork", LIMIT, || {
            let found = std::fs::read_to_string(&children).context("look for its child")?;
            Ok((!found.trim().is_empty()).then_some(()))
        })?;
        starter.signal(Signal::KILL)?;
        old.signal(Signal::CONT)?;
        starter.wait_for_log("cannot go to the background", LIMIT)?;
        let status = old.wait(LIMIT)?;
        ensure!(status.code() == Some(0), "old: {status}");
        let daemon = Daemon::from_pidfile(&bench.path("pid"))?;
        work(&mut client, &mut rng, 20).with_context(|| starter.log())?;
        client.drain()?;
        drop(client);
        ensure!(daemon.is_alive(), "it has ended: {}", starter.log());
        daemon.terminate()?;
        poll_until("the daemon to end", LIMIT, || Ok((!daemon.is_alive()).then_some(())))?;
        ensure!(!disk.socket().exists(), "its socket is left behind");
        Ok(())
    });
}
