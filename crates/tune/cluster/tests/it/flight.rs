//! What happens to a run that is under way.

use agent::Start;
use cluster::{ClusterError, ClusterJob, Session, sweep};
use serde_json::json;

use crate::support::{JOB, access, begin, go_on, pod, run, said, setup};
use crate::workers::start_fio;
use fake_cluster::Fake;

/// A pod is changed while fio runs in it; what is said of it afterwards.
#[track_caller]
fn trouble_after(change: impl FnOnce(&Fake, &str), part: &str) {
    let fake = Fake::with_pods();
    let mut session = begin(&fake, JOB).expect("it begins");
    let mut workers = session.start(&setup(1), &mut go_on).expect("it starts");
    let directory = tempfile::tempdir().expect("a directory");
    start_fio(&mut workers[0], directory.path(), Start::Now);
    session.look(&mut go_on).expect("all is well");
    change(&fake, &pod(&workers[0].name));
    let why = session.trouble(&mut go_on).expect("it is noticed");
    assert!(said(&why).contains(part), "{}", said(&why));
    // The rest of the run goes on: with new pods, if the old ones can be removed.
    if !matches!(why, ClusterError::Lost { .. }) {
        session.stop(workers, &mut go_on).expect("it is removed");
    }
}

#[test]
fn a_pod_that_is_evicted_or_deleted_is_told() {
    trouble_after(
        |fake, pod| {
            fake.change(pod, |it| {
                it["status"] = json!({ "phase": "Failed", "reason": "Evicted",
                    "message": "The node was low on resource: memory." });
            });
        },
        "Evicted: The node was low on resource: memory.",
    );
    trouble_after(
        |fake, pod| drop(fake.state().objects.remove(pod)),
        "pod ringloom-test-1-0: somebody has deleted it",
    );
}

#[test]
fn all_pods_that_are_lost_at_once_are_told() {
    let fake = Fake::with_pods();
    let mut session = begin(&fake, JOB).expect("it begins");
    let workers = session.start(&setup(4), &mut go_on).expect("they start");
    for worker in &workers[..2] {
        fake.change(&pod(&worker.name), |it| {
            it["status"] =
                json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" });
        });
    }
    fake.state().objects.remove(&pod(&workers[3].name));
    let why = session.trouble(&mut go_on).expect("it is noticed").to_string();
    assert!(why.starts_with("3 of 4 workers: pod ringloom-test-1-0: on the node "), "{why}");
    assert!(why.contains("; pod ringloom-test-1-1: on the node "), "{why}");
    assert!(why.ends_with("; pod ringloom-test-1-3: somebody has deleted it"), "{why}");
    session.stop(workers, &mut go_on).expect("the rest is removed");
    session.start(&setup(4), &mut go_on).expect("others take their place");
}

#[test]
fn a_node_that_is_gone_and_a_server_that_is_are_told() {
    let gone = |fake: &Fake, pod: &str| {
        let mut node = String::new();
        fake.change(pod, |it| {
            it["status"]["conditions"][0]["status"] = json!("False");
            it["spec"]["nodeName"].as_str().expect("a name").clone_into(&mut node);
        });
        fake.change(&format!("/api/v1/nodes/{node}"), |it| {
            it["status"]["conditions"][0] = json!({ "type": "Ready", "status": "Unknown",
                "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status." });
        });
    };
    trouble_after(gone, "is not ready (NodeStatusUnknown: Kubelet stopped posting node status.)");
    let is_gone = |fake: &Fake, _: &str| fake.state().is_gone = true;
    trouble_after(is_gone, "the API server has not answered for 1 s");
}

#[test]
fn a_stream_that_breaks_ends_the_client() {
    let fake = Fake::with_pods();
    let mut session = begin(&fake, JOB).expect("it begins");
    let mut workers = session.start(&setup(1), &mut go_on).expect("it starts");
    fake.state().objects.remove(&pod(&workers[0].name));
    let error = loop {
        if let Err(error) = workers[0].agent.meters(&mut go_on) {
            break error;
        }
    };
    let is_told = matches!(error, agent::AgentError::Lost(_) | agent::AgentError::Stream(_));
    assert!(is_told, "{error:?}");
}

#[test]
fn pods_that_cannot_be_removed_are_named() {
    let fake = Fake::with_pods();
    let mut session = begin(&fake, JOB).expect("it begins");
    session.start(&setup(1), &mut go_on).expect("it starts");
    fake.state().keeps_pods = true;
    let removal = session.finish(&mut go_on);
    let left = removal.left.join("\n");
    assert!(left.contains("pod ringloom-test-1-0: not gone 2 s after it was deleted"), "{left}");
    assert!(left.contains("kubectl delete pod,pvc,configmap -n perf -l"), "{left}");
    // Everything else is gone.
    assert_eq!(fake.made(), [pod("ringloom-test-1-0")]);
}

#[test]
fn a_server_that_is_gone_ends_a_removal_soon() {
    let fake = Fake::with_pods();
    let session = begin(&fake, JOB).expect("it begins");
    fake.state().is_gone = true;
    let left = session.finish(&mut go_on).left.join("\n");
    assert!(left.contains("pods: the API server has not answered for 1 s"), "{left}");
    assert!(left.contains("claims: not tried\nconfig map ringloom-test: not tried"), "{left}");
}

#[test]
fn an_interrupt_ends_a_wait_and_leaves_nothing() {
    let fake = Fake::start();
    let text = JOB.replace("startSeconds: 1", "startSeconds: 600");
    let mut session = begin(&fake, &text).expect("it begins");
    let mut looks = 0;
    let mut check = || {
        looks += 1;
        if looks > 20 { Err("an interrupt".into()) } else { Ok(()) }
    };
    match session.start(&setup(1), &mut check) {
        Err(ClusterError::Ended(why)) => assert_eq!(why.to_string(), "an interrupt"),
        other => panic!("{other:?}"),
    }
    let removal = session.finish(&mut go_on);
    assert!(removal.left.is_empty() && fake.made().is_empty(), "{removal:?} {:?}", fake.made());
}

#[test]
fn an_image_that_cannot_be_pulled_is_told_at_once() {
    let fake = Fake::start();
    let words = "Back-off pulling image \"a:1\": not found";
    fake.state().pod_status = Some(json!({ "phase": "Pending", "containerStatuses": [{
        "name": "agent", "image": "a:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "waiting": { "reason": "ImagePullBackOff", "message": words } },
    }] }));
    let text = JOB.replace("startSeconds: 1", "startSeconds: 600");
    let mut session = begin(&fake, &text).expect("it begins");
    let error = session.start(&setup(1), &mut go_on).expect_err("no image");
    let expected =
        format!("pod ringloom-test-1-0: ImagePullBackOff: {words} (look at images in the job");
    assert!(error.to_string().starts_with(&expected), "{error}");
}

#[test]
fn a_run_that_was_killed_is_named_swept_or_gone_on_with() {
    let fake = Fake::with_pods();
    let mut killed = begin(&fake, JOB).expect("it begins");
    killed.start(&setup(2), &mut go_on).expect("it starts");
    drop(killed);
    let left = fake.made();
    assert_eq!(left.len(), 5, "{left:?}");
    let job = ClusterJob::parse(JOB).expect("a job");
    let next = |name: &str| Session::begin(&job, &access(&fake), run(name), &mut go_on);
    let mut other = next("other").expect("it begins");
    assert_eq!(other.survey().old_runs, [run("test")]);
    other.start(&setup(1), &mut go_on).expect("the old one is not in its way");
    let again = next("test").expect("it goes on");
    assert_eq!(again.survey().old_runs, [run("other")]);
    let pods = || fake.made().into_iter().filter(|it| it.contains("/pods/")).collect::<Vec<_>>();
    assert_eq!(pods(), [pod("ringloom-other-1-0")], "its pods are gone, and no other's");
    assert_eq!(
        fake.made().iter().filter(|it| it.contains("-test-local-")).count(),
        2,
        "claims stay"
    );
    drop(again);
    let removal = sweep(&access(&fake), "perf", &run("test"), &mut go_on).expect("it is reached");
    assert!(removal.left.is_empty(), "{removal:?}");
    assert!(fake.made().iter().all(|it| it.contains("-other")), "{:?}", fake.made());
    assert!(other.finish(&mut go_on).left.is_empty());
    assert!(fake.made().is_empty(), "{:?}", fake.made());
}
