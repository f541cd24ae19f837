//! Development only: an API server that keeps objects in a map: enough of HTTP and of Kubernetes for one client.
//!
//! Where it stands: a dev-dependency of what talks to a cluster; the real one is `test_cluster`'s.
//! Invariants: a pod that runs takes commands, and whatever the words are, what answers is an agent in this process.
//! Limits: no watches; of selectors those of labels that are equal.
#![forbid(unsafe_code)]

mod exec;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use agent::Token;
use serde_json::{Value, json};
use tungstenite::handshake::derive_accept_key;

/// Where objects of tests are.
pub const NAMESPACE: &str = "/api/v1/namespaces/perf";

/// What the server has and refuses.
#[derive(Debug, Default)]
pub struct State {
    /// By path.
    pub objects: BTreeMap<String, Value>,
    /// Rights that are denied: verb and resource.
    pub denied: BTreeSet<String>,
    /// Resources of KubeVirt's group.
    pub has_kubevirt: bool,
    /// What KubeVirt's own server says of its version; without it, nobody answers that question.
    pub kubevirt_version: Option<String>,
    /// What keeps the pods of machines from being made, as KubeVirt tells it.
    pub refused_launchers: Option<String>,
    /// What instances of machines say of their network; without it, that there is an address.
    pub interfaces: Option<Value>,
    /// How many commands in pods are refused before one is taken, as after new certificates.
    pub refused_commands: usize,
    /// What is answered to a `POST` on a path that ends so.
    pub refused: BTreeMap<String, String>,
    /// What becomes of a pod that is made; without it, nobody schedules it.
    pub pod_status: Option<Value>,
    /// Pods that are deleted stay, as those of a node that is gone.
    pub keeps_pods: bool,
    /// It answers nobody any more.
    pub is_gone: bool,
    /// The file that is the disk of pods and machines, whatever the path that is asked for.
    pub disk: Option<PathBuf>,
    /// The directory that is the file system of a claim in pods; with it, its `disk.img` is the disk of machines.
    pub directory: Option<PathBuf>,
    /// How many nanoseconds the clocks of nodes are ahead.
    pub ahead_ns: BTreeMap<String, i64>,
    serial: usize,
    pods: usize,
}

/// A server, and a kubeconfig that leads to it.
#[derive(Debug)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    /// Leads to it.
    pub kubeconfig: PathBuf,
    _directory: tempfile::TempDir,
}

impl Fake {
    /// Two nodes, one storage class.
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        for name in ["one", "two"] {
            let node = json!({
                "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" } },
                "status": {
                    "allocatable": { "cpu": "4", "memory": "8Gi" },
                    "conditions": [{ "type": "Ready", "status": "True" }],
                    "nodeInfo": { "architecture": "amd64", "bootID": "", "machineID": "", "systemUUID": "",
                        "operatingSystem": "linux", "osImage": "Debian GNU/Linux 12", "kubeProxyVersion": "",
                        "kernelVersion": "6.1.0", "kubeletVersion": "v1.34.1",
                        "containerRuntimeVersion": "containerd://1.7.27" },
                },
            });
            let place = format!("/api/v1/nodes/{name}");
            state.lock().expect("no panic").objects.insert(place, node);
        }
        let class = json!({ "metadata": { "name": "local" }, "provisioner": "none" });
        let place = "/apis/storage.k8s.io/v1/storageclasses/local".to_owned();
        state.lock().expect("no panic").objects.insert(place, class);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // Otherwise the second half of an answer waits for an acknowledgement of the first.
                stream.set_nodelay(true).expect("a socket of TCP");
                // A client that hangs up ends its thread.
                thread::spawn(move || drop(serve(&stream, &state)));
            }
        });
        let directory = tempfile::tempdir().expect("a directory");
        let kubeconfig = directory.path().join("config");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{address}") } }],
            "users": [{ "name": "u", "user": {} }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("a file");
        Self { state, kubeconfig, _directory: directory }
    }

    /// One whose nodes take pods at once.
    pub fn with_pods() -> Self {
        let fake = Self::start();
        fake.state().pod_status = Some(json!({
            "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }],
        }));
        fake
    }

    /// What it has and refuses, to look at and to change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Changes an object in the namespace of tests.
    pub fn change(&self, place: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        change(state.objects.get_mut(place).unwrap_or_else(|| panic!("{place} is there")));
    }

    /// Names of objects that runs have made.
    pub fn made(&self) -> Vec<String> {
        let state = self.state();
        state.objects.keys().filter(|it| it.contains("/ringloom-")).cloned().collect()
    }
}

/// The first line of a request and what of its headers counts.
struct Request {
    method: String,
    target: String,
    key: Option<String>,
    body: Value,
}

fn read(input: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let mut first = String::new();
    if input.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let (mut length, mut key) = (0, None);
    loop {
        let mut line = String::new();
        input.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "sec-websocket-key" => key = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    Ok(Some(Request { method, target, key, body }))
}

fn serve(stream: &TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream.try_clone()?;
    while let Some(request) = read(&mut input)? {
        if state.lock().expect("no panic").is_gone {
            return Ok(());
        }
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let pod = path.strip_suffix("/exec");
        if let (Some(pod), Some(key)) = (pod, &request.key)
            && state.lock().expect("no panic").runs(pod)
        {
            if state.lock().expect("no panic").refuses_command() {
                write!(output, "HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            }
            let accept = derive_accept_key(key.as_bytes());
            write!(
                output,
                "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
            )?;
            let mut service = exec::service();
            if query.contains("command=connect") {
                service.token = state.lock().expect("no panic").token();
            }
            exec::join(output, pod, service, state);
            return Ok(());
        }
        let query = decode(query);
        let (code, answer) =
            state.lock().expect("no panic").answer(&request.method, path, &query, request.body);
        let text = answer.to_string();
        write!(
            output,
            "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )?;
    }
    Ok(())
}

/// The few characters that selectors have.
fn decode(query: &str) -> String {
    query.replace("%2F", "/").replace("%3D", "=").replace("%2C", ",")
}

impl State {
    /// Whether this command is one of those that are refused.
    fn refuses_command(&mut self) -> bool {
        let is_refused = self.refused_commands > 0;
        self.refused_commands = self.refused_commands.saturating_sub(1);
        is_refused
    }

    /// How far the clock is ahead where commands of a pod run: of its node, or of the machines' that its streams lead to.
    fn ahead_ns(&self, pod: &str) -> i64 {
        let node = self.objects.get(pod).map(|it| it["spec"]["nodeName"].clone());
        let node = node.as_ref().and_then(Value::as_str).unwrap_or_default();
        self.ahead_ns.get(node).copied().unwrap_or(0)
    }

    /// Whether commands can be run in a pod.
    fn runs(&self, pod: &str) -> bool {
        let status = |it: &Value| it["status"]["phase"] == "Running";
        !self.is_gone && self.objects.get(pod).is_some_and(status)
    }

    /// What the guest of a virtual machine finds on its kernel's command line.
    fn token(&self) -> Option<Token> {
        let machine = self.objects.values().find(|it| it["kind"] == "VirtualMachine")?;
        let words = machine.pointer("/spec/template/spec/domain/firmware/kernelBoot/kernelArgs")?;
        let token = words.as_str()?.split("ringloom.token=").nth(1)?.split(' ').next()?;
        Some(Token::new(token).expect("a token"))
    }

    fn answer(&mut self, method: &str, path: &str, query: &str, body: Value) -> (u16, Value) {
        match (method, path) {
            ("GET", "/version") => (200, version()),
            ("GET", "/apis/kubevirt.io/v1") if self.has_kubevirt => {
                let machines = json!({ "name": "virtualmachines", "singularName": "", "namespaced": true,
                    "kind": "VirtualMachine", "verbs": ["get"] });
                (200, json!({ "groupVersion": "kubevirt.io/v1", "resources": [machines] }))
            }
            ("GET", "/apis/subresources.kubevirt.io/v1/version") => match &self.kubevirt_version {
                Some(version) => (200, json!({ "gitVersion": version })),
                None => (503, status(503, "no endpoints available")),
            },
            ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") => {
                (201, self.review(body))
            }
            ("POST", _) => self.create(path, body),
            ("DELETE", _) => self.delete(path),
            ("GET", _) => match self.objects.get(path) {
                Some(found) => (200, found.clone()),
                None if is_collection(path) => {
                    let right = format!("list {}", path.rsplit('/').next().unwrap_or_default());
                    if self.denied.contains(&right) {
                        return (403, status(403, &format!("no right: {right}")));
                    }
                    let items = self.list(path, query);
                    (
                        200,
                        json!({ "kind": "List", "apiVersion": "v1", "metadata": {}, "items": items }),
                    )
                }
                None => (404, status(404, "not found")),
            },
            _ => (405, status(405, "not allowed")),
        }
    }

    fn list(&self, path: &str, query: &str) -> Vec<Value> {
        let selector = query.split('&').find_map(|it| it.strip_prefix("labelSelector="));
        let wanted: Vec<_> = selector
            .into_iter()
            .flat_map(|it| it.split(','))
            .filter_map(|it| it.split_once('='))
            .collect();
        // Those of all namespaces have no collection of their own in the map.
        let is_wide = path == "/api/v1/pods";
        let below = if is_wide { "/api/v1/namespaces/".to_owned() } else { format!("{path}/") };
        let own = self
            .objects
            .iter()
            .filter(|(it, _)| it.starts_with(&below) && (!is_wide || it.contains("/pods/")))
            .map(|(_, it)| it);
        let labels = |it: &Value, key: &str| it["metadata"]["labels"][key].clone();
        own.filter(|it| wanted.iter().all(|(key, value)| labels(it, key) == *value))
            .cloned()
            .collect()
    }

    fn review(&self, mut body: Value) -> Value {
        let attributes = &body["spec"]["resourceAttributes"];
        let text = |name: &str| attributes[name].as_str().unwrap_or_default().to_owned();
        let right = format!("{} {}", text("verb"), text("resource"));
        body["status"] = json!({ "allowed": !self.denied.contains(&right) });
        body
    }

    fn create(&mut self, path: &str, mut body: Value) -> (u16, Value) {
        let refused = self.refused.iter().find(|(end, _)| path.ends_with(end.as_str()));
        if let Some((_, why)) = refused {
            return (403, status(403, why));
        }
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let place = format!("{path}/{name}");
        if self.objects.contains_key(&place) {
            return (409, status(409, "already exists"));
        }
        self.serial += 1;
        body["metadata"]["uid"] = json!(format!("uid-{}", self.serial));
        if path.ends_with("/pods")
            && let Some(status) = &self.pod_status
        {
            self.pods += 1;
            body["spec"]["nodeName"] = json!(["one", "two"][self.pods % 2]);
            body["status"] = status.clone();
        }
        if path.ends_with("/virtualmachines") {
            self.run_machine(&name, &mut body);
        }
        self.objects.insert(place, body.clone());
        (201, body)
    }

    /// What KubeVirt makes of a virtual machine: a pod, and an instance once that runs.
    fn run_machine(&mut self, name: &str, machine: &mut Value) {
        if let Some(why) = &self.refused_launchers {
            let condition = json!({ "type": "Synchronized", "status": "False", "reason": "FailedCreate", "message": why });
            machine["status"] = json!({ "printableStatus": "Starting", "conditions": [condition] });
            return;
        }
        let Some(status) = self.pod_status.clone() else { return };
        let mut labels = machine["spec"]["template"]["metadata"]["labels"].clone();
        labels["kubevirt.io"] = json!("virt-launcher");
        let is_running = status["phase"] == "Running";
        let pod = json!({ "metadata": { "name": format!("virt-launcher-{name}"), "labels": labels },
            "spec": { "nodeName": "one", "containers": [] }, "status": status });
        self.objects.insert(launcher(name), pod);
        machine["status"] =
            json!({ "printableStatus": if is_running { "Running" } else { "Starting" } });
        if is_running {
            let usual = || json!([{ "name": "default", "ipAddress": "10.0.0.7" }]);
            let interfaces = self.interfaces.clone().unwrap_or_else(usual);
            let status = json!({ "phase": "Running", "nodeName": "one", "interfaces": interfaces });
            let labels = machine["spec"]["template"]["metadata"]["labels"].clone();
            let instance = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                "metadata": { "name": name, "labels": labels }, "status": status });
            self.objects.insert(instance_of(name), instance);
        }
    }

    fn delete(&mut self, path: &str) -> (u16, Value) {
        let done = json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" });
        match self.objects.get_mut(path) {
            Some(pod) if self.keeps_pods && path.contains("/pods/") => {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                (200, done)
            }
            Some(_) => {
                self.objects.remove(path);
                if path.contains("/virtualmachines/") {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    self.objects.remove(&instance_of(name));
                    self.objects.remove(&launcher(name));
                }
                (200, done)
            }
            None => (404, status(404, "not found")),
        }
    }
}

fn instance_of(name: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/perf/virtualmachineinstances/{name}")
}

fn launcher(name: &str) -> String {
    format!("{NAMESPACE}/pods/virt-launcher-{name}")
}

fn is_collection(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    [
        "nodes",
        "pods",
        "storageclasses",
        "configmaps",
        "events",
        "persistentvolumeclaims",
        "virtualmachines",
        "virtualmachineinstances",
        "kubevirts",
    ]
    .contains(&last)
}

fn status(code: u16, message: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message,
        "reason": "Reason" })
}

fn version() -> Value {
    json!({ "major": "1", "minor": "34", "gitVersion": "v1.34.1", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": "" })
}
