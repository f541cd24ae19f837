//! Write-back, write-through, and the switch between them.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::fuse_faults::{Effect, Fault, FaultDisk, Operation};
use testkit::rawring::{RawDevice, feature, kind, request};

use super::{
    BLOCK, Bed, Rig, WRITEBACK, durable, flush, ok, on_all, range, read, switch, write, writeback,
};

/// Writes, zeroes and discards a block each, and says which of them a power cut would leave: the
/// first is 7, the others were 7 before.
pub(super) fn change(bed: &Bed, device: &mut RawDevice) -> Result<Vec<u8>> {
    for (queue, block) in [(0, 1), (1, 2)] {
        ok(write(device, queue, block, 7)?)?;
    }
    ok(flush(device, 0)?)?;
    bed.disk.calls();
    ok(write(device, 0, 0, 7)?)?;
    ok(range(device, 1, kind::WRITE_ZEROES, 1)?)?;
    ok(range(device, 0, kind::DISCARD, 2)?)?;
    durable(&bed.disk, 0..3)
}

const CHANGED: [u8; 3] = [7, 0, 0];
pub(super) const UNCHANGED: [u8; 3] = [0, 7, 7];

/// How often the disk was synced, and how many writes were stable, since the last look.
pub(super) fn stable(disk: &FaultDisk) -> (usize, usize) {
    let calls = disk.calls();
    let syncs = calls.iter().filter(|call| call.operation == Operation::Sync).count();
    let writes = calls.iter().filter(|call| call.operation == Operation::Write && call.stable);
    (syncs, writes.count())
}

#[test]
fn write_back_stores_with_the_flush() {
    on_all(|rig| {
        let bed = Bed::new(rig, "")?;
        let mut device = bed.driver()?;
        ensure!(writeback(&device)? == 1, "not in write-back");
        let found = change(&bed, &mut device)?;
        ensure!(found == UNCHANGED, "a power cut before the flush leaves {found:?}");
        ensure!(stable(&bed.disk) == (0, 0), "something was made durable");
        // A flush of one queue is for the changes of both.
        ok(flush(&mut device, 1)?)?;
        let found = durable(&bed.disk, 0..3)?;
        ensure!(found == CHANGED, "a power cut after the flush leaves {found:?}");
        ensure!(stable(&bed.disk) == (1, 0), "one flush is one sync");
        Ok(())
    });
}

/// The changes of a disk in write-through, and what that costs.
pub(super) fn check_write_through(rig: Rig, bed: &Bed, device: &mut RawDevice) -> Result<()> {
    let found = change(bed, device)?;
    ensure!(found == CHANGED, "a power cut leaves {found:?}");
    // The zeroing and the discard are followed by a sync; the write is too, or stable itself.
    let expected = if rig.writes_stable() { (2, 1) } else { (3, 0) };
    let found = stable(&bed.disk);
    ensure!(found == expected, "(syncs, stable writes) are {found:?}, not {expected:?}");
    Ok(())
}

#[test]
fn write_through_stores_at_once() {
    on_all(|rig| {
        let bed = Bed::new(rig, ",writethrough=on")?;
        let mut device = bed.driver()?;
        ensure!(writeback(&device)? == 0, "not in write-through");
        check_write_through(rig, &bed, &mut device)
    });
}

#[test]
fn a_driver_that_knows_no_flushes_is_served_in_write_through() {
    on_all(|rig| {
        let bed = Bed::new(rig, "")?;
        let mut device = bed.driver_without(feature::BLK_FLUSH)?;
        ensure!(writeback(&device)? == 0, "write-back without flushes");
        check_write_through(rig, &bed, &mut device)
    });
}

#[test]
fn without_flushes_nothing_is_synced_in_either_mode() {
    on_all(|rig| {
        let bed = Bed::on_node(rig, ",cache.no-flush=on", ",writethrough=on")?;
        let mut device = bed.driver()?;
        let found = change(&bed, &mut device)?;
        ensure!(found == [0; 3], "a power cut leaves {found:?}");
        switch(&device, 1)?;
        switch(&device, 0)?;
        ok(flush(&mut device, 1)?)?;
        ensure!(stable(&bed.disk) == (0, 0), "something was made durable");
        Ok(())
    });
}

#[test]
fn a_switch_makes_durable_what_was_written_and_stays_when_the_client_leaves() {
    on_all(|rig| {
        let bed = Bed::new(rig, "")?;
        let mut device = bed.driver()?;
        let found = change(&bed, &mut device)?;
        ensure!(found == UNCHANGED, "a power cut before the switch leaves {found:?}");
        switch(&device, 0)?;
        let found = durable(&bed.disk, 0..3)?;
        ensure!(found == CHANGED, "a power cut after the switch leaves {found:?}");
        ensure!(writeback(&device)? == 0, "not in write-through");
        check_write_through(rig, &bed, &mut device)?;
        drop(device);
        let mut device = bed.driver()?;
        ensure!(writeback(&device)? == 0, "not in write-through for the next client");
        check_write_through(rig, &bed, &mut device)?;
        switch(&device, 1)?;
        ok(write(&mut device, 0, 3, 5)?)?;
        ok(write(&mut device, 1, 4, 5)?)?;
        let found = durable(&bed.disk, 3..5)?;
        ensure!(found == [0, 0], "a power cut in write-back leaves {found:?}");
        ok(flush(&mut device, 0)?)?;
        let found = durable(&bed.disk, 3..5)?;
        ensure!(found == [5, 5], "a power cut after the flush leaves {found:?}");
        Ok(())
    });
}

/// Whether the server says something within the time.
fn answers(device: &RawDevice, limit: Duration) -> Result<bool> {
    let socket = device.front_end.socket();
    let mut waiting = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    let limit = Timespec::try_from(limit).context("the limit")?;
    Ok(poll(&mut waiting, Some(&limit)).context("poll")? > 0)
}

/// A write of this block from its own place in memory, which is not waited for.
fn begin_write(device: &mut RawDevice, queue: u32, block: usize) -> Result<()> {
    let (header, status) = device.frame(kind::OUT, (block * BLOCK / 512) as u64);
    device.put(0, &[9; BLOCK]);
    let data = device.data(0, u32::try_from(BLOCK)?, 0);
    device.ring(queue).set_chain(0, &[header, data, status]);
    device.offer(queue, 0)
}

#[test]
fn a_switch_waits_for_what_is_in_flight_on_every_queue() {
    on_all(|rig| {
        let bed = Bed::new(rig, "")?;
        let mut device = bed.driver()?;
        bed.disk.inject(Fault::new(Operation::Write, Effect::Held, 2));
        begin_write(&mut device, 0, 0)?;
        // The header lies in one place for all queues, so the server must have read it.
        bed.disk.wait_held(1, Duration::from_secs(20))?;
        begin_write(&mut device, 1, 1)?;
        bed.disk.wait_held(2, Duration::from_secs(20))?;
        device.front_end.send_configuration(WRITEBACK, &[0])?;
        // Long enough for a switch that does not wait.
        let early = answers(&device, Duration::from_millis(200))?;
        ensure!(!early, "answered while writes of the old mode were in flight");
        bed.disk.release();
        let reply = device.front_end.receive(request::SET_CONFIG)?.context("the session ended")?;
        ensure!(reply == [0; 8], "SET_CONFIG was answered {reply:?}");
        let found = durable(&bed.disk, 0..2)?;
        ensure!(found == [9, 9], "a power cut after the switch leaves {found:?}");
        for queue in 0..2 {
            device.wait_used(queue)?.context("a write that is not answered")?;
        }
        // The rings go on where they were.
        ok(write(&mut device, 1, 1, 3)?)?;
        ok(write(&mut device, 0, 0, 3)?)?;
        ensure!(read(&mut device, 0)?.1 == [3; BLOCK], "the write did not arrive");
        ensure!(durable(&bed.disk, 0..2)? == [3, 3], "not written through");
        Ok(())
    });
}

/// What a guest wrote before is lost, and it would not flush any more to find out.
#[test]
fn a_switch_that_cannot_store_what_was_written_ends_the_session_and_says_so() {
    on_all(|rig| {
        let bed = Bed::new(rig, "")?;
        let mut device = bed.driver()?;
        ok(write(&mut device, 0, 0, 7)?)?;
        let effect = Effect::Fails(testkit::fuse_faults::Errno::IO);
        bed.disk.inject(Fault::new(Operation::Sync, effect, 1));
        device.front_end.send_configuration(WRITEBACK, &[0])?;
        let reply = device.front_end.receive(request::SET_CONFIG)?;
        ensure!(reply.is_none_or(|reply| reply != [0; 8]), "the switch is said to have worked");
        device.front_end.wait_for_end()?;
        let said = "cannot switch to write-through: what was written before cannot be made durable";
        bed.server.wait_for_log(said, Duration::from_secs(20))?;
        // A client that comes back flushes, and hears of it.
        let mut device = bed.driver()?;
        let outcome = flush(&mut device, 0)?;
        ensure!(outcome.is_io_error(), "{outcome:?}");
        Ok(())
    });
}
