//! Objects as the API server sees them: types of Kubernetes take them whole, and nothing is in them that it would drop.

use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::*;
use crate::job::{TreatmentKind, VmIothreads, example};

fn names() -> Names {
    let run = RunId::new("abcdef0123456789").expect("a name");
    Names { run, namespace: "perf".to_owned() }
}

fn owner_reference() -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name: names().owner(),
        uid: "u".to_owned(),
        ..OwnerReference::default()
    }
}

/// What becomes of an object on its way through the type that reads it is what it was.
#[track_caller]
fn is_whole<T: Serialize + DeserializeOwned>(object: &T) -> Value {
    let sent = serde_json::to_value(object).expect("JSON");
    let read: T = serde_json::from_value(sent.clone()).expect("it is read");
    assert_eq!(serde_json::to_value(read).expect("JSON"), sent);
    sent
}

fn with_job<T>(change: impl FnOnce(&mut ClusterJob), make: impl FnOnce(&Group<'_>) -> T) -> T {
    let mut job = ClusterJob::parse(example()).expect("a job");
    job.images.pull_secret = Some("key".to_owned());
    job.images.guest = Some("registry.example/ringloom-guest:0.1.0".to_owned());
    change(&mut job);
    let (names, owner) = (names(), owner_reference());
    let placement = job.placement[0];
    make(&Group { names: &names, job: &job, owner: &owner, set: 3, placement })
}

fn pod(change: impl FnOnce(&mut ClusterJob)) -> Value {
    with_job(change, |group| {
        let pod: Pod = pod::worker(group, &group.job.storage[0], "claim".to_owned(), 7);
        is_whole(&pod)
    })
}

#[test]
fn a_pod_on_a_directory_meets_the_restricted_profile() {
    let pod = pod(|job| job.storage[0].volume_mode = VolumeMode::Filesystem);
    let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
    assert_eq!(container["volumeMounts"][1]["mountPath"], "/data");
    assert_eq!(spec["imagePullSecrets"][0]["name"], "key");
    assert_eq!(container["resources"]["limits"]["cpu"], "4");
    assert_eq!(pod["metadata"]["labels"][RUN_LABEL], "abcdef0123456789");
    assert_eq!(pod["metadata"]["ownerReferences"][0]["name"], "ringloom-abcdef0123456789");
}

#[test]
fn a_pod_on_a_device_has_root_without_capabilities() {
    let auto = pod(|_| {});
    let container = &auto["spec"]["containers"][0];
    assert_eq!(container["volumeDevices"][0]["devicePath"], pod::DEVICE);
    assert_eq!(container["securityContext"]["runAsUser"], 0);
    assert_eq!(container["securityContext"]["capabilities"]["drop"][0], "ALL");
    let restricted = pod(|job| job.security = Security::Restricted);
    let user = &restricted["spec"]["containers"][0]["securityContext"]["runAsUser"];
    assert_ne!(*user, 0);
    let privileged = pod(|job| job.security = Security::Privileged);
    assert_eq!(privileged["spec"]["containers"][0]["securityContext"]["privileged"], true);
}

#[test]
fn workers_are_spread_or_packed() {
    let spread = pod(|_| {});
    let constraint = &spread["spec"]["topologySpreadConstraints"][0];
    assert_eq!(constraint["whenUnsatisfiable"], "DoNotSchedule");
    assert_eq!(constraint["labelSelector"]["matchLabels"][SET_LABEL], "3");
    assert!(spread["spec"]["affinity"].is_null());
    let packed = pod(|job| job.placement = vec![Placement::Packed]);
    let terms = "/spec/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0";
    let term = packed.pointer(terms).expect("a term");
    assert_eq!(term["topologyKey"], "kubernetes.io/hostname");
    assert_eq!(packed["metadata"]["labels"][SET_LABEL], "3", "the first one finds itself");
    assert!(packed["spec"]["topologySpreadConstraints"].is_null());
}

#[test]
fn names_are_short_enough_for_labels() {
    let names = names();
    let storage = "x".repeat(24);
    for name in [names.claim(&storage, Placement::Spread, 999), names.worker(4_000_000_000, 999)] {
        assert!(name.len() <= 63, "{name}");
    }
    for text in ["", "Upper", "a-b", "12345678901234567"] {
        assert!(RunId::new(text).is_err(), "{text}");
    }
    let random = RunId::random().expect("random bytes").to_string();
    assert!(RunId::new(&random).is_ok());
}

#[test]
fn claims_namespaces_and_the_relay_are_whole() {
    with_job(
        |job| job.create_namespace = true,
        |group| {
            let storage = &group.job.storage[0];
            let claim = claim::claim(group.names, group.owner, storage, group.placement, 0);
            let claim = is_whole(&claim);
            assert_eq!(
                claim["spec"]["resources"]["requests"]["storage"],
                (20_u64 << 30).to_string()
            );
            assert_eq!(claim["spec"]["volumeMode"], "Block");
            let mut job = group.job.clone();
            for (treatment, profile) in
                [(TreatmentKind::Vm, "privileged"), (TreatmentKind::Pod, "baseline")]
            {
                job.treatments = vec![treatment];
                let space = is_whole(&namespace(group.names, &job));
                let labels = &space["metadata"]["labels"];
                assert_eq!(labels["pod-security.kubernetes.io/enforce"], profile);
            }
            let relay = is_whole(&pod::relay(group.names, group.job, group.owner));
            let container = &relay["spec"]["containers"][0];
            assert_eq!(container["securityContext"]["runAsNonRoot"], true);
            for amount in ["requests", "limits"] {
                let amounts = &container["resources"][amount];
                assert!(amounts["cpu"].is_string() && amounts["memory"].is_string(), "a quota");
            }
            is_whole(&owner(group.names));
            job.workers = vec![1, 128];
            let relay = is_whole(&pod::relay(group.names, &job, group.owner));
            let memory = &relay["spec"]["containers"][0]["resources"]["limits"]["memory"];
            assert_eq!(memory, "1152Mi", "it has a process for each of the most workers");
        },
    );
}

fn machine(iothreads: VmIothreads) -> Value {
    with_job(
        |_| {},
        |group| {
            let token = agent::Token::new("0123456789abcdef").expect("a token");
            let machine = vm::worker(group, iothreads, "claim", &token, 0);
            serde_json::to_value(machine).expect("JSON")
        },
    )
}

#[test]
fn iothreads_of_a_machine_are_a_pool_with_queues() {
    let none = machine(VmIothreads::None);
    let domain = "/spec/template/spec/domain";
    let none = none.pointer(domain).expect("a domain");
    assert!(none["ioThreadsPolicy"].is_null() && none["devices"]["blockMultiQueue"].is_null());
    let pool = machine(VmIothreads::Pool(4));
    assert_eq!(pool["kind"], "VirtualMachine");
    let labels = &pool["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels[SET_LABEL], "3", "launcher pods are found by it");
    let pool = pool.pointer(domain).expect("a domain");
    assert_eq!(pool["ioThreadsPolicy"], "supplementalPool");
    assert_eq!(pool["ioThreads"]["supplementalPoolThreadCount"], 4);
    assert_eq!(pool["devices"]["blockMultiQueue"], true);
    let boot = &pool["firmware"]["kernelBoot"];
    assert!(boot["kernelArgs"].as_str().is_some_and(|it| it.contains("ringloom.token=0123")));
    assert_eq!(boot["container"]["imagePullSecret"], "key");
}

#[test]
fn machines_pass_kubevirts_schema_which_finds_unknown_fields() {
    if let Some(reason) = testkit::kubevirt::missing() {
        return testkit::report::skipped(&reason);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let all = [VmIothreads::None, VmIothreads::Pool(4)].map(machine);
    let wrong = serde_json::from_str(&all[1].to_string().replace("blockMultiQueue", "multiQueue"));
    let all = all.into_iter().chain([wrong.expect("JSON")]);
    let write = |(number, machine): (usize, Value)| {
        let path = directory.path().join(format!("{number}.json"));
        std::fs::write(&path, machine.to_string()).expect("a file");
        path
    };
    let paths: Vec<_> = all.enumerate().map(write).collect();
    let said = testkit::kubevirt::complaints(&paths).expect("the schema is asked");
    assert!(said[0].is_empty() && said[1].is_empty(), "{said:?}");
    assert!(said[2].iter().any(|it| it.contains("'multiQueue' was unexpected")), "{said:?}");
}
