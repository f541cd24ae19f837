//! The host's errors: what the guest is told, and what the operator reads.

use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::fuse_faults::{Effect, Errno, Fault, FaultDisk, Operation};
use testkit::process::Program;
use testkit::rawring::{BlockRequest, Form, Outcome, RawDevice, kind};
use testkit::report::skipped;

use super::{BLOCK, Bed, RIGS, Rig, durable, flush, ok, on_all, range, read, rig, write};
use crate::support::with;

/// How long the log may take.
const LOG_LIMIT: Duration = Duration::from_secs(20);

/// What a guest does in a case.
#[derive(Clone, Copy, Debug)]
enum Act {
    Read,
    Write,
    /// One sector, which direct I/O cannot write.
    WriteSector,
    Zero,
    Discard,
    Flush,
}

/// The block that cases work on.
const PLACE: usize = 3;

fn act(device: &mut RawDevice, act: Act) -> Result<Outcome> {
    match act {
        Act::Read => Ok(read(device, PLACE)?.0),
        Act::Write => write(device, 0, PLACE, 5),
        Act::WriteSector => {
            let (sector, data) = ((PLACE * BLOCK / 512 + 1) as u64, vec![device.data(0, 512, 0)]);
            device.request(0, &BlockRequest { kind: kind::OUT, sector, data, form: Form::Direct })
        }
        Act::Zero => range(device, 0, kind::WRITE_ZEROES, PLACE),
        Act::Discard => range(device, 0, kind::DISCARD, PLACE),
        Act::Flush => flush(device, 0),
    }
}

/// Lines of the log that speak of a failed request.
fn sentences(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains(" failed: ")).collect()
}

const EIO: &str = "Input/output error (os error 5)";
const ENOSPC: &str = "No space left on device (os error 28)";

/// Every error of the host, the act that meets it, and the sentence behind `disk PATH: `.
const ERRORS: [(Act, Operation, Errno, &str, &str); 6] = [
    (Act::Read, Operation::Read, Errno::IO, "read of 4096 bytes at byte 12288", EIO),
    (Act::Write, Operation::Write, Errno::IO, "write of 4096 bytes at byte 12288", EIO),
    (Act::Write, Operation::Write, Errno::NOSPC, "write of 4096 bytes at byte 12288", ENOSPC),
    (Act::Zero, Operation::Zero, Errno::IO, "write-zeroes of 4096 bytes at byte 12288", EIO),
    (Act::Zero, Operation::Zero, Errno::NOSPC, "write-zeroes of 4096 bytes at byte 12288", ENOSPC),
    (Act::Discard, Operation::Punch, Errno::IO, "discard of 4096 bytes at byte 12288", EIO),
];

#[test]
fn an_error_of_the_host_reaches_the_guest_and_is_said_once() {
    on_all(|rig| {
        let bed = Bed::new(rig, "")?;
        let mut device = bed.driver()?;
        let disk = bed.disk.image();
        for (count, (what, operation, errno, request, error)) in (1..).zip(ERRORS) {
            bed.disk.inject(Fault::new(operation, Effect::Fails(errno), 1));
            let outcome = act(&mut device, what)?;
            ensure!(outcome.is_io_error(), "{what:?} with {errno:?}: {outcome:?}");
            let sentence =
                format!("disk {}: {request} failed: error at byte 12288: {error}", disk.display());
            let expected = |log: &str| log.lines().filter(|line| line.contains(&sentence)).count();
            bed.server.wait_for_log(&sentence, LOG_LIMIT)?;
            let log = bed.server.log();
            ensure!(expected(&log) == 1 && sentences(&log).len() == count, "log: {log}");
        }
        // The disk is well again.
        ok(write(&mut device, 0, PLACE, 6)?)?;
        ensure!(read(&mut device, PLACE)?.1 == [6; BLOCK], "the last write did not arrive");
        ok(flush(&mut device, 1)?)
    });
}

#[test]
fn a_sector_that_cannot_be_merged_into_its_block_is_an_error() {
    on_all(|rig| {
        if rig.direct == "off" {
            return Ok(());
        }
        let bed = Bed::new(rig, "")?;
        let mut device = bed.driver()?;
        ok(write(&mut device, 0, PLACE, 4)?)?;
        for operation in [Operation::Read, Operation::Write] {
            bed.disk.inject(Fault::new(operation, Effect::Fails(Errno::IO), 1));
            let outcome = act(&mut device, Act::WriteSector)?;
            ensure!(outcome.is_io_error(), "with a {operation:?} that fails: {outcome:?}");
        }
        let sentence = "write of 512 bytes at byte 12800 failed: error at byte 12288";
        bed.server.wait_for_log(sentence, LOG_LIMIT)?;
        ensure!(bed.disk.content(PLACE * BLOCK..(PLACE + 1) * BLOCK) == [4; BLOCK], "neighbours");
        Ok(())
    });
}

#[test]
fn what_passes_by_itself_is_carried_on_with_and_not_said() {
    on_all(|rig| {
        let bed = Bed::new(rig, "")?;
        let mut device = bed.driver()?;
        let passing = [Effect::Fails(Errno::INTR), Effect::Fails(Errno::AGAIN), Effect::Short(512)];
        for effect in passing {
            let acts = [
                (Act::Write, Operation::Write),
                (Act::Read, Operation::Read),
                (Act::Discard, Operation::Punch),
                (Act::Zero, Operation::Zero),
                (Act::Flush, Operation::Sync),
            ];
            for (what, operation) in acts {
                let transfers = matches!(operation, Operation::Read | Operation::Write);
                if matches!(effect, Effect::Short(_)) && !transfers {
                    continue;
                }
                bed.disk.calls();
                bed.disk.inject(Fault::new(operation, effect, 3));
                let outcome = act(&mut device, what)?;
                ensure!(outcome.is_ok(), "{what:?} with {effect:?}: {outcome:?}");
                if what as u32 == Act::Read as u32 {
                    ensure!(device.get(0, BLOCK) == [5; BLOCK], "{effect:?}: other bytes");
                }
                let calls = bed.disk.calls();
                let met = calls.iter().filter(|call| call.operation == operation).count();
                ensure!(met == 4, "{what:?} with {effect:?} three times: {calls:?}");
            }
            ok(write(&mut device, 0, PLACE, 9)?)?;
            ensure!(bed.disk.content(0..BLOCK) == [0; BLOCK], "another block was written");
        }
        let log = bed.server.log();
        ensure!(sentences(&log).is_empty(), "log: {log}");
        Ok(())
    });
}

#[test]
fn what_a_file_system_cannot_do_is_done_in_another_way_or_not_needed() {
    on_all(|rig| {
        for errno in [Errno::OPNOTSUPP, Errno::NODEV, Errno::NOTTY] {
            let bed = Bed::new(rig, ",writethrough=on")?;
            let mut device = bed.driver()?;
            ok(write(&mut device, 0, PLACE, 5)?)?;
            bed.disk.inject(Fault::new(Operation::Punch, Effect::Fails(errno), 1));
            ok(act(&mut device, Act::Discard)?)?;
            bed.disk.inject(Fault::new(Operation::Zero, Effect::Fails(errno), 1));
            bed.disk.calls();
            ok(act(&mut device, Act::Zero)?)?;
            let found = durable(&bed.disk, PLACE..PLACE + 1)?;
            ensure!(found == [0], "{errno:?}: a power cut leaves {found:?}");
            // One sync is enough for all that was written.
            let calls = bed.disk.calls();
            ensure!(!calls.iter().any(|call| call.stable), "{calls:?}");
            let log = bed.server.log();
            ensure!(sentences(&log).is_empty(), "log: {log}");
        }
        Ok(())
    });
}

/// How often each operation is tried when some cannot be done: zeroing, punching, filling, and whether zeroes are
/// written.
#[derive(Debug, PartialEq, Eq)]
struct Tries {
    zero: usize,
    punch: usize,
    fill: usize,
    writes: bool,
}

/// Zeroes a block many times on a file system without these operations, and counts.
fn tries(rig: Rig, missing: &[Operation], kind: u32) -> Result<Tries> {
    let bed = Bed::new(rig, "")?;
    let mut device = bed.driver()?;
    for operation in missing {
        bed.disk.inject(Fault::new(*operation, Effect::Fails(Errno::OPNOTSUPP), u32::MAX));
    }
    let mut calls = Vec::new();
    for round in 0..ROUNDS {
        ok(write(&mut device, 0, PLACE, 5)?)?;
        bed.disk.calls();
        let queue = u32::try_from(round % 2)?;
        ok(range(&mut device, queue, kind, PLACE)?)?;
        calls.extend(bed.disk.calls());
        let found = read(&mut device, PLACE)?.1;
        let zeroes = found.iter().all(|byte| *byte == 0);
        ensure!(
            zeroes || kind == kind::DISCARD,
            "round {round} without {missing:?}: the block is not zero"
        );
    }
    let count = |operation| calls.iter().filter(|call| call.operation == operation).count();
    Ok(Tries {
        zero: count(Operation::Zero),
        punch: count(Operation::Punch),
        fill: count(Operation::Fill),
        writes: count(Operation::Write) > 0,
    })
}

const ROUNDS: usize = 12;

#[test]
fn what_a_file_system_turned_out_not_to_have_is_not_tried_again() {
    use Operation::{Fill, Punch, Zero};
    on_all(|rig| {
        let counted = |zero, punch, fill, writes| Tries { zero, punch, fill, writes };
        for (missing, kind, expected) in [
            (&[][..], kind::WRITE_ZEROES, counted(ROUNDS, 0, 0, false)),
            (&[Zero], kind::WRITE_ZEROES, counted(1, ROUNDS, ROUNDS, false)),
            (&[Zero, Fill], kind::WRITE_ZEROES, counted(1, 1, 1, true)),
            (&[Zero, Punch], kind::WRITE_ZEROES, counted(1, 1, 0, true)),
            (&[Punch], kind::DISCARD, counted(0, 1, 0, false)),
        ] {
            let found = tries(rig, missing, kind)?;
            ensure!(found == expected, "request {kind} without {missing:?}: {found:?}");
        }
        Ok(())
    });
}

#[test]
fn after_a_failed_flush_none_succeeds_on_any_iothread() {
    on_all(|rig| {
        let bed = Bed::new(rig, "")?;
        let mut device = bed.driver()?;
        ok(write(&mut device, 0, 0, 7)?)?;
        bed.disk.inject(Fault::new(Operation::Sync, Effect::Fails(Errno::IO), 1));
        let first = flush(&mut device, 0)?;
        ensure!(first.is_io_error(), "{first:?}");
        bed.server.wait_for_log("flush failed: cannot be made durable: Input/output", LOG_LIMIT)?;
        for queue in [1, 0] {
            let later = flush(&mut device, queue)?;
            ensure!(later.is_io_error(), "queue {queue}: {later:?}");
        }
        bed.server.wait_for_log("flush failed: an earlier flush failed", LOG_LIMIT)?;
        let syncs =
            bed.disk.calls().iter().filter(|call| call.operation == Operation::Sync).count();
        ensure!(syncs == 1, "{syncs} syncs");
        // What asks for nothing durable goes on.
        ok(write(&mut device, 1, 1, 7)?)?;
        ok(read(&mut device, 1)?.0)
    });
}

#[test]
fn a_stable_write_that_fails_may_have_hidden_a_loss_but_a_full_disk_does_not() {
    on_all(|rig| {
        let bed = Bed::new(rig, ",writethrough=on")?;
        let mut device = bed.driver()?;
        for (errno, is_lost) in [(Errno::NOSPC, false), (Errno::IO, true)] {
            let fails = Effect::Fails(errno);
            // Through the page cache a write and its sync are two calls.
            let operation =
                if rig.writes_stable() || !is_lost { Operation::Write } else { Operation::Sync };
            bed.disk.inject(Fault::new(operation, fails, 1));
            let outcome = write(&mut device, 0, 0, 7)?;
            ensure!(outcome.is_io_error(), "{errno:?}: {outcome:?}");
            let outcome = flush(&mut device, 1)?;
            ensure!(outcome.is_ok() != is_lost, "flush after {errno:?}: {outcome:?}");
        }
        Ok(())
    });
}

/// Sends so many reads that fail.
fn fail_reads(bed: &Bed, count: u32) -> Result<()> {
    let mut device = bed.driver()?;
    bed.disk.inject(Fault::new(Operation::Read, Effect::Fails(Errno::IO), count));
    for _ in 0..count {
        let outcome = read(&mut device, 0)?.0;
        ensure!(outcome.is_io_error(), "{outcome:?}");
    }
    Ok(())
}

#[test]
fn of_a_flood_of_errors_ten_are_said_and_the_others_are_counted() {
    if let Some(reason) = FaultDisk::missing() {
        return skipped(&reason);
    }
    // Both reactors: the count is told by a timer.
    for rig in [RIGS[0], RIGS[6]] {
        with(&rig.program(), |_program| {
            let bed = Bed::new(rig, "")?;
            fail_reads(&bed, 100)?;
            bed.server.wait_for_log("90 more failed requests were not logged", LOG_LIMIT)?;
            let log = bed.server.log();
            ensure!(sentences(&log).len() == 10, "log: {log}");
            Ok(())
        });
    }
}

#[test]
fn what_was_not_said_is_counted_when_the_daemon_ends() {
    if let Some(reason) = FaultDisk::missing() {
        return skipped(&reason);
    }
    with(&RIGS[0].program(), |_program| {
        let mut bed = Bed::new(RIGS[0], "")?;
        fail_reads(&bed, 12)?;
        bed.server.stop()?;
        let log = bed.server.log();
        ensure!(log.contains("2 more failed requests were not logged"), "log: {log}");
        Ok(())
    });
}

/// A full disk, for a guest of any server.
fn check_full(program: &Program, rig: Rig) -> Result<Bed> {
    let bed = Bed::on(program, rig, "", ",num-queues=2")?;
    let mut device = bed.driver()?;
    bed.disk.inject(Fault::new(Operation::Write, Effect::Fails(Errno::NOSPC), 1));
    let outcome = write(&mut device, 0, PLACE, 5)?;
    ensure!(outcome.is_io_error(), "{outcome:?}");
    // The guest may try again, and there may be room by then.
    ok(write(&mut device, 0, PLACE, 5)?)?;
    ensure!(read(&mut device, PLACE)?.1 == [5; BLOCK], "the second write did not arrive");
    Ok(bed)
}

const IO_URING: Rig = rig(true, "on", "io_uring");

#[test]
fn a_full_disk_is_an_error_that_passes() {
    if let Some(reason) = FaultDisk::missing() {
        return skipped(&reason);
    }
    with(&IO_URING.program(), |program| {
        let bed = check_full(program, IO_URING)?;
        bed.server.wait_for_log(ENOSPC, LOG_LIMIT)
    });
}

#[test]
fn a_full_disk_is_the_same_error_with_the_peer() {
    if let Some(reason) = FaultDisk::missing() {
        return skipped(&reason);
    }
    let rig = Rig { aio: "threads", ..IO_URING };
    with(&Program::qemu_storage_daemon(), |program| {
        // The operator reads nothing of it.
        let log = check_full(program, rig)?.server.log();
        ensure!(log.is_empty(), "{log}");
        Ok(())
    });
}
