//! A run on a cluster: looked over, workers started and stopped as often as wanted, everything removed at the end.
//!
//! Invariants: a worker that is handed out has an agent that obeys. What was started in vain is removed before the error is told. Claims stay
//! until the end. Objects of a run are found by its label, so that a run which goes on after a kill removes what the first part has left.
//! Limits: `startSeconds` of the job for a set of workers; the patience of [`crate::ClusterAccess`] for everything else.

mod begin;
mod removal;
mod start;

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};

pub use self::removal::{Removal, sweep};
use crate::api::{Check, Server};
use crate::clock;
use crate::error::ClusterError;
use crate::job::{ClaimStorage, ClusterJob, Placement, Treatment, VolumeMode};
use crate::objects::{Names, RunId, SET_LABEL, WORKER_LABEL, vm};
use crate::survey::Survey;
use crate::trouble::{self, Several, State};

/// How often the pods of workers are looked at while fio runs.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A stream ends before the cluster says why: so long it is asked.
const TROUBLE_LIMIT: Duration = Duration::from_secs(5);

/// What is started together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// What fio runs in.
    pub treatment: Treatment,
    /// The name of a storage of the job.
    pub storage: String,
    /// How many.
    pub workers: u16,
    /// On which nodes.
    pub placement: Placement,
}

/// A place where fio runs.
#[derive(Debug)]
pub struct Worker {
    /// Of its pod or virtual machine.
    pub name: String,
    /// On which it is.
    pub node: String,
    /// What its agent has to make ready.
    pub disk: agent::DiskRequest,
    /// The way to it.
    pub agent: agent::Client,
}

/// A run.
#[derive(Debug)]
pub struct Session {
    cluster: Cluster,
    job: ClusterJob,
    owner: OwnerReference,
    survey: Survey,
    set: u32,
    /// Names of the workers that run.
    started: Vec<String>,
    /// Whether they are reached through the relay.
    has_relay: bool,
    looked: Option<Instant>,
    has_namespace: bool,
}

/// The kinds of objects in the namespace.
#[derive(Debug)]
struct Cluster {
    server: Server,
    names: Names,
    has_vms: bool,
}

impl Cluster {
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.server.client.clone(), &self.names.namespace)
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.server.client.clone(), &self.names.namespace)
    }

    fn owners(&self) -> Api<ConfigMap> {
        Api::namespaced(self.server.client.clone(), &self.names.namespace)
    }

    fn events(&self) -> Api<Event> {
        Api::namespaced(self.server.client.clone(), &self.names.namespace)
    }

    fn machines(&self) -> Api<DynamicObject> {
        let namespace = &self.names.namespace;
        Api::namespaced_with(self.server.client.clone(), namespace, &vm::machines())
    }

    fn instances(&self) -> Api<DynamicObject> {
        let namespace = &self.names.namespace;
        Api::namespaced_with(self.server.client.clone(), namespace, &vm::instances())
    }

    fn ours(&self) -> ListParams {
        ListParams::default().labels(&self.names.selector())
    }

    /// What was made for one set of workers.
    fn of_set(&self, set: u32) -> ListParams {
        ListParams::default().labels(&format!("{},{SET_LABEL}={set}", self.names.selector()))
    }

    /// Pods of one set, those of virtual machines among them.
    fn pods_of(&self, set: u32, check: Check<'_>) -> Result<Vec<Pod>, ClusterError> {
        self.server.list(&self.pods(), "list pods", &self.of_set(set), check)
    }

    /// Why a pod that ran does not, if it does not.
    fn pod_trouble(
        &self,
        pod: Option<&Pod>,
        check: Check<'_>,
    ) -> Result<Option<String>, ClusterError> {
        let Some(pod) = pod else { return Ok(Some("somebody has deleted it".to_owned())) };
        let node = pod.spec.as_ref().and_then(|it| it.node_name.clone()).unwrap_or_default();
        Ok(match trouble::pod_state(pod) {
            State::Failed(why) => Some(format!("on the node {node}: {why}")),
            // A pod whose node does not tell of itself any more is not ready.
            State::Waits(_) => self.node_trouble(&node, check)?,
            State::Ready => None,
        })
    }

    /// Why a node is not ready, if it is not.
    fn node_trouble(&self, name: &str, check: Check<'_>) -> Result<Option<String>, ClusterError> {
        let nodes: Api<Node> = Api::all(self.server.client.clone());
        Ok(match self.server.get(&nodes, name, check)? {
            Some(node) => trouble::node_trouble(&node),
            None => Some(format!("its node {name} is gone")),
        })
    }

    fn all_events(&self, check: Check<'_>) -> Vec<Event> {
        // They only explain; without them there is a sentence all the same.
        let all = self.server.list(&self.events(), "list events", &ListParams::default(), check);
        all.unwrap_or_default()
    }
}

impl Session {
    /// The name of the run.
    #[must_use]
    pub fn run(&self) -> &RunId {
        &self.cluster.names.run
    }

    /// What the cluster is.
    #[must_use]
    pub fn survey(&self) -> &Survey {
        &self.survey
    }

    /// Whether the claims of a storage of the job are file systems.
    #[must_use]
    pub fn has_files(&self, storage: &str) -> bool {
        let is_it =
            |it: &ClaimStorage| it.name == storage && it.volume_mode == VolumeMode::Filesystem;
        self.job.storage.iter().any(is_it)
    }

    /// Whether the workers' pods still run, and the relay; looks at most every two seconds.
    ///
    /// # Errors
    /// What became of those that do not, or of the API server.
    pub fn look(&mut self, check: Check<'_>) -> Result<(), ClusterError> {
        if self.looked.is_some_and(|it| it.elapsed() < LOOK_EVERY) {
            return Ok(());
        }
        self.looked = Some(clock::now());
        let pods = self.cluster.pods_of(self.set, check)?;
        let mut failed = Vec::new();
        for name in &self.started {
            let is_its = |it: &&Pod| it.labels().get(WORKER_LABEL) == Some(name);
            let why = self.cluster.pod_trouble(pods.iter().find(is_its), check)?;
            failed.extend(why.map(|why| (format!("pod {name}"), why)));
        }
        if self.has_relay {
            let name = self.cluster.names.relay();
            let relay = self.cluster.server.get(&self.cluster.pods(), &name, check)?;
            let why = self.cluster.pod_trouble(relay.as_ref(), check)?;
            failed.extend(why.map(|why| (format!("pod {name}"), why)));
        }
        let of = self.started.len();
        if failed.is_empty() { Ok(()) } else { Err(Several::of(failed, of).error()) }
    }

    /// Why an agent may have been lost, as far as the cluster knows; asked for some seconds, for the cluster notices later.
    pub fn trouble(&mut self, check: Check<'_>) -> Option<ClusterError> {
        let asked = clock::now();
        loop {
            self.looked = None;
            if let Err(error) = self.look(check) {
                return Some(error);
            }
            if asked.elapsed() > TROUBLE_LIMIT {
                return None;
            }
            if let Err(error) = self.cluster.server.pause(check) {
                return Some(error);
            }
        }
    }

    /// Removes pods or virtual machines, and waits until they are gone; claims stay.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn stop(&mut self, workers: Vec<Worker>, check: Check<'_>) -> Result<(), ClusterError> {
        // Their agents end with their streams.
        drop(workers);
        self.started.clear();
        self.has_relay = false;
        self.cluster.remove_workers(check)
    }

    /// Removes everything, whatever is running, and names what it could not. After an interrupt, `check` has to say yes again.
    pub fn finish(self, check: Check<'_>) -> Removal {
        self.cluster.remove_all(self.has_namespace, check)
    }
}
