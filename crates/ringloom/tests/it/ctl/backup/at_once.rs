//! Backups that are begun in the same second: of two disks to one directory, and of one disk to two.

use std::process::{Child, Output};

use super::*;

/// Begins a backup by that monitor, which serves one client at a time; in JSON.
fn begin(place: &Place, monitor: usize, words: &str) -> Result<Child> {
    let socket = [monitor_socket(&place.bench), place.bench.path("qmp2.sock")][monitor].clone();
    let line = format!("backup {words} --json");
    command(&place.bench, &socket, &line).spawn().context("ringloom ctl")
}

fn end(child: Child) -> Result<(Option<i32>, String, String)> {
    let Output { status, stdout, stderr } = child.wait_with_output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((status.code(), text(&stdout), text(&stderr)))
}

/// The date and the file of what was backed up.
fn made((code, stdout, stderr): (Option<i32>, String, String)) -> Result<(String, String)> {
    ensure!(code == Some(0), "{code:?}: {stdout}{stderr}");
    let made: Value = serde_json::from_str(&stdout).with_context(|| stdout.clone())?;
    let backup = &made["backups"][0];
    Ok((backup["date"].as_str().context("a date")?.to_owned(), file(backup)?))
}

fn sector(bytes: &[u8], number: u64) -> Result<&[u8]> {
    let at = usize::try_from(number * 4096)?;
    Ok(&bytes[at..at + 512])
}

fn two_disks() -> Result<()> {
    let mut place = Place::new()?;
    let mut in_one_second = 0;
    for number in 1..20 {
        for disk in ["a", "b"] {
            place.write(disk, number * 4096, number)?;
        }
        let words = |disk: &str| format!("{disk} --to backups --speed 16M");
        let begun = [begin(&place, 0, &words("a"))?, begin(&place, 1, &words("b"))?];
        let mut dates = Vec::new();
        for child in begun {
            let (date, file) = made(end(child)?).with_context(|| place.server.log())?;
            let bytes = bytes_of(&place.bench, &file)?;
            ensure!(sector(&bytes, number)? == stamp(number), "{file} has no write {number}");
            dates.push(date);
        }
        place.check_clean()?;
        in_one_second += usize::from(dates[0] == dates[1]);
        if in_one_second == 3 {
            break;
        }
    }
    ensure!(in_one_second > 0, "never were two in one second");
    ensure!(place.list()?.iter().all(|row| row["whole"] == true), "{:?}", place.list()?);
    place.stop()
}

#[test]
fn two_disks_are_backed_up_in_one_second_by_two_runs() {
    two_disks().unwrap_or_else(|error| panic!("{error:#}"));
}

/// A disk has one job: one run makes its backup, and the other one takes back what is its own, and no more.
fn one_disk() -> Result<()> {
    let mut place = Place::new()?;
    std::fs::create_dir(place.bench.path("other"))?;
    place.write("a", 4096, 1)?;
    let words = |to: &str| format!("a --to {to} --speed 4M");
    let begun = [begin(&place, 0, &words("backups"))?, begin(&place, 1, &words("other"))?];
    let mut failed = 0;
    for child in begun {
        let (code, stdout, stderr) = end(child)?;
        if code == Some(1) {
            ensure!(stderr.contains("no backup of a"), "{stderr}");
            failed += 1;
            continue;
        }
        let (_, file) = made((code, stdout, stderr))?;
        let bytes = bytes_of(&place.bench, &file)?;
        ensure!(sector(&bytes, 1)? == stamp(1), "{file} has no write");
    }
    ensure!(failed == 1, "{failed} have failed");
    place.check_clean()?;
    place.write("a", 8192, 2)?;
    for to in ["backups", "other"] {
        let (_, file) = made(end(begin(&place, 0, &words(to))?)?)?;
        let bytes = bytes_of(&place.bench, &file)?;
        ensure!(sector(&bytes, 2)? == stamp(2), "{file} has no write");
        for entry in std::fs::read_dir(place.bench.path(to))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            ensure!(!name.ends_with(".part"), "{to} has {name}");
        }
    }
    place.check_clean()?;
    place.stop()
}

#[test]
fn of_two_runs_for_one_disk_one_is_refused_and_leaves_nothing() {
    one_disk().unwrap_or_else(|error| panic!("{error:#}"));
}
