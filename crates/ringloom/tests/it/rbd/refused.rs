//! A cluster that refuses requests: it has no room, a pool is gone, or it has blocklisted the client. All daemons here are
//! behind the fences.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::ceph::{Cluster, POOL};
use testkit::deadline::{Deadline, poll_until};
use testkit::process::{Bench, Program, Server, Signal};

use super::away::LONG_FORM;
use super::with_cluster;
use crate::nbd::{outcome, server, socket, start, uri};
use crate::support::stop;

/// How long a sentence may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// An image, with its pool and the configuration of its client.
type Place<'a> = (&'a str, &'a str, &'a Path);

/// A daemon that offers two images for writing, as `x` and `y`.
fn serve_two(program: &Program, bench: &Bench, images: [Place<'_>; 2]) -> Result<Server> {
    let mut words = server(bench, &["--sandbox", "on"]);
    for (name, (pool, image, conf)) in ["x", "y"].into_iter().zip(images) {
        let keys = format!("pool={pool},image={image},conf={}", conf.display());
        words.extend(["--blockdev".to_owned(), format!("rbd,node-name={name},{keys}")]);
        let export = format!("nbd,id={name},node-name={name},name={name},writable=on");
        words.extend(["--export".to_owned(), export]);
    }
    start(program, bench, &words)
}

/// What QEMU says of this on an export, which may fail but not hang.
fn attempt(bench: &Bench, export: &str, command: &str) -> Result<String> {
    let output = outcome("qemu-io", &["-f", "raw", "-c", command, &uri(bench, export)])?;
    // That of timeout(1).
    ensure!(output.status.code() != Some(124), "{command} does not end");
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Has the OSD say that it has room, or none, and waits until clients are told.
fn change_room(cluster: &Cluster, is_full: bool) -> Result<()> {
    cluster.ceph(&["tell", "osd.0", "injectfull", if is_full { "full" } else { "none" }])?;
    poll_until("the pool to be full, or not", PATIENCE, || {
        let pools = cluster.ceph(&["osd", "pool", "ls", "detail"])?;
        let line = pools.lines().find(|line| line.contains(&format!("'{POOL}'")));
        let flags = line.and_then(|line| line.split_once(" flags ")).context("flags of a pool")?.1;
        let flags = flags.split(' ').next().unwrap_or_default();
        Ok((flags.split(',').any(|flag| flag == "full") == is_full).then_some(()))
    })
}

/// A configuration that has requests fail after a second.
fn impatient(cluster: &Cluster, bench: &Bench) -> Result<PathBuf> {
    let (path, conf) = (bench.path("ceph.conf"), std::fs::read_to_string(cluster.conf())?);
    std::fs::write(&path, format!("{conf}[client]\nrados osd op timeout = 1\n"))?;
    Ok(path)
}

/// The OSD has no room: writes wait for it, or fail where the configuration has a limit. In the long form
/// the daemon is asked to end meanwhile, and does so at its limit.
fn no_room(program: &Program, cluster: &Cluster) -> Result<()> {
    let bench = Bench::new()?;
    let (conf, limited) = (cluster.conf(), impatient(cluster, &bench)?);
    cluster.create("waits", 16)?;
    cluster.create("fails", 16)?;
    let mut ours = serve_two(program, &bench, [(POOL, "waits", &conf), (POOL, "fails", &limited)])?;
    attempt(&bench, "x", "write -P 1 0 1M")?;
    change_room(cluster, true)?;
    std::thread::scope(|scope| -> Result<()> {
        let waits = scope.spawn(|| attempt(&bench, "x", "write -P 2 0 64k"));
        let said = attempt(&bench, "y", "write -P 3 0 64k")?;
        ensure!(said.contains("write failed"), "{said}");
        ours.wait_for_log("Connection timed out", PATIENCE)?;
        ensure!(!waits.is_finished(), "a write without room has ended: {}", ours.log());
        change_room(cluster, false)?;
        let said = waits.join().expect("it does not panic")?;
        ensure!(said.contains("wrote 65536/65536"), "{said}");
        Ok(())
    })
    .with_context(|| ours.log())?;
    if std::env::var_os(LONG_FORM).is_some() {
        change_room(cluster, true)?;
        let waits = std::thread::scope(|scope| -> Result<_> {
            let waits = scope.spawn(|| attempt(&bench, "x", "write -P 4 1M 64k"));
            ours.wait_while_running(Duration::from_secs(1))?;
            let began = Deadline::after(PATIENCE);
            ours.signal(Signal::TERM)?;
            ours.wait(Duration::from_secs(90))?;
            ensure!(began.elapsed() < Duration::from_secs(60), "{}", ours.log());
            waits.join().expect("it does not panic")
        })?;
        ensure!(waits.contains("write failed"), "{waits}");
        ensure!(ours.log().contains("was given up"), "{}", ours.log());
        change_room(cluster, false)?;
    } else {
        stop(ours, &[&socket(&bench)])?;
    }
    let bytes = cluster.export("waits")?;
    ensure!(bytes[..64 << 10] == [2; 64 << 10], "the write that has waited is not there");
    ensure!(bytes[64 << 10..1 << 20] == vec![1; (1 << 20) - (64 << 10)], "bytes have changed");
    Ok(())
}

/// An image that is used cannot be removed; its pool can, and then an operator blocklists the client of another one. Each has
/// its sentence, nothing hangs, and the daemon ends in order.
fn gone_and_blocklisted(program: &Program, cluster: &Cluster) -> Result<()> {
    let bench = Bench::new()?;
    let conf = cluster.conf();
    cluster.ceph(&["osd", "pool", "create", "gone", "1", "1", "--autoscale-mode=off"])?;
    cluster.create("gone/image", 16)?;
    cluster.create("listed", 16)?;
    let ours = serve_two(program, &bench, [("gone", "image", &conf), (POOL, "listed", &conf)])?;
    let removed = cluster.rbd(&["rm", "--no-progress", "listed"]);
    let removed = removed.err().context("an image that is used was removed")?.to_string();
    ensure!(removed.contains("image still has watchers"), "{removed}");
    for export in ["x", "y"] {
        let said = attempt(&bench, export, "write -P 5 0 64k")?;
        ensure!(said.contains("wrote 65536/65536"), "{said}");
    }
    let sure = "--yes-i-really-really-mean-it";
    cluster.ceph(&["osd", "pool", "rm", "gone", "gone", sure])?;
    let said = attempt(&bench, "x", "write 0 64k")?;
    ensure!(said.contains("write failed"), "{said}");
    let sentence = "disk rbd:gone/image: the cluster does not let this client use the image";
    ours.wait_for_log(sentence, PATIENCE).with_context(|| ours.log())?;
    let watchers = cluster.rbd(&["status", "listed"])?;
    let client = watchers.split("watcher=").nth(1).and_then(|rest| rest.split(' ').next());
    cluster.ceph(&["osd", "blocklist", "add", client.context("a watcher")?, "60"])?;
    let said = attempt(&bench, "y", "write 0 64k")?;
    ensure!(said.contains("write failed"), "{said}");
    let sentence = "disk rbd:rbd/listed: the cluster has blocklisted this client";
    ours.wait_for_log(sentence, PATIENCE).with_context(|| ours.log())?;
    let began = Deadline::after(PATIENCE);
    let said = stop(ours, &[&socket(&bench)])?;
    ensure!(!began.has_passed(), "{said}");
    ensure!(said.matches("blocklisted this client").count() == 1, "{said}");
    ensure!(cluster.export("listed")?[..64 << 10] == [5; 64 << 10], "bytes have changed");
    Ok(())
}

#[test]
fn writes_wait_for_room_in_a_cluster_or_fail_at_their_limit() {
    with_cluster(no_room);
}

#[test]
fn a_pool_that_is_removed_and_a_client_that_is_blocklisted_have_a_sentence() {
    with_cluster(gone_and_blocklisted);
}
