//! Four queues under a random workload that compares every byte with a model.

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, EventIndex, RingLayout, Shape};
use testkit::deadline::Deadline;
use testkit::model::{self, DiskModel, Plan};
use testkit::process::{Bench, Program};
use testkit::report::note;
use testkit::{image, queue_report};

use crate::support::{
    Disk, Iothreads, check_epoll, ringloom, ringloom_without_io_uring, stop, with,
};

const QUEUES: usize = 4;
const IMAGE_BYTES: usize = 64 << 20;

fn plan(seed: u64, operations: u64) -> Plan {
    Plan { seed, operations, depth: 16, block_bytes: 512 }
}

fn split(plan: &Plan) -> Shape {
    Shape {
        queues: QUEUES,
        queue_size: 256,
        memory_bytes: plan.memory_bytes(QUEUES),
        ..Shape::small()
    }
}

fn split_without_index(plan: &Plan) -> Shape {
    Shape { event_index: EventIndex::Off, ..split(plan) }
}

/// Of a size that is no power of two, so that chains lie across the end of the ring in ever new ways.
fn packed(plan: &Plan) -> Shape {
    Shape { queue_size: 201, layout: RingLayout::Packed, ..split(plan) }
}

fn packed_without_index(plan: &Plan) -> Shape {
    Shape { event_index: EventIndex::Off, ..packed(plan) }
}

/// Runs the workload, then compares the disk through the client and the image on the host.
fn check(
    program: &Program,
    iothreads: Iothreads,
    direct: &str,
    shape: fn(&Plan) -> Shape,
    plan: Plan,
) -> Result<String> {
    let bench = Bench::new()?;
    let disk = Disk { iothreads, direct, ..Disk::new(&bench, "e0", QUEUES) };
    check_disk(program, &disk, shape, &plan)
}

fn check_disk(
    program: &Program,
    disk: &Disk<'_>,
    shape: fn(&Plan) -> Shape,
    plan: &Plan,
) -> Result<String> {
    let iothreads = disk.iothreads;
    let mut model = DiskModel::new(disk.create(IMAGE_BYTES, plan.seed)?);
    let server = disk.serve(program)?;
    let clock = Deadline::after(std::time::Duration::from_secs(600));
    let mut client = Client::connect(&disk.socket(), shape(plan))?;
    let summary = model::run(&mut client, &mut model, plan)
        .with_context(|| format!("log: {}", server.log()))?;
    model::verify_through(&mut client, &model)?;
    client.flush()?;
    drop(client);
    note(&format!(
        "{} {iothreads:?} seed {:#x}: {summary:?} {:?}",
        program.name(),
        plan.seed,
        clock.elapsed()
    ));
    ensure!(summary.by_queue.iter().all(|requests| *requests > 0), "an idle queue: {summary:?}");
    ensure!(summary.discards > 0 && summary.write_zeroes > 0, "no discard: {summary:?}");
    let log = stop(server, &[&disk.socket()])?;
    model.check_image(&disk.image())?;
    Ok(log)
}

/// Every engine on the same workload.
fn check_engine(aio: &str, direct: &str, seed: u64) {
    with(&ringloom(), |program| {
        let bench = Bench::new()?;
        let iothreads = Iothreads::Two;
        let disk = Disk { iothreads, direct, aio: Some(aio), ..Disk::new(&bench, "e0", QUEUES) };
        check_disk(program, &disk, split, &plan(seed, 10_000)).map(drop)
    });
}

#[test]
fn a_host_without_io_uring_never_returns_a_wrong_byte() {
    with(&ringloom_without_io_uring(), |program| {
        for (iothreads, direct, seed) in [
            (Iothreads::Two, "on", 0x60),
            (Iothreads::Two, "off", 0x61),
            (Iothreads::None, "on", 0x62),
        ] {
            let log = check(program, iothreads, direct, split, plan(seed, 10_000))?;
            check_epoll(&log)?;
        }
        let bench = Bench::new()?;
        let disk = Disk { aio: Some("threads"), ..Disk::new(&bench, "e0", QUEUES) };
        check_disk(program, &disk, split_without_index, &plan(0x63, 5_000)).map(drop)
    });
}

#[test]
fn what_is_waited_with_is_said_once_for_each_iothread() {
    with(&ringloom(), |program| {
        let log = check(program, Iothreads::Two, "on", split, plan(0x64, 500))?;
        for name in ["t0", "t1"] {
            let said = format!("iothread {name}: io_uring");
            ensure!(log.matches(&said).count() == 1, "not one {said:?}: {log}");
        }
        Ok(())
    });
}

#[test]
fn io_uring_by_name_on_a_host_without_it_is_refused() {
    with(&ringloom_without_io_uring(), |program| {
        let bench = Bench::new()?;
        let disk = Disk { aio: Some("io_uring"), ..Disk::new(&bench, "e0", 1) };
        disk.create(1 << 20, 1)?;
        let exit = program.refusal(&disk.arguments(), std::time::Duration::from_secs(10))?;
        ensure!(exit.status.code() == Some(1), "{exit:?}");
        for part in ["aio=io_uring cannot be", "io_uring is not available", "not permitted"] {
            ensure!(exit.stderr.contains(part), "no {part:?}: {exit:?}");
        }
        Ok(())
    });
}

#[test]
fn ignored_flushes_change_no_byte() {
    with(&ringloom(), |program| {
        let direct = "off,cache.no-flush=on";
        check(program, Iothreads::Two, direct, split, plan(0x65, 5_000)).map(drop)
    });
}

#[test]
fn io_uring_by_name_never_returns_a_wrong_byte() {
    check_engine("io_uring", "on", 0x59);
}

#[test]
fn linux_aio_never_returns_a_wrong_byte() {
    check_engine("native", "on", 0x5a);
}

#[test]
fn threads_never_return_a_wrong_byte() {
    check_engine("threads", "on", 0x5b);
    check_engine("threads", "off", 0x5c);
}

#[test]
fn four_queues_without_iothreads_never_return_a_wrong_byte() {
    with(&ringloom(), |program| {
        check(program, Iothreads::None, "on", split, plan(0x51, 20_000)).map(drop)
    });
}

/// Runs the workload on two iothreads and looks at what the server says of its queues.
fn check_two_iothreads(program: &Program, shape: fn(&Plan) -> Shape, plan: Plan) -> Result<()> {
    let log = check(program, Iothreads::Two, "on", shape, plan)?;
    let reports = queue_report::parse(&log);
    ensure!(reports.len() == QUEUES, "not one report per queue in the log: {log}");
    for report in &reports {
        let expected = format!("t{}", report.queue % 2);
        ensure!(report.iothread == expected, "queues go round-robin: {report:?}");
        ensure!(report.requests() > 0 && report.errors == 0, "{report:?}");
    }
    Ok(())
}

#[test]
fn four_queues_on_two_iothreads_never_return_a_wrong_byte() {
    with(&ringloom(), |program| check_two_iothreads(program, split, plan(0x52, 20_000)));
}

#[test]
fn four_packed_queues_on_two_iothreads_never_return_a_wrong_byte() {
    with(&ringloom(), |program| check_two_iothreads(program, packed, plan(0x59, 20_000)));
}

#[test]
fn packed_queues_with_plain_interrupts_change_no_byte() {
    with(&ringloom(), |program| {
        check(program, Iothreads::Two, "off", packed_without_index, plan(0x5a, 5_000)).map(drop)
    });
}

#[test]
fn the_page_cache_and_plain_interrupts_change_no_byte() {
    with(&ringloom(), |program| {
        check(program, Iothreads::Two, "off", split_without_index, plan(0x53, 5_000)).map(drop)
    });
}

#[test]
fn the_peer_passes_the_workload() {
    with(&Program::qemu_storage_daemon(), |program| {
        check(program, Iothreads::None, "on", split, plan(0x54, 5_000)).map(drop)?;
        check(program, Iothreads::One, "off", split_without_index, plan(0x55, 2_000)).map(drop)
    });
}

/// The rig must fail when the disk is wrong: one byte changed behind the server's back.
#[test]
fn a_corrupted_image_makes_the_model_check_fail() {
    with(&Program::qemu_storage_daemon(), |program| {
        let bench = Bench::new()?;
        let disk = Disk { direct: "off", ..Disk::new(&bench, "e0", QUEUES) };
        let plan = plan(0x56, 200);
        let mut model = DiskModel::new(disk.create(4 << 20, plan.seed)?);
        let server = disk.serve(program)?;
        let mut client = Client::connect(&disk.socket(), split(&plan))?;
        model::run(&mut client, &mut model, &plan)?;
        // A sector that no discard can have touched since: written now, read back, then spoilt.
        let bytes = [0xa7; 512];
        client.write(512, &bytes, 0)?;
        client.flush()?;
        model.write(512, &bytes);
        model::verify_through(&mut client, &model).context("before the corruption")?;
        image::corrupt(&disk.image(), 512 + 7)?;
        let through = model::verify_through(&mut client, &model);
        let on_host = model.check_image(&disk.image());
        for (what, result) in [("client", through), ("host", on_host)] {
            let error =
                format!("{:?}", result.err().with_context(|| format!("{what} saw nothing"))?);
            ensure!(error.contains("sector 1 "), "{what} blames something else: {error}");
        }
        drop(client);
        stop(server, &[]).map(drop)
    });
}

/// The random workload alone must find a few wrong bytes as well.
#[test]
fn a_corrupted_image_makes_the_random_workload_fail() {
    with(&Program::qemu_storage_daemon(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", QUEUES);
        let plan = plan(0x58, 2_000);
        let mut model = DiskModel::new(disk.create(4 << 20, plan.seed)?);
        for place in 0..16 {
            image::corrupt(&disk.image(), place * (256 << 10) + 700)?;
        }
        let server = disk.serve(program)?;
        let mut client = Client::connect(&disk.socket(), split(&plan))?;
        let error = model::run(&mut client, &mut model, &plan).err();
        let error = format!("{:#}", error.context("the workload saw nothing")?);
        ensure!(error.contains("seed 0x58") && error.contains("at byte 188"), "{error}");
        drop(client);
        stop(server, &[]).map(drop)
    });
}

/// The rig must fail on a server that forgets what is written.
#[test]
fn a_disk_that_forgets_makes_the_workload_fail() {
    with(&Program::qemu_storage_daemon(), |program| {
        let bench = Bench::new()?;
        let disk = Disk::new(&bench, "e0", QUEUES);
        let mut arguments = disk.arguments();
        arguments[1] = format!("driver=null-co,node-name=file-e0,size={},read-zeroes=on", 4 << 20);
        let server = program.start(&arguments, &[disk.socket()])?;
        let plan = plan(0x57, 2_000);
        let mut client = Client::connect(&disk.socket(), split(&plan))?;
        let mut model = DiskModel::new(vec![0; 4 << 20]);
        let error = model::run(&mut client, &mut model, &plan).err();
        let error = format!("{:#}", error.context("the workload saw nothing")?);
        ensure!(error.contains("seed 0x57"), "the seed is not named: {error}");
        drop(client);
        drop(server);
        Ok(())
    });
}
