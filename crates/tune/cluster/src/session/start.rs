//! Workers: made, waited for, reached.

use std::time::{Duration, Instant};

use agent::{Client, DiskRequest, PORT, Token};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{Cluster, Session, Setup, Worker};
use crate::api::Check;
use crate::clock;
use crate::error::ClusterError;
use crate::job::{ClaimStorage, Treatment, VolumeMode};
use crate::objects::{Group, SET_LABEL, WORKER_LABEL, claim, pod, vm};
use crate::stream;
use crate::trouble::{self, State};

/// The share of a claim that a file in it may have: file systems need some of it.
const FILE_PERCENT: u64 = 80;
const FILE_ALIGNMENT: u64 = 1 << 20;
/// Of the label that KubeVirt gives to the pods of its machines.
const LAUNCHER: &str = "kubevirt.io";

impl Session {
    /// Starts workers on their claims and waits until their agents obey.
    ///
    /// # Errors
    /// Why one does not become ready. What was started is removed then.
    pub fn start(&mut self, setup: &Setup, check: Check<'_>) -> Result<Vec<Worker>, ClusterError> {
        self.set += 1;
        self.started.clear();
        let begun = self.begin_workers(setup, check);
        if let Ok(workers) = &begun {
            self.started = workers.iter().map(|it| it.name.clone()).collect();
        } else {
            // Why it failed says more than what else failed then; the end names what is left.
            drop(self.cluster.remove_workers(check));
        }
        begun
    }

    fn begin_workers(
        &mut self,
        setup: &Setup,
        check: Check<'_>,
    ) -> Result<Vec<Worker>, ClusterError> {
        let found = self.job.storage.iter().find(|it| it.name == setup.storage).cloned();
        let lacks = || ClusterError::Lacks(format!("the job has no storage {}", setup.storage));
        let storage = found.ok_or_else(lacks)?;
        let deadline =
            Deadline { begun: clock::now(), limit: Duration::from_secs(self.job.start_seconds) };
        let token = Token::random()?;
        for worker in 0..setup.workers {
            self.make_claim(&storage, setup, worker, check)?;
            self.make_worker(&storage, setup, worker, &token, check)?;
        }
        match setup.treatment {
            Treatment::Pod => self.reach_pods(&storage, setup, &deadline, check),
            Treatment::Vm(_) => self.reach_machines(setup, &token, &deadline, check),
        }
    }

    fn make_claim(
        &self,
        storage: &ClaimStorage,
        setup: &Setup,
        worker: u16,
        check: Check<'_>,
    ) -> Result<(), ClusterError> {
        let Cluster { server, names, .. } = &self.cluster;
        let claim = claim::claim(names, &self.owner, storage, setup.placement, worker);
        let what = format!("claim {}", claim.name_any());
        server.create(&self.cluster.claims(), &what, &claim, check).map(drop)
    }

    fn make_worker(
        &self,
        storage: &ClaimStorage,
        setup: &Setup,
        worker: u16,
        token: &Token,
        check: Check<'_>,
    ) -> Result<(), ClusterError> {
        let Cluster { server, names, .. } = &self.cluster;
        let placement = setup.placement;
        let group = Group { names, job: &self.job, owner: &self.owner, set: self.set, placement };
        let claim = names.claim(&storage.name, placement, worker);
        match setup.treatment {
            Treatment::Pod => {
                let pod = pod::worker(&group, storage, claim, worker);
                let what = format!("pod {}", pod.name_any());
                server.create(&self.cluster.pods(), &what, &pod, check).map(drop)
            }
            Treatment::Vm(iothreads) => {
                let machine = vm::worker(&group, iothreads, &claim, token, worker);
                let what = format!("virtual machine {}", machine.name_any());
                server.create(&self.cluster.machines(), &what, &machine, check).map(drop)
            }
        }
    }

    fn reach_pods(
        &self,
        storage: &ClaimStorage,
        setup: &Setup,
        deadline: &Deadline,
        check: Check<'_>,
    ) -> Result<Vec<Worker>, ClusterError> {
        let mut workers = Vec::new();
        for worker in 0..setup.workers {
            let name = self.cluster.names.worker(self.set, worker);
            let claim = self.cluster.names.claim(&storage.name, setup.placement, worker);
            let pod = self.wait_for_pod(&name, Some(&claim), deadline, check)?;
            let agent = self.greet(&name, &["ringloom", "agent"], None, check)?;
            workers.push(Worker { name, node: node_of(&pod), disk: pod_disk(storage), agent });
        }
        Ok(workers)
    }

    /// Waits until a pod is ready.
    fn wait_for_pod(
        &self,
        name: &str,
        claim: Option<&str>,
        deadline: &Deadline,
        check: Check<'_>,
    ) -> Result<Pod, ClusterError> {
        let what = || format!("pod {name}");
        loop {
            let pod = self.cluster.server.get(&self.cluster.pods(), name, check)?;
            let state = pod.as_ref().map_or_else(
                || State::Failed("somebody has deleted it".to_owned()),
                trouble::pod_state,
            );
            match (state, pod) {
                (State::Ready, Some(pod)) => return Ok(pod),
                (State::Failed(why), _) => return Err(ClusterError::Worker { what: what(), why }),
                (State::Waits(why), _) if deadline.is_over() => {
                    let why = self.explain(name, claim, why, deadline, check);
                    return Err(ClusterError::Worker { what: what(), why });
                }
                (State::Ready | State::Waits(_), _) => self.cluster.server.pause(check)?,
            }
        }
    }

    /// Why something is not ready: its own words, those of its claim, those of events.
    fn explain(
        &self,
        name: &str,
        claim: Option<&str>,
        own: Option<String>,
        deadline: &Deadline,
        check: Check<'_>,
    ) -> String {
        let events = self.cluster.all_events(check);
        let found =
            claim.and_then(|it| self.cluster.server.get(&self.cluster.claims(), it, check).ok()?);
        let of_claim = found.and_then(|it| trouble::claim_trouble(&it, &events));
        // The scheduler says the same twice, under two names.
        let is_told = |it: &String| {
            let words = it.split_once(": ").map_or(it.as_str(), |(_, words)| words);
            own.as_ref().is_some_and(|own| own.contains(words))
        };
        let of_events = trouble::last_words(name, &events).filter(|it| !is_told(it));
        let all: Vec<_> = own.into_iter().chain(of_claim).chain(of_events).collect();
        let said =
            if all.is_empty() { "the cluster does not say why".to_owned() } else { all.join("; ") };
        format!("not ready after {} s: {said}", deadline.limit.as_secs())
    }

    fn reach_machines(
        &self,
        setup: &Setup,
        token: &Token,
        deadline: &Deadline,
        check: Check<'_>,
    ) -> Result<Vec<Worker>, ClusterError> {
        let Cluster { server, names, .. } = &self.cluster;
        let relay = pod::relay(names, &self.job, &self.owner);
        server.create(&self.cluster.pods(), "the relay", &relay, check)?;
        self.wait_for_pod(&names.relay(), None, deadline, check)?;
        let mut workers = Vec::new();
        for worker in 0..setup.workers {
            let name = names.worker(self.set, worker);
            let (address, node) = self.wait_for_machine(&name, setup, worker, deadline, check)?;
            let agent = self.reach_guest(&name, &address, token, deadline, check)?;
            let disk = DiskRequest::Device { path: vm::DEVICE.to_owned() };
            workers.push(Worker { name, node, disk, agent });
        }
        Ok(workers)
    }

    /// Waits until a machine runs; its address and node.
    fn wait_for_machine(
        &self,
        name: &str,
        setup: &Setup,
        worker: u16,
        deadline: &Deadline,
        check: Check<'_>,
    ) -> Result<(String, String), ClusterError> {
        let server = &self.cluster.server;
        let failed = |why| ClusterError::Worker { what: format!("virtual machine {name}"), why };
        loop {
            let machine = server.get(&self.cluster.machines(), name, check)?;
            let Some(machine) = machine else {
                return Err(failed("somebody has deleted it".to_owned()));
            };
            let instance = server.get(&self.cluster.instances(), name, check)?;
            let node = |it: &kube::core::DynamicObject| {
                it.data["status"]["nodeName"].as_str().unwrap_or_default().to_owned()
            };
            if let Some(it) = &instance
                && let Some(address) = trouble::machine_address(it)
            {
                return Ok((address, node(it)));
            }
            let launcher = self.launcher_state(name, check)?;
            match (trouble::machine_state(&machine, instance.as_ref()), launcher) {
                (_, Some(State::Failed(why))) => return Err(failed(format!("its pod: {why}"))),
                (State::Failed(why), _) => return Err(failed(why)),
                (own, launcher) if deadline.is_over() => {
                    let words = |it| if let State::Waits(why) = it { why } else { None };
                    let pod = launcher.and_then(words).map(|it| format!("its pod: {it}"));
                    let all: Vec<_> = words(own).into_iter().chain(pod).collect();
                    let own = (!all.is_empty()).then(|| all.join("; "));
                    let claim = self.cluster.names.claim(&setup.storage, setup.placement, worker);
                    return Err(failed(self.explain(name, Some(&claim), own, deadline, check)));
                }
                (State::Ready | State::Waits(_), _) => server.pause(check)?,
            }
        }
    }

    /// How the pod of a machine is, if there is one.
    fn launcher_state(&self, name: &str, check: Check<'_>) -> Result<Option<State>, ClusterError> {
        let pods = self.cluster.pods_of(self.set, check)?;
        let is_its = |it: &&Pod| {
            let labels = it.labels();
            labels.contains_key(LAUNCHER) && labels.get(WORKER_LABEL).is_some_and(|it| it == name)
        };
        debug_assert!(
            pods.iter().all(|it| it.labels().contains_key(SET_LABEL)),
            "they were selected by it"
        );
        Ok(pods.iter().find(is_its).map(trouble::pod_state))
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

    /// Runs an agent, or the way to one, in a pod, and says hello.
    fn greet(
        &self,
        pod: &str,
        words: &[&str],
        token: Option<&Token>,
        check: Check<'_>,
    ) -> Result<Client, ClusterError> {
        let server = &self.cluster.server;
        let (input, output) = stream::exec(server, &self.cluster.pods(), pod, words, check)?;
        Client::greet(input, output, token, check).map_err(|error| {
            if let agent::AgentError::Ended(why) = error {
                return ClusterError::Ended(why);
            }
            ClusterError::Agent { what: format!("the agent in the pod {pod}"), source: error }
        })
    }
}

/// When a set of workers is given up.
struct Deadline {
    begun: Instant,
    limit: Duration,
}

impl Deadline {
    fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.limit
    }
}

fn node_of(pod: &Pod) -> String {
    pod.spec.as_ref().and_then(|it| it.node_name.clone()).unwrap_or_default()
}

/// What the agent in a pod has to make ready.
fn pod_disk(storage: &ClaimStorage) -> DiskRequest {
    match storage.volume_mode {
        VolumeMode::Block => DiskRequest::Device { path: pod::DEVICE.to_owned() },
        VolumeMode::Filesystem => {
            let bytes = storage.bytes / 100 * FILE_PERCENT / FILE_ALIGNMENT * FILE_ALIGNMENT;
            DiskRequest::Directory { path: pod::DIRECTORY.to_owned(), bytes }
        }
    }
}
