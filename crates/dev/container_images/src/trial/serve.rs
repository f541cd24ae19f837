//! The image of the daemon: the program is linked with libraries that are there, and opens librbd.

use anyhow::{Result, ensure};

use super::container::Unpacked;
use crate::archive::Archive;
use crate::store::Store;

/// A disk of a cluster that is not there, and what is said once librbd has looked for it.
const RBD: &[&str] = &[
    "ringloom",
    "serve",
    "--blockdev",
    "driver=rbd,node-name=disk,pool=p,image=i",
    "--export",
    "type=vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path=/tmp/socket",
];
const NO_MONITOR: &str = "of the Ceph cluster cannot be connected to";
/// Packages whose libraries the program needs, linked and opened.
const LIBRARIES: &[&str] = &["libc6", "libgcc-s1", "librbd1"];

/// What the image of the daemon does. Returns what it contains: packages of the system, and files of ringloom.
pub fn try_serve(store: &Store, archive: &Archive) -> Result<String> {
    let image = Unpacked::new(store, archive)?;
    let (output, version) = image.said(&["ringloom", "--version"])?;
    ensure!(output.status.success() && version.starts_with("ringloom "), "{version}");
    let (_, linked) = image.said(&["ldd", "/usr/bin/ringloom"])?;
    ensure!(linked.contains("libc.so.6 => /") && !linked.contains("not found"), "{linked}");
    let (output, said) = image.said(RBD)?;
    ensure!(!output.status.success() && said.contains(NO_MONITOR), "driver=rbd: {said}");
    let (_, packages) = image.said(&["dpkg-query", "-W", "-f", "${Package} ${Version}\\n"])?;
    for name in LIBRARIES {
        let is_there = packages.lines().any(|line| line.split(' ').next() == Some(name));
        ensure!(is_there, "the image has no package {name}:\n{packages}");
    }
    let places = ["/usr/bin/ringloom", "/usr/share/doc/ringloom"];
    let (_, files) = image.said(&[&["find"], &places[..], &["-type", "f"]].concat())?;
    Ok(format!("{version}\npackages of the system:\n{packages}\nof ringloom:\n{files}"))
}
