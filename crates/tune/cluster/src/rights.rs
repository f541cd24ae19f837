//! The rights that a job needs: printed as a Role, and asked for before anything is made.
//!
//! Invariants: what is asked for is what is printed: both come of one table.

use std::fmt::Write;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};

use crate::job::ClusterJob;

/// Some verbs on one resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Right {
    pub(crate) group: &'static str,
    /// With its subresource behind a slash.
    pub(crate) resource: &'static str,
    pub(crate) verbs: &'static [&'static str],
    pub(crate) scope: Scope,
}

/// Where a right holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// In the job's namespace.
    Namespace,
    /// In all of the cluster.
    Cluster,
    /// In all of the cluster, and it works without.
    Wish,
}

const MADE: &[&str] = &["create", "delete", "get", "list"];
const LOOKED_AT: &[&str] = &["get", "list"];

const fn right(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    scope: Scope,
) -> Right {
    Right { group, resource, verbs, scope }
}

/// All that a job needs.
pub(crate) fn needed(job: &ClusterJob) -> Vec<Right> {
    let mut all = vec![
        right("", "configmaps", MADE, Scope::Namespace),
        right("", "pods", MADE, Scope::Namespace),
        // A stream by websocket is a get, and from Kubernetes 1.35 on a create as well.
        right("", "pods/exec", &["create", "get"], Scope::Namespace),
        right("", "persistentvolumeclaims", MADE, Scope::Namespace),
        right("", "events", &["list"], Scope::Namespace),
        right("", "nodes", LOOKED_AT, Scope::Cluster),
        right("storage.k8s.io", "storageclasses", LOOKED_AT, Scope::Cluster),
        right("", "pods", &["list"], Scope::Wish),
    ];
    if job.has_vms() {
        all.push(right("kubevirt.io", "virtualmachines", MADE, Scope::Namespace));
        all.push(right("kubevirt.io", "virtualmachineinstances", LOOKED_AT, Scope::Namespace));
    }
    if job.create_namespace {
        all.push(right("", "namespaces", &["create", "delete", "get"], Scope::Cluster));
        all.push(right("", "serviceaccounts", &["get"], Scope::Namespace));
    }
    all
}

impl Right {
    /// The questions to the API server, each with what it is called in a sentence.
    pub(crate) fn questions(&self, namespace: &str) -> Vec<(String, SelfSubjectAccessReview)> {
        let namespace = (self.scope == Scope::Namespace).then(|| namespace.to_owned());
        let (resource, subresource) = match self.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
            None => (self.resource, None),
        };
        let question = |verb: &&str| {
            let place = namespace.as_ref().map_or_else(
                || " in all of the cluster".to_owned(),
                |it| format!(" in the namespace {it}"),
            );
            let group = if self.group.is_empty() { "" } else { "." };
            let name = format!("{verb} {}{group}{}{place}", self.resource, self.group);
            let attributes = ResourceAttributes {
                group: Some(self.group.to_owned()),
                namespace: namespace.clone(),
                resource: Some(resource.to_owned()),
                subresource: subresource.clone(),
                verb: Some((*verb).to_owned()),
                ..ResourceAttributes::default()
            };
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            (name, review)
        };
        self.verbs.iter().map(question).collect()
    }
}

/// A Role and a ClusterRole with these rights and no others, and their bindings to a service account `ringloom-tune`, as YAML.
///
/// In a namespace that is to be made nobody can have rights yet: then all of them are in the ClusterRole.
#[must_use]
pub fn rbac(job: &ClusterJob) -> String {
    let rights = needed(job);
    let namespace = &job.namespace;
    let (inside, wide): (Vec<_>, Vec<_>) =
        rights.into_iter().partition(|it| it.scope == Scope::Namespace && !job.create_namespace);
    let wide_name = format!("ringloom-tune-{namespace}");
    if job.create_namespace {
        let comment = "# The namespace is not there yet, so these hold in all; if it exists (createNamespace: false), a Role suffices.\n";
        return comment.to_owned() + &role("ClusterRole", &wide_name, None, "default", &wide);
    }
    let role_inside = role("Role", "ringloom-tune", Some(namespace), namespace, &inside);
    role_inside + "---\n" + &role("ClusterRole", &wide_name, None, namespace, &wide)
}

/// A role and its binding to the service account of a namespace.
fn role(kind: &str, name: &str, place: Option<&str>, account: &str, rights: &[Right]) -> String {
    const API: &str = "apiVersion: rbac.authorization.k8s.io/v1";
    let place = place.map_or_else(String::new, |it| format!(", namespace: {it}"));
    let metadata = format!("metadata: {{name: {name}{place}}}");
    let mut text = format!("{API}\nkind: {kind}\n{metadata}\nrules:\n");
    for Right { group, resource, verbs, .. } in rights {
        let verbs = verbs.join(", ");
        let rule = format!(
            "- {{apiGroups: [\"{group}\"], resources: [\"{resource}\"], verbs: [{verbs}]}}"
        );
        writeln!(text, "{rule}").expect("a text takes all");
    }
    text + &format!(
        "---\n{API}\nkind: {kind}Binding\n{metadata}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {kind}, name: {name}}}\n\
         subjects:\n- {{kind: ServiceAccount, name: ringloom-tune, namespace: {account}}}\n"
    )
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};

    use super::*;
    use crate::job::{TreatmentKind, example};

    #[test]
    fn what_is_printed_is_what_is_asked_for() {
        let mut job = ClusterJob::parse(example()).expect("a job");
        job.treatments.push(TreatmentKind::Vm);
        let text = rbac(&job);
        let documents: Vec<_> = text.split("---\n").collect();
        let role: Role = serde_saphyr::from_str(documents[0]).expect("a role");
        let binding: RoleBinding = serde_saphyr::from_str(documents[1]).expect("a binding");
        let wide: ClusterRole = serde_saphyr::from_str(documents[2]).expect("a role");
        let all: ClusterRoleBinding = serde_saphyr::from_str(documents[3]).expect("a binding");
        assert_eq!(documents.len(), 4);
        assert_eq!(Some(&binding.role_ref.name), role.metadata.name.as_ref());
        assert_eq!(Some(&all.role_ref.name), wide.metadata.name.as_ref());
        let rules = role.rules.into_iter().chain(wide.rules).flatten();
        let printed: usize = rules.map(|it| it.verbs.len()).sum();
        let asked: usize = needed(&job).iter().map(|it| it.questions(&job.namespace).len()).sum();
        assert_eq!(printed, asked);
        assert!(!text.contains("namespaces"), "it is not to be made");
        let made = ClusterJob { create_namespace: true, ..job };
        let text = rbac(&made);
        assert!(text.contains("namespaces") && !text.contains("kind: Role\n"), "{text}");
        let documents: Vec<_> = text.split("---\n").collect();
        let wide: ClusterRole = serde_saphyr::from_str(documents[0]).expect("a role");
        let rules: usize = wide.rules.iter().flatten().map(|it| it.verbs.len()).sum();
        let asked: usize = needed(&made).iter().map(|it| it.questions("n").len()).sum();
        assert_eq!((documents.len(), rules), (2, asked));
    }
}
