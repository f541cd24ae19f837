//! A KubeVirt VirtualMachine with the disk on a claim named `data`.
//!
//! Invariants: KubeVirt's pool serves all virtio disks of a guest, its queues are the guest's CPUs; what that changes of
//! what was measured is a warning.

use std::fmt::Write;

use load::probe::CacheMode;
use plan::variant::{Aio, Device};
use storage::quote;

use super::wanted::Wanted;

/// `kubevirt.yaml`.
pub(super) fn manifest(wanted: &Wanted) -> String {
    let mut lines = wanted.head();
    lines.push(
        "Take domain: and its disk into your VirtualMachine; the claim data stands for yours."
            .to_owned(),
    );
    let mut text = quote::hash_comment(&lines);
    text.push_str(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata:\n  name: ringloom-tune\nspec:\n  \
         runStrategy: Halted\n  template:\n    spec:\n      domain:\n",
    );
    domain(&mut text, wanted);
    text.push_str(
        "      volumes:\n      - name: data\n        persistentVolumeClaim:\n          \
         claimName: data\n",
    );
    text
}

fn domain(text: &mut String, wanted: &Wanted) {
    let Wanted { vcpus, memory_mib, .. } = wanted;
    let mut line = |depth: usize, words: &str| {
        writeln!(text, "{}{words}", "  ".repeat(depth)).expect("a String takes all text");
    };
    line(4, "cpu:");
    line(5, &format!("sockets: {vcpus}"));
    line(5, "cores: 1");
    line(5, "threads: 1");
    if dedicated(wanted) {
        line(5, "dedicatedCpuPlacement: true");
    }
    line(4, "memory:");
    line(5, &format!("guest: {memory_mib}Mi"));
    if wanted.mapped() > 0 {
        line(4, "ioThreadsPolicy: supplementalPool");
        line(4, "ioThreads:");
        line(5, &format!("supplementalPoolThreadCount: {}", wanted.mapped()));
    }
    line(4, "devices:");
    if wanted.device != Device::Ide {
        line(5, "blockMultiQueue: true");
    }
    line(5, "disks:");
    line(5, "- name: data");
    line(6, "disk:");
    line(7, &format!("bus: {}", bus(wanted.device)));
    line(6, &format!("cache: {}", cache(wanted.cache)));
    line(6, &format!("io: {}", io(wanted.aio, wanted.cache)));
}

/// Whether the guest asks for CPUs of its own: something of it was bound to CPUs.
pub(super) fn dedicated(wanted: &Wanted) -> bool {
    wanted.pin_vcpus.is_some() || wanted.pin_iothreads.is_some() && wanted.mapped() > 0
}

fn bus(device: Device) -> &'static str {
    match device {
        Device::VirtioBlk => "virtio",
        Device::VirtioScsi => "scsi",
        Device::Ide => "sata",
        Device::Nvme => unreachable!("KubeVirt has no such disk, so there is no file"),
    }
}

fn cache(cache: CacheMode) -> &'static str {
    match cache {
        CacheMode::Direct => "none",
        CacheMode::Buffered => "writeback",
    }
}

/// The nearest of the engines that KubeVirt has; Linux AIO needs O_DIRECT.
pub(super) fn io(aio: Aio, cache: CacheMode) -> &'static str {
    match (aio, cache) {
        (Aio::Threads, _) | (Aio::Auto | Aio::IoUring, CacheMode::Buffered) => "threads",
        (Aio::Native, _) | (Aio::Auto | Aio::IoUring, CacheMode::Direct) => "native",
    }
}
