//! `ringloom ctl` dies at each step of a backup: what has a name is whole, and the next one has everything.

use super::*;

/// A backup that dies at that step.
fn dies(place: &Place, words: &str, step: &str) -> Result<()> {
    let line = format!("backup {words} --to backups");
    let mut command = command(&place.bench, &monitor_socket(&place.bench), &line);
    command.env("RINGLOOM_CTL_FAULT", step);
    let (code, stdout, stderr) = run(command)?;
    ensure!(code.is_none() && stdout.is_empty(), "{step} was not reached: {stdout}{stderr}");
    Ok(())
}

/// Each file is what it was when it was new.
fn check_all(place: &Place, known: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    for row in place.list()? {
        if row["whole"] != true {
            let state = row["state"].as_str().unwrap_or_default();
            ensure!(!state.contains("broken"), "{row}");
            continue;
        }
        let name = file(&row)?;
        let bytes = bytes_of(&place.bench, &name)?;
        match known.iter().find(|(known, _)| *known == name) {
            Some((_, before)) => ensure!(*before == bytes, "{name} has changed"),
            None => known.push((name, bytes)),
        }
    }
    Ok(())
}

fn steps() -> Result<()> {
    let mut place = Place::new()?;
    let mut known = Vec::new();
    let (mut number, mut merges) = (0, 0);
    for step in [
        "Made",
        "Begun",
        "Copied",
        "Closed",
        "Named",
        "Forgotten",
        "Made",
        "Begun",
        "Copied",
        "Closed",
        "Named",
        "Forgotten",
        "Marked",
        "Merging",
        "Merged",
        "Renamed",
    ] {
        let is_merge = matches!(step, "Marked" | "Merging" | "Merged" | "Renamed");
        merges += usize::from(is_merge);
        number += 1;
        for disk in ["a", "b"] {
            place.write(disk, number * 4096, number)?;
        }
        let words = if is_merge { "a b --keep 2" } else { "a b" };
        dies(&place, words, step)?;
        check_all(&place, &mut known).with_context(|| step.to_owned())?;
        number += 1;
        for disk in ["a", "b"] {
            place.write(disk, number * 4096, number)?;
        }
        let text = place.backup(words).with_context(|| step.to_owned())?;
        let is_first = number == 2;
        ensure!(is_first || !text.contains("full"), "{step}: {text}");
        place.check_clean()?;
        check_all(&place, &mut known).with_context(|| step.to_owned())?;
    }
    ensure!(merges == 4 && place.list()?.len() == 4, "{:?}", place.list()?);
    place.stop()?;
    for (disk, format) in [("a", "raw"), ("b", "qcow2")] {
        let all = place.list()?;
        let last = file(all.iter().rfind(|it| it["disk"] == disk).context("none")?)?;
        qemu_img(&place.bench, &format!("compare -q -f {format} -F qcow2 {disk}.img {last}"))?;
    }
    Ok(())
}

#[test]
fn a_client_that_dies_at_any_step_loses_nothing() {
    steps().unwrap_or_else(|error| panic!("{error:#}"));
}

/// It dies when one of two files has its name: that one is whole, the other one is none, and the next backup has both.
fn between_names() -> Result<()> {
    let mut place = Place::new()?;
    place.backup("a b")?;
    for disk in ["a", "b"] {
        place.write(disk, 4096, 1)?;
    }
    dies(&place, "a b", "Named")?;
    let rows = place.list()?;
    let newest = |rows: &[Value], disk: &str| -> Result<Vec<u8>> {
        let row = rows.iter().rfind(|it| it["disk"] == disk && it["whole"] == true);
        bytes_of(&place.bench, &file(row.context("none is whole")?)?)
    };
    let count = |rows: &[Value], disk: &str| {
        rows.iter().filter(|it| it["disk"] == disk && it["whole"] == true).count()
    };
    ensure!((count(&rows, "a"), count(&rows, "b")) == (2, 1), "{rows:?}");
    ensure!(newest(&rows, "a")?[4096..4608] == stamp(1), "the write is lost");
    ensure!(newest(&rows, "b")?[4096..4608] == stamp(0), "it has the name of the one before");
    for disk in ["a", "b"] {
        place.write(disk, 8192, 2)?;
    }
    let said = place.backup("a b")?;
    ensure!(!said.contains("full"), "{said}");
    let rows = place.list()?;
    ensure!((count(&rows, "a"), count(&rows, "b")) == (3, 2), "{rows:?}");
    for disk in ["a", "b"] {
        let bytes = newest(&rows, disk)?;
        ensure!(bytes[4096..4608] == stamp(1) && bytes[8192..8704] == stamp(2), "{disk}: lost");
    }
    place.check_clean()?;
    place.stop()
}

#[test]
fn a_client_that_dies_between_two_names_leaves_one_backup_and_no_half() {
    between_names().unwrap_or_else(|error| panic!("{error:#}"));
}
