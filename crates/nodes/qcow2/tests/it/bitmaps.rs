//! Persistent bitmaps of an image that ringloom has written: what QEMU then says of them.

use anyhow::{Result, ensure};
use testkit::process::Bench;

use crate::node::Guest;
use crate::qemu;

/// What `qemu-img info` says of the bitmaps: name and flags.
fn bitmaps(bench: &Bench) -> Result<String> {
    let info = qemu::succeeds(&bench.path(""), &["qemu-img", "info", "a.qcow2"])?;
    let lines = info.lines().map(str::trim).filter(|line| {
        line.starts_with("name:") || line.ends_with(" auto") || line.ends_with(" in-use")
    });
    Ok(lines.collect::<Vec<_>>().join(" "))
}

#[test]
fn a_bitmap_that_misses_changes_is_never_taken_for_valid() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let directory = bench.path("");
    for line in [
        &["qemu-img", "create", "-q", "-f", "qcow2", "a.qcow2", "64M"][..],
        &["qemu-img", "bitmap", "--add", "a.qcow2", "records"],
        &["qemu-img", "bitmap", "--add", "--disable", "a.qcow2", "old"],
        &["qemu-io", "-f", "qcow2", "-c", "write 0 1M", "a.qcow2"],
    ] {
        qemu::succeeds(&directory, line)?;
    }
    ensure!(bitmaps(&bench)? == "[0]: auto name: records name: old");
    let mut guest = Guest::open(&bench.path("a.qcow2"))?;
    // Marked before anything is written: a death from now on finds it so.
    let marked = "[0]: in-use [1]: auto name: records name: old";
    let now = std::fs::read(bench.path("a.qcow2"))?;
    std::fs::write(bench.path("copy.qcow2"), now)?;
    guest.write(5 << 20, &[7; 4096])?;
    guest.flush()?;
    drop(guest);
    ensure!(bitmaps(&bench)? == marked, "{}", bitmaps(&bench)?);
    std::fs::rename(bench.path("copy.qcow2"), bench.path("a.qcow2"))?;
    ensure!(bitmaps(&bench)? == marked, "while it is open: {}", bitmaps(&bench)?);
    ensure!(qemu::wrong(&directory, "a.qcow2")?.is_empty(), "leaks");
    // QEMU refuses to use the one and takes the other.
    let clear = |name| qemu::run(&directory, &["qemu-img", "bitmap", "--clear", "a.qcow2", name]);
    let refused = clear("records")?;
    ensure!(!refused.status.success(), "it was taken for valid");
    ensure!(String::from_utf8_lossy(&refused.stderr).contains("inconsistent"), "{refused:?}");
    ensure!(clear("old")?.status.success(), "it is valid");
    for name in ["records", "old"] {
        qemu::succeeds(&directory, &["qemu-img", "bitmap", "--remove", "a.qcow2", name])?;
    }
    ensure!(qemu::wrong(&directory, "a.qcow2")?.is_empty(), "no cluster of them is lost");
    Ok(())
}

#[test]
fn a_directory_that_is_damaged_keeps_an_image_from_being_written() -> Result<()> {
    if qemu::is_missing() {
        return Ok(());
    }
    let bench = Bench::new()?;
    let directory = bench.path("");
    for line in [
        &["qemu-img", "create", "-q", "-f", "qcow2", "a.qcow2", "64M"][..],
        &["qemu-img", "bitmap", "--add", "a.qcow2", "records"],
    ] {
        qemu::succeeds(&directory, line)?;
    }
    let mut file = std::fs::read(bench.path("a.qcow2"))?;
    let name = file.windows(7).rposition(|bytes| bytes == b"records").expect("it has a name");
    // The length of the name.
    file[name - 5] = 200;
    std::fs::write(bench.path("a.qcow2"), file)?;
    let refused = Guest::open(&bench.path("a.qcow2")).expect_err("nothing is known of its bitmaps");
    let said = refused.to_string();
    ensure!(said.contains("the bitmap directory at byte 0x"), "{said}");
    ensure!(said.ends_with("of the image is not one"), "{said}");
    Ok(())
}
