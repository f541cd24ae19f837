//! A Linux guest under QEMU: file system, verified I/O on every queue, and the image as the host sees it afterwards.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::deadline::Deadline;
use testkit::guest::{self, Guest};
use testkit::process::{Bench, Program, Server};
use testkit::report::{note, skipped};
use testkit::{image, queue_report};

use crate::support::{
    Disk, Iothreads, check_epoll, ringloom, ringloom_without_io_uring, stop, with,
};

const QUEUES: usize = 4;
const IMAGE_BYTES: u64 = 96 << 20;
pub(crate) const KNOWN: &str = "these bytes came through the guest";
/// The bit of VIRTIO_F_RING_PACKED.
pub(crate) const RING_PACKED: usize = 34;
/// About 20 s under TCG on two cores; the rest is for a loaded machine.
const GUEST_LIMIT: Duration = Duration::from_secs(240);

/// What the guest does. One fio job is pinned to each CPU, and with as many queues as CPUs each has its own.
fn script() -> String {
    format!(
        "section queues sh -c 'ls -d /sys/block/vda/mq/* | wc -l'\n\
         section sectors cat /sys/block/vda/size\n\
         section features cat /sys/bus/virtio/devices/virtio0/features\n\
         section mkfs mkfs.ext4 -q -F -E nodiscard /dev/vda\n\
         section mount mount -t ext4 /dev/vda /mnt\n\
         for cpu in 0 1 2 3; do\n\
           echo \"[job$cpu]\"; echo \"filename=/mnt/job$cpu\"; echo \"cpus_allowed=$cpu\"\n\
         done > /tmp/jobs\n\
         cat > /tmp/job.fio <<EOF\n\
[global]\nioengine=psync\nthread\ndirect=1\nrw=randwrite\nbs=16k\nsize=2m\nverify=crc32c\nverify_fatal=1\n\
do_verify=1\nrandseed=7\nEOF\n\
         cat /tmp/jobs >> /tmp/job.fio\n\
         section fio fio --output-format=terse /tmp/job.fio\n\
         section trim sh -c 'rm /mnt/job0; sync; fstrim -v /mnt || true'\n\
         section interrupts grep virtio /proc/interrupts\n\
         section known sh -c \"printf '%s' '{KNOWN}' > /mnt/known\"\n\
         section unmount umount /mnt\n\
         sync"
    )
}

/// Runs the guest on a disk, checks all that does not depend on the server, and returns the server's log.
fn check(program: &Program, iothreads: Iothreads, layout: RingLayout) -> Result<String> {
    let bench = Bench::new()?;
    let disk = Disk { iothreads, ..Disk::new(&bench, "e0", QUEUES) };
    image::create_sparse(&disk.image(), IMAGE_BYTES)?;
    let server = disk.serve(program)?;
    let clock = Deadline::after(GUEST_LIMIT);
    let guest = Guest { disks: vec![disk.socket()], queues: QUEUES, layout, script: script() };
    let console = guest
        .run(&bench, GUEST_LIMIT)
        .with_context(|| format!("log of the server: {}", server.log()))?;
    note(&format!("guest on {}: {:?}", program.name(), clock.elapsed()));
    // One character per feature bit.
    let packed = console.success("features")?.chars().nth(RING_PACKED) == Some('1');
    ensure!(packed == (layout == RingLayout::Packed), "packed in the guest: {packed}");
    let queues = console.success("queues")?;
    ensure!(queues == QUEUES.to_string(), "{queues} queues in the guest: {}", console.tail());
    let sectors: u64 = console.success("sectors")?.parse().context("size in the guest")?;
    ensure!(sectors * 512 == IMAGE_BYTES, "{sectors} sectors in the guest");
    for step in ["mkfs", "mount", "fio", "trim", "known", "unmount", "script_status"] {
        console.success(step)?;
    }
    note(&console.success("trim")?);
    let idle = idle_queues(&console.success("interrupts")?);
    ensure!(idle.is_empty(), "queues without an interrupt in the guest: {idle:?}");
    let log = stop_after_guest(server, &disk)?;
    check_image(&disk.image())?;
    Ok(log)
}

fn stop_after_guest(server: Server, disk: &Disk<'_>) -> Result<String> {
    stop(server, &[&disk.socket()])
}

/// The queues whose line in /proc/interrupts (`<n>: <count per cpu>… <chip> … virtio0-req.<queue>`) has no count.
fn idle_queues(interrupts: &str) -> Vec<usize> {
    let line_of = |queue: usize| {
        let name = format!("-req.{queue}");
        interrupts.lines().find(move |line| line.trim_end().ends_with(&name))
    };
    let count = |line: &str| -> u64 {
        line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum()
    };
    (0..QUEUES).filter(|queue| line_of(*queue).is_none_or(|line| count(line) == 0)).collect()
}

/// The file system must be clean and hold the known file, seen by tools that never met the server.
pub(crate) fn check_image(image: &Path) -> Result<()> {
    let check =
        Command::new("/usr/sbin/e2fsck").arg("-fn").arg(image).output().context("e2fsck")?;
    let text = String::from_utf8_lossy(&check.stdout);
    ensure!(check.status.success(), "e2fsck -fn: {}: {text}", check.status);
    let show = Command::new("/usr/sbin/debugfs")
        .args(["-R", "cat /known"])
        .arg(image)
        .output()
        .context("debugfs")?;
    let known = String::from_utf8_lossy(&show.stdout);
    ensure!(known == KNOWN, "the known file holds {known:?}");
    Ok(())
}

fn with_guest(program: &Program, behaviour: impl FnOnce(&Program) -> Result<()>) {
    match guest::missing() {
        Some(reason) => skipped(&reason),
        None => with(program, behaviour),
    }
}

/// The guest with its four queues on two iothreads, and what the server says of them afterwards.
fn check_two_iothreads(program: &Program, layout: RingLayout) -> Result<()> {
    let log = check(program, Iothreads::Two, layout)?;
    let reports = queue_report::parse(&log);
    for queue in 0..QUEUES {
        // A guest's firmware opens a session of its own first, so a queue may have several lines.
        let lines: Vec<_> = reports.iter().filter(|report| report.queue == queue).collect();
        let writes: u64 = lines.iter().map(|report| report.writes).sum();
        let errors: u64 = lines.iter().map(|report| report.errors).sum();
        ensure!(writes > 0 && errors == 0, "queue {queue}: {lines:?}, log: {log}");
    }
    let discards: u64 = reports.iter().map(|report| report.discards).sum();
    ensure!(discards > 0, "fstrim in the guest discarded nothing: {reports:?}");
    Ok(())
}

#[test]
fn a_guest_uses_all_queues_of_a_disk_on_two_iothreads() {
    with_guest(&ringloom(), |program| check_two_iothreads(program, RingLayout::Split));
}

#[test]
fn a_guest_with_packed_rings_uses_all_queues_of_a_disk_on_two_iothreads() {
    with_guest(&ringloom(), |program| check_two_iothreads(program, RingLayout::Packed));
}

#[test]
fn a_guest_uses_a_disk_on_a_host_without_io_uring() {
    with_guest(&ringloom_without_io_uring(), |program| {
        check_epoll(&check(program, Iothreads::Two, RingLayout::Split)?)
    });
}

#[test]
fn the_peer_passes_the_guest() {
    with_guest(&Program::qemu_storage_daemon(), |program| {
        check(program, Iothreads::None, RingLayout::Split).map(drop)
    });
}
