//! Backups that are interrupted, killed, or have no space: nothing in the directory looks finished, and the next one has all that
//! was changed.

use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use testkit::deadline::poll_until;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

/// A slow backup whose job runs.
fn begun(place: &Place, words: &str) -> Result<Child> {
    let line = format!("backup {words} --to backups --speed 1M");
    let mut child = command(&place.bench, &monitor_socket(&place.bench), &line).spawn()?;
    let is_growing = || -> Result<Option<()>> {
        ensure!(child.try_wait()?.is_none(), "it has ended");
        let parts = files(&place.bench)?.into_iter().filter(|name| name.ends_with(".part"));
        let size = |name: String| std::fs::metadata(place.bench.path("backups").join(name));
        let sizes: std::io::Result<Vec<u64>> = parts.map(|it| Ok(size(it)?.len())).collect();
        Ok(sizes?.iter().any(|bytes| *bytes > 1 << 20).then_some(()))
    };
    poll_until("a backup that copies", LIMIT, is_growing)?;
    Ok(child)
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(i32::try_from(child.id())?).context("a process")?;
    kill_process(pid, signal).context("signal")
}

/// Both disks have other data than zeroes, which take time to copy.
fn fill(place: &Place) -> Result<()> {
    for disk in ["a", "b"] {
        let socket = place.bench.path(&format!("{disk}.sock"));
        let mut client = Client::connect(&socket, Shape::small())?;
        for at in (0..BYTES).step_by(32768) {
            client.write(at, &stamp(at + 1).repeat(64), 0)?;
        }
    }
    Ok(())
}

fn killed_clients() -> Result<()> {
    let mut place = Place::new()?;
    fill(&place)?;
    let whole = |place: &Place| -> Result<usize> {
        Ok(place.list()?.iter().filter(|it| it["whole"] == true).count())
    };
    // The first one, and one whose bitmap must not be lost.
    for round in 0..2 {
        let before = whole(&place)?;
        let child = begun(&place, "a b")?;
        signal(&child, Signal::INT)?;
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(1) && output.stdout.is_empty(), "{said}");
        ensure!(said.ends_with("no backup of a, b to backups: interrupted\n"), "{said}");
        place.check_clean()?;
        let mut child = begun(&place, "a b")?;
        let line = "backup b --to backups";
        check_refused(&place.bench, &monitor_socket(&place.bench), line, 1, "is under way")?;
        signal(&child, Signal::KILL)?;
        child.wait()?;
        ensure!(whole(&place)? == before, "round {round}: {:?}", place.list()?);
        // What it has left is still being copied.
        let text = place.backup("a b")?;
        let kind = if round == 0 { "a: full (the first" } else { "a: incremental" };
        ensure!(text.starts_with(kind), "round {round}: {text}");
        place.check_clean()?;
        ensure!(whole(&place)? == before + 2, "round {round}: {:?}", place.list()?);
        fill(&place)?;
        place.write("a", 512, 99)?;
        place.write("b", 512, 99)?;
    }
    place.backup("a b")?;
    place.stop()?;
    let all = place.list()?;
    for (disk, format) in [("a", "raw"), ("b", "qcow2")] {
        let last = file(all.iter().rfind(|it| it["disk"] == disk).context("none")?)?;
        let line = format!("compare -q -f {format} -F qcow2 {disk}.img {last}");
        qemu_img(&place.bench, &line)?;
    }
    Ok(())
}

#[test]
fn a_backup_that_is_interrupted_leaves_nothing() {
    killed_clients().unwrap_or_else(|error| panic!("{error:#}"));
}

fn killed_daemon() -> Result<()> {
    let mut place = Place::new()?;
    fill(&place)?;
    place.backup("a b")?;
    fill(&place)?;
    let child = begun(&place, "a b")?;
    place.server.kill()?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "{said}");
    ensure!(said.contains("no backup of a, b to backups: ") && said.contains("hung up"), "{said}");
    ensure!(files(&place.bench)?.iter().all(|name| !name.ends_with(".part")), "a part is left");
    let all = place.list()?;
    ensure!(all.len() == 2 && all.iter().all(|it| it["whole"] == true), "{all:?}");
    place.again()?;
    let text = place.backup("a b")?;
    ensure!(text.starts_with("a: full (node na has no bitmap since "), "{text}");
    ensure!(text.contains("\nb: full (node nb has no bitmap since "), "{text}");
    place.check_clean()?;
    stop(place.server, &[]).map(drop)
}

#[test]
fn a_daemon_that_is_killed_leaves_no_backup_that_looks_finished() {
    killed_daemon().unwrap_or_else(|error| panic!("{error:#}"));
}

/// The file system is full: all or none of the disks are copied, and guests go on.
fn no_space() -> Result<()> {
    let place = Place::new()?;
    let small = place.bench.path("backups");
    let options = c"size=3m";
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("none", &small, "tmpfs", flags, options).is_err() {
        testkit::report::skipped("no tmpfs can be mounted");
        return stop(place.server, &[]).map(drop);
    }
    let unmount = || rustix::mount::unmount(&small, rustix::mount::UnmountFlags::DETACH);
    let result = (|| -> Result<()> {
        place.backup("a b")?;
        fill(&place)?;
        let line = "backup a b --to backups";
        let socket = monitor_socket(&place.bench);
        check_refused(&place.bench, &socket, line, 1, "no space left")?;
        place.check_clean()?;
        ensure!(place.list()?.len() == 2, "{:?}", place.list()?);
        place.write("a", 0, 5)?;
        // There is space for one, and nothing of it was forgotten.
        rustix::mount::mount_remount(&small, flags, c"size=30m")?;
        let text = place.backup("a b")?;
        ensure!(text.starts_with("a: incremental") && text.contains(" 4 MiB copied"), "{text}");
        let all = place.list()?;
        let last = file(all.iter().rfind(|it| it["disk"] == "a").context("none")?)?;
        let bytes = bytes_of(&place.bench, &last)?;
        ensure!(bytes == std::fs::read(place.bench.path("a.img"))?, "something is lost");
        Ok(())
    })();
    unmount()?;
    result?;
    stop(place.server, &[]).map(drop)
}

#[test]
fn a_directory_without_space_has_no_backup_that_looks_finished() {
    no_space().unwrap_or_else(|error| panic!("{error:#}"));
}
