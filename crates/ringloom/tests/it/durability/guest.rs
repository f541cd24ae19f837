//! A Linux guest switches its disk between write-back and write-through, and the disk sees it; also after its server
//! was killed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::deadline::Deadline;
use testkit::fuse_faults::{Call, FaultDisk, Operation};
use testkit::guest::{self, Equipment, Guest};
use testkit::process::Bench;
use testkit::queue_report;
use testkit::report::{note, skipped};

use super::{BLOCK, Bed, RIGS, Rig};
use crate::support::with;

const QUEUES: usize = 2;
/// About 15 s under TCG on two cores; the rest is for a loaded machine.
const GUEST_LIMIT: Duration = Duration::from_secs(240);
/// Blocks that the guest writes in each mode, and where it begins.
const COUNT: usize = 5;
const BACK: usize = 0;
const THROUGH: usize = 100;
const BACK_AGAIN: usize = 200;

/// Writes from each CPU in each mode, and ends each time with fsync.
fn script() -> String {
    let write = |seek: usize| {
        format!(
            "for cpu in 0 1; do\n\
               section write{seek} taskset $((cpu + 1)) dd if=/tmp/data of=/dev/vda bs={BLOCK} \
               count={COUNT} seek=$(({seek} + cpu * 10)) oflag=direct conv=notrunc,fsync\n\
             done\n"
        )
    };
    let show = |name: &str| {
        format!(
            "section {name} cat /sys/block/vda/cache_type\n\
             section {name}_queue cat /sys/block/vda/queue/write_cache\n"
        )
    };
    let set = |mode: &str| format!("echo '{mode}' > /sys/block/vda/cache_type\n");
    [
        format!("dd if=/dev/urandom of=/tmp/data bs={BLOCK} count={COUNT}\n"),
        show("first") + &write(BACK),
        set("write through") + &show("second") + &write(THROUGH),
        set("write back") + &show("third") + &write(BACK_AGAIN),
    ]
    .concat()
}

/// The writes of one mode; the guest may have cut or joined them.
fn writes(calls: &[Call], from: usize) -> Vec<Call> {
    let bytes = (from * BLOCK) as u64..((from + 100) * BLOCK) as u64;
    let is_one = |call: &&Call| call.operation == Operation::Write && bytes.contains(&call.offset);
    calls.iter().filter(is_one).copied().collect()
}

/// Where in the record the writes of one mode begin.
fn begin(calls: &[Call], from: usize) -> Result<usize> {
    let first = *writes(calls, from).first().with_context(|| format!("no write at {from}"))?;
    calls.iter().position(|call| *call == first).context("it is in the record")
}

fn syncs(calls: &[Call]) -> usize {
    calls.iter().filter(|call| call.operation == Operation::Sync).count()
}

fn check(rig: Rig) -> Result<()> {
    let mut bed = Bed::new(rig, "")?;
    let (disks, queues) = (vec![bed.socket.clone()], QUEUES);
    let guest = Guest { disks, queues, layout: RingLayout::Packed, script: script() };
    let bench = Bench::new()?;
    let console = guest
        .boot_with(&Equipment::bare(), &bench)?
        .wait(GUEST_LIMIT)
        .with_context(|| format!("log of the server: {}", bed.server.log()))?;
    console.success("script_status")?;
    for (name, expected) in
        [("first", "write back"), ("second", "write through"), ("third", "write back")]
    {
        let (driver, queue) = (console.success(name)?, console.success(&format!("{name}_queue"))?);
        ensure!(driver == expected && queue == expected, "{name}: {driver:?}, {queue:?}");
    }
    bed.server.stop()?;
    let calls = bed.disk.calls();
    let (through, again) = (begin(&calls, THROUGH)?, begin(&calls, BACK_AGAIN)?);
    // In write-back nothing is stable by itself, and each fsync of the guest is a sync.
    for (from, part) in [(BACK, &calls[..through]), (BACK_AGAIN, &calls[again..])] {
        ensure!(!writes(&calls, from).iter().any(|call| call.stable), "stable in write-back");
        ensure!(syncs(part) >= 2, "{} syncs in write-back: {part:?}", syncs(part));
    }
    let (part, written) = (&calls[through..again], writes(&calls, THROUGH));
    if rig.writes_stable() {
        ensure!(written.iter().all(|call| call.stable), "not stable: {written:?}");
        ensure!(syncs(part) == 0, "{} syncs in write-through: {part:?}", syncs(part));
    } else {
        ensure!(syncs(part) >= written.len(), "{written:?}, but {} syncs", syncs(part));
    }
    // The guest sent flushes in write-back only.
    let reports = queue_report::parse(&bed.server.log());
    let flushes: u64 = reports.iter().map(|report| report.flushes).sum();
    ensure!((4..=8).contains(&flushes), "{flushes} flushes: {reports:?}");
    Ok(())
}

#[track_caller]
fn with_guest(rig: Rig) {
    match FaultDisk::missing().or_else(guest::missing) {
        Some(reason) => skipped(&reason),
        None => with(&rig.program(), |_program| check(rig)),
    }
}

#[test]
fn a_guest_switches_the_cache_of_a_direct_disk() {
    with_guest(RIGS[0]);
}

#[test]
fn a_guest_switches_the_cache_of_a_buffered_disk_without_io_uring() {
    with_guest(RIGS[6]);
}

/// What the guest says when it has written for a while in write-through.
const SWITCHED: &str = "the disk is in write-through";

/// Switches to write-through, and writes for some seconds: a block of its own each time, with no flush.
fn lasting_script() -> String {
    format!(
        "dd if=/dev/urandom of=/tmp/data bs={BLOCK} count=1\n\
         echo 'write through' > /sys/block/vda/cache_type\n\
         for i in $(seq 300); do\n\
           dd if=/tmp/data of=/dev/vda bs={BLOCK} count=1 seek=$i oflag=direct conv=notrunc 2>/dev/null || break\n\
           if [ $i = 50 ]; then echo '{SWITCHED}'; fi\n\
         done\n\
         section written echo $i\n\
         section last cat /sys/block/vda/cache_type\n"
    )
}

fn survives(rig: Rig) -> Result<()> {
    let mut bed = Bed::new(rig, "")?;
    let (disks, queues) = (vec![bed.socket.clone()], QUEUES);
    let guest = Guest { disks, queues, layout: RingLayout::Split, script: lasting_script() };
    let bench = Bench::new()?;
    let clock = Deadline::after(GUEST_LIMIT);
    let running = guest.boot_with(&Equipment::bare(), &bench)?;
    running.wait_for(SWITCHED, clock.remaining())?;
    bed.restart()?;
    // What the second server has already done is looked at as well.
    let first = writes(&bed.disk.calls(), 0);
    let console = running
        .wait(clock.remaining())
        .with_context(|| format!("log of the server: {}", bed.server.log()))?;
    console.success("script_status")?;
    let (written, last) = (console.success("written")?, console.success("last")?);
    ensure!(written == "300" && last == "write through", "{written} blocks, {last:?}");
    bed.server.stop()?;
    let calls = bed.disk.calls();
    let is_write = |call: &&Call| call.operation == Operation::Write;
    let second: Vec<Call> = calls.iter().filter(is_write).copied().collect();
    note(&format!("writes before and after the kill: {}, {}", first.len(), second.len()));
    ensure!(first.len() >= 50, "only {} writes before the kill", first.len());
    ensure!(second.len() >= 100, "only {} writes after the kill", second.len());
    let unstable = first.iter().chain(&second).filter(|call| !call.stable).count();
    ensure!(unstable == 0, "{unstable} writes are not stable");
    Ok(())
}

#[test]
fn a_guest_stays_in_write_through_when_its_server_is_killed() {
    match FaultDisk::missing().or_else(guest::missing) {
        Some(reason) => skipped(&reason),
        None => with(&RIGS[0].program(), |_program| survives(RIGS[0])),
    }
}
