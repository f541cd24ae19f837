//! A child that fails.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use testkit::client::{Client, Request, Segment, Shape, Status, Unmap};
use testkit::fuse_faults::{Effect, Errno, Fault, FaultDisk, Operation};
use testkit::image;
use testkit::process::{Bench, Program};
use testkit::report::skipped;

use crate::support::{ringloom, stop, with};

const CHUNK: usize = 64 << 10;
const MEMBER: usize = 1 << 20;
const LOG_LIMIT: Duration = Duration::from_secs(20);

/// Requests for so many chunks from this one on.
fn requests(chunk: usize, chunks: usize) -> [Request; 4] {
    let (offset, bytes) = ((chunk * CHUNK) as u64, (chunks * CHUNK) as u64);
    let segments = || vec![Segment { offset: 0, length: chunks * CHUNK }];
    [
        Request::Write { offset, segments: segments() },
        Request::Read { offset, segments: segments() },
        Request::WriteZeroes { offset, length: bytes, unmap: Unmap::Forbidden },
        Request::Discard { offset, length: bytes },
    ]
}

fn check(program: &Program, well: &Path, socket: &Path, faulty: &FaultDisk) -> Result<()> {
    let faulty_path = faulty.image().display().to_string();
    let words = [
        "--blockdev",
        &format!(
            "stripe,node-name=s,chunk={CHUNK},discard=unmap,cache.direct=on,\
             children.0.driver=file,children.0.filename={},\
             children.1.driver=file,children.1.filename={faulty_path}",
            well.display(),
        ),
        "--export",
        &format!(
            "vhost-user-blk,id=s,node-name=s,addr.type=unix,addr.path={},writable=on",
            socket.display()
        ),
    ];
    let server = program.start(&words.map(str::to_owned), &[socket.to_owned()])?;
    let mut client = Client::connect(socket, Shape::small())?;
    for operation in [Operation::Write, Operation::Read, Operation::Zero, Operation::Punch] {
        faulty.inject(Fault::new(operation, Effect::Fails(Errno::IO), u32::MAX));
    }
    // Even chunks are the well child's.
    for chunk in [0, 2] {
        for request in requests(chunk, 1) {
            let status = client.execute(0, &request)?;
            ensure!(status == Status::Ok, "{request:?} of the well child: {status:?}");
        }
    }
    for request in requests(1, 1).into_iter().chain(requests(0, 4)) {
        let status = client.execute(0, &request)?;
        ensure!(status == Status::IoError, "{request:?} touches the child that fails: {status:?}");
    }
    server.wait_for_log(&format!("disk {faulty_path}: "), LOG_LIMIT)?;
    faulty.release();
    for request in requests(0, 4) {
        let status = client.execute(0, &request)?;
        ensure!(status == Status::Ok, "{request:?} when the child is well again: {status:?}");
    }
    client.flush()?;
    let synced = faulty.calls().iter().filter(|call| call.operation == Operation::Sync).count();
    ensure!(synced == 1, "{synced} syncs of the second child for one flush");
    drop(client);
    stop(server, &[socket]).map(drop)
}

#[test]
fn a_child_that_fails_fails_only_what_touches_it() {
    if let Some(reason) = FaultDisk::missing() {
        return skipped(&reason);
    }
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let well = bench.path("well.img");
        image::create_filled(&well, MEMBER, 5)?;
        let faulty = FaultDisk::mount(&bench.path("faults"), MEMBER)?;
        check(program, &well, &bench.path("s.sock"), &faulty)
    });
}
