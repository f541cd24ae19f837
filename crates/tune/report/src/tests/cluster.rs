//! The report of a cluster: storage, nodes and the pod in the place of disk, machine and host.

use plan::contender::{Iothreads, Subject};
use plan::variant::Variant;
use records::results::{Cluster, ClusterNode, ClusterStorage, Part};

use super::*;

fn cluster_header() -> Header {
    let node = |name: &str, requested_millicpus| ClusterNode {
        name: name.to_owned(),
        cpus: 8,
        memory_kib: 32 << 20,
        kernel: "6.12.0".to_owned(),
        kubelet: "v1.34.1".to_owned(),
        runtime: "containerd://1.7.27".to_owned(),
        instance_type: None,
        requested_millicpus,
    };
    let storage = |name: &str, class: &str| ClusterStorage {
        name: name.parse().unwrap(),
        class: class.to_owned(),
        provisioner: None,
        mode: "Block".to_owned(),
        bytes: 16 << 30,
    };
    let cluster = Cluster {
        version: "v1.34.1".to_owned(),
        kubevirt: Some("v1.6.0".to_owned()),
        namespace: "tuning".to_owned(),
        run: "abc".to_owned(),
        nodes: vec![node("node1", 200), node("node2", 4000)],
        storage: vec![storage("local", "nvme"), storage("ceph", "rbd")],
    };
    let mut header = header("--repeats 3 --seed 7");
    header.settings.subject = vec![Subject::Pod, Subject::VmKubevirt];
    header.programs.daemon = String::new();
    Header { cluster: Some(cluster), ..header }
}

fn cluster_runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for (claim, slower) in [("local", 1), ("ceph", 2)] {
        let variant = Variant { claim: Some(claim.parse().unwrap()), vms: 2, ..Variant::default() };
        for (jobs, repeat) in [(1, 0), (1, 1), (1, 2), (4, 0), (4, 1), (4, 2)] {
            let cells = [cell("randread", 4096, jobs, 16), cell("randread", 65536, jobs, 16)];
            for cell in cells {
                let vm = |count| Contender::new(Subject::VmKubevirt, Iothreads::new(count));
                let all = [(Contender::POD, 40_000), (vm(0), 10_000), (vm(2), 30_000)];
                for (contender, iops) in all {
                    let operations = iops / slower;
                    let mut run = run(cell, contender, repeat, operations);
                    run.key.variant = variant;
                    let part = |(vm, node): (u16, &str)| Part {
                        vm,
                        operations: operations / 2,
                        bytes: run.bytes / 2,
                        elapsed_ns: run.elapsed_ns,
                        latency_ns: run.latency_ns.clone(),
                        node: Some(node.to_owned()),
                    };
                    run.parts = [(1, "node1"), (2, "node2")].map(part).to_vec();
                    runs.push(run);
                }
            }
        }
    }
    runs
}

#[test]
fn the_published_sweep_stands_beside_that_of_a_cluster() {
    let (header, runs) = (cluster_header(), cluster_runs());
    let [text, markdown, page, _] = rendered(&header, &runs);
    assert!(!text.contains("Published sweep"), "a terminal is too narrow for it");
    // 4k randread is a cell of it with 1 and 4 jobs at iodepth 16, 64k is not.
    for part in [
        "## Published sweep: Gain over none, %",
        "| 2k randread | 18 | 31 | 30 |",
        "2 cells; local, 2 at once: measured here as well, in the mean 200, published ",
        "## Published sweep: n90",
    ] {
        assert!(markdown.contains(part), "{part}\nis missing in\n{markdown}");
    }
    assert!(page.contains("<h3>Published sweep</h3>"), "{page}");
    assert!(page.contains("2 cells; ceph, 2 at once: measured here as well"), "{page}");
}

#[test]
fn a_cluster_is_told_by_storage_and_nodes_and_compared_with_the_pod() {
    let (header, runs) = (cluster_header(), cluster_runs());
    let [text, markdown, page, json] = rendered(&header, &runs);
    for part in [
        "local: Block of the class nvme, 16G; ceph: Block of the class rbd, 16G",
        "node1 (8 CPUs, 32 GiB, Linux 6.12.0, kubelet v1.34.1, containerd 1.7.27)",
        "Kubernetes v1.34.1, KubeVirt v1.6.0",
        "randread 4k, 1 job × iodepth 16; local, 2 at once",
        "randread 4k, 1 job × iodepth 16; ceph, 2 at once",
        "  2 on node2",
        "/pod: IOPS relative to the pod",
        "pod",
        "vm:kubevirt 2",
    ] {
        assert!(text.contains(part), "'{part}' is missing in:\n{text}");
    }
    for title in ["Gain", "n90", "Ratio to the pod, %"] {
        for claim in ["local", "ceph"] {
            let heading = format!("{title}: vm:kubevirt; {claim}, 2 at once");
            let is_there = markdown.lines().any(|line| line.contains(&heading));
            assert!(is_there || title == "Gain", "'{heading}' is missing in:\n{markdown}");
        }
    }
    assert!(page.contains("Ratio to the pod, %") && !page.contains("Ratio to the host"));
    assert!(json.contains("\"claim\":\"ceph\""), "{json}");
}

#[test]
fn versions_that_only_the_runs_know_are_told_and_one_that_nobody_knows() {
    let (mut header, mut runs) = (cluster_header(), cluster_runs());
    let told = |header: &Header, runs: &[Run]| programs::sentence(&findings(header, runs));
    for run in &mut runs {
        run.load = "fio-3.33 libaio".to_owned();
        run.kernel = Some("Linux 6.12.0 x86_64".to_owned());
    }
    let expected = "Kubernetes v1.34.1, KubeVirt v1.6.0, fio 3.33, guests with Linux 6.12.0";
    assert_eq!(told(&header, &runs), expected);
    for run in runs.iter_mut().filter(|run| run.key.contender.subject().is_vm()) {
        run.load = "fio-3.36 libaio".to_owned();
    }
    header.cluster.as_mut().unwrap().kubevirt = Some(records::results::UNKNOWN.to_owned());
    let expected = "Kubernetes v1.34.1, KubeVirt (version unknown), \
                    fio 3.33 in pods, fio 3.36 in virtual machines, guests with Linux 6.12.0";
    assert_eq!(told(&header, &runs), expected);
}

#[test]
fn the_answer_of_a_cluster_comes_with_a_manifest_of_kubevirt_alone() {
    let (header, runs) = (cluster_header(), cluster_runs());
    let findings = findings(&header, &runs);
    let files = Report::new(&findings).files();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let configurations: Vec<&&str> = names.iter().filter(|it| it.starts_with("config/")).collect();
    let is_kubevirt = |name: &&&str| name.ends_with("kubevirt.yaml") || name.ends_with(".txt");
    assert!(!configurations.is_empty(), "{names:?}");
    assert!(configurations.iter().all(is_kubevirt), "{configurations:?}");
    let (_, manifest) = files.iter().find(|(name, _)| name.ends_with("kubevirt.yaml")).unwrap();
    assert!(manifest.contains("supplementalPoolThreadCount: 2"), "{manifest}");
}

#[test]
fn emulated_machines_of_a_cluster_are_not_compared_with_its_pods() {
    let (header, mut runs) = (cluster_header(), cluster_runs());
    for run in &mut runs {
        run.emulated = run.key.contender.subject().is_vm();
    }
    let [_, text, _, _] = rendered(&header, &runs);
    for words in [
        "| vm:kubevirt none † |",
        "† emulated, not comparable with the pod.",
        "their figures do not compare with those of the pods.",
    ] {
        assert!(text.contains(words), "{words} is missing: {text}");
    }
}
