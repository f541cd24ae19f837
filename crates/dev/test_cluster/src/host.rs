//! What the cluster takes of this machine outside its namespaces: loop devices and control groups; and the look whether
//! all is as it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::clock::{Attempt, wait_for};
use crate::node::{BRIDGE, NODES};
use crate::place::Place;
use crate::run::{make_dir, output_of, read, write};
use crate::volumes::Volume;

/// The kubelet sets these for the whole machine; it gets files of its own instead.
pub(crate) const SYSCTLS: &[&str] = &[
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";
const VOLUME_BYTES: u64 = 2 << 30;
/// How long the kernel may take to end what was killed.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Makes the devices of all volumes; hands back which is whose.
pub(crate) fn make_devices(place: &Place) -> Result<Vec<(Volume, String)>> {
    make_dir(&place.run("volumes"))?;
    let device = |volume: Volume| {
        let path = place.run("volumes").join(volume.name());
        let file = fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
        file.set_len(VOLUME_BYTES).with_context(|| format!("enlarge {}", path.display()))?;
        let mut command = Command::new("losetup");
        let device = output_of(command.args(["--find", "--show"]).arg(&path))?;
        Ok((volume, device.trim().to_owned()))
    };
    Volume::all().into_iter().map(device).collect()
}

/// The devices that `make_devices` made.
pub(crate) fn devices(place: &Place) -> Result<Vec<(Volume, String)>> {
    let list = loops()?;
    let of = |volume: Volume| {
        let path = place.run("volumes").join(volume.name());
        let found = list.iter().find(|it| Path::new(&it.backing) == path);
        let found = found.with_context(|| format!("no loop device on {}", path.display()))?;
        Ok((volume, found.device.clone()))
    };
    Volume::all().into_iter().map(of).collect()
}

/// Notes what `is_as_it_was` compares with, and a name for control groups that nobody else has.
pub(crate) fn note(place: &Place) -> Result<()> {
    write(&place.run("group"), format!("ringloom-{}", std::process::id()))?;
    write(&place.run("sysctls"), sysctls()?)
}

fn sysctls() -> Result<String> {
    let line = |name: &&str| {
        let value = read(&Path::new("/proc/sys").join(name))?;
        Ok(format!("{name} {}\n", value.trim()))
    };
    SYSCTLS.iter().map(line).collect()
}

/// The name of the control group of a node.
pub(crate) fn control_group(place: &Place, node: usize) -> Result<String> {
    Ok(format!("{}-node{node}", read(&place.run("group"))?.trim()))
}

/// The directories of the controllers (version 1).
pub(crate) fn controllers() -> Result<Vec<PathBuf>> {
    let root = Path::new(CONTROL_GROUPS);
    let is_first = root.join("cpuset").is_dir() && root.join("memory").is_dir();
    ensure!(is_first, "{CONTROL_GROUPS}: only control groups of version 1 are known here");
    let list = fs::read_dir(root).with_context(|| format!("list {CONTROL_GROUPS}"))?;
    let mut all: Vec<PathBuf> = list.filter_map(Result::ok).map(|entry| entry.path()).collect();
    // `cpu` and `cpuacct` may be links to one directory.
    all.retain(|path| path.is_dir() && !path.is_symlink());
    all.sort();
    Ok(all)
}

/// Takes back what was made here, once the processes are gone.
pub(crate) fn clean(place: &Place) -> Result<()> {
    if place.run("group").exists() {
        for node in NODES {
            let name = control_group(place, node)?;
            for controller in controllers()? {
                let group = controller.join(&name);
                wait_for("the processes of a node to end", END_LIMIT, || {
                    Ok(Attempt::of(remove_group(&group)))
                })?;
            }
        }
    }
    wait_for("loop devices to be free", END_LIMIT, || {
        for it in own_loops(place)? {
            if let Err(error) = output_of(Command::new("losetup").args(["--detach", &it.device])) {
                return Ok(Attempt::Later(error));
            }
        }
        let left = own_loops(place)?;
        let names = || left.iter().map(|it| it.device.clone()).collect::<Vec<_>>().join(" ");
        Ok(if left.is_empty() { Attempt::Done(()) } else { Attempt::Later(anyhow!(names())) })
    })
}

fn remove_group(group: &Path) -> Result<()> {
    let Ok(list) = fs::read_dir(group) else { return Ok(()) };
    for entry in list.filter_map(Result::ok).filter(|it| it.path().is_dir()) {
        remove_group(&entry.path())?;
    }
    fs::remove_dir(group).with_context(|| format!("remove {}", group.display()))
}

/// A loop device.
#[derive(Debug)]
struct Loop {
    device: String,
    backing: String,
    /// File system (as major:minor) and inode of what it is on. The path of what was set up in a mount namespace that is gone is `/`.
    file: (String, u64),
}

fn loops() -> Result<Vec<Loop>> {
    let arguments = ["--list", "--json", "--output", "NAME,BACK-FILE,BACK-INO,BACK-MAJ:MIN"];
    let text = output_of(Command::new("losetup").args(arguments))?;
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let list: Value = serde_json::from_str(&text).context("what losetup lists")?;
    let list = list["loopdevices"].as_array().context("losetup lists loop devices")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(list
        .iter()
        .map(|it| Loop {
            device: text(&it["name"]),
            backing: text(&it["back-file"]),
            file: (
                text(&it["back-maj:min"]).trim().to_owned(),
                it["back-ino"].as_u64().unwrap_or_default(),
            ),
        })
        .collect())
}

/// Ours, and those that a kubelet put on ours; the latter first.
fn own_loops(place: &Place) -> Result<Vec<Loop>> {
    let all = loops()?;
    let root = place.run("");
    let is_below = |it: &Loop| Path::new(&it.backing).starts_with(&root);
    let own: Vec<(String, u64)> = all
        .iter()
        .filter(|it| is_below(it))
        .map(|it| identity(&it.device))
        .collect::<Result<_>>()?;
    let (first, second): (Vec<Loop>, Vec<Loop>) = all
        .into_iter()
        .filter(|it| is_below(it) || own.contains(&it.file))
        .partition(|it| own.contains(&it.file));
    Ok(first.into_iter().chain(second).collect())
}

/// What tells a file from all others: its file system and inode, as `losetup` has them.
fn identity(path: &str) -> Result<(String, u64)> {
    let text = output_of(Command::new("stat").args(["--format", "%Hd:%Ld %i", path]))?;
    let (system, inode) = text.trim().split_once(' ').context("what stat prints")?;
    Ok((system.to_owned(), inode.parse().context("an inode")?))
}

/// An error that names what is not as it was before `up`.
pub(crate) fn is_as_it_was(place: &Place) -> Result<()> {
    let mut left: Vec<String> = Vec::new();
    left.extend(own_loops(place)?.into_iter().map(|it| format!("loop device {}", it.device)));
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    let root = place.run("");
    let root = root.to_str().context("the path of the checkout is text")?;
    left.extend(mounts.lines().filter(|it| it.contains(root)).map(|it| format!("mount {it}")));
    for controller in controllers()? {
        for node in NODES {
            let group = controller.join(control_group(place, node)?);
            if group.exists() {
                left.push(format!("control group {}", group.display()));
            }
        }
    }
    if Path::new("/sys/class/net").join(BRIDGE).exists() {
        left.push(format!("network interface {BRIDGE}"));
    }
    let (before, after) = (read(&place.run("sysctls"))?, sysctls()?);
    let changed = before.lines().zip(after.lines()).filter(|(before, after)| before != after);
    left.extend(changed.map(|(before, after)| format!("sysctl {before}, now {after}")));
    if left.is_empty() {
        return Ok(());
    }
    bail!("not as before: {}", left.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_removed_from_the_bottom_and_a_missing_one_is_fine() {
        let root = tempfile::tempdir().expect("a directory");
        let group = root.path().join("group");
        make_dir(&group.join("a/b")).expect("directories");
        remove_group(&group).expect("they are empty");
        assert!(!group.exists());
        remove_group(&group).expect("nothing is there");
    }
}
