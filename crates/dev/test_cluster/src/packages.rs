//! Debian's packages that the nodes are made of: downloaded and unpacked below `target/cluster`, never installed.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::place::Place;
use crate::run::{make_dir, must_succeed, output_of, remove};

const PACKAGES: &[&str] =
    &["containerd", "runc", "libseccomp2", "containernetworking-plugins", "etcd-server"];

/// What has to be there when they are, from all of them.
const PROOF: &[&str] = &[
    "usr/bin/containerd",
    "usr/bin/ctr",
    "usr/bin/etcd",
    "usr/lib/cni/bridge",
    "usr/lib/x86_64-linux-gnu/libseccomp.so.2",
    "usr/sbin/runc",
];

/// Where they are unpacked; downloads them if they are not there.
pub(crate) fn fetch(place: &Place) -> Result<PathBuf> {
    let root = place.packages();
    if PROOF.iter().all(|name| root.join(name).exists()) {
        return Ok(root);
    }
    println!("== packages: {}", PACKAGES.join(" "));
    let work = root.with_extension("new");
    remove(&work)?;
    make_dir(&work)?;
    // Apt would drop to a user of its own, who may not write into this directory.
    let mut download = Command::new("apt-get");
    download.args(["--quiet", "-o", "APT::Sandbox::User=root", "download"]).args(PACKAGES);
    must_succeed(download.current_dir(&work))?;
    let entries = std::fs::read_dir(&work).with_context(|| format!("list {}", work.display()))?;
    for entry in entries {
        let archive = entry.with_context(|| format!("list {}", work.display()))?.path();
        if archive.extension().is_some_and(|it| it == "deb") {
            output_of(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&work))?;
            remove(&archive)?;
        }
    }
    for name in PROOF {
        ensure!(work.join(name).exists(), "the packages {PACKAGES:?} have no file {name}");
    }
    remove(&root)?;
    std::fs::rename(&work, &root).with_context(|| format!("rename {}", work.display()))?;
    Ok(root)
}
