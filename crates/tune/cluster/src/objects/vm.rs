//! KubeVirt's virtual machines: a kernel and an initramfs from an image, the claim as a virtio-blk disk, and nothing else.
//!
//! Invariants: without iothreads there is nothing but KubeVirt's own defaults; with them there is the policy `supplementalPool` and a queue
//! for each CPU. The token of the agent stands on the kernel's command line, and nowhere else.

use k8s_openapi::api::core::v1::{Affinity, Toleration, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, TypeMeta};
use serde::Serialize;
use serde_json::json;

use super::{Group, node_selector, tolerations};
use crate::job::VmIothreads;

/// The disk in the guest.
pub(crate) const DEVICE: &str = "/dev/vda";
pub(crate) const GROUP: &str = "kubevirt.io";
const VERSION: &str = "v1";
/// In the guest's image.
const KERNEL: &str = "/boot/vmlinuz";
const INITRD: &str = "/boot/initrd";

/// The resource of virtual machines.
pub(crate) fn machines() -> ApiResource {
    resource("VirtualMachine", "virtualmachines")
}

/// The resource of those that run.
pub(crate) fn instances() -> ApiResource {
    resource("VirtualMachineInstance", "virtualmachineinstances")
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural)
}

/// How a virtual machine is placed: what pods have in their specification, KubeVirt hands to its launcher pods.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Scheduling {
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<Affinity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_selector: Option<std::collections::BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tolerations: Option<Vec<Toleration>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
}

/// The virtual machine of one worker, whose disk is the claim of this name.
pub(crate) fn worker(
    group: &Group<'_>,
    iothreads: VmIothreads,
    claim: &str,
    token: &agent::Token,
    worker: u16,
) -> DynamicObject {
    let metadata = group.metadata(worker);
    let template = ObjectMeta { labels: metadata.labels.clone(), ..ObjectMeta::default() };
    let scheduling = Scheduling {
        affinity: group.affinity(),
        node_selector: node_selector(&group.job.nodes),
        tolerations: tolerations(&group.job.nodes),
        topology_spread_constraints: group.spread(),
    };
    let mut spec = serde_json::to_value(scheduling).expect("types of Kubernetes are JSON");
    let fields = spec.as_object_mut().expect("a struct is an object");
    fields.insert("domain".to_owned(), domain(group, iothreads, token));
    let networks = json!([{ "name": "default", "pod": {} }]);
    fields.insert("networks".to_owned(), networks);
    fields.insert("terminationGracePeriodSeconds".to_owned(), json!(0));
    let volumes = json!([{ "name": "disk", "persistentVolumeClaim": { "claimName": claim } }]);
    fields.insert("volumes".to_owned(), volumes);
    let resource = machines();
    DynamicObject {
        types: Some(TypeMeta { api_version: resource.api_version, kind: resource.kind }),
        metadata,
        data: json!({ "spec": {
            // One that fails is not started again: it would be measured without its history.
            "runStrategy": "Once",
            "template": { "metadata": template, "spec": spec },
        } }),
    }
}

/// The machine itself.
fn domain(group: &Group<'_>, iothreads: VmIothreads, token: &agent::Token) -> serde_json::Value {
    let job = group.job;
    let mut container = json!({
        "image": job.images.guest,
        "imagePullPolicy": job.images.pull_policy,
        "kernelPath": KERNEL,
        "initrdPath": INITRD,
    });
    if let Some(secret) = &job.images.pull_secret {
        container["imagePullSecret"] = json!(secret);
    }
    let arguments = format!("console=ttyS0 ringloom.token={}", token.reveal());
    let mut domain = json!({
        "cpu": { "cores": job.vm.cpus },
        "memory": { "guest": job.vm.memory },
        "firmware": { "kernelBoot": { "kernelArgs": arguments, "container": container } },
        "devices": {
            "autoattachGraphicsDevice": false,
            "autoattachMemBalloon": false,
            "logSerialConsole": false,
            "disks": [{ "name": "disk", "cache": "none", "disk": { "bus": "virtio" } }],
            "interfaces": [{ "name": "default", "masquerade": {} }],
        },
    });
    if let Some(machine) = &job.vm.machine_type {
        domain["machine"] = json!({ "type": machine });
    }
    if let VmIothreads::Pool(count) = iothreads {
        domain["ioThreadsPolicy"] = json!("supplementalPool");
        domain["ioThreads"] = json!({ "supplementalPoolThreadCount": count });
        domain["devices"]["blockMultiQueue"] = json!(true);
    }
    domain
}
