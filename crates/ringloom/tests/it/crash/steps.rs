//! The server kills itself at every step between a chain's way from the ring and its way back (feature
//! `fault-points`).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::image;
use testkit::process::{Bench, Server};
use testkit::rawring::{Collected, Survivor};
use testkit::rng::Rng;

use crate::support::{Disk, Iothreads, ringloom, stop};

pub(super) const VARIABLE: &str = "RINGLOOM_FAULT";
const QUEUES: u16 = 2;
/// Rounds of requests within which the fault must have come.
const ROUNDS_MAX: usize = 500;
const CRASH_LIMIT: Duration = Duration::from_secs(20);

/// The steps of a normal run.
const STEPS: [&str; 9] = [
    "Popped",
    "Noted",
    "Marked",
    "Staged",
    "BatchLinked",
    "UsedPublished",
    "MarksCleared",
    "BatchCommitted",
    "Interrupted",
];

/// Serves the disk until the server has killed itself at the step that was reached so often.
fn serve(disk: &Disk<'_>, fault: Option<&str>) -> Result<Server> {
    let program = match fault {
        Some(fault) => ringloom().with_variable(VARIABLE, fault),
        None => ringloom(),
    };
    disk.serve(&program)
}

/// Keeps all slots busy until the server is gone.
fn work_until_gone(client: &mut Survivor, rng: &mut Rng) -> Result<()> {
    for _ in 0..ROUNDS_MAX {
        client.submit(rng)?;
        if client.collect()? == Collected::Gone {
            return Ok(());
        }
    }
    anyhow::bail!("the server did not reach the step in {ROUNDS_MAX} rounds")
}

/// Servers die one after the other, each at its fault; the last one lives.
fn check(layout: RingLayout, faults: &[String], seed: u64) -> Result<()> {
    let bench = Bench::new()?;
    let disk = Disk { iothreads: Iothreads::Two, ..Disk::new(&bench, "e0", QUEUES.into()) };
    image::create_sparse(&disk.image(), Survivor::disk_bytes(QUEUES))?;
    let mut rng = Rng::new(seed);
    let mut client = None;
    for fault in faults {
        let mut server = serve(&disk, Some(fault))?;
        match &mut client {
            None => client = Some(Survivor::connect(&disk.socket(), layout, QUEUES)?),
            // It may die while it takes the rings over.
            Some(client) => match Survivor::reconnect(client) {
                Ok(()) => {}
                Err(error) => {
                    server.wait_for_crash(CRASH_LIMIT).with_context(|| format!("{error:#}"))?;
                    continue;
                }
            },
        }
        let client = client.as_mut().expect("connected just now");
        work_until_gone(client, &mut rng).with_context(|| format!("{fault}: {}", server.log()))?;
        server.wait_for_crash(CRASH_LIMIT)?;
    }
    let mut client = client.context("there is a fault")?;
    let server = serve(&disk, None)?;
    client.reconnect()?;
    // Before anything new is asked for: what was seen without an interrupt must be told.
    client.drain().with_context(|| format!("log: {}", server.log()))?;
    for _ in 0..20 {
        client.submit(&mut rng)?;
        ensure!(client.collect()? != Collected::Gone, "the server is gone: {}", server.log());
    }
    client.drain()?;
    drop_client_and_compare(client, server, &disk)
}

fn drop_client_and_compare(client: Survivor, server: Server, disk: &Disk<'_>) -> Result<()> {
    let expected = client.expected();
    drop(client);
    stop(server, &[&disk.socket()])?;
    let found = std::fs::read(disk.image()).context("read the image")?;
    ensure!(found == expected, "the image does not hold the last completed writes");
    Ok(())
}

#[track_caller]
fn check_steps(layout: RingLayout) {
    for (step, seed) in STEPS.iter().zip(1..) {
        for count in [1, 7, 50] {
            let fault = format!("{step}:{count}");
            if let Err(error) = check(layout, std::slice::from_ref(&fault), seed + count) {
                panic!("{layout:?}, {fault}: {error:#}");
            }
        }
    }
}

/// A server that dies while it repairs what the one before has left, after a few that died elsewhere.
#[track_caller]
fn check_series(layout: RingLayout) {
    for first in ["Staged:9", "UsedPublished:9", "MarksCleared:3", "Noted:30"] {
        let faults = [
            first,
            "BatchRepaired:1",
            "BatchRepaired:2",
            "Marked:3",
            "Staged:5",
            "UsedPublished:1",
        ];
        let faults = faults.map(str::to_owned);
        if let Err(error) = check(layout, &faults, 77) {
            panic!("{layout:?}, {faults:?}: {error:#}");
        }
    }
}

#[test]
fn split_rings_go_on_after_a_crash_at_every_step() {
    check_steps(RingLayout::Split);
}

#[test]
fn packed_rings_go_on_after_a_crash_at_every_step() {
    check_steps(RingLayout::Packed);
}

#[test]
fn split_rings_go_on_after_a_series_of_crashes() {
    check_series(RingLayout::Split);
}

#[test]
fn packed_rings_go_on_after_a_series_of_crashes() {
    check_series(RingLayout::Packed);
}
