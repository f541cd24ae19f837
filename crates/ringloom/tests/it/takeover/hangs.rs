//! New processes that are stopped, killed or hang at a step of the hand-over: until the old process has said that the
//! new one goes on, the old one serves, and nobody waits for longer than it lets them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use testkit::client::{Client, Request, RingLayout, Segment, Shape};
use testkit::deadline::Deadline;
use testkit::fuse_faults::{Effect, Fault, FaultDisk, Operation};
use testkit::process::{Bench, Program, Server};
use testkit::rawring::{Collected, Survivor};
use testkit::report::skipped;
use testkit::rng::Rng;

use super::{Busy, LIMIT, disk, line, replace, work};
use crate::support::{Disk, Iothreads, qemu_img, ringloom, stop, with};

const QUEUES: u16 = 2;

/// How long a client may stand still: the old process waits 5 s for the new one, and 2 s for its end.
const STILL_MAX: Duration = Duration::from_secs(12);

/// A new process that gets a signal with its n-th call of that kind.
fn interrupted(
    program: &Program,
    line: &[String],
    call: &str,
    n: u32,
    signal: &str,
) -> Result<Server> {
    let binary = env!("CARGO_BIN_EXE_ringloom");
    let inject = format!("inject={call}:signal={signal}:when={n}");
    let words = ["-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject];
    let strace = Program::named("strace", "strace", &[&words[..], &[binary, "serve"]].concat());
    ensure!(program.missing().is_none() && strace.missing().is_none(), "strace is not installed");
    strace.spawn(line)
}

/// Works until it is known which of the two serves; whether the old one does. Says how long nobody did.
fn outcome(client: &mut Survivor, rng: &mut Rng, old: &mut Server) -> Result<(bool, Duration)> {
    let mut longest = Duration::ZERO;
    let deadline = Deadline::after(LIMIT);
    loop {
        ensure!(!deadline.has_passed(), "nobody knows: {}", old.log());
        let began = Deadline::after(LIMIT);
        client.submit(rng)?;
        while client.in_flight() > 0 {
            if client.collect()? == Collected::Gone {
                return Ok((false, longest));
            }
        }
        longest = longest.max(began.elapsed());
        let log = old.log();
        if log.contains("has not taken over") || log.contains("does not take over") {
            return Ok((true, longest));
        }
        if log.contains("has taken over") {
            return Ok((false, longest));
        }
    }
}

/// Tries one interruption on a served disk, and goes on with whoever serves.
fn interrupt(
    program: &Program,
    disk: &Disk<'_>,
    (call, n, signal): (&str, u32, &str),
    expected: Option<bool>,
) -> Result<()> {
    let Busy { disk, server: mut old, mut client, mut rng } =
        Busy::begin(program, disk.clone(), RingLayout::Packed)?;
    let mut new = interrupted(program, &line(&disk), call, n, signal)?;
    let (kept, still) = outcome(&mut client, &mut rng, &mut old)?;
    ensure!(still < STILL_MAX, "the client stood still for {still:?}: {}", old.log());
    if let Some(expected) = expected {
        ensure!(kept == expected, "kept: {kept}, {}", old.log());
    }
    if kept {
        new.wait(LIMIT).with_context(|| format!("strace: {}", new.log()))?;
        work(&mut client, &mut rng, 3)?;
        // It can still hand over.
        old = replace(program, &line(&disk), old)?;
    } else {
        old.wait(LIMIT)?;
        new.kill()?;
        old = disk.serve(program)?;
        client.reconnect()?;
    }
    Busy { disk, server: old, client, rng }.end().map(drop)
}

fn interrupt_all(steps: &[(&str, u32, &str)], expected: Option<bool>) {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, QUEUES);
        for step in steps {
            interrupt(program, &disk, *step, expected).with_context(|| format!("{step:?}"))?;
        }
        Ok(())
    });
}

/// It has asked for the hand-over, and takes nothing of what is sent.
#[test]
fn a_new_process_that_is_stopped_when_it_has_asked_is_ended() {
    interrupt_all(&[("sendmsg", 3, "SIGSTOP")], Some(true));
}

/// It has received a part.
#[test]
fn a_new_process_that_is_stopped_half_way_is_ended() {
    interrupt_all(&[("recvmsg", 8, "SIGSTOP")], Some(true));
}

/// The last one comes after the word: then nobody serves, and the client comes back to the next process.
#[test]
fn a_new_process_that_is_killed_at_any_step_costs_nothing() {
    interrupt_all(
        &[
            ("sendmsg", 1, "SIGKILL"),
            ("sendmsg", 2, "SIGKILL"),
            ("recvmsg", 2, "SIGKILL"),
            ("sendmsg", 3, "SIGKILL"),
            ("recvmsg", 5, "SIGKILL"),
            ("recvmsg", 10, "SIGKILL"),
        ],
        Some(true),
    );
    interrupt_all(&[("sendmsg", 4, "SIGKILL")], None);
}

/// A new process that writes before the word is found by what the tests above look at.
#[cfg(feature = "fault-points")]
#[test]
fn a_write_before_the_word_is_found() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let Busy { disk, server: mut old, mut client, mut rng } =
            Busy::begin(program, disk(&bench, QUEUES), RingLayout::Split)?;
        let bad = program.clone().with_variable("RINGLOOM_FAULT", "WrittenTooEarly:1");
        let mut new = bad.spawn(&line(&disk))?;
        // The client finds it while it works, or the comparison does in the end.
        let verified = (|| {
            let (kept, _) = outcome(&mut client, &mut rng, &mut old)?;
            ensure!(kept, "it has taken over: {}", old.log());
            client.drain()?;
            let found = std::fs::read(disk.image()).context("read the image")?;
            ensure!(found == client.expected(), "the image does not hold the completed writes");
            Ok(())
        })();
        ensure!(!new.wait(LIMIT)?.success(), "it has not done what it was asked to: {}", new.log());
        let error = verified.err().context("the rig does not see a write before the word")?;
        let error = format!("{error:#}");
        ensure!(error.contains("is not version") || error.contains("does not hold"), "{error}");
        drop(client);
        stop(old, &[&disk.socket()]).map(drop)
    });
}

/// Where the image's L1 table is.
fn l1_table(image: &Path) -> Result<u64> {
    let header = std::fs::read(image).context("read the image")?;
    Ok(u64::from_be_bytes(header[40..48].try_into()?))
}

/// An image on storage with faults.
fn image_with_faults(bench: &Bench) -> Result<FaultDisk> {
    qemu_img(bench, "create -q -f qcow2 i.qcow2 8M")?;
    let content = std::fs::read(bench.path("i.qcow2"))?;
    let faults = FaultDisk::mount(&bench.path("mount"), 8 << 20)?;
    let mut file = std::fs::File::options().write(true).open(faults.image())?;
    std::io::Write::write_all(&mut file, &content)?;
    Ok(faults)
}

/// Storage that does not answer a process that starts, or one that ends, is told of; who would take over gives up.
#[test]
fn a_disk_that_hangs_is_told_of_at_the_start_and_at_the_end() {
    if let Some(reason) = FaultDisk::missing() {
        skipped(&reason);
        return;
    }
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let faults = image_with_faults(&bench)?;
        let (socket, image) = (bench.path("q.sock"), faults.image().display().to_string());
        let node = format!("driver=qcow2,node-name=q,file.driver=file,file.filename={image}");
        let export = format!(
            "type=vhost-user-blk,id=q,node-name=q,addr.type=unix,addr.path={},writable=on",
            socket.display()
        );
        let line = ["--takeover", "--blockdev", &node, "--export", &export].map(str::to_owned);
        let mut old = program.start(&line, std::slice::from_ref(&socket))?;
        let mut client = Client::connect(&socket, Shape::small())?;
        client.write(0, &[8; 4096], 0)?;
        // While the line is read, before there is a log.
        faults.inject(Fault::new(Operation::Open, Effect::Held, 1));
        let mut new = program.spawn(&line)?;
        new.wait_for_log(
            &format!("{image}: its storage has not answered for 3 s; waiting"),
            LIMIT,
        )?;
        new.signal(Signal::KILL)?;
        faults.release();
        new.wait(LIMIT)?;
        faults.inject(Fault { bytes: 0..4, ..Fault::new(Operation::Read, Effect::Held, 1) });
        let mut new = program.spawn(&line)?;
        let said = format!("node q: image {image}: its storage has not answered for 3 s; waiting");
        new.wait_for_log(&said, LIMIT)?;
        new.wait_for_log("not answered for 10 s: given up; who serves goes on", LIMIT)?;
        // What the file system has begun cannot be left before it is answered, not even by a process that ends.
        faults.release();
        let status = new.wait(LIMIT)?;
        ensure!(status.code() == Some(1), "{status}: {}", new.log());
        ensure!(client.read(0, 4096, 0)? == [8; 4096], "other bytes than were written");
        faults.inject(Fault::new(Operation::Write, Effect::Held, 1));
        let segments = vec![Segment { offset: 0, length: 4096 }];
        client.submit(0, &Request::Write { offset: 0, segments }, 7)?;
        client.kick(0)?;
        faults.wait_held(1, LIMIT)?;
        old.signal(Signal::TERM)?;
        let said = format!("export q ({image}): stopping: its storage has not answered for 3 s");
        old.wait_for_log(&said, LIMIT)?;
        faults.release();
        let status = old.wait(LIMIT)?;
        ensure!(status.code() == Some(0), "{status}: {}", old.log());
        Ok(())
    });
}

/// Its storage answered once, and not again: the new process hangs in the kernel, where nothing ends it. A disk beside
/// it goes on.
#[test]
fn a_new_process_that_hangs_in_its_storage_is_given_up() {
    if let Some(reason) = FaultDisk::missing() {
        skipped(&reason);
        return;
    }
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let faults = image_with_faults(&bench)?;
        let table = l1_table(&bench.path("i.qcow2"))?;
        let raw = Disk { iothreads: Iothreads::Two, ..Disk::new(&bench, "e0", 1) };
        raw.create_sparse(1 << 20)?;
        let socket = bench.path("q.sock");
        let image = [
            "--blockdev".to_owned(),
            format!(
                "driver=qcow2,node-name=q,file.driver=file,file.filename={}",
                faults.image().display()
            ),
            "--export".to_owned(),
            format!(
                "type=vhost-user-blk,id=q,node-name=q,addr.type=unix,addr.path={},writable=on,\
                 iothread=t0",
                socket.display()
            ),
        ];
        let all = [line(&raw), image.to_vec()].concat();
        let sockets = [raw.socket(), socket.clone()];
        let mut old = program.start(&all, &sockets)?;
        let mut clients = [
            Client::connect(&sockets[0], Shape::small())?,
            Client::connect(&sockets[1], Shape::small())?,
        ];
        for client in &mut clients {
            client.write(0, &[8; 4096], 0)?;
        }
        faults.inject(Fault {
            bytes: table..table + 8,
            ..Fault::new(Operation::Read, Effect::Held, 1)
        });
        let mut new = program.spawn(&all)?;
        faults.wait_held(1, LIMIT)?;
        let began = Deadline::after(LIMIT);
        for client in &mut clients {
            ensure!(client.read(0, 4096, 0)? == [8; 4096], "other bytes than were written");
        }
        let still = began.elapsed();
        ensure!(still < STILL_MAX, "the clients stood still for {still:?}: {}", old.log());
        ensure!(old.is_alive()?, "the old process has ended: {}", old.log());
        old.wait_for_log("has not taken over", LIMIT)?;
        faults.release();
        new.wait(LIMIT)?;
        for client in &mut clients {
            client.write(4096, &[9; 4096], 0)?;
        }
        let server = replace(program, &all, old)?;
        for client in &mut clients {
            ensure!(client.read(4096, 4096, 0)? == [9; 4096], "other bytes than were written");
        }
        drop(clients);
        stop(server, &[&sockets[0], &sockets[1]]).map(drop)
    });
}
