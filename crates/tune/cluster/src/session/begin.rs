//! The begin of a run: what the cluster lacks is told before anything is made, then what owns everything else is made.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;

use super::{Cluster, Session};
use crate::api::{Check, ClusterAccess, Made, Server};
use crate::clock;
use crate::error::ClusterError;
use crate::job::ClusterJob;
use crate::objects::{self, Names, RunId, vm};
use crate::rights::{self, Scope};
use crate::survey::{self, Survey};

/// An API server that has never answered is more likely none: a wrong address is told soon.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// What a begin has made that fails is removed within this time, whoever has ended the begin.
const REMOVAL_LIMIT: Duration = Duration::from_secs(120);

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
        let mut server = Server::new(access)?;
        server.patience = access.patience.min(FIRST_PATIENCE);
        let version =
            server.ask("ask for the version", check, || server.client.apiserver_version())?;
        server.patience = access.patience;
        let version = version.map(|it| it.git_version).unwrap_or_default();
        let mut survey = Survey { server: version, ..Survey::default() };
        let cluster = Cluster { server, names, has_vms: job.has_vms() };
        let server = &cluster.server;
        require_rights(&cluster, job, check)?;
        if job.has_vms() {
            require_kubevirt(&cluster, check)?;
            survey.kubevirt = Some(survey::kubevirt(server, check)?);
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
            has_relay: false,
            looked: None,
            has_namespace,
        })
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

fn require_kubevirt(cluster: &Cluster, check: Check<'_>) -> Result<(), ClusterError> {
    let version = format!("{}/v1", vm::GROUP);
    let server = &cluster.server;
    let ask = || server.client.list_api_group_resources(&version);
    let resources = server.ask("ask for KubeVirt", check, ask)?;
    let has_machines = |it: &k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList| {
        it.resources.iter().any(|it| it.name == "virtualmachines")
    };
    if resources.is_some_and(|it| has_machines(&it)) {
        return Ok(());
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
