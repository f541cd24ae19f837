//! A block device of the host with blocks of 4096 bytes, served to clients that write single
//! sectors: what read-modify-write over several iothreads must not lose.

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::loop_device::LoopDevice;
use testkit::model::{self, DiskModel, Plan};
use testkit::process::{Bench, Program};
use testkit::report::skipped;

use crate::support::{Disk, ringloom, stop, with};

const QUEUES: usize = 4;

fn check(program: &Program, image_bytes: usize, operations: u64) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk::new(&bench, "e0", QUEUES);
    let plan = Plan { seed: 0x4b4b, operations, depth: 16, block_bytes: 512 };
    let mut model = DiskModel::new(disk.create(image_bytes, plan.seed)?);
    let device = LoopDevice::attach(&disk.image(), 4096)?;
    let socket = disk.socket();
    let node = format!(
        "driver=host_device,node-name=n,filename={},cache.direct=on,discard=unmap",
        device.path().display()
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
    if let Some(reason) = LoopDevice::missing() {
        return skipped(reason);
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
