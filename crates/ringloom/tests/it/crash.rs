//! A server that is killed and started again on the same socket: its clients go on as if nothing had happened.

#[cfg(feature = "fault-points")]
mod steps;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::deadline::Deadline;
use testkit::guest::{self, Guest};
use testkit::process::{Bench, Program, Server};
use testkit::report::{note, skipped};

use crate::guest::check_image;
use crate::support::{After, Disk, Format, Iothreads, ringloom, stop, with};

const QUEUES: usize = 4;
const IMAGE_BYTES: u64 = 96 << 20;
const KILLS: usize = 6;
/// How often the guest writes and verifies; all kills fall into that time.
const ROUNDS: usize = 6;
const GUEST_LIMIT: Duration = Duration::from_secs(240);

/// Each round writes and verifies on every CPU, and thus on every queue.
pub(crate) fn script(rounds: usize) -> String {
    format!(
        "section features cat /sys/bus/virtio/devices/virtio0/features\n\
         section mkfs mkfs.ext4 -q -F -E nodiscard /dev/vda\n\
         section mount mount -t ext4 /dev/vda /mnt\n\
         for cpu in 0 1 2 3; do\n\
           echo \"[job$cpu]\"; echo \"filename=/mnt/job$cpu\"; echo \"cpus_allowed=$cpu\"\n\
         done > /tmp/jobs\n\
         cat > /tmp/job.fio <<EOF\n\
[global]\nioengine=libaio\niodepth=8\nthread\ndirect=1\nrw=randwrite\nbs=4k\nsize=1m\nverify=crc32c\nverify_fatal=1\n\
do_verify=1\nrandseed=7\nEOF\n\
         cat /tmp/jobs >> /tmp/job.fio\n\
         echo the work starts\n\
         for round in $(seq {rounds}); do\n\
           section fio$round fio --output-format=terse /tmp/job.fio\n\
         done\n\
         section known sh -c \"printf '%s' '{}' > /mnt/known\"\n\
         section unmount umount /mnt\n\
         sync",
        crate::guest::KNOWN
    )
}

/// The server after so many kills; it dies by itself if it can.
#[cfg(feature = "fault-points")]
fn next(program: &Program, kills: usize) -> Program {
    const FAULTS: [&str; KILLS] = [
        "UsedPublished:900",
        "Marked:700",
        "Staged:300",
        "MarksCleared:400",
        "Noted:501",
        "BatchLinked:300",
    ];
    match FAULTS.get(kills) {
        Some(fault) => program.clone().with_variable(steps::VARIABLE, fault),
        None => program.clone(),
    }
}

#[cfg(not(feature = "fault-points"))]
fn next(program: &Program, _kills: usize) -> Program {
    program.clone()
}

/// Ends a server in the middle of its work.
#[cfg(feature = "fault-points")]
fn end(server: &mut Server, _kill: usize) -> Result<()> {
    server.wait_for_crash(GUEST_LIMIT)
}

#[cfg(not(feature = "fault-points"))]
fn end(server: &mut Server, kill: usize) -> Result<()> {
    // fio needs about a second to start and two to write; the kills fall anywhere in that.
    let served = Duration::from_millis(700 + 313 * u64::try_from(kill).context("small")?);
    server.wait_while_running(served)?;
    server.kill()
}

fn a_guest_survives(program: &Program, layout: RingLayout, format: Format) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk { iothreads: Iothreads::Two, format, ..Disk::new(&bench, "e0", QUEUES) };
    disk.create_sparse(IMAGE_BYTES)?;
    let mut server = disk.serve(&next(program, 0))?;
    let clock = Deadline::after(GUEST_LIMIT);
    let guest =
        Guest { disks: vec![disk.socket()], queues: QUEUES, layout, script: script(ROUNDS) };
    let running = guest.boot(&bench)?;
    running.wait_for("the work starts", clock.remaining())?;
    for kill in 1..=KILLS {
        end(&mut server, kill).context("while the guest works")?;
        server = disk.serve(&next(program, kill))?;
    }
    let console = running
        .wait(clock.remaining())
        .with_context(|| format!("log of the server: {}", server.log()))?;
    note(&format!("guest through {KILLS} kills: {:?}", clock.elapsed()));
    let packed = console.success("features")?.chars().nth(crate::guest::RING_PACKED) == Some('1');
    ensure!(packed == (layout == RingLayout::Packed), "packed in the guest: {packed}");
    for round in 1..=ROUNDS {
        console.success(&format!("fio{round}"))?;
    }
    for step in ["mkfs", "mount", "known", "unmount", "script_status"] {
        console.success(step)?;
    }
    stop(server, &[&disk.socket()])?;
    check_image(&disk.flatten(After::Kills)?)
}

fn check(layout: RingLayout, format: Format) {
    match guest::missing() {
        Some(reason) => skipped(&reason),
        None => with(&ringloom(), |program| a_guest_survives(program, layout, format)),
    }
}

#[test]
fn a_guest_writes_on_while_its_server_is_killed() {
    check(RingLayout::Split, Format::Raw);
}

#[test]
fn a_guest_with_packed_rings_writes_on_while_its_server_is_killed() {
    check(RingLayout::Packed, Format::Raw);
}

/// What it writes without a flush is there: the page cache of the host outlives the daemon, and so must what
/// leads to it.
#[test]
fn a_guest_writes_on_in_an_overlay_while_its_server_is_killed() {
    check(RingLayout::Split, Format::Overlay);
}
