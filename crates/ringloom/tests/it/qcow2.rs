//! qcow2 images served by ringloom, and judged by qemu-img: every byte, and every table.

mod chains;
mod places;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, Shape};
use testkit::deadline::Deadline;
use testkit::model::{self, DiskModel, Plan};
use testkit::process::{Bench, Program, START_LIMIT, Server};
use testkit::report::note;

use crate::support::{qemu_img, qemu_io, ringloom, stop, wait_for_lock, with};

const QUEUES: usize = 4;
const MIB: usize = 1 << 20;

/// A disk of this many bytes whose node is what these keys say: node `n`, socket `s`.
fn serve(program: &Program, bench: &Bench, node: &str, writable: &str) -> Result<Server> {
    serve_with(program, bench, node, writable, &[])
}

/// The same with more words.
fn serve_with(
    program: &Program,
    bench: &Bench,
    node: &str,
    writable: &str,
    more: &[&str],
) -> Result<Server> {
    serve_at(program, bench, "s", node, writable, more)
}

/// The same on another socket.
fn serve_at(
    program: &Program,
    bench: &Bench,
    socket: &str,
    node: &str,
    writable: &str,
    more: &[&str],
) -> Result<Server> {
    let socket = bench.text(socket);
    let export = format!(
        "vhost-user-blk,id=e,node-name=n,writable={writable},num-queues={QUEUES},iothread.0=t0,\
         iothread.1=t1,addr.type=unix,addr.path={socket}"
    );
    let node = format!("qcow2,node-name=n,{node}");
    let words = ["--object", "iothread,id=t0", "--object", "iothread,id=t1", "--blockdev", &node];
    let mut words = words.map(str::to_owned).to_vec();
    words.extend(["--export".to_owned(), export]);
    words.extend(more.iter().map(|word| (*word).to_owned()));
    let program = program.clone().in_directory(bench.path(""));
    program.start(&words, &[PathBuf::from(socket)])
}

fn plan(seed: u64, operations: u64) -> Plan {
    Plan { seed, operations, depth: 16, block_bytes: 512 }
}

/// Runs the workload on what is served, and compares every byte through it.
fn work(bench: &Bench, model: &mut DiskModel, plan: &Plan) -> Result<()> {
    let memory_bytes = plan.memory_bytes(QUEUES);
    let shape = Shape { queues: QUEUES, queue_size: 256, memory_bytes, ..Shape::small() };
    let mut client = Client::connect(&bench.path("s"), shape)?;
    let capacity = client.configuration()?.capacity_bytes;
    ensure!(capacity == u64::try_from(model.length())?, "{capacity} bytes");
    let clock = Deadline::after(Duration::from_secs(600));
    let summary = model::run(&mut client, model, plan)?;
    model::verify_through(&mut client, model)?;
    client.flush()?;
    note(&format!("seed {:#x}: {summary:?} {:?}", plan.seed, clock.elapsed()));
    ensure!(summary.by_queue.iter().all(|requests| *requests > 0), "an idle queue: {summary:?}");
    Ok(())
}

/// qemu-img finds nothing wrong in an image, nothing leaked, and the bytes of the model.
fn check_image(bench: &Bench, image: &str, model: &DiskModel) -> Result<()> {
    qemu_img(bench, &format!("check -q -f qcow2 {image}"))?;
    qemu_img(bench, &format!("convert -f qcow2 -O raw {image} found"))?;
    model.check_image(&bench.path("found"))
}

/// What qemu-img reads from an image.
fn content(bench: &Bench, image: &str) -> Result<Vec<u8>> {
    qemu_img(bench, &format!("convert -f qcow2 -O raw {image} content"))?;
    std::fs::read(bench.path("content")).context("read the content")
}

/// Images that qemu-img makes in all its ways take any load from four rings on two iothreads.
fn check(options: &str, node: &str, seed: u64) {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        qemu_img(&bench, &format!("create -q -f qcow2 -o {options} d.qcow2 24M"))?;
        let mut model = DiskModel::new(vec![0; 24 * MIB]);
        let node = format!("file.driver=file,file.filename=d.qcow2,{node}");
        for round in 0..2 {
            let server = serve(program, &bench, &node, "on")?;
            let worked = work(&bench, &mut model, &plan(seed + round, 4000));
            worked.with_context(|| format!("{options} {node}: {}", server.log()))?;
            stop(server, &[&bench.path("s")])?;
            check_image(&bench, "d.qcow2", &model)
                .with_context(|| format!("{options} {node} round {round}"))?;
        }
        Ok(())
    });
}

#[test]
fn images_of_every_preallocation_never_return_a_wrong_byte() {
    for (preallocation, seed) in
        [("off", 0x100), ("metadata", 0x110), ("falloc", 0x120), ("full", 0x130)]
    {
        check(&format!("preallocation={preallocation}"), "cache.direct=on,discard=unmap", seed);
    }
}

#[test]
fn clusters_of_every_size_never_return_a_wrong_byte() {
    for (size, seed) in
        [("64k", 0x140), ("128k", 0x150), ("512k", 0x160), ("1M", 0x170), ("2M", 0x180)]
    {
        check(&format!("cluster_size={size}"), "discard=unmap", seed);
    }
}

#[test]
fn data_in_a_file_of_their_own_never_return_a_wrong_byte() {
    let data = "data-file.driver=file,data-file.filename=d.data";
    for (options, more, seed) in [
        ("data_file=d.data", "discard=unmap", 0x1e0),
        ("data_file=d.data,data_file_raw=on", "cache.direct=on", 0x1f0),
    ] {
        check(options, &format!("{data},{more}"), seed);
    }
}

#[test]
fn the_smallest_caches_never_return_a_wrong_byte() {
    check("cluster_size=64k", "l2-cache-size=0,refcount-cache-size=0,cache.direct=on", 0x190);
    check("preallocation=metadata", "cache-size=0,discard=unmap", 0x1a0);
}

#[test]
fn discards_that_are_ignored_change_no_byte() {
    check("cluster_size=64k", "discard=ignore,cache.no-flush=on", 0x1b0);
}

#[test]
fn engines_and_hosts_without_io_uring_never_return_a_wrong_byte() {
    check("cluster_size=64k", "cache.direct=on,file.aio=native,discard=unmap", 0x1c0);
    check("cluster_size=64k", "file.aio=threads,discard=unmap", 0x1d0);
}

#[test]
fn a_disk_that_is_only_read_stays_as_it_is() {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        testkit::image::create_filled(&bench.path("raw"), 8 * MIB, 0x71)?;
        qemu_img(&bench, "convert -f raw -O qcow2 raw d.qcow2")?;
        let before = std::fs::read(bench.path("d.qcow2")).context("read the image")?;
        let node = "file.driver=file,file.filename=d.qcow2,read-only=on,cache.direct=on";
        let server = serve(program, &bench, node, "off")?;
        let mut client = Client::connect(&bench.path("s"), Shape::small())?;
        let content = std::fs::read(bench.path("raw")).context("read the content")?;
        model::verify_through(&mut client, &DiskModel::new(content))?;
        drop(client);
        stop(server, &[&bench.path("s")])?;
        let after = std::fs::read(bench.path("d.qcow2")).context("read the image")?;
        ensure!(before == after, "it was changed");
        Ok(())
    });
}
