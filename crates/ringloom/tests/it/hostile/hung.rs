//! Storage that never answers, in every way in which the kernel lets a caller wait for it, beside a disk on the page cache
//! of the same iothread.
//!
//! What must hold: what the kernel does for that disk in threads (what is not in memory, syncs, discards) goes on, however
//! many requests wait for the storage that hangs. Needs root, for storage that hangs.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rustix::fs::Advice;
use testkit::client::{Client, REQUEST_LIMIT, Request, Segment, Shape, Status, Unmap};
use testkit::deadline::{Deadline, poll_until};
use testkit::fuse_faults::{Effect, Fault, FaultDisk, Operation};
use testkit::image;
use testkit::process::Bench;
use testkit::report::skipped;
use testkit::slow_disk::{Delays, SlowDisk};

use super::STALL_MAX;
use crate::support::{Disk, Iothreads, is_root, ringloom, serve_beside, stop, with};

const DISK_BYTES: u64 = 8 << 20;
const BLOCK: usize = 4096;
/// Queues of a disk that hangs, and requests in each: many times the tags of a loop device.
const QUEUES: usize = 16;
const DEPTH: usize = 40;
/// Files that hang where each has only one operation at a time: more than the kernel has workers for a ring on a host
/// of two processors.
const FILES: usize = 12;

/// What is asked of the storage that hangs: the request with that number.
type Ask = fn(usize) -> Request;

/// A disk that hangs, as the daemon is told of it.
struct Hung {
    id: String,
    /// Driver, file and cache mode.
    keys: String,
    socket: PathBuf,
}

impl Hung {
    fn new(bench: &Bench, id: String, keys: String) -> Self {
        let socket = bench.path(&format!("{id}.sock"));
        Self { id, keys, socket }
    }

    fn arguments(&self) -> [String; 4] {
        let Self { id, keys, socket } = self;
        let socket = socket.display();
        let export = format!(
            "type=vhost-user-blk,id={id},node-name={id},addr.type=unix,addr.path={socket},writable=on,\
             num-queues={QUEUES},iothread=t0"
        );
        let node = format!("{keys},node-name={id},discard=unmap");
        ["--blockdev".to_owned(), node, "--export".to_owned(), export]
    }

    /// A client whose requests all wait.
    fn crowd(&self, ask: Ask) -> Result<Client> {
        let memory_bytes = QUEUES * DEPTH * BLOCK;
        let shape = Shape { queues: QUEUES, memory_bytes, ..Shape::small() };
        let mut client = Client::connect(&self.socket, shape)?;
        for number in 0..QUEUES * DEPTH {
            let queue = number / DEPTH;
            client.submit(queue, &ask(number), number as u64)?;
            client.kick(queue)?;
        }
        Ok(client)
    }
}

/// The block with this number, on each disk and in a client's memory. No two follow each other on the disk, so that the
/// kernel makes no larger ones of them.
fn segment(number: usize) -> (u64, Vec<Segment>) {
    (place(number), vec![Segment { offset: number * BLOCK, length: BLOCK }])
}

fn place(number: usize) -> u64 {
    2 * (number * BLOCK) as u64
}

fn read(number: usize) -> Request {
    let (offset, segments) = segment(number);
    Request::Read { offset, segments }
}

fn write(number: usize) -> Request {
    let (offset, segments) = segment(number);
    Request::Write { offset, segments }
}

/// A part of a page, whose rest has to be read before.
fn write_part(number: usize) -> Request {
    let segments = vec![Segment { offset: number * BLOCK, length: 512 }];
    Request::Write { offset: place(number), segments }
}

fn flush(_: usize) -> Request {
    Request::Flush
}

fn discard(number: usize) -> Request {
    Request::Discard { offset: place(number), length: BLOCK as u64 }
}

/// The storage below disks that can hang.
struct Storage<'a> {
    disks: Vec<Hung>,
    /// Has it answer nothing of what matters.
    hang: &'a dyn Fn(),
    /// How many operations wait for it.
    waiting: &'a dyn Fn() -> usize,
    /// Has it answer again, also what waits.
    recover: &'a dyn Fn(),
}

/// Has the storage hang under crowds of requests, until operations wait for it, and asks of another disk what the
/// kernel does in threads. Afterwards no request is lost.
fn check(bench: &Bench, storage: &Storage<'_>, ask: Ask) -> Result<()> {
    let iothreads = Iothreads::One;
    let good = Disk { iothreads, direct: "off", ..Disk::new(bench, "good", 1) };
    let content = good.create(1 << 20, 0x81)?;
    let more: Vec<String> = storage.disks.iter().flat_map(Hung::arguments).collect();
    let server = serve_beside(&ringloom(), std::slice::from_ref(&good), &more)?;
    (storage.hang)();
    let beside = beside(&good, &content, storage, ask);
    // Otherwise nobody could end the server.
    (storage.recover)();
    let log = || format!("log: {}", server.log());
    for mut crowd in beside.with_context(log)? {
        let deadline = Deadline::after(REQUEST_LIMIT);
        let mut left = QUEUES * DEPTH;
        while left > 0 {
            let done = crowd.wait_any(deadline).with_context(|| format!("{left} are missing"))?;
            ensure!(done.iter().all(|(_, done)| done.status == Status::Ok), "{done:?}");
            left -= done.len();
        }
    }
    stop(server, &[]).map(drop)
}

/// The part of a check while the storage hangs; returns the clients whose requests wait.
fn beside(good: &Disk<'_>, content: &[u8], storage: &Storage<'_>, ask: Ask) -> Result<Vec<Client>> {
    let mut client = Client::connect(&good.socket(), Shape::small())?;
    let crowds: Vec<_> = storage.disks.iter().map(|disk| disk.crowd(ask)).collect::<Result<_>>()?;
    poll_until("operations that wait", REQUEST_LIMIT, || {
        Ok(((storage.waiting)() > 0).then_some(()))
    })?;
    for round in 0..10 {
        go_on(&mut client, good, content, round).with_context(|| format!("round {round}"))?;
    }
    Ok(crowds)
}

/// What the other disk is asked in each round: something that is not in memory, and what the kernel leaves to threads.
fn go_on(client: &mut Client, disk: &Disk<'_>, content: &[u8], round: usize) -> Result<()> {
    let file = std::fs::File::open(disk.image()).context("open the image")?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).context("forget what is in memory")?;
    let clock = Deadline::after(STALL_MAX);
    let mut execute = |request: &Request| -> Result<()> {
        client.submit(0, request, 0)?;
        client.kick(0)?;
        let done = client.wait_any(clock).with_context(|| format!("{request:?}"))?;
        ensure!(done.iter().all(|(_, done)| done.status == Status::Ok), "{request:?}: {done:?}");
        Ok(())
    };
    let number = round * 8;
    execute(&read(number))?;
    let written = 100 + round;
    execute(&write(written))?;
    execute(&flush(0))?;
    execute(&discard(written))?;
    let (offset, length) = (place(written), BLOCK as u64);
    execute(&Request::WriteZeroes { offset, length, unmap: Unmap::Forbidden })?;
    let start = usize::try_from(place(number)).context("small")?;
    let found = client.memory().read(number * BLOCK, BLOCK);
    ensure!(found == content[start..start + BLOCK], "wrong bytes");
    Ok(())
}

/// A block device none of whose requests comes back once it hangs.
fn device(direct: &str, ask: Ask) {
    if !is_root() {
        skipped("a disk that hangs needs root, to mount its file system");
        return;
    }
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let image = bench.path("hung.img");
        image::create_sparse(&image, DISK_BYTES)?;
        let disk = SlowDisk::new(&image, &bench.path("slow"), Delays::default())?;
        let keys = format!(
            "driver=host_device,filename={},cache.direct={direct}",
            disk.device().display()
        );
        let storage = Storage {
            disks: vec![Hung::new(&bench, "hung".to_owned(), keys)],
            hang: &|| disk.hang(),
            waiting: &|| disk.in_flight(),
            recover: &|| disk.recover(),
        };
        check(&bench, &storage, ask)
    });
}

/// Files on FUSE that answer everything but this.
fn files(count: usize, operation: Operation, ask: Ask) {
    if let Some(reason) = FaultDisk::missing() {
        skipped(&reason);
        return;
    }
    with(&ringloom(), |_| {
        let bench = Bench::new()?;
        let bytes = usize::try_from(DISK_BYTES).context("small")?;
        let mount = |number| FaultDisk::mount(&bench.path(&format!("fuse{number}")), bytes);
        let disks: Vec<FaultDisk> = (0..count).map(mount).collect::<Result<_>>()?;
        let hung = |(number, disk): (usize, &FaultDisk)| {
            let keys = format!("driver=file,filename={},cache.direct=off", disk.image().display());
            Hung::new(&bench, format!("hung{number}"), keys)
        };
        let storage = Storage {
            disks: disks.iter().enumerate().map(hung).collect(),
            hang: &|| {
                let fault = || Fault::new(operation, Effect::Held, u32::MAX);
                disks.iter().for_each(|disk| disk.inject(fault()));
            },
            waiting: &|| disks.iter().map(FaultDisk::held).sum(),
            recover: &|| disks.iter().for_each(FaultDisk::release),
        };
        check(&bench, &storage, ask)
    });
}

#[test]
fn a_device_that_answers_no_direct_read() {
    device("on", read);
}

#[test]
fn a_device_that_answers_no_direct_write() {
    device("on", write);
}

#[test]
fn a_device_that_answers_no_read_of_the_page_cache() {
    device("off", read);
}

#[test]
fn a_device_that_has_no_answer_to_a_write_to_the_page_cache() {
    device("off", write_part);
}

#[test]
fn a_device_that_answers_nothing_of_linux_aio() {
    device("on,aio=native", read);
}

#[test]
fn a_file_that_answers_no_read() {
    files(1, Operation::Read, read);
}

#[test]
fn a_file_that_answers_no_discard() {
    files(1, Operation::Punch, discard);
}

#[test]
fn files_that_answer_no_sync() {
    files(FILES, Operation::Sync, flush);
}
