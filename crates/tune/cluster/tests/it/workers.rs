//! Workers: pods whose agents obey through a stream of the API server.

use std::time::{Duration, SystemTime};

use agent::{DiskRequest, JOB as JOB_FILE, Start};
use cluster::{Setup, Treatment, VmIothreads, Worker};
use serde_json::json;

use crate::support::{JOB, begin, go_on, setup};
use fake_cluster::Fake;

/// fio on a small file, for a second.
pub(crate) fn job(file: &str) -> String {
    format!(
        "[global]\nioengine=psync\nthread=1\ntime_based=1\nruntime=1\nbs=4096\nrw=randread\nlat_percentiles=1\n\
         clat_percentiles=0\ngroup_reporting=1\n[disk]\nfilename={file}\nrate_iops=200\n"
    )
}

/// Starts fio on a file of its own.
pub(crate) fn start_fio(worker: &mut Worker, directory: &std::path::Path, at: Start) {
    let path = directory.to_str().expect("a plain name").to_owned();
    let request = DiskRequest::Directory { path, bytes: 1 << 20 };
    let disk = worker.agent.disk(&request, &mut |_| {}, &mut go_on).expect("it is made");
    worker.agent.put(&job(&disk.path));
    let words = load::fio::command(JOB_FILE, None, false);
    worker.agent.start(&words, at).expect("it starts");
}

#[expect(
    clippy::disallowed_methods,
    reason = "a start is a time of the wall clock, as the tuner reads it"
)]
pub(crate) fn soon() -> SystemTime {
    SystemTime::now() + Duration::from_secs(1)
}

#[test]
fn fio_runs_in_pods_at_the_same_time() {
    let fake = Fake::with_pods();
    let mut session = begin(&fake, JOB).expect("it begins");
    let mut workers = session.start(&setup(2), &mut go_on).expect("they start");
    assert_eq!(workers.len(), 2);
    assert_ne!(workers[0].node, workers[1].node);
    assert!(
        matches!(&workers[0].disk, DiskRequest::Device { path } if path == "/dev/ringloom-disk")
    );
    let directory = tempfile::tempdir().expect("a directory");
    let at = soon();
    for worker in &mut workers {
        let facts = worker.agent.facts();
        assert!(facts.fio.as_deref().is_some_and(|it| it.starts_with("fio-")), "{facts:?}");
        let own = directory.path().join(&worker.name);
        std::fs::create_dir(&own).expect("a directory");
        start_fio(worker, &own, Start::At(at));
    }
    for worker in &mut workers {
        let ended = loop {
            session.look(&mut go_on).expect("all is well");
            worker.agent.meters(&mut go_on).expect("meters are told while fio runs");
            if let Some(ended) = worker.agent.poll().expect("it runs") {
                break ended;
            }
        };
        assert_eq!(ended.failed, None, "{}", ended.output);
        assert!(
            ended.started >= at - Duration::from_millis(100),
            "{:?} before {at:?}",
            ended.started
        );
        assert!(ended.output.contains("\"iops\""), "{}", ended.output);
    }
    session.stop(workers, &mut go_on).expect("they stop");
    let claims = fake.made().iter().filter(|it| it.contains("claims")).count();
    assert_eq!(claims, 2, "claims stay: {:?}", fake.made());
    assert!(!fake.made().iter().any(|it| it.contains("/pods/")), "{:?}", fake.made());
    let workers = session.start(&setup(1), &mut go_on).expect("it starts again");
    assert!(workers[0].name.ends_with("-2-0"), "{}", workers[0].name);
    let removal = session.finish(&mut go_on);
    assert!(removal.left.is_empty() && fake.made().is_empty(), "{removal:?} {:?}", fake.made());
}

fn machines() -> (Fake, String, Setup) {
    let fake = Fake::with_pods();
    fake.state().has_kubevirt = true;
    let text = JOB.replace("[pod]", "[vm]").replace("a:1", "a:1, guest: g:1");
    let treatment = Treatment::Vm(VmIothreads::Pool(2));
    (fake, text, Setup { treatment, ..setup(1) })
}

#[test]
fn fio_runs_in_a_machine_through_the_relay() {
    let (fake, text, setup) = machines();
    let mut session = begin(&fake, &text).expect("it begins");
    let mut workers = session.start(&setup, &mut go_on).expect("it starts");
    assert_eq!(workers[0].node, "one");
    assert!(matches!(&workers[0].disk, DiskRequest::Device { path } if path == "/dev/vda"));
    let directory = tempfile::tempdir().expect("a directory");
    start_fio(&mut workers[0], directory.path(), Start::Now);
    let ended = loop {
        session.look(&mut go_on).expect("all is well");
        workers[0].agent.meters(&mut go_on).expect("meters are told while fio runs");
        if let Some(ended) = workers[0].agent.poll().expect("it runs") {
            break ended;
        }
    };
    assert_eq!(ended.failed, None, "{}", ended.output);
    session.stop(workers, &mut go_on).expect("it stops");
    let pods = || fake.made().into_iter().filter(|it| it.contains("/pods/")).collect::<Vec<_>>();
    assert_eq!(pods(), [crate::support::pod("ringloom-test-relay")], "the relay stays");
    let removal = session.finish(&mut go_on);
    assert!(removal.left.is_empty() && fake.made().is_empty(), "{removal:?} {:?}", fake.made());
}

#[test]
fn a_machine_whose_pod_is_not_placed_is_told_with_its_reason() {
    let (fake, text, setup) = machines();
    let mut session = begin(&fake, &text).expect("it begins");
    // The relay is there already when the nodes are full.
    let workers = session.start(&setup, &mut go_on).expect("it starts");
    session.stop(workers, &mut go_on).expect("it stops");
    let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "Insufficient devices.kubevirt.io/kvm" });
    fake.state().pod_status = Some(json!({ "phase": "Pending", "conditions": [condition] }));
    let event = json!({ "metadata": { "name": "e" }, "type": "Warning", "reason": "FailedScheduling",
        "message": "Insufficient devices.kubevirt.io/kvm",
        "involvedObject": { "name": "ringloom-test-2-0" } });
    let place = format!("{}/events/e", fake_cluster::NAMESPACE);
    fake.state().objects.insert(place, event);
    let error = session.start(&setup, &mut go_on).expect_err("it is not placed").to_string();
    let expected = "virtual machine ringloom-test-2-0: not ready after 1 s: Starting; its pod: \
                    Unschedulable: Insufficient devices.kubevirt.io/kvm";
    assert!(error.starts_with(expected), "{error}");
    assert_eq!(error.matches("Insufficient").count(), 1, "the event says it again: {error}");
}

#[test]
fn as_many_as_a_job_may_have_start_and_are_reached() {
    let fake = Fake::with_pods();
    let mut session =
        begin(&fake, &JOB.replace("startSeconds: 1", "startSeconds: 120")).expect("it begins");
    let mut workers = session.start(&setup(cluster::WORKERS_MAX), &mut go_on).expect("they start");
    assert_eq!(workers.len(), usize::from(cluster::WORKERS_MAX));
    for (place, worker) in workers.iter().enumerate() {
        assert!(worker.name.ends_with(&format!("-1-{place}")), "in order: {}", worker.name);
    }
    let clocks =
        agent::at_once(&mut workers, |worker, check| worker.agent.measure_clock(check), &mut go_on);
    assert_eq!(clocks.expect("all answer").len(), workers.len());
    session.look(&mut go_on).expect("all is well");
    session.stop(workers, &mut go_on).expect("they stop");
    let removal = session.finish(&mut go_on);
    assert!(removal.left.is_empty() && fake.made().is_empty(), "{removal:?} {:?}", fake.made());
}

#[test]
fn a_command_that_is_refused_at_first_is_tried_again() {
    let fake = Fake::with_pods();
    let mut session = begin(&fake, JOB).expect("it begins");
    // As when an API server has got new certificates.
    fake.state().refused_commands = 2;
    let workers = session.start(&setup(1), &mut go_on).expect("it starts");
    session.stop(workers, &mut go_on).expect("it stops");
    fake.state().refused_commands = 100;
    let error = session.start(&setup(1), &mut go_on).expect_err("no command is taken").to_string();
    assert!(error.starts_with("run ringloom agent in the pod ringloom-test-2-0: "), "{error}");
}

#[test]
fn a_relay_that_does_not_start_is_told_and_one_that_was_evicted_is_made_anew() {
    let (fake, text, setup) = machines();
    let mut session = begin(&fake, &text).expect("it begins");
    let is_ready = fake.state().pod_status.replace(json!({ "phase": "Pending" }));
    let error = session.start(&setup, &mut go_on).expect_err("there is no relay").to_string();
    assert!(error.starts_with("pod ringloom-test-relay: not ready after 1 s"), "{error}");
    fake.state().pod_status = is_ready;
    let relay = crate::support::pod("ringloom-test-relay");
    fake.state().objects.remove(&relay);
    let workers = session.start(&setup, &mut go_on).expect("it starts");
    fake.change(&relay, |it| {
        it["status"] =
            json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" });
    });
    let why = session.trouble(&mut go_on).expect("it is noticed").to_string();
    assert!(why.starts_with("pod ringloom-test-relay: on the node "), "{why}");
    assert!(why.ends_with(": Evicted: low on memory"), "{why}");
    session.stop(workers, &mut go_on).expect("they stop");
    session.start(&setup, &mut go_on).expect("with a new relay");
}

#[test]
fn a_machine_that_nobody_can_reach_is_told() {
    let (fake, text, setup) = machines();
    fake.state().interfaces = Some(json!([{ "name": "default" }]));
    let mut session = begin(&fake, &text).expect("it begins");
    let error = session.start(&setup, &mut go_on).expect_err("it has no address").to_string();
    assert!(error.contains("it runs, and its instance has no address"), "{error}");
}

#[test]
fn a_quota_that_forbids_the_pods_of_machines_is_told_at_once() {
    let (fake, text, setup) = machines();
    let text = text.replace("startSeconds: 1", "startSeconds: 600");
    let mut session = begin(&fake, &text).expect("it begins");
    let workers = session.start(&setup, &mut go_on).expect("it starts");
    session.stop(workers, &mut go_on).expect("it stops");
    let words = "failed to create virtual machine pod: pods \"virt-launcher-x\" is forbidden: exceeded quota: q, \
                 requested: requests.memory=2Gi, used: requests.memory=0, limited: requests.memory=1Gi";
    fake.state().refused_launchers = Some(words.to_owned());
    let setup = Setup { workers: 3, ..setup };
    let error = session.start(&setup, &mut go_on).expect_err("it is forbidden").to_string();
    assert!(error.starts_with("3 of 3 workers: virtual machine ringloom-test-2-0, "), "{error}");
    assert!(error.contains(words) && error.contains("fewer workers"), "{error}");
    assert_eq!(error.matches("exceeded quota").count(), 1, "they have it in common: {error}");
}
