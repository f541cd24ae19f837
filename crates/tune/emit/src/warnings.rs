//! What the targets need, ignore or forbid, one sentence each. Pure.
//!
//! The versions and their sources are in docs/configurations.md.

use plan::contender::Iothreads;
use plan::units::counted;
use plan::variant::{Aio, Device, Image};

use super::version::QemuVersion;
use super::wanted::{Backend, Wanted};
use super::{kubevirt, libvirt, qemu};

/// All of them, what holds for every file first.
pub(super) fn of(wanted: &Wanted) -> Vec<String> {
    let mut warnings = wanted.notes.clone();
    warnings.extend(general(wanted));
    warnings.push(names(wanted));
    match wanted.by {
        Backend::QemuIothreads => {
            warnings.extend(iothreads(wanted));
            warnings.extend(of_libvirt(wanted));
            warnings.extend(of_kubevirt(wanted));
        }
        Backend::Ringloom => warnings.extend(ringloom(wanted)),
    }
    warnings
}

fn general(wanted: &Wanted) -> Vec<String> {
    let mut warnings = Vec::new();
    let (threads, queues) = (wanted.iothreads.count(), wanted.queues);
    if threads > queues {
        warnings.push(format!(
            "{} for {}: {} of them will idle",
            counted(threads.into(), "iothread"),
            counted(queues.into(), "queue"),
            threads - queues
        ));
    }
    if queues > wanted.vcpus {
        warnings.push(format!(
            "{queues} queues for {}: a Linux guest uses no more queues than it has CPUs",
            counted(wanted.vcpus.into(), "CPU")
        ));
    }
    let is_plain =
        |path: &std::path::Path| path.to_str().is_some_and(|text| !text.contains(char::is_control));
    if !is_plain(&wanted.disk) || !is_plain(&wanted.socket) {
        warnings.push(
            "the path of the disk or socket has bytes that not every file can say (\u{fffd}): \
             rename it"
                .to_owned(),
        );
    }
    if wanted.pin_vcpus.is_some() {
        warnings.push(
            "qemu.args cannot bind the guest's CPUs: bind their threads with taskset (QMP \
             query-cpus-fast tells the ids); libvirt.xml does"
                .to_owned(),
        );
    }
    warnings
}

/// What a guest that exists may have under the same name.
fn names(wanted: &Wanted) -> String {
    let ids = qemu::ids(wanted).join(", ");
    let domain = if wanted.by == Backend::Ringloom || wanted.libvirt_takes() {
        format!("; libvirt.xml: {}", libvirt::names(wanted).join(", "))
    } else {
        String::new()
    };
    let shared = if wanted.mapped() > 0 { ", or let disks share iothreads knowingly" } else { "" };
    format!(
        "a guest that you have may use the same names: take free ones{shared} (qemu.args: \
         {ids}{domain})"
    )
}

/// Of QEMU's own iothreads.
fn iothreads(wanted: &Wanted) -> Vec<String> {
    let mut warnings = Vec::new();
    if wanted.iothreads == Iothreads::NONE {
        return warnings;
    }
    let libvirt = match wanted.device {
        Device::Nvme | Device::Ide => {
            let device = wanted.device;
            warnings.push(format!(
                "QEMU's {device} knows no iothreads: its files are written without; use virtio-blk \
                 or virtio-scsi"
            ));
            return warnings;
        }
        Device::VirtioBlk => "10.0.0",
        Device::VirtioScsi => "11.2.0",
    };
    if let Some(qemu) = QemuVersion::for_iothreads(wanted.device, wanted.mapped()) {
        warnings.push(format!(
            "qemu.args needs QEMU {qemu} or newer, libvirt.xml libvirt {libvirt} or newer on such a \
             QEMU"
        ));
        if let Some(measured) = wanted.qemu.filter(|measured| *measured < qemu) {
            warnings.push(format!(
                "the QEMU that was measured, {measured}, is older than {qemu}: it refuses the files"
            ));
        }
    }
    warnings.push(
        "a running guest keeps the iothreads that it started with: shut it down and start it again"
            .to_owned(),
    );
    warnings.push(match wanted.mapped() {
        1 => "take away an iothread-vq-mapping= that the disk has (in libvirt <iothreads> in its \
              <driver>): it is refused beside iothread="
            .to_owned(),
        _ => "take away an iothread= that the disk has (in libvirt the attribute of <driver>): it \
              is refused beside the list"
            .to_owned(),
    });
    if wanted.pin_iothreads.is_some() {
        warnings.push(
            "qemu.args cannot bind iothreads: bind them with taskset (QMP query-iothreads tells \
             the ids); libvirt.xml does"
                .to_owned(),
        );
    }
    warnings
}

fn of_libvirt(wanted: &Wanted) -> Vec<String> {
    let mut warnings = Vec::new();
    if !wanted.libvirt_takes() {
        warnings.push("no libvirt.xml: libvirt 11.3 emulates no nvme disk".to_owned());
        return warnings;
    }
    if let Image::Qcow2(qcow2) = wanted.image
        && qcow2.cache.is_some()
    {
        warnings.push(
            "libvirt.xml bounds both tables of the image together (<metadata_cache>, cache-size), \
             qemu.args that of the clusters (l2-cache-size) as measured"
                .to_owned(),
        );
    }
    warnings
}

fn of_kubevirt(wanted: &Wanted) -> Vec<String> {
    if !wanted.kubevirt_takes() {
        let reason = match wanted.device {
            Device::VirtioScsi => "its iothreads serve disks on the bus virtio, not virtio-scsi",
            Device::VirtioBlk | Device::Nvme | Device::Ide => "it has no nvme disk",
        };
        return vec![format!("no kubevirt.yaml: KubeVirt cannot be told, {reason}")];
    }
    let mut warnings = Vec::new();
    if wanted.mapped() > 0 {
        warnings.extend(pool(wanted));
    }
    if kubevirt::dedicated(wanted) {
        warnings.push(
            "KubeVirt chooses the CPUs itself: kubevirt.yaml asks for dedicated ones, not for those \
             that were measured"
                .to_owned(),
        );
    }
    if matches!(wanted.image, Image::Qcow2(_)) {
        warnings.push(
            "KubeVirt: disks on claims are raw, so kubevirt.yaml is for a raw disk and the qcow2 \
             image that was measured, with its tables in memory, cannot be said; measure raw"
                .to_owned(),
        );
    }
    let engine = kubevirt::io(wanted.aio, wanted.cache);
    if matches!(wanted.aio, Aio::IoUring) {
        warnings.push(format!(
            "KubeVirt has no io_uring: kubevirt.yaml says io: {engine}; measure --aio {engine}"
        ));
    }
    if wanted.device != Device::Ide && wanted.queues != wanted.vcpus {
        warnings.push(format!(
            "KubeVirt gives a disk as many queues as the guest has CPUs: {}, not the {} that were \
             measured",
            wanted.vcpus, wanted.queues
        ));
    }
    if wanted.numa_node.is_some() {
        warnings.push(
            "KubeVirt takes no NUMA node: kubevirt.yaml leaves the memory to the scheduler"
                .to_owned(),
        );
    }
    warnings
}

/// Of KubeVirt's pool of iothreads.
fn pool(wanted: &Wanted) -> Vec<String> {
    let count = wanted.mapped();
    vec![
        "kubevirt.yaml needs KubeVirt 1.5.0 or newer (OpenShift Virtualization 4.19), and a \
         restart of the guest"
            .to_owned(),
        format!(
            "KubeVirt: all virtio disks of the guest share the {}; dedicatedIOThread is ignored \
             with a pool",
            counted(count.into(), "thread")
        ),
        "KubeVirt: queues come from blockMultiQueue, without which more than one thread is of \
         little use; there is no knob for polling"
            .to_owned(),
        format!(
            "KubeVirt: the pod requests {} more for the pool, whole ones with \
             dedicatedCpuPlacement; before 1.9.0 the pool was then bound to wrong ones, mended in \
             releases of 1.7 and 1.8 after July 2026",
            counted(count.into(), "CPU")
        ),
    ]
}

fn ringloom(wanted: &Wanted) -> Vec<String> {
    let mut warnings = vec![
        "the guest's memory must be shared, or ringloom cannot reach it: both qemu.args and \
         libvirt.xml say so"
            .to_owned(),
        match wanted.qemu.filter(|_| wanted.reconnects_in_seconds()) {
            None => {
                "qemu.args needs QEMU 9.2 or newer for reconnect-ms (older: reconnect=1)".to_owned()
            }
            Some(old) => format!(
                "qemu.args says reconnect=1 for QEMU {old}, which was measured; QEMU 9.2 and newer \
                 says reconnect-ms=1000"
            ),
        },
        "libvirt.xml needs libvirt 7.8.0 or newer for queue_size".to_owned(),
        "no kubevirt.yaml: KubeVirt has no vhost-user disk; a hook sidecar could edit the domain \
         of libvirt, at your own risk"
            .to_owned(),
    ];
    if wanted.device != Device::VirtioBlk {
        warnings.push("ringloom serves virtio-blk only: its files say so".to_owned());
    }
    if wanted.pin_iothreads.is_some() {
        warnings.push(
            "serve.sh binds all threads of ringloom to the CPUs of the list; measured was each \
             iothread on one of them in turn"
                .to_owned(),
        );
    }
    warnings
}
