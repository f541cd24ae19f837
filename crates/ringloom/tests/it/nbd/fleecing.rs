//! Fleecing: a disk is copied over NBD as it was at an instant, while its guest writes (`copy-before-write`,
//! `snapshot-access`). The same lines, given to qemu-storage-daemon.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use testkit::client::{Client, Request, Segment, Shape, Status};
use testkit::image;
use testkit::process::{Bench, Program, Server};
use testkit::qmp::QmpClient;
use testkit::rng::Rng;

use super::{outcome, socket, tool, uri};
use crate::support::{ringloom, stop, with};

const MIB: usize = 1 << 20;
const SIZE: usize = 16 * MIB;

/// How a disk is kept.
struct Line<'a> {
    /// The node that it is kept on, named `t`.
    target: String,
    /// More options of the layer.
    kept: &'a str,
    /// More options of what shows it, and of its export.
    shown: (&'a str, &'a str),
}

/// A file of the bench as the target.
fn file(bench: &Bench) -> Result<String> {
    image::create_sparse(&bench.path("target"), u64::try_from(SIZE)?)?;
    Ok(format!("file,node-name=t,filename={},discard=unmap", bench.text("target")))
}

/// A server whose guest is on the socket `s`, and whose snapshot is the export `snap`.
fn start(program: &Program, bench: &Bench, line: &Line<'_>) -> Result<(Server, Vec<u8>)> {
    let content = image::create_filled(&bench.path("disk"), SIZE, 0x31)?;
    let Line { target, kept, shown } = line;
    let (guest, nbd) = (bench.text("s"), socket(bench).display().to_string());
    let qmp = format!("socket,id=m,path={},server=on,wait=off", bench.text("qmp"));
    let words = [
        "--chardev",
        &qmp,
        "--monitor",
        "chardev=m",
        "--blockdev",
        &format!("file,node-name=f,filename={}", bench.text("disk")),
        "--blockdev",
        target,
        "--blockdev",
        &format!("copy-before-write,node-name=c,file=f,target=t,discard=unmap{kept}"),
        "--blockdev",
        &format!("snapshot-access,node-name=a,file=c{}", shown.0),
        "--nbd-server",
        &format!("addr.type=unix,addr.path={nbd}"),
        "--export",
        &format!("vhost-user-blk,id=e,node-name=c,writable=on,addr.type=unix,addr.path={guest}"),
        "--export",
        &format!("nbd,id=x,node-name=a,name=snap{}", shown.1),
    ];
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let server = program.start(&words, &[bench.path("s"), socket(bench), bench.path("qmp")])?;
    Ok((server, content))
}

/// The peer leaves the socket of its NBD server behind.
fn end(server: Server, bench: &Bench) -> Result<()> {
    stop(server, &[&bench.path("s")]).map(drop)
}

/// The same of both daemons.
fn of_both(check: fn(&Program) -> Result<()>) {
    for program in [Program::qemu_storage_daemon(), ringloom()] {
        with(&program, check);
    }
}

/// Writes, zeroes and discards at random, in parts of clusters and over several, until it is told to end; how often.
fn work(client: &mut Client, seed: u64, is_over: &AtomicBool) -> Result<u64> {
    let (rng, mut rounds) = (&mut Rng::new(seed), 0);
    // What a disk that is copied by several connections can have of changes meanwhile.
    while rounds < 64 || !is_over.load(Ordering::Relaxed) {
        let length = 512 << rng.below(9);
        let at = rng.below(u64::try_from(SIZE)? / 512 - length / 512 + 1) * 512;
        let count = usize::try_from(length)?;
        match rng.below(8) {
            0 => {
                let unmap = testkit::client::Unmap::Allowed;
                client.execute(0, &Request::WriteZeroes { offset: at, length, unmap })?;
            }
            1 => {
                client.execute(0, &Request::Discard { offset: at, length })?;
            }
            _ => client.write(at, &vec![u8::try_from(rounds % 250)?; count], 0)?,
        }
        rounds += 1;
    }
    Ok(rounds)
}

/// Copies the snapshot, several times at once if told so, while a guest writes.
fn copied_while_written(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let (target, shown) = (file(&bench)?, ("", ""));
    let (server, instant) = start(program, &bench, &Line { target, kept: "", shown })?;
    let (uri, is_over) = (uri(&bench, "snap"), AtomicBool::new(false));
    let mut client = Client::connect(&bench.path("s"), Shape::small())?;
    std::thread::scope(|scope| -> Result<()> {
        let guest = scope.spawn(|| work(&mut client, 7, &is_over));
        let copies = (0..3).try_for_each(|round| {
            let copy = bench.text(&format!("copy{round}"));
            tool("nbdcopy", &["--connections=4", &uri, &copy])?;
            ensure!(
                std::fs::read(&copy)? == instant,
                "copy {round} is not the disk of the instant"
            );
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        let rounds = guest.join().expect("it does not panic")?;
        ensure!(rounds >= 64, "{rounds} rounds");
        copies
    })?;
    let (copy, now) = (bench.text("copy0"), bench.text("disk"));
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &copy, &uri])?;
    ensure!(std::fs::read(now)? != instant, "nothing was written");
    drop(client);
    end(server, &bench)
}

/// A target behind nbdkit, with such filters.
fn kit(bench: &Bench, arguments: &[&str]) -> Result<(Server, String)> {
    let socket = bench.path("kit.sock");
    let words: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let options = ["-f", "--exit-with-parent", "-U", &bench.text("kit.sock")];
    let server = Program::named("nbdkit", "nbdkit", &options).start(&words, &[socket])?;
    let path = bench.text("kit.sock");
    Ok((server, format!("nbd,node-name=t,server.type=unix,server.path={path}")))
}

/// What a guest hears of a write of the first sectors.
fn write(client: &mut Client) -> Result<Status> {
    client.memory().write(0, &[0x77; 4096]);
    let segments = vec![Segment { offset: 0, length: 4096 }];
    client.execute(0, &Request::Write { offset: 0, segments })
}

fn reads(bench: &Bench, instant: &[u8]) -> Result<bool> {
    let copy = bench.text("read");
    if !outcome("nbdcopy", &[&uri(bench, "snap"), &copy])?.status.success() {
        return Ok(false);
    }
    ensure!(std::fs::read(copy)? == instant, "other bytes than those of the instant");
    Ok(true)
}

/// The target fails: the guest's write or the snapshot is lost, as was said.
fn what_fails(program: &Program, filter: &[&str], kept: &str) -> Result<()> {
    for breaks_snapshot in [false, true] {
        let bench = Bench::new()?;
        let size = SIZE.to_string();
        let arguments = [&filter[..1], &["memory", &size], &filter[1..]].concat();
        let (mut kit, target) = kit(&bench, &arguments)?;
        let policy = if breaks_snapshot { "break-snapshot" } else { "break-guest-write" };
        let kept = format!(",on-cbw-error={policy}{kept}");
        let line = Line { target, kept: &kept, shown: ("", "") };
        let (server, instant) = start(program, &bench, &line)?;
        ensure!(reads(&bench, &instant)?, "before anything was written");
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        let status = write(&mut client)?;
        let is_whole = reads(&bench, &instant)?;
        let now = std::fs::read(bench.path("disk"))?;
        let found = (status == Status::Ok, now != instant, is_whole);
        let expected = if breaks_snapshot { (true, true, false) } else { (false, false, true) };
        ensure!(found == expected, "{policy}: {found:?} ({status:?}): {}", server.log());
        drop(client);
        // What came to the target late is flushed there.
        end(server, &bench)?;
        kit.kill()?;
    }
    Ok(())
}

#[test]
fn a_disk_is_copied_as_it_was_while_its_guest_writes() {
    of_both(copied_while_written);
}

#[test]
fn a_target_that_fails_costs_the_write_or_the_snapshot() {
    let filter = ["--filter=error", "error=ENOSPC", "error-pwrite-rate=100%"];
    for program in [Program::qemu_storage_daemon(), ringloom()] {
        with(&program, |program| what_fails(program, &filter, ""));
    }
}

#[test]
fn a_target_that_takes_too_long_does_as_well() {
    let filter = ["--filter=delay", "wdelay=4"];
    for program in [Program::qemu_storage_daemon(), ringloom()] {
        with(&program, |program| what_fails(program, &filter, ",cbw-timeout=1"));
    }
}

/// Who copies says what it has: that is not kept any more, and not given.
fn discarded_by_its_reader(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let (target, shown) = (file(&bench)?, (",discard=unmap", ",writable=on"));
    let (server, instant) = start(program, &bench, &Line { target, kept: "", shown })?;
    let uri = uri(&bench, "snap");
    let mut client = Client::connect(&bench.path("s"), Shape::small())?;
    client.write(0, &[9; 4096], 0)?;
    let said = |command: &str| -> Result<String> {
        let output = outcome("qemu-io", &["-f", "raw", "-d", "unmap", "-c", command, &uri])?;
        let both = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8_lossy(&both).into_owned())
    };
    // Parts of clusters stay.
    let done = said("discard 512 196096")?;
    ensure!(!done.contains("failed"), "{done}");
    for (at, is_there) in
        [(0, true), (65_024, true), (65_536, false), (130_560, false), (196_608, true)]
    {
        let read = said(&format!("read {at} 512"))?;
        ensure!(read.contains("failed") != is_there, "byte {at}: {read}");
        ensure!(is_there || read.contains("Invalid argument"), "{read}");
    }
    // It is not copied any more, and what is there is still that of the instant.
    client.write(65_536, &[8; 65_536], 0)?;
    client.write(196_608, &[8; 512], 0)?;
    let path = bench.text("part");
    let part = format!(
        "json:{}",
        json!({
            "driver": "raw", "offset": 196_608, "size": 65_536,
            "file": {"driver": "nbd", "export": "snap",
                     "server": {"type": "unix", "path": socket(&bench).display().to_string()}},
        })
    );
    tool("qemu-img", &["convert", "-O", "raw", &part, &path])?;
    ensure!(std::fs::read(path)? == instant[196_608..262_144], "another part");
    for command in ["write 1M 512", "write -z 1M 512"] {
        let refused = said(command)?;
        ensure!(refused.contains("failed"), "{refused}");
    }
    drop(client);
    end(server, &bench)
}

#[test]
fn what_a_reader_gives_up_is_not_kept_and_not_read() {
    of_both(discarded_by_its_reader);
}

/// Nothing below what is kept changes its size, and nobody else writes to it.
fn nobody_comes_between(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let target = file(&bench)?;
    let (server, _) = start(program, &bench, &Line { target, kept: "", shown: ("", "") })?;
    let mut qmp = QmpClient::connect(&bench.path("qmp"))?;
    // The peer dies of it.
    let nodes = if program.name() == ringloom().name() { &["c", "f", "t", "a"][..] } else { &[] };
    for node in nodes {
        let size = 2 * SIZE;
        let (class, why) =
            qmp.refused("block_resize", &json!({"node-name": node, "size": size}))?;
        ensure!(class == "GenericError" && !why.is_empty(), "{node}: {class}: {why}");
    }
    let export = json!({"type": "nbd", "id": "w", "node-name": "f", "writable": true});
    let (class, why) = qmp.refused("block-export-add", &export)?;
    let is_conflict = why.contains("'f'") && why.contains("write") && why.contains("'c'");
    ensure!(class == "GenericError" && is_conflict, "{class}: {why}");
    drop(qmp);
    end(server, &bench)
}

#[test]
fn what_is_kept_keeps_its_size_and_its_only_writer() {
    of_both(nobody_comes_between);
}

/// A new process would not know what was kept.
fn no_takeover(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let content = image::create_filled(&bench.path("disk"), MIB, 0x32)?;
    image::create_sparse(&bench.path("target"), u64::try_from(MIB)?)?;
    let guest = bench.text("s");
    let words = [
        "--blockdev",
        &format!("file,node-name=f,filename={}", bench.text("disk")),
        "--blockdev",
        &format!("file,node-name=t,filename={}", bench.text("target")),
        "--blockdev",
        "copy-before-write,node-name=c,file=f,target=t",
        "--export",
        &format!("vhost-user-blk,id=e,node-name=c,writable=on,addr.type=unix,addr.path={guest}"),
    ];
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut server = program.start(&words, &[bench.path("s")])?;
    let successor = [&words[..], &["--takeover".to_owned()]].concat();
    let refused = program.refusal(&successor, std::time::Duration::from_secs(20))?;
    let said = refused.stderr;
    ensure!(said.contains("node c keeps a disk as it was"), "{said}: {}", server.log());
    ensure!(server.is_alive()?, "{}", server.log());
    let mut client = Client::connect(&bench.path("s"), Shape::small())?;
    if client.read(0, 4096, 0)? != content[..4096] {
        bail!("other bytes than before");
    }
    drop(client);
    stop(server, &[&bench.path("s")]).map(drop)
}

#[test]
fn a_takeover_is_refused() {
    with(&ringloom(), |program| no_takeover(program).context("takeover"));
}
