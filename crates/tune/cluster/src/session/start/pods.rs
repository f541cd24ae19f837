//! Pods, each with an agent that is run in it.

use agent::DiskRequest;
use k8s_openapi::api::core::v1::Pod;

use super::super::{Session, Setup, Worker};
use super::{Deadline, Seen, of_worker};
use crate::api::Check;
use crate::error::ClusterError;
use crate::job::{ClaimStorage, VolumeMode};
use crate::objects::pod;
use crate::trouble::{self, State};

/// The share of a claim that a file in it may have: file systems need some of it.
const FILE_PERCENT: u64 = 80;
const FILE_ALIGNMENT: u64 = 1 << 20;
/// Runs in a pod.
const AGENT: [&str; 2] = ["ringloom", "agent"];

impl Session {
    /// Waits for the pods of the set and says hello to their agents.
    pub(super) fn reach_pods(
        &self,
        storage: &ClaimStorage,
        setup: &Setup,
        deadline: &Deadline,
        check: Check<'_>,
    ) -> Result<Vec<Worker>, ClusterError> {
        let names = self.names_of(setup);
        let nodes = self.wait_for_all("pod", setup, deadline, check, |own, check| {
            let pods = own.cluster.pods_of(own.set, check)?;
            Ok(names.iter().map(|name| seen(of_worker(&pods, name))).collect())
        })?;
        let greet = |own: &Self, (name, node): (String, String), check: Check<'_>| {
            let agent = own.greet(&name, &AGENT, None, check)?;
            Ok(Worker { name, node, disk: disk(storage), agent })
        };
        self.greet_all(names.iter().cloned().zip(nodes).collect(), greet, check)
    }

    /// Waits until the relay is ready. One that has ended, or whose node is gone, is made anew.
    pub(super) fn require_relay(
        &self,
        deadline: &Deadline,
        check: Check<'_>,
    ) -> Result<(), ClusterError> {
        let (server, name) = (&self.cluster.server, self.cluster.names.relay());
        let failed = |why| ClusterError::Worker { what: format!("pod {name}"), why };
        let found = server.get(&self.cluster.pods(), &name, check)?;
        if matches!(found.as_ref().map(trouble::pod_state), Some(State::Failed(_))) {
            self.cluster.remove_relay(check)?;
        }
        let relay = pod::relay(&self.cluster.names, &self.job, &self.owner);
        server.create(&self.cluster.pods(), "the relay", &relay, check)?;
        loop {
            let found = server.get(&self.cluster.pods(), &name, check)?;
            match seen(found.as_ref()) {
                Seen::Ready(_) => return Ok(()),
                Seen::Failed(why) => return Err(failed(why)),
                Seen::Waits(own) if deadline.is_over() => {
                    let events = self.cluster.all_events(check);
                    return Err(failed(self.explain(&name, None, own, &events, deadline, check)));
                }
                Seen::Waits(_) => server.pause(check)?,
            }
        }
    }
}

/// A pod, with its node once it is ready.
fn seen(pod: Option<&Pod>) -> Seen<String> {
    let Some(pod) = pod else { return Seen::Failed("somebody has deleted it".to_owned()) };
    Seen::of(trouble::pod_state(pod), || node_of(pod))
}

fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|it| it.node_name.clone()).unwrap_or_default()
}

/// What the agent in a pod has to make ready.
fn disk(storage: &ClaimStorage) -> DiskRequest {
    match storage.volume_mode {
        VolumeMode::Block => DiskRequest::Device { path: pod::DEVICE.to_owned() },
        VolumeMode::Filesystem => {
            let bytes = storage.bytes / 100 * FILE_PERCENT / FILE_ALIGNMENT * FILE_ALIGNMENT;
            DiskRequest::Directory { path: pod::DIRECTORY.to_owned(), bytes }
        }
    }
}
