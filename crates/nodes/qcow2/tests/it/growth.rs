//! Images that outgrow what counts their clusters: the refcount table moves.

use anyhow::{Context, Result, ensure};
use testkit::process::Bench;
use testkit::rng::Rng;

use crate::node::Guest;
use crate::qemu;

const DISK: usize = 24 << 20;
const STEP: usize = 96 << 10;

/// A table of one cluster of 512 bytes has 64 blocks, which count 2 to 32 MiB.
fn check(options: &str) -> Result<()> {
    let bench = Bench::new()?;
    let directory = bench.path("");
    let run = |line: &[&str]| qemu::succeeds(&directory, line);
    run(&["qemu-img", "create", "-q", "-f", "qcow2", "-o", options, "a.qcow2", "24M"])?;
    let before = place_of_table(&std::fs::read(bench.path("a.qcow2"))?);
    let mut disk = vec![0; DISK];
    Rng::new(9).fill(&mut disk);
    for half in [0..DISK / 2, DISK / 2..DISK] {
        let mut guest = Guest::open(&bench.path("a.qcow2"))?;
        for at in half.step_by(STEP) {
            guest.write(at as u64, &disk[at..DISK.min(at + STEP)])?;
        }
        guest.flush()?;
        drop(guest);
        let said = qemu::wrong(&directory, "a.qcow2")?;
        ensure!(said.is_empty(), "{said}");
    }
    let after = place_of_table(&std::fs::read(bench.path("a.qcow2"))?);
    ensure!(before != after, "the table is still at {before:?}");
    run(&["qemu-img", "convert", "-f", "qcow2", "-O", "raw", "a.qcow2", "a.raw"])?;
    ensure!(std::fs::read(bench.path("a.raw"))? == disk, "the disk is another one");
    Ok(())
}

/// `refcount_table_offset` and `refcount_table_clusters`.
fn place_of_table(image: &[u8]) -> [u8; 12] {
    image[48..60].try_into().expect("12 bytes")
}

#[test]
fn a_refcount_table_moves_when_it_is_full() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    for options in [
        "cluster_size=512",
        "cluster_size=512,refcount_bits=64",
        "cluster_size=1k,refcount_bits=64",
    ] {
        check(options).with_context(|| options.to_owned())?;
    }
    Ok(())
}
