//! `ringloom ctl backup` and `restore`: what is in a directory is what qemu-img finds there, whatever happens meanwhile.
//!
//! Guests write in a known order, so each backup has to be a prefix of what they wrote, later ones no shorter.

mod at_once;
mod interrupted;
mod quiet;
mod remote;
mod restored;
mod retired;
#[cfg(feature = "fault-points")]
mod steps;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, Shape};
use testkit::image;
use testkit::process::{Bench, Server};
use testkit::qmp::QmpClient;

use super::{check_refused, command, json, run, said};
use crate::control::filters::{BYTES, last_write, stamp, write_in_order};
use crate::control::{export, monitor, monitor_socket, state};
use crate::support::{qemu_img, ringloom, stop};

/// Disk `a` is a raw file, disk `b` a qcow2 image; backups go to `backups`.
pub(super) struct Place {
    pub(super) bench: Bench,
    pub(super) server: Server,
}

impl Place {
    pub(super) fn new() -> Result<Self> {
        let bench = Bench::new()?;
        image::create_with(&bench.path("a.img"), &vec![0; usize::try_from(BYTES)?])?;
        qemu_img(&bench, &format!("create -q -f qcow2 b.img {BYTES}"))?;
        std::fs::create_dir(bench.path("backups"))?;
        let server = serve(&bench)?;
        Ok(Self { bench, server })
    }

    /// The same daemon, started again.
    pub(super) fn again(&mut self) -> Result<()> {
        self.server = serve(&self.bench)?;
        Ok(())
    }

    fn sockets(&self) -> [PathBuf; 2] {
        ["a.sock", "b.sock"].map(|name| self.bench.path(name))
    }

    /// Stops the daemon in good order; its sockets are gone.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.server.stop().map(drop)
    }

    /// A backup that must be made; what it prints.
    pub(super) fn backup(&self, words: &str) -> Result<String> {
        said(&self.bench, &monitor_socket(&self.bench), &format!("backup {words} --to backups"))
    }

    /// The same as JSON: of its first disk.
    pub(super) fn backup_json(&self, words: &str) -> Result<Value> {
        let line = format!("backup {words} --to backups");
        Ok(json(&self.bench, &monitor_socket(&self.bench), &line)?["backups"][0].clone())
    }

    /// What a directory has, by `--list`.
    pub(super) fn list(&self) -> Result<Vec<Value>> {
        list(&self.bench)
    }

    /// Writes to a disk that nobody else writes.
    pub(super) fn write(&self, disk: &str, at: u64, number: u64) -> Result<()> {
        let socket = self.bench.path(&format!("{disk}.sock"));
        Client::connect(&socket, Shape::small())?.write(at, &stamp(number), 0)
    }

    /// By a monitor of its own.
    pub(super) fn qmp(&self) -> Result<QmpClient> {
        QmpClient::connect(&self.bench.path("qmp2.sock"))
    }

    /// Nothing is left of backups: no job, no node, no file without a name.
    pub(super) fn check_clean(&self) -> Result<()> {
        let mut qmp = self.qmp()?;
        let jobs = qmp.execute("query-jobs", &json!({}))?;
        ensure!(jobs == Value::Array(Vec::new()), "{jobs}");
        let nodes = qmp.execute("query-named-block-nodes", &json!({"flat": true}))?;
        let names: Vec<&str> = nodes
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|it| it["node-name"].as_str())
            .collect();
        let is_left = |it: &&str| it.starts_with("backup-") || it.starts_with("merge-");
        ensure!(!names.iter().any(is_left), "{names:?}");
        let parts = files(&self.bench)?.into_iter().filter(|name| name.ends_with(".part"));
        let parts: Vec<String> = parts.collect();
        ensure!(parts.is_empty(), "{parts:?}");
        Ok(())
    }
}

fn serve(bench: &Bench) -> Result<Server> {
    let nodes = [
        json!({
            "driver": "file", "node-name": "na", "filename": bench.text("a.img"), "discard": "unmap",
        }),
        json!({
            "driver": "qcow2", "node-name": "nb", "discard": "unmap",
            "file": {"driver": "file", "filename": bench.text("b.img"), "discard": "unmap"},
        }),
    ];
    let mut line = [monitor(bench), state(bench)].concat();
    let second = format!("socket,id=qmp2,path={},server=on,wait=off", bench.text("qmp2.sock"));
    let more =
        ["--chardev", &second, "--monitor", "chardev=qmp2", "--allow-connect", "localhost:1"];
    line.extend(more.map(str::to_owned));
    for (node, name) in nodes.iter().zip(["a", "b"]) {
        let export = export(bench, name, &format!("n{name}"));
        line.extend(["--blockdev".to_owned(), node.to_string()]);
        line.extend(["--export".to_owned(), export.to_string()]);
    }
    let sockets = ["a.sock", "b.sock", "qmp2.sock"].map(|name| bench.path(name)).to_vec();
    ringloom().start(&line, &[sockets, vec![monitor_socket(bench)]].concat())
}

/// What a directory has, by `--list`, which may say that not all is whole.
pub(super) fn list(bench: &Bench) -> Result<Vec<Value>> {
    let (code, stdout, stderr) =
        run(command(bench, &bench.path("nobody"), "backup --list backups --json"))?;
    ensure!(matches!(code, Some(0 | 3)), "{code:?}: {stderr}");
    let all: Value = serde_json::from_str(&stdout).with_context(|| stdout.clone())?;
    Ok(all.as_array().cloned().unwrap_or_default())
}

/// The names of all files in the directory of backups.
pub(super) fn files(bench: &Bench) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(bench.path("backups"))? {
        all.push(entry?.file_name().to_string_lossy().into_owned());
    }
    all.sort();
    Ok(all)
}

/// The bytes of a backup as qemu-img reads them; it finds nothing wrong with the image.
pub(super) fn bytes_of(bench: &Bench, file: &str) -> Result<Vec<u8>> {
    qemu_img(bench, &format!("check -q -f qcow2 {file}"))?;
    qemu_img(bench, &format!("convert -f qcow2 -O raw {file} flat"))?;
    Ok(std::fs::read(bench.path("flat"))?)
}

/// The file of a row or a result.
pub(super) fn file(of: &Value) -> Result<String> {
    let file = of.get("file").or(of.get("to")).and_then(Value::as_str);
    Ok(file.with_context(|| of.to_string())?.to_owned())
}

/// Both disks at one instant, again and again, while their guests write.
fn under_writing_guests(place: &Place) -> Result<()> {
    let (is_over, sockets) = (AtomicBool::new(false), place.sockets());
    std::thread::scope(|scope| -> Result<()> {
        let guest = scope.spawn(|| write_in_order(&sockets, &is_over));
        let rounds = || -> Result<()> {
            let mut last = 0;
            for round in 0..5 {
                let line = "backup a b --to backups --speed 64M";
                let made = json(&place.bench, &monitor_socket(&place.bench), line)?;
                let of = |at: usize| -> Result<u64> {
                    let backup = &made["backups"][at];
                    let kind = if round == 0 { "full" } else { "incremental" };
                    ensure!(backup["kind"] == kind, "round {round}: {made}");
                    last_write(&bytes_of(&place.bench, &file(backup)?)?)
                };
                let (a, b) = (of(0)?, of(1)?);
                ensure!(a == b || a == b + 1, "round {round}: not of one instant: {a} and {b}");
                ensure!(b >= last, "round {round}: {b} after {last}");
                last = b;
            }
            Ok(())
        };
        let result = rounds();
        is_over.store(true, Ordering::Relaxed);
        let writes = guest.join().expect("it does not panic")?;
        ensure!(writes > 5, "{writes} writes");
        result.with_context(|| place.server.log())
    })
}

/// What a line says of a backup; the last of it is the disk as it is now.
fn chain() -> Result<()> {
    let mut place = Place::new()?;
    under_writing_guests(&place)?;
    place.check_clean()?;
    let text = place.backup("a b")?;
    let lines: Vec<&str> = text.lines().collect();
    ensure!(lines.len() == 2 && lines[0].starts_with("a: incremental since 20"), "{text}");
    ensure!(lines[1].contains("crash-consistent: ") && lines[1].contains(" copied"), "{text}");
    let all = place.list()?;
    ensure!(all.len() == 12 && all.iter().all(|it| it["whole"] == true), "{all:?}");
    place.stop()?;
    let newest = |disk: &str| file(all.iter().rfind(|it| it["disk"] == disk).context("none")?);
    let (a, b) = (newest("a")?, newest("b")?);
    qemu_img(&place.bench, &format!("compare -q -f raw -F qcow2 a.img {a}"))?;
    qemu_img(&place.bench, &format!("compare -q -f qcow2 -F qcow2 b.img {b}"))?;
    // The bitmap of an image outlives the daemon, that of a raw file does not.
    place.again()?;
    let text = place.backup("a b")?;
    let why = "a: full (node na has no bitmap since 20";
    ensure!(text.starts_with(why) && text.contains("\nb: incremental since 20"), "{text}");
    ensure!(text.contains("those of a disk that is no qcow2 image end with the daemon"), "{text}");
    place.server.kill()?;
    place.again()?;
    let text = place.backup("b")?;
    ensure!(text.contains("b: full (node nb has no bitmap since 20"), "{text}");
    ensure!(text.contains(": a daemon that is killed keeps none)"), "{text}");
    // One that the image has from before.
    place.stop()?;
    place.again()?;
    place.server.kill()?;
    place.again()?;
    let text = place.backup("b")?;
    ensure!(text.contains("b: full (the bitmap since 20"), "{text}");
    ensure!(text.contains("is inconsistent: the daemon was killed)"), "{text}");
    let text = place.backup("b")?;
    ensure!(text.contains("b: incremental"), "{text}");
    stop(place.server, &[])?;
    let all = list(&place.bench)?;
    let b = file(all.iter().rfind(|it| it["disk"] == "b").context("none")?)?;
    qemu_img(&place.bench, &format!("compare -q -f qcow2 -F qcow2 b.img {b}")).map(drop)
}

#[test]
fn a_directory_gets_a_chain_that_is_whole() {
    chain().unwrap_or_else(|error| panic!("{error:#}"));
}

/// What makes a backup a full one, and what is refused.
fn reasons() -> Result<()> {
    let place = Place::new()?;
    let (bench, socket) = (&place.bench, &monitor_socket(&place.bench));
    ensure!(place.backup("a")?.starts_with("a: full (the first one there), "), "the first");
    ensure!(place.backup("a --full")?.starts_with("a: full (asked for), "), "asked for");
    // Zeroes that a guest writes over data are in the next backup.
    place.write("a", 0, 7)?;
    place.write("b", 65536, 7)?;
    place.backup("a b")?;
    place.write("b", 65536, 0)?;
    place.write("a", 0, 0)?;
    let made = place.backup_json("a b")?;
    ensure!(made["kind"] == "incremental" && made["copied-bytes"] == 65536, "{made}");
    ensure!(bytes_of(bench, &file(&made)?)?.iter().all(|byte| *byte == 0), "zeroes are missing");
    let all = place.list()?;
    let base = file(all.iter().rfind(|it| it["kind"] == "full").context("none")?)?;
    std::fs::rename(&base, bench.path("away"))?;
    let name = base.rsplit('/').next().context("a name")?;
    let text = place.backup("b")?;
    let broken = text.contains("b: full (the chain is broken: b-inc-");
    ensure!(broken && text.contains(&format!("{name}, on which it stands,")), "{text}");
    std::fs::rename(bench.path("away"), &base)?;
    for (line, code, expected) in [
        ("backup a a --to backups", 2, "a: is named twice"),
        ("backup c --to backups", 1, "there is no export or node 'c'"),
        ("backup a --to nowhere", 1, "nowhere: No such file or directory"),
        ("backup a --to a.img", 1, "a.img is no directory"),
        ("backup a --to backups --holds-last", 2, "--holds-last is for NBD exports"),
        ("backup a --to backups --keep 0", 2, "'0' for '--keep <N>'"),
        ("backup a", 2, "--to"),
        ("backup --to backups", 2, "EXPORT|NODE"),
    ] {
        check_refused(bench, socket, line, code, expected)?;
    }
    // Two places, each with its own bitmap.
    std::fs::create_dir(bench.path("other"))?;
    let other = |words: &str| said(bench, socket, &format!("backup b --to other {words}"));
    ensure!(other("")?.contains("full (the first one there)"), "other");
    ensure!(place.backup("b")?.contains("incremental"), "the other place is in the way");
    ensure!(other("")?.contains("incremental"), "other");
    // A directory that is not mounted looks like one that has nothing yet.
    std::fs::rename(bench.path("other"), bench.path("away"))?;
    std::fs::create_dir(bench.path("other"))?;
    let said_so = "is it mounted? --full begins a new chain there";
    check_refused(bench, socket, "backup a b --to other", 1, said_so)?;
    std::fs::remove_dir_all(bench.path("other"))?;
    std::fs::rename(bench.path("away"), bench.path("other"))?;
    ensure!(other("")?.contains("incremental"), "nothing was forgotten");
    std::fs::remove_dir_all(bench.path("other"))?;
    std::fs::create_dir(bench.path("other"))?;
    ensure!(other("--full")?.contains("full (asked for)"), "a new chain");
    ensure!(other("")?.contains("incremental"), "of the new chain");
    place.check_clean()?;
    stop(place.server, &[]).map(drop)
}

/// The result cannot be printed, and a date is in the future: both are said, and the backup is there.
fn warned() -> Result<()> {
    let place = Place::new()?;
    let made = file(&place.backup_json("a")?)?;
    let name = made.rsplit('/').next().context("a name")?;
    let later = place.bench.path("backups").join("a-full-29991231T000000Z.qcow2");
    std::fs::rename(place.bench.path("backups").join(name), later)?;
    let line = "backup a --to backups";
    let mut late = command(&place.bench, &monitor_socket(&place.bench), line);
    late.stdout(std::fs::File::options().write(true).open("/dev/full")?);
    let output = late.spawn()?.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(3), "{:?}: {text}", output.status);
    ensure!(text.contains("29991231T000001Z is no time: the backup before has"), "{text}");
    ensure!(text.contains("it is done, but: write to standard output"), "{text}");
    ensure!(place.list()?.len() == 2, "{:?}", place.list()?);
    stop(place.server, &[]).map(drop)
}

#[test]
fn a_backup_that_is_there_is_no_failure() {
    warned().unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn a_full_backup_says_why() {
    reasons().unwrap_or_else(|error| panic!("{error:#}"));
}
