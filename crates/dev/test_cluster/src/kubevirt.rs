//! KubeVirt on the cluster: what its operator would do, done by hand; then its own virt-api and virt-controller.
//!
//! Invariants: runs inside the namespaces, once the nodes are ready. Guests are emulated (`useEmulation`), and launchers run as
//! root, since nothing here gives block devices to another user. Not here: what virt-handler does (`handler`).

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::certificates::{base64_of, certificate};
use crate::clock::{Attempt, wait_for};
use crate::handler;
use crate::images::LAUNCHER;
use crate::kubectl::Kubectl;
use crate::node::NODES;
use crate::place::Place;
use crate::programs::{KUBEVIRT, KUBEVIRT_VERSION};
use crate::run::{output_of, read, start, write};
use crate::running::Running;

const NAMESPACE: &str = "kubevirt";
const API_PORT: u16 = 8443;
const CONTROLLER_PORT: u16 = 8444;
/// Of virt-api's and virt-controller's servers.
const CERTIFICATE: &str = "kubevirt";
/// Every instance asks for some of these, which a device plugin of virt-handler would offer.
const DEVICES: [&str; 3] = ["kvm", "tun", "vhost-net"];
/// How many guests of each node they are enough for.
const DEVICES_EACH: &str = "100";
/// KubeVirt's parts by the names of their accounts: its webhook undoes what anybody else changes in the status of instances.
const API: &str = "kubevirt-apiserver";
const CONTROLLER: &str = "kubevirt-controller";
const HANDLER: &str = "kubevirt-handler";
const START_LIMIT: Duration = Duration::from_secs(300);

/// Starts it, with the stand-in of virt-handler.
pub(crate) fn start_all(place: &Place, kubectl: &Kubectl, running: &mut Running) -> Result<()> {
    let programs = Programs { place, certificates: place.run("certificates") };
    certificate(&programs.certificates, CERTIFICATE)?;
    let (definitions, webhooks) = programs.objects()?;
    kubectl.apply(&definitions)?;
    let established = "--for=condition=Established";
    kubectl.run(&["wait", established, "customresourcedefinition", "--all", "--timeout=300s"])?;
    kubectl.apply(&[namespace()])?;
    kubectl.apply(&[settings()])?;
    let done = status().to_string();
    let object = ["--namespace", NAMESPACE, "patch", "kubevirts.kubevirt.io", "kubevirt"];
    let change = ["--subresource=status", "--type=merge", "--patch", &done];
    kubectl.run(&[&object[..], &change].concat())?;
    kubectl.apply(&rights_of_all())?;
    prepare_nodes(kubectl)?;
    running.add("virt-api", programs.start_api()?);
    wait_for("virt-api", START_LIMIT, || {
        running.check()?;
        let connected = TcpStream::connect(("127.0.0.1", API_PORT));
        Ok(Attempt::of(connected.map(drop).context("connect to virt-api")))
    })?;
    kubectl.apply(&webhooks)?;
    running.add("virt-controller", programs.start_controller()?);
    handler::start(&Kubectl::new(place, &programs.kubeconfig(HANDLER)?)?);
    // It takes machines as soon as it has taken its lease.
    wait_for("virt-controller", START_LIMIT, || {
        running.check()?;
        let lease = ["--namespace", NAMESPACE, "get", "lease", "virt-controller"];
        let holder =
            kubectl.run(&[&lease[..], &["--output=jsonpath={.spec.holderIdentity}"]].concat());
        Ok(Attempt::of(holder.and_then(|it| {
            ensure!(!it.is_empty(), "nobody holds its lease");
            Ok(())
        })))
    })
}

/// What makes a node fit for virtual machines: what virt-handler and its device plugins would tell.
fn prepare_nodes(kubectl: &Kubectl) -> Result<()> {
    let labels = ["kubevirt.io/schedulable=true", "machine-type.node.kubevirt.io/q35=true"];
    kubectl.run(&[&["label", "node", "--all", "--overwrite"], &labels[..]].concat())?;
    handler::beat(kubectl)?;
    let devices: serde_json::Map<String, Value> = DEVICES
        .iter()
        .map(|it| (format!("devices.kubevirt.io/{it}"), json!(DEVICES_EACH)))
        .collect();
    let change = json!({"status": {"capacity": devices, "allocatable": devices}}).to_string();
    for node in NODES {
        let name = format!("node{node}");
        let change = ["--subresource=status", "--type=merge", "--patch", &change];
        kubectl.run(&[&["patch", "node", &name], &change[..]].concat())?;
    }
    Ok(())
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
}

fn settings() -> Value {
    // The stand-in of container-disk copies a kernel and an initramfs, which the default of 10m and 40M would stretch.
    let enough = json!({"limits": {"cpu": "1", "memory": "512M"}});
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": NAMESPACE},
        "spec": {"configuration": {
            "developerConfiguration": {"useEmulation": true, "featureGates": ["Root"]},
            "supportContainerResources": [{"type": "container-disk", "resources": enough}],
        }},
    })
}

/// The role that KubeVirt gives to everybody who is known to the cluster, as far as anything here looks at it.
fn rights_of_all() -> [Value; 2] {
    let (name, group) = ("kubevirt.io:default", "rbac.authorization.k8s.io");
    let role = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": name},
        "rules": [
            {"apiGroups": ["subresources.kubevirt.io"], "resources": ["version"], "verbs": ["get", "list"]},
            {"apiGroups": ["kubevirt.io"], "resources": ["kubevirts"], "verbs": ["get", "list"]},
        ],
    });
    let everybody = json!({"kind": "Group", "apiGroup": group, "name": "system:authenticated"});
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name}, "subjects": [everybody],
    });
    [role, binding]
}

/// What the operator says when it is done; without the architecture instances are refused.
fn status() -> Value {
    json!({"status": {
        "phase": "Deployed", "defaultArchitecture": "amd64",
        "observedKubeVirtVersion": KUBEVIRT_VERSION, "targetKubeVirtVersion": KUBEVIRT_VERSION,
    }})
}

/// Its programs, and the files that they get.
struct Programs<'a> {
    place: &'a Place,
    certificates: PathBuf,
}

impl Programs<'_> {
    fn program(&self, name: &str) -> Result<Command> {
        Ok(Command::new(KUBEVIRT.directory(self.place)?.join(name)))
    }

    /// The types of objects, and the webhooks.
    fn objects(&self) -> Result<(Vec<Value>, Vec<Value>)> {
        // Printing them takes seconds, and they are as constant as the program.
        let path = KUBEVIRT.directory(self.place)?.join("objects.json");
        if !path.is_file() {
            let new = path.with_extension("new");
            write(&new, output_of(&mut self.program("kubevirt-objects")?)?)?;
            std::fs::rename(&new, &path).with_context(|| format!("rename {}", new.display()))?;
        }
        let text = read(&path)?;
        let list: Value = serde_json::from_str(&text).context("what kubevirt-objects prints")?;
        let all = list["items"].as_array().context("kubevirt-objects prints a list")?.clone();
        let authority = base64_of(&self.file("crt"))?;
        let (mut webhooks, definitions): (Vec<Value>, Vec<Value>) =
            all.into_iter().partition(|it| it["webhooks"].is_array());
        webhooks.iter_mut().for_each(|it| lead_to_this_machine(it, &authority));
        Ok((definitions, webhooks))
    }

    /// Makes a kubeconfig for a part of KubeVirt, with all rights.
    fn kubeconfig(&self, account: &str) -> Result<PathBuf> {
        let text = read(&self.place.run("inside.kubeconfig"))?;
        let mut config: Value = serde_json::from_str(&text).context("the kubeconfig")?;
        let user = &mut config["users"][0]["user"];
        user["as"] = json!(format!("system:serviceaccount:{NAMESPACE}:{account}"));
        user["as-groups"] = json!(["system:masters"]);
        let path = self.place.run(account).with_extension("kubeconfig");
        write(&path, format!("{config:#}\n"))?;
        Ok(path)
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.certificates.join(CERTIFICATE).with_extension(ending)
    }

    fn start_api(&self) -> Result<Child> {
        let mut command = self.program("virt-api")?;
        command.arg("--kubeconfig").arg(self.kubeconfig(API)?);
        command.args(["--listen", "127.0.0.1", "--port", &API_PORT.to_string()]);
        for (option, ending) in [
            ("--tls-cert-file", "crt"),
            ("--tls-key-file", "key"),
            ("--handler-cert-file", "crt"),
            ("--handler-key-file", "key"),
        ] {
            command.arg(option).arg(self.file(ending));
        }
        start(&mut command, &self.log("virt-api"))
    }

    fn start_controller(&self) -> Result<Child> {
        let mut command = self.program("virt-controller")?;
        command.arg("--kubeconfig").arg(self.kubeconfig(CONTROLLER)?);
        command.args(["--listen", "127.0.0.1", "--port", &CONTROLLER_PORT.to_string()]);
        // Nothing exports disks here.
        command.args(["--launcher-image", LAUNCHER, "--exporter-image", LAUNCHER]);
        command.arg("--prom-cert-file").arg(self.file("crt"));
        command.arg("--prom-key-file").arg(self.file("key"));
        // Nobody else wants its lease, and without it it ends, and everything with it: on a machine that others use so much that
        // it cannot renew the lease for ten seconds.
        command.args(["--leader-elect-lease-duration=2h", "--leader-elect-renew-deadline=1h"]);
        start(&mut command, &self.log("virt-controller"))
    }

    fn log(&self, name: &str) -> PathBuf {
        Path::new(&self.place.run("logs")).join(name).with_extension("log")
    }
}

/// There are no services: the API server finds virt-api by address.
fn lead_to_this_machine(configuration: &mut Value, authority: &str) {
    for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
        let path = webhook["clientConfig"]["service"]["path"].as_str().unwrap_or_default();
        let url = format!("https://127.0.0.1:{API_PORT}{path}");
        webhook["clientConfig"] = json!({"url": url, "caBundle": authority});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_lead_to_an_address() {
        let service = json!({"name": "virt-api", "path": "/virtualmachines-mutate"});
        let mut it = json!({"webhooks": [{"clientConfig": {"service": service}}]});
        lead_to_this_machine(&mut it, "AAAA");
        let config =
            json!({"url": "https://127.0.0.1:8443/virtualmachines-mutate", "caBundle": "AAAA"});
        assert_eq!(it["webhooks"][0]["clientConfig"], config);
    }
}
