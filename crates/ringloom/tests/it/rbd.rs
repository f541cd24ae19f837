//! Images of a Ceph cluster (`driver=rbd`), with a monitor and an OSD of their own, and rbd's tools to check them.
//!
//! The tests share one cluster: an OSD that one of them kills makes the others wait, as it does to guests.

mod away;
mod images;
mod lock;
mod refused;
mod snapshots;

use std::sync::Arc;

use anyhow::Result;
use testkit::ceph::Cluster;
use testkit::process::{Bench, Program, Server};
use testkit::report::skipped;

use crate::nbd::{server, start, tool, uri};
use crate::support::{ringloom, with};

const MIB: u64 = 1 << 20;

/// Runs a behaviour with ringloom and the cluster, or says why it cannot.
#[track_caller]
fn with_cluster(behaviour: impl FnOnce(&Program, &Cluster) -> Result<()>) {
    if let Some(reason) = Cluster::missing() {
        return skipped(&reason);
    }
    with(&ringloom(), |program| {
        let cluster: Arc<Cluster> = Cluster::shared()?;
        behaviour(program, &cluster)
    });
}

/// A node for that image, with more keys.
fn node(cluster: &Cluster, image: &str, more: &str) -> [String; 2] {
    let conf = cluster.conf();
    let keys = format!("pool=rbd,image={image},conf={},discard=unmap", conf.display());
    ["--blockdev".to_owned(), format!("rbd,node-name=n,{keys}{more}")]
}

/// A line that offers the node `n` to NBD clients as `x`.
fn line(bench: &Bench, node: &[String], more: &str) -> Vec<String> {
    let mut line = server(bench, &[]);
    line.extend_from_slice(node);
    line.extend(["--export".to_owned(), format!("nbd,id=e,node-name=n,name=x{more}")]);
    line
}

/// Starts a daemon that offers an image for writing.
fn serve(program: &Program, cluster: &Cluster, bench: &Bench, image: &str) -> Result<Server> {
    start(program, bench, &line(bench, &node(cluster, image, ""), ",writable=on"))
}

/// Has QEMU do this with the export; what it says.
fn qemu_io(bench: &Bench, commands: &[&str]) -> Result<String> {
    let uri = uri(bench, "x");
    let mut words = vec!["-f", "raw"];
    commands.iter().for_each(|command| words.extend(["-c", command]));
    words.push(&uri);
    tool("qemu-io", &words)
}
