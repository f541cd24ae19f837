//! A domain's XML as seen from one of its disks: what bears on the I/O of that disk. Pure.
//!
//! Invariants: nothing is taken for granted of the text, which anybody may have written: every number has a bound, a DTD is
//! refused, and no depth of nesting takes stack.
//! Not here: what is unwise in it (`judge`), what is measured of it (`adopt`), how it is changed (`edit`).

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use plan::units::printable;
use plan::variant::Device;
use roxmltree::{Document, ParsingOptions};

use crate::pinning::CpuList;

/// Many times the largest domain that anybody has; attributes of one element are compared with each other when it is read.
pub const XML_BYTES_MAX: usize = 512 << 10;
/// Elements, texts and comments of it.
const NODES_MAX: u32 = 100_000;
/// More than QEMU was ever given.
const IOTHREADS_MAX: u32 = 1024;
/// Of a name in a sentence.
const NAME_CHARACTERS_MAX: usize = 80;
/// Machine types from this version on give a disk one queue per vCPU; older ones give it one.
const QUEUES_SINCE: (u32, u32) = (5, 2);
const QEMU_NAMESPACE: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// An element of the XML.
pub type Node<'a> = roxmltree::Node<'a, 'a>;

/// The document of a domain.
///
/// # Errors
/// If it is too large, or no XML.
pub fn parse(xml: &str) -> Result<Document<'_>> {
    if xml.len() > XML_BYTES_MAX {
        bail!("it is larger than 512 KiB, which no domain is");
    }
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    Document::parse_with_options(xml, options).context("it is no XML of a domain")
}

/// A domain and one of its disks.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The element `domain`.
    pub root: Node<'a>,
    /// The element `disk` that is measured.
    pub disk: Node<'a>,
}

impl<'a> View<'a> {
    /// The disk of this target, or the only one.
    ///
    /// # Errors
    /// If it is no domain of QEMU, or has no such disk.
    pub fn new(document: &'a Document<'a>, target: Option<&str>) -> Result<Self> {
        let root = document.root_element();
        if root.tag_name().name() != "domain" {
            bail!("it is no domain: its root is <{}>", short(root.tag_name().name()));
        }
        let kind = root.attribute("type").unwrap_or_default();
        if !matches!(kind, "kvm" | "qemu" | "hvf") {
            bail!("it is a domain of type '{}': iothreads are QEMU's (kvm, qemu)", short(kind));
        }
        let disks = disks(root);
        let names: Vec<String> = disks.iter().map(|disk| short(target_of(*disk))).collect();
        let found = match (target, &disks[..]) {
            (_, []) => bail!("it has no disk (<disk device='disk'>)"),
            (None, [disk]) => Some(*disk),
            (None, _) => bail!("it has the disks {}: --disk names one", names.join(", ")),
            (Some(target), _) => disks.iter().copied().find(|disk| target_of(*disk) == target),
        };
        let disk = found.with_context(|| {
            format!("--disk {}: it has {}", target.unwrap_or_default(), names.join(", "))
        })?;
        Ok(Self { root, disk })
    }

    /// As `virsh define` names the domain.
    pub fn name(&self) -> &'a str {
        child(self.root, "name").and_then(|it| it.text()).unwrap_or("without a name").trim()
    }

    /// How the guest calls the disk: `vda`.
    pub fn target(&self) -> &'a str {
        target_of(self.disk)
    }

    /// The value of an attribute of the disk's driver.
    pub fn driver(&self, name: &str) -> Option<&'a str> {
        child(self.disk, "driver")?.attribute(name)
    }

    /// The disk's bus; what is not said goes by the name of the target.
    pub fn bus(&self) -> &'a str {
        let said = child(self.disk, "target").and_then(|it| it.attribute("bus"));
        said.unwrap_or(match self.target().get(..2) {
            Some("vd") => "virtio",
            Some("hd") => "ide",
            _ => "scsi",
        })
    }

    /// Whether another program serves the disk over a socket.
    pub fn is_vhost_user(&self) -> bool {
        self.disk.attribute("type") == Some("vhostuser")
    }

    /// What is measured in its place.
    pub fn device(&self) -> Option<Device> {
        match self.bus() {
            "virtio" => Some(Device::VirtioBlk),
            "scsi" if self.holder().is_some() => Some(Device::VirtioScsi),
            "ide" | "sata" => Some(Device::Ide),
            "nvme" => Some(Device::Nvme),
            _ => None,
        }
    }

    /// The element whose driver has queues and iothreads: the disk, or the controller of a SCSI disk.
    pub fn holder(&self) -> Option<Node<'a>> {
        match self.bus() {
            _ if self.is_vhost_user() => None,
            "virtio" => Some(self.disk),
            "scsi" => {
                let address = child(self.disk, "address");
                let index = address.and_then(|it| it.attribute("controller")).unwrap_or("0");
                let is_own = |it: &Node<'_>| {
                    it.has_tag_name("controller")
                        && it.attribute("type") == Some("scsi")
                        && it.attribute("index").unwrap_or("0") == index
                        && it.attribute("model").is_some_and(|it| it.starts_with("virtio"))
                };
                child(self.root, "devices")?.children().find(is_own)
            }
            _ => None,
        }
    }

    /// The element to change for queues and iothreads, in words.
    pub fn place(&self) -> String {
        match self.holder() {
            Some(it) if it.has_tag_name("controller") => {
                let index = short(it.attribute("index").unwrap_or("0"));
                format!("the <driver> of <controller type='scsi' index='{index}'>")
            }
            _ => format!("the <driver> of disk {}", short(self.target())),
        }
    }

    /// The queues of the disk, if that is said.
    pub fn queues_said(&self) -> Option<usize> {
        let holder = if self.is_vhost_user() { Some(self.disk) } else { self.holder() };
        child(holder?, "driver")?.attribute("queues")?.trim().parse().ok()
    }

    /// Whether the machine type gives a disk one queue unless more are asked for.
    pub fn is_old_machine(&self) -> bool {
        let kind = child(self.root, "os").and_then(|it| child(it, "type"));
        let version = kind.and_then(|it| it.attribute("machine")?.rsplit('-').next());
        let version = version.and_then(|it| it.split_once('.'));
        version
            .and_then(|(a, b)| Some((number(a)?, number(b)?)))
            .is_some_and(|it| it < QUEUES_SINCE)
    }

    /// Queues of the disk, which are as many as virtual CPUs where nothing is said.
    pub fn queues(&self) -> usize {
        let usual = if self.is_old_machine() { 1 } else { self.vcpus() };
        self.queues_said().unwrap_or(usual).max(1)
    }

    /// Virtual CPUs.
    pub fn vcpus(&self) -> usize {
        let vcpu = child(self.root, "vcpu");
        let said = vcpu.and_then(|it| it.attribute("current").or(it.text())?.trim().parse().ok());
        said.unwrap_or(1).max(1)
    }

    /// The iothreads that the domain has.
    pub fn ids(&self) -> BTreeSet<u32> {
        let listed = child(self.root, "iothreadids").map(ids_in).unwrap_or_default();
        let mut ids: BTreeSet<u32> = listed.into_iter().collect();
        let count = child(self.root, "iothreads").and_then(|it| number(it.text()?));
        let count = count.unwrap_or(0).min(IOTHREADS_MAX);
        // libvirt fills the list up from 1.
        let free = (1..=count).filter(|id| !ids.contains(id));
        let missing = usize::try_from(count).unwrap_or(0).saturating_sub(ids.len());
        let free: Vec<u32> = free.take(missing).collect();
        ids.extend(free);
        ids
    }

    /// The iothreads that serve the disk.
    pub fn own(&self) -> Vec<u32> {
        self.holder().and_then(|it| child(it, "driver")).map(of_driver).unwrap_or_default()
    }

    /// Iothreads of other devices, with what they serve.
    pub fn others(&self) -> Vec<(u32, String)> {
        let holder = self.holder();
        let devices = child(self.root, "devices").into_iter().flat_map(|it| it.children());
        let others = devices.filter(|it| Some(*it) != holder);
        let of = |device: Node<'a>| {
            let ids = child(device, "driver").map(of_driver).unwrap_or_default();
            ids.into_iter().map(move |id| (id, device_name(device)))
        };
        others.flat_map(of).collect()
    }

    /// Other disks that are on the same controller.
    pub fn beside(&self) -> Vec<&'a str> {
        let Some(holder) = self.holder() else { return Vec::new() };
        let on_it = |disk: &Node<'a>| {
            *disk != self.disk && Self { disk: *disk, ..*self }.holder() == Some(holder)
        };
        disks(self.root).into_iter().filter(on_it).map(target_of).collect()
    }

    /// A child of `<cputune>`: the CPUs of each number in this attribute.
    pub fn pins(&self, element: &str, attribute: &str) -> Vec<(u32, CpuList)> {
        let tune = child(self.root, "cputune").into_iter().flat_map(|it| it.children());
        let pins = tune.filter(|it| it.has_tag_name(element));
        let pin = |it: Node<'_>| {
            let of = it.attribute(attribute).map_or(Some(0), number)?;
            Some((of, cpus(it.attribute("cpuset")?)?))
        };
        pins.filter_map(pin).collect()
    }

    /// Memory in bytes.
    pub fn memory(&self) -> Option<u64> {
        bytes(child(self.root, "memory")?)
    }

    /// The NUMA nodes of `<numatune>`, as it says them.
    pub fn numa_nodes(&self) -> Option<&'a str> {
        child(child(self.root, "numatune")?, "memory")?.attribute("nodeset")
    }

    /// Where the bytes of the disk are, if this host sees them as a file or device.
    pub fn source(&self) -> Option<PathBuf> {
        let name = match self.disk.attribute("type") {
            Some("file") => "file",
            Some("block") => "dev",
            _ => return None,
        };
        Some(child(self.disk, "source")?.attribute(name)?.into())
    }

    /// Whether options are passed to QEMU as they are.
    pub fn has_command_line(&self) -> bool {
        self.root.children().any(|it| it.has_tag_name((QEMU_NAMESPACE, "commandline")))
    }
}

/// The first child of this name.
pub fn child<'a>(node: Node<'a>, name: &str) -> Option<Node<'a>> {
    node.children().find(|it| it.has_tag_name(name))
}

/// A number without a sign.
pub fn number(text: &str) -> Option<u32> {
    text.trim().parse().ok()
}

/// Text of the domain for a sentence.
pub fn short(text: &str) -> String {
    printable(text).chars().take(NAME_CHARACTERS_MAX).collect()
}

/// What a size says in its unit; KiB unless it says another.
pub fn bytes(size: Node<'_>) -> Option<u64> {
    let number: u64 = size.text()?.trim().parse().ok()?;
    let (letter, binary) = match size.attribute("unit").unwrap_or("KiB") {
        "b" | "bytes" => return Some(number),
        unit => (unit.chars().next()?, !unit.ends_with('B') || unit.ends_with("iB")),
    };
    let power = "kmgtpe".find(letter.to_ascii_lowercase())? + 1;
    let base: u64 = if binary { 1024 } else { 1000 };
    number.checked_mul(base.checked_pow(u32::try_from(power).ok()?)?)
}

/// The CPUs of a `cpuset`, in which `^` takes one away.
fn cpus(text: &str) -> Option<CpuList> {
    let (without, with): (Vec<&str>, Vec<&str>) =
        text.split(',').map(str::trim).partition(|part| part.starts_with('^'));
    let all: CpuList = with.join(",").parse().ok()?;
    let without: Vec<u16> = without.iter().filter_map(|it| it[1..].parse().ok()).collect();
    CpuList::new(all.iter().filter(|cpu| !without.contains(cpu)))
}

fn disks(root: Node<'_>) -> Vec<Node<'_>> {
    let is_disk = |it: &Node<'_>| {
        it.has_tag_name("disk") && matches!(it.attribute("device"), None | Some("disk" | "lun"))
    };
    child(root, "devices").into_iter().flat_map(|it| it.children()).filter(is_disk).collect()
}

fn target_of(disk: Node<'_>) -> &str {
    child(disk, "target").and_then(|it| it.attribute("dev")).unwrap_or_default()
}

fn device_name(device: Node<'_>) -> String {
    match target_of(device) {
        "" => format!("another <{}>", short(device.tag_name().name())),
        target => short(target),
    }
}

fn of_driver(driver: Node<'_>) -> Vec<u32> {
    let mapped = child(driver, "iothreads").map(ids_in).unwrap_or_default();
    let alone = driver.attribute("iothread").and_then(number);
    alone.into_iter().chain(mapped).collect()
}

fn ids_in(list: Node<'_>) -> Vec<u32> {
    let entries = list.children().filter(|it| it.has_tag_name("iothread"));
    let ids = entries.filter_map(|it| number(it.attribute("id")?));
    ids.take(usize::try_from(IOTHREADS_MAX).unwrap_or(usize::MAX)).collect()
}
