//! Workers: made, waited for, reached.
//!
//! Limits: `startSeconds` of the job for all of a set together. All of a set are looked at with one question to the server, and
//! reached [`AT_ONCE_MAX`](agent::AT_ONCE_MAX) at a time.

mod machines;
mod pods;

use std::time::{Duration, Instant};

use agent::{Client, Stopped, Token, at_once};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{Cluster, Session, Setup, Worker};
use crate::api::Check;
use crate::clock;
use crate::error::ClusterError;
use crate::job::{ClaimStorage, Treatment};
use crate::objects::{Group, WORKER_LABEL, claim, pod, vm};
use crate::stream;
use crate::trouble::{self, Several, State};

impl Session {
    /// Starts workers on their claims and waits until their agents obey.
    ///
    /// # Errors
    /// Why some do not become ready. What was started is removed then.
    pub fn start(&mut self, setup: &Setup, check: Check<'_>) -> Result<Vec<Worker>, ClusterError> {
        self.set += 1;
        self.started.clear();
        self.has_relay = false;
        let begun = self.begin_workers(setup, check);
        if let Ok(workers) = &begun {
            self.started = workers.iter().map(|it| it.name.clone()).collect();
            self.has_relay = setup.treatment != Treatment::Pod;
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
        let limit = Duration::from_secs(self.job.start_seconds);
        let deadline = Deadline { begun: clock::now(), limit };
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

    /// Names of the set's workers.
    fn names_of(&self, setup: &Setup) -> Vec<String> {
        (0..setup.workers).map(|worker| self.cluster.names.worker(self.set, worker)).collect()
    }

    /// Waits until all of them are ready. Each time all are looked at once; `kind` is what one is called.
    fn wait_for_all<T>(
        &self,
        kind: &str,
        setup: &Setup,
        deadline: &Deadline,
        check: Check<'_>,
        mut look: impl FnMut(&Self, Check<'_>) -> Result<Vec<Seen<T>>, ClusterError>,
    ) -> Result<Vec<T>, ClusterError> {
        let names = self.names_of(setup);
        loop {
            let (mut ready, mut waiting, mut failed) = (Vec::new(), Vec::new(), Vec::new());
            for (worker, (name, seen)) in (0_u16..).zip(names.iter().zip(look(self, check)?)) {
                match seen {
                    Seen::Ready(it) => ready.push(it),
                    Seen::Waits(why) => waiting.push((worker, name, why)),
                    Seen::Failed(why) => failed.push((format!("{kind} {name}"), why)),
                }
            }
            if !failed.is_empty() {
                return Err(Several::of(failed, names.len()).error());
            }
            if waiting.is_empty() {
                return Ok(ready);
            }
            if deadline.is_over() {
                let events = self.cluster.all_events(check);
                let explain = |(worker, name, own): (u16, &String, Option<String>)| {
                    let claim = self.cluster.names.claim(&setup.storage, setup.placement, worker);
                    let why = self.explain(name, Some(&claim), own, &events, deadline, check);
                    (format!("{kind} {name}"), why)
                };
                // More are not named, and each takes a question.
                let count = waiting.len();
                let told = waiting.into_iter().take(Several::NAMED_MAX).map(explain).collect();
                return Err(Several { told, count, of: names.len() }.error());
            }
            self.cluster.server.pause(check)?;
        }
    }

    /// Why something is not ready: its own words, those of its claim, those of events.
    fn explain(
        &self,
        name: &str,
        claim: Option<&str>,
        own: Option<String>,
        events: &[k8s_openapi::api::core::v1::Event],
        deadline: &Deadline,
        check: Check<'_>,
    ) -> String {
        let found =
            claim.and_then(|it| self.cluster.server.get(&self.cluster.claims(), it, check).ok()?);
        let of_claim = found.and_then(|it| trouble::claim_trouble(&it, events));
        // The scheduler says the same twice, under two names.
        let is_told = |it: &String| {
            let words = it.split_once(": ").map_or(it.as_str(), |(_, words)| words);
            own.as_ref().is_some_and(|own| own.contains(words))
        };
        let of_events = trouble::last_words(name, events).filter(|it| !is_told(it));
        let all: Vec<_> = own.into_iter().chain(of_claim).chain(of_events).collect();
        let said =
            if all.is_empty() { "the cluster does not say why".to_owned() } else { all.join("; ") };
        format!("not ready after {} s: {said}", deadline.limit.as_secs())
    }

    /// Says hello to all of them.
    fn greet_all<T: Send>(
        &self,
        all: Vec<T>,
        greet: impl Fn(&Self, T, Check<'_>) -> Result<Worker, ClusterError> + Sync,
        check: Check<'_>,
    ) -> Result<Vec<Worker>, ClusterError> {
        at_once(all, |one, check| greet(self, one, check), check).map_err(|stopped| match stopped {
            Stopped::Ended(why) => ClusterError::Ended(why),
            Stopped::Failed(error) => error,
        })
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

/// What a look has found of one worker.
enum Seen<T> {
    Ready(T),
    /// Why, as far as that is known.
    Waits(Option<String>),
    Failed(String),
}

impl<T> Seen<T> {
    /// Of one that has a state.
    fn of(state: State, ready: impl FnOnce() -> T) -> Self {
        match state {
            State::Ready => Self::Ready(ready()),
            State::Waits(why) => Self::Waits(why),
            State::Failed(why) => Self::Failed(why),
        }
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

/// The one of these that belongs to a worker.
fn of_worker<'a>(pods: &'a [Pod], name: &str) -> Option<&'a Pod> {
    pods.iter().find(|it| it.labels().get(WORKER_LABEL).is_some_and(|it| it == name))
}
