//! A cluster that goes away and comes back, or does not. All daemons here are behind the fences.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::ceph::Cluster;
use testkit::deadline::{Deadline, poll_until};
use testkit::process::{Bench, Program, Signal};

use super::{line, node, with_cluster};
use crate::nbd::{socket, start, tool, uri, verify};
use crate::support::stop;

/// Set for a cluster that stays silent for as long as a stop may take: nothing else can use it meanwhile.
pub(super) const LONG_FORM: &str = "RINGLOOM_RBD_LONG";

/// The OSD is killed and comes back, and so is the monitor, below a checked load on two iothreads. Then the monitor alone is
/// away for all of a second load, which does not need it.
fn killed_below_a_load(program: &Program, cluster: &Cluster) -> Result<()> {
    cluster.create("load", 64)?;
    let bench = Bench::new()?;
    let threads = ["--object", "iothread,id=t0", "--object", "iothread,id=t1"];
    let mut words: Vec<String> = threads.iter().map(|word| (*word).to_owned()).collect();
    words.extend(["--sandbox".to_owned(), "on".to_owned()]);
    let iothreads = ",writable=on,iothread.0=t0,iothread.1=t1";
    words.extend(line(&bench, &node(cluster, "load", ""), iothreads));
    let ours = start(program, &bench, &words)?;
    let (is_over, outage) = (AtomicBool::new(false), cluster.outage());
    let pause = |time| {
        let pause = Deadline::after(time);
        poll_until("the next kill", Duration::from_secs(30), || {
            Ok(pause.has_passed().then_some(()))
        })
    };
    let was_over = std::thread::scope(|scope| -> Result<bool> {
        let load = scope.spawn(|| {
            let verified = verify(&bench, 4, 4);
            is_over.store(true, Ordering::SeqCst);
            verified
        });
        pause(Duration::from_millis(500))?;
        let was_over = is_over.load(Ordering::SeqCst);
        outage.kill_osd();
        outage.kill_monitor();
        pause(Duration::from_millis(500))?;
        outage.start_monitor()?;
        outage.start_osd()?;
        load.join().expect("the load does not panic").map(|()| was_over)
    });
    ensure!(
        !was_over.with_context(|| ours.log())?,
        "nothing was under way when the OSD was killed"
    );
    cluster.wait_for_osd()?;
    outage.kill_monitor();
    let verified = verify(&bench, 4, 1);
    outage.start_monitor()?;
    drop(outage);
    verified.with_context(|| ours.log())?;
    let said = stop(ours, &[&socket(&bench)])?;
    ensure!(said.contains("no capabilities, system calls filtered"), "{said}");
    Ok(())
}

/// An operation on a cluster that answers nothing while the daemon is asked to end. In the long form it stays silent: the
/// daemon ends at its limit, and what was written before is there.
fn a_stop_does_not_wait_for_ever(program: &Program, cluster: &Cluster) -> Result<()> {
    let is_long = std::env::var_os(LONG_FORM).is_some();
    cluster.create("silent", 16)?;
    let bench = Bench::new()?;
    let mut ours =
        start(program, &bench, &line(&bench, &node(cluster, "silent", ""), ",writable=on"))?;
    let uri = uri(&bench, "x");
    tool("qemu-io", &["-f", "raw", "-c", "write -P 5 0 1M", &uri])?;
    let outage = cluster.outage();
    outage.freeze_osd()?;
    let (took, read) = std::thread::scope(|scope| -> Result<_> {
        let uri = &uri;
        let read =
            scope.spawn(move || tool("qemu-io", &["-f", "raw", "-c", "read -P 5 0 64k", uri]));
        ours.wait_while_running(Duration::from_secs(1))?;
        let began = Deadline::after(Duration::from_secs(120));
        ours.signal(Signal::TERM)?;
        if !is_long {
            ours.wait_while_running(Duration::from_millis(500))?;
            outage.thaw_osd()?;
        }
        ours.wait(Duration::from_secs(90))?;
        Ok((began.elapsed(), read.join().expect("it does not panic")))
    })?;
    let limit = Duration::from_secs(if is_long { 60 } else { 45 });
    ensure!(took < limit, "{took:?}: {}", ours.log());
    // The client may be let go before it has read its answer.
    ensure!(!is_long || read.is_err(), "a silent OSD has answered: {read:?}");
    drop(outage);
    ensure!(cluster.export("silent")?[..1 << 20] == vec![5; 1 << 20], "bytes are missing");
    Ok(())
}

/// No monitor answers: a start says so and ends.
fn no_monitor(program: &Program) -> Result<()> {
    let bench = Bench::new()?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port();
    drop(taken);
    std::fs::write(bench.path("ceph.conf"), "[global]\nclient mount timeout = 2\n")?;
    let conf = bench.text("ceph.conf");
    let monitor = format!("server.0.host=localhost,server.0.port={port}");
    let keys = format!("rbd,node-name=n,pool=rbd,image=a,conf={conf},{monitor}");
    let began = Deadline::after(Duration::from_secs(20));
    let exit = program
        .refusal(&line(&bench, &["--blockdev".to_owned(), keys], ""), Duration::from_secs(60))?;
    ensure!(!began.has_passed(), "the time of the configuration does not count: {}", exit.stderr);
    let sentence = format!(":{port} of the Ceph cluster cannot be connected to");
    ensure!(!exit.status.success() && exit.stderr.contains(&sentence), "{}", exit.stderr);
    Ok(())
}

#[test]
fn an_osd_and_a_monitor_are_killed_below_a_load_behind_the_fences() {
    with_cluster(killed_below_a_load);
}

#[test]
fn a_stop_waits_for_a_silent_cluster_no_longer_than_it_may() {
    with_cluster(a_stop_does_not_wait_for_ever);
}

#[test]
fn a_start_without_a_monitor_ends_with_a_sentence() {
    with_cluster(|program, _| no_monitor(program));
}
