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

/// How a server ends in the middle of its work.
#[derive(Clone, Copy)]
enum End {
    /// By itself, at a step of its work.
    #[cfg(feature = "fault-points")]
    AtStep(&'static str),
    /// From outside, at any time.
    AtAnyTime,
}

/// The end of each server: half of them at a step where the program can do that, and with packed rings the other half.
#[cfg(feature = "fault-points")]
fn ends(layout: RingLayout) -> [End; KILLS] {
    const STEPS: [&str; KILLS] = [
        "UsedPublished:900",
        "Marked:700",
        "Staged:300",
        "MarksCleared:400",
        "Noted:501",
        "BatchLinked:300",
    ];
    let first = usize::from(layout == RingLayout::Packed);
    let end = |kill| if kill % 2 == first { End::AtStep(STEPS[kill]) } else { End::AtAnyTime };
    std::array::from_fn(end)
}

#[cfg(not(feature = "fault-points"))]
fn ends(_layout: RingLayout) -> [End; KILLS] {
    [End::AtAnyTime; KILLS]
}

/// The server that ends so; the last one does not.
fn server(program: &Program, end: Option<&End>) -> Program {
    match end {
        #[cfg(feature = "fault-points")]
        Some(End::AtStep(step)) => program.clone().with_variable(steps::VARIABLE, step),
        Some(End::AtAnyTime) | None => program.clone(),
    }
}

/// Waits for its end, or ends it.
fn end(server: &mut Server, end: End, kill: usize) -> Result<()> {
    match end {
        #[cfg(feature = "fault-points")]
        End::AtStep(_) => server.wait_for_crash(GUEST_LIMIT),
        End::AtAnyTime => {
            // fio needs about a second to start and two to write; the kills fall anywhere in that.
            let served = 700 + 313 * u64::try_from(kill).context("small")?;
            server.wait_while_running(Duration::from_millis(served))?;
            server.kill()
        }
    }
}

fn a_guest_survives(program: &Program, layout: RingLayout, format: Format) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk { iothreads: Iothreads::Two, format, ..Disk::new(&bench, "e0", QUEUES) };
    disk.create_sparse(IMAGE_BYTES)?;
    let ends = ends(layout);
    let mut served = disk.serve(&server(program, ends.first()))?;
    let clock = Deadline::after(GUEST_LIMIT);
    let guest =
        Guest { disks: vec![disk.socket()], queues: QUEUES, layout, script: script(ROUNDS) };
    let running = guest.boot(&bench)?;
    running.wait_for("the work starts", clock.remaining())?;
    for (kill, how) in ends.iter().enumerate() {
        end(&mut served, *how, kill + 1).context("while the guest works")?;
        served = disk.serve(&server(program, ends.get(kill + 1)))?;
    }
    let console = running
        .wait(clock.remaining())
        .with_context(|| format!("log of the server: {}", served.log()))?;
    note(&format!("guest through {KILLS} kills: {:?}", clock.elapsed()));
    let packed = console.success("features")?.chars().nth(crate::guest::RING_PACKED) == Some('1');
    ensure!(packed == (layout == RingLayout::Packed), "packed in the guest: {packed}");
    for round in 1..=ROUNDS {
        console.success(&format!("fio{round}"))?;
    }
    for step in ["mkfs", "mount", "known", "unmount", "script_status"] {
        console.success(step)?;
    }
    stop(served, &[&disk.socket()])?;
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
