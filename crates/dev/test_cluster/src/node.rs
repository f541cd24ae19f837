//! A node: containerd and kubelet, each with files, sockets, ports and control groups of its own.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use crate::clock::{Attempt, wait_for};
use crate::host::control_group;
use crate::images::AGENT;
use crate::place::Place;
use crate::programs::KUBERNETES;
use crate::run::{make_dir, output_of, start, write};

/// Their numbers.
pub(crate) const NODES: [usize; 2] = [1, 2];
/// The bridge that has the nodes' addresses.
pub(crate) const BRIDGE: &str = "ringloom0";

const START_LIMIT: Duration = Duration::from_secs(300);

/// The address of a node.
pub(crate) fn address(node: usize) -> String {
    format!("10.88.0.1{node}")
}

/// A node that is being started.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    place: &'a Place,
    number: usize,
}

impl<'a> Node<'a> {
    /// Makes its directories.
    pub(crate) fn new(place: &'a Place, number: usize) -> Result<Self> {
        let node = Self { place, number };
        for directory in ["network", "kubelet", "logs", "plugins"] {
            make_dir(&node.path(directory))?;
        }
        Ok(node)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.run(&format!("node{}", self.number)).join(name)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.place.run("logs").join(format!("{name}{}.log", self.number))
    }

    /// Starts containerd.
    pub(crate) fn start_containerd(&self) -> Result<Child> {
        write(&self.path("network/10-bridge.conflist"), self.network().to_string())?;
        write(&self.path("containerd.toml"), self.containerd_config())?;
        let mut command = self.unpacked("usr/bin/containerd");
        start(command.arg("--config").arg(self.path("containerd.toml")), &self.log("containerd"))
    }

    /// Gives it the images.
    pub(crate) fn import(&self, archives: &[PathBuf]) -> Result<()> {
        let client = || {
            let mut command = self.unpacked("usr/bin/ctr");
            command
                .arg("--address")
                .arg(self.path("containerd.sock"))
                .args(["--namespace", "k8s.io"]);
            command
        };
        wait_for("containerd", START_LIMIT, || {
            Ok(Attempt::of(output_of(client().arg("version"))))
        })?;
        for archive in archives {
            output_of(client().args(["images", "import"]).arg(archive))?;
        }
        Ok(())
    }

    /// Starts the kubelet, which registers the node.
    pub(crate) fn start_kubelet(&self) -> Result<Child> {
        write(&self.path("kubelet.yaml"), self.kubelet_config()?.to_string())?;
        let mut command = Command::new(KUBERNETES.directory(self.place)?.join("kubelet"));
        let option = |name: &str, path: PathBuf| format!("--{name}={}", path.display());
        command.arg(option("config", self.path("kubelet.yaml")));
        command.arg(option("root-dir", self.path("kubelet")));
        command.arg(option("cert-dir", self.path("certificates")));
        command.arg(option("kubeconfig", self.place.run("inside.kubeconfig")));
        command.arg(format!("--hostname-override=node{}", self.number));
        command.arg(format!("--node-ip={}", address(self.number)));
        start(&mut command, &self.log("kubelet"))
    }

    /// A program of the unpacked packages, with its libraries and the programs that it starts.
    fn unpacked(&self, name: &str) -> Command {
        let root = self.place.packages();
        let mut command = Command::new(root.join(name));
        let own = root.join("usr/bin");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", own.display()));
        command.env("LD_LIBRARY_PATH", root.join("usr/lib/x86_64-linux-gnu"));
        command
    }

    fn containerd_config(&self) -> String {
        let text = |name: &str| self.path(name).display().to_string();
        let root = self.place.packages();
        let root = root.display();
        let (state, socket, ttrpc) = (text("state"), text("containerd.sock"), text("ttrpc.sock"));
        // Without CAP_SYS_RESOURCE runc cannot lower the score by which the kernel chooses whom to kill.
        format!(
            r#"version = 2
root = "{data}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.tracing"]
[grpc]
address = "{socket}"
[ttrpc]
address = "{ttrpc}"
[plugins."io.containerd.internal.v1.opt"]
path = "{opt}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{AGENT}"
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{root}/usr/lib/cni"
conf_dir = "{network}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{root}/usr/sbin/runc"
"#,
            data = text("containerd"),
            opt = text("opt"),
            network = text("network"),
        )
    }

    /// Pods of a node hang on a bridge of their own; the kernel routes between the two.
    fn network(&self) -> Value {
        let node = self.number;
        json!({
            "cniVersion": "1.0.0", "name": "pods",
            "plugins": [{
                "type": "bridge", "bridge": format!("{BRIDGE}-{node}"), "isGateway": true,
                "ipam": {
                    "type": "host-local", "dataDir": self.path("addresses"),
                    "ranges": [[{"subnet": format!("10.88.{node}.0/24")}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        })
    }

    fn kubelet_config(&self) -> Result<Value> {
        let shift = 10 * (self.number - 1);
        Ok(json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            // Logs and exec come by way of the API server, which has no certificate for this; nobody else can reach it.
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "address": address(self.number), "port": 10250 + shift, "healthzPort": 10248 + shift,
            "cgroupRoot": format!("/{}", control_group(self.place, self.number)?),
            "cgroupDriver": "cgroupfs", "failCgroupV1": false, "failSwapOn": false, "resolvConf": "",
            "podLogsDir": self.path("logs"), "volumePluginDir": self.path("plugins"),
            "containerRuntimeEndpoint": format!("unix://{}", self.path("containerd.sock").display()),
            "makeIPTablesUtilChains": false,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            // As the API server is told.
            "featureGates": {"PodObservedGenerationTracking": false},
        }))
    }
}
