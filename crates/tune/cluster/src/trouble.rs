//! Why a pod, a claim or a virtual machine is not what it should be, in the cluster's own words. Pure.
//!
//! What is told first is what says most: the state of containers, then conditions, then warnings of events.

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Node, PersistentVolumeClaim, Pod};
use kube::core::DynamicObject;
use serde_json::Value;

use crate::error::ClusterError;

/// Of a machine that runs and that nobody can reach.
pub(crate) const NO_ADDRESS: &str =
    "it runs, and its instance has no address: does the network of pods give machines one?";

/// Several that are not as they should be, of a set.
#[derive(Debug)]
pub(crate) struct Several {
    /// What each is and why, of the first ones.
    pub(crate) told: Vec<(String, String)>,
    /// How many there are.
    pub(crate) count: usize,
    /// Of how many.
    pub(crate) of: usize,
}

impl Several {
    /// More are not told one by one.
    pub(crate) const NAMED_MAX: usize = 5;

    /// All of these.
    pub(crate) fn of(all: Vec<(String, String)>, of: usize) -> Self {
        Self { count: all.len(), told: all, of }
    }

    /// Their sentence: each with its reason, or all with the one that they have in common.
    pub(crate) fn error(self) -> ClusterError {
        let Self { mut told, count, of } = self;
        told.truncate(Self::NAMED_MAX);
        if let [(what, why)] = &told[..]
            && count == 1
        {
            return ClusterError::Worker { what: what.clone(), why: why.clone() };
        }
        let more = count.saturating_sub(told.len());
        let more = (more > 0).then(|| format!("and {more} more"));
        let is_one = told.windows(2).all(|it| it[0].1 == it[1].1);
        let why = match told.first() {
            Some((_, why)) if is_one => {
                let names = told.iter().map(|(what, _)| what.clone()).chain(more);
                format!("{}: {why}", names.collect::<Vec<_>>().join(", "))
            }
            _ => {
                let each = told.iter().map(|(what, why)| format!("{what}: {why}"));
                each.chain(more).collect::<Vec<_>>().join("; ")
            }
        };
        ClusterError::Worker { what: format!("{count} of {of} workers"), why }
    }
}

/// How a pod or a virtual machine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It runs.
    Ready,
    /// It may become ready; why it is not, as far as that is known.
    Waits(Option<String>),
    /// It will not, or is not any more.
    Failed(String),
}

/// Reasons for which a container waits, and will wait for ever unless somebody changes something.
const HOPELESS: [&str; 6] = [
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "CrashLoopBackOff",
];

/// How the API server's words begin where it refuses an object, behind the object's name.
const FORBIDDEN: &str = " is forbidden: ";

/// What a pod is.
pub(crate) fn pod_state(pod: &Pod) -> State {
    let Some(status) = &pod.status else { return State::Waits(None) };
    if pod.metadata.deletion_timestamp.is_some() {
        return State::Failed("somebody deletes it, or its node is gone".to_owned());
    }
    let containers = || {
        let all = [&status.init_container_statuses, &status.container_statuses];
        all.into_iter().flatten().flatten()
    };
    if status.phase.as_deref() == Some("Failed") {
        let own = reason(status.reason.as_deref(), status.message.as_deref());
        let why = containers().find_map(ended).or(own);
        let why = own_first(status.reason.as_deref(), status.message.as_deref()).or(why);
        return State::Failed(why.unwrap_or_else(|| "it has failed".to_owned()));
    }
    if status.phase.as_deref() == Some("Succeeded") {
        return State::Failed("its first process has ended".to_owned());
    }
    if let Some(why) = status.container_statuses.iter().flatten().find_map(ended) {
        return State::Failed(why);
    }
    let waiting = containers().filter_map(|it| it.state.as_ref()?.waiting.as_ref());
    for it in waiting.clone() {
        if it.reason.as_deref().is_some_and(|it| HOPELESS.contains(&it)) {
            let why = reason(it.reason.as_deref(), it.message.as_deref());
            return State::Failed(why.unwrap_or_default());
        }
    }
    let conditions = || status.conditions.iter().flatten();
    if conditions().any(|it| it.type_ == "Ready" && it.status == "True") {
        return State::Ready;
    }
    let unscheduled = conditions().find(|it| it.type_ == "PodScheduled" && it.status == "False");
    let why = unscheduled.and_then(|it| reason(it.reason.as_deref(), it.message.as_deref()));
    let slow =
        || waiting.clone().find_map(|it| reason(it.reason.as_deref(), it.message.as_deref()));
    State::Waits(why.or_else(slow))
}

/// Why a node is not ready, if it is not.
pub(crate) fn node_trouble(node: &Node) -> Option<String> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let conditions = node.status.iter().flat_map(|it| it.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|it| it.type_ == "Ready");
    if ready.is_some_and(|it| it.status == "True") {
        return None;
    }
    let why = ready.and_then(|it| reason(it.reason.as_deref(), it.message.as_deref()));
    let why = why.map_or_else(String::new, |it| format!(" ({it})"));
    Some(format!("its node {name} is not ready{why}"))
}

/// The words of the pod itself, such as those of an eviction.
fn own_first(word: Option<&str>, message: Option<&str>) -> Option<String> {
    word.and_then(|_| reason(word, message))
}

/// How a container has ended, if it has.
fn ended(status: &ContainerStatus) -> Option<String> {
    let end = status.state.as_ref()?.terminated.as_ref()?;
    if end.exit_code == 0 && end.reason.as_deref() == Some("Completed") && status.name != "agent" {
        return None;
    }
    let why = reason(end.reason.as_deref(), end.message.as_deref()).unwrap_or_default();
    Some(format!("the container {} has ended with {} ({why})", status.name, end.exit_code))
}

/// A reason and its sentence.
fn reason(word: Option<&str>, message: Option<&str>) -> Option<String> {
    match (word.filter(|it| !it.is_empty()), message.filter(|it| !it.is_empty())) {
        (Some(word), Some(message)) => Some(format!("{word}: {message}")),
        (Some(one), None) | (None, Some(one)) => Some(one.to_owned()),
        (None, None) => None,
    }
}

/// What a virtual machine's object says, with its instance if there is one; the address of a machine that runs is in the latter.
pub(crate) fn machine_state(machine: &DynamicObject, instance: Option<&DynamicObject>) -> State {
    let phase = instance.and_then(|it| it.data["status"]["phase"].as_str());
    let has_ended = matches!(phase, Some("Failed" | "Succeeded"));
    let status = &machine.data["status"];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let condition = |wanted: &str| {
        let all = status["conditions"].as_array().into_iter().flatten();
        let mut found = all.filter(|it| it["type"] == wanted);
        found.next().cloned()
    };
    let why = condition("Ready")
        .filter(|it| it["status"] != "True")
        .and_then(|it| reason(it["reason"].as_str(), it["message"].as_str()));
    let failure = condition("Failure").filter(|it| it["status"] == "True");
    if let Some(it) = failure {
        let why = reason(it["reason"].as_str(), it["message"].as_str());
        return State::Failed(why.unwrap_or_else(|| "it has failed".to_owned()));
    }
    // Its pod was refused, by a quota or an admission rule: KubeVirt tries for ever, and a pod of ours would be refused at once.
    let synchronized = condition("Synchronized").filter(|it| it["status"] == "False");
    let words = synchronized.as_ref().and_then(|it| it["message"].as_str());
    if let Some(refused) = words.filter(|it| it.contains(FORBIDDEN)) {
        return State::Failed(refused.to_owned());
    }
    match text(&status["printableStatus"]).as_deref() {
        Some("Running") => State::Ready,
        // So it is called before it has an instance, too.
        Some("Stopped") if !has_ended => State::Waits(Some("Stopped".to_owned())),
        Some(word @ ("Stopped" | "CrashLoopBackOff" | "ImagePullBackOff" | "DataVolumeError")) => {
            State::Failed(why.map_or_else(|| word.to_owned(), |why| format!("{word}: {why}")))
        }
        Some(word) => {
            State::Waits(Some(why.map_or_else(|| word.to_owned(), |why| format!("{word}: {why}"))))
        }
        None => State::Waits(why),
    }
}

/// The address of a virtual machine that runs.
pub(crate) fn machine_address(instance: &DynamicObject) -> Option<String> {
    let status = &instance.data["status"];
    if status["phase"] != "Running" {
        return None;
    }
    let address = status["interfaces"][0]["ipAddress"].as_str()?;
    (!address.is_empty()).then(|| address.to_owned())
}

/// Why a claim is not bound, if it is not.
pub(crate) fn claim_trouble(claim: &PersistentVolumeClaim, events: &[Event]) -> Option<String> {
    let status = claim.status.as_ref();
    let phase = status.and_then(|it| it.phase.as_deref()).unwrap_or("Pending");
    if phase == "Bound" {
        return None;
    }
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let why = last_words(name, events).map_or_else(String::new, |it| format!(" ({it})"));
    Some(format!("the claim {name} is {phase}{why}"))
}

/// The newest event of an object: a warning, if there is one.
pub(crate) fn last_words(name: &str, events: &[Event]) -> Option<String> {
    let own = || events.iter().filter(|it| it.involved_object.name.as_deref() == Some(name));
    let time = |it: &&Event| {
        let last = it.last_timestamp.as_ref().map(|it| it.0);
        last.or(it.event_time.as_ref().map(|it| it.0))
    };
    let warning = own().filter(|it| it.type_.as_deref() == Some("Warning")).max_by_key(time);
    let event = warning.or_else(|| own().max_by_key(time))?;
    reason(event.reason.as_deref(), event.message.as_deref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn pod(status: &Value) -> State {
        pod_state(&serde_json::from_value(json!({ "status": status })).expect("a pod"))
    }

    fn waits(why: &str) -> State {
        State::Waits(Some(why.to_owned()))
    }

    fn failed(why: &str) -> State {
        State::Failed(why.to_owned())
    }

    fn container(state: &Value) -> Value {
        json!([{ "name": "agent", "image": "a", "imageID": "", "ready": false, "restartCount": 0, "state": state }])
    }

    #[test]
    fn a_pod_tells_why_it_waits_or_fails() {
        let unscheduled = json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/2 nodes are available: insufficient cpu" }]);
        let conditions = json!({ "phase": "Pending", "conditions": unscheduled });
        assert_eq!(
            pod(&conditions),
            waits("Unschedulable: 0/2 nodes are available: insufficient cpu")
        );
        let state =
            container(&json!({ "waiting": { "reason": "ErrImagePull", "message": "not found" } }));
        let pulls = pod(&json!({ "phase": "Pending", "containerStatuses": state }));
        assert_eq!(pulls, waits("ErrImagePull: not found"));
        let state = container(
            &json!({ "waiting": { "reason": "ImagePullBackOff", "message": "a: not found" } }),
        );
        let hopeless = pod(&json!({ "phase": "Pending", "containerStatuses": state }));
        assert_eq!(hopeless, failed("ImagePullBackOff: a: not found"));
        let evicted = json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" });
        assert_eq!(pod(&evicted), failed("Evicted: low on memory"));
        let state = container(&json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } }));
        let killed = pod(&json!({ "phase": "Running", "containerStatuses": state }));
        assert_eq!(killed, failed("the container agent has ended with 137 (OOMKilled)"));
        let ready =
            json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] });
        assert_eq!(pod(&ready), State::Ready);
        assert_eq!(pod(&json!({ "phase": "Pending" })), State::Waits(None));
    }

    #[test]
    fn several_are_told_with_what_they_have_in_common() {
        let said = |reasons: &[&str]| {
            let one = |(place, why): (usize, &&str)| (format!("pod {place}"), (*why).to_owned());
            Several::of(reasons.iter().enumerate().map(one).collect(), 9).error().to_string()
        };
        assert_eq!(said(&["gone"]), "pod 0: gone");
        assert_eq!(said(&["gone", "full"]), "2 of 9 workers: pod 0: gone; pod 1: full");
        assert_eq!(said(&["gone", "gone"]), "2 of 9 workers: pod 0, pod 1: gone");
        let expected = "7 of 9 workers: pod 0, pod 1, pod 2, pod 3, pod 4, and 2 more: gone";
        assert_eq!(said(&["gone"; 7]), expected);
    }

    #[test]
    fn a_machine_tells_why_it_waits_or_fails() {
        let object = |kind: &str, status: Value| -> DynamicObject {
            let object = json!({ "apiVersion": "kubevirt.io/v1", "kind": kind,
                "metadata": { "name": "m" }, "status": status });
            serde_json::from_value(object).expect("an object")
        };
        let machine = |status: Value| machine_state(&object("VirtualMachine", status), None);
        assert_eq!(machine(json!({})), State::Waits(None));
        assert_eq!(machine(json!({ "printableStatus": "Running" })), State::Ready);
        let ready = json!([{ "type": "Ready", "status": "False", "reason": "GuestNotRunning", "message": "no" }]);
        let starts = machine(json!({ "printableStatus": "Starting", "conditions": ready }));
        assert_eq!(starts, waits("Starting: GuestNotRunning: no"));
        let status = json!({ "printableStatus": "Stopped" });
        assert_eq!(machine(status.clone()), waits("Stopped"), "it has not begun");
        let ended = object("VirtualMachineInstance", json!({ "phase": "Failed" }));
        let stopped = machine_state(&object("VirtualMachine", status), Some(&ended));
        assert_eq!(stopped, failed("Stopped"));
        let failure = json!([{ "type": "Failure", "status": "True", "reason": "FailedCreate", "message": "quota" }]);
        assert_eq!(machine(json!({ "conditions": failure })), failed("FailedCreate: quota"));
        let words = "failed to create virtual machine pod: pods \"virt-launcher-m-x\" is forbidden: exceeded quota: q";
        let refused = json!([{ "type": "Synchronized", "status": "False", "reason": "FailedCreate", "message": words }]);
        let starting = |conditions| {
            machine(json!({ "printableStatus": "Starting", "conditions": conditions }))
        };
        assert_eq!(starting(refused), failed(words));
        let late = json!([{ "type": "Synchronized", "status": "False", "message": "the server is too busy" }]);
        assert_eq!(starting(late), waits("Starting"));
    }

    #[test]
    fn a_claim_tells_why_it_is_not_bound() {
        let claim: PersistentVolumeClaim = serde_json::from_value(
            json!({ "metadata": { "name": "c" }, "status": { "phase": "Pending" } }),
        )
        .expect("a claim");
        assert_eq!(claim_trouble(&claim, &[]).as_deref(), Some("the claim c is Pending"));
        let event = |kind: &str, reason: &str, time: &str| -> Event {
            let object = json!({ "metadata": {}, "involvedObject": { "name": "c" }, "type": kind,
                "reason": reason, "message": "m", "lastTimestamp": time });
            serde_json::from_value(object).expect("an event")
        };
        let events = [
            event("Normal", "WaitForFirstConsumer", "2026-01-01T00:00:09Z"),
            event("Warning", "ProvisioningFailed", "2026-01-01T00:00:01Z"),
        ];
        let expected = "the claim c is Pending (ProvisioningFailed: m)";
        assert_eq!(claim_trouble(&claim, &events).as_deref(), Some(expected));
    }
}
