//! Many takeovers under a load that is verified, of clients that cannot connect again.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use testkit::client::{Client, RingLayout, Shape};
use testkit::model::{self, DiskModel, Plan};
use testkit::process::{Bench, Program};
use testkit::report::note;

use super::{Busy, HANDED_OVER, LIMIT, disk, line, replace, work, work_until};
use crate::support::{Disk, Format, ringloom, ringloom_without_io_uring, stop, with};

const QUEUES: u16 = 4;
const TAKEOVERS: usize = 10;

/// The pauses in a log, in milliseconds.
fn pauses(log: &str) -> Vec<f64> {
    let number = |line: &str| {
        let (_, rest) = line.split_once("served again ")?;
        rest.split_once(" ms after process")?.0.parse().ok()
    };
    log.lines().filter_map(number).collect()
}

/// Requests whose completion is noted in an in-flight region; none is lost, failed or doubled.
fn tracked(program: &Program, layout: RingLayout, format: Format) -> Result<()> {
    let bench = Bench::new()?;
    let Busy { disk, mut server, mut client, mut rng } =
        Busy::begin(program, Disk { format, ..disk(&bench, QUEUES) }, layout)?;
    let mut longest = Vec::new();
    for takeover in 0..TAKEOVERS {
        work(&mut client, &mut rng, 20)?;
        let mut old = server;
        server = program.spawn(&line(&disk))?;
        work_until(&mut client, &mut rng, &server, HANDED_OVER)
            .and_then(|()| work_until(&mut client, &mut rng, &server, "served again"))
            .with_context(|| {
                format!("takeover {takeover}, old: {}\nnew: {}", old.log(), server.log())
            })?;
        let status = old.wait(LIMIT)?;
        ensure!(status.code() == Some(0), "old: {status}: {}", old.log());
        longest.extend(pauses(&server.log()));
    }
    work(&mut client, &mut rng, 20)?;
    note(&format!("{layout:?}: pauses in ms: {longest:?}"));
    ensure!(longest.len() == TAKEOVERS, "one line for each takeover: {longest:?}");
    Busy { disk, server, client, rng }.end().map(drop)
}

/// A client that nobody here wrote, all kinds of requests, every byte compared.
fn modelled(program: &Program, layout: RingLayout) -> Result<()> {
    let bench = Bench::new()?;
    let disk = disk(&bench, QUEUES);
    let plan = Plan { seed: 0x7a4f, operations: 40_000, depth: 16, block_bytes: 512 };
    let mut model = DiskModel::new(disk.create(16 << 20, plan.seed)?);
    let mut server = disk.serve(program)?;
    let shape = Shape {
        queues: QUEUES.into(),
        queue_size: 256,
        memory_bytes: plan.memory_bytes(QUEUES.into()),
        layout,
        ..Shape::small()
    };
    let mut client = Client::connect(&disk.socket(), shape)?;
    let done = AtomicBool::new(false);
    let mut takeovers = 0;
    let server = std::thread::scope(|scope| -> Result<_> {
        let worker = scope.spawn(|| {
            let result = model::run(&mut client, &mut model, &plan);
            done.store(true, Ordering::Release);
            result
        });
        while !done.load(Ordering::Acquire) && takeovers < TAKEOVERS {
            server = replace(program, &line(&disk), server)?;
            takeovers += 1;
        }
        let result = worker.join().expect("the workload does not panic");
        result.with_context(|| format!("after {takeovers} takeovers, log: {}", server.log()))?;
        Ok(server)
    })?;
    note(&format!("{layout:?}: {takeovers} takeovers under the model workload"));
    ensure!(takeovers >= 2, "only {takeovers} takeovers during the workload");
    model::verify_through(&mut client, &model)?;
    client.flush()?;
    drop(client);
    stop(server, &[&disk.socket()])?;
    Ok(())
}

#[test]
fn split_rings_lose_nothing_in_ten_takeovers() {
    with(&ringloom(), |program| tracked(program, RingLayout::Split, Format::Raw));
}

#[test]
fn packed_rings_lose_nothing_in_ten_takeovers() {
    with(&ringloom(), |program| tracked(program, RingLayout::Packed, Format::Raw));
}

#[test]
fn a_host_without_io_uring_takes_over_as_well() {
    with(&ringloom_without_io_uring(), |program| tracked(program, RingLayout::Split, Format::Raw));
}

#[test]
fn a_model_workload_on_split_rings_goes_through_takeovers() {
    with(&ringloom(), |program| modelled(program, RingLayout::Split));
}

#[test]
fn a_model_workload_on_packed_rings_goes_through_takeovers() {
    with(&ringloom(), |program| modelled(program, RingLayout::Packed));
}

/// The image changes hands: one closes it before the other reads it.
#[test]
fn nothing_of_a_qcow2_image_is_lost_over_many_takeovers() {
    with(&ringloom(), |program| tracked(program, RingLayout::Split, Format::Overlay));
}
