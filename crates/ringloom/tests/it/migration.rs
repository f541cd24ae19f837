//! A Linux guest that is migrated while it reads its disk. What the disk has written to the guest's memory meanwhile
//! must be in the memory that arrives: the guest's page cache is the witness.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::guest::{self, Guest, MIGRATE_NOW};
use testkit::process::{Bench, Program};
use testkit::report::{note, skipped};

use crate::support::{Disk, Iothreads, ringloom, stop, with};

/// What is read while the migration goes on, a MiB at a time.
const IMAGE_BYTES: usize = 96 << 20;
const GUEST_LIMIT: Duration = Duration::from_secs(300);

/// The disk stays open, so that what was read stays in the page cache. That is compared with the disk at the end; what
/// stands there was read before, while and after the guest was migrated. A job writes and verifies beside it.
fn script() -> String {
    format!(
        "exec 3</dev/vda\n\
         cat > /tmp/job.fio <<EOF\n\
[job]\nioengine=psync\nthread\ndirect=1\nrw=randwrite\nbs=16k\nsize=2m\nloops=3\nverify=crc32c\nverify_fatal=1\n\
do_verify=1\nfilename=/dev/vdb\nrandseed=7\nEOF\n\
         ( fio --output-format=terse /tmp/job.fio > /tmp/fio.out 2>&1; echo $? > /tmp/fio.status ) &\n\
         i=0\n\
         while [ $i -lt 96 ]; do\n\
           dd if=/dev/vda of=/dev/null bs=1M skip=$i count=1 2>/dev/null\n\
           i=$((i + 1))\n\
           if [ $i = 8 ]; then echo '{MIGRATE_NOW}'; fi\n\
           sleep 0.2\n\
         done\n\
         wait\n\
         section fio sh -c 'cat /tmp/fio.out; exit $(cat /tmp/fio.status)'\n\
         section cached md5sum /dev/vda\n\
         section sectors cat /sys/block/vda/stat\n\
         echo 3 > /proc/sys/vm/drop_caches\n\
         section disk md5sum /dev/vda\n"
    )
}

fn check(program: &Program, layout: RingLayout) -> Result<()> {
    let bench = Bench::new()?;
    let (read, written) = (Disk::new(&bench, "e0", 2), Disk::new(&bench, "e1", 2));
    let [read, written] = [read, written].map(|disk| Disk { iothreads: Iothreads::Two, ..disk });
    read.create(IMAGE_BYTES, 0x51)?;
    written.create(4 << 20, 0x52)?;
    let server = crate::support::serve(program, &[read.clone(), written.clone()])?;
    let disks = vec![read.socket(), written.socket()];
    let guest = Guest { disks, queues: 2, layout, script: script() };
    let console = guest
        .run_migrated(&bench, GUEST_LIMIT)
        .with_context(|| format!("log of the server: {}", server.log()))?;
    for step in ["fio", "script_status"] {
        console.success(step)?;
    }
    let (cached, disk) = (console.success("cached")?, console.success("disk")?);
    ensure!(cached == disk, "the page cache has {cached}, the disk {disk}");
    note(&format!("statistics of the disk at its end: {}", console.success("sectors")?));
    stop(server, &[&read.socket(), &written.socket()]).map(drop)
}

fn migrates(layout: RingLayout) {
    match guest::missing() {
        Some(reason) => skipped(&reason),
        None => with(&ringloom(), |program| check(program, layout)),
    }
}

#[test]
fn a_guest_that_reads_is_migrated_with_what_it_has_read() {
    migrates(RingLayout::Split);
}

#[test]
fn a_guest_with_packed_rings_that_reads_is_migrated_with_what_it_has_read() {
    migrates(RingLayout::Packed);
}
