//! A Linux guest that writes and verifies while its daemon is replaced.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::client::RingLayout;
use testkit::deadline::Deadline;
use testkit::guest::{self, Guest};
use testkit::image;
use testkit::process::{Bench, Program};
use testkit::report::{note, skipped};

use super::{LIMIT, disk, line, replace};
use crate::guest::check_image;
use crate::support::{ringloom, stop, with};

const QUEUES: u16 = 4;
const TAKEOVERS: usize = 6;
const ROUNDS: usize = 8;
const GUEST_LIMIT: Duration = Duration::from_secs(240);

/// Takeovers that the guest does not notice: its QEMU never has to connect again.
fn writes_on(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let disk = disk(&bench, QUEUES);
    image::create_sparse(&disk.image(), 96 << 20)?;
    let clock = Deadline::after(GUEST_LIMIT);
    let mut server = disk.serve(program)?;
    let guest = Guest {
        disks: vec![disk.socket()],
        queues: QUEUES.into(),
        layout: RingLayout::Split,
        script: crate::crash::script(ROUNDS),
    };
    let running = guest.boot(&bench)?;
    running.wait_for("the work starts", clock.remaining())?;
    let mut pauses = Vec::new();
    for takeover in 0..TAKEOVERS {
        server.wait_while_running(Duration::from_millis(300))?;
        server = replace(program, &line(&disk), server)?;
        server
            .wait_for_log("served again", LIMIT)
            .with_context(|| format!("takeover {takeover}, log: {}", server.log()))?;
        let log = server.log();
        pauses.extend(log.lines().find(|line| line.contains("served again")).map(str::to_owned));
    }
    let console = running
        .wait(clock.remaining())
        .with_context(|| format!("log of the server: {}", server.log()))?;
    note(&format!("{pauses:#?}, {:?}", clock.elapsed()));
    for round in 1..=ROUNDS {
        console.success(&format!("fio{round}"))?;
    }
    for step in ["mkfs", "mount", "known", "unmount", "script_status"] {
        console.success(step)?;
    }
    let log = stop(server, &[&disk.socket()])?;
    ensure!(!log.contains("errors=1"), "{log}");
    check_image(&disk.image())
}

#[test]
fn a_guest_writes_on_while_its_daemon_is_replaced() {
    match guest::missing() {
        Some(reason) => skipped(&reason),
        None => with(&ringloom(), writes_on),
    }
}
