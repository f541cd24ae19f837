//! `ringloom ctl restore`, and what `--list` says of files that are broken.

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
