//! Runs of a small job on the fake API server.

use std::time::Duration;

use cluster::{
    ClusterAccess, ClusterError, ClusterJob, Placement, RunId, Session, Setup, Treatment,
};

use fake_cluster::Fake;

pub(crate) const JOB: &str = "\
namespace: perf
images: {agent: a:1}
treatments: [pod]
storage:
  - {name: local, storageClassName: local, size: 1Gi}
workload: {op: randread}
startSeconds: 1
";

pub(crate) fn go_on() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    Ok(())
}

pub(crate) fn access(fake: &Fake) -> ClusterAccess {
    let kubeconfig = Some(fake.kubeconfig.clone());
    ClusterAccess { kubeconfig, context: None, patience: Duration::from_secs(1) }
}

pub(crate) fn run(name: &str) -> RunId {
    RunId::new(name).expect("a name")
}

pub(crate) fn begin(fake: &Fake, text: &str) -> Result<Session, ClusterError> {
    let job = ClusterJob::parse(text).expect("a job");
    Session::begin(&job, &access(fake), run("test"), &mut go_on)
}

pub(crate) fn setup(workers: u16) -> Setup {
    Setup {
        treatment: Treatment::Pod,
        storage: "local".to_owned(),
        workers,
        placement: Placement::Spread,
    }
}

/// An error with its causes.
pub(crate) fn said(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |it| it.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The place of a worker's pod.
pub(crate) fn pod(name: &str) -> String {
    format!("{}/pods/{name}", fake_cluster::NAMESPACE)
}
