//! Commands that say which iothread serves what, under a client, and what is known of queues and pools.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::client::{Client, Request, Shape};
use testkit::deadline::{Deadline, poll_until};
use testkit::image;
use testkit::process::{Bench, Program, STOP_LIMIT};
use testkit::qmp::QmpClient;

use super::{monitor_socket, start, state};
use crate::support::{ringloom, stop, with};

fn line(bench: &Bench) -> Vec<String> {
    let words = [
        "--object",
        "iothread,id=t0",
        "--object",
        "iothread,id=t1",
        "--blockdev",
        &format!("file,node-name=disk,filename={}", bench.text("disk")),
        "--export",
        &format!(
            "vhost-user-blk,id=e,node-name=disk,writable=on,num-queues=2,iothread=t0,addr.type=unix,addr.path={}",
            bench.text("e.sock")
        ),
    ];
    [state(bench), words.map(str::to_owned).to_vec()].concat()
}

/// The iothreads that serve the queues of the export, in their order.
fn served_by(qmp: &mut QmpClient) -> Result<Vec<String>> {
    let queues = qmp.execute("query-ringloom-queues", &json!({}))?;
    let name = |queue: &Value| queue["iothread"].as_str().unwrap_or_default().to_owned();
    Ok(queues.as_array().into_iter().flatten().map(name).collect())
}

fn queues_go_where_they_are_sent(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    image::create_filled(&bench.path("disk"), 1 << 20, 0x51)?;
    let (server, mut qmp) = start(program, &bench, &line(&bench), std::slice::from_ref(&socket))?;
    let mut client = Client::connect(&socket, Shape { queues: 2, ..Shape::small() })?;
    client.write(0, &[0x11; 4096], 0)?;
    ensure!(served_by(&mut qmp)? == ["t0", "t0"], "{:?}", served_by(&mut qmp)?);
    let moved = json!({"export": "e", "queue": 1, "iothread": "t1"});
    qmp.execute("ringloom-move-queue", &moved)?;
    ensure!(served_by(&mut qmp)? == ["t0", "t1"], "{:?}", served_by(&mut qmp)?);
    client.write(4096, &[0x12; 4096], 0)?;
    for (wrong, expected) in [
        (json!({"export": "x", "queue": 1, "iothread": "t1"}), "'x' is not found"),
        (json!({"export": "e", "queue": 7, "iothread": "t1"}), "no queue 7"),
        (json!({"export": "e", "queue": 1, "iothread": "t7"}), "'t7' not found"),
    ] {
        let (_, desc) = qmp.refused("ringloom-move-queue", &wrong)?;
        ensure!(desc.contains(expected), "{desc}");
    }
    let all = json!({"node-name": "disk", "iothread": "t1"});
    let (_, desc) = qmp.refused("x-blockdev-set-iothread", &all)?;
    ensure!(desc.contains("could be in use"), "{desc}");
    let forced =
        |iothread: Value| json!({"node-name": "disk", "iothread": iothread, "force": true});
    let (_, desc) = qmp.refused("x-blockdev-set-iothread", &forced("t7".into()))?;
    ensure!(desc.contains("Cannot find iothread t7"), "{desc}");
    qmp.execute("x-blockdev-set-iothread", &forced("t1".into()))?;
    ensure!(served_by(&mut qmp)? == ["t1", "t1"], "{:?}", served_by(&mut qmp)?);
    client.write(8192, &[0x13; 4096], 0)?;
    qmp.execute("object-del", &json!({"id": "t0"}))?;
    let (_, desc) = qmp.refused("object-del", &json!({"id": "t1"}))?;
    ensure!(desc.contains("in use"), "{desc}");
    let iothreads = qmp.execute("query-ringloom-iothreads", &json!({}))?;
    ensure!(iothreads[0]["name"] == "t1" && iothreads[0]["queues"] == 2, "{iothreads}");
    let queues = qmp.execute("query-ringloom-queues", &json!({}))?;
    ensure!(queues[0]["writes"] == 3 && queues[0]["written-bytes"] == 12288, "{queues}");
    ensure!(queues[0]["latency"][0]["count"].as_u64().is_some_and(|it| it > 0), "{queues}");
    drop(client);
    stop(server, &[&socket, &monitor_socket(&bench)])?;

    // It is so after a restart, too.
    let (server, mut qmp) = start(program, &bench, &line(&bench), std::slice::from_ref(&socket))?;
    let mut client = Client::connect(&socket, Shape { queues: 2, ..Shape::small() })?;
    ensure!(served_by(&mut qmp)? == ["t1", "t1"], "{:?}", served_by(&mut qmp)?);
    qmp.execute("x-blockdev-set-iothread", &forced(Value::Null))?;
    ensure!(served_by(&mut qmp)? == ["main", "main"], "{:?}", served_by(&mut qmp)?);
    qmp.execute("object-add", &json!({"qom-type": "iothread-pool", "id": "p", "max": 2}))?;
    qmp.execute("x-blockdev-set-iothread", &forced("p".into()))?;
    let (_, desc) = qmp.refused("ringloom-move-queue", &moved)?;
    ensure!(desc.contains("served by pool 'p'"), "{desc}");
    let pools = qmp.execute("query-ringloom-pools", &json!({}))?;
    ensure!(pools[0]["name"] == "p" && pools[0]["exports"][0]["export"] == "e", "{pools}");
    let found = client.read(0, 12288, 0)?;
    ensure!(found[..4096] == [0x11; 4096] && found[8192..] == [0x13; 4096], "other bytes");
    drop(client);
    stop(server, &[&socket]).map(drop)
}

#[test]
fn queues_go_to_the_iothreads_that_commands_name() {
    with(&ringloom(), queues_go_where_they_are_sent);
}

/// A queue that is used is served by the second iothread of the pool in the end.
fn stays(client: &mut Client, qmp: &mut QmpClient) -> Result<()> {
    poll_until("queue 1 on the second iothread", STOP_LIMIT, || {
        client.execute(1, &Request::Flush)?;
        Ok((served_by(qmp)?[1] == "p-1").then_some(()))
    })
}

fn queues_stay_where_they_are_pinned(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    let sockets = std::slice::from_ref(&socket);
    image::create_filled(&bench.path("disk"), 1 << 20, 0x51)?;
    let (server, mut qmp) = start(program, &bench, &line(&bench), sockets)?;
    let mut client = Client::connect(&socket, Shape { queues: 2, ..Shape::small() })?;
    let served =
        |iothread: Value| json!({"node-name": "disk", "iothread": iothread, "force": true});
    let pin =
        |queue: u64, iothread: u64| json!({"export": "e", "queue": queue, "iothread": iothread});
    let (_, desc) = qmp.refused("ringloom-pin-queue", &pin(1, 1))?;
    ensure!(desc.contains("served by no pool"), "{desc}");
    qmp.execute("object-add", &json!({"qom-type": "iothread-pool", "id": "p", "max": 2}))?;
    qmp.execute("x-blockdev-set-iothread", &served("p".into()))?;
    qmp.execute("ringloom-pin-queue", &pin(1, 1))?;
    for (wrong, expected) in [
        (pin(2, 0), "there is no queue of export 'e' 2; there are 2"),
        (pin(0, 2), "there is no iothread of pool 'p' 2; there are 2"),
        (json!({"export": "x", "queue": 0}), "'x' is not found"),
        (json!({"export": "e", "queue": 70000}), "below 65536"),
    ] {
        let (_, desc) = qmp.refused("ringloom-pin-queue", &wrong)?;
        ensure!(desc.contains(expected), "{desc}");
    }
    stays(&mut client, &mut qmp)?;
    drop((client, qmp));
    stop(server, &[&socket, &monitor_socket(&bench)])?;

    // It is kept, until it is taken back.
    let (server, mut qmp) = start(program, &bench, &line(&bench), sockets)?;
    let mut client = Client::connect(&socket, Shape { queues: 2, ..Shape::small() })?;
    stays(&mut client, &mut qmp)?;
    qmp.execute("ringloom-pin-queue", &json!({"export": "e", "queue": 1}))?;
    drop((client, qmp));
    let log = stop(server, &[&socket, &monitor_socket(&bench)])?;
    let (server, _qmp) = start(program, &bench, &line(&bench), sockets)?;
    ensure!(!stop(server, &[&socket])?.contains("\"pin\""), "it is still pinned: {log}");
    Ok(())
}

/// A pool leaves queues where they are from now on, and after a restart, until it may place them again.
fn placement_is_frozen(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    let sockets = std::slice::from_ref(&socket);
    image::create_filled(&bench.path("disk"), 1 << 20, 0x51)?;
    let mode = |qmp: &mut QmpClient| -> Result<Value> {
        let of_object = qmp.execute("qom-get", &json!({"path": "p", "property": "mode"}))?;
        let pools = qmp.execute("query-ringloom-pools", &json!({}))?;
        ensure!(pools[0]["mode"] == of_object, "{pools} and {of_object}");
        Ok(of_object)
    };
    let set = |mode: &str| json!({"path": "/objects/p", "property": "mode", "value": mode});
    let (server, mut qmp) = start(program, &bench, &line(&bench), sockets)?;
    qmp.execute("object-add", &json!({"qom-type": "iothread-pool", "id": "p", "max": 2}))?;
    // Also before an export uses it.
    qmp.execute("qom-set", &set("frozen"))?;
    let served = json!({"node-name": "disk", "iothread": "p", "force": true});
    qmp.execute("x-blockdev-set-iothread", &served)?;
    ensure!(mode(&mut qmp)? == "frozen", "it is not frozen");
    qmp.execute("qom-set", &set("auto"))?;
    ensure!(mode(&mut qmp)? == "auto", "it is frozen");
    qmp.execute("qom-set", &set("frozen"))?;
    server.wait_for_log("pool p: queues stay where they are", STOP_LIMIT)?;
    let max = json!({"path": "p", "property": "max", "value": 1});
    for (wrong, expected) in [(set("still"), "'mode'"), (max, "'p'")] {
        let (_, desc) = qmp.refused("qom-set", &wrong)?;
        ensure!(desc.contains(expected), "{desc}");
    }
    // Pins count all the same.
    let mut client = Client::connect(&socket, Shape { queues: 2, ..Shape::small() })?;
    qmp.execute("ringloom-pin-queue", &json!({"export": "e", "queue": 1, "iothread": 1}))?;
    stays(&mut client, &mut qmp)?;
    drop((client, qmp));
    stop(server, &[&socket, &monitor_socket(&bench)])?;

    let (server, mut qmp) = start(program, &bench, &line(&bench), sockets)?;
    ensure!(mode(&mut qmp)? == "frozen", "it is forgotten");
    drop(qmp);
    stop(server, &[&socket]).map(drop)
}

#[test]
fn placement_is_frozen_by_a_command_and_stays_so() {
    with(&ringloom(), placement_is_frozen);
}

#[test]
fn queues_of_pools_stay_where_commands_pin_them() {
    with(&ringloom(), queues_stay_where_they_are_pinned);
}

/// A delay gets other settings under a client, and has them after a restart.
fn a_delay_is_set(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.path("e.sock");
    let words = [
        "--blockdev",
        "delay,node-name=late,latency-ns=200000000,file.driver=null-co,file.size=1048576",
        "--blockdev",
        "null-co,node-name=fast,size=1048576",
        "--export",
        &format!(
            "vhost-user-blk,id=e,node-name=late,writable=on,addr.type=unix,addr.path={}",
            bench.text("e.sock")
        ),
    ];
    let line = [state(&bench), words.map(str::to_owned).to_vec()].concat();
    let sockets = std::slice::from_ref(&socket);
    let (server, mut qmp) = start(program, &bench, &line, sockets)?;
    let mut client = Client::connect(&socket, Shape::small())?;
    let mut takes = |least: u64, most: u64| -> Result<()> {
        let clock = Deadline::after(Duration::from_secs(60));
        client.write(0, &[1; 4096], 0)?;
        let took = clock.elapsed();
        let (least, most) = (Duration::from_millis(least), Duration::from_millis(most));
        ensure!((least..most).contains(&took), "it took {took:?}");
        Ok(())
    };
    takes(200, 10_000)?;
    let set = json!({"node-name": "late", "write": {"distribution": "fixed", "latency-ns": 0}});
    qmp.execute("ringloom-delay-set", &set)?;
    takes(0, 190)?;
    for (wrong, expected) in [
        (json!({"node-name": "fast", "latency-ns": 1}), "'fast' is no delay"),
        (json!({"node-name": "none", "latency-ns": 1}), "'none'"),
        (json!({"node-name": "late", "latency": 1}), "did you mean 'latency-ns'"),
    ] {
        let (_, desc) = qmp.refused("ringloom-delay-set", &wrong)?;
        ensure!(desc.contains(expected), "{desc}");
    }
    drop(client);
    stop(server, &[&socket])?;
    let (server, _qmp) = start(program, &bench, &line, sockets)?;
    let mut client = Client::connect(&socket, Shape::small())?;
    let clock = Deadline::after(Duration::from_secs(60));
    client.write(0, &[1; 4096], 0)?;
    ensure!(clock.elapsed() < Duration::from_millis(190), "it took {:?}", clock.elapsed());
    drop(client);
    stop(server, &[&socket]).map(drop)
}

#[test]
fn a_delay_gets_other_settings_under_a_client() {
    with(&ringloom(), a_delay_is_set);
}
