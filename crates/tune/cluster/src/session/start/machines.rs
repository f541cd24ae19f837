//! Virtual machines, reached through the relay.

use agent::{Client, DiskRequest, PORT, Token};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::DynamicObject;

use super::super::{Session, Setup, Worker};
use super::{Deadline, Seen};
use crate::api::Check;
use crate::error::ClusterError;
use crate::objects::{WORKER_LABEL, vm};
use crate::trouble::{self, State};

/// Of the label that KubeVirt gives to the pods of its machines.
const LAUNCHER: &str = "kubevirt.io";

/// A machine that runs.
struct Running {
    name: String,
    address: String,
    node: String,
}

impl Session {
    /// Waits for the machines of the set and says hello to the agents in their guests.
    pub(super) fn reach_machines(
        &self,
        setup: &Setup,
        token: &Token,
        deadline: &Deadline,
        check: Check<'_>,
    ) -> Result<Vec<Worker>, ClusterError> {
        self.require_relay(deadline, check)?;
        let names = self.names_of(setup);
        let look = |own: &Self, check: Check<'_>| {
            let cluster = &own.cluster;
            let all = &cluster.of_set(own.set);
            let server = &cluster.server;
            let machines = server.list(&cluster.machines(), "list virtual machines", all, check)?;
            let instances = server.list(&cluster.instances(), "list instances", all, check)?;
            let pods = cluster.pods_of(own.set, check)?;
            let one = |name: &String| {
                let of_name =
                    |all: &[DynamicObject]| all.iter().find(|it| it.name_any() == *name).cloned();
                seen(name, of_name(&machines).as_ref(), of_name(&instances).as_ref(), &pods)
            };
            Ok(names.iter().map(one).collect())
        };
        let running = self.wait_for_all("virtual machine", setup, deadline, check, look)?;
        let greet = |own: &Self, Running { name, address, node }: Running, check: Check<'_>| {
            let agent = own.reach_guest(&name, &address, token, deadline, check)?;
            let disk = DiskRequest::Device { path: vm::DEVICE.to_owned() };
            Ok(Worker { name, node, disk, agent })
        };
        self.greet_all(running, greet, check)
    }

    /// The guest boots for a while before its agent listens.
    fn reach_guest(
        &self,
        name: &str,
        address: &str,
        token: &Token,
        deadline: &Deadline,
        check: Check<'_>,
    ) -> Result<Client, ClusterError> {
        let address = if address.contains(':') {
            format!("[{address}]:{PORT}")
        } else {
            format!("{address}:{PORT}")
        };
        let words = ["ringloom", "agent", "connect", &address];
        loop {
            match self.greet(&self.cluster.names.relay(), &words, Some(token), check) {
                Ok(agent) => return Ok(agent),
                Err(error @ (ClusterError::Ended(_) | ClusterError::Lost { .. })) => {
                    return Err(error);
                }
                Err(ClusterError::Agent { source, .. }) if deadline.is_over() => {
                    let what = format!("the agent in the virtual machine {name} at {address}");
                    return Err(ClusterError::Agent { what, source });
                }
                Err(error) if deadline.is_over() => return Err(error),
                Err(_) => self.cluster.server.pause(check)?,
            }
        }
    }
}

/// A machine, with its address once it has one.
fn seen(
    name: &str,
    machine: Option<&DynamicObject>,
    instance: Option<&DynamicObject>,
    pods: &[Pod],
) -> Seen<Running> {
    let Some(machine) = machine else { return Seen::Failed("somebody has deleted it".to_owned()) };
    if let Some(it) = instance
        && let Some(address) = trouble::machine_address(it)
    {
        let node = it.data["status"]["nodeName"].as_str().unwrap_or_default().to_owned();
        return Seen::Ready(Running { name: name.to_owned(), address, node });
    }
    let is_its = |it: &&Pod| {
        let labels = it.labels();
        labels.contains_key(LAUNCHER) && labels.get(WORKER_LABEL).is_some_and(|it| it == name)
    };
    let launcher = pods.iter().find(is_its).map(trouble::pod_state);
    match (trouble::machine_state(machine, instance), launcher) {
        (_, Some(State::Failed(why))) => Seen::Failed(format!("its pod: {why}")),
        (State::Failed(why), _) => Seen::Failed(why),
        (State::Ready, _) => Seen::Waits(Some(trouble::NO_ADDRESS.to_owned())),
        (State::Waits(own), launcher) => {
            let words = |it| if let State::Waits(why) = it { why } else { None };
            let pod = launcher.and_then(words).map(|it| format!("its pod: {it}"));
            let all: Vec<_> = own.into_iter().chain(pod).collect();
            Seen::Waits((!all.is_empty()).then(|| all.join("; ")))
        }
    }
}
