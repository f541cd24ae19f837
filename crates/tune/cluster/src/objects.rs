//! Everything that is made on a cluster, as data: names, labels, owners; pods, claims and virtual machines in modules of their own.
//!
//! Invariants: every object has the labels of [`Names::labels`] and, but for the ConfigMap that owns them and a namespace, its owner.
//! Pure.

pub(crate) mod claim;
pub(crate) mod pod;
pub(crate) mod vm;

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{
    Affinity, ConfigMap, Namespace, PodAffinity, PodAffinityTerm, Toleration,
    TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};

use crate::error::ClusterError;
use crate::job::{ClusterJob, NodeChoice, Placement, Security, VolumeMode};

/// Who has made an object.
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "ringloom");
/// The run that an object belongs to.
pub(crate) const RUN_LABEL: &str = "ringloom.io/run";
/// The set of workers that a pod belongs to; their launcher pods have it, too.
pub(crate) const SET_LABEL: &str = "ringloom.io/set";
/// The worker that a pod belongs to.
pub(crate) const WORKER_LABEL: &str = "ringloom.io/worker";
/// What tells a node from another.
const HOST_NAME: &str = "kubernetes.io/hostname";
const RUN_ID_MAX: usize = 16;

/// The name of a run: in labels and in the names of everything that it makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunId(String);

impl RunId {
    /// One that was given.
    ///
    /// # Errors
    /// If it has other characters than small letters and digits, or more than 16.
    pub fn new(text: &str) -> Result<Self, ClusterError> {
        let is_plain = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit();
        if (1..=RUN_ID_MAX).contains(&text.len()) && text.bytes().all(is_plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(ClusterError::Lacks(format!(
            "'{text}' is no name of a run: 1 to {RUN_ID_MAX} small letters and digits"
        )))
    }

    /// A new one.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub fn random() -> Result<Self, ClusterError> {
        let token = agent::Token::random()?;
        Ok(Self(token.reveal()[..8].to_owned()))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Names and labels of a run.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) run: RunId,
    pub(crate) namespace: String,
}

impl Names {
    /// Of the ConfigMap that owns everything.
    pub(crate) fn owner(&self) -> String {
        format!("ringloom-{}", self.run)
    }

    /// Of one worker of a set.
    pub(crate) fn worker(&self, set: u32, worker: u16) -> String {
        format!("ringloom-{}-{set}-{worker}", self.run)
    }

    /// Of the pod through which virtual machines are reached.
    pub(crate) fn relay(&self) -> String {
        format!("ringloom-{}-relay", self.run)
    }

    /// Of a claim. Local volumes are bound to nodes, so spread workers have others than packed ones.
    pub(crate) fn claim(&self, storage: &str, placement: Placement, worker: u16) -> String {
        format!("ringloom-{}-{storage}-{}-{worker}", self.run, placement.name())
    }

    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        let own = (RUN_LABEL, self.run.0.as_str());
        [MANAGED_BY, own].map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    /// Selects what the run has made.
    pub(crate) fn selector(&self) -> String {
        format!("{},{RUN_LABEL}={}", managed(), self.run)
    }

    /// Name, labels and owner.
    pub(crate) fn metadata(&self, name: String, owner: Option<&OwnerReference>) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(self.labels()),
            owner_references: owner.map(|it| vec![it.clone()]),
            ..ObjectMeta::default()
        }
    }
}

/// Selects what any run of ringloom has made.
pub(crate) fn managed() -> String {
    format!("{}={}", MANAGED_BY.0, MANAGED_BY.1)
}

/// The set of workers that are started together.
#[derive(Clone, Debug)]
pub(crate) struct Group<'a> {
    pub(crate) names: &'a Names,
    pub(crate) job: &'a ClusterJob,
    pub(crate) owner: &'a OwnerReference,
    pub(crate) set: u32,
    pub(crate) placement: Placement,
}

impl Group<'_> {
    /// Name, labels and owner of one worker.
    pub(crate) fn metadata(&self, worker: u16) -> ObjectMeta {
        let name = self.names.worker(self.set, worker);
        let mut metadata = self.names.metadata(name.clone(), Some(self.owner));
        metadata.labels.get_or_insert_default().extend(self.labels(name));
        metadata
    }

    /// What only the pods of this set have.
    fn labels(&self, name: String) -> [(String, String); 2] {
        [(SET_LABEL.to_owned(), self.set.to_string()), (WORKER_LABEL.to_owned(), name)]
    }

    fn members(&self) -> LabelSelector {
        let mut labels = self.names.labels();
        labels.insert(SET_LABEL.to_owned(), self.set.to_string());
        LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
    }

    /// One pod for each node, and more only where there are fewer nodes.
    pub(crate) fn spread(&self) -> Option<Vec<TopologySpreadConstraint>> {
        (self.placement == Placement::Spread).then(|| {
            vec![TopologySpreadConstraint {
                max_skew: 1,
                topology_key: HOST_NAME.to_owned(),
                when_unsatisfiable: "DoNotSchedule".to_owned(),
                // Otherwise a node that takes none of them keeps the others from having a second.
                node_taints_policy: Some("Honor".to_owned()),
                label_selector: Some(self.members()),
                ..TopologySpreadConstraint::default()
            }]
        })
    }

    /// All on the node of the first.
    pub(crate) fn affinity(&self) -> Option<Affinity> {
        (self.placement == Placement::Packed).then(|| Affinity {
            pod_affinity: Some(PodAffinity {
                required_during_scheduling_ignored_during_execution: Some(vec![PodAffinityTerm {
                    topology_key: HOST_NAME.to_owned(),
                    label_selector: Some(self.members()),
                    ..PodAffinityTerm::default()
                }]),
                ..PodAffinity::default()
            }),
            ..Affinity::default()
        })
    }
}

/// The object whose deletion removes the run.
pub(crate) fn owner(names: &Names) -> ConfigMap {
    ConfigMap { metadata: names.metadata(names.owner(), None), ..ConfigMap::default() }
}

/// The namespace, with the profile that what is made in it needs.
pub(crate) fn namespace(names: &Names, job: &ClusterJob) -> Namespace {
    let has_devices = job.storage.iter().any(|it| it.volume_mode == VolumeMode::Block);
    let profile = match job.security {
        Security::Privileged => "privileged",
        // The pods of virtual machines have a profile of KubeVirt's own.
        Security::Auto | Security::Restricted if job.has_vms() => "privileged",
        Security::Auto if has_devices => "baseline",
        Security::Auto | Security::Restricted => "restricted",
    };
    let mut metadata = names.metadata(names.namespace.clone(), None);
    metadata.namespace = None;
    let enforce = ("pod-security.kubernetes.io/enforce".to_owned(), profile.to_owned());
    metadata.labels.get_or_insert_default().extend([enforce]);
    Namespace { metadata, ..Namespace::default() }
}

/// As Kubernetes writes them.
pub(crate) fn tolerations(choice: &NodeChoice) -> Option<Vec<Toleration>> {
    let all = choice.tolerations.iter().map(|it| Toleration {
        key: it.key.clone(),
        operator: it.operator.map(str::to_owned),
        value: it.value.clone(),
        effect: it.effect.map(str::to_owned),
        ..Toleration::default()
    });
    Some(all.collect::<Vec<_>>()).filter(|it| !it.is_empty())
}

/// Labels that a node must have.
pub(crate) fn node_selector(choice: &NodeChoice) -> Option<BTreeMap<String, String>> {
    Some(choice.node_selector.clone()).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests;
