//! Nodes, exports and iothreads are added and removed many times: nothing of them is left behind.
//!
//! `RINGLOOM_LEAK_ROUNDS` says how often; 10,000 is the long form, before a change of `control`, `exports` or `graph`.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::client::{Client, Shape};
use testkit::process::{Bench, Program, Server};
use testkit::report::note;

use super::{export, monitor_socket, overlay, start};
use crate::support::{qemu_img, ringloom, stop, with};

const ROUNDS: usize = 120;

/// After so many rounds all is there that is kept for the next one.
const FIRST: usize = 20;

/// How many rounds have a client.
const CLIENT_EVERY: usize = 10;

/// What the heap may keep besides, in KiB: it does not give everything back, and its pieces are not always the same.
const HEAP_KIB: u64 = 4096;

/// What a process holds.
#[derive(Debug, Clone, Copy)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    resident_kib: u64,
}

fn holdings(server: &Server) -> Result<Holdings> {
    let process = format!("/proc/{}", server.pid());
    let count = |what: &str| -> Result<usize> {
        Ok(std::fs::read_dir(format!("{process}/{what}"))?.count())
    };
    let status = std::fs::read_to_string(format!("{process}/status"))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|it| it.trim().strip_suffix("kB")).context("no VmRSS")?;
    let resident_kib = resident.trim().parse()?;
    Ok(Holdings { descriptors: count("fd")?, threads: count("task")?, resident_kib })
}

fn nothing_leaks(program: &Program) -> Result<()> {
    let rounds = std::env::var("RINGLOOM_LEAK_ROUNDS").ok().and_then(|it| it.parse().ok());
    let rounds = rounds.unwrap_or(ROUNDS);
    let bench = Bench::new()?;
    qemu_img(&bench, "create -q -f qcow2 over 1M")?;
    let (server, mut qmp) = start(program, &bench, &[], &[])?;
    let mut first = None;
    let mut last = holdings(&server)?;
    for round in 0..rounds {
        qmp.execute("object-add", &json!({"qom-type": "iothread", "id": "t"}))?;
        qmp.execute("blockdev-add", &overlay(&bench, "over"))?;
        let mut asked = export(&bench, "e", "over");
        asked["iothread"] = json!(["t"]);
        qmp.execute("block-export-add", &asked)?;
        if round % CLIENT_EVERY == 0 {
            let mut client = Client::connect(&bench.path("e.sock"), Shape::small())?;
            client.write(0, &[0x55; 4096], 0)?;
        }
        qmp.execute("block-export-del", &json!({"id": "e", "mode": "hard"}))?;
        qmp.execute("blockdev-del", &json!({"node-name": "over"}))?;
        qmp.execute("object-del", &json!({"id": "t"}))?;
        qmp.events.clear();
        last = holdings(&server)?;
        if round >= FIRST {
            let before = *first.get_or_insert(last);
            let is_same = last.descriptors <= before.descriptors + 2
                && last.threads <= before.threads + 1
                && last.resident_kib <= before.resident_kib + HEAP_KIB;
            ensure!(is_same, "round {round}: {before:?} -> {last:?}");
        }
    }
    if let Some(first) = first {
        note(&format!("{rounds} rounds: after {FIRST} {first:?}, in the end {last:?}"));
    }
    drop(qmp);
    stop(server, &[&monitor_socket(&bench)]).map(drop)
}

#[test]
fn what_is_added_and_removed_leaves_nothing_behind() {
    with(&ringloom(), nothing_leaks);
}
