//! Inside the namespaces: starts everything, tells when it is ready, then keeps it.
//!
//! Invariants: if a program ends that should stay, all ends: nothing runs on with a part missing. The file `ready`
//! appears when pods can be started. Threads: one that offers volumes again.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::certificates::{certificate, kubeconfig, signing_key, token};
use crate::clock::{Attempt, pause, wait_for};
use crate::forward::unix_to_tcp;
use crate::host::devices;
use crate::images::archives;
use crate::kubectl::Kubectl;
use crate::node::{NODES, Node, address};
use crate::place::Place;
use crate::programs::KUBERNETES;
use crate::run::{make_dir, start, write};
use crate::running::Running;
use crate::{kubevirt, namespace, volumes};

const API_PORT: u16 = 6443;
/// The conditions of pods have no field more than KubeVirt 1.6 knows: it patches them only if they are as it has them.
const NO_OBSERVED_GENERATION: &str = "--feature-gates=PodObservedGenerationTracking=false";
const START_LIMIT: Duration = Duration::from_secs(300);
/// How often it is looked whether everything still runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Until something ends that should stay.
pub(crate) fn run(place: &Place, port: u16) -> Result<()> {
    // The devices are looked for before other mounts cover what losetup looks at.
    let devices = devices(place)?;
    namespace::prepare(place)?;
    make_dir(&place.run("logs"))?;
    let mut running = Running::default();
    let cluster = Cluster { place, token: token()? };
    cluster.start_server(&mut running)?;
    let nodes: Vec<Node<'_>> =
        NODES.into_iter().map(|number| Node::new(place, number)).collect::<Result<_>>()?;
    for node in &nodes {
        running.add("containerd", node.start_containerd()?);
    }
    for node in &nodes {
        node.import(&archives(place))?;
    }
    let kubectl = cluster.wait_for_server(&mut running, port)?;
    cluster.start_controllers(&mut running)?;
    for node in &nodes {
        running.add("kubelet", node.start_kubelet()?);
    }
    kubectl.apply(&volumes::objects(&devices))?;
    wait_until_ready(&kubectl, &mut running)?;
    kubevirt::start_all(place, &kubectl, &mut running)?;
    let keeper = kubectl.clone();
    std::thread::spawn(move || offer_volumes(&keeper));
    write(&place.run("ready"), "")?;
    loop {
        running.check()?;
        pause(LOOK_INTERVAL);
    }
}

/// Volumes that were given back are offered again, for ever.
fn offer_volumes(kubectl: &Kubectl) {
    loop {
        let ended = kubectl.follow(&["pv"], |volume| {
            if let Err(error) = volumes::offer_again(kubectl, volume) {
                println!("offer a volume again: {error:#}");
            }
        });
        if let Err(error) = ended {
            println!("follow volumes: {error:#}");
        }
        // What failed is tried again, since following begins with all that there are.
        pause(LOOK_INTERVAL);
    }
}

fn wait_until_ready(kubectl: &Kubectl, running: &mut Running) -> Result<()> {
    wait_for("the nodes", START_LIMIT, || {
        running.check()?;
        let nodes = ["wait", "--for=condition=Ready", "node", "--all", "--timeout=1s"];
        Ok(Attempt::of(kubectl.run(&nodes).and_then(|said| {
            ensure!(said.lines().count() == NODES.len(), "ready so far: {said}");
            Ok(())
        })))
    })?;
    wait_for("the first service account", START_LIMIT, || {
        running.check()?;
        Ok(Attempt::of(kubectl.run(&["get", "serviceaccount", "default"]).map(drop)))
    })
}

/// What the programs of the control plane share.
struct Cluster<'a> {
    place: &'a Place,
    token: String,
}

impl Cluster<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.place.run("certificates").join(name)
    }

    /// Starts the store and the API server.
    fn start_server(&self, running: &mut Running) -> Result<()> {
        make_dir(&self.path(""))?;
        signing_key(&self.path("accounts.key"))?;
        // With it the API server shows itself to servers that extend it; it is its own authority.
        certificate(&self.path(""), "front-proxy")?;
        write(&self.path("tokens.csv"), format!("{},admin,admin,system:masters\n", self.token))?;
        let mut etcd = Command::new(self.place.packages().join("usr/bin/etcd"));
        etcd.arg("--data-dir").arg(self.place.run("etcd")).arg("--unsafe-no-fsync");
        for option in ["--listen-client-urls", "--advertise-client-urls"] {
            etcd.args([option, "http://127.0.0.1:2379"]);
        }
        etcd.args(["--listen-peer-urls", "http://127.0.0.1:2380"]);
        running.add("etcd", start(&mut etcd, &self.place.run("logs/etcd.log"))?);
        let mut server = self.program("kube-apiserver", &server_options())?;
        let option = |name: &str, file: &str| format!("--{name}={}", self.path(file).display());
        server.args([
            option("cert-dir", ""),
            option("token-auth-file", "tokens.csv"),
            option("service-account-signing-key-file", "accounts.key"),
            option("service-account-key-file", "accounts.key"),
            option("client-ca-file", "front-proxy.crt"),
            option("requestheader-client-ca-file", "front-proxy.crt"),
            option("proxy-client-cert-file", "front-proxy.crt"),
            option("proxy-client-key-file", "front-proxy.key"),
        ]);
        let log = self.place.run("logs/kube-apiserver.log");
        running.add("kube-apiserver", start(&mut server, &log)?);
        Ok(())
    }

    /// Waits until the server answers; lets this machine reach it.
    fn wait_for_server(&self, running: &mut Running, port: u16) -> Result<Kubectl> {
        let authority = self.path("apiserver.crt");
        wait_for("the certificate of the API server", START_LIMIT, || {
            running.check()?;
            Ok(match authority.is_file() {
                true => Attempt::Done(()),
                false => Attempt::later("it is not there"),
            })
        })?;
        let inside = self.place.run("inside.kubeconfig");
        kubeconfig(&inside, API_PORT, &authority, &self.token)?;
        kubeconfig(&self.place.kubeconfig(), port, &authority, &self.token)?;
        unix_to_tcp(&self.place.run("api.sock"), API_PORT)?;
        let kubectl = Kubectl::new(self.place, &inside)?;
        wait_for("the API server", START_LIMIT, || {
            running.check()?;
            Ok(Attempt::of(kubectl.run(&["get", "--raw", "/readyz"])))
        })?;
        Ok(kubectl)
    }

    fn start_controllers(&self, running: &mut Running) -> Result<()> {
        let kubeconfig = self.place.run("inside.kubeconfig").display().to_string();
        for name in ["kube-controller-manager", "kube-scheduler"] {
            let mut command =
                self.program(name, &["--leader-elect=false", "--bind-address=127.0.0.1"])?;
            for option in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
                command.arg(format!("--{option}={kubeconfig}"));
            }
            command.arg(format!("--cert-dir={}", self.path(name).display()));
            command.arg(NO_OBSERVED_GENERATION);
            if name == "kube-controller-manager" {
                // A node that is late was not given the processor by this machine.
                command.arg("--node-monitor-grace-period=300s");
                let key = self.path("accounts.key");
                command.arg(format!("--service-account-private-key-file={}", key.display()));
                let authority = self.path("apiserver.crt");
                command.arg(format!("--root-ca-file={}", authority.display()));
            }
            let log = self.place.run("logs").join(name).with_extension("log");
            running.add(name, start(&mut command, &log)?);
        }
        Ok(())
    }

    fn program(&self, name: &str, options: &[impl AsRef<std::ffi::OsStr>]) -> Result<Command> {
        let mut command = Command::new(KUBERNETES.directory(self.place)?.join(name));
        command.args(options);
        Ok(command)
    }
}

fn server_options() -> Vec<String> {
    let mut options: Vec<String> = [
        "--etcd-servers=http://127.0.0.1:2379",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--bind-address=127.0.0.1",
        "--authorization-mode=Node,RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--enable-aggregator-routing=true",
        NO_OBSERVED_GENERATION,
    ]
    .map(str::to_owned)
    .to_vec();
    options.push(format!("--secure-port={API_PORT}"));
    options.push(format!("--advertise-address={}", address(NODES[0])));
    options
}
