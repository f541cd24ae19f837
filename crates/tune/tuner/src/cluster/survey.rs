//! What the cluster was before the start, as the results have it.

use ::cluster::{NodeFacts, Survey};
use records::results::{Cluster, ClusterNode};

/// The nodes, and the versions of what runs there.
pub(super) fn of(survey: &Survey) -> Cluster {
    Cluster {
        version: survey.server.clone(),
        kubevirt: survey.kubevirt.clone(),
        nodes: survey.nodes.iter().map(node).collect(),
        ..Cluster::default()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "neither negative nor larger than any node has"
)]
fn node(facts: &NodeFacts) -> ClusterNode {
    ClusterNode {
        name: facts.name.clone(),
        // Some runtimes tell fractions.
        cpus: facts.cpus.floor().max(1.0) as u32,
        memory_kib: facts.memory_bytes >> 10,
        kernel: facts.kernel.clone(),
        kubelet: facts.kubelet.clone(),
        runtime: facts.runtime.clone(),
        instance_type: facts.instance_type.clone(),
        requested_millicpus: (facts.requested_cpus * 1000.0).round().max(0.0) as u64,
    }
}
