//! Everything goes: machines and pods first, for a claim stays as long as a pod uses it.

use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::Cluster;
use crate::api::{Check, ClusterAccess, Server};
use crate::clock;
use crate::error::ClusterError;
use crate::objects::{Names, RUN_LABEL, RunId};
use crate::survey;

/// What a removal has left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// A sentence for each; none if all is gone.
    pub left: Vec<String>,
}

/// Removes what a run has left that was killed.
///
/// # Errors
/// If the cluster cannot be reached, or has nothing of such a run.
pub fn sweep(
    access: &ClusterAccess,
    namespace: &str,
    run: &RunId,
    check: Check<'_>,
) -> Result<Removal, ClusterError> {
    let server = Server::new(access)?;
    let names = Names { run: run.clone(), namespace: namespace.to_owned() };
    let mut cluster = Cluster { server, names, has_vms: false };
    // Without KubeVirt there are none, and who may not look for them has made none.
    let machines = cluster.machines();
    let one = ListParams::default().limit(1);
    let ask = || machines.list(&one);
    cluster.has_vms = cluster.server.ask("list virtual machines", check, ask)?.is_some();
    let has_namespace = cluster.owns_namespace(check)?;
    if !has_namespace && !cluster.has_any(check)? {
        let others = survey::old_runs(&cluster.server, namespace, run, check)?;
        let others: Vec<_> = others.iter().map(ToString::to_string).collect();
        let there = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        let what =
            format!("the namespace {namespace} has nothing of a run {run}; runs there: {there}");
        return Err(ClusterError::Lacks(what));
    }
    Ok(cluster.remove_all(has_namespace, check))
}

impl Cluster {
    /// Whether the namespace was made by the run. Who may not look at it has not made it.
    pub(super) fn owns_namespace(&self, check: Check<'_>) -> Result<bool, ClusterError> {
        let spaces: Api<Namespace> = Api::all(self.server.client.clone());
        let name = &self.names.namespace;
        let space = self.server.ask("get the namespace", check, || spaces.get(name))?;
        let label = space.and_then(|it| it.labels().get(RUN_LABEL).cloned());
        Ok(label == Some(self.names.run.to_string()))
    }

    /// Whether there is anything of the run in the namespace.
    fn has_any(&self, check: Check<'_>) -> Result<bool, ClusterError> {
        let has_owner = self.server.get(&self.owners(), &self.names.owner(), check)?.is_some();
        Ok(has_owner || !self.workers(check)?.is_empty() || !self.own_claims(check)?.is_empty())
    }

    fn own_claims(&self, check: Check<'_>) -> Result<Vec<PersistentVolumeClaim>, ClusterError> {
        self.server.list(&self.claims(), "list claims", &self.ours(), check)
    }

    /// Names of pods and machines of the run.
    fn workers(&self, check: Check<'_>) -> Result<Vec<String>, ClusterError> {
        let mut left = Vec::new();
        if self.has_vms {
            let machines =
                self.server.list(&self.machines(), "list virtual machines", &self.ours(), check)?;
            left.extend(machines.iter().map(|it| format!("virtual machine {}", it.name_any())));
        }
        let pods = self.server.list(&self.pods(), "list pods", &self.ours(), check)?;
        let relay = self.names.relay();
        let pods = pods.iter().map(ResourceExt::name_any).filter(|it| *it != relay);
        left.extend(pods.map(|it| format!("pod {it}")));
        Ok(left)
    }

    /// Removes all pods and machines of the run but the relay, and waits until they are gone.
    pub(super) fn remove_workers(&self, check: Check<'_>) -> Result<(), ClusterError> {
        let machines = if self.has_vms {
            self.server.list(&self.machines(), "list virtual machines", &self.ours(), check)?
        } else {
            Vec::new()
        };
        for machine in &machines {
            self.server.delete(&self.machines(), &machine.name_any(), check)?;
        }
        let relay = self.names.relay();
        for pod in self.server.list(&self.pods(), "list pods", &self.ours(), check)? {
            // Pods of machines go with them, in order.
            let is_launcher = pod.labels().contains_key("kubevirt.io");
            if pod.name_any() != relay && !is_launcher {
                self.server.delete(&self.pods(), &pod.name_any(), check)?;
            }
        }
        self.wait_until_gone(check, |check| self.workers(check))
    }

    /// Waits until there is nothing left to be named.
    fn wait_until_gone(
        &self,
        check: Check<'_>,
        mut list: impl FnMut(Check<'_>) -> Result<Vec<String>, ClusterError>,
    ) -> Result<(), ClusterError> {
        let (begun, limit) = (clock::now(), self.server.patience * 2);
        loop {
            let left = list(check)?;
            if left.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > limit {
                let why = format!("not gone {} s after it was deleted", limit.as_secs());
                return Err(ClusterError::Worker { what: left.join(", "), why });
            }
            self.server.pause(check)?;
        }
    }

    /// Removes everything of the run; goes on after what cannot be removed, unless nobody answers or waits any more.
    pub(super) fn remove_all(&self, has_namespace: bool, check: Check<'_>) -> Removal {
        let owner = self.names.owner();
        let namespace = &self.names.namespace;
        let mut steps: Vec<(String, Step<'_>)> = vec![
            ("pods".to_owned(), Box::new(|check| self.remove_workers(check))),
            ("relay".to_owned(), Box::new(|check| self.remove_relay(check))),
            ("claims".to_owned(), Box::new(|check| self.remove_claims(check))),
            (
                format!("config map {owner}"),
                Box::new(|check| self.server.delete(&self.owners(), &owner, check)),
            ),
        ];
        if has_namespace {
            steps.push((
                format!("namespace {namespace}"),
                Box::new(|check| self.remove_namespace(check)),
            ));
        }
        let mut left = Vec::new();
        let mut is_over = false;
        for (what, step) in steps {
            if is_over {
                left.push(format!("{what}: not tried"));
            } else if let Err(error) = step(check) {
                is_over = matches!(error, ClusterError::Lost { .. } | ClusterError::Ended(_));
                left.push(format!("{what}: {}", sentence(&error)));
            }
        }
        if !left.is_empty() {
            let machines = if self.has_vms { "vm," } else { "" };
            left.push(format!(
                "kubectl delete {machines}pod,pvc,configmap -n {namespace} -l {} removes what is left",
                self.names.selector()
            ));
        }
        Removal { left }
    }

    pub(super) fn remove_relay(&self, check: Check<'_>) -> Result<(), ClusterError> {
        let relay = self.names.relay();
        self.server.delete(&self.pods(), &relay, check)?;
        self.wait_until_gone(check, |check| {
            let found = self.server.get(&self.pods(), &relay, check)?;
            Ok(found.iter().map(|_| format!("pod {relay}")).collect())
        })
    }

    fn remove_namespace(&self, check: Check<'_>) -> Result<(), ClusterError> {
        let name = &self.names.namespace;
        let spaces: Api<Namespace> = Api::all(self.server.client.clone());
        self.server.delete(&spaces, name, check)?;
        self.wait_until_gone(check, |check| {
            let found = self.server.get(&spaces, name, check)?;
            Ok(found.iter().map(|_| format!("namespace {name}")).collect())
        })
    }

    fn remove_claims(&self, check: Check<'_>) -> Result<(), ClusterError> {
        for claim in self.own_claims(check)? {
            self.server.delete(&self.claims(), &claim.name_any(), check)?;
        }
        self.wait_until_gone(check, |check| {
            let left = self.own_claims(check)?;
            Ok(left.iter().map(|it| format!("claim {}", it.name_any())).collect())
        })
    }
}

/// One thing that is removed.
type Step<'a> = Box<dyn FnOnce(Check<'_>) -> Result<(), ClusterError> + 'a>;

/// An error with its causes.
fn sentence(error: &ClusterError) -> String {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |it| it.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
