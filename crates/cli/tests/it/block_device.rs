//! A block device of the host with blocks of 4096 bytes, served to clients that write single
//! sectors: what read-modify-write over several iothreads must not lose.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::model::{self, DiskModel, Plan};
use testkit::process::{Bench, Program};
use testkit::report::skipped;

use crate::support::{Disk, is_root, ringloom, stop, with};

const QUEUES: usize = 4;

/// A loop device over an image; detached when dropped.
struct LoopDevice {
    path: String,
}

impl LoopDevice {
    fn attach(image: &Path, block_bytes: u32) -> Result<Self> {
        let output = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &block_bytes.to_string()])
            .arg(image)
            .output()
            .context("losetup")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "losetup: {said}");
        Ok(Self { path: String::from_utf8(output.stdout)?.trim().to_owned() })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let status = Command::new("losetup").args(["--detach", &self.path]).status();
        assert!(status.is_ok_and(|status| status.success()), "{} stays attached", self.path);
    }
}

fn check(program: &Program, image_bytes: usize, operations: u64) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk::new(&bench, "e0", QUEUES);
    let plan = Plan { seed: 0x4b4b, operations, depth: 16, block_bytes: 512 };
    let mut model = DiskModel::new(disk.create(image_bytes, plan.seed)?);
    let device = LoopDevice::attach(&disk.image(), 4096)?;
    let socket = disk.socket();
    let node = format!(
        "driver=host_device,node-name=n,filename={},cache.direct=on,discard=unmap",
        device.path
    );
    let export = format!(
        "type=vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path={},writable=on,\
         num-queues={QUEUES},iothread.0=t0,iothread.1=t1",
        socket.display()
    );
    let arguments =
        ["--object", "iothread,id=t0", "--object", "iothread,id=t1", "--blockdev", &node];
    let mut arguments: Vec<String> = arguments.map(str::to_owned).to_vec();
    arguments.extend(["--export".to_owned(), export]);
    let server = program.start(&arguments, std::slice::from_ref(&socket))?;
    let shape = Shape {
        queues: QUEUES,
        queue_size: 256,
        memory_bytes: plan.memory_bytes(QUEUES),
        ..Shape::small()
    };
    let mut client = Client::connect(&socket, shape)?;
    ensure!(client.configuration()?.blk_size == 512, "the client must be able to write sectors");
    model::run(&mut client, &mut model, &plan).with_context(|| server.log())?;
    model::verify_through(&mut client, &model)?;
    drop(client);
    stop(server, &[&socket])?;
    drop(device);
    model.check_image(&disk.image())
}

#[test]
fn sectors_written_to_larger_blocks_from_two_iothreads_lose_no_neighbour() {
    if !is_root() {
        skipped("a loop device needs root");
        return;
    }
    // Few blocks, so that many requests meet on one.
    with(&ringloom(), |program| check(program, 2 << 20, 20_000));
}

#[test]
fn a_regular_file_is_no_block_device() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", 1);
        disk.create(1 << 20, 1)?;
        let mut arguments = disk.arguments();
        arguments[1] = arguments[1].replace("driver=file", "driver=host_device");
        let exit = program.refusal(&arguments, std::time::Duration::from_secs(10))?;
        ensure!(exit.stderr.contains("block device"), "{}", exit.stderr);
        Ok(())
    });
}
