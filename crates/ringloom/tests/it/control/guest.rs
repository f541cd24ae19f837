//! A real QEMU with a Linux guest stays attached while commands change what is below its disk.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::client::RingLayout;
use testkit::deadline::Deadline;
use testkit::guest::{self, Guest};
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;
use testkit::report::{note, skipped};

use super::{monitor, monitor_socket, state};
use crate::crash::script;
use crate::guest::check_image;
use crate::support::{
    After, Disk, Format, Iothreads, qemu_img, ringloom, serve_beside, stop, with,
};

const QUEUES: usize = 4;
const IMAGE_BYTES: u64 = 96 << 20;
const ROUNDS: usize = 3;
const GUEST_LIMIT: Duration = Duration::from_secs(240);

fn a_guest_notices_nothing(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let disk =
        Disk { iothreads: Iothreads::Two, format: Format::Raw, ..Disk::new(&bench, "e0", QUEUES) };
    disk.create_sparse(IMAGE_BYTES)?;
    let more = [monitor(&bench), state(&bench)].concat();
    let server = serve_beside(program, std::slice::from_ref(&disk), &more)?;
    let clock = Deadline::after(GUEST_LIMIT);
    let guest = Guest {
        disks: vec![disk.socket()],
        queues: QUEUES,
        layout: RingLayout::Split,
        script: script(ROUNDS),
    };
    let running = guest.boot(&bench)?;
    running.wait_for("the work starts", clock.remaining())?;
    let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
    let mut count = 0;
    let mut root = "file-e0".to_owned();
    for number in 1..=3 {
        let overlay = format!("over{number}");
        let sync = json!({
            "node-name": root, "snapshot-file": bench.text(&overlay), "snapshot-node-name": overlay,
        });
        qmp.execute("blockdev-snapshot-sync", &sync)?;
        root = overlay;
        for queue in 0..QUEUES {
            for iothread in ["t0", "t1"] {
                let moved = json!({"export": "e0", "queue": queue, "iothread": iothread});
                qmp.execute("ringloom-move-queue", &moved)?;
                count += 1;
            }
        }
        let all = json!({"node-name": root, "iothread": "t1", "force": true});
        qmp.execute("x-blockdev-set-iothread", &all)?;
        let size = IMAGE_BYTES + (number << 20);
        qmp.execute("block_resize", &json!({"node-name": root, "size": size}))?;
        count += 3;
    }
    let console = running
        .wait(clock.remaining())
        .with_context(|| format!("log of the server: {}", server.log()))?;
    note(&format!("guest under {count} commands: {:?}", clock.elapsed()));
    for round in 1..=ROUNDS {
        console.success(&format!("fio{round}"))?;
    }
    for step in ["mkfs", "mount", "known", "unmount", "script_status"] {
        console.success(step)?;
    }
    drop(qmp);
    stop(server, &[&disk.socket()])?;
    ensure!(disk.flatten(After::Order)? == disk.image(), "it is raw");
    for number in 1..=3 {
        qemu_img(&bench, &format!("check -q -f qcow2 over{number}"))?;
    }
    qemu_img(&bench, "convert -f qcow2 -O raw over3 flat")?;
    let flat = std::fs::OpenOptions::new().write(true).open(bench.path("flat"))?;
    flat.set_len(IMAGE_BYTES)?;
    check_image(&bench.path("flat"))
}

#[test]
fn a_guest_under_qemu_works_while_commands_change_its_disk() {
    match guest::missing() {
        Some(reason) => skipped(&reason),
        None => with(&ringloom(), a_guest_notices_nothing),
    }
}
