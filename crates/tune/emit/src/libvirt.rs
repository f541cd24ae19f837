//! A libvirt domain with the disk: whole, so that it can be checked and defined; the disk's parts are what to copy.
//!
//! Invariants: threads and queues are given without explicit queues, so libvirt and QEMU go round-robin as measured.

use std::path::Path;

use load::probe::CacheMode;
use plan::variant::{Aio, Device, Image};
use records::pinning::CpuList;
use storage::quote;
use storage::target::Kind;

use super::qemu::QUEUE_SIZE;
use super::wanted::{Backend, Wanted};
use super::xml::Xml;

/// Seconds between QEMU's looks for a ringloom that has gone away.
const RECONNECT_S: &str = "1";

/// `libvirt.xml`.
pub(super) fn domain(wanted: &Wanted) -> String {
    let mut lines = wanted.head();
    lines.push(match wanted.by {
        Backend::QemuIothreads => {
            "Take <iothreads>, <cputune>, <numatune> and the disk into your domain (virsh edit)."
        }
        Backend::Ringloom => {
            "Take <memoryBacking>, <cputune>, <numatune> and the disk into your domain (virsh edit);"
        }
    }.to_owned());
    if wanted.by == Backend::Ringloom {
        lines.push("serve.sh must run before the guest starts.".to_owned());
    }
    let mut xml = Xml::beginning(quote::xml_comment(&lines));
    xml.around("domain", &[("type", "kvm")], |xml| {
        xml.text("name", &[], "ringloom-tune");
        xml.text("memory", &[("unit", "MiB")], &wanted.memory_mib.to_string());
        if wanted.by == Backend::Ringloom {
            xml.around("memoryBacking", &[], |xml| {
                xml.empty("source", &[("type", "memfd")]);
                xml.empty("access", &[("mode", "shared")]);
            });
        }
        xml.text("vcpu", &[("placement", "static")], &wanted.vcpus.to_string());
        if wanted.mapped() > 0 {
            xml.text("iothreads", &[], &wanted.mapped().to_string());
        }
        pins(xml, wanted);
        if let Some(node) = wanted.numa_node {
            xml.around("numatune", &[], |xml| {
                xml.empty("memory", &[("mode", "strict"), ("nodeset", &node.to_string())]);
            });
        }
        xml.around("os", &[], |xml| {
            xml.text("type", &[("arch", "x86_64"), ("machine", "q35")], "hvm");
        });
        xml.around("devices", &[], |xml| match wanted.by {
            Backend::QemuIothreads => own_disk(xml, wanted),
            Backend::Ringloom => vhost_user_disk(xml, wanted),
        });
    });
    xml.finish()
}

/// Each thread to one CPU, in turn, as the measurements do.
fn pins(xml: &mut Xml, wanted: &Wanted) {
    let (vcpus, iothreads) = (&wanted.pin_vcpus, &wanted.pin_iothreads);
    let iothreads = iothreads.as_ref().filter(|_| wanted.mapped() > 0);
    if vcpus.is_none() && iothreads.is_none() {
        return;
    }
    let turns = |cpus: &CpuList, count: u16| -> Vec<String> {
        cpus.iter().cycle().take(count.into()).map(|cpu| cpu.to_string()).collect()
    };
    xml.around("cputune", &[], |xml| {
        if let Some(cpus) = vcpus {
            for (number, cpu) in turns(cpus, wanted.vcpus).iter().enumerate() {
                xml.empty("vcpupin", &[("vcpu", &number.to_string()), ("cpuset", cpu)]);
            }
        }
        if let Some(cpus) = iothreads {
            for (number, cpu) in (1..).zip(&turns(cpus, wanted.mapped())) {
                let number: u16 = number;
                xml.empty("iothreadpin", &[("iothread", &number.to_string()), ("cpuset", cpu)]);
            }
        }
    });
}

/// A disk that QEMU serves.
fn own_disk(xml: &mut Xml, wanted: &Wanted) {
    let (queues, size) = (wanted.queues.to_string(), QUEUE_SIZE.to_string());
    let path = wanted.disk.to_string_lossy();
    let (kind, source) = match wanted.kind {
        Kind::File => ("file", "file"),
        Kind::BlockDevice => ("block", "dev"),
    };
    let (target, bus) = target(wanted.device);
    let format = match wanted.image {
        Image::Raw => "raw",
        Image::Qcow2(_) => "qcow2",
    };
    let cache = match wanted.cache {
        CacheMode::Direct => "none",
        CacheMode::Buffered => "writeback",
    };
    let mut driver = vec![("name", "qemu"), ("type", format), ("cache", cache)];
    driver.extend(io(wanted.aio).map(|io| ("io", io)));
    let on_disk = wanted.device == Device::VirtioBlk;
    if on_disk {
        driver.extend([("queues", queues.as_str()), ("queue_size", &size)]);
        driver.extend(one_thread(wanted.mapped()));
    }
    if wanted.device == Device::VirtioScsi {
        let controller = [("type", "scsi"), ("index", "0"), ("model", "virtio-scsi")];
        // libvirt cannot be told their size; QEMU's own is the one that was measured.
        let mut driver = vec![("queues", queues.as_str())];
        driver.extend(one_thread(wanted.mapped()));
        xml.around("controller", &controller, |xml| {
            xml.around("driver", &driver, |xml| threads(xml, wanted.mapped()));
        });
    }
    xml.around("disk", &[("type", kind), ("device", "disk")], |xml| {
        xml.around("driver", &driver, |xml| {
            if on_disk {
                threads(xml, wanted.mapped());
            }
            metadata_cache(xml, wanted.image);
        });
        xml.empty("source", &[(source, &path)]);
        xml.empty("target", &[("dev", target), ("bus", bus)]);
    });
}

/// The name of a disk in the guest's domain, and its bus.
fn target(device: Device) -> (&'static str, &'static str) {
    match device {
        Device::VirtioBlk => ("vda", "virtio"),
        Device::VirtioScsi => ("sda", "scsi"),
        Device::Ide => ("sda", "sata"),
        Device::Nvme => unreachable!("libvirt has no such disk, so there is no file"),
    }
}

/// What `libvirt.xml` names, which must be free in the domain that takes it.
pub(super) fn names(wanted: &Wanted) -> Vec<String> {
    let mut names: Vec<String> = match wanted.mapped() {
        0 => Vec::new(),
        1 => vec!["iothread 1".to_owned()],
        several => vec![format!("iothreads 1 to {several}")],
    };
    let device = match wanted.by {
        Backend::QemuIothreads => wanted.device,
        Backend::Ringloom => Device::VirtioBlk,
    };
    if device == Device::VirtioScsi {
        names.push("controller scsi 0".to_owned());
    }
    names.push(format!("target {}", target(device).0));
    names
}

/// The only thread of a disk or controller, in the form that every version knows.
fn one_thread(count: u16) -> Option<(&'static str, &'static str)> {
    (count == 1).then_some(("iothread", "1"))
}

/// Which of several threads serve a disk or controller, in turn.
fn threads(xml: &mut Xml, count: u16) {
    if count < 2 {
        return;
    }
    xml.around("iothreads", &[], |xml| {
        for number in 1..=count {
            xml.empty("iothread", &[("id", &number.to_string())]);
        }
    });
}

/// libvirt bounds both tables of qcow2 together, of which that of the clusters gets nearly all.
fn metadata_cache(xml: &mut Xml, image: Image) {
    let Image::Qcow2(qcow2) = image else { return };
    if let Some(bytes) = qcow2.cache {
        xml.around("metadata_cache", &[], |xml| {
            xml.text("max_size", &[("unit", "bytes")], &bytes.0.to_string());
        });
    }
}

/// libvirt's name of an engine, if one is named.
fn io(aio: Aio) -> Option<&'static str> {
    match aio {
        Aio::Auto => None,
        Aio::Native => Some("native"),
        Aio::Threads => Some("threads"),
        Aio::IoUring => Some("io_uring"),
    }
}

/// A disk that ringloom serves.
fn vhost_user_disk(xml: &mut Xml, wanted: &Wanted) {
    let (queues, size) = (wanted.queues.to_string(), QUEUE_SIZE.to_string());
    let socket: &Path = &wanted.socket;
    xml.around("disk", &[("type", "vhostuser"), ("device", "disk")], |xml| {
        let driver = [("name", "qemu"), ("type", "raw"), ("queues", queues.as_str())];
        xml.empty("driver", &[&driver[..], &[("queue_size", size.as_str())]].concat());
        xml.around("source", &[("type", "unix"), ("path", &socket.to_string_lossy())], |xml| {
            xml.empty("reconnect", &[("enabled", "yes"), ("timeout", RECONNECT_S)]);
        });
        let (target, bus) = target(Device::VirtioBlk);
        xml.empty("target", &[("dev", target), ("bus", bus)]);
    });
}
