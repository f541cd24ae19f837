//! libvirt's schema takes the domains, and its own conversion makes of them what `qemu.args` says.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::process::Bench;
use testkit::report::skipped;
use tuner::emit::{Backend, CacheMode, Wanted};

use super::{arguments, objects, run, said, split, wanted, written};

/// The program that both need, and libvirt's driver for QEMU.
pub(crate) fn missing() -> Option<String> {
    let version = Command::new("virsh").arg("--version").output();
    let version = version.map(|output| said(&output)).unwrap_or_default();
    let major: u32 = version.split('.').next().and_then(|it| it.parse().ok()).unwrap_or(0);
    let driver = "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so";
    if major < 11 {
        return Some(format!("libvirt 11 is not installed, virsh --version says {version:?}"));
    }
    (!Path::new(driver).is_file()).then(|| format!("{driver} is missing"))
}

fn with_libvirt(behaviour: impl FnOnce(&Bench) -> Result<()>) {
    if let Some(reason) = missing() {
        skipped(&reason);
    } else if let Err(error) = Bench::new().and_then(|bench| behaviour(&bench)) {
        panic!("{error:#}");
    }
}

/// Whether the schema takes it, and what it says.
pub(super) fn validated(domain: &Path) -> Result<(bool, String)> {
    let output = run(Command::new("virt-xml-validate").arg(domain).arg("domain"))?;
    Ok((output.status.success(), said(&output)))
}

/// Whether libvirt takes it, and QEMU's arguments or the complaint. The driver runs inside virsh, without a service.
pub(super) fn converted(bench: &Bench, domain: &Path) -> Result<(bool, String)> {
    let root = bench.path("root");
    let etc = root.join("etc");
    std::fs::create_dir_all(&etc)?;
    // libvirt asks QEMU a dozen times what it can do if the user of its guests may not open /dev/kvm.
    std::fs::write(etc.join("qemu.conf"), "user = \"root\"\ngroup = \"root\"\n")?;
    let mut command = Command::new("virsh");
    command.arg("--connect").arg(format!("qemu:///embed?root={}", root.display()));
    command.args(["domxml-to-native", "qemu-argv", "--xml"]).arg(domain);
    let output = run(&mut command)?;
    Ok((output.status.success(), said(&output)))
}

/// The words of QEMU's arguments as libvirt writes them.
fn converted_words(bench: &Bench, domain: &Path) -> Result<Vec<String>> {
    let (taken, said) = converted(bench, domain)?;
    ensure!(taken, "{said}: {}", std::fs::read_to_string(domain)?);
    let path = bench.path("native");
    std::fs::write(&path, said)?;
    split("cat \"$1\"", &path.display().to_string())
}

/// Of the devices that have a driver with this name, one.
fn device<'a>(devices: &'a [Value], driver: &str) -> Result<&'a Value> {
    let found = devices.iter().find(|device| device["driver"] == driver);
    found.with_context(|| format!("no {driver} in {devices:?}"))
}

/// One alone or a list of them; libvirt begins to count at 1.
fn threads(device: &Value) -> Vec<u32> {
    let list = device["iothread-vq-mapping"].as_array();
    let entries = list.into_iter().flatten().chain([device]);
    let names = entries.filter_map(|entry| entry["iothread"].as_str());
    names.filter_map(|name| name.strip_prefix("iothread")?.parse().ok()).collect()
}

fn check(bench: &Bench, wanted: &Wanted, driver: &str, keys: &[&str]) -> Result<()> {
    let path = written(bench, wanted, "libvirt.xml")?;
    let (taken, said) = validated(&path)?;
    ensure!(taken, "virt-xml-validate: {said}: {}", std::fs::read_to_string(&path)?);
    let words = converted_words(bench, &path)?;
    let (native, own) =
        (objects(&words, "-device"), objects(&arguments(bench, wanted)?, "-device"));
    let (native, own) = (device(&native, driver)?, device(&own, driver)?);
    for key in keys {
        ensure!(!own[key].is_null() && native[key] == own[key], "{key}: {native} and {own}");
    }
    let expected: Vec<u32> = threads(own).iter().map(|number| number + 1).collect();
    ensure!(threads(native) == expected, "{native} and {own}");
    let is_list = |device: &Value| device["iothread-vq-mapping"].is_array();
    ensure!(is_list(native) == is_list(own), "{native} and {own}");
    if wanted.by == Backend::QemuIothreads {
        check_node(wanted, &words)?;
    }
    Ok(())
}

/// The file is opened in the same way.
fn check_node(wanted: &Wanted, words: &[String]) -> Result<()> {
    let nodes = objects(words, "-blockdev");
    let disk = wanted.disk.to_string_lossy();
    let node = nodes.iter().find(|node| node["filename"] == *disk);
    let node = node.with_context(|| format!("nobody opens {disk}: {nodes:?}"))?;
    let aio = wanted.aio.to_string();
    ensure!(aio == "auto" || node["aio"] == *aio, "{node}");
    let direct = node["cache"]["direct"] == true;
    ensure!(direct == (wanted.cache == CacheMode::Direct), "{node}");
    Ok(())
}

#[test]
fn libvirt_makes_of_the_domains_what_qemu_args_says() {
    with_libvirt(|bench| {
        let (own, vhost_user) = (Backend::QemuIothreads, Backend::Ringloom);
        let blk = ["num-queues", "queue-size"];
        let scsi = ["num_queues"];
        let pinned = |wanted| Wanted {
            pin_vcpus: "0-1".parse().ok(),
            pin_iothreads: "1".parse().ok(),
            numa_node: Some(0),
            ..wanted
        };
        let image = "qcow2:cache=8M".parse().context("an image")?;
        let device = "virtio-scsi".parse().context("a device")?;
        let aio = "io_uring".parse().context("an engine")?;
        for iothreads in ["none", "1", "4"] {
            check(bench, &wanted(bench, own, iothreads)?, "virtio-blk-pci", &blk)?;
            let with_scsi = Wanted { device, ..wanted(bench, own, iothreads)? };
            check(bench, &with_scsi, "virtio-scsi-pci", &scsi)?;
        }
        let qcow2 = Wanted { image, aio, ..pinned(wanted(bench, own, "6")?) };
        check(bench, &qcow2, "virtio-blk-pci", &blk)?;
        let sata = "ide".parse().context("a device")?;
        check(bench, &Wanted { device: sata, ..wanted(bench, own, "none")? }, "ide-hd", &[])?;
        let served = pinned(wanted(bench, vhost_user, "2")?);
        check(bench, &served, "vhost-user-blk-pci", &blk)?;
        let buffered = Wanted { cache: CacheMode::Buffered, ..wanted(bench, own, "2")? };
        check(bench, &buffered, "virtio-blk-pci", &blk)?;
        let odd = Wanted { disk: bench.path("a, b's \"<&>.img"), ..wanted(bench, own, "2")? };
        check(bench, &odd, "virtio-blk-pci", &blk)
    });
}

/// Both checks find mistakes, and the conversion those that the schema misses.
#[test]
fn libvirt_finds_what_is_wrong_with_a_domain() {
    with_libvirt(|bench| {
        let wanted = wanted(bench, Backend::QemuIothreads, "2")?;
        let path = written(bench, &wanted, "libvirt.xml")?;
        let right = std::fs::read_to_string(&path)?;
        for (from, to, valid, complaint) in [
            ("<driver name", "<driver iothread='1' name", true, "can't be used together"),
            ("<iothread id='2'/>", "<iothread id='3'/>", true, "iothread"),
            ("<iothreads>2<", "<iothreads count='2'>2<", false, ""),
            ("queues='4'", "queues='four'", false, ""),
        ] {
            ensure!(right.contains(from), "{from} is not in {right}");
            std::fs::write(&path, right.replacen(from, to, 1))?;
            let (taken, said) = validated(&path)?;
            ensure!(taken == valid, "virt-xml-validate with {to}: {said}");
            if valid {
                let (taken, said) = converted(bench, &path)?;
                ensure!(!taken && said.contains(complaint), "with {to}: {said}");
            }
        }
        Ok(())
    });
}
