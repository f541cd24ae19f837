//! What the cluster is, before anything is made on it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{GetParams, ListParams};
use kube::core::Request;

use crate::api::{Check, Server};
use crate::error::ClusterError;
use crate::job::{ClusterJob, NodeToleration};
use crate::objects::{RUN_LABEL, RunId, managed};
use crate::quantity;

/// A cluster in whose nodes others ask for more than this share is told to be in use.
const BUSY_SHARE: f64 = 0.5;
const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// Stands for a version that the cluster does not tell.
pub const UNKNOWN: &str = "unknown";
/// Who tells KubeVirt's version, and where in the answer: its own server, as `virtctl version` asks it, and the object that its operator
/// keeps. Its role `kubevirt.io:default` lets everybody read both who is known to the cluster.
const KUBEVIRT_VERSION: [(&str, &str, &str); 2] = [
    ("/apis/subresources.kubevirt.io/v1", "version", "/gitVersion"),
    ("/apis/kubevirt.io/v1", "kubevirts", "/items/0/status/observedKubeVirtVersion"),
];

/// Longer nobody waits for that.
const VERSION_LIMIT: Duration = Duration::from_secs(2);

/// What is known of the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    /// The version of the API server.
    pub server: String,
    /// KubeVirt's version, if the job needs it; [`UNKNOWN`] if the cluster does not tell.
    pub kubevirt: Option<String>,
    /// Those that may take pods of the job.
    pub nodes: Vec<NodeFacts>,
    /// Those of the job.
    pub storage_classes: Vec<ClassFacts>,
    /// Runs that have left something in the namespace.
    pub old_runs: Vec<RunId>,
    /// What bends the numbers, or is not known.
    pub notes: Vec<String>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// CPUs for pods.
    pub cpus: f64,
    /// Memory for pods.
    pub memory_bytes: u64,
    /// The version.
    pub kernel: String,
    /// The version.
    pub kubelet: String,
    /// What runs containers there: `containerd://1.7.27`.
    pub runtime: String,
    /// As a provider calls it.
    pub instance_type: Option<String>,
    /// CPUs that pods of others ask for.
    pub requested_cpus: f64,
    /// Memory that pods of others ask for.
    pub requested_memory_bytes: u64,
}

/// A storage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassFacts {
    /// Its name.
    pub name: String,
    /// Who makes its volumes.
    pub provisioner: String,
}

/// KubeVirt's version, as far as it is told: no right is asked for that, and nobody waits long for it.
pub(crate) fn kubevirt(server: &Server, check: Check<'_>) -> Result<String, ClusterError> {
    // One that was built without its version says so with other letters.
    let is_version =
        |it: &&str| it.trim_start_matches('v').starts_with(|it: char| it.is_ascii_digit());
    for (place, name, field) in KUBEVIRT_VERSION {
        let request = Request::new(place).get(name, &GetParams::default()).expect("a plain path");
        let asked = server.client.request::<serde_json::Value>(request);
        // Of a KubeVirt that is just being replaced nobody may answer, and it is a word of the report only.
        let answer = server.limited_to(VERSION_LIMIT, check, asked)?.ok();
        let version = answer.as_ref().and_then(|it| it.pointer(field)?.as_str());
        if let Some(version) = version.filter(is_version) {
            return Ok(version.to_owned());
        }
    }
    Ok(UNKNOWN.to_owned())
}

/// The nodes that may take pods of a job.
pub(crate) fn nodes(
    server: &Server,
    job: &ClusterJob,
    notes: &mut Vec<String>,
    check: Check<'_>,
) -> Result<Vec<NodeFacts>, ClusterError> {
    let api: Api<Node> = Api::all(server.client.clone());
    let all = server.list(&api, "list nodes", &ListParams::default(), check)?;
    let fitting: Vec<_> = all.iter().filter(|it| takes(it, job)).collect();
    if fitting.is_empty() {
        let count = all.len();
        let what = format!(
            "none of the {count} nodes is ready, has the labels of nodeSelector and only taints that are tolerated"
        );
        return Err(ClusterError::Lacks(what));
    }
    let pods: Api<Pod> = Api::all(server.client.clone());
    let running = ListParams::default().fields("status.phase=Running").limit(10_000);
    let pods = server.ask("list the pods of all namespaces", check, || pods.list(&running))?;
    let pods = pods.map(|it| it.items);
    if pods.is_none() {
        notes.push(
            "what other pods ask for is not known: no right to list pods in all of the cluster"
                .to_owned(),
        );
    }
    let mut facts: Vec<_> = fitting.into_iter().map(facts).collect();
    for pod in pods.iter().flatten() {
        add(&mut facts, pod);
    }
    for node in &facts {
        if node.requested_cpus > node.cpus * BUSY_SHARE {
            notes.push(format!(
                "the node {} is used by others, whose pods ask for {:.1} of its {:.1} CPUs",
                node.name, node.requested_cpus, node.cpus
            ));
        }
    }
    Ok(facts)
}

/// Whether a node may take pods of the job.
fn takes(node: &Node, job: &ClusterJob) -> bool {
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let has_labels =
        job.nodes.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    let spec = node.spec.as_ref();
    let is_closed = spec.and_then(|it| it.unschedulable).unwrap_or(false);
    let conditions = node.status.iter().flat_map(|it| it.conditions.iter().flatten());
    let is_ready = conditions.clone().any(|it| it.type_ == "Ready" && it.status == "True");
    let taints = spec.into_iter().flat_map(|it| it.taints.iter().flatten());
    let mut hard = taints.filter(|it| it.effect != "PreferNoSchedule");
    let is_tolerated = hard.all(|taint| {
        job.nodes
            .tolerations
            .iter()
            .any(|it| tolerates(it, &taint.key, taint.value.as_deref(), &taint.effect))
    });
    has_labels && !is_closed && is_ready && is_tolerated
}

/// Kubernetes' rule.
fn tolerates(toleration: &NodeToleration, key: &str, value: Option<&str>, effect: &str) -> bool {
    let has_key = toleration.key.as_deref().is_none_or(|it| it == key);
    let has_effect = toleration.effect.is_none_or(|it| it == effect);
    let is_any = toleration.operator == Some("Exists");
    let has_value = toleration.value.as_deref().unwrap_or_default() == value.unwrap_or_default();
    has_key && has_effect && (is_any || toleration.key.is_some() && has_value)
}

fn facts(node: &Node) -> NodeFacts {
    let status = node.status.clone().unwrap_or_default();
    let allocatable = status.allocatable.unwrap_or_default();
    let amount = |name: &str| allocatable.get(name).map_or("", |it| it.0.as_str());
    let info = status.node_info.unwrap_or_default();
    NodeFacts {
        name: node.metadata.name.clone().unwrap_or_default(),
        cpus: quantity::parse(amount("cpu")).unwrap_or(0.0),
        memory_bytes: quantity::whole(amount("memory")),
        kernel: info.kernel_version,
        kubelet: info.kubelet_version,
        runtime: info.container_runtime_version,
        instance_type: node.metadata.labels.as_ref().and_then(|it| it.get(INSTANCE_TYPE).cloned()),
        ..NodeFacts::default()
    }
}

/// Adds what a pod of somebody else asks for.
fn add(nodes: &mut [NodeFacts], pod: &Pod) {
    let is_ours = pod.metadata.labels.as_ref().is_some_and(|it| it.contains_key(RUN_LABEL));
    let Some(spec) = pod.spec.as_ref().filter(|_| !is_ours) else { return };
    let Some(node) = nodes.iter_mut().find(|it| Some(&it.name) == spec.node_name.as_ref()) else {
        return;
    };
    for container in &spec.containers {
        let requests = container.resources.as_ref().and_then(|it| it.requests.as_ref());
        let amount =
            |name: &str| requests.and_then(|it| it.get(name)).map_or("0", |it| it.0.as_str());
        node.requested_cpus += quantity::parse(amount("cpu")).unwrap_or(0.0);
        node.requested_memory_bytes += quantity::whole(amount("memory"));
    }
}

/// The storage classes of a job, all of which exist.
pub(crate) fn classes(
    server: &Server,
    job: &ClusterJob,
    check: Check<'_>,
) -> Result<Vec<ClassFacts>, ClusterError> {
    let api: Api<StorageClass> = Api::all(server.client.clone());
    let all = server.list(&api, "list storage classes", &ListParams::default(), check)?;
    let name = |it: &StorageClass| it.metadata.name.clone().unwrap_or_default();
    let mut found: Vec<ClassFacts> = Vec::new();
    for storage in &job.storage {
        let Some(wanted) = &storage.storage_class_name else { continue };
        let Some(class) = all.iter().find(|it| name(it) == *wanted) else {
            let names = all.iter().map(name).collect::<Vec<_>>().join(", ");
            let there = if names.is_empty() { "none".to_owned() } else { names };
            let what = format!(
                "storage {}: the cluster has no storage class {wanted}; there are {there}",
                storage.name
            );
            return Err(ClusterError::Lacks(what));
        };
        let facts = ClassFacts { name: wanted.clone(), provisioner: class.provisioner.clone() };
        if !found.contains(&facts) {
            found.push(facts);
        }
    }
    Ok(found)
}

/// Runs that have left something in a namespace.
pub(crate) fn old_runs(
    server: &Server,
    namespace: &str,
    own: &RunId,
    check: Check<'_>,
) -> Result<Vec<RunId>, ClusterError> {
    let api: Api<k8s_openapi::api::core::v1::ConfigMap> =
        Api::namespaced(server.client.clone(), namespace);
    let ours = ListParams::default().labels(&managed());
    let owners = server.list(&api, "list config maps", &ours, check)?;
    let labels = owners.into_iter().filter_map(|it| it.metadata.labels?.remove(RUN_LABEL));
    let mut runs: Vec<_> =
        labels.filter_map(|it| RunId::new(&it).ok()).filter(|it| it != own).collect();
    runs.sort();
    runs.dedup();
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_tolerated_as_kubernetes_does() {
        let toleration =
            |key: Option<&str>, operator, value: Option<&str>, effect| NodeToleration {
                key: key.map(str::to_owned),
                operator,
                value: value.map(str::to_owned),
                effect,
            };
        for (toleration, expected) in [
            (toleration(Some("d"), Some("Equal"), Some("x"), Some("NoSchedule")), true),
            (toleration(Some("d"), None, Some("x"), None), true),
            (toleration(Some("d"), Some("Exists"), None, None), true),
            (toleration(None, Some("Exists"), None, None), true),
            (toleration(None, None, None, None), false),
            (toleration(Some("d"), Some("Equal"), Some("y"), None), false),
            (toleration(Some("e"), Some("Exists"), None, None), false),
            (toleration(Some("d"), Some("Exists"), None, Some("NoExecute")), false),
        ] {
            let found = tolerates(&toleration, "d", Some("x"), "NoSchedule");
            assert_eq!(found, expected, "{toleration:?}");
        }
    }
}
