//! What a guest is told when the host loses data, and when space is taken or kept: on a disk that is
//! larger than the memory below it, so that write-back fails.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::process::{Bench, Server};
use testkit::rawring::{BlockRequest, Form, RawDevice, RawShape, flag, kind};
use testkit::report::skipped;

use crate::support::{Disk, is_root, ringloom, with};

const MIB: usize = 1 << 20;
/// Where the flushes' status bytes are in the client's memory.
const STATUS: [usize; 2] = [3 * MIB, 3 * MIB + 64];
/// No status that a server writes.
const UNSET: u8 = 0xee;

fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output().context(program.to_owned())?;
    ensure!(output.status.success(), "{program} {arguments:?}: {output:?}");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// A block device of 64 MiB that can store less than 1 MiB.
struct TooSmall {
    device: String,
    directory: String,
}

impl TooSmall {
    fn new(directory: &Path) -> Result<Self> {
        std::fs::create_dir(directory)?;
        let directory = directory.display().to_string();
        run("mount", &["-t", "tmpfs", "-o", "size=1M", "none", &directory])?;
        let image = format!("{directory}/image");
        std::fs::File::create(&image)?.set_len(64 * MIB as u64)?;
        let device = run("losetup", &["--find", "--show", &image])?;
        Ok(Self { device, directory })
    }
}

impl Drop for TooSmall {
    fn drop(&mut self) {
        run("losetup", &["--detach", &self.device]).expect("detach");
        run("umount", &[&self.directory]).expect("unmount");
    }
}

fn serve_too_small(device: &str, socket: &Path) -> Result<Server> {
    let node = format!("driver=host_device,node-name=n,filename={device},cache.direct=off");
    let export = format!(
        "type=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={},writable=on,num-queues=2,\
         iothread.0=a,iothread.1=b",
        socket.display()
    );
    let arguments =
        ["--object", "iothread,id=a", "--object", "iothread,id=b", "--blockdev", &node, "--export"];
    let mut arguments = arguments.map(str::to_owned).to_vec();
    arguments.push(export);
    ringloom().start(&arguments, &[socket.to_path_buf()])
}

fn write(device: &mut RawDevice, queue: u32, megabyte: u64) -> Result<()> {
    let data = vec![device.data(0, 1 << 20, 0)];
    let request =
        BlockRequest { kind: kind::OUT, sector: megabyte * 2048, data, form: Form::Direct };
    device.request(queue, &request).map(drop)
}

/// Flushes on both queues at once and returns both statuses.
fn flush_twice(device: &mut RawDevice) -> Result<[u8; 2]> {
    let (header, _) = device.frame(kind::FLUSH, 0);
    for (queue, place) in (0..).zip(STATUS) {
        device.put(place, &[UNSET]);
        let status = device.data(place, 1, flag::WRITE);
        device.ring(queue).set_chain(0, &[header, status]);
    }
    device.offer(0, 0)?;
    device.offer(1, 0)?;
    for queue in 0..2 {
        device.wait_used(queue)?.context("a flush that is not answered")?;
    }
    Ok(STATUS.map(|place| device.get(place, 1)[0]))
}

/// The kernel tells a failed write-back once; every guest that flushes must hear of it, and so
/// must the operator.
#[test]
fn no_flush_succeeds_after_written_data_was_lost() {
    if !is_root() {
        skipped("a loop device needs root");
        return;
    }
    with(&ringloom(), |_program| {
        let bench = Bench::new()?;
        let disk = TooSmall::new(&bench.path("small"))?;
        let socket = bench.path("s");
        let mut server = serve_too_small(&disk.device, &socket)?;
        let shape = RawShape { queues: 2, ..RawShape::default() };
        let mut device = RawDevice::connect(&socket, shape)?;
        for megabyte in 0..12 {
            write(&mut device, u32::try_from(megabyte % 2)?, megabyte)?;
        }
        let both = flush_twice(&mut device)?;
        ensure!(both == [1, 1], "flushes at once ended with {both:?}, log: {}", server.log());
        let later = flush_twice(&mut device)?;
        ensure!(later == [1, 1], "later flushes ended with {later:?}");
        drop(device);
        let status = server.terminate()?;
        ensure!(status.code() == Some(1), "{status} after data was lost");
        ensure!(server.log().contains("flush failed"), "log: {}", server.log());
        Ok(())
    });
}

/// Blocks of 512 bytes that the image occupies before and after a zeroing that may unmap.
fn occupied(discard: &str) -> Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let bench = Bench::new()?;
    let disk = Disk::new(&bench, "e", 1);
    disk.create(4 * MIB, 7)?;
    std::fs::File::open(disk.image())?.sync_all()?;
    let before = std::fs::metadata(disk.image())?.blocks();
    let mut arguments = disk.arguments();
    arguments[1] = arguments[1].replace("discard=unmap", discard);
    let server = ringloom().start(&arguments, &[disk.socket()])?;
    let mut device =
        RawDevice::connect(&disk.socket(), RawShape { queues: 1, ..RawShape::default() })?;
    // 2 MiB from sector 0, with the unmap flag.
    let mut range = [0; 16];
    range[8..12].copy_from_slice(&4096_u32.to_le_bytes());
    range[12] = 1;
    device.put(0, &range);
    let data = vec![device.data(0, 16, 0)];
    let request = BlockRequest { kind: kind::WRITE_ZEROES, sector: 0, data, form: Form::Direct };
    let outcome = device.request(0, &request)?;
    ensure!(outcome.is_ok(), "{outcome:?}");
    drop(device);
    drop(server);
    let content = std::fs::read(disk.image())?;
    ensure!(content[..2 * MIB].iter().all(|byte| *byte == 0), "the range is not zero");
    Ok((before, std::fs::metadata(disk.image())?.blocks()))
}

#[test]
fn zeroing_gives_space_back_only_if_discards_may() {
    with(&ringloom(), |_program| {
        let (before, after) = occupied("discard=ignore")?;
        ensure!(after >= before, "{before} blocks became {after} with discard=ignore");
        let (before, after) = occupied("discard=unmap")?;
        ensure!(after < before, "{before} blocks stayed {after} with discard=unmap");
        Ok(())
    });
}
