//! SIGTERM, SIGINT and SIGHUP: drain, flush, leave nothing behind; a second signal leaves at once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{
    Client, Completion, EventIndex, Request, RingLayout, Segment, Shape, Status,
};
use testkit::deadline::{Deadline, poll_until};
use testkit::image;
use testkit::process::{Bench, Leave, Program, STOP_LIMIT, Server, Signal, is_listening};
use testkit::report::skipped;

use super::{ensure_gone, pid_in};
use crate::support::{Disk, Iothreads, is_root, ringloom, ringloom_that_hears, with};

const QUEUES: usize = 4;
const DEPTH: usize = 16;
const BLOCK: usize = 4096;
/// Blocks that one slot of the client writes in turn.
const BLOCKS_PER_SLOT: usize = 16;
const IMAGE_BYTES: usize = QUEUES * DEPTH * BLOCKS_PER_SLOT * BLOCK;
/// Writes seen completed before the signal comes.
const WARM_UP: usize = 2_000;

/// What may stand in one block of the image.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// The serial of the last write that the client saw completed; zero is the first content.
    completed: u64,
    /// The serial of a write that was sent and not seen completed.
    open: Option<u64>,
}

/// A client that writes as fast as it can and knows what it was promised.
struct Writer {
    client: Client,
    blocks: Vec<Block>,
    /// The block that each slot writes next.
    turns: Vec<usize>,
    serial: u64,
    completed: usize,
}

impl Writer {
    fn connect(socket: &Path) -> Result<Self> {
        let memory_bytes = QUEUES * DEPTH * BLOCK;
        let shape = Shape {
            queues: QUEUES,
            queue_size: 128,
            memory_bytes,
            event_index: EventIndex::On,
            layout: RingLayout::Split,
        };
        Ok(Self {
            client: Client::connect(socket, shape)?,
            blocks: vec![Block::default(); IMAGE_BYTES / BLOCK],
            turns: vec![0; QUEUES * DEPTH],
            serial: 0,
            completed: 0,
        })
    }

    fn block_of(&self, slot: usize) -> usize {
        slot * BLOCKS_PER_SLOT + self.turns[slot] % BLOCKS_PER_SLOT
    }

    /// Sends the next write of a slot.
    fn submit(&mut self, slot: usize) -> Result<()> {
        self.serial += 1;
        let block = self.block_of(slot);
        self.blocks[block].open = Some(self.serial);
        self.client.memory().write(slot * BLOCK, &content(self.serial));
        let segments = vec![Segment { offset: slot * BLOCK, length: BLOCK }];
        let offset = u64::try_from(block * BLOCK).context("offset")?;
        let token = u64::try_from(slot).context("token")?;
        self.client.submit(slot / DEPTH, &Request::Write { offset, segments }, token)
    }

    fn submit_all(&mut self) -> Result<()> {
        (0..QUEUES * DEPTH).try_for_each(|slot| self.submit(slot))?;
        (0..QUEUES).try_for_each(|queue| self.client.kick(queue))
    }

    /// Notes completions and sends the next write for each, so that the depth stays.
    fn take(&mut self, done: &[(usize, Completion)]) -> Result<()> {
        for (queue, completion) in done {
            ensure!(completion.status == Status::Ok, "a write ended with {:?}", completion.status);
            let slot = usize::try_from(completion.token).context("slot")?;
            let block = self.block_of(slot);
            let serial = self.blocks[block].open.take().context("a write came back twice")?;
            self.blocks[block].completed = serial;
            self.completed += 1;
            self.turns[slot] += 1;
            self.submit(slot)?;
            self.client.kick(*queue)?;
        }
        Ok(())
    }

    /// Takes what has come back by now.
    fn take_ready(&mut self) -> Result<()> {
        for queue in 0..QUEUES {
            let done: Vec<(usize, Completion)> =
                self.client.completions(queue).into_iter().map(|done| (queue, done)).collect();
            self.take(&done)?;
        }
        Ok(())
    }

    /// Every completed write must be in the image; of an open one any sectors may be.
    fn check_image(&self, path: &Path, first: &[u8]) -> Result<()> {
        let found = std::fs::read(path).context("read the image")?;
        ensure!(found.len() == IMAGE_BYTES, "the image has {} bytes now", found.len());
        for (index, (block, found)) in self.blocks.iter().zip(found.chunks(BLOCK)).enumerate() {
            let before = match block.completed {
                0 => first[index * BLOCK..][..BLOCK].to_vec(),
                serial => content(serial),
            };
            let after = block.open.map_or_else(|| before.clone(), content);
            for start in (0..BLOCK).step_by(image::SECTOR_BYTES) {
                let sector = start..start + image::SECTOR_BYTES;
                let right = found[sector.clone()] == before[sector.clone()]
                    || found[sector.clone()] == after[sector];
                ensure!(right, "block {index} is wrong at byte {start}: {block:?}");
            }
        }
        Ok(())
    }
}

/// A block that no other write has.
fn content(serial: u64) -> Vec<u8> {
    serial.to_le_bytes().repeat(BLOCK / 8)
}

/// One signal while 64 writes are in flight.
fn check_under_load(program: &Program, signal: Signal, iothreads: Iothreads) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk { iothreads, ..Disk::new(&bench, "e0", QUEUES) };
    let first = disk.create(IMAGE_BYTES, 0x81)?;
    let mut server = serve_with_pidfile(program, &disk)?;
    ensure!(pid_in(&bench.path("pid"))? == server.pid(), "another process's id in the pidfile");
    let mut writer = Writer::connect(&disk.socket())?;
    writer.submit_all()?;
    let deadline = Deadline::after(Duration::from_secs(60));
    while writer.completed < WARM_UP {
        let done = writer.client.wait_any(deadline)?;
        writer.take(&done)?;
    }
    server.signal(signal)?;
    // A guest knows nothing of the signal and goes on.
    poll_until("the server to end", STOP_LIMIT, || {
        writer.take_ready()?;
        Ok((!server.is_alive()?).then_some(()))
    })?;
    writer.take_ready()?;
    if ensure_clean_exit(&mut server)? == Leave::InOrder {
        ensure_gone(&[&disk.socket(), &bench.path("pid")])?;
    }
    writer.check_image(&disk.image(), &first)?;
    // The check must fail when one promised byte is wrong.
    image::corrupt(&disk.image(), 7)?;
    ensure!(writer.check_image(&disk.image(), &first).is_err(), "a wrong byte was not found");
    Ok(())
}

fn serve_with_pidfile(program: &Program, disk: &Disk<'_>) -> Result<Server> {
    let mut arguments = vec!["--pidfile".to_owned(), disk.bench.text("pid")];
    if disk.iothreads == Iothreads::Two {
        arguments
            .extend(["--object", "iothread,id=t0", "--object", "iothread,id=t1"].map(Into::into));
    }
    arguments.extend(disk.arguments());
    let server = program.start(&arguments, &[disk.socket()])?;
    // The pidfile comes after the sockets.
    poll_until("the pidfile", STOP_LIMIT, || Ok(pid_in(&disk.bench.path("pid")).ok()))?;
    Ok(server)
}

fn ensure_clean_exit(server: &mut Server) -> Result<Leave> {
    let leave = server.wait_for_leave()?;
    let log = server.log();
    ensure!(!log.contains("ERROR") && !log.contains("panicked"), "log: {log}");
    Ok(leave)
}

#[test]
fn sigterm_under_load_loses_no_completed_write() {
    with(&ringloom(), |program| {
        check_under_load(program, Signal::TERM, Iothreads::Two)?;
        check_under_load(program, Signal::TERM, Iothreads::None)
    });
}

#[test]
fn sigint_under_load_loses_no_completed_write() {
    with(&ringloom_that_hears(), |program| check_under_load(program, Signal::INT, Iothreads::Two));
}

#[test]
fn sighup_under_load_loses_no_completed_write() {
    with(&ringloom_that_hears(), |program| check_under_load(program, Signal::HUP, Iothreads::Two));
}

/// qemu-storage-daemon keeps the promise too, which shows that the writer is right.
#[test]
fn the_peer_loses_no_completed_write() {
    with(&Program::qemu_storage_daemon(), |program| {
        check_under_load(program, Signal::TERM, Iothreads::None)
    });
}

#[test]
fn every_signal_ends_an_idle_server() {
    with(&ringloom_that_hears(), |program| {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let bench = Bench::new()?;
            let disk = Disk { iothreads: Iothreads::Two, ..Disk::new(&bench, "e0", QUEUES) };
            disk.create(1 << 20, 0x82)?;
            let mut server = serve_with_pidfile(program, &disk)?;
            server.signal(signal)?;
            ensure_clean_exit(&mut server).with_context(|| format!("{signal:?}"))?;
            ensure_gone(&[&disk.socket(), &bench.path("pid")])?;
        }
        Ok(())
    });
}

/// A server in the middle of a write that does not end, and its client.
struct Stuck {
    server: Server,
    client: Client,
    device: super::frozen::FreezableDevice,
    socket: PathBuf,
    // Last, because everything above lies in it.
    bench: Bench,
}

impl Stuck {
    fn new(program: &Program) -> Result<Self> {
        let bench = Bench::new()?;
        let mut device = super::frozen::FreezableDevice::new(&bench, 8 << 20)?;
        let socket = bench.path("e0.sock");
        let arguments = [
            "--object",
            "iothread,id=t0",
            "--blockdev",
            &format!("driver=host_device,node-name=n,filename={},cache.direct=on", device.path()),
            "--export",
            &format!(
                "type=vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path={},writable=on,\
                 iothread=t0",
                socket.display()
            ),
        ];
        let server = program.start(&arguments.map(str::to_owned), std::slice::from_ref(&socket))?;
        let mut client = Client::connect(&socket, Shape::small())?;
        client.write(0, &content(1), 0)?;
        device.freeze()?;
        client.memory().write(0, &content(2));
        let segments = vec![Segment { offset: 0, length: BLOCK }];
        client.submit(0, &Request::Write { offset: 0, segments }, 7)?;
        client.kick(0)?;
        let mut stuck = Self { server, client, device, socket, bench };
        stuck.wait_until_in_flight()?;
        Ok(stuck)
    }

    /// Waits until the device has the write.
    fn wait_until_in_flight(&mut self) -> Result<()> {
        let name = self.device.path().trim_start_matches("/dev/");
        let file = PathBuf::from(format!("/sys/block/{name}/inflight"));
        poll_until("the write to reach the device", STOP_LIMIT, || {
            let counts = std::fs::read_to_string(&file).context("read the device's counters")?;
            let writes = counts.split_whitespace().nth(1).context("the count of writes")?;
            Ok((writes != "0").then_some(()))
        })?;
        ensure!(self.client.completions(0).is_empty(), "a write that cannot have ended ended");
        Ok(())
    }

    /// Waits until the killed server has closed its descriptors: only the kernel has the file now.
    fn wait_until_killed(&mut self) -> Result<()> {
        let descriptors = PathBuf::from(format!("/proc/{}/fd", self.server.pid()));
        poll_until("the killed server to let go of its files", STOP_LIMIT, || {
            let open = std::fs::read_dir(&descriptors).map(Iterator::count);
            Ok(open.map_or(true, |count| count == 0).then_some(()))
        })
    }

    /// The first signal: the server says that it stops, and goes on waiting for the write.
    fn begin_to_stop(&mut self) -> Result<()> {
        self.server.signal(Signal::TERM)?;
        self.server.wait_for_log("stopping", STOP_LIMIT)?;
        ensure!(self.server.is_alive()?, "it left with a write in flight: {}", self.server.log());
        Ok(())
    }
}

#[test]
fn one_signal_waits_for_the_write_in_flight() {
    if !is_root() {
        skipped("a frozen file system needs root");
        return;
    }
    with(&ringloom(), |program| {
        let mut stuck = Stuck::new(program)?;
        stuck.begin_to_stop()?;
        // Whoever is started in its place waits for the image, and does not take it for one that goes on serving.
        poll_until("the socket to be removed", STOP_LIMIT, || {
            Ok((!stuck.socket.exists()).then_some(()))
        })?;
        stuck.device.thaw()?;
        ensure_clean_exit(&mut stuck.server)?;
        let done = stuck.client.completions(0);
        ensure!(done == [Completion { token: 7, status: Status::Ok }], "the write: {done:?}");
        ensure_gone(&[&stuck.socket])?;
        let found = std::fs::read(stuck.bench.path("mount/inner.img")).context("read the image")?;
        ensure!(found[..BLOCK] == content(2), "the write is lost");
        Ok(())
    });
}

#[test]
fn a_second_signal_leaves_at_once_with_128_and_its_number() {
    if !is_root() {
        skipped("a frozen file system needs root");
        return;
    }
    with(&ringloom_that_hears(), |program| {
        for (second, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
            let mut stuck = Stuck::new(program)?;
            stuck.begin_to_stop()?;
            // What comes within half a second is the first one once more.
            stuck.server.signal(second)?;
            stuck.server.wait_while_running(Duration::from_millis(600))?;
            stuck.server.signal(second)?;
            let status = stuck.server.wait(Duration::from_secs(5))?;
            ensure!(status.code() == Some(code), "{second:?}: {status}");
            ensure!(stuck.client.completions(0).is_empty(), "the write was said to be complete");
        }
        Ok(())
    });
}

/// The kernel finishes what a killed process has in flight; until then the lock keeps its successor
/// from the image.
#[test]
fn the_lock_of_a_killed_daemon_lasts_until_its_write_has_ended() {
    if !is_root() {
        skipped("a frozen file system needs root");
        return;
    }
    with(&ringloom(), |program| {
        let mut stuck = Stuck::new(program)?;
        // Not waited for: it may be a zombie as long as its write lasts.
        stuck.server.signal(Signal::KILL)?;
        let next = stuck.bench.path("next.sock");
        let arguments = [
            "--blockdev".to_owned(),
            format!(
                "driver=host_device,node-name=n,filename={},cache.direct=on",
                stuck.device.path()
            ),
            "--export".to_owned(),
            format!(
                "type=vhost-user-blk,id=e1,node-name=n,addr.type=unix,addr.path={},writable=on",
                next.display()
            ),
        ];
        let successor = program.spawn(&arguments)?;
        successor
            .wait_for_log("trying for up to 30 s", STOP_LIMIT)
            .with_context(|| successor.log())?;
        // The predecessor is no more, and still its lock is there.
        stuck.wait_until_killed()?;
        ensure!(!is_listening(&next)?, "it serves beside a write in flight");
        ensure!(!successor.log().contains("has the lock"), "log: {}", successor.log());
        stuck.device.thaw()?;
        poll_until(
            "the successor to listen",
            STOP_LIMIT,
            || Ok(is_listening(&next)?.then_some(())),
        )
        .with_context(|| successor.log())?;
        let mut client = Client::connect(&next, Shape::small())?;
        ensure!(client.read(0, BLOCK, 0)? == content(2), "the write in flight came later");
        Ok(())
    });
}
