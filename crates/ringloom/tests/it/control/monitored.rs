//! What a guest pays for monitors that are asked all the time: p99 of its requests, one after the other, in turn without and
//! beside three monitors with 10 queries a second each.
//!
//! `RINGLOOM_MONITORED_ROUNDS` says how often it is measured; 30 is the long form, for a machine that does nothing else, in
//! which the median of all rounds has to be 1.2 at most on a disk that takes 100 µs. A disk that takes no time is measured,
//! too: there a request is as long as a thread of somebody else needs to get a CPU. Of two windows without monitors the same
//! is said: that is the noise.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testkit::client::{Client, Request, Segment, Shape, Status};
use testkit::deadline::Deadline;
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;
use testkit::report::note;

use super::{monitor_socket, start};
use crate::support::{ringloom, stop, with};

const MONITORS: usize = 3;
const INTERVAL: Duration = Duration::from_millis(100);

/// How long is measured at once, and how often, in both forms.
const SHORT: (usize, Duration) = (2, Duration::from_millis(200));
const LONG: Duration = Duration::from_secs(1);

/// The most that monitors may cost.
const RATIO_MAX: f64 = 1.2;

/// What management software and scrapers ask.
const QUERIES: [&str; MONITORS] =
    ["query-named-block-nodes", "query-ringloom-queues", "query-block-exports"];

fn socket(bench: &Bench, number: usize) -> PathBuf {
    if number == 0 { monitor_socket(bench) } else { bench.path(&format!("qmp{number}.sock")) }
}

fn line(bench: &Bench) -> Vec<String> {
    let words = [
        "--object",
        "iothread,id=t0",
        "--blockdev",
        "null-co,node-name=null,size=1048576",
        "--blockdev",
        "delay,node-name=late,latency-ns=100000,file=null",
        "--export",
        &format!(
            "vhost-user-blk,id=null,node-name=null,iothread=t0,addr.type=unix,addr.path={}",
            bench.text("null.sock")
        ),
        "--export",
        &format!(
            "vhost-user-blk,id=late,node-name=late,iothread=t0,addr.type=unix,addr.path={}",
            bench.text("late.sock")
        ),
    ];
    let mut all: Vec<String> = words.map(str::to_owned).to_vec();
    for number in 1..MONITORS {
        let socket = socket(bench, number);
        let chardev = format!("socket,id=q{number},path={},server=on,wait=off", socket.display());
        all.extend(["--chardev".to_owned(), chardev]);
        all.extend(["--monitor".to_owned(), format!("chardev=q{number}")]);
    }
    all
}

/// Asks ten times a second until the other end of the channel is gone; how often.
fn ask(socket: &Path, query: &str, over: &Receiver<()>) -> Result<usize> {
    let mut qmp = QmpClient::connect(socket)?;
    let mut count = 0;
    while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        qmp.execute(query, &json!({}))?;
        count += 1;
    }
    Ok(count)
}

/// The p99 of reads that are made one after the other for that time, in microseconds.
fn p99(client: &mut Client, time: Duration) -> Result<f64> {
    let segments = vec![Segment { offset: 0, length: 4096 }];
    let read = Request::Read { offset: 0, segments };
    let (clock, mut all) = (Deadline::after(Duration::from_secs(60)), Vec::new());
    while clock.elapsed() < time {
        // As a guest does, it sleeps until it is interrupted.
        let began = clock.elapsed();
        ensure!(client.execute(0, &read)? == Status::Ok, "a read failed");
        all.push(clock.elapsed() - began);
    }
    all.sort_unstable();
    let place = all.len() * 99 / 100;
    let found = all.get(place).context("no request")?;
    Ok(found.as_secs_f64() * 1e6)
}

fn beside_monitors(bench: &Bench, client: &mut Client, time: Duration) -> Result<f64> {
    let mut asking = Vec::new();
    for (number, query) in QUERIES.into_iter().enumerate() {
        let (guard, over) = channel();
        let socket = socket(bench, number);
        asking.push((guard, std::thread::spawn(move || ask(&socket, query, &over))));
    }
    let found = p99(client, time);
    for (guard, thread) in asking {
        drop(guard);
        let count = thread.join().expect("it does not panic")?;
        ensure!(count > 0, "nothing was asked");
    }
    found
}

/// The least, the median and the most.
fn spread(mut all: Vec<f64>) -> String {
    all.sort_by(f64::total_cmp);
    let [least, median, most] = [0, all.len() / 2, all.len() - 1].map(|place| all[place]);
    format!("{median:.3} ({least:.3} to {most:.3})")
}

fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn a_guest_hardly_notices(program: &Program) -> Result<()> {
    let rounds = std::env::var("RINGLOOM_MONITORED_ROUNDS").ok().and_then(|it| it.parse().ok());
    let is_long = rounds.is_some();
    let (rounds, time) = rounds.map_or(SHORT, |rounds| (rounds, LONG));
    let bench = Bench::new()?;
    let exports = [bench.path("null.sock"), bench.path("late.sock")];
    let monitors = (1..MONITORS).map(|number| socket(&bench, number));
    let sockets: Vec<PathBuf> = monitors.chain(exports.clone()).collect();
    let (server, qmp) = start(program, &bench, &line(&bench), &sockets)?;
    drop(qmp);
    for (disk, most) in [("null", f64::INFINITY), ("late", RATIO_MAX)] {
        let mut client = Client::connect(&bench.path(&format!("{disk}.sock")), Shape::small())?;
        let middle = measure(&bench, &mut client, disk, (rounds, time))?;
        let is_fine = !is_long || middle <= most;
        ensure!(is_fine, "{disk}: beside monitors the p99 is {middle:.3} of that alone");
    }
    stop(server, &[&exports[0], &exports[1]]).map(drop)
}

/// What the p99 beside monitors is of that alone, in the middle of all rounds.
fn measure(
    bench: &Bench,
    client: &mut Client,
    disk: &str,
    (rounds, time): (usize, Duration),
) -> Result<f64> {
    // What is new costs more.
    p99(client, time)?;
    let (mut alone, mut ratios, mut noise) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let before = p99(client, time)?;
        let beside = beside_monitors(bench, client, time)?;
        let after = p99(client, time)?;
        ratios.push(beside * 2.0 / (before + after));
        noise.push(after / before);
        alone.push(before);
    }
    let middle = median(&ratios);
    note(&format!(
        "{disk}: p99 alone: {} µs; beside monitors: {} of that; the same twice: {}; {rounds} rounds",
        spread(alone),
        spread(ratios),
        spread(noise)
    ));
    Ok(middle)
}

#[test]
fn three_monitors_cost_a_guest_little() {
    with(&ringloom(), a_guest_hardly_notices);
}
