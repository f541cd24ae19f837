//! The same command line, given to qemu-storage-daemon and to ringloom, makes the same disk.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Configuration, Request, Segment, Shape, Status, Unmap};
use testkit::deadline::poll_until;
use testkit::image;
use testkit::process::{Bench, Daemon, Program, is_listening};
use testkit::report::skipped;
use testkit::rng::Rng;

use crate::support::{ringloom, stop, with};

const IMAGE_BYTES: usize = 4 << 20;
/// The names that stand in the command lines below.
const IMAGE: &str = "IMAGE";
const SOCKET: &str = "SOCKET";
const PIDFILE: &str = "PIDFILE";

/// What a client sees of a disk.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    capacity_bytes: u64,
    blk_size: u32,
    seg_max: u32,
    num_queues: u16,
    /// The status of each request of the fixed workload.
    statuses: Vec<Status>,
    /// The whole disk after it, as the client reads it.
    disk: Vec<u8>,
}

/// Puts real paths into a command line.
fn fill_in(bench: &Bench, line: &[&str]) -> Vec<String> {
    line.iter()
        .map(|word| {
            word.replace(IMAGE, &bench.text("disk,image"))
                .replace("ESCAPED", &bench.text("disk,,image"))
                .replace(SOCKET, &bench.text("e0.sock"))
                .replace(PIDFILE, &bench.text("pid"))
        })
        .collect()
}

/// Runs the fixed workload on a server with this command line.
fn seen(program: &Program, line: &[&str]) -> Result<Seen> {
    let bench = Bench::new()?;
    image::create_filled(&bench.path("disk,image"), IMAGE_BYTES, 0x61)?;
    let socket = bench.path("e0.sock");
    let server = program.start(&fill_in(&bench, line), std::slice::from_ref(&socket))?;
    let mut client = Client::connect(&socket, Shape::small())?;
    let Configuration { capacity_bytes, blk_size, seg_max, num_queues, .. } =
        client.configuration()?;
    let statuses = workload(&mut client)?;
    let mut disk = Vec::new();
    for offset in (0..capacity_bytes).step_by(1 << 19) {
        let length = (capacity_bytes - offset).min(1 << 19);
        disk.extend(client.read(offset, usize::try_from(length).context("length")?, 0)?);
    }
    drop(client);
    stop(server, &[&socket])?;
    ensure!(!bench.path("pid").exists(), "the pidfile is left behind");
    Ok(Seen { capacity_bytes, blk_size, seg_max, num_queues, statuses, disk })
}

/// Some of everything, the same each time. Requests that the disk refuses are part of what is compared.
fn workload(client: &mut Client) -> Result<Vec<Status>> {
    let mut rng = Rng::new(0x62);
    let mut bytes = vec![0; 64 << 10];
    rng.fill(&mut bytes);
    client.memory().write(0, &bytes);
    let mut requests = Vec::new();
    for round in 0..24_usize {
        let offset = u64::try_from(round * (96 << 10)).context("offset")?;
        let start = round * 37;
        let segments = vec![
            Segment { offset: start, length: 1000 },
            Segment { offset: start + 3000, length: 3096 },
        ];
        requests.push(Request::Write { offset, segments });
        requests.push(Request::WriteZeroes {
            offset: offset + 8192,
            length: 4096,
            unmap: Unmap::Allowed,
        });
        requests.push(Request::WriteZeroes {
            offset: offset + 16_384,
            length: 8192,
            unmap: Unmap::Forbidden,
        });
        requests.push(Request::Discard { offset: offset + 32_768, length: 16_384 });
    }
    requests.push(Request::Flush);
    let beyond = vec![Segment { offset: 0, length: 4096 }];
    requests.push(Request::Read { offset: 1 << 40, segments: beyond });
    requests.iter().map(|request| client.execute(0, request)).collect()
}

/// Both programs must make the same of the line.
fn check(line: &[&str]) {
    let peer = Program::qemu_storage_daemon();
    if let Some(reason) = peer.missing() {
        skipped(&reason);
        return;
    }
    let expected = seen(&peer, line).expect("the peer takes the line");
    with(&ringloom(), |program| {
        let found = seen(program, line)?;
        ensure!(found.statuses == expected.statuses, "statuses {:?}", found.statuses);
        let difference =
            found.disk.iter().zip(&expected.disk).position(|(left, right)| left != right);
        ensure!(difference.is_none(), "the disks differ at byte {difference:?}");
        let facts =
            |seen: &Seen| (seen.capacity_bytes, seen.blk_size, seen.seg_max, seen.num_queues);
        ensure!(
            facts(&found) == facts(&expected),
            "(capacity, blk_size, seg_max, num_queues): {:?}, the peer has {:?}",
            facts(&found),
            facts(&expected)
        );
        Ok(())
    });
}

const FILE: &str = "driver=file,node-name=f0,filename=ESCAPED,cache.direct=on";
const EXPORT: &str = "type=vhost-user-blk,id=e0,node-name=f0,addr.type=unix,addr.path=SOCKET,writable=on,num-queues=4";

#[test]
fn keyval_options_mean_the_same() {
    check(&["--blockdev", FILE, "--export", EXPORT]);
}

#[test]
fn options_with_equals_signs_and_another_order_mean_the_same() {
    check(&[
        "--blockdev=node-name=f0,filename=ESCAPED,driver=file",
        "--export=node-name=f0,num-queues=1,writable=on,id=e0,addr.path=SOCKET,addr.type=unix,type=vhost-user-blk",
    ]);
}

#[test]
fn json_options_mean_the_same() {
    check(&[
        "--object",
        r#"{"qom-type":"iothread","id":"t0"}"#,
        "--blockdev",
        r#"{"driver":"file","node-name":"f0","filename":"IMAGE","cache":{"direct":true},"discard":"unmap"}"#,
        "--export",
        r#"{"type":"vhost-user-blk","id":"e0","node-name":"f0","addr":{"type":"unix","path":"SOCKET"},"writable":true,"num-queues":2,"iothread":"t0"}"#,
    ]);
}

#[test]
fn an_iothread_and_unmapping_discards_mean_the_same() {
    check(&[
        "--object",
        "iothread,id=t0",
        "--blockdev",
        "driver=file,node-name=f0,filename=ESCAPED,cache.direct=off,discard=unmap",
        "--export",
        "type=vhost-user-blk,id=e0,node-name=f0,addr.type=unix,addr.path=SOCKET,writable=on,num-queues=3,iothread=t0",
        "--pidfile",
        "PIDFILE",
    ]);
}

#[test]
fn a_raw_node_over_a_file_means_the_same() {
    check(&[
        "--blockdev",
        "driver=file,node-name=p0,filename=ESCAPED",
        "--blockdev",
        "driver=raw,node-name=f0,file=p0",
        "--export",
        EXPORT,
    ]);
}

#[test]
fn a_raw_node_with_its_file_inside_means_the_same() {
    check(&[
        "--blockdev",
        "driver=raw,node-name=f0,file.driver=file,file.filename=ESCAPED,file.cache.direct=on",
        "--export",
        EXPORT,
    ]);
}

#[test]
fn a_logical_block_size_of_4096_means_the_same() {
    check(&[
        "--blockdev",
        FILE,
        "--export",
        "type=vhost-user-blk,id=e0,node-name=f0,addr.type=unix,addr.path=SOCKET,writable=on,num-queues=1,logical-block-size=4096",
    ]);
}

#[test]
fn a_read_only_disk_means_the_same() {
    check(&[
        "--blockdev",
        "driver=file,node-name=f0,filename=ESCAPED,read-only=on",
        "--export",
        "type=vhost-user-blk,id=e0,node-name=f0,addr.type=unix,addr.path=SOCKET,num-queues=2",
    ]);
}

#[test]
fn a_null_disk_means_the_same() {
    check(&[
        "--blockdev",
        "driver=null-co,node-name=f0,size=4194304,read-zeroes=on",
        "--export",
        EXPORT,
    ]);
}

/// The parent exits only when the daemon serves, and the pidfile names it.
fn daemonized(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    image::create_filled(&bench.path("disk,image"), IMAGE_BYTES, 0x63)?;
    let line = ["--blockdev", FILE, "--export", EXPORT, "--pidfile", PIDFILE, "--daemonize"];
    let exit = program.refusal(&fill_in(&bench, &line), Duration::from_secs(30))?;
    ensure!(exit.status.success(), "the parent's verdict: {exit:?}");
    let daemon = Daemon::from_pidfile(&bench.path("pid"))?;
    let socket: PathBuf = bench.path("e0.sock");
    ensure!(is_listening(&socket)?, "the parent exited before the daemon listened");
    let mut client = Client::connect(&socket, Shape::small())?;
    client.write(4096, &[0x42; 4096], 0)?;
    client.flush()?;
    drop(client);
    daemon.terminate()?;
    poll_until("the daemon to end", Duration::from_secs(30), || {
        Ok((!daemon.is_alive()).then_some(()))
    })?;
    ensure!(!socket.exists() && !bench.path("pid").exists(), "socket or pidfile is left behind");
    let found = std::fs::read(bench.path("disk,image")).context("read the image")?;
    ensure!(found[4096..8192] == [0x42; 4096], "the write is lost");
    Ok(())
}

#[test]
fn a_daemonized_server_serves_and_cleans_up() {
    with(&Program::qemu_storage_daemon(), daemonized);
    with(&ringloom(), daemonized);
}
