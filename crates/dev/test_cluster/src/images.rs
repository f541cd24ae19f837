//! What the images hold: `pause` keeps a pod's namespaces, `agent` measures in pods, `launcher` runs guests made of `guest`.
//!
//! Programs of this machine come with their libraries, at the same paths.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use guest::{Archive, Kernel, KernelSource, base};

use crate::contents::Contents;
use crate::place::Place;
use crate::programs::CONTAINER_DISK;
use crate::run::{cargo, make_dir, must_succeed, read_bytes};

/// What keeps a pod's namespaces.
pub(crate) const PAUSE: &str = "ringloom.test/pause:1";
/// ringloom, fio and busybox.
pub(crate) const AGENT: &str = "ringloom.test/agent:1";
/// The stand-in of KubeVirt's virt-launcher, with QEMU.
pub(crate) const LAUNCHER: &str = "ringloom.test/launcher:1";
/// A kernel and an initramfs whose agent listens.
pub(crate) const GUEST: &str = "ringloom.test/guest:1";

/// All of them.
pub(crate) const NAMES: &[&str] = &[PAUSE, AGENT, LAUNCHER, GUEST];

/// What QEMU reads to start a machine without graphics and without booting from its network card.
const FIRMWARE: &[&str] = &[
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/pvh.bin",
    "/usr/share/seabios/bios-256k.bin",
];
/// The drivers of a guest.
const MODULES: &[&str] = &["virtio_pci", "virtio_net", "virtio_blk"];

/// How the static program is compiled: the agent's image has no loader and no libraries for it.
const STATIC: &str = "-C target-feature=+crt-static -C strip=symbols";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The archives of all images.
pub(crate) fn archives(place: &Place) -> Vec<PathBuf> {
    let file = |name: &&str| {
        let (_, rest) = name.split_once('/').expect("images have a registry's name");
        let (name, _) = rest.split_once(':').expect("images have a tag");
        place.images().join(name).with_extension("tar")
    };
    NAMES.iter().map(file).collect()
}

/// Makes all images.
pub(crate) fn make(place: &Place) -> Result<()> {
    make_dir(&place.images())?;
    let ringloom = static_ringloom(place)?;
    let pause = Contents::new(place, "pause")?;
    pause.busybox()?;
    pause.finish(PAUSE, &["/bin/busybox", "sleep", "2147483647"])?;
    let agent = Contents::new(place, "agent")?;
    agent.busybox()?;
    agent.program("fio")?;
    agent.copy(&ringloom, "bin/ringloom")?;
    agent.finish(AGENT, &["/bin/sh"])?;
    launcher(place)?;
    guest(place, &ringloom)
}

fn launcher(place: &Place) -> Result<()> {
    let contents = Contents::new(place, "launcher")?;
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

/// The same files as those of contrib/Containerfile.guest, but for the kernel, which is not compressed: an emulated
/// processor would take seconds to unpack it.
fn guest(place: &Place, ringloom: &Path) -> Result<()> {
    let cache = place.workspace.join("target/guest");
    let kernel = Kernel::open(&KernelSource::Path(cache.join("kernel")))
        .context("the kernel of guests: cargo xtask install unpacks it")?;
    let files = guest::Contents {
        programs: &["fio"],
        modules: MODULES,
        modules_if_any: &[],
        modules_at_hand: &[],
        files: &[("init", include_str!("../../../../contrib/guest/init.sh"))],
    };
    let mut initramfs = read_bytes(&base(&kernel, &files, &cache)?)?;
    // The kernel unpacks one archive after the other.
    let mut own = Archive::default();
    own.file("bin/ringloom", 0o755, &read_bytes(ringloom)?);
    initramfs.extend(own.finish());
    let contents = Contents::new(place, "guest")?;
    contents.copy(&kernel.uncompressed(&cache)?, "boot/vmlinuz")?;
    contents.write("boot/initrd", &initramfs)?;
    contents.finish(GUEST, &[])
}

/// The program `ringloom` that needs no library. Cargo knows what has to be built anew.
fn static_ringloom(place: &Place) -> Result<PathBuf> {
    let mut command = cargo(place);
    command.args(["build", "--quiet", "--package", "ringloom", "--target", TARGET]);
    command.arg("--target-dir").arg(place.static_target()).env("RUSTFLAGS", STATIC);
    must_succeed(&mut command)?;
    Ok(place.static_target().join(TARGET).join("debug/ringloom"))
}
