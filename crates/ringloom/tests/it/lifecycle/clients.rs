//! Several exports and clients of one daemon, one after another and at once, and what is left of them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use testkit::client::{Client, EventIndex, RingLayout, Shape};
use testkit::deadline::poll_until;
use testkit::holdings::Holdings;
use testkit::model::{self, DiskModel, Plan};
use testkit::process::{Bench, Program, STOP_LIMIT, Server};

use super::use_disk;
use crate::support::{Disk, Iothreads, ringloom, serve, stop, with};

const QUEUES: usize = 2;
const IMAGE_BYTES: usize = 8 << 20;

/// Waits until the server holds what it held before its clients came.
fn ensure_back_to(server: &Server, before: &Holdings) -> Result<()> {
    let mut last = None;
    let back = poll_until("the server to give back what it held", STOP_LIMIT, || {
        let now = Holdings::of(server.pid())?;
        let equal = now == *before;
        last = Some(now);
        Ok(equal.then_some(()))
    });
    back.with_context(|| format!("before: {before:?}, now: {last:?}"))
}

/// One client's verified I/O; the model goes on from what the disk holds.
fn verified(socket: &Path, model: &mut DiskModel, seed: u64) -> Result<()> {
    let plan = Plan { seed, operations: 1_500, depth: 8, block_bytes: 512 };
    let memory_bytes = plan.memory_bytes(QUEUES);
    let shape = Shape {
        queues: QUEUES,
        queue_size: 256,
        memory_bytes,
        event_index: EventIndex::On,
        layout: RingLayout::Split,
    };
    let mut client = Client::connect(socket, shape)?;
    model::run(&mut client, model, &plan)?;
    model::verify_through(&mut client, model)?;
    client.flush()
}

/// Two clients at once, each on an export of its own.
fn both(clients: [(&Path, &mut DiskModel); 2], seed: u64) -> Result<()> {
    std::thread::scope(|scope| {
        let runs =
            clients.map(|(socket, model)| scope.spawn(move || verified(socket, model, seed)));
        // Each is waited for, whatever became of the other.
        let ends =
            runs.map(|run| run.join().unwrap_or_else(|_panic| Err(anyhow!("a client panicked"))));
        ends.into_iter().collect()
    })
}

/// An export of another disk's node.
fn shared_export(disk: &Disk<'_>, id: &str, socket: &Path) -> [String; 2] {
    let export = format!(
        "type=vhost-user-blk,id={id},node-name=file-{},addr.type=unix,addr.path={},writable=on,\
         num-queues={QUEUES},iothread.0=t1,iothread.1=t0",
        disk.id,
        socket.display()
    );
    ["--export".to_owned(), export]
}

#[test]
fn three_exports_of_two_nodes_serve_two_clients_at_once() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let iothreads = Iothreads::Two;
        let one = Disk { iothreads, ..Disk::new(&bench, "e0", QUEUES) };
        let two = Disk { iothreads, ..Disk::new(&bench, "e1", QUEUES) };
        let mut first = DiskModel::new(one.create(IMAGE_BYTES, 0xb1)?);
        let mut second = DiskModel::new(two.create(IMAGE_BYTES, 0xb2)?);
        let third = bench.path("e2.sock");
        let mut arguments: Vec<String> =
            ["--object", "iothread,id=t0", "--object", "iothread,id=t1"].map(Into::into).into();
        arguments.extend(one.arguments());
        arguments.extend(two.arguments());
        arguments.extend(shared_export(&two, "e2", &third));
        let sockets = [one.socket(), two.socket(), third.clone()];
        let server = program.start(&arguments, &sockets)?;
        // The export has its thread when it says that it listens, a moment after there is a socket.
        server.wait_for_log("export e2: listening on", STOP_LIMIT)?;
        let before = Holdings::of(server.pid())?;

        both([(&one.socket(), &mut first), (&two.socket(), &mut second)], 0xb3)?;
        // The same node by way of its other export: it goes on where the first one ended.
        both([(&one.socket(), &mut first), (&third, &mut second)], 0xb5)?;
        verified(&two.socket(), &mut second, 0xb7)?;

        ensure_back_to(&server, &before)?;
        stop(server, &[&sockets[0], &sockets[1], &sockets[2]])?;
        first.check_image(&one.image())?;
        second.check_image(&two.image())
    });
}

/// Two exports of one node at once: each client sees the other's writes.
#[test]
fn clients_of_two_exports_see_each_others_writes() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk { iothreads: Iothreads::Two, ..Disk::new(&bench, "e0", QUEUES) };
        disk.create(1 << 20, 0xb8)?;
        let other = bench.path("e1.sock");
        let mut arguments: Vec<String> =
            ["--object", "iothread,id=t0", "--object", "iothread,id=t1"].map(Into::into).into();
        arguments.extend(disk.arguments());
        arguments.extend(shared_export(&disk, "e1", &other));
        let server = program.start(&arguments, &[disk.socket(), other.clone()])?;
        let mut here = Client::connect(&disk.socket(), Shape::small())?;
        let mut there = Client::connect(&other, Shape::small())?;
        for round in 0..100_u8 {
            let (writer, reader) =
                if round % 2 == 0 { (&mut here, &mut there) } else { (&mut there, &mut here) };
            writer.write(4096, &[round; 512], 0)?;
            ensure!(reader.read(4096, 512, 0)? == [round; 512], "round {round}: an old sector");
        }
        drop((here, there));
        stop(server, &[&disk.socket(), &other]).map(drop)
    });
}

#[test]
fn a_second_client_is_served_when_the_first_has_left() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk { iothreads: Iothreads::Two, ..Disk::new(&bench, "e0", QUEUES) };
        disk.create(1 << 20, 0xb9)?;
        let server = disk.serve(program)?;
        // The export has its thread when it says that it listens, a moment after there is a socket.
        server.wait_for_log("listening on", STOP_LIMIT)?;
        let before = Holdings::of(server.pid())?;
        let mut first = Client::connect(&disk.socket(), Shape::small())?;
        let socket = disk.socket();
        let second = std::thread::spawn(move || use_disk(&socket, 0x22));
        for round in 0..300_u16 {
            let bytes = [round.to_le_bytes()[0]; 512];
            first.write(8192, &bytes, 0)?;
            let found = first.read(8192, bytes.len(), 4096)?;
            ensure!(found == bytes, "round {round}: somebody else writes");
            ensure!(!second.is_finished(), "the second client did not wait");
        }
        drop(first);
        poll_until("the second client", Duration::from_secs(30), || {
            Ok(second.is_finished().then_some(()))
        })?;
        second.join().map_err(|_panic| anyhow!("the second client panicked"))??;
        ensure_back_to(&server, &before)?;
        stop(server, &[&disk.socket()]).map(drop)
    });
}

/// Stays as long as it takes to connect; then, half of the times, sets up queues and reads.
fn come_and_go(program: &Program, iothreads: Iothreads) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk { iothreads, ..Disk::new(&bench, "e0", 4) };
    let content = disk.create(1 << 20, 0xba)?;
    let server = serve(program, std::slice::from_ref(&disk))?;
    // The export has its thread when it says that it listens, a moment after there is a socket.
    server.wait_for_log("listening on", STOP_LIMIT)?;
    let before = Holdings::of(server.pid())?;
    for round in 0..100 {
        if round % 2 == 0 {
            let shape = Shape { queues: 4, ..Shape::small() };
            let mut client = Client::connect(&disk.socket(), shape)?;
            ensure!(client.read(512, 512, 0)? == content[512..1024], "round {round}");
        } else {
            std::os::unix::net::UnixStream::connect(disk.socket())
                .with_context(|| format!("round {round}"))?;
        }
    }
    ensure_back_to(&server, &before)?;
    use_disk(&disk.socket(), 0x23)?;
    stop(server, &[&disk.socket()]).map(drop)
}

#[test]
fn a_hundred_clients_leave_nothing_behind() {
    with(&ringloom(), |program| {
        come_and_go(program, Iothreads::None)?;
        come_and_go(program, Iothreads::Two)
    });
}
