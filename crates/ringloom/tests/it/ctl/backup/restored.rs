//! `ringloom ctl restore`, and what `--list` says of files that are broken.

use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;
use testkit::loop_device::LoopDevice;
use testkit::report::skipped;

use super::*;

fn restored() -> Result<()> {
    let place = Place::new()?;
    let (bench, nobody) = (&place.bench, &place.bench.path("nobody"));
    for round in 1..=3 {
        for disk in ["a", "b"] {
            place.write(disk, round * 65536, round)?;
        }
        place.backup("a b")?;
    }
    let all = place.list()?;
    let of_b: Vec<&Value> = all.iter().filter(|it| it["disk"] == "b").collect();
    for row in &of_b {
        let (name, date) = (file(row)?, row["date"].as_str().context("a date")?);
        let from_file = format!("restore {name} --to one.img --format raw --force");
        let text = said(bench, nobody, &from_file)?;
        ensure!(
            text.contains("one.img: disk b as of ") && text.contains("compared with b-"),
            "{text}"
        );
        let by_date =
            format!("restore backups --disk b --at {date} --to two.img --format qcow2 --force");
        said(bench, nobody, &by_date)?;
        qemu_img(bench, &format!("compare -q -f raw -F qcow2 one.img {name}"))?;
        qemu_img(bench, &format!("compare -q -f qcow2 -F qcow2 two.img {name}"))?;
        qemu_img(bench, "check -q -f qcow2 two.img")?;
        let info = qemu_img(bench, "info two.img")?;
        ensure!(!info.contains("backing file"), "{info}");
    }
    let twice = format!("restore {} --disk b --to x --format raw", file(of_b[0])?);
    check_refused(bench, nobody, &twice, 2, "takes no --at and no --disk")?;
    // Digits that are left out: the last one of that minute.
    let dates: Vec<&str> = of_b.iter().filter_map(|row| row["date"].as_str()).collect();
    let minute = &dates[0][..13];
    let last = dates.iter().rfind(|it| it.starts_with(minute)).context("none")?;
    let line = format!("restore backups --disk b --at {minute} --to one.img --format raw --force");
    let text = said(bench, nobody, &line)?;
    ensure!(text.contains(&format!("disk b as of {last}, ")), "{minute}: {text}");
    for (line, expected) in [
        ("restore backups --to x --format raw", "which disk? --disk a, --disk b"),
        ("restore backups --disk c --to x --format raw", "there is no backup of 'c'"),
        ("restore backups --disk b --at 2020-01-01 --to x --format raw", "or before"),
        ("restore backups --disk b --to one.img --format raw", "one.img is there already: --force"),
        // Somebody uses it.
        ("restore backups --disk b --to b.img --format qcow2 --force", "b.img"),
        ("restore a.img --to x --format raw", "it is no backup by its name"),
    ] {
        check_refused(bench, nobody, line, 1, expected)?;
    }
    // A file in the middle is cut, another one is gone.
    let middle = file(of_b[1])?;
    std::fs::rename(&middle, bench.path("away"))?;
    std::fs::write(&middle, "QFI")?;
    let (code, stdout, stderr) = run(command(bench, nobody, "backup --list backups"))?;
    ensure!(code == Some(3) && stderr.contains("not all of them are whole"), "{code:?} {stderr}");
    ensure!(
        stdout.contains("broken: it is ") && stdout.contains("on which it stands, is broken"),
        "{stdout}"
    );
    let line = "restore backups --disk b --to x --format raw";
    check_refused(bench, nobody, line, 1, "is broken")?;
    std::fs::remove_file(&middle)?;
    let (_, stdout, _) = run(command(bench, nobody, "backup --list backups"))?;
    ensure!(stdout.contains("on which it stands, is missing"), "{stdout}");
    ensure!(!bench.path("x").exists(), "it was made all the same");
    // Onto the disk of a daemon that has ended.
    std::fs::rename(bench.path("away"), &middle)?;
    let mut place = place;
    place.stop()?;
    let first = file(of_b[0])?;
    let line = format!("restore {first} --to b.img --format qcow2 --force");
    said(&place.bench, &place.bench.path("nobody"), &line)?;
    qemu_img(&place.bench, &format!("compare -q -f qcow2 -F qcow2 b.img {first}"))?;
    place.again()?;
    stop(place.server, &[]).map(drop)
}

#[test]
fn a_disk_is_restored_as_it_was() {
    restored().unwrap_or_else(|error| panic!("{error:#}"));
}

/// What `--list` says of the only backup there.
fn state(bench: &Bench) -> Result<String> {
    let all = list(bench)?;
    ensure!(all.len() == 1, "{all:?}");
    Ok(all[0]["state"].as_str().context("a state")?.to_owned())
}

fn cut() -> Result<()> {
    let place = Place::new()?;
    for at in 0..4 {
        place.write("b", at * 5 * 65536, at + 1)?;
    }
    let name = file(&place.backup_json("b")?)?;
    let made = std::fs::File::options().write(true).open(&name)?;
    let whole = std::fs::read(&name)?;
    let check = qemu_img(&place.bench, &format!("check -f qcow2 {name}"))?;
    let end = check.lines().find_map(|line| line.strip_prefix("Image end offset: "));
    let end: u64 = end.with_context(|| check.clone())?.parse()?;
    made.set_len(end)?;
    ensure!(state(&place.bench)? == "whole", "nothing is lost");
    // The header is there, and most of the rest.
    for bytes in [end - 1, end - 65536, end / 2] {
        made.set_len(bytes)?;
        let state = state(&place.bench)?;
        ensure!(state.starts_with("broken: it is cut off: "), "{bytes}: {state}");
        let line = format!("restore {name} --to x --format raw");
        let nobody = place.bench.path("nobody");
        check_refused(&place.bench, &nobody, &line, 1, "it is cut off")?;
    }
    // Nothing is put on it, and it counts for nothing.
    let text = place.backup("b --keep 1")?;
    ensure!(text.contains("b: full (the chain is broken: b-full-"), "{text}");
    std::fs::write(&name, &whole)?;
    ensure!(place.list()?.iter().all(|it| it["whole"] == true), "{:?}", place.list()?);
    stop(place.server, &[]).map(drop)
}

#[test]
fn a_backup_that_has_lost_its_end_is_broken() {
    cut().unwrap_or_else(|error| panic!("{error:#}"));
}

/// Images of qemu-img are whole, and found to be cut as well.
fn kinds() -> Result<()> {
    let bench = Bench::new()?;
    std::fs::create_dir(bench.path("backups"))?;
    image::create_filled(&bench.path("disk"), 1 << 20, 9)?;
    let name = "backups/x-full-20260101T000000Z.qcow2";
    for words in [
        "-o compat=0.10",
        "-o cluster_size=512",
        "-o cluster_size=2M",
        "-o extended_l2=on",
        "-o refcount_bits=64",
        "-o preallocation=metadata",
        "-c -o compression_type=zstd",
    ] {
        qemu_img(&bench, &format!("convert -f raw -O qcow2 {words} disk {name}"))?;
        let image = std::fs::File::options().write(true).open(bench.path(name))?;
        let bytes = image.metadata()?.len().next_multiple_of(2 << 20);
        image.set_len(bytes)?;
        let found = state(&bench)?;
        ensure!(found == "whole", "{words}: {found}");
        image.set_len(200 << 10)?;
        let found = state(&bench)?;
        ensure!(found.contains("it is cut off: "), "{words}: {found}");
    }
    Ok(())
}

#[test]
fn each_kind_of_image_is_whole_or_cut() {
    kinds().unwrap_or_else(|error| panic!("{error:#}"));
}

fn device() -> Result<()> {
    let place = Place::new()?;
    place.write("b", 65536, 3)?;
    let name = file(&place.backup_json("b")?)?;
    image::create_filled(&place.bench.path("device"), usize::try_from(BYTES)?, 5)?;
    let device = LoopDevice::attach(&place.bench.path("device"), 512)?;
    let path = device.path().display();
    let (line, nobody) =
        (format!("restore {name} --to {path} --format raw --force"), place.bench.path("nobody"));
    let flag = i32::try_from(OFlags::EXCL.bits())?;
    let before = std::fs::read(place.bench.path("device"))?;
    // As one that is mounted.
    let held = std::fs::File::options().read(true).custom_flags(flag).open(device.path())?;
    check_refused(&place.bench, &nobody, &line, 1, "it is mounted, or an array")?;
    drop(held);
    ensure!(std::fs::read(place.bench.path("device"))? == before, "it was written");
    said(&place.bench, &nobody, &line)?;
    qemu_img(&place.bench, &format!("compare -q -f raw -F qcow2 {path} {name}"))?;
    stop(place.server, &[]).map(drop)
}

#[test]
fn a_block_device_that_is_mounted_is_not_written() {
    if let Some(reason) = LoopDevice::missing() {
        return skipped(reason);
    }
    device().unwrap_or_else(|error| panic!("{error:#}"));
}
