//! What a person can do about what a cluster says, behind its own words. Pure.
//!
//! Invariants: a hint names a field of the job or what an administrator has to give; where nothing better can be said than the cluster says
//! itself, there is none.

/// Words of a cluster, and what can be done then. The first that fits counts.
const HINTS: [(&[&str], &str); 9] = [
    (
        &["namespaces \"", "\" not found"],
        "make that namespace, or say createNamespace: true in the job",
    ),
    (&["is being terminated"], "wait until that namespace is gone, or name another one"),
    (&["failed quota", "must specify"], "say pod: {cpu, memory} in the job"),
    (
        &["exceeded quota"],
        "take fewer workers or less for each in the job, or have the quota raised",
    ),
    (
        &["violates PodSecurity"],
        "the namespace's label pod-security.kubernetes.io/enforce has to be baseline for block devices in pods and \
         privileged for virtual machines, or say security: restricted in the job",
    ),
    (
        &["ImagePullBackOff"],
        "look at images in the job: the name, and pullSecret if the registry asks for one",
    ),
    (
        &["ErrImageNeverPull"],
        "have the image on all nodes, or say another images.pullPolicy in the job",
    ),
    (
        &["devices.kubevirt.io/kvm"],
        "a node needs KVM for virtual machines, and KubeVirt's virt-handler offers it",
    ),
    (&["OOMKilled"], "give more pod.memory in the job"),
];

/// A hint with what joins it to a sentence, or nothing.
pub(crate) fn behind(words: &str) -> String {
    let fits = |(parts, _): &&(&[&str], &str)| parts.iter().all(|it| words.contains(it));
    HINTS.iter().find(fits).map_or_else(String::new, |(_, hint)| format!(" ({hint})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &str, part: &str) {
        let hint = behind(words);
        assert!(hint.contains(part) && (part.is_empty() == hint.is_empty()), "{words}{hint}");
    }

    #[test]
    fn what_can_be_done_is_said_behind_what_is_wrong() {
        check("namespaces \"nowhere\" not found", "createNamespace: true");
        let ending = "configmaps \"a\" is forbidden: unable to create new content in namespace perf because it is being terminated";
        check(ending, "wait until that namespace is gone");
        check("pods \"a\" is forbidden: exceeded quota: q, requested: pods=1", "fewer workers");
        let quota = "pods \"a\" is forbidden: failed quota: q: must specify limits.cpu for: agent";
        check(quota, "pod: {cpu, memory}");
        let profile =
            "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": runAsUser=0";
        check(profile, "baseline for block devices");
        check("ImagePullBackOff: Back-off pulling image \"a:1\"", "pullSecret");
        check("0/2 nodes are available: 2 Insufficient devices.kubevirt.io/kvm.", "needs KVM");
        check("the container agent has ended with 137 (OOMKilled)", "pod.memory");
        check("Evicted: The node was low on resource: memory.", "");
    }
}
