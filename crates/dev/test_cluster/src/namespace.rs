//! Prepares the namespaces in which everything runs: mounts and network of their own.
//!
//! Invariants: runs inside (the process namespace's first process started us). What is mounted here vanishes with it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::host::{SYSCTLS, control_group, controllers};
use crate::node::{BRIDGE, NODES, address};
use crate::place::Place;
use crate::run::{make_dir, output_of, read, write};

/// What programs of the nodes write to at paths that cannot be chosen.
const OWN_DIRECTORIES: &[&str] = &["/run", "/var/log", "/var/lib/cni", "/var/lib/kubelet"];

/// Does all of it.
pub(crate) fn prepare(place: &Place) -> Result<()> {
    // Pods' mounts have to reach the pods, and nothing may reach this machine.
    words("mount --make-rprivate /")?;
    // A file system in a process ends when nobody has it mounted: not this copy, for as long as the cluster runs.
    words("umount --all --lazy --types fuse")?;
    words("mount --make-rshared /")?;
    network()?;
    for directory in OWN_DIRECTORIES {
        make_dir(Path::new(directory))?;
        words(&format!("mount -t tmpfs tmpfs {directory}"))?;
    }
    make_dir(Path::new("/run/lock"))?;
    make_dir(Path::new("/run/netns"))?;
    for name in SYSCTLS {
        cover(place, name)?;
    }
    NODES.into_iter().try_for_each(|node| make_groups(place, node))
}

fn network() -> Result<()> {
    words("ip link set lo up")?;
    words(&format!("ip link add {BRIDGE} type bridge"))?;
    for node in NODES {
        words(&format!("ip address add {}/24 dev {BRIDGE}", address(node)))?;
    }
    words(&format!("ip link set {BRIDGE} up"))?;
    // It leads nowhere; the kubelet and the API server look for one.
    words(&format!("ip route add default via 10.88.0.1 dev {BRIDGE}"))
}

/// Lays a copy over a setting of the whole machine.
fn cover(place: &Place, name: &str) -> Result<()> {
    let real = Path::new("/proc/sys").join(name);
    let copy = place.run("sys").join(name);
    make_dir(copy.parent().context("it has a directory")?)?;
    write(&copy, read(&real)?)?;
    output_of(Command::new("mount").arg("--bind").arg(&copy).arg(&real)).map(drop)
}

/// The control groups of a node, below which its kubelet makes those of pods.
fn make_groups(place: &Place, node: usize) -> Result<()> {
    for controller in controllers()? {
        let group = controller.join(control_group(place, node)?);
        make_dir(&group)?;
        if controller.ends_with("cpuset") {
            for name in ["cpuset.cpus", "cpuset.mems"] {
                write(&group.join(name), read(&controller.join(name))?)?;
            }
        }
    }
    Ok(())
}

fn words(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let program = words.next().context("a command has a name")?;
    output_of(Command::new(program).args(words)).map(drop)
}
