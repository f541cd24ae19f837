//! What the results say of a cluster: its nodes, and the storage that was measured there.

use plan::units::{Bytes, counted};
use plan::variant::ClaimName;
use serde::{Deserialize, Serialize};

use super::header::differences;

/// Stands for a version that a cluster does not tell.
pub const UNKNOWN: &str = "unknown";

/// A cluster as far as it was used. What it does not tell is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cluster {
    /// `v1.34.1`, of its API server.
    pub version: String,
    /// KubeVirt's version, where virtual machines are measured; `unknown` if the cluster does not tell it.
    pub kubevirt: Option<String>,
    /// Where everything was made.
    pub namespace: String,
    /// The name of the run there: what is made for it has that label.
    pub run: String,
    /// Those that could be used.
    pub nodes: Vec<ClusterNode>,
    /// What was measured, in the order of the job file.
    pub storage: Vec<ClusterStorage>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterNode {
    /// Its name.
    pub name: String,
    /// How many CPUs it has.
    pub cpus: u32,
    /// All of its memory.
    pub memory_kib: u64,
    /// The release of its kernel.
    pub kernel: String,
    /// The version of its kubelet.
    pub kubelet: String,
    /// What runs containers there: `containerd://1.7.27`; empty in older files.
    pub runtime: String,
    /// The type that the provider gives it.
    pub instance_type: Option<String>,
    /// CPUs in thousandths that pods of others had asked for before the start.
    pub requested_millicpus: u64,
}

/// A storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStorage {
    /// As the job file calls it.
    pub name: ClaimName,
    /// The storage class.
    pub class: String,
    /// What makes its volumes: `rbd.csi.ceph.com`.
    pub provisioner: Option<String>,
    /// `Block` or `Filesystem`.
    pub mode: String,
    /// The size of each claim.
    pub bytes: u64,
}

impl ClusterNode {
    /// `node1 (2 CPUs, 23 GiB, Linux 6.18.5, kubelet v1.34.1, containerd 1.7.27)`.
    pub fn description(&self) -> String {
        let Self { name, cpus, memory_kib, kernel, kubelet, runtime, instance_type, .. } = self;
        let cpus = counted(usize::try_from(*cpus).unwrap_or(usize::MAX), "CPU");
        let instance = instance_type.as_ref().map_or_else(String::new, |it| format!("{it}, "));
        let runtime = runtime.replace("://", " ");
        let runtime = if runtime.is_empty() { runtime } else { format!(", {runtime}") };
        format!(
            "{name} ({instance}{cpus}, {} GiB, Linux {kernel}, kubelet {kubelet}{runtime})",
            memory_kib >> 20
        )
    }
}

impl ClusterStorage {
    /// `local: Block of the class local-block (kubernetes.io/no-provisioner), 16G`.
    pub fn description(&self) -> String {
        let Self { name, class, provisioner, mode, bytes } = self;
        let maker = provisioner.as_ref().map_or_else(String::new, |it| format!(" ({it})"));
        format!("{name}: {mode} of the class {class}{maker}, {}", Bytes(*bytes))
    }
}

impl Cluster {
    /// What forbids to mix runs of `self` with older ones. What only one of them knows does not.
    pub fn differences(&self, old: &Self) -> Vec<String> {
        let is_known = |it: &Self| it.kubevirt.as_deref() != Some(UNKNOWN);
        let both_know = is_known(self) && is_known(old);
        let have_runtimes = !self.nodes.iter().chain(&old.nodes).any(|it| it.runtime.is_empty());
        let node = |it: &ClusterNode| {
            let runtime = if have_runtimes { it.runtime.clone() } else { String::new() };
            ClusterNode { runtime, ..it.clone() }.description()
        };
        let facts = |cluster: &Self| {
            let nodes: Vec<String> = cluster.nodes.iter().map(node).collect();
            let storage: Vec<String> =
                cluster.storage.iter().map(ClusterStorage::description).collect();
            let kubevirt = match &cluster.kubevirt {
                None => "not used".to_owned(),
                Some(_) if !both_know => UNKNOWN.to_owned(),
                Some(version) => version.clone(),
            };
            [cluster.version.clone(), kubevirt, nodes.join("; "), storage.join("; ")]
        };
        let names = ["Kubernetes", "KubeVirt", "list of nodes", "list of storage"];
        differences(names, facts(self), facts(old))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> Cluster {
        let node = ClusterNode {
            name: "node1".to_owned(),
            cpus: 16,
            memory_kib: 64 << 20,
            kernel: "6.12.0".to_owned(),
            kubelet: "v1.34.1".to_owned(),
            runtime: "containerd://1.7.27".to_owned(),
            requested_millicpus: 4000,
            ..ClusterNode::default()
        };
        let storage = ClusterStorage {
            name: "ceph".parse().unwrap(),
            class: "rbd".to_owned(),
            provisioner: Some("rbd.csi.ceph.com".to_owned()),
            mode: "Block".to_owned(),
            bytes: 16 << 30,
        };
        let (version, nodes, storage) = ("v1.34.1".to_owned(), vec![node], vec![storage]);
        Cluster { version, nodes, storage, ..Cluster::default() }
    }

    #[test]
    fn nodes_and_storage_are_told_in_a_line() {
        let Cluster { nodes, storage, .. } = cluster();
        assert_eq!(
            nodes[0].description(),
            "node1 (16 CPUs, 64 GiB, Linux 6.12.0, kubelet v1.34.1, containerd 1.7.27)"
        );
        let expected = "ceph: Block of the class rbd (rbd.csi.ceph.com), 16G";
        assert_eq!(storage[0].description(), expected);
    }

    #[test]
    fn runs_of_other_nodes_are_not_mixed() {
        let old = cluster();
        assert!(cluster().differences(&old).is_empty());
        let mut other = cluster();
        other.nodes[0].name = "node7".to_owned();
        // What others ask for, and the name of the run, may differ.
        other.nodes[0].requested_millicpus = 0;
        let differences = other.differences(&old);
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert!(differences[0].starts_with("list of nodes is node7"), "{differences:?}");
    }

    #[test]
    fn what_one_of_two_does_not_know_does_not_keep_them_apart() {
        let of = |kubevirt: &str, runtime: &str| {
            let mut cluster = cluster();
            cluster.kubevirt = Some(kubevirt.to_owned());
            runtime.clone_into(&mut cluster.nodes[0].runtime);
            cluster
        };
        let known = of("v1.6.0", "containerd://1.7.27");
        assert!(known.differences(&of(UNKNOWN, "")).is_empty());
        assert!(of(UNKNOWN, "").differences(&known).is_empty());
        assert_eq!(known.differences(&of("v1.5.0", "containerd://1.7.27")).len(), 1);
        assert_eq!(known.differences(&of("v1.6.0", "containerd://2.1.0")).len(), 1);
        let without = Cluster { kubevirt: None, ..known.clone() };
        assert_eq!(known.differences(&without), ["KubeVirt is v1.6.0, was not used"]);
    }
}
