//! Somebody else has the image: ringloom waits, says so, and has it afterwards or gives up.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::deadline::{Deadline, poll_until};
use testkit::process::{Bench, Program, START_LIMIT, STOP_LIMIT, Server, Signal, is_listening};

use super::ours::{READING_GUEST, WRITING_GUEST, guest, qemu, wait_for_lock};
use super::{
    Access, DENIES_WRITE, HINT, NO_SHARED_WRITE, NO_WRITE, Place, WRITES, with_tools,
    write_something,
};
use crate::support::{ringloom, ringloom_that_hears, stop, with};

/// What a ringloom says that got its lock in the end.
const HAS_IT: &str = "has the lock after";

/// A ringloom that has begun to wait, with this sentence.
fn waiting(program: &Program, place: &Place, sentence: &str) -> Result<Server> {
    let mut server = program.spawn(&place.line("w", Access::Write, ""))?;
    server.wait_for_log("trying for up to 30 s", START_LIMIT).with_context(|| server.log())?;
    let log = server.log();
    ensure!(log.contains(sentence) && log.contains(HINT), "{log}");
    ensure!(log.contains("export w: node n: "), "{log}");
    ensure!(server.is_alive()? && !is_listening(&place.socket("w"))?, "it did not wait: {log}");
    Ok(server)
}

/// It must have got the lock, and serve.
fn check_served(place: &Place, server: Server) -> Result<()> {
    let socket = place.socket("w");
    poll_until("ringloom to listen", START_LIMIT, || Ok(is_listening(&socket)?.then_some(())))
        .with_context(|| server.log())?;
    write_something(place, "w", 0x31)?;
    let log = stop(server, &[&socket])?;
    ensure!(log.contains(HAS_IT), "{log}");
    ensure!(log.matches("trying for").count() == 1, "said more than once: {log}");
    Ok(())
}

/// A holder of the image, and the byte that keeps others from writing it.
fn holders(place: &Place) -> Vec<(Program, Vec<String>, u64)> {
    let qemu_io = Program::named("qemu-io", "qemu-io", &[]);
    let sleep = place.fill_in("io", &["-f", "raw", "-c", "sleep 600000", "IMAGE"]);
    vec![
        (qemu(), guest(place, WRITING_GUEST), DENIES_WRITE),
        (qemu(), guest(place, READING_GUEST), DENIES_WRITE),
        (qemu_io, sleep, WRITES),
        (Program::qemu_storage_daemon(), place.line("peer", Access::Write, ""), WRITES),
        (ringloom(), place.line("first", Access::Write, ""), DENIES_WRITE),
    ]
}

#[test]
fn who_has_the_image_is_waited_for() {
    with_tools(&ringloom(), |program| {
        let place = Place::new()?;
        for (holder, line, byte) in holders(&place) {
            let sentence = if byte == DENIES_WRITE { NO_WRITE } else { NO_SHARED_WRITE };
            let mut held = holder.spawn(&line)?;
            wait_for_lock(&place, byte).with_context(|| held.log())?;
            let server = waiting(program, &place, sentence).context(holder.name())?;
            held.kill()?;
            check_served(&place, server).context(holder.name())?;
        }
        Ok(())
    });
}

#[test]
fn a_writer_does_not_keep_a_reader_waiting() {
    with_tools(&ringloom(), |program| {
        let place = Place::new()?;
        for (holder, line, byte) in holders(&place) {
            let mut held = holder.spawn(&line)?;
            wait_for_lock(&place, byte)?;
            // The peer decides the same.
            for program in [&Program::qemu_storage_daemon(), program] {
                let server = place.start(program, "r", Access::Read).context(holder.name())?;
                ensure!(!place.finish("r", server)?.contains("trying"), "it waited");
            }
            held.kill()?;
        }
        Ok(())
    });
}

#[test]
fn a_signal_ends_the_wait_and_leaves_nothing_behind() {
    with(&ringloom_that_hears(), |program| {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let place = Place::new()?;
            let first = place.start(program, "first", Access::Write)?;
            // Something that was set up before, and must be taken down.
            let mut line = place.fill_in(
                "null",
                &[
                    "--blockdev",
                    "null-co,node-name=null",
                    "--export",
                    "vhost-user-blk,id=null,node-name=null,addr.type=unix,addr.path=SOCKET",
                ],
            );
            line.extend(place.line("w", Access::Write, ""));
            let mut second = program.spawn(&line)?;
            second.wait_for_log("trying for up to 30 s", START_LIMIT)?;
            let clock = Deadline::after(STOP_LIMIT);
            second.signal(signal)?;
            let status = second.wait(STOP_LIMIT)?;
            let took = clock.elapsed();
            ensure!(status.code() == Some(0), "{signal:?}: {status}: {}", second.log());
            ensure!(took < Duration::from_secs(5), "{signal:?}: it took {took:?}");
            for name in ["null", "w"] {
                ensure!(!place.socket(name).exists(), "the socket of {name} is left behind");
            }
            write_something(&place, "first", 0x41)?;
            place.finish("first", first)?;
        }
        Ok(())
    });
}

/// The whole 30 s, once: for what is in the foreground, and for what is in the background.
#[test]
fn after_thirty_seconds_it_gives_up() {
    with(&ringloom(), |program| {
        let place = Place::new()?;
        let first = place.start(program, "first", Access::Write)?;
        let clock = Deadline::after(Duration::from_secs(120));
        let mut second = program.spawn(&place.line("w", Access::Write, ""))?;
        let mut line = place.line("d", Access::Write, "");
        line.push("--daemonize".to_owned());
        let mut third = program.spawn(&line)?;
        for server in [&mut second, &mut third] {
            let status = server.wait(Duration::from_secs(60))?;
            let took = clock.elapsed();
            ensure!(took >= Duration::from_secs(30), "it gave up after {took:?}");
            let log = server.log();
            ensure!(status.code() == Some(1), "{status}: {log}");
            ensure!(log.contains("gave up after 30 s: node n: Failed to get"), "{log}");
        }
        for name in ["w", "d"] {
            ensure!(!place.socket(name).exists(), "the socket of {name} is left behind");
        }
        write_something(&place, "first", 0x51)?;
        place.finish("first", first).map(drop)
    });
}

#[test]
fn two_that_come_at_once_do_not_both_serve() {
    with(&ringloom(), |program| {
        for _ in 0..5 {
            let bench = Place::new()?;
            let names = ["a", "b"];
            let start = |name: &&str| program.spawn(&bench.line(name, Access::Write, ""));
            let mut servers = names.iter().map(start).collect::<Result<Vec<_>>>()?;
            let listens = |name: &str| is_listening(&bench.socket(name));
            let winner = poll_until("one of them to listen", START_LIMIT, || {
                Ok(match (listens("a")?, listens("b")?) {
                    (false, false) => None,
                    (true, true) => anyhow::bail!("both serve the image"),
                    (first, _) => Some(usize::from(!first)),
                })
            })?;
            let loser = 1 - winner;
            servers[loser].wait_for_log("trying for", START_LIMIT)?;
            ensure!(!listens(names[loser])?, "both serve the image");
            servers[winner].kill()?;
            poll_until("the other to listen", START_LIMIT, || {
                Ok(listens(names[loser])?.then_some(()))
            })?;
        }
        Ok(())
    });
}

/// That the rig is right: its directory is a file system that can lock.
#[test]
fn a_lock_is_seen_where_the_tests_run() {
    with(&ringloom(), |program| {
        let _private = Bench::new()?;
        let place = Place::new()?;
        let server = place.start(program, "w", Access::Write)?;
        wait_for_lock(&place, WRITES)?;
        place.finish("w", server).map(drop)
    });
}
