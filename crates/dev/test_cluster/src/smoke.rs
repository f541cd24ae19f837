//! `test`: what tests of a real cluster build on, tried on it, then those tests.

mod machine;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use container_images::cargo;
use serde_json::{Value, json};

use crate::bring_up::up;
use crate::clock::{Attempt, now, wait_for};
use crate::images::AGENT;
use crate::kubectl::Kubectl;
use crate::node::NODES;
use crate::place::Place;
use crate::run::must_succeed;
use crate::volumes::Mode;

const NAMESPACE: &str = "smoke";
/// Where pods find a claim.
const DEVICE: &str = "/dev/claim";
const DIRECTORY: &str = "/claim";
/// How much fio writes and reads back.
const LOAD_BYTES: u64 = 16 << 20;
const LOAD_LIMIT: &str = "--timeout=600s";
/// How long volumes that were given back take to be offered again.
const OFFER_LIMIT: Duration = Duration::from_secs(300);

/// Starts the cluster if it does not run, tries it, runs the tests that want one.
pub(crate) fn test(place: &Place) -> Result<()> {
    up(place)?;
    let trial = Trial { kubectl: Kubectl::new(place, &place.kubeconfig())? };
    trial.clear()?;
    trial.kubectl.run(&["create", "namespace", NAMESPACE])?;
    step("a pod on a block claim on each node", || trial.spread_pods())?;
    step("a pod on a file system claim", || trial.file_system_pod())?;
    step("commands in a pod: output, exit status, librbd refused by name", || {
        trial.command_in_pod()
    })?;
    step("a virtual machine whose agent answers", || trial.machine())?;
    step("claims that are gone leave volumes that are offered again", || trial.offered_again())?;
    tests_of_cluster(place, trial.kubectl.program())
}

/// The tests of the crate `cluster` that ask for a real one.
fn tests_of_cluster(place: &Place, kubectl: &Path) -> Result<()> {
    let mut command = cargo(&place.workspace);
    command.args(["test", "--package", "cluster", "--test", "it", "--", "--ignored", "real::"]);
    command.env("RINGLOOM_CLUSTER_KUBECONFIG", place.kubeconfig());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let first = kubectl.parent().context("kubectl is in a directory")?.to_owned();
    let path = std::env::join_paths([first].into_iter().chain(std::env::split_paths(&path)))
        .context("PATH with kubectl's directory")?;
    command.env("PATH", path);
    must_succeed(&mut command)
}

fn step(what: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = now();
    work().with_context(|| what.to_owned())?;
    println!("ok in {:.1} s: {what}", now().duration_since(start).as_secs_f64());
    Ok(())
}

/// A cluster under trial.
struct Trial {
    kubectl: Kubectl,
}

impl Trial {
    /// `kubectl` in the namespace of the trial.
    fn run(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl.run(&[&["--namespace", NAMESPACE], arguments].concat())
    }

    fn spread_pods(&self) -> Result<()> {
        let names: Vec<String> = NODES.iter().map(|node| format!("block-{node}")).collect();
        let make = |name: &String| [claim(name, Mode::Block), pod(name, Mode::Block)];
        self.kubectl.apply(&names.iter().flat_map(make).collect::<Vec<_>>())?;
        let mut nodes = Vec::new();
        for name in &names {
            self.load_passes(name)?;
            let pod = self.run(&["get", "pod", name, "--output", "jsonpath={.spec.nodeName}"])?;
            nodes.push(pod);
        }
        nodes.sort();
        ensure!(nodes == ["node1", "node2"], "the pods ran on {nodes:?}");
        Ok(())
    }

    fn file_system_pod(&self) -> Result<()> {
        let name = "files";
        self.kubectl.apply(&[claim(name, Mode::Filesystem), pod(name, Mode::Filesystem)])?;
        self.load_passes(name)
    }

    /// fio in the pod ends well and did what it was told.
    fn load_passes(&self, name: &str) -> Result<()> {
        let pod = format!("pod/{name}");
        let ended =
            self.run(&["wait", "--for=jsonpath={.status.phase}=Succeeded", &pod, LOAD_LIMIT]);
        let logs = self.run(&["logs", name]);
        if let Err(error) = ended {
            let events = self.run(&["get", "events"]).unwrap_or_default();
            return Err(error.context(format!("{}\n{events}", logs.unwrap_or_default())));
        }
        let logs = logs?;
        let report: Value = serde_json::from_str(&logs).with_context(|| logs.clone())?;
        let job = &report["jobs"][0];
        ensure!(job["error"] == 0, "fio ended with {}", job["error"]);
        for side in ["read", "write"] {
            let bytes = &job[side]["io_bytes"];
            ensure!(*bytes == LOAD_BYTES, "fio: {side} of {bytes} bytes, not {LOAD_BYTES}");
        }
        Ok(())
    }

    fn command_in_pod(&self) -> Result<()> {
        let mut object = pod("idle", Mode::Block);
        object["spec"]["volumes"] = json!([]);
        let container = &mut object["spec"]["containers"][0];
        container["command"] = json!(["sleep", "600"]);
        container["volumeDevices"] = json!([]);
        self.kubectl.apply(&[object])?;
        self.run(&["wait", "--for=condition=Ready", "pod/idle", LOAD_LIMIT])?;
        let said = self.run(&["exec", "idle", "--", "ringloom", "--version"])?;
        ensure!(said.starts_with("ringloom "), "ringloom --version says {said:?}");
        let mut command = self.kubectl.command(&[
            "--namespace",
            NAMESPACE,
            "exec",
            "idle",
            "--",
            "sh",
            "-c",
            "exit 3",
        ]);
        let output = command.output().context("start kubectl")?;
        ensure!(output.status.code() == Some(3), "exit 3 in a pod: {}", output.status);
        let copy = ["ringloom", "convert", "driver=rbd,pool=p,image=i", "/tmp/copy"];
        let words = [&["--namespace", NAMESPACE, "exec", "idle", "--"][..], &copy].concat();
        let output = self.kubectl.command(&words).output().context("start kubectl")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(said.contains("linked statically and cannot open librbd"), "{said}");
        Ok(())
    }

    fn offered_again(&self) -> Result<()> {
        self.clear()?;
        wait_for("volumes to be offered again", OFFER_LIMIT, || {
            let phases = self.kubectl.run(&[
                "get",
                "pv",
                "--output",
                "jsonpath={.items[*].status.phase}",
            ])?;
            let is_free = phases.split_whitespace().all(|phase| phase == "Available");
            Ok(if is_free { Attempt::Done(()) } else { Attempt::later(phases) })
        })
    }

    /// Removes what an earlier trial left.
    fn clear(&self) -> Result<()> {
        let remove = ["delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=300s"];
        self.kubectl.run(&remove).map(drop)
    }
}

fn claim(name: &str, mode: Mode) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "storageClassName": mode.class(), "volumeMode": mode.name(), "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// A pod that runs fio on its claim; such pods spread over the nodes.
fn pod(name: &str, mode: Mode) -> Value {
    let target = match mode {
        Mode::Block => format!("--filename={DEVICE}"),
        Mode::Filesystem => format!("--directory={DIRECTORY}"),
    };
    // Its report is a file first: it warns on its standard output.
    let load = format!(
        "fio --name=load {target} --rw=randwrite --bs=4k --size={LOAD_BYTES} --direct=1 --ioengine=libaio --iodepth=8 \
         --verify=crc32c --invalidate=0 --output=/tmp/report --output-format=json >&2 && cat /tmp/report"
    );
    let mut container = json!({
        "name": "fio", "image": AGENT, "command": ["sh", "-c", load],
        // Claims belong to root, and the image's user is another.
        "securityContext": {"runAsUser": 0},
    });
    match mode {
        Mode::Block => {
            container["volumeDevices"] = json!([{"name": "claim", "devicePath": DEVICE}])
        }
        Mode::Filesystem => {
            container["volumeMounts"] = json!([{"name": "claim", "mountPath": DIRECTORY}]);
        }
    }
    let label = json!({"trial": mode.class()});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": label},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container],
            "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": name}}],
            "topologySpreadConstraints": [{
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": label},
            }],
        },
    })
}
