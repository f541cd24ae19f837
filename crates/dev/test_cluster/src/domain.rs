//! What QEMU is told for a virtual machine instance: the part of virt-launcher's and libvirt's work that the stand-in does.
//!
//! Invariants: pure. What an instance asks for and nothing here knows is an error, not left out; but only of what
//! changes how a disk is served: policies of iothreads, buses, kinds of volumes.
//! Not here: KVM (guests are emulated), CPU models, hotplug, migration, cloud-init, consoles.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// The port of the agent in the guest, which is the pod's too.
const AGENT_PORT: u16 = 7777;
/// Where `container-disk` puts the files of the guest's image, below the launcher's directory.
const BOOT: &str = "kernel-boot";

/// Where a launcher's pod has the file systems of claims.
const IMAGES: &str = "/var/run/kubevirt-private/vmi-disks";

/// QEMU's arguments, none of which has a line break.
pub(crate) fn qemu_arguments(instance: &Value) -> Result<Vec<String>> {
    let domain = &instance["spec"]["domain"];
    let cpus = cpus(domain);
    let mut words: Vec<String> =
        ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]
            .map(str::to_owned)
            .to_vec();
    let mut option = |name: &str, value: String| words.extend([format!("-{name}"), value]);
    let machine = domain["machine"]["type"].as_str().unwrap_or("q35");
    option("machine", machine.to_owned());
    option("accel", "tcg,thread=multi".to_owned());
    option("cpu", "max".to_owned());
    option("smp", cpus.to_string());
    let memory = domain["memory"]["guest"].as_str().context("a machine has memory.guest")?;
    option("m", format!("size={}k", bytes(memory)?.div_ceil(1024)));
    option("serial", "stdio".to_owned());
    let boot = &domain["firmware"]["kernelBoot"];
    option("kernel", boot_file(&boot["container"]["kernelPath"])?);
    option("initrd", boot_file(&boot["container"]["initrdPath"])?);
    option("append", boot["kernelArgs"].as_str().unwrap_or_default().to_owned());
    option("netdev", format!("user,id=net,hostfwd=tcp::{AGENT_PORT}-:{AGENT_PORT}"));
    option("device", "virtio-net-pci,netdev=net,romfile=".to_owned());
    let iothreads = iothreads(domain)?;
    for name in &iothreads {
        option("object", format!("iothread,id={name}"));
    }
    let is_multi_queue = domain["devices"]["blockMultiQueue"] == true;
    for (disk, source) in sources(instance)? {
        let name = disk["name"].as_str().context("a disk has a name")?;
        option("blockdev", block_node(disk, &source).to_string());
        let mut device =
            json!({"driver": "virtio-blk-pci", "id": name, "drive": format!("node-{name}")});
        if is_multi_queue {
            device["num-queues"] = json!(cpus);
        }
        if !iothreads.is_empty() {
            let each = |it: &String| json!({"iothread": it});
            device["iothread-vq-mapping"] = iothreads.iter().map(each).collect();
        }
        option("device", device.to_string());
    }
    let is_line = |word: &String| !word.contains('\n');
    ensure!(words.iter().all(is_line), "the kernel's arguments have a line break");
    Ok(words)
}

fn cpus(domain: &Value) -> u64 {
    let of = |name: &str| domain["cpu"][name].as_u64().filter(|&it| it > 0).unwrap_or(1);
    of("sockets") * of("cores") * of("threads")
}

fn boot_file(path: &Value) -> Result<String> {
    let path = path.as_str().context("a machine has a kernelBoot container with both paths")?;
    let name = path.rsplit('/').next().unwrap_or(path);
    Ok(format!("{BOOT}/{name}"))
}

/// The names of the iothreads, on which each disk's queues are laid in turn.
fn iothreads(domain: &Value) -> Result<Vec<String>> {
    let count = match domain["ioThreadsPolicy"].as_str() {
        None => 0,
        Some("supplementalPool") => domain["ioThreads"]["supplementalPoolThreadCount"]
            .as_u64()
            .context("supplementalPool has supplementalPoolThreadCount")?,
        Some(other) => bail!("ioThreadsPolicy {other} is not known to this stand-in"),
    };
    Ok((1..=count).map(|number| format!("iothread{number}")).collect())
}

/// What a claim is in the launcher's pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A block device under the volume's name.
    Device(String),
    /// A file in the claim's file system, which is made with holes if it is not there: of so many bytes, or of as many as are free.
    Image { path: String, bytes: u64 },
}

/// The sources of an instance's disks, in their order, each with its disk.
pub(crate) fn sources(instance: &Value) -> Result<Vec<(&Value, Source)>> {
    let disks = instance["spec"]["domain"]["devices"]["disks"].as_array().into_iter().flatten();
    disks.map(|disk| Ok((disk, source(instance, disk)?))).collect()
}

fn source(instance: &Value, disk: &Value) -> Result<Source> {
    let name = disk["name"].as_str().context("a disk has a name")?;
    let bus = &disk["disk"]["bus"];
    ensure!(bus == "virtio", "disk {name} on bus {bus}: only virtio is known to this stand-in");
    let volumes = instance["spec"]["volumes"].as_array().into_iter().flatten();
    let volume = volumes.into_iter().find(|it| it["name"] == name);
    let volume = volume.with_context(|| format!("disk {name} has no volume"))?;
    let is_claim = volume["persistentVolumeClaim"].is_object();
    ensure!(is_claim, "disk {name}: only claims are known to this stand-in");
    let states = instance["status"]["volumeStatus"].as_array().into_iter().flatten();
    let info = states.into_iter().find(|it| it["name"] == name);
    let info = info
        .map(|it| &it["persistentVolumeClaimInfo"])
        .filter(|it| it["volumeMode"] == "Filesystem");
    let Some(info) = info else { return Ok(Source::Device(format!("/dev/{name}"))) };
    let size = info["capacity"]["storage"].as_str();
    let size = size.with_context(|| format!("disk {name}: its claim has no capacity"))?;
    Ok(Source::Image { path: format!("{IMAGES}/{name}/disk.img"), bytes: bytes(size)? })
}

/// A disk as QEMU opens it. As KubeVirt does, images that are whole are opened as devices are, and the tuner's are.
fn block_node(disk: &Value, source: &Source) -> Value {
    let (driver, path) = match source {
        Source::Device(path) => ("host_device", path),
        Source::Image { path, .. } => ("file", path),
    };
    let is_direct = disk["cache"] == "none";
    let aio = if is_direct { "native" } else { "threads" };
    json!({
        "driver": driver, "node-name": format!("node-{}", disk["name"].as_str().unwrap_or_default()),
        "filename": path, "aio": aio, "cache": {"direct": is_direct},
    })
}

/// A whole number of bytes as Kubernetes writes it.
fn bytes(quantity: &str) -> Result<u64> {
    let split = quantity.find(|it: char| !it.is_ascii_digit()).unwrap_or(quantity.len());
    let (number, unit) = quantity.split_at(split);
    let factor = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        other => bail!("{quantity}: the unit {other} is not known here"),
    };
    let number: u64 = number.parse().with_context(|| format!("the number in {quantity}"))?;
    number.checked_mul(factor).with_context(|| format!("{quantity} is too much"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance() -> Value {
        json!({
            "spec": {
                "domain": {
                    "cpu": {"cores": 2, "sockets": 1, "threads": 1},
                    "memory": {"guest": "1Gi"},
                    "machine": {"type": "q35"},
                    "ioThreadsPolicy": "supplementalPool",
                    "ioThreads": {"supplementalPoolThreadCount": 2},
                    "firmware": {"kernelBoot": {
                        "kernelArgs": "console=ttyS0 ringloom.token=abc",
                        "container": {"kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd"},
                    }},
                    "devices": {
                        "blockMultiQueue": true,
                        "disks": [{"name": "disk", "cache": "none", "disk": {"bus": "virtio"}}],
                    },
                },
                "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "c"}}],
            },
        })
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut Value), expected: &str) {
        let mut instance = instance();
        change(&mut instance);
        let error = qemu_arguments(&instance).expect_err("it is refused");
        assert!(format!("{error:#}").contains(expected), "{error:#}");
    }

    #[test]
    fn a_machine_as_the_tuner_makes_it_gets_its_disk_on_its_iothreads() {
        let words = qemu_arguments(&instance()).expect("it is known").join(" ");
        for part in [
            "-smp 2 -m size=1048576k",
            "-kernel kernel-boot/vmlinuz -initrd kernel-boot/initrd -append console=ttyS0 ringloom.token=abc",
            "-object iothread,id=iothread1 -object iothread,id=iothread2",
            r#""filename":"/dev/disk""#,
            r#""cache":{"direct":true}"#,
            r#""iothread-vq-mapping":[{"iothread":"iothread1"},{"iothread":"iothread2"}]"#,
            r#""num-queues":2"#,
        ] {
            assert!(words.contains(part), "{part} in {words}");
        }
    }

    #[test]
    fn without_a_policy_there_are_no_iothreads_and_qemu_chooses_queues() {
        let mut instance = instance();
        let domain = instance["spec"]["domain"].as_object_mut().expect("an object");
        domain.remove("ioThreadsPolicy");
        domain["devices"]["blockMultiQueue"] = json!(false);
        let words = qemu_arguments(&instance).expect("it is known").join(" ");
        assert!(!words.contains("iothread") && !words.contains("num-queues"), "{words}");
    }

    #[test]
    fn a_claim_that_is_a_file_system_has_the_image_in_it() {
        let mut instance = instance();
        let info = json!({"volumeMode": "Filesystem", "capacity": {"storage": "2Gi"}});
        instance["status"]["volumeStatus"] =
            json!([{"name": "disk", "persistentVolumeClaimInfo": info}]);
        let path = "/var/run/kubevirt-private/vmi-disks/disk/disk.img".to_owned();
        let words = qemu_arguments(&instance).expect("it is known").join(" ");
        assert!(words.contains(r#""driver":"file""#) && words.contains(&path), "{words}");
        let all = sources(&instance).expect("they are known");
        assert_eq!(all[0].1, Source::Image { path, bytes: 2 << 30 });
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        refused(|it| it["spec"]["domain"]["ioThreadsPolicy"] = json!("auto"), "auto");
        refused(|it| it["spec"]["volumes"] = json!([]), "no volume");
        refused(|it| it["spec"]["volumes"][0] = json!({"name": "disk"}), "only claims");
        let info =
            json!([{"name": "disk", "persistentVolumeClaimInfo": {"volumeMode": "Filesystem"}}]);
        refused(|it| it["status"]["volumeStatus"] = info, "no capacity");
        refused(|it| it["spec"]["domain"]["memory"]["guest"] = json!("1.5G"), "unit .5G");
    }
}
