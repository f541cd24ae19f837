//! A run on a cluster: looked over, workers started and stopped as often as wanted, everything removed at the end.
//!
//! Invariants: a worker that is handed out has an agent that obeys. What was started in vain is removed before the error is told. Claims stay
//! until the end. Objects of a run are found by its label, so that a run which goes on after a kill removes what the first part has left.
//! Limits: `startSeconds` of the job for a set of workers; the patience of [`ClusterAccess`] for everything else.

mod removal;
mod start;

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{
    ConfigMap, Event, Namespace, Node, PersistentVolumeClaim, Pod, ServiceAccount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};

pub use self::removal::{Removal, sweep};
use crate::api::{Check, ClusterAccess, Made, Server};
use crate::clock;
use crate::error::ClusterError;
use crate::job::{ClusterJob, Placement, Treatment};
use crate::objects::{self, Names, RunId, SET_LABEL, WORKER_LABEL, vm};
use crate::rights::{self, Scope};
use crate::survey::{self, Survey};
use crate::trouble::{self, State};

/// How often the pods of workers are looked at while fio runs.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What a begin has made that fails is removed within this time, whoever has ended the begin.
const REMOVAL_LIMIT: Duration = Duration::from_secs(120);
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

    /// Pods of one set, those of virtual machines among them.
    fn pods_of(&self, set: u32, check: Check<'_>) -> Result<Vec<Pod>, ClusterError> {
        let selector = format!("{},{SET_LABEL}={set}", self.names.selector());
        self.server.list(&self.pods(), "list pods", &ListParams::default().labels(&selector), check)
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
    /// Looks the cluster over and makes what owns everything else. With the name of a run that was interrupted, its claims are found again, and
    /// what it has left of pods and virtual machines is removed.
    ///
    /// # Errors
    /// What the cluster lacks, which rights are missing, or what else keeps the job from being carried out.
    pub fn begin(
        job: &ClusterJob,
        access: &ClusterAccess,
        run: RunId,
        check: Check<'_>,
    ) -> Result<Self, ClusterError> {
        let names = Names { run, namespace: job.namespace.clone() };
        let cluster = Cluster { server: Server::new(access)?, names, has_vms: job.has_vms() };
        let mut survey = Survey::default();
        let server = &cluster.server;
        let version =
            server.ask("ask for the version", check, || server.client.apiserver_version())?;
        survey.server = version.map(|it| it.git_version).unwrap_or_default();
        require_rights(&cluster, job, check)?;
        if job.has_vms() {
            survey.kubevirt = Some(kubevirt(&cluster, check)?);
        }
        survey.nodes = survey::nodes(server, job, &mut survey.notes, check)?;
        survey.storage_classes = survey::classes(server, job, check)?;
        survey.old_runs = survey::old_runs(server, &job.namespace, &cluster.names.run, check)?;
        let (owner, has_namespace) = first_objects(&cluster, job, check)?;
        Ok(Self {
            cluster,
            job: job.clone(),
            owner,
            survey,
            set: 0,
            started: Vec::new(),
            looked: None,
            has_namespace,
        })
    }

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

    /// Whether the workers' pods still run; looks at most every two seconds.
    ///
    /// # Errors
    /// What became of one, or of the API server.
    pub fn look(&mut self, check: Check<'_>) -> Result<(), ClusterError> {
        if self.looked.is_some_and(|it| it.elapsed() < LOOK_EVERY) {
            return Ok(());
        }
        self.looked = Some(clock::now());
        let pods = self.cluster.pods_of(self.set, check)?;
        for name in &self.started {
            let is_its = |it: &&Pod| it.labels().get(WORKER_LABEL) == Some(name);
            let found = pods.iter().find(is_its);
            let node = found.and_then(|it| it.spec.as_ref()?.node_name.clone()).unwrap_or_default();
            let why = match found.map(trouble::pod_state) {
                None => Some("somebody has deleted it".to_owned()),
                Some(State::Failed(why)) => Some(format!("on the node {node}: {why}")),
                // A pod whose node does not tell of itself any more is not ready.
                Some(State::Waits(_)) => self.cluster.node_trouble(&node, check)?,
                Some(State::Ready) => None,
            };
            if let Some(why) = why {
                return Err(ClusterError::Worker { what: format!("pod {name}"), why });
            }
        }
        Ok(())
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
        self.cluster.remove_workers(check)
    }

    /// Removes everything, whatever is running, and names what it could not. After an interrupt, `check` has to say yes again.
    pub fn finish(self, check: Check<'_>) -> Removal {
        self.cluster.remove_all(self.has_namespace, check)
    }
}

/// Makes the namespace, if that is wanted, and what owns everything else; removes workers of a part of the run that was killed. If that fails,
/// what was made goes again, or is named.
fn first_objects(
    cluster: &Cluster,
    job: &ClusterJob,
    check: Check<'_>,
) -> Result<(OwnerReference, bool), ClusterError> {
    let mut make = || {
        let has_namespace = require_namespace(cluster, job, check)?;
        let owner = own(cluster, has_namespace, check)?;
        cluster.remove_workers(check)?;
        Ok((owner, has_namespace))
    };
    make().map_err(|error: ClusterError| {
        let begun = clock::now();
        let check: Check<'_> = &mut || {
            if begun.elapsed() < REMOVAL_LIMIT { Ok(()) } else { Err("it takes too long".into()) }
        };
        // What was asked for when the wait ended may have been made all the same.
        let owned = if job.create_namespace { cluster.owns_namespace(check) } else { Ok(false) };
        let unknown = owned.as_ref().err().map(|it| format!("namespace {}: {it}", job.namespace));
        let mut left = cluster.remove_all(owned.unwrap_or(false), check).left;
        left.extend(unknown);
        error.with_left(left)
    })
}

/// All rights at once, so that an administrator is asked once.
fn require_rights(
    cluster: &Cluster,
    job: &ClusterJob,
    check: Check<'_>,
) -> Result<(), ClusterError> {
    use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
    use kube::api::PostParams;
    let api: Api<SelfSubjectAccessReview> = Api::all(cluster.server.client.clone());
    let mut missing = Vec::new();
    let parameters = PostParams::default();
    for right in rights::needed(job).iter().filter(|it| it.scope != Scope::Wish) {
        for (name, question) in right.questions(&job.namespace) {
            let ask = || api.create(&parameters, &question);
            let answer = cluster.server.ask("ask for rights", check, ask)?;
            if !answer.and_then(|it| it.status).is_some_and(|it| it.allowed) {
                missing.push(name);
            }
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(ClusterError::Rights(missing)) }
}

/// The version of KubeVirt's API.
fn kubevirt(cluster: &Cluster, check: Check<'_>) -> Result<String, ClusterError> {
    let version = format!("{}/v1", vm::GROUP);
    let server = &cluster.server;
    let ask = || server.client.list_api_group_resources(&version);
    let resources = server.ask("ask for KubeVirt", check, ask)?;
    let has_machines = |it: &k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList| {
        it.resources.iter().any(|it| it.name == "virtualmachines")
    };
    if resources.is_some_and(|it| has_machines(&it)) {
        return Ok(version);
    }
    let what = "the cluster has no KubeVirt (no virtualmachines of kubevirt.io/v1): leave vm out of treatments, or install it";
    Err(ClusterError::Lacks(what.to_owned()))
}

/// The namespace, made if that is wanted; whether it is this run's.
fn require_namespace(
    cluster: &Cluster,
    job: &ClusterJob,
    check: Check<'_>,
) -> Result<bool, ClusterError> {
    let api: Api<Namespace> = Api::all(cluster.server.client.clone());
    let name = &job.namespace;
    if !job.create_namespace {
        // Who may only act in it may not see it; then the first object that is made tells.
        return Ok(false);
    }
    let namespace = objects::namespace(&cluster.names, job);
    let made = cluster.server.create(&api, &format!("namespace {name}"), &namespace, check)?;
    if made == Made::Now || cluster.owns_namespace(check)? {
        return Ok(true);
    }
    let what = format!(
        "the namespace {name} exists and is not this run's: say createNamespace: false to use it"
    );
    Err(ClusterError::Lacks(what))
}

/// No pod is let in before the account that it would have: a controller makes it in each new namespace.
fn require_account(cluster: &Cluster, check: Check<'_>) -> Result<(), ClusterError> {
    let (server, begun) = (&cluster.server, clock::now());
    let api: Api<ServiceAccount> = Api::namespaced(server.client.clone(), &cluster.names.namespace);
    while server.get(&api, "default", check)?.is_none() {
        if begun.elapsed() > server.patience {
            let what =
                "the new namespace gets no service account: are the cluster's controllers at work?";
            return Err(ClusterError::Lacks(what.to_owned()));
        }
        server.pause(check)?;
    }
    Ok(())
}

/// Makes the object that owns all others.
fn own(
    cluster: &Cluster,
    has_namespace: bool,
    check: Check<'_>,
) -> Result<OwnerReference, ClusterError> {
    if has_namespace {
        require_account(cluster, check)?;
    }
    let (api, name) = (cluster.owners(), cluster.names.owner());
    cluster.server.create(
        &api,
        &format!("config map {name}"),
        &objects::owner(&cluster.names),
        check,
    )?;
    let made = cluster.server.get(&api, &name, check)?;
    let uid = made.and_then(|it| it.metadata.uid).ok_or_else(|| ClusterError::Refused {
        what: format!("config map {name}"),
        why: "it is gone again".to_owned(),
    })?;
    Ok(OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name,
        uid,
        ..OwnerReference::default()
    })
}
