//! Files in place of memory: on FUSE, where the client itself decides whether a page ever comes, and on disks.
//!
//! What must hold: nothing is asked of such a file that its server answers, and none of its pages is ever touched. So
//! the session ends at once, others on its iothread go on, and the daemon can be ended.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process};
use testkit::client::{Client, Shape};
use testkit::deadline::{Deadline, poll_until};
use testkit::holdings::Holdings;
use testkit::process::{Bench, Program};
use testkit::rawring::{Ack, RawDevice, Region, SessionEnded, request};
use testkit::report::skipped;
use testkit::silent_file::{SilentFile, Unanswered};

use super::floods::at_rest;
use super::{Target, check_beside, shape};
use crate::support::{Disk, Iothreads, is_root, ringloom, serve, serve_beside, stop, with};

/// As much as a device of the rig has, and more than its dirty log.
const FILE_BYTES: u64 = 8 << 20;
/// The longest that a refusal may take: nobody is asked for anything.
const REFUSAL_LIMIT: Duration = Duration::from_secs(5);

/// What a file can be given in place of.
#[derive(Clone, Copy, Debug)]
enum Place {
    Table,
    Added,
    Inflight,
    Log,
    Kick,
    Call,
    Error,
    /// A message that brings no descriptor.
    Unasked,
}

const PLACES: [Place; 4] = [Place::Table, Place::Added, Place::Inflight, Place::Log];
const OTHER_PLACES: [Place; 4] = [Place::Kick, Place::Call, Place::Error, Place::Unasked];

/// Gives the file in that place; how that was taken.
fn give(socket: &Path, place: Place, file: BorrowedFd<'_>) -> Result<(RawDevice, Ack)> {
    let device = RawDevice::negotiated(socket, shape())?;
    let front_end = &device.front_end;
    let ack = match place {
        Place::Table => {
            let table = Region::table(&device.regions());
            front_end.tell(request::SET_MEM_TABLE, &table, &[file, file])?
        }
        Place::Added => {
            front_end.tell(request::ADD_MEM_REG, &device.regions()[0].single(), &[file])?
        }
        Place::Inflight => {
            let room = [2_u64 << 20, 0].map(u64::to_le_bytes).concat();
            let queues = [2_u16, 64, 0, 0].map(u16::to_le_bytes).concat();
            front_end.tell(request::SET_INFLIGHT_FD, &[room, queues].concat(), &[file])?
        }
        Place::Log => {
            let log = [1_u64 << 20, 0].map(u64::to_le_bytes).concat();
            match front_end.ask_with(request::SET_LOG_BASE, &log, &[file]) {
                Ok(_) => Ack::Done,
                Err(error) if error.is::<SessionEnded>() => Ack::Ended,
                Err(error) => return Err(error),
            }
        }
        Place::Kick => front_end.tell(request::SET_VRING_KICK, &[0; 8], &[file])?,
        Place::Call => front_end.tell(request::SET_VRING_CALL, &[0; 8], &[file])?,
        Place::Error => front_end.tell(request::SET_VRING_ERR, &[0; 8], &[file])?,
        Place::Unasked => {
            let features = device.features.to_le_bytes();
            front_end.tell(request::SET_FEATURES, &features, &[file])?
        }
    };
    Ok((device, ack))
}

fn is_refused(socket: &Path, place: Place, file: BorrowedFd<'_>) -> Result<()> {
    let clock = Deadline::after(REFUSAL_LIMIT);
    let (device, ack) = give(socket, place, file)?;
    ensure!(ack != Ack::Done, "{place:?} was taken");
    device.front_end.wait_for_end().with_context(|| format!("{place:?}"))?;
    ensure!(!clock.has_passed(), "{place:?} was refused after {:?}", clock.elapsed());
    Ok(())
}

fn silent_file_is_refused(unanswered: Unanswered) {
    if !is_root() {
        skipped("a file on FUSE needs root, to mount its file system");
        return;
    }
    with(&ringloom(), |program| {
        check_beside(program, &[], |target: &Target<'_>| {
            let bench = Bench::new()?;
            let file = SilentFile::mount(&bench.path("silent"), FILE_BYTES, unanswered)?;
            for place in PLACES.into_iter().chain(OTHER_PLACES) {
                is_refused(target.socket, place, file.as_fd())?;
                target.others_go_on()?;
            }
            Ok(())
        })?;
        can_be_killed(program, unanswered)
    });
}

/// The daemon ends at once, whatever it was given.
fn can_be_killed(program: &Program, unanswered: Unanswered) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk::new(&bench, "d", 2);
    disk.create_sparse(1 << 20)?;
    let mut server = serve(program, std::slice::from_ref(&disk))?;
    let file = SilentFile::mount(&bench.path("silent"), FILE_BYTES, unanswered)?;
    is_refused(&disk.socket(), Place::Table, file.as_fd())?;
    let said = "sent a descriptor that is no eventfd, no UNIX socket and no memory";
    server.wait_for_log(said, REFUSAL_LIMIT)?;
    server.kill()?;
    // Its locks are gone with it.
    let next = serve(program, std::slice::from_ref(&disk))?;
    stop(next, &[]).map(drop)
}

#[test]
fn memory_whose_pages_never_come_is_refused() {
    silent_file_is_refused(Unanswered::Page);
}

#[test]
fn memory_whose_close_is_never_answered_is_refused() {
    silent_file_is_refused(Unanswered::Close);
}

#[test]
fn memory_that_never_says_what_it_is_is_refused() {
    silent_file_is_refused(Unanswered::Attributes);
}

/// The process beside the daemon that looks at descriptors: its number and /proc/PID/status.
fn descriptor_check(daemon: u32) -> Result<(u32, String)> {
    let parent = format!("PPid:\t{daemon}\n");
    for entry in std::fs::read_dir("/proc").context("list processes")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else { continue };
        // It may have ended.
        let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        if status.contains(&parent) && status.starts_with("Name:\tdescriptorcheck\n") {
            return Ok((pid, status));
        }
    }
    anyhow::bail!("process {daemon} has nobody who looks at descriptors")
}

/// Until an export has no room any more, which is its own affair; neither process grows.
#[test]
fn files_whose_close_is_never_answered_take_one_thread_and_the_room_of_their_export() {
    if !is_root() {
        skipped("a file on FUSE needs root, to mount its file system");
        return;
    }
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disks = ["bad", "good"].map(|id| Disk::new(&bench, id, 2));
        disks.iter().try_for_each(|disk| disk.create_sparse(1 << 20))?;
        let mut server = serve(program, &disks)?;
        let (check, _) = descriptor_check(server.pid())?;
        // Whoever is served tells that the threads of the export are there, of which each holds something.
        for disk in &disks {
            Client::connect(&disk.socket(), Shape::small())?.read(0, 4096, 0)?;
        }
        let before = at_rest(server.pid())?;
        let check_before = Holdings::of(check)?;
        let file = SilentFile::mount(&bench.path("silent"), FILE_BYTES, Unanswered::Close)?;
        for _ in 0..40 {
            is_refused(&disks[0].socket(), Place::Table, file.as_fd())?;
        }
        let over = poll_until("the sessions to be over", REFUSAL_LIMIT, || {
            Ok(Holdings::of(server.pid())?.is_within(&before).then_some(()))
        });
        over.with_context(|| format!("first {before:?}, now {:?}", Holdings::of(server.pid())))?;
        let now = Holdings::of(check)?;
        ensure!(now.threads <= check_before.threads + 1, "{now:?}, first {check_before:?}");
        ensure!(
            now.descriptors <= check_before.descriptors + 80,
            "{now:?}, first {check_before:?}"
        );
        let mut client = Client::connect(&disks[1].socket(), Shape::small())?;
        ensure!(client.read(0, 4096, 0)? == [0; 4096], "wrong bytes");
        let clock = Deadline::after(REFUSAL_LIMIT);
        server.kill()?;
        ensure!(!clock.has_passed(), "ended {:?} after SIGKILL", clock.elapsed());
        Ok(())
    });
}

#[test]
fn nobody_looks_at_descriptors_any_more() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disks = ["served", "new"].map(|id| Disk::new(&bench, id, 2));
        disks.iter().try_for_each(|disk| disk.create_sparse(1 << 20))?;
        let server = serve(program, &disks)?;
        let (check, status) = descriptor_check(server.pid())?;
        for fence in ["NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapEff:\t0000000000000000\n"] {
            ensure!(status.contains(fence), "no {fence:?} in {status}");
        }
        let mut client = Client::connect(&disks[0].socket(), Shape::small())?;
        let pid = Pid::from_raw(check.cast_signed()).context("a process")?;
        kill_process(pid, Signal::KILL).context("kill it")?;
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).context("a memfd")?;
        is_refused(&disks[1].socket(), Place::Added, memory.as_fd())?;
        server.wait_for_log("a new one comes with a new daemon", REFUSAL_LIMIT)?;
        ensure!(client.read(0, 4096, 0)? == [0; 4096], "wrong bytes");
        drop(client);
        stop(server, &[]).map(drop)
    });
}

#[test]
fn whoever_looks_at_descriptors_ends_with_the_daemon() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "d", 2);
        disk.create_sparse(1 << 20)?;
        for signal in [Signal::TERM, Signal::KILL] {
            let mut server = serve(program, std::slice::from_ref(&disk))?;
            let (check, _) = descriptor_check(server.pid())?;
            server.signal(signal)?;
            server.wait(REFUSAL_LIMIT)?;
            let is_there = || {
                let name = std::fs::read_to_string(format!("/proc/{check}/comm"));
                let status = std::fs::read_to_string(format!("/proc/{check}/status"));
                name.is_ok_and(|name| name == "descriptorcheck\n")
                    && status.is_ok_and(|status| !status.contains("State:\tZ"))
            };
            poll_until("its end", REFUSAL_LIMIT, || Ok((!is_there()).then_some(())))?;
        }
        Ok(())
    });
}

/// A service manager that finds a process left kills it, and may wait for it in vain.
#[test]
fn a_daemon_that_stops_waits_for_a_moment_for_the_process_that_looks_at_descriptors() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "d", 2);
        disk.create_sparse(1 << 20)?;
        let mut server = serve(program, std::slice::from_ref(&disk))?;
        let (check, _) = descriptor_check(server.pid())?;
        let check = Pid::from_raw(i32::try_from(check)?).context("it is a process")?;
        kill_process(check, Signal::STOP)?;
        let clock = Deadline::after(REFUSAL_LIMIT);
        server.signal(Signal::TERM)?;
        let ended = server.wait(REFUSAL_LIMIT);
        let waited = clock.elapsed();
        kill_process(check, Signal::CONT)?;
        ended?;
        ensure!(waited >= Duration::from_millis(200), "it has ended after {waited:?}");
        Ok(())
    });
}

/// As libvirt's `<source type='file'/>` has it: refused with the remedy, unless the operator has allowed it.
#[test]
fn memory_on_a_disk_is_taken_only_where_it_is_allowed() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk { iothreads: Iothreads::One, ..Disk::new(&bench, "d", 2) };
        let content = disk.create(1 << 20, 0x77)?;
        let path = bench.path("memory");
        let open = || -> Result<std::fs::File> {
            let mut options = std::fs::File::options();
            options.read(true).write(true).create(true).truncate(false);
            let file = options.open(&path).context("open the memory")?;
            file.set_len(FILE_BYTES)?;
            Ok(file)
        };
        let server = disk.serve(program)?;
        for place in PLACES {
            is_refused(&disk.socket(), place, open()?.as_fd())?;
        }
        let log = stop(server, &[])?;
        for words in ["memory-backend-memfd,share=on", "<source type='memfd'/>", "--memory-files"] {
            ensure!(log.contains(words), "no {words} in {log}");
        }
        let allowed = ["--memory-files".to_owned(), bench.text("")];
        let server = serve_beside(program, std::slice::from_ref(&disk), &allowed)?;
        for place in PLACES {
            let (_device, ack) = give(&disk.socket(), place, open()?.as_fd())?;
            ensure!(ack == Ack::Done, "{place:?}: {ack:?}, {}", server.log());
        }
        if is_root() {
            let silent =
                SilentFile::mount(&bench.path("silent"), FILE_BYTES, Unanswered::Attributes)?;
            for place in PLACES {
                is_refused(&disk.socket(), place, silent.as_fd())?;
            }
        }
        let mut client = Client::connect(&disk.socket(), Shape::small())?;
        ensure!(client.read(0, 4096, 0)? == content[..4096], "wrong bytes");
        drop(client);
        stop(server, &[]).map(drop)
    });
}
