//! Processes that end, hang or hurry in the middle of a takeover.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix,
    SocketType, recvmsg, sendmsg,
};
use testkit::client::{Client, Request, RingLayout, Segment, Shape};
use testkit::deadline::{Deadline, poll_until};
use testkit::fuse_faults::{Effect, Fault, FaultDisk, Operation};
use testkit::image;
use testkit::process::{Bench, Daemon, Program};
use testkit::rawring::{Collected, Survivor};
use testkit::report::{note, skipped};
use testkit::rng::Rng;

use super::{Busy, HANDED_OVER, LIMIT, disk, line, replace, work, work_until};
use crate::support::{Disk, Iothreads, ringloom, stop, with};

const QUEUES: u16 = 2;

/// A new process that is not one: it says what a test has it say.
struct Stranger {
    fd: OwnedFd,
}

impl Stranger {
    fn connect(process: u32) -> Result<Self> {
        let fd = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
        let sockets = std::fs::read_to_string("/proc/net/unix")?;
        let begins = format!("@ringloom-takeover-{process}-");
        let mut words = sockets.split_whitespace();
        let name = words.find(|word| word.starts_with(&begins)).context("it can be asked")?;
        let name = SocketAddrUnix::new_abstract_name(&name.as_bytes()[1..])?;
        rustix::net::connect(&fd, &name)?;
        Ok(Self { fd })
    }

    fn say(&self, text: &str) -> Result<()> {
        let parts = [IoSlice::new(text.as_bytes())];
        sendmsg(&self.fd, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// What is said next; descriptors are dropped. Empty at the end.
    fn hear(&self) -> Result<String> {
        let mut bytes = vec![0; 1 << 17];
        let mut space = [MaybeUninit::uninit(); 128];
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(&self.fd, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        bytes.truncate(received.bytes);
        String::from_utf8(bytes).context("text")
    }

    fn hello(&self, version: u32, socket: &Path) -> Result<String> {
        let found = std::fs::metadata(socket).context("look at the socket")?;
        let (device, inode) = (found.dev(), found.ino());
        self.say(&format!(
            "{{\"hello\":{{\"version\":{version},\"sockets\":[{{\"device\":{device},\"inode\":{inode}}}]}}}}"
        ))?;
        self.hear()
    }

    /// Has the one export that there is offered, and wants it.
    fn proceed(&self, socket: &Path) -> Result<()> {
        let mut heard = self.hello(3, socket)?;
        while heard != "\"offer-end\"" {
            ensure!(heard.starts_with("{\"offer"), "{heard}");
            heard = self.hear()?;
        }
        self.say("\"proceed\"")
    }
}

/// The old process goes on with its client if the new one ends before it has said that it goes on.
#[test]
fn a_new_process_that_ends_in_the_middle_leaves_the_client_to_the_old_one() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, QUEUES);
        image::create_sparse(&disk.image(), Survivor::disk_bytes(QUEUES))?;
        let mut old = disk.serve(program)?;
        let mut rng = Rng::new(5);
        for layout in [RingLayout::Split, RingLayout::Packed] {
            image::create_sparse(&disk.image(), Survivor::disk_bytes(QUEUES))?;
            let mut client = Survivor::connect(&disk.socket(), layout, QUEUES)?;
            for end in ["hello", "offer", "proceed", "\"end\"", "nonsense"] {
                work(&mut client, &mut rng, 3)?;
                client.submit(&mut rng)?;
                let stranger = Stranger::connect(old.pid())?;
                converse(&stranger, end, &disk.socket()).with_context(|| end.to_owned())?;
                drop(stranger);
                work(&mut client, &mut rng, 3).with_context(|| format!("{end}: {}", old.log()))?;
            }
            client.drain()?;
            let found = std::fs::read(disk.image()).context("read the image")?;
            ensure!(found == client.expected(), "the image does not hold the completed writes");
        }
        ensure!(old.is_alive()?, "the old process has ended");
        stop(old, &[&disk.socket()]).map(drop)
    });
}

fn converse(stranger: &Stranger, end: &str, socket: &Path) -> Result<()> {
    if end == "hello" {
        return Ok(());
    }
    if end == "nonsense" {
        stranger.say("{\"hello\":[]}")?;
        let answer = stranger.hear()?;
        ensure!(answer.contains("refused"), "{answer}");
        return Ok(());
    }
    if end == "offer" {
        let answer = stranger.hello(3, socket)?;
        ensure!(answer.contains("offer"), "{answer}");
        return Ok(());
    }
    stranger.proceed(socket)?;
    if end == "proceed" {
        return Ok(());
    }
    loop {
        let heard = stranger.hear()?;
        ensure!(!heard.is_empty(), "it has hung up");
        if heard.contains(end) {
            return Ok(());
        }
    }
}

#[test]
fn an_unknown_version_is_answered_with_the_known_one() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, QUEUES);
        image::create_sparse(&disk.image(), 1 << 20)?;
        let old = disk.serve(program)?;
        let answer = Stranger::connect(old.pid())?.hello(77, &disk.socket())?;
        ensure!(answer == "{\"other-version\":{\"version\":3}}", "{answer}");
        stop(old, &[&disk.socket()]).map(drop)
    });
}

/// New processes are killed at any moment. Whoever serves then, nothing is lost.
#[test]
fn new_processes_that_are_killed_at_any_moment_lose_nothing() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let Busy { disk, mut server, mut client, mut rng } =
            Busy::begin(program, disk(&bench, QUEUES), RingLayout::Packed)?;
        // Half of the moments are before the takeover is done, since a busy machine takes long.
        let begin = Deadline::after(LIMIT);
        let new = program.spawn(&line(&disk))?;
        work_until(&mut client, &mut rng, &server, "has taken over")?;
        let longest = begin.elapsed() * 2;
        server.wait(LIMIT)?;
        server = new;
        let (mut kept, mut lost) = (0, 0);
        for round in 0..40_u32 {
            work(&mut client, &mut rng, 3)?;
            let mut new = program.spawn(&line(&disk))?;
            let moment = Deadline::after(longest * round / 40);
            let mut is_gone = false;
            while !moment.has_passed() && !is_gone {
                client.submit(&mut rng)?;
                is_gone = client.collect()? == Collected::Gone;
            }
            new.kill()?;
            let ended = poll_until("the old process to go on or to end", LIMIT, || {
                if !server.is_alive()? {
                    return Ok(Some(true));
                }
                let log = server.log();
                let given = log.contains("has taken over");
                Ok((!given).then_some(false))
            })?;
            // The old process may still have to find out that the new one is gone.
            let ended = ended || is_gone || !goes_on(&mut client, &mut rng)?;
            if ended {
                server.wait(LIMIT)?;
                server = disk.serve(program)?;
                client.reconnect()?;
                if lost == 0 {
                    client.drain()?;
                    server.wait_for_log("a client has come back with", LIMIT)?;
                }
                lost += 1;
            } else {
                kept += 1;
            }
            client.drain().with_context(|| format!("round {round}: {}", server.log()))?;
        }
        note(&format!("{kept} times the old process went on, {lost} times nobody"));
        ensure!(kept > 0 && lost > 0, "kept {kept}, lost {lost}");
        Busy { disk, server, client, rng }.end().map(drop)
    });
}

/// Whether the client is still being served.
fn goes_on(client: &mut Survivor, rng: &mut Rng) -> Result<bool> {
    client.submit(rng)?;
    while client.in_flight() > 0 {
        if client.collect()? == Collected::Gone {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Two new processes at once: one after the other takes over, and the last one serves.
#[test]
fn two_new_processes_at_once_take_turns() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let Busy { disk, mut server, mut client, mut rng } =
            Busy::begin(program, disk(&bench, QUEUES), RingLayout::Split)?;
        for round in 0..5 {
            let mut pair = vec![program.spawn(&line(&disk))?, program.spawn(&line(&disk))?];
            for new in &pair {
                work_until(&mut client, &mut rng, new, HANDED_OVER)
                    .with_context(|| format!("round {round}: {}", new.log()))?;
            }
            server.wait(LIMIT)?;
            let last = poll_until("one of the two to leave", LIMIT, || {
                work(&mut client, &mut rng, 1)?;
                if !pair[0].is_alive()? {
                    return Ok(Some(1));
                }
                Ok((!pair[1].is_alive()?).then_some(0))
            })?;
            server = pair.swap_remove(last);
            work(&mut client, &mut rng, 3)?;
        }
        Busy { disk, server, client, rng }.end().map(drop)
    });
}

/// Requests that do not end: the new process is refused, the old one goes on when they have ended.
#[test]
fn an_old_process_whose_requests_hang_keeps_its_client() {
    if let Some(reason) = FaultDisk::missing() {
        skipped(&reason);
        return;
    }
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let faults = FaultDisk::mount(&bench.path("mount"), 1 << 20)?;
        let disk = Disk { iothreads: Iothreads::Two, ..Disk::new(&bench, "e0", 1) };
        let image = faults.image().display().to_string();
        let usual = disk.image().display().to_string();
        let arguments: Vec<String> =
            line(&disk).iter().map(|word| word.replace(&usual, &image)).collect();
        let mut old = program.start(&arguments, &[disk.socket()])?;
        let mut client = Client::connect(&disk.socket(), Shape::small())?;
        client.write(0, &[1; 4096], 0)?;
        faults.inject(Fault::new(Operation::Write, Effect::Held, 1));
        let segments = vec![Segment { offset: 0, length: 4096 }];
        client.submit(0, &Request::Write { offset: 8192, segments }, 77)?;
        client.kick(0)?;
        faults.wait_held(1, LIMIT)?;
        // Not a real one: this file system lets nobody open the image before the write has ended.
        let stranger = Stranger::connect(old.pid())?;
        stranger.proceed(&disk.socket())?;
        let answer = stranger.hear()?;
        let sentence = "export e0: its requests were not finished within 10 s";
        ensure!(answer.contains("refused") && answer.contains(sentence), "{answer}");
        ensure!(old.is_alive()?, "the old process has ended: {}", old.log());
        faults.release();
        let done = client.wait_any(Deadline::after(LIMIT))?;
        ensure!(done.len() == 1 && done[0].1.token == 77, "{done:?}");
        client.write(4096, &[2; 4096], 0)?;
        let new = replace(program, &arguments, old)?;
        let found = client.read(4096, 4096, 0)?;
        ensure!(found == [2; 4096], "other bytes than were written");
        drop(client);
        stop(new, &[&disk.socket()]).map(drop)
    });
}

/// An old process that cannot hand over is told to end, and front ends come back.
fn ends_and_is_replaced(old_program: &Program) -> Result<()> {
    let program = &ringloom();
    let bench = Bench::new()?;
    let disk = Disk { iothreads: Iothreads::One, ..Disk::new(&bench, "e0", QUEUES.into()) };
    let image = disk.create(1 << 20, 4)?;
    let mut old = disk.serve(old_program)?;
    let mut client = Client::connect(&disk.socket(), Shape::small())?;
    client.write(0, &[9; 4096], 0)?;
    let new = program.spawn(&line(&disk))?;
    new.wait_for_log("has ended; front ends that reconnect go on here", LIMIT)?;
    let status = old.wait(LIMIT)?;
    ensure!(status.code() == Some(0), "{status}: {}", old.log());
    drop(client);
    let mut client = Client::connect(&disk.socket(), Shape::small())?;
    let found = client.read(0, 8192, 0)?;
    ensure!(found[..4096] == [9; 4096], "the write is lost");
    ensure!(found[4096..] == image[4096..8192], "other bytes than before");
    drop(client);
    let log = stop(new, &[&disk.socket()])?;
    ensure!(log.contains("export e0: served again "), "{log}");
    Ok(())
}

#[test]
fn a_qemu_storage_daemon_is_told_to_end_and_replaced() {
    with(&Program::qemu_storage_daemon(), ends_and_is_replaced);
}

/// Under the peer's name ringloom hands over like any other.
#[test]
fn ringloom_under_the_name_of_its_peer_is_replaced() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, QUEUES);
        image::create_sparse(&disk.image(), Survivor::disk_bytes(QUEUES))?;
        let alias = bench.path("qemu-storage-daemon");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ringloom"), &alias)?;
        let alias = Program::named("qemu-storage-daemon", alias, &[]);
        let mut old = disk.serve(&alias)?;
        let mut client = Survivor::connect(&disk.socket(), RingLayout::Split, QUEUES)?;
        let mut rng = Rng::new(2);
        for program in [program, &alias, program] {
            work(&mut client, &mut rng, 3)?;
            old = replace(program, &line(&disk), old)?;
        }
        client.drain()?;
        drop(client);
        stop(old, &[&disk.socket()]).map(drop)
    });
}

/// The pidfile names the new process, which the old one's starter knows nothing of.
#[test]
fn in_the_background_the_pidfile_names_the_new_process() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = disk(&bench, QUEUES);
        image::create_sparse(&disk.image(), Survivor::disk_bytes(QUEUES))?;
        let pidfile = bench.path("pid");
        let more = ["--daemonize".to_owned(), "--pidfile".to_owned(), bench.text("pid")];
        let line = [&line(&disk)[..], &more].concat();
        let start = || -> Result<Daemon> {
            let exit = program.refusal(&line, LIMIT)?;
            ensure!(exit.status.code() == Some(0), "{exit:?}");
            Daemon::from_pidfile(&pidfile)
        };
        let mut daemon = start()?;
        let mut client = Survivor::connect(&disk.socket(), RingLayout::Split, QUEUES)?;
        let mut rng = Rng::new(8);
        for _ in 0..3 {
            client.submit(&mut rng)?;
            let new = start()?;
            ensure!(new.pid() != daemon.pid(), "the pidfile names the old process");
            ensure!(!daemon.is_alive(), "the old process still runs");
            daemon = new;
            work(&mut client, &mut rng, 3)?;
        }
        client.drain()?;
        drop(client);
        daemon.terminate()?;
        poll_until("the daemon to end", LIMIT, || Ok((!daemon.is_alive()).then_some(())))?;
        ensure!(!pidfile.exists() && !disk.socket().exists(), "something is left behind");
        Ok(())
    });
}
