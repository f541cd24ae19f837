//! The local volumes: loop devices on sparse files, two as block devices and two for file systems on each node.
//!
//! A claim binds to one of the node that its pod was put on (`WaitForFirstConsumer`). Who gets a file system finds it
//! made by the kubelet. What was given back is emptied and offered again, as the provisioner of local volumes does.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::kubectl::Kubectl;
use crate::node::NODES;
use crate::run::output_of;

/// How big each is.
pub(crate) const SIZE: &str = "2Gi";
/// Of each kind on each node.
const EACH: usize = 2;

/// What a volume is handed out as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Block,
    Filesystem,
}

impl Mode {
    pub(crate) const ALL: [Self; 2] = [Self::Block, Self::Filesystem];

    /// The storage class of such volumes.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Block => "local-block",
            Self::Filesystem => "local-fs",
        }
    }

    /// As Kubernetes calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Block => "Block",
            Self::Filesystem => "Filesystem",
        }
    }
}

/// A volume that a node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) node: usize,
    pub(crate) mode: Mode,
    index: usize,
}

impl Volume {
    /// Those of all nodes.
    pub(crate) fn all() -> Vec<Self> {
        let of = |node| Mode::ALL.into_iter().map(move |mode| (node, mode));
        let each = |(node, mode)| (0..EACH).map(move |index| Self { node, mode, index });
        NODES.into_iter().flat_map(of).flat_map(each).collect()
    }

    /// Its name, for the file and for Kubernetes.
    pub(crate) fn name(&self) -> String {
        format!("node{}-{}-{}", self.node, self.mode.class(), self.index)
    }

    fn object(&self, device: &str) -> Value {
        let host = format!("node{}", self.node);
        let is_host = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [host]});
        let mut object = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": self.name()},
            "spec": {
                "capacity": {"storage": SIZE}, "volumeMode": self.mode.name(),
                "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": self.mode.class(), "local": {"path": device},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [is_host]}]}},
            },
        });
        if self.mode == Mode::Filesystem {
            object["spec"]["local"]["fsType"] = json!("ext4");
        }
        object
    }
}

/// The classes and the volumes, each with its device.
pub(crate) fn objects(devices: &[(Volume, String)]) -> Vec<Value> {
    let classes = Mode::ALL.into_iter().map(|mode| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": mode.class()}, "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        })
    });
    let volumes = devices.iter().map(|(volume, device)| volume.object(device));
    classes.chain(volumes).collect()
}

/// Offers a volume again whose claim is gone; others are left alone.
///
/// What a watch tells may be old, and a volume must not be emptied that somebody has again: it is asked for now. From
/// then on it stays as it is, since only we give it back, in one thread.
pub(crate) fn offer_again(kubectl: &Kubectl, told: &Value) -> Result<()> {
    if released(told).is_none() {
        return Ok(());
    }
    let name = told["metadata"]["name"].as_str().context("a volume has a name")?;
    let volume = kubectl.json(&["get", "pv", name])?;
    let Some(device) = released(&volume) else { return Ok(()) };
    // It fails while a node still holds the device; the next change or the next look tries again.
    output_of(Command::new("blkdiscard").arg(device))?;
    let patch = json!([{"op": "remove", "path": "/spec/claimRef"}]).to_string();
    kubectl.run(&["patch", "pv", name, "--type", "json", "--patch", &patch]).map(drop)
}

/// The device of a volume that was given back.
pub(crate) fn released(volume: &Value) -> Option<&str> {
    let is_released = volume["status"]["phase"] == "Released";
    volume["spec"]["local"]["path"].as_str().filter(|_| is_released)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_volume_is_on_its_node_and_in_its_class() {
        let all = Volume::all();
        let names: Vec<String> = all.iter().map(Volume::name).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[0], "node1-local-block-0");
        assert_eq!(names[7], "node2-local-fs-1");
        let devices: Vec<_> = all.into_iter().map(|it| (it, "/dev/loop9".to_owned())).collect();
        let objects = objects(&devices);
        assert_eq!(objects.len(), 2 + 8);
        let (block, files) = (&objects[2]["spec"], &objects[9]["spec"]);
        assert_eq!(block["storageClassName"], objects[0]["metadata"]["name"]);
        assert_eq!(
            (&block["volumeMode"], &files["volumeMode"]),
            (&json!("Block"), &json!("Filesystem"))
        );
        assert_eq!(
            (&block["local"]["fsType"], &files["local"]["fsType"]),
            (&Value::Null, &json!("ext4"))
        );
        let term =
            &files["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
        assert_eq!(term["values"], json!(["node2"]));
    }

    #[test]
    fn only_what_was_given_back_is_offered_again() {
        let volume =
            |phase: &str| json!({"spec": {"local": {"path": "/d"}}, "status": {"phase": phase}});
        assert_eq!(released(&volume("Released")), Some("/d"));
        assert_eq!(released(&volume("Bound")), None);
        assert_eq!(released(&volume("Available")), None);
    }
}
