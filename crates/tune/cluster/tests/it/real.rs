//! The same on a real cluster: `cargo xtask cluster test`, or any with the classes and the image of docs/cluster-bench.md.
//!
//! They are ignored unless asked for, and need `RINGLOOM_CLUSTER_KUBECONFIG`, an administrator's; `kubectl` is looked for in `PATH`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use agent::{AgentError, DiskKind, DiskRequest, Ended, JOB as JOB_FILE, Start};
use cluster::{
    ClusterAccess, ClusterError, ClusterJob, Placement, RunId, Session, Setup, Treatment,
    VmIothreads, Worker, rbac,
};
use serde_json::json;

use crate::support::{go_on, said};
use crate::workers::{job, soon};

/// The volumes of the cluster are few.
static TURN: Mutex<()> = Mutex::new(());

/// A namespace of its own in a real cluster, removed in the end.
struct Real {
    kubeconfig: PathBuf,
    namespace: &'static str,
    directory: tempfile::TempDir,
}

impl Real {
    fn kubectl(&self, words: &[&str]) -> String {
        let mut command = Command::new("kubectl");
        command.env("KUBECACHEDIR", self.directory.path());
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(words);
        let output = command.output().expect("kubectl is installed");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {words:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn job(&self, change: &[(&str, &str)]) -> ClusterJob {
        let mut text = format!(
            "\
namespace: {}
images: {{agent: ringloom.test/agent:1}}
treatments: [pod]
storage:
  - {{name: block, storageClassName: local-block, volumeMode: Block, size: 100Mi}}
  - {{name: files, storageClassName: local-fs, volumeMode: Filesystem, size: 100Mi}}
workload: {{op: randread}}
startSeconds: 120
",
            self.namespace
        );
        for (from, to) in change {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        ClusterJob::parse(&text).expect("a job")
    }

    fn admin(&self) -> ClusterAccess {
        ClusterAccess { kubeconfig: Some(self.kubeconfig.clone()), ..ClusterAccess::default() }
    }

    /// As the service account that a printed role binds.
    fn service_account(&self) -> ClusterAccess {
        let name = "ringloom-tune";
        self.kubectl(&["-n", self.namespace, "create", "serviceaccount", name]);
        let token = self.kubectl(&["-n", self.namespace, "create", "token", name]);
        let text =
            self.kubectl(&["config", "view", "--raw", "--minify", "--flatten", "-o", "json"]);
        let mut config: serde_json::Value = serde_json::from_str(&text).expect("a kubeconfig");
        config["users"][0]["user"] = json!({ "token": token });
        let path = self.directory.path().join("kubeconfig");
        std::fs::write(&path, config.to_string()).expect("a file");
        ClusterAccess { kubeconfig: Some(path), ..ClusterAccess::default() }
    }

    fn begin(&self, job: &ClusterJob, access: &ClusterAccess) -> Result<Session, ClusterError> {
        Session::begin(job, access, RunId::random().expect("a name"), &mut go_on)
    }

    /// What is left of runs in the namespace.
    fn made(&self) -> String {
        let label = "app.kubernetes.io/managed-by=ringloom";
        self.kubectl(&["-n", self.namespace, "get", "pod,pvc,cm", "-l", label, "-o", "name"])
    }
}

/// Does something in a namespace.
fn with_real(namespace: &'static str, is_made: bool, behaviour: impl FnOnce(&Real)) {
    let kubeconfig = std::env::var_os("RINGLOOM_CLUSTER_KUBECONFIG")
        .expect("RINGLOOM_CLUSTER_KUBECONFIG names a cluster");
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let directory = tempfile::tempdir().expect("a directory");
    let real = Real { kubeconfig: kubeconfig.into(), namespace, directory };
    let remove = ["delete", "namespace", namespace, "--ignore-not-found", "--timeout=120s"];
    real.kubectl(&remove);
    if is_made {
        real.kubectl(&["create", "namespace", namespace]);
        // Root without capabilities, which a block device needs, is within it.
        let profile = "pod-security.kubernetes.io/enforce=baseline";
        real.kubectl(&["label", "namespace", namespace, profile]);
    }
    behaviour(&real);
    real.kubectl(&remove);
}

fn setup(storage: &str, workers: u16) -> Setup {
    let (treatment, placement) = (Treatment::Pod, Placement::Spread);
    Setup { treatment, storage: storage.to_owned(), workers, placement }
}

fn end(session: &mut Session, worker: &mut Worker) -> Ended {
    loop {
        session.look(&mut go_on).expect("all is well");
        worker.agent.meters(&mut go_on).expect("meters are told while fio runs");
        if let Some(ended) = worker.agent.poll().expect("it runs") {
            return ended;
        }
    }
}

/// fio on the claims of two workers at the same time.
fn run_together(session: &mut Session, setup: &Setup, kind: DiskKind) -> Vec<Worker> {
    let mut workers = session.start(setup, &mut go_on).expect("they start");
    assert_ne!(workers[0].node, workers[1].node);
    for worker in &mut workers {
        assert!(worker.agent.facts().fio.is_some(), "{:?}", worker.agent.facts());
        let offset = worker.agent.offset();
        let bound = offset.error_ns + 50_000_000;
        // A guest has a clock of its own.
        let is_same = offset.offset_ns.unsigned_abs() <= bound;
        assert!(is_same || setup.treatment != Treatment::Pod, "it is the same clock: {offset:?}");
        let disk = worker.agent.disk(&worker.disk, &mut |_| {}, &mut go_on).expect("a disk");
        assert_eq!(disk.kind, kind);
        assert!(disk.bytes >= 80 << 20 && disk.writable, "{disk:?}");
        worker.agent.put(&job(&disk.path));
    }
    let at = soon();
    let words = load::fio::command(JOB_FILE, None, false);
    for worker in &mut workers {
        worker.agent.start(&words, Start::At(at)).expect("it starts");
    }
    for worker in &mut workers {
        let ended = end(session, worker);
        assert_eq!(ended.failed, None, "{}", ended.output);
        assert!(load::fio::parse_report(&ended.output).is_ok(), "{}", ended.output);
        let late = ended.started.duration_since(at).unwrap_or(Duration::ZERO);
        assert!(late < Duration::from_secs(5), "{late:?} late");
    }
    workers
}

#[test]
#[ignore = "on a real cluster: cargo xtask cluster test"]
fn fio_runs_on_two_nodes_with_the_printed_rights_and_nothing_is_left() {
    with_real("ringloom-rights", true, |real| {
        let job = real.job(&[]);
        let access = real.service_account();
        let error = real.begin(&job, &access).expect_err("it has no rights yet");
        assert!(
            said(&error).contains("create pods/exec in the namespace ringloom-rights"),
            "{error}"
        );
        let path = real.directory.path().join("rbac.yaml");
        std::fs::write(&path, rbac(&job)).expect("a file");
        let path = path.to_str().expect("a plain name");
        real.kubectl(&["apply", "-f", path]);
        let mut session = real.begin(&job, &access).expect("it has all rights");
        let survey = session.survey();
        assert!(survey.server.starts_with("v1."), "{survey:?}");
        assert!(survey.nodes.len() >= 2 && survey.storage_classes.len() == 2, "{survey:?}");
        for (storage, kind) in [("block", DiskKind::Block), ("files", DiskKind::File)] {
            let workers = run_together(&mut session, &setup(storage, 2), kind);
            session.stop(workers, &mut go_on).expect("they stop");
        }
        assert_eq!(real.made().lines().filter(|it| it.starts_with("persistentv")).count(), 4);
        let removal = session.finish(&mut go_on);
        assert!(removal.left.is_empty(), "{removal:?}");
        assert_eq!(real.made(), "");
        real.kubectl(&["delete", "-f", path, "--ignore-not-found"]);
    });
}

#[test]
#[ignore = "on a real cluster: cargo xtask cluster test"]
fn a_pod_that_is_deleted_is_told_and_an_agent_ends_with_its_client() {
    with_real("ringloom-flight", true, |real| {
        let run = RunId::random().expect("a name");
        let begin = || Session::begin(&real.job(&[]), &real.admin(), run.clone(), &mut go_on);
        let mut session = begin().expect("it begins");
        let mut workers = session.start(&setup("block", 1), &mut go_on).expect("it starts");
        let name = workers[0].name.clone();
        let words = load::fio::command(JOB_FILE, None, false);
        let DiskRequest::Device { path } = &workers[0].disk else { panic!("a device") };
        let long = job(path).replace("runtime=1", "runtime=300");
        // The image has no `ps`. Some of them are gone before they are read.
        let look = "cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' ' '";
        let processes =
            || real.kubectl(&["-n", real.namespace, "exec", &name, "--", "sh", "-c", look]);
        workers[0].agent.put(&long);
        workers[0].agent.start(&words, Start::Now).expect("it starts");
        wait("fio to run", || processes().contains("job.fio"));
        // The connection goes without a word, as if this process were killed.
        drop(session);
        wait("fio and its agent to end", || {
            let left = processes();
            !left.contains("job.fio") && left.matches("ringloom agent").count() == 1
        });
        // The run goes on, without the pod that was left.
        let mut session = begin().expect("it begins again");
        assert!(!real.made().contains(&name), "{}", real.made());
        let mut workers = session.start(&setup("block", 1), &mut go_on).expect("it starts");
        workers[0].agent.put(&long);
        workers[0].agent.start(&words, Start::Now).expect("it starts");
        let delete = ["-n", real.namespace, "delete", "pod", &workers[0].name, "--wait=false"];
        real.kubectl(&delete);
        let lost = loop {
            if let Err(error) = workers[0].agent.meters(&mut go_on) {
                break error;
            }
        };
        assert!(matches!(lost, AgentError::Lost(_) | AgentError::Stream(_)), "{lost:?}");
        let why = session.trouble(&mut go_on).expect("it is noticed").to_string();
        assert!(why.contains("delete") && why.contains(&workers[0].name), "{why}");
        let removal = session.finish(&mut go_on);
        assert!(removal.left.is_empty(), "{removal:?}");
        assert_eq!(real.made(), "");
    });
}

#[test]
#[ignore = "on a real cluster: cargo xtask cluster test"]
fn what_keeps_a_pod_from_starting_is_told_and_a_namespace_goes_with_the_run() {
    with_real("ringloom-errors", false, |real| {
        let made = ("treatments", "createNamespace: true\ntreatments");
        for (change, storage, expected) in [
            (("agent:1", "none:1"), "block", "ImagePullBackOff"),
            (("Block, size: 100Mi", "Block, size: 5Gi"), "block", "persistent volumes to bind"),
        ] {
            let job = real.job(&[made, ("startSeconds: 120", "startSeconds: 60"), change]);
            let mut session = real.begin(&job, &real.admin()).expect("it begins");
            let error =
                session.start(&setup(storage, 1), &mut go_on).expect_err("it does not start");
            assert!(said(&error).contains(expected), "{}", said(&error));
            let removal = session.finish(&mut go_on);
            assert!(removal.left.is_empty(), "{removal:?}");
            let namespaces = real.kubectl(&["get", "namespaces", "-o", "name"]);
            assert!(!namespaces.contains(real.namespace), "{namespaces}");
        }
    });
}

#[test]
#[ignore = "on a real cluster: cargo xtask cluster test"]
fn fio_runs_in_virtual_machines_on_two_nodes_and_nothing_is_left() {
    with_real("ringloom-machines", false, |real| {
        let job = real.job(&[
            ("treatments: [pod]", "createNamespace: true\ntreatments: [pod, vm]"),
            ("agent:1}", "agent:1, guest: ringloom.test/guest:1}\nvm: {cpus: 2, memory: 1Gi}"),
            ("startSeconds: 120", "startSeconds: 400"),
        ]);
        let mut session = real.begin(&job, &real.admin()).expect("it begins");
        let version = session.survey().kubevirt.as_deref();
        assert!(version.is_some_and(|it| it.starts_with("v1.")), "{:?}", session.survey());
        for iothreads in [VmIothreads::None, VmIothreads::Pool(2)] {
            let setup = Setup { treatment: Treatment::Vm(iothreads), ..setup("block", 2) };
            let workers = run_together(&mut session, &setup, DiskKind::Block);
            session.stop(workers, &mut go_on).expect("they stop");
        }
        let pods = run_together(&mut session, &setup("files", 2), DiskKind::File);
        session.stop(pods, &mut go_on).expect("they stop");
        let on_files = Setup { treatment: Treatment::Vm(VmIothreads::None), ..setup("files", 2) };
        let mut workers = run_together(&mut session, &on_files, DiskKind::Block);
        let request = workers[0].disk.clone();
        let disk = workers[0].agent.disk(&request, &mut |_| {}, &mut go_on).expect("a disk");
        assert_eq!(disk.bytes, 80 << 20, "it is the file that the pods have made");
        session.stop(workers, &mut go_on).expect("they stop");
        let removal = session.finish(&mut go_on);
        assert!(removal.left.is_empty(), "{removal:?}");
        let namespaces = real.kubectl(&["get", "namespaces", "-o", "name"]);
        assert!(!namespaces.contains(real.namespace), "{namespaces}");
    });
}

#[expect(clippy::disallowed_methods, reason = "a bound of a wait for a real cluster")]
fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = SystemTime::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(SystemTime::now() < end, "waited in vain for {what}");
    }
}
