//! The begin of a run, and what keeps one from beginning.

use cluster::{ClusterError, ClusterJob, Session, sweep};
use serde_json::json;

use crate::support::{JOB, access, begin, go_on, run, setup};
use fake_cluster::Fake;

#[track_caller]
fn refuse(fake: &Fake, text: &str, part: &str) {
    let said = begin(fake, text).expect_err("refused").to_string();
    assert!(said.contains(part), "{said}");
}

#[test]
fn what_a_cluster_lacks_is_said_before_anything_is_made() {
    let fake = Fake::start();
    refuse(
        &fake,
        &JOB.replace("storageClassName: local", "storageClassName: ceph"),
        "no storage class ceph; there are local",
    );
    refuse(&fake, &JOB.replace("[pod]", "[vm]").replace("a:1", "a:1, guest: g:1"), "no KubeVirt");
    refuse(&fake, &format!("{JOB}nodes: {{nodeSelector: {{a: b}}}}\n"), "none of the 2 nodes");
    fake.state().denied = ["create pods", "list nodes"].map(str::to_owned).into();
    refuse(&fake, JOB, "create pods in the namespace perf");
    refuse(&fake, JOB, "list nodes in all of the cluster");
    let state = fake.state();
    assert_eq!(state.objects.len(), 3, "{:?}", state.objects.keys());
}

#[test]
fn a_run_removes_what_it_has_made_and_a_sweep_what_another_has_left() {
    let fake = Fake::start();
    let session = begin(&fake, JOB).expect("it begins");
    assert_eq!(session.survey().server, "v1.34.1");
    assert_eq!(session.survey().nodes[0].cpus, 4.0);
    let owner = "/api/v1/namespaces/perf/configmaps/ringloom-test";
    assert!(fake.state().objects.contains_key(owner));
    drop(session);
    let removal = sweep(&access(&fake), "perf", &run("test"), &mut go_on).expect("it is reached");
    assert!(removal.left.is_empty(), "{removal:?}");
    assert!(!fake.state().objects.contains_key(owner));
}

#[test]
fn a_sweep_needs_no_right_that_pods_do_not_and_tells_what_is_not_there() {
    let fake = Fake::with_pods();
    let mut killed = begin(&fake, JOB).expect("it begins");
    killed.start(&setup(1), &mut go_on).expect("it starts");
    drop(killed);
    // As for the account of a job with pods alone.
    fake.state().denied.insert("list virtualmachines".to_owned());
    let sweep = |name| sweep(&access(&fake), "perf", &run(name), &mut go_on);
    let error = sweep("other").expect_err("there is no such run").to_string();
    assert_eq!(error, "the namespace perf has nothing of a run other; runs there: test");
    let removal = sweep("test").expect("it is there");
    assert!(removal.left.is_empty() && fake.made().is_empty(), "{removal:?} {:?}", fake.made());
    let error = sweep("test").expect_err("it is gone").to_string();
    assert!(error.ends_with("runs there: none"), "{error}");
}

#[test]
fn a_pod_that_does_not_become_ready_is_explained_and_removed() {
    let fake = Fake::start();
    let mut session = begin(&fake, JOB).expect("it begins");
    let event = json!({ "metadata": { "name": "e" }, "type": "Warning", "reason": "ProvisioningFailed",
        "message": "no space", "involvedObject": { "name": "ringloom-test-local-spread-0" } });
    let place = "/api/v1/namespaces/perf/events/e".to_owned();
    fake.state().objects.insert(place, event);
    let said = session.start(&setup(1), &mut go_on).expect_err("nobody schedules it").to_string();
    assert!(
        said.contains("not ready after 1 s") && said.contains("ProvisioningFailed: no space"),
        "{said}"
    );
    let removal = session.finish(&mut go_on);
    assert!(removal.left.is_empty(), "{removal:?}");
    let state = fake.state();
    let kept: Vec<_> = state.objects.keys().filter(|it| it.contains("ringloom-")).collect();
    assert!(kept.is_empty(), "{kept:?}");
}

#[test]
fn a_quota_is_told_in_the_servers_words() {
    let fake = Fake::start();
    let mut session = begin(&fake, JOB).expect("it begins");
    let quota = "exceeded quota: perf, requested: pods=1".to_owned();
    fake.state().refused.insert("/pods".to_owned(), quota.clone());
    let said = session.start(&setup(1), &mut go_on).expect_err("refused").to_string();
    assert!(said.contains(&quota) && said.contains("create pod"), "{said}");
}

#[test]
fn a_namespace_that_is_not_there_is_told_with_what_to_do() {
    let fake = Fake::start();
    let words = "namespaces \"perf\" not found".to_owned();
    fake.state().refused.insert("/configmaps".to_owned(), words.clone());
    refuse(&fake, JOB, &words);
    refuse(&fake, JOB, "say createNamespace: true");
    let state = fake.state();
    assert_eq!(state.objects.len(), 3, "{:?}", state.objects.keys());
}

#[test]
fn versions_are_asked_for_and_one_that_is_not_told_is_unknown() {
    let fake = Fake::start();
    fake.state().has_kubevirt = true;
    let text = JOB.replace("[pod]", "[vm]").replace("a:1", "a:1, guest: g:1");
    let kubevirt = || {
        let session = begin(&fake, &text).expect("it begins");
        let version = session.survey().kubevirt.clone();
        assert!(session.finish(&mut go_on).left.is_empty());
        version.expect("machines are asked for")
    };
    assert_eq!(kubevirt(), cluster::UNKNOWN, "KubeVirt's server does not answer");
    let object = json!({ "metadata": { "name": "kubevirt" }, "status": { "observedKubeVirtVersion": "v1.5.0" } });
    fake.state().objects.insert("/apis/kubevirt.io/v1/kubevirts/kubevirt".to_owned(), object);
    assert_eq!(kubevirt(), "v1.5.0", "the object of its operator tells");
    fake.state().kubevirt_version = Some("v1.6.0".to_owned());
    assert_eq!(kubevirt(), "v1.6.0");
    fake.state().objects.remove("/apis/kubevirt.io/v1/kubevirts/kubevirt");
    // What one is called that was built without its version.
    fake.state().kubevirt_version = Some("{gitVersion}".to_owned());
    assert_eq!(kubevirt(), cluster::UNKNOWN);
    let session = begin(&fake, JOB).expect("it begins");
    assert_eq!(session.survey().kubevirt, None);
    let node = &session.survey().nodes[0];
    let versions = [&node.kernel, &node.kubelet, &node.runtime];
    assert_eq!(versions, ["6.1.0", "v1.34.1", "containerd://1.7.27"]);
}

#[test]
fn a_server_that_is_gone_and_a_wait_that_is_ended_are_told() {
    let fake = Fake::start();
    let config = std::fs::read_to_string(&fake.kubeconfig).expect("a file");
    let port =
        config.split("127.0.0.1:").nth(1).and_then(|it| it.split('"').next()).expect("a port");
    let gone = config.replace(port, "1");
    std::fs::write(&fake.kubeconfig, gone).expect("a file");
    refuse(&fake, JOB, "the API server has not answered for 1 s");
    let job = ClusterJob::parse(JOB).expect("a job");
    let mut looks = 0;
    let mut check = || {
        looks += 1;
        if looks > 1 { Err("enough".into()) } else { Ok(()) }
    };
    match Session::begin(&job, &access(&fake), run("test"), &mut check) {
        Err(ClusterError::Ended(why)) => assert_eq!(why.to_string(), "enough"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cluster_that_others_use_is_told() {
    let fake = Fake::start();
    assert_eq!(begin(&fake, JOB).expect("it begins").survey().notes, Vec::<String>::new());
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "nodeName": "one", "containers": [
        { "name": "c", "resources": { "requests": { "cpu": "2500m", "memory": "1Gi" } } }] } });
    fake.state().objects.insert("/api/v1/namespaces/theirs/pods/p".to_owned(), pod);
    let session = begin(&fake, JOB).expect("it begins");
    let told = "the node one is used by others, whose pods ask for 2.5 of its 4.0 CPUs";
    assert_eq!(session.survey().notes, [told]);
    assert_eq!(session.survey().nodes[0].requested_memory_bytes, 1 << 30);
}

#[test]
fn a_begin_that_is_ended_leaves_no_namespace() {
    let fake = Fake::start();
    // Nobody makes the account that its pods would have.
    let text = format!("{JOB}createNamespace: true\n");
    let job = ClusterJob::parse(&text).expect("a job");
    let mut check = || {
        let is_made = fake.state().objects.contains_key("/api/v1/namespaces/perf");
        if is_made { Err("an interrupt".into()) } else { Ok(()) }
    };
    match Session::begin(&job, &access(&fake), run("test"), &mut check) {
        Err(ClusterError::Ended(why)) => assert_eq!(why.to_string(), "an interrupt"),
        other => panic!("{other:?}"),
    }
    let state = fake.state();
    assert_eq!(state.objects.len(), 3, "{:?}", state.objects.keys());
}

#[test]
fn a_run_that_does_not_go_on_leaves_nothing_or_names_it() {
    let fake = Fake::with_pods();
    let mut killed = begin(&fake, JOB).expect("it begins");
    killed.start(&setup(1), &mut go_on).expect("it starts");
    drop(killed);
    fake.state().keeps_pods = true;
    let error = begin(&fake, JOB).expect_err("its pod does not go");
    let left = error.to_string();
    assert!(left.contains("pod ringloom-test-1-0: not gone 2 s after it was deleted"), "{left}");
    assert_eq!(fake.made(), [crate::support::pod("ringloom-test-1-0")]);
}
