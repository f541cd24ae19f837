//! Images whose tables name metadata as if it were data: what a guest writes never gets there.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use qcow2::OverlapCheck;
use testkit::process::Bench;

use crate::node::Guest;
use crate::qemu;

const CLUSTER: usize = 64 << 10;

/// A word of the file.
fn word(file: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(file[at..at + 8].try_into().expect("8 bytes"))
}

fn put(file: &mut [u8], at: usize, value: u64) {
    file[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

/// Where an entry points to.
fn target(file: &[u8], at: usize) -> Result<usize> {
    Ok(usize::try_from(word(file, at) & 0x00ff_ffff_ffff_fe00)?)
}

/// An image with data at its beginning, and where its L1 and L2 table and its refcount table and block
/// are.
#[derive(Debug)]
struct Image {
    file: Vec<u8>,
    l1: usize,
    l2: usize,
    refcount_table: usize,
    refcount_block: usize,
}

fn image(bench: &Bench) -> Result<Image> {
    for line in [
        &["qemu-img", "create", "-q", "-f", "qcow2", "a.qcow2", "64M"][..],
        &["qemu-io", "-f", "qcow2", "-c", "write 0 1M", "a.qcow2"],
    ] {
        qemu::succeeds(&bench.path(""), line)?;
    }
    let file = std::fs::read(bench.path("a.qcow2"))?;
    let (l1, refcount_table) = (target(&file, 40)?, target(&file, 48)?);
    let (l2, refcount_block) = (target(&file, l1)?, target(&file, refcount_table)?);
    Ok(Image { file, l1, l2, refcount_table, refcount_block })
}

fn open(path: &Path, file: &[u8]) -> Result<Guest> {
    std::fs::write(path, file)?;
    Guest::open(path)
}

#[test]
fn data_is_never_written_over_metadata() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let path = bench.path("a.qcow2");
    let good = image(&bench)?;
    for place in [good.l1, good.l2, good.refcount_table, good.refcount_block] {
        // The second cluster of the disk is data, allocated zeroes, or compressed.
        for entry in [1 << 63, 1 << 63 | 1, 1 << 62] {
            let mut file = good.file.clone();
            put(&mut file, good.l2 + 8, place as u64 | entry);
            let mut guest = open(&path, &file)?;
            let written = guest.write(CLUSTER as u64, &[0xee; CLUSTER]);
            ensure!(written.is_err(), "{entry:#x} at {place:#x}: it was written");
            let elsewhere = guest.write(40 << 20, &[0xee; CLUSTER]);
            ensure!(elsewhere.is_err(), "{entry:#x} at {place:#x}: clusters are still taken");
            drop(guest);
            let now = std::fs::read(&path)?;
            let (from, to) = (place, place + CLUSTER);
            ensure!(now[from..to] == file[from..to], "{entry:#x} at {place:#x}: it was changed");
            ensure!(now[79] == 2, "{entry:#x} at {place:#x}: not marked corrupt");
            let said = Guest::open(&path).err().context("it is opened again")?.to_string();
            ensure!(said.contains("marked corrupt"), "{said}");
            let info = qemu::succeeds(&bench.path(""), &["qemu-img", "info", "a.qcow2"])?;
            ensure!(info.contains("corrupt: true"), "{info}");
        }
    }
    Ok(())
}

#[test]
fn metadata_that_is_counted_as_free_is_not_taken() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let path = bench.path("a.qcow2");
    let good = image(&bench)?;
    for place in [good.l1, good.l2, good.refcount_table, good.refcount_block] {
        let mut file = good.file.clone();
        let refcount = good.refcount_block + place / CLUSTER * 2;
        file[refcount..refcount + 2].fill(0);
        let mut guest = open(&path, &file)?;
        // New places until all that is free inside the file is taken.
        let mut results = (0..40).map(|at| guest.write((8 << 20) + (at << 16), &[0xee; CLUSTER]));
        ensure!(results.any(|result| result.is_err()), "{place:#x}: it was taken");
        drop(guest);
        let now = std::fs::read(&path)?;
        let is_data = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xee || *byte == 0);
        ensure!(!is_data(&now[place..place + CLUSTER]), "{place:#x}: it was overwritten");
    }
    Ok(())
}

#[test]
fn an_image_whose_tables_lie_in_each_other_is_not_written() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let path = bench.path("a.qcow2");
    let good = image(&bench)?;
    let (l1, l2) = (good.l1, good.l2);
    for (at, value) in [
        (l1, good.refcount_block),
        (l1, l1),
        (l1, 1 << 40),
        (good.refcount_table, l2),
        (good.refcount_table + 8, good.refcount_block),
        (40, good.refcount_table),
        (48, l1),
    ] {
        let mut file = good.file.clone();
        put(&mut file, at, value as u64);
        let said = open(&path, &file).err().with_context(|| format!("{value:#x} at {at:#x}"))?;
        let said = said.to_string();
        let is_said = said.ends_with("something else too") || said.ends_with("outside the file");
        ensure!(is_said, "{value:#x} at {at:#x}: {said}");
        ensure!(std::fs::read(&path)? == file, "{value:#x} at {at:#x}: it was changed");
    }
    Ok(())
}

/// `overlap-check` says what is held against metadata.
#[test]
fn what_is_checked_is_what_was_asked_for() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let path = bench.path("a.qcow2");
    let shared = image(&bench)?.l2;
    qemu::succeeds(&bench.path(""), &["qemu-img", "snapshot", "-c", "kept", "a.qcow2"])?;
    // The disk gets a table of its own; the old one is the snapshot's.
    Guest::open(&path)?.write(0, &[1; CLUSTER])?;
    let good = std::fs::read(&path)?;
    let l2 = target(&good, target(&good, 40)?)?;
    ensure!(l2 != shared, "the table is still the snapshot's");
    let refcounts = target(&good, target(&good, 48)?)?;
    for (place, check, is_written) in [
        (shared, OverlapCheck::All, false),
        (shared, OverlapCheck::Cached, true),
        (refcounts, OverlapCheck::Cached, false),
        (refcounts, OverlapCheck::None, true),
    ] {
        let mut file = good.clone();
        put(&mut file, l2 + 8, place as u64 | 1 << 63);
        std::fs::write(&path, &file)?;
        let mut guest = Guest::open_with(&path, check)?;
        let written = guest.write(CLUSTER as u64, &[0xee; CLUSTER]);
        ensure!(written.is_ok() == is_written, "{check:?} of {place:#x}: {written:?}");
    }
    Ok(())
}
