//! The programs that took part, with their versions: those of the header, and in a cluster those that the runs tell. Pure functions.

use std::collections::BTreeSet;

use plan::lists::sorted;
use records::results::{Cluster, Programs, Run};

use super::Findings;

/// What the name of a load begins with, if it is fio: `fio-3.33 libaio`.
const FIO: &str = "fio-";

/// All of them in a line.
pub(super) fn sentence(findings: &Findings<'_>) -> String {
    let header = findings.header;
    let Programs { daemon, qemu, fio, guest_kernel, accelerator, .. } = &header.programs;
    let mut parts = if daemon.is_empty() { Vec::new() } else { vec![daemon.clone()] };
    if let Some(cluster) = &header.cluster {
        parts.extend(of_cluster(cluster, findings.runs));
    }
    parts.extend(fio.as_ref().map(|version| format!("fio {version}")));
    parts.extend(qemu.as_ref().map(|version| format!("QEMU {version}")));
    parts.extend(guest_kernel.as_ref().map(|kernel| format!("guests with Linux {kernel}")));
    parts.extend(accelerator.as_ref().map(|accelerator| format!("run by {accelerator}")));
    parts.extend(header.given.as_ref().map(|given| format!("your guest {}", given.description())));
    parts.join(", ")
}

/// Kubernetes, KubeVirt, and what is in the images: fio, the kernel of guests.
fn of_cluster(cluster: &Cluster, runs: &[Run]) -> Vec<String> {
    let named = |name: &str, version: &str| match version {
        "" | records::results::UNKNOWN => format!("{name} (version unknown)"),
        version => format!("{name} {version}"),
    };
    let mut parts = vec![named("Kubernetes", &cluster.version)];
    parts.extend(cluster.kubevirt.as_ref().map(|version| named("KubeVirt", version)));
    let is_vm = |run: &&Run| run.key.contender.subject().is_vm();
    let (vms, pods): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(is_vm);
    let (in_pods, in_vms) = (versions_of_fio(&pods), versions_of_fio(&vms));
    let fio = |versions: &BTreeSet<&str>| {
        format!("fio {}", versions.iter().copied().collect::<Vec<_>>().join(" and "))
    };
    let all: BTreeSet<&str> = in_pods.union(&in_vms).copied().collect();
    if in_pods == in_vms || in_pods.is_empty() || in_vms.is_empty() {
        parts.extend((!all.is_empty()).then(|| fio(&all)));
    } else {
        parts.push(format!("{} in pods", fio(&in_pods)));
        parts.push(format!("{} in virtual machines", fio(&in_vms)));
    }
    let kernels = sorted(vms.iter().filter_map(|run| Some(release(run.kernel.as_deref()?))));
    parts.extend(
        (!kernels.is_empty()).then(|| format!("guests with Linux {}", kernels.join(" and "))),
    );
    parts
}

fn versions_of_fio<'a>(runs: &[&'a Run]) -> BTreeSet<&'a str> {
    let version = |run: &&'a Run| run.load.strip_prefix(FIO)?.split(' ').next();
    runs.iter().filter_map(version).collect()
}

/// Of `Linux 6.12.0 x86_64`.
fn release(kernel: &str) -> &str {
    kernel.split(' ').nth(1).unwrap_or(kernel)
}
