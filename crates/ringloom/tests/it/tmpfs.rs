//! An image on tmpfs, which has no asynchronous I/O.

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, EventIndex, RingLayout, Shape};
use testkit::image;
use testkit::model::{self, DiskModel, Plan};
use testkit::process::{Bench, Program};
use testkit::report::skipped;

use crate::support::{ringloom, stop, with};

const QUEUES: usize = 4;
const IMAGE_BYTES: usize = 16 << 20;

/// The names of a process's threads; kernel workers of its io_urings are among them.
fn threads(pid: u32) -> Result<Vec<String>> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).context("list the threads")?;
    // A thread that ends meanwhile has no name any more.
    let names = tasks.map(|task| Ok(std::fs::read_to_string(task?.path().join("comm")).ok()));
    let names: std::io::Result<Vec<Option<String>>> = names.collect();
    Ok(names.context("name the threads")?.into_iter().flatten().collect())
}

fn check(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let directory = tempfile::Builder::new().prefix("rl-").tempdir_in("/dev/shm")?;
    let image = directory.path().join("e0.img");
    let plan = Plan { seed: 0x7f5, operations: 5_000, depth: 16, block_bytes: 512 };
    let mut model = DiskModel::new(image::create_filled(&image, IMAGE_BYTES, plan.seed)?);
    let socket = bench.path("e0.sock");
    let node = format!("file,node-name=n,filename={},discard=unmap", image.display());
    let export = format!(
        "vhost-user-blk,id=e0,node-name=n,addr.type=unix,addr.path={},writable=on",
        socket.display()
    );
    let arguments = ["--blockdev", &node, "--export", &export].map(str::to_owned);
    let server = program.start(&arguments, std::slice::from_ref(&socket))?;
    let memory_bytes = plan.memory_bytes(QUEUES);
    let shape = Shape {
        queues: QUEUES,
        queue_size: 256,
        memory_bytes,
        event_index: EventIndex::On,
        layout: RingLayout::Split,
    };
    let mut client = Client::connect(&socket, shape)?;
    model::run(&mut client, &mut model, &plan).with_context(|| format!("log: {}", server.log()))?;
    model::verify_through(&mut client, &model)?;
    // An idle worker stays for seconds, so it would still be here.
    let names = threads(server.pid())?;
    ensure!(!names.is_empty(), "the server's threads cannot be seen");
    ensure!(!names.iter().any(|name| name.starts_with("iou-wrk")), "kernel workers: {names:?}");
    client.flush()?;
    drop(client);
    stop(server, &[&socket])?;
    model.check_image(&image)
}

#[test]
fn an_image_on_tmpfs_is_served_without_kernel_workers() {
    if !std::path::Path::new("/dev/shm").is_dir() {
        return skipped("there is no tmpfs at /dev/shm");
    }
    with(&ringloom(), check);
}
