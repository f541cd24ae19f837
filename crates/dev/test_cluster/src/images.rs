//! The images in every node: those that `ringloom tune` is handed out with, of their recipes, and `launcher`, which runs guests.
//!
//! Not here: recipes and how they are built (`contrib`, the crate `container_images`).

use std::path::{Path, PathBuf};

use anyhow::Result;
use container_images::{AGENT_NAME, GUEST_NAME, Store, agent, guest, static_program};

use crate::clock::now;
use crate::contents::Contents;
use crate::place::Place;
use crate::programs::CONTAINER_DISK;

/// The agent's: a static ringloom and fio on Debian. It keeps the namespaces of pods, too.
pub(crate) const AGENT: &str = "ringloom.test/agent:1";
/// The stand-in of KubeVirt's virt-launcher, with QEMU.
pub(crate) const LAUNCHER: &str = "ringloom.test/launcher:1";
/// A kernel and an initramfs whose agent listens.
pub(crate) const GUEST: &str = "ringloom.test/guest:1";

/// How the launcher's archive is called.
const LAUNCHER_NAME: &str = "launcher";

/// All of them.
pub(crate) const NAMES: &[&str] = &[AGENT, GUEST, LAUNCHER];

/// What QEMU reads to start a machine without graphics and without booting from its network card.
const FIRMWARE: &[&str] = &[
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/pvh.bin",
    "/usr/share/seabios/bios-256k.bin",
];
/// When all files of the images were changed last, in seconds since 1970.
const EPOCH: u64 = 0;

/// The archives of all images.
pub(crate) fn archives(place: &Place) -> Vec<PathBuf> {
    let names = [AGENT_NAME, GUEST_NAME, LAUNCHER_NAME];
    names.iter().map(|name| place.images().join(name).with_extension("tar")).collect()
}

/// Makes all images.
pub(crate) fn make(place: &Place) -> Result<()> {
    let program = static_program(&place.workspace, &place.workspace.join("target"), "dev")?;
    let store = Store::new(&place.images(), EPOCH)?;
    store.make_base()?;
    for (recipe, name) in
        [(agent(&place.workspace, &program), AGENT), (guest(&place.workspace, &program), GUEST)]
    {
        let start = now();
        let digest = store.build(&recipe, name)?.digest()?;
        println!("   image {name} {digest} in {:.1} s", now().duration_since(start).as_secs_f64());
    }
    store.finish()?;
    launcher(place)
}

fn launcher(place: &Place) -> Result<()> {
    let contents = Contents::new(place, LAUNCHER_NAME)?;
    contents.busybox()?;
    // virt-controller has the container of a kernel begin with this one.
    contents.link("/bin/busybox", "usr/bin/cp")?;
    contents.program("qemu-system-x86_64")?;
    for file in FIRMWARE {
        contents.copy(Path::new(file), file.trim_start_matches('/'))?;
    }
    let program = CONTAINER_DISK.directory(place)?.join("container-disk");
    contents.copy(&program, "usr/bin/container-disk")?;
    let script = include_str!("../programs/launcher/virt-launcher-monitor.sh");
    contents.script("usr/bin/virt-launcher-monitor", script)?;
    contents.finish(LAUNCHER, &["/usr/bin/virt-launcher-monitor"])
}
