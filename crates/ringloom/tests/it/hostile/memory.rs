//! Guest memory that changes, shrinks or goes while requests are in flight on a slow disk.
//!
//! What must hold: once the daemon has agreed that memory is gone, it touches that memory no more, whatever was in
//! flight; and waiting for that holds up nobody else, also on the same iothread.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::deadline::{Deadline, poll_until};
use testkit::image;
use testkit::memory::SharedMemory;
use testkit::process::Bench;
use testkit::rawring::{Piece, RawDevice, Region, flag, kind, request};
use testkit::report::skipped;
use testkit::slow_disk::{Delays, SlowDisk};

use super::rings::truncate_memory;
use super::{Target, check_beside, shape};
use crate::support::{is_root, ringloom, with};

const DISK_BYTES: u64 = 8 << 20;
/// Requests in flight on each of two queues.
const DEPTH: u16 = 20;
/// Each request's data.
const BLOCK: u32 = 16 << 10;
/// What the memory is filled with when it is the client's alone.
const MINE: u8 = 0xc5;
/// No request takes longer on the slow disk, so afterwards nothing is in flight.
const SLOWEST: Duration = Duration::from_millis(400);

/// What an attack on the slow disk is given.
struct Slow<'a> {
    target: &'a Target<'a>,
    disk: &'a SlowDisk,
    socket: &'a Path,
    device: RawDevice,
}

fn check(attack: fn(&mut Slow<'_>) -> Result<()>) {
    if !is_root() {
        skipped("a slow disk needs root, to mount its file system");
        return;
    }
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let (image, socket) = (bench.path("slow.img"), bench.path("slow.sock"));
        image::create_sparse(&image, DISK_BYTES)?;
        // Every request takes as long as it may, at random.
        let delays = Delays { short: SLOWEST, long: SLOWEST, long_one_in: 1, seed: 0x61 };
        let disk = SlowDisk::new(&image, &bench.path("slow"), delays)?;
        let more = [
            "--blockdev".to_owned(),
            format!(
                "driver=host_device,node-name=slow,filename={},cache.direct=on",
                disk.device().display()
            ),
            "--export".to_owned(),
            format!(
                "type=vhost-user-blk,id=slow,node-name=slow,addr.type=unix,addr.path={},writable=on,\
                 num-queues=2,iothread.0=t0,iothread.1=t1",
                socket.display()
            ),
        ];
        check_beside(program, &more, |target| {
            let device = || RawDevice::connect(&socket, shape());
            let mut slow = Slow { target, disk: &disk, socket: &socket, device: device()? };
            for round in 0..3 {
                attack(&mut slow).with_context(|| format!("round {round}"))?;
                target.others_go_on()?;
                // The old session ends first: an export has one client at a time.
                slow.device = RawDevice::negotiated(target.read_only, shape())?;
                slow.device = device()?;
            }
            Ok(())
        })
    });
}

impl Slow<'_> {
    /// Puts reads into flight on both queues and waits until the disk has some of them.
    fn reads_in_flight(&mut self) -> Result<()> {
        let device = &mut self.device;
        for queue in 0..2 {
            let (header, status) = device.frame(kind::IN, 0);
            for slot in 0..DEPTH {
                let place = usize::from(slot) * usize::try_from(BLOCK).context("small")?;
                let data: Piece = device.data(place, BLOCK, flag::WRITE);
                device.ring(queue).set_chain(slot * 3, &[header, data, status]);
                device.ring_mut(queue).offer(slot * 3);
            }
            device.ring(queue).kick()?;
        }
        let disk = self.disk;
        poll_until("requests in flight", Duration::from_secs(10), || {
            Ok((disk.in_flight() >= usize::from(DEPTH)).then_some(()))
        })
    }

    /// Says that the memory is the client's alone now: nobody may write to it from here on.
    fn memory_is_left_alone(&self, memory: &SharedMemory) -> Result<()> {
        memory.fill(0, memory.length(), MINE);
        // Until everything is over that could be in flight; nothing announces what must not happen.
        let end = Deadline::after(SLOWEST + SLOWEST / 2);
        poll_until("requests to be over", Duration::from_secs(10), || {
            Ok(end.has_passed().then_some(()))
        })?;
        let found = memory.read(0, memory.length());
        let touched = found.iter().position(|byte| *byte != MINE);
        ensure!(touched.is_none(), "byte {touched:?} was written after the memory was taken back");
        Ok(())
    }
}

/// The data region goes: rings outside of it stay, and the answer comes when nothing is in flight there.
fn removed(slow: &mut Slow<'_>) -> Result<()> {
    slow.reads_in_flight()?;
    let device = &slow.device;
    for region in device.regions() {
        device.front_end.must(request::REM_MEM_REG, &region.single(), &[])?;
    }
    slow.memory_is_left_alone(&device.memory)
}

/// Another file takes the place of the memory, at the same addresses.
fn replaced(slow: &mut Slow<'_>) -> Result<()> {
    slow.reads_in_flight()?;
    let old = Arc::clone(&slow.device.memory);
    let device = &mut slow.device;
    let regions = device.regions();
    let new = SharedMemory::new(old.length())?;
    // The rings go on where they are: their indices are in the new memory too.
    let length = usize::try_from(regions[0].size).context("small")?;
    new.write(0, &old.read(0, length));
    let fds = [new.file(), new.file()];
    device.front_end.tell(request::SET_MEM_TABLE, &Region::table(&regions), &fds)?;
    slow.memory_is_left_alone(&old)
}

/// More regions come while requests are in flight, which go on.
fn added(slow: &mut Slow<'_>) -> Result<()> {
    slow.reads_in_flight()?;
    let device = &mut slow.device;
    let more = SharedMemory::new(1 << 20)?;
    for number in 0..20_u64 {
        let region = Region {
            guest_address: 0x40_0000_0000 + (number << 20),
            size: 1 << 20,
            user_address: 0x1000_0000_0000 + (number << 20),
            file_offset: 0,
        };
        device.front_end.must(request::ADD_MEM_REG, &region.single(), &[more.file()])?;
    }
    for queue in 0..2 {
        for _ in 0..DEPTH {
            ensure!(device.wait_used(queue)?.is_some(), "the session ended");
        }
    }
    ensure!(device.status() == 0, "status {}", device.status());
    Ok(())
}

/// The client goes in the middle of it and takes its memory along, before the disk has answered.
fn cut_off(slow: &mut Slow<'_>) -> Result<()> {
    slow.reads_in_flight()?;
    truncate_memory(&slow.device)?;
    slow.device.ring(0).kick()?;
    slow.device.front_end.wait_for_end()
}

/// It leaves without a word; what was in flight is waited for, and then its memory is its own.
fn left(slow: &mut Slow<'_>) -> Result<()> {
    slow.reads_in_flight()?;
    let old = Arc::clone(&slow.device.memory);
    // Takes the place of the slow disk's client, which hangs up.
    slow.device = RawDevice::negotiated(slow.target.socket, shape())?;
    // An export has one client at a time: the next one is answered when the old session is over.
    slow.device = RawDevice::connect(slow.socket, shape())?;
    slow.memory_is_left_alone(&old)
}

#[test]
fn memory_is_removed_with_requests_in_flight() {
    check(removed);
}

#[test]
fn memory_is_replaced_with_requests_in_flight() {
    check(replaced);
}

#[test]
fn memory_is_added_with_requests_in_flight() {
    check(added);
}

#[test]
fn memory_is_cut_off_with_requests_in_flight() {
    check(cut_off);
}

#[test]
fn a_client_leaves_with_requests_in_flight() {
    check(left);
}
