//! Stand-in for KubeVirt's virt-handler: sees launcher pods start guests, and tells what became of them.
//!
//! It does what a client of KubeVirt can see of the real one: an instance that is scheduled runs, at its pod's address; one that
//! is deleted, or whose pod has ended, has ended. Guests' consoles and KubeVirt's subresources are not served.
//!
//! Threads: one follows instances, one follows launcher pods, one renews what virt-controller looks for on nodes. They never
//! end; what failed is said, and tried again with the next change. Invariants: each patch first tests that the instance is the
//! one that was seen, and in the phase in which it was seen if it is to run.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::clock::pause;
use crate::domain::{Source, qemu_arguments, sources};
use crate::kubectl::Kubectl;
use crate::run::output_given;

/// Rest before following begins again.
const AGAIN: Duration = Duration::from_millis(500);
/// virt-controller takes a node for lost after five minutes.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(60);
/// The label of launcher pods.
const LAUNCHERS: &str = "kubevirt.io=virt-launcher";
/// Receives the order in the launcher's container; it is there as a whole or not at all.
const TAKE_ORDER: &str = "cat > /tmp/order.new && mv /tmp/order.new /tmp/order";
/// Makes an image with holes unless it is there, as virt-handler does: of what the claim was promised, or of what its file system has if that
/// is not much less; 128 KiB stay free.
const MAKE_IMAGE: &str = r#"
    [ -e "$1" ] && exit
    free=$(($(stat -f -c '%a * %S' "${1%/*}") - 131072))
    size=$2
    if [ "$free" -lt "$size" ]; then
        [ "$free" -ge $((size / 10 * 9)) ] || { echo "$1: $size bytes do not fit, $free are free" >&2; exit 1; }
        size=$free
    fi
    truncate -s "$size" "$1"
"#;
/// The network that an instance gets from virt-launcher's masquerade, and from QEMU's user network.
const GUEST_INTERFACE: &str = "eth0";

/// Begins to look after instances.
pub(crate) fn start(kubectl: &Kubectl) {
    let own = kubectl.clone();
    std::thread::spawn(move || {
        follow(&own, &["virtualmachineinstances.kubevirt.io"], |it| settle(&own, it))
    });
    let own = kubectl.clone();
    std::thread::spawn(move || {
        follow(&own, &["pods", "--selector", LAUNCHERS], |it| end_of_pod(&own, it))
    });
    let own = kubectl.clone();
    std::thread::spawn(move || {
        loop {
            pause(HEARTBEAT_INTERVAL);
            if let Err(error) = beat(&own) {
                println!("tell that nodes are alive: {error:#}");
            }
        }
    });
}

/// Tells virt-controller that the handlers of all nodes are alive.
pub(crate) fn beat(kubectl: &Kubectl) -> Result<()> {
    let time = output_given(
        std::process::Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"]),
        "",
    )?;
    let note = format!("kubevirt.io/heartbeat={}", time.trim());
    kubectl.run(&["annotate", "node", "--all", "--overwrite", &note]).map(drop)
}

fn follow(kubectl: &Kubectl, what: &[&str], act: impl Fn(&Value) -> Result<()>) {
    loop {
        let ended = kubectl.follow(what, |object| {
            if let Err(error) = act(object) {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                println!("look after {name}: {error:#}");
            }
        });
        if let Err(error) = ended {
            println!("follow {what:?}: {error:#}");
        }
        pause(AGAIN);
    }
}

/// What an instance asks for.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Start,
    End(Ending),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Succeeded,
    Failed,
}

impl Ending {
    /// The phase of pods and of instances.
    fn phase(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

fn step(instance: &Value) -> Step {
    let is_deleted = instance["metadata"]["deletionTimestamp"].is_string();
    match instance["status"]["phase"].as_str() {
        Some("Scheduled" | "Running") if is_deleted => Step::End(Ending::Succeeded),
        Some("Scheduled") => Step::Start,
        _ => Step::Nothing,
    }
}

fn settle(kubectl: &Kubectl, instance: &Value) -> Result<()> {
    match step(instance) {
        Step::Nothing => Ok(()),
        Step::End(ending) => end(kubectl, instance, ending),
        Step::Start => match order(kubectl, instance) {
            Ok(address) => patch(kubectl, instance, running(&address)),
            Err(error) => {
                // As with virt-handler, what cannot be started has failed.
                println!("start {}: {error:#}", instance["metadata"]["name"]);
                end(kubectl, instance, Ending::Failed)
            }
        },
    }
}

/// Has the launcher start the guest; the address of its pod.
fn order(kubectl: &Kubectl, instance: &Value) -> Result<String> {
    let text: String =
        qemu_arguments(instance)?.into_iter().map(|word| format!("{word}\n")).collect();
    let metadata = &instance["metadata"];
    let namespace = metadata["namespace"].as_str().context("an instance has a namespace")?;
    let uid = metadata["uid"].as_str().context("an instance has an identity")?;
    let selector = format!("{LAUNCHERS},kubevirt.io/created-by={uid}");
    let pods = kubectl.json(&["--namespace", namespace, "get", "pods", "--selector", &selector])?;
    let pods = pods["items"].as_array().context("a list of pods")?;
    ensure!(pods.len() == 1, "{} launcher pods of {uid}", pods.len());
    let name = pods[0]["metadata"]["name"].as_str().context("a pod has a name")?;
    let address = pods[0]["status"]["podIP"].as_str().context("the pod has no address")?;
    let in_pod = |script: &[&str], input: &str| {
        let begin = ["--namespace", namespace, "exec", "--stdin", name, "--container", "compute"];
        let words = [&begin[..], &["--", "sh", "-c"], script].concat();
        output_given(&mut kubectl.command(&words), input)
    };
    for (_, source) in sources(instance)? {
        if let Source::Image { path, bytes } = source {
            in_pod(&[MAKE_IMAGE, "sh", &path, &bytes.to_string()], "")?;
        }
    }
    in_pod(&[TAKE_ORDER], &text)?;
    Ok(address.to_owned())
}

/// The changes that make an instance run.
fn running(address: &str) -> Vec<Value> {
    // Masquerade shows clients the pod's address.
    let interface = json!({
        "name": "default", "ipAddress": address, "ipAddresses": [address],
        "interfaceName": GUEST_INTERFACE, "infoSource": "domain",
    });
    let movable = json!({
        "type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable",
        "message": "this is a stand-in of virt-handler", "lastProbeTime": null,
    });
    vec![
        json!({"op": "test", "path": "/status/phase", "value": "Scheduled"}),
        json!({"op": "add", "path": "/status/interfaces", "value": [interface]}),
        json!({"op": "add", "path": "/status/conditions/-", "value": movable}),
        json!({"op": "add", "path": "/status/phase", "value": "Running"}),
    ]
}

fn end(kubectl: &Kubectl, instance: &Value, ending: Ending) -> Result<()> {
    let change = json!({"op": "add", "path": "/status/phase", "value": ending.phase()});
    patch(kubectl, instance, vec![change])
}

fn patch(kubectl: &Kubectl, instance: &Value, changes: Vec<Value>) -> Result<()> {
    let metadata = &instance["metadata"];
    let namespace = metadata["namespace"].as_str().context("an instance has a namespace")?;
    let name = metadata["name"].as_str().context("an instance has a name")?;
    let test = json!({"op": "test", "path": "/metadata/uid", "value": metadata["uid"]});
    let all: Value = std::iter::once(test).chain(changes).collect();
    let words = ["--namespace", namespace, "patch", "vmi", name, "--type", "json", "--patch"];
    kubectl.run(&[&words[..], &[&all.to_string()]].concat()).map(drop)
}

/// How a launcher pod ended, if it did.
fn ending(pod: &Value) -> Option<Ending> {
    [Ending::Succeeded, Ending::Failed].into_iter().find(|it| pod["status"]["phase"] == it.phase())
}

fn end_of_pod(kubectl: &Kubectl, pod: &Value) -> Result<()> {
    let Some(ending) = ending(pod) else { return Ok(()) };
    let metadata = &pod["metadata"];
    let namespace = metadata["namespace"].as_str().context("a pod has a namespace")?;
    let owner = metadata["ownerReferences"][0].clone();
    let name = owner["name"].as_str().context("a launcher pod has an owner")?;
    let words = ["--namespace", namespace, "get", "vmi", name, "--ignore-not-found"];
    if kubectl.run(&words)?.is_empty() {
        return Ok(());
    }
    let instance = kubectl.json(&words[..5])?;
    let is_over = step(&instance) == Step::Nothing && instance["status"]["phase"] != "Running";
    if instance["metadata"]["uid"] != owner["uid"] || is_over {
        return Ok(());
    }
    end(kubectl, &instance, ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(phase: &str, deleted: Option<&str>) -> Value {
        json!({"metadata": {"deletionTimestamp": deleted}, "status": {"phase": phase}})
    }

    #[test]
    fn an_instance_is_started_once_it_is_scheduled_and_ended_when_it_is_deleted() {
        let now = Some("2026-01-01T00:00:00Z");
        for (phase, deleted, expected) in [
            ("Scheduling", None, Step::Nothing),
            ("Scheduled", None, Step::Start),
            ("Running", None, Step::Nothing),
            ("Scheduled", now, Step::End(Ending::Succeeded)),
            ("Running", now, Step::End(Ending::Succeeded)),
            ("Failed", now, Step::Nothing),
        ] {
            assert_eq!(step(&instance(phase, deleted)), expected, "{phase} {deleted:?}");
        }
    }

    #[test]
    fn an_instance_ends_as_its_pod_does() {
        let pod = |phase: &str| json!({"status": {"phase": phase}});
        assert_eq!(ending(&pod("Failed")), Some(Ending::Failed));
        assert_eq!(ending(&pod("Succeeded")), Some(Ending::Succeeded));
        assert_eq!(ending(&pod("Running")), None);
    }
}
