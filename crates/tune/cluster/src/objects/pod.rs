//! Pods: workers on their claims, and the relay through which virtual machines are reached.
//!
//! Invariants: no pod gets a token of a service account; its file system is read-only but for a directory in memory. A pod meets the profile
//! *restricted*, unless a block device needs root in it: then it has no capabilities all the same.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, LocalObjectReference,
    PersistentVolumeClaimVolumeSource, Pod, PodSecurityContext, PodSpec, ResourceRequirements,
    SeccompProfile, SecurityContext, Volume, VolumeDevice, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{Group, Names, node_selector, tolerations};
use crate::job::{ClaimStorage, ClusterJob, PodShape, Security, VolumeMode};

/// The container of the agent, in all pods that have one.
pub(crate) const CONTAINER: &str = "agent";
/// Where a claim is in the pod, if it is a device.
pub(crate) const DEVICE: &str = "/dev/ringloom-disk";
/// Where a claim is in the pod, if it is a directory.
pub(crate) const DIRECTORY: &str = "/data";
/// Where the agent keeps fio's job.
const TEMPORARY: &str = "/tmp";
const RELAY_CPU: (&str, &str) = ("100m", "1");
/// The program's own pages, once for all of its processes; then what each takes, one for each worker: 2 MB, and more for the moment in which
/// the container runtime starts it.
const RELAY_MEMORY_MIB: u32 = 128;
const RELAY_MEMORY_EACH_MIB: u32 = 8;
/// Nobody's, in images and on most hosts.
const USER: i64 = 65_532;

/// The pod of one worker, whose device or directory is the claim of this name.
pub(crate) fn worker(group: &Group<'_>, storage: &ClaimStorage, claim: String, worker: u16) -> Pod {
    let is_device = storage.volume_mode == VolumeMode::Block;
    let security = group.job.security;
    let needs_root = is_device && security == Security::Auto;
    let disk = Volume {
        name: "disk".to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim,
            ..PersistentVolumeClaimVolumeSource::default()
        }),
        ..Volume::default()
    };
    let mut container = container(group.job, security, needs_root);
    container.resources = resources(&group.job.pod);
    if is_device {
        let device = VolumeDevice { device_path: DEVICE.to_owned(), name: "disk".to_owned() };
        container.volume_devices = Some(vec![device]);
    } else {
        container.volume_mounts.get_or_insert_default().push(mount("disk", DIRECTORY));
    }
    let mut spec = spec(group.job, container, security, needs_root);
    spec.volumes.get_or_insert_default().push(disk);
    spec.affinity = group.affinity();
    spec.topology_spread_constraints = group.spread();
    Pod { metadata: group.metadata(worker), spec: Some(spec), ..Pod::default() }
}

/// A pod that only joins streams: one small process for each worker. It says what it needs, for a namespace with a quota of CPUs or memory
/// takes no pod that does not.
pub(crate) fn relay(names: &Names, job: &ClusterJob, owner: &OwnerReference) -> Pod {
    let mut container = container(job, Security::Restricted, false);
    let workers = u32::from(job.workers.iter().max().copied().unwrap_or(1));
    let memory = format!("{}Mi", RELAY_MEMORY_MIB + RELAY_MEMORY_EACH_MIB * workers);
    let (request, limit) = RELAY_CPU;
    container.resources = Some(ResourceRequirements {
        requests: Some(quantities(&[("cpu", request), ("memory", &memory)])),
        limits: Some(quantities(&[("cpu", limit), ("memory", &memory)])),
        ..ResourceRequirements::default()
    });
    Pod {
        metadata: names.metadata(names.relay(), Some(owner)),
        spec: Some(spec(job, container, Security::Restricted, false)),
        ..Pod::default()
    }
}

fn container(job: &ClusterJob, security: Security, needs_root: bool) -> Container {
    let is_privileged = security == Security::Privileged;
    Container {
        name: CONTAINER.to_owned(),
        image: Some(job.images.agent.clone()),
        image_pull_policy: Some(job.images.pull_policy.to_owned()),
        command: Some(["ringloom", "agent", "hold"].map(str::to_owned).to_vec()),
        security_context: Some(if is_privileged {
            SecurityContext {
                privileged: Some(true),
                run_as_user: Some(0),
                ..SecurityContext::default()
            }
        } else {
            SecurityContext {
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities {
                    drop: Some(vec!["ALL".to_owned()]),
                    ..Capabilities::default()
                }),
                read_only_root_filesystem: Some(true),
                run_as_non_root: Some(!needs_root),
                run_as_user: Some(if needs_root { 0 } else { USER }),
                ..SecurityContext::default()
            }
        }),
        volume_mounts: Some(vec![mount("temporary", TEMPORARY)]),
        ..Container::default()
    }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn spec(job: &ClusterJob, container: Container, security: Security, needs_root: bool) -> PodSpec {
    let is_fenced = security != Security::Privileged;
    let secret = |name: &String| vec![LocalObjectReference { name: name.clone() }];
    PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        containers: vec![container],
        image_pull_secrets: job.images.pull_secret.as_ref().map(secret),
        node_selector: node_selector(&job.nodes),
        tolerations: tolerations(&job.nodes),
        restart_policy: Some("Never".to_owned()),
        security_context: is_fenced.then(|| PodSecurityContext {
            fs_group: (!needs_root).then_some(USER),
            run_as_non_root: Some(!needs_root),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        // The agent has nothing to finish.
        termination_grace_period_seconds: Some(1),
        volumes: Some(vec![Volume {
            name: "temporary".to_owned(),
            empty_dir: Some(EmptyDirVolumeSource {
                medium: Some("Memory".to_owned()),
                size_limit: Some(Quantity("64Mi".to_owned())),
            }),
            ..Volume::default()
        }]),
        ..PodSpec::default()
    }
}

fn quantities(all: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    all.iter().map(|&(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).collect()
}

fn resources(shape: &PodShape) -> Option<ResourceRequirements> {
    let named = [("cpu", &shape.cpu), ("memory", &shape.memory)];
    let all: BTreeMap<_, _> = named
        .into_iter()
        .filter_map(|(name, it)| Some((name.to_owned(), Quantity(it.clone()?))))
        .collect();
    (!all.is_empty()).then(|| ResourceRequirements {
        limits: Some(all.clone()),
        requests: Some(all),
        ..ResourceRequirements::default()
    })
}
