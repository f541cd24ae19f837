//! What an internal snapshot holds stays as it is, whatever is written to the disk.

use anyhow::{Context, Result, ensure};
use testkit::process::Bench;
use testkit::rng::Rng;

use crate::node::Guest;
use crate::qemu;

const DISK: usize = 4 << 20;

fn check(options: &str) -> Result<()> {
    let bench = Bench::new()?;
    let directory = bench.path("");
    let run = |line: &[&str]| qemu::succeeds(&directory, line);
    run(&["qemu-img", "create", "-q", "-f", "qcow2", "-o", options, "a.qcow2", "4M"])?;
    let mut random = Rng::new(6);
    let mut disk = vec![0; DISK];
    let mut states = Vec::new();
    for snapshot in ["first", "second"] {
        let mut guest = Guest::open(&bench.path("a.qcow2"))?;
        write_anywhere(&mut guest, &mut disk, &mut random)?;
        guest.flush()?;
        drop(guest);
        run(&["qemu-img", "snapshot", "-c", snapshot, "a.qcow2"])?;
        states.push((snapshot, disk.clone()));
    }
    let mut guest = Guest::open(&bench.path("a.qcow2"))?;
    write_anywhere(&mut guest, &mut disk, &mut random)?;
    // And everywhere.
    for at in (0..DISK).step_by(8192) {
        let byte = u8::try_from(random.below(256))?;
        disk[at..at + 512].fill(byte);
        guest.write(at as u64, &disk[at..at + 512])?;
    }
    ensure!(guest.read(0, DISK)?[..] == disk[..], "{options}: the disk");
    guest.flush()?;
    drop(guest);
    states.push(("", disk));
    for (snapshot, disk) in states.iter().rev() {
        let said = qemu::wrong(&directory, "a.qcow2")?;
        ensure!(said.is_empty(), "{options}: before {snapshot}: {said}");
        if !snapshot.is_empty() {
            run(&["qemu-img", "snapshot", "-a", snapshot, "a.qcow2"])?;
        }
        run(&["qemu-img", "convert", "-f", "qcow2", "-O", "raw", "a.qcow2", "a.raw"])?;
        ensure!(std::fs::read(bench.path("a.raw"))? == *disk, "{options}: snapshot {snapshot:?}");
    }
    Ok(())
}

fn write_anywhere(guest: &mut Guest, disk: &mut [u8], random: &mut Rng) -> Result<()> {
    for _ in 0..40 {
        let at = random.index(DISK / 512) * 512;
        let count = ((1 + random.index(300)) * 512).min(DISK - at);
        random.fill(&mut disk[at..at + count]);
        guest.write(at as u64, &disk[at..at + count])?;
    }
    Ok(())
}

#[test]
fn snapshots_keep_what_they_hold() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for options in [
        "cluster_size=64k",
        "cluster_size=2M",
        "cluster_size=512",
        "compat=0.10,cluster_size=4k",
        "cluster_size=16k,refcount_bits=64",
        "cluster_size=16k,refcount_bits=4",
    ] {
        check(options).with_context(|| options.to_owned())?;
    }
    Ok(())
}
