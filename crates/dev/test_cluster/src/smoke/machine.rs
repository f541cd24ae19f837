//! A virtual machine as the tuner makes it, up to the first answer of its agent.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{LOAD_LIMIT, NAMESPACE, Trial, claim};
use crate::clock::{Attempt, wait_for};
use crate::images::GUEST;
use crate::run::output_given;
use crate::volumes::Mode;

const NAME: &str = "machine";
/// Of this guest only.
const TOKEN: &str = "smoke-0123456789abcdef";
const IOTHREADS: u64 = 2;
/// From the object to a guest that runs, and from there to its agent, under emulation.
const RUN_LIMIT: Duration = Duration::from_secs(600);
const ANSWER_LIMIT: Duration = Duration::from_secs(600);

impl Trial {
    /// Needs the pod `idle`, which is what joins the streams.
    pub(super) fn machine(&self) -> Result<()> {
        self.run(&["wait", "--for=condition=Ready", "pod/idle", LOAD_LIMIT])?;
        self.kubectl.apply(&[claim(NAME, Mode::Block), machine()])?;
        let instance = ["get", "vmi", NAME, "--ignore-not-found", "--output=json"];
        let started = wait_for("the virtual machine to run", RUN_LIMIT, || {
            let text = self.run(&instance)?;
            Ok(Attempt::of(address_of(&text)))
        });
        let answered = started.and_then(|address| {
            wait_for("the guest's agent", ANSWER_LIMIT, || {
                Ok(Attempt::of(self.greet(&format!("{address}:7777"))))
            })
        });
        answered.map_err(|error| {
            let said = |words: &[&str]| self.run(words).unwrap_or_else(|it| it.to_string());
            let launcher = ["logs", "--selector=kubevirt.io=virt-launcher", "--tail=60", "-c"];
            let log = said(&[&launcher[..], &["compute"]].concat());
            error.context(format!("{log}\n{}", said(&["get", "events"])))
        })?;
        self.run(&["delete", "virtualmachine", NAME, LOAD_LIMIT])?;
        let gone = ["wait", "--for=delete", "pod", "--selector=kubevirt.io=virt-launcher"];
        self.run(&[&gone[..], &[LOAD_LIMIT]].concat()).map(drop)
    }

    /// Says hello to an agent that listens, as `ringloom tune` does.
    fn greet(&self, address: &str) -> Result<()> {
        let words = ["exec", "--stdin", "idle", "--", "ringloom", "agent", "connect", address];
        let mut command = self.kubectl.command(&[&["--namespace", NAMESPACE], &words[..]].concat());
        let hello = json!({"ask": "hello", "version": 1, "token": TOKEN});
        let said = output_given(&mut command, &format!("{hello}\n{}\n", json!({"ask": "end"})))?;
        let line = said.lines().next().context("the agent says nothing")?;
        let answer: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        ensure!(answer["tell"] == "hello", "the agent says {line}");
        ensure!(answer["facts"]["fio"].is_string(), "the guest has no fio: {line}");
        Ok(())
    }
}

fn address_of(instance: &str) -> Result<String> {
    let instance: Value = serde_json::from_str(instance).context("there is no instance yet")?;
    let status = &instance["status"];
    ensure!(status["phase"] == "Running", "the instance is {}", status["phase"]);
    let address = status["interfaces"][0]["ipAddress"].as_str();
    Ok(address.context("the instance has no address")?.to_owned())
}

fn machine() -> Value {
    let container = json!({
        "image": GUEST, "imagePullPolicy": "IfNotPresent",
        "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd",
    });
    let arguments = format!("console=ttyS0 ringloom.token={TOKEN}");
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"runStrategy": "Once", "template": {"spec": {
            "terminationGracePeriodSeconds": 0,
            "domain": {
                "cpu": {"cores": 2}, "memory": {"guest": "1Gi"},
                "firmware": {"kernelBoot": {"kernelArgs": arguments, "container": container}},
                "ioThreadsPolicy": "supplementalPool",
                "ioThreads": {"supplementalPoolThreadCount": IOTHREADS},
                "devices": {
                    "autoattachGraphicsDevice": false, "autoattachMemBalloon": false,
                    "logSerialConsole": false, "blockMultiQueue": true,
                    "disks": [{"name": "disk", "cache": "none", "disk": {"bus": "virtio"}}],
                    "interfaces": [{"name": "default", "masquerade": {}}],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": NAME}}],
        }}},
    })
}
