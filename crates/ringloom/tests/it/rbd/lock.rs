//! Who may write an image: the one who has its lock, and nobody after it was broken.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::ceph::{Cluster, WATCH_LIMIT};
use testkit::client::{Client, Request, Segment, Shape};
use testkit::process::{Bench, Program, Server, Signal};

use super::away::LONG_FORM;
use super::{line, node, qemu_io, serve, with_cluster};
use crate::nbd::{socket, start};
use crate::support::stop;

/// A daemon that offers an image on the socket `vub.sock`.
fn serve_guest(program: &Program, cluster: &Cluster, bench: &Bench, image: &str) -> Result<Server> {
    let path = bench.path("vub.sock");
    let mut words: Vec<String> = node(cluster, image, "").into();
    let export =
        format!("vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={}", path.display());
    words.extend(["--export".to_owned(), format!("{export},writable=on")]);
    program.start(&words, &[path])
}

/// Sends a write of 4 KiB of that byte, and does not wait for it.
fn begin_write(client: &mut Client, byte: u8) -> Result<()> {
    client.memory().write(0, &[byte; 4096]);
    let segments = vec![Segment { offset: 0, length: 4096 }];
    client.submit(0, &Request::Write { offset: 0, segments }, 1)?;
    client.kick(0)
}

/// Two daemons want the same image: the second one waits, and has it when the first one has gone in order.
fn one_writer(program: &Program, cluster: &Cluster) -> Result<()> {
    cluster.create("one", 8)?;
    let (bench, other) = (Bench::new()?, Bench::new()?);
    let ours = serve(program, cluster, &bench, "one")?;
    let waits = program.spawn(&line(&other, &node(cluster, "one", ""), ",writable=on"))?;
    waits.wait_for_log(
        "another client has the lock of image rbd:rbd/one",
        Duration::from_secs(30),
    )?;
    qemu_io(&bench, &["write -P 5 0 64k", "flush"])?;
    stop(ours, &[&socket(&bench)])?;
    waits.wait_for_log("has the lock after", Duration::from_secs(30))?;
    waits.wait_for_log("listening", Duration::from_secs(30)).ok();
    let said = stop(waits, &[&socket(&other)])?;
    ensure!(!said.contains("blocklisted"), "nobody was gone: {said}");
    Ok(())
}

/// A daemon is killed while its write waits at the OSD. The next one waits until the cluster has forgotten it, takes the lock
/// and writes the same place; the bytes of the old one never come. In the long form the cluster forgets as late as Ceph's
/// default has it.
fn a_dead_owner(program: &Program, cluster: &Cluster) -> Result<()> {
    cluster.create("dead", 8)?;
    let bench = Bench::new()?;
    let is_long = std::env::var_os(LONG_FORM).is_some();
    let forgets_after = |time: Duration| {
        let seconds = time.as_secs().to_string();
        cluster.ceph(&["tell", "osd.0", "config", "set", "osd_client_watch_timeout", &seconds])
    };
    let theirs = std::fs::read_to_string(cluster.conf())?;
    let default = if is_long { "[client]\nosd client watch timeout = 30\n" } else { "" };
    std::fs::write(bench.path("ceph.conf"), theirs + default)?;
    if is_long {
        forgets_after(Duration::from_secs(30))?;
    }
    let mut old = serve_guest(program, cluster, &bench, "dead")?;
    if is_long {
        forgets_after(WATCH_LIMIT)?;
    }
    let mut client = Client::connect(&bench.path("vub.sock"), Shape::small())?;
    client.write(0, &[1; 4096], 0)?;
    let outage = cluster.outage();
    outage.freeze_osd()?;
    begin_write(&mut client, 2)?;
    old.wait_while_running(Duration::from_millis(300))?;
    old.signal(Signal::KILL)?;
    old.wait(Duration::from_secs(30))?;
    drop(client);
    drop(outage);
    let own = |word: String| {
        word.replace(&cluster.conf().display().to_string(), &bench.text("ceph.conf"))
    };
    let words = line(&bench, &node(cluster, "dead", "").map(own), ",writable=on");
    let ours = program.spawn(&words)?;
    let said = format!("trying for up to {} s", if is_long { 45 } else { 30 });
    ours.wait_for_log(&said, Duration::from_secs(30))?;
    let listens = ours.wait_for_log("NBD server: listening", Duration::from_secs(60));
    listens.with_context(|| ours.log())?;
    let said = ours.log();
    ensure!(said.contains("has the lock and is gone; it is blocklisted"), "{said}");
    qemu_io(&bench, &["write -P 3 0 4k", "read -P 3 0 4k", "flush"])?;
    stop(ours, &[&socket(&bench)])?;
    ensure!(
        cluster.export("dead")?[..4096] == [3; 4096],
        "a write of the dead daemon has come late"
    );
    Ok(())
}

/// A daemon stops to run, with a write on its way, long enough to be taken for dead. When it goes on, the cluster refuses
/// its write, and all others.
fn a_sleeping_owner(program: &Program, cluster: &Cluster) -> Result<()> {
    cluster.create("asleep", 8)?;
    let (bench, other) = (Bench::new()?, Bench::new()?);
    let old = serve_guest(program, cluster, &bench, "asleep")?;
    let mut client = Client::connect(&bench.path("vub.sock"), Shape::small())?;
    client.write(0, &[1; 4096], 0)?;
    old.freeze()?;
    begin_write(&mut client, 2)?;
    let ours = start(program, &other, &line(&other, &node(cluster, "asleep", ""), ",writable=on"))?;
    qemu_io(&other, &["write -P 3 0 4k", "flush"])?;
    old.signal(Signal::CONT)?;
    old.wait_for_log("the cluster has blocklisted this client", WATCH_LIMIT * 6)
        .with_context(|| old.log())?;
    qemu_io(&other, &["read -P 3 0 4k"])?;
    ensure!(client.write(4096, &[4; 4096], 0).is_err(), "a client that was fenced off writes");
    drop(client);
    stop(ours, &[&socket(&other)])?;
    let bytes = cluster.export("asleep")?;
    ensure!(bytes[..4096] == [3; 4096] && bytes[4096..] == vec![0; (8 << 20) - 4096], "old bytes");
    stop(old, &[&bench.path("vub.sock")]).map(drop)
}

#[test]
fn an_image_of_a_cluster_has_one_writer() {
    with_cluster(one_writer);
}

#[test]
fn the_lock_of_a_dead_daemon_is_broken_and_its_writes_never_come() {
    with_cluster(a_dead_owner);
}

#[test]
fn a_daemon_that_was_taken_for_dead_is_refused_by_the_cluster() {
    with_cluster(a_sleeping_owner);
}
