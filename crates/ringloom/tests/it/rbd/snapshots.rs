//! Snapshots of images of a cluster by commands of a monitor, while a guest writes: rbd's own tools find the disk as it was.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::ceph::Cluster;
use testkit::deadline::poll_until;
use testkit::process::{Bench, Program};
use testkit::qmp::QmpClient;
use testkit::report::skipped;

use super::with_cluster;
use crate::control::filters::{BYTES, last_write, sockets};
use crate::control::internal_snapshots::{
    check_instants, create, fail, line, shown, while_written,
};
use crate::control::{monitor, monitor_socket, start};
use crate::support::stop;

/// How many snapshots each disk gets.
const ROUNDS: usize = 5;

/// The image of a disk.
fn image(disk: &str) -> String {
    format!("snapped-{disk}")
}

fn node(cluster: &Cluster, disk: &str) -> Value {
    let conf = cluster.conf();
    let driver = json!({"driver": "rbd", "pool": "rbd", "image": image(disk), "conf": conf});
    // Commands find it below a format.
    json!({"driver": "raw", "node-name": disk, "file": driver})
}

/// The last write that a snapshot has, or the disk.
fn written(cluster: &Cluster, disk: &str, snapshot: &str) -> Result<u64> {
    last_write(&cluster.export(&format!("{}{snapshot}", image(disk)))?)
        .with_context(|| format!("disk {disk}, snapshot {snapshot:?}"))
}

/// What rbd says that there is.
fn listed(cluster: &Cluster, disk: &str) -> Result<Vec<String>> {
    let list = cluster.rbd(&["snap", "ls", "--format=json", &image(disk)])?;
    let list: Vec<Value> = serde_json::from_str(&list).with_context(|| list.clone())?;
    Ok(list.iter().map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect())
}

fn delete(qmp: &mut QmpClient, disk: &str, name: &str) -> Result<Value> {
    let arguments = json!({"device": disk, "name": name});
    qmp.execute("blockdev-snapshot-delete-internal-sync", &arguments)
}

/// One of both disks, transactions that fail, one that is protected, one that rbd has made, one that goes again.
fn round(cluster: &Cluster, qmp: &mut QmpClient, name: &str) -> Result<()> {
    qmp.execute("transaction", &json!({"actions": [create("a", name), create("b", name)]}))?;
    fail(qmp, name)?;
    let (own, path) = (format!("{name}-own"), format!("{}@{name}", image("a")));
    cluster.rbd(&["snap", "protect", &path])?;
    let said = delete(qmp, "a", name).err().context("it is protected")?;
    ensure!(said.to_string().contains("it is protected, or has clones"), "{said}");
    cluster.rbd(&["snap", "unprotect", &path])?;
    cluster.rbd(&["snap", "create", "--no-progress", &format!("{}@{own}", image("a"))])?;
    poll_until("a snapshot of rbd's", Duration::from_secs(30), || {
        Ok(shown(qmp, "a")?.contains(&own).then_some(()))
    })?;
    let info = delete(qmp, "a", &own)?;
    ensure!(info["id"] == *own && info["vm-state-size"] == 0, "{info}");
    ensure!(info["date-sec"].as_u64().is_some_and(|date| date > 1_700_000_000), "{info}");
    Ok(())
}

/// Disks hold what guests had written when snapshots of both were made, and the lists are right.
fn of_one_instant(program: &Program, cluster: &Cluster) -> Result<()> {
    let bench = Bench::new()?;
    for disk in ["a", "b"] {
        cluster.rbd(&["create", "--size", &format!("{BYTES}B"), &image(disk)])?;
    }
    // A second of silence is no end of the daemon.
    let calm = cluster.outage();
    let (server, mut qmp) =
        start(program, &bench, &line(&bench, |disk| node(cluster, disk)), &sockets(&bench))?;
    let names: Vec<String> = (0..ROUNDS).map(|round| format!("s{round}")).collect();
    let writes = while_written(&bench, &server, |writer| {
        for name in &names {
            writer.wait()?;
            round(cluster, &mut qmp, name)?;
        }
        let gone = delete(&mut qmp, "b", &names[0])?;
        ensure!(gone["name"] == *names[0], "{gone}");
        Ok(())
    })?;
    ensure!(shown(&mut qmp, "a")? == names && shown(&mut qmp, "b")? == names[1..], "other lists");
    let said = delete(&mut qmp, "b", &names[0]).err().context("it is gone")?;
    ensure!(said.to_string().contains("does not exist on device 'b'"), "{said}");
    drop(qmp);
    stop(server, &[&bench.path("a.sock") as &Path, &monitor_socket(&bench)])?;
    drop(calm);
    ensure!(listed(cluster, "a")? == names && listed(cluster, "b")? == names[1..], "rbd's lists");
    check_instants(&names[1..], |disk, name| written(cluster, disk, &format!("@{name}")))?;
    for disk in ["a", "b"] {
        let found = written(cluster, disk, "")?;
        ensure!(found == writes, "disk {disk} has {found} of {writes} writes");
    }
    as_by_qemu(cluster, &names)
}

/// The peer lists the same.
fn as_by_qemu(cluster: &Cluster, names: &[String]) -> Result<()> {
    let peer = Program::qemu_storage_daemon();
    if let Some(reason) = peer.missing() {
        skipped(&reason);
        return Ok(());
    }
    let bench = Bench::new()?;
    let mut words = monitor(&bench);
    words.truncate(4);
    words.extend(["--blockdev".to_owned(), node(cluster, "a").to_string()]);
    let calm = cluster.outage();
    let server = peer.start(&words, &[monitor_socket(&bench)])?;
    let mut qmp = QmpClient::connect(&monitor_socket(&bench))?;
    let theirs = shown(&mut qmp, "a")?;
    drop(qmp);
    stop(server, &[])?;
    drop(calm);
    ensure!(theirs == names, "QEMU lists {theirs:?}");
    Ok(())
}

#[test]
fn snapshots_of_images_of_a_cluster_hold_disks_as_they_were_at_one_instant() {
    with_cluster(of_one_instant);
}
