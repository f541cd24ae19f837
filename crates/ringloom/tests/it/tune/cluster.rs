//! `tune cluster` against an API server of the tests: pods are made there, and the agents in them run a real fio on a file.
//!
//! The children are what several at once and clocks, and what file systems are.
//! Not here: a real cluster (docs/cluster.md says how), and what keeps pods from becoming ready (the crate `cluster`).

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use fake_cluster::Fake;
use serde_json::json;

use super::{LIMIT, OUT, Rig, check_sound, contender, list, of_kind, text, with_rig};

mod at_once;
mod files;

const JOB: &str = "\
namespace: perf
images: {agent: a:1}
treatments: [pod]
workers: [1, 2]
placement: [spread]
storage:
  - {name: local, storageClassName: local, volumeMode: Block, size: 64Mi}
workload: {op: randread, bs: 4k, jobs: 1, iodepth: 1, runtime: 1, ramp: 0.2}
rounds: 2
startSeconds: 5
";
/// What is told of a node that others use.
const BUSY: &str = "the node two is used by others, whose pods ask for 3.0 of its 4.0 CPUs";
/// Rounds, and numbers of workers.
const RUNS: usize = 2 * 2;

/// The job with these changes, and the options that lead to the server.
fn line(rig: &Rig, fake: &Fake, changes: &[(&str, &str)]) -> Result<String> {
    let disk = rig.path("disk");
    std::fs::write(&disk, vec![0; 64 << 20])?;
    fake.state().disk = Some(disk);
    let mut job = JOB.to_owned();
    for (from, to) in changes {
        ensure!(job.contains(from), "{from} is missing in the job");
        job = job.replace(from, to);
    }
    std::fs::write(rig.path("job.yaml"), job)?;
    Ok(format!("cluster job.yaml --kubeconfig {}", fake.kubeconfig.display()))
}

fn check_nothing_left(rig: &Rig, fake: &Fake, out: &[&str]) -> Result<()> {
    ensure!(fake.made().is_empty(), "left in the cluster: {:?}", fake.made());
    rig.check_nothing_left(&[&["disk", "job.yaml"], out].concat())
}

#[test]
fn pods_of_two_nodes_are_measured_at_once() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        let theirs = json!({ "metadata": { "name": "p" }, "spec": { "nodeName": "two", "containers": [
            { "name": "c", "resources": { "requests": { "cpu": "3" } } }] } });
        fake.state().objects.insert("/api/v1/namespaces/theirs/pods/p".to_owned(), theirs);
        let ran = rig.run(&line(rig, &fake, &[])?)?;
        ensure!(ran.status.success(), "{ran:?}");
        check_nothing_left(rig, &fake, &[OUT])?;
        let lines = rig.lines()?;
        check_sound(&lines)?;
        ensure!(lines.len() == RUNS, "{} runs", lines.len());
        for run in &lines {
            ensure!(text(run, "subject")? == "pod", "{run}");
            let parts = list(run, "parts")?;
            let nodes: Vec<_> = parts.iter().map(|part| &part["node"]).collect();
            match run["vms"].as_u64() {
                Some(2) => ensure!(nodes.len() == 2 && nodes[0] != nodes[1], "{nodes:?}"),
                _ => ensure!(nodes.len() == 1 && nodes[0].is_string(), "{nodes:?}"),
            }
        }
        let header = rig.header()?;
        ensure!(list(&header["cluster"], "nodes")?.len() == 2, "{header}");
        let report = rig.report()?;
        for words in ["local", "one", "two", "v1.34.1", "containerd 1.7.27", ", fio ", BUSY] {
            ensure!(report.contains(words), "{words} is missing: {report}");
        }
        Ok(())
    });
}

#[test]
fn machines_with_and_without_iothreads_are_measured_beside_pods() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        fake.state().has_kubevirt = true;
        fake.state().kubevirt_version = Some("v1.6.0".to_owned());
        let changes = [
            ("{agent: a:1}", "{agent: a:1, guest: g:1}"),
            ("[pod]", "[pod, vm]"),
            ("[1, 2]", "[1]"),
            ("jobs: 1", "jobs: [1, 4]"),
            ("rounds: 2", "iothreads: [none, 2]\nvm: {cpus: 2, memory: 1Gi}\nrounds: 1"),
        ];
        let ran = rig.run(&line(rig, &fake, &changes)?)?;
        ensure!(ran.status.success(), "{ran:?}");
        ensure!(ran.stderr.contains("1 start of pods and 2 of virtual machines"), "{ran:?}");
        check_nothing_left(rig, &fake, &[OUT])?;
        let lines = rig.lines()?;
        check_sound(&lines)?;
        let names: BTreeSet<String> = lines.iter().map(contender).collect();
        let expected = ["pod", "vm:kubevirt 2", "vm:kubevirt none"].map(str::to_owned);
        ensure!(names == expected.into(), "{names:?}");
        let markdown = std::fs::read_to_string(rig.path(OUT).join("report.md"))?;
        for words in [
            "Kubernetes v1.34.1, KubeVirt v1.6.0, fio ",
            ", guests with Linux ",
            "| gain | /pod |",
            "| vm:kubevirt none |",
            "## Published sweep: Gain over none, %",
            "The same job with more rounds",
            "The cluster cannot tell",
        ] {
            ensure!(markdown.contains(words), "{words} is missing: {markdown}");
        }
        Ok(())
    });
}

#[test]
fn an_interrupted_run_leaves_nothing_and_goes_on() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        let line = line(rig, &fake, &[])?;
        let mut tuning = rig.start(&line)?;
        tuning.wait_until("a result", || {
            let text = std::fs::read_to_string(rig.path(OUT).join("results.jsonl"));
            Ok(text.ok().filter(|text| text.lines().count() > 1))
        })?;
        let ran = tuning.interrupt(&[])?;
        ensure!(ran.stderr.contains("--resume"), "{ran:?}");
        check_nothing_left(rig, &fake, &[OUT])?;
        let before = rig.lines()?;
        ensure!((1..RUNS).contains(&before.len()), "{} runs", before.len());
        let ran = rig.run(&format!("{line} --resume"))?;
        ensure!(ran.status.success(), "{ran:?}");
        check_nothing_left(rig, &fake, &[OUT])?;
        let lines = rig.lines()?;
        ensure!(lines.len() == RUNS && lines[..before.len()] == before, "{lines:?}");
        check_sound(&lines)
    });
}

#[test]
fn a_pod_that_is_evicted_is_a_failure_and_the_next_run_has_another() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        let changes = [("[1, 2]", "[1]"), ("runtime: 1", "runtime: 4"), ("rounds: 2", "rounds: 1")];
        let line = line(rig, &fake, &[&changes[..], &[("jobs: 1", "jobs: [1, 2]")]].concat())?;
        let mut tuning = rig.start(&line)?;
        let pod = tuning
            .wait_until("a pod", || Ok(fake.made().into_iter().find(|it| it.contains("/pods/"))))?;
        let jobs = rig.path(OUT).join("jobs");
        tuning.wait_until("the job of fio", || Ok(jobs.exists().then_some(())))?;
        fake.change(&pod, |pod| {
            pod["status"] = json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on memory." });
        });
        let ran = tuning.end(LIMIT)?;
        ensure!(ran.status.code() == Some(1), "{ran:?}");
        ensure!(ran.stderr.contains("1 failed run; the report names"), "{ran:?}");
        ensure!(ran.stderr.contains("low on memory"), "{ran:?}");
        check_nothing_left(rig, &fake, &[OUT])?;
        let lines = rig.lines()?;
        let failures = of_kind(&lines, "failure");
        ensure!(failures.len() == 1 && of_kind(&lines, "run").len() == 1, "{lines:?}");
        ensure!(failures[0].to_string().contains("low on memory"), "{lines:?}");
        Ok(())
    });
}

/// Runs a command that must be refused in these words, and make nothing.
fn refuse(rig: &Rig, fake: &Fake, changes: &[(&str, &str)], words: &[&str]) -> Result<()> {
    let line = line(rig, fake, changes)?;
    rig.refuse(&line, words).with_context(|| format!("{changes:?}"))?;
    check_nothing_left(rig, fake, &[])
}

#[test]
fn what_a_job_gets_wrong_is_told_before_anything_is_made() {
    with_rig(|rig| {
        let fake = Fake::with_pods();
        let refuse = |from, to, words: &[&str]| refuse(rig, &fake, &[(from, to)], words);
        refuse("rounds:", "round:", &["job.yaml: line 9, column 1", "did you mean 'rounds'"])?;
        refuse("treatments", "treatment", &["job.yaml", "lacks treatments"])?;
        refuse("namespace: perf\n", "", &["job.yaml", "namespace"])?;
        refuse("rounds: 2", "rounds: 0", &["rounds", "line 9"])?;
        refuse("op: randread", "op: shuffle", &["workload", "shuffle"])?;
        refuse("op: randread", "path: x", &["workload", "path", "iodepth"])?;
        refuse("jobs: 1", "verify: perhaps", &["verify", "true or false"])?;
        refuse("[1, 2]", "[1, 500]", &["workers", "500"])?;
        refuse("[1, 2]", "[1, 129]", &["line 4, column 14", "not a number from 1 to 128"])?;
        refuse("Name: local", "Name: ceph", &["no storage class ceph", "local"])?;
        let words = "namespaces \"perf\" not found";
        fake.state().refused.insert("/configmaps".to_owned(), words.to_owned());
        refuse("rounds: 2", "rounds: 1", &[words, "say createNamespace: true"])?;
        fake.state().refused.clear();
        refuse("[pod]", "[vm]", &["lacks guest"])?;
        let machines = [("{agent: a:1}", "{agent: a:1, guest: g:1}"), ("[pod]", "[vm]")];
        self::refuse(rig, &fake, &machines, &["the cluster has no KubeVirt"])?;
        fake.state().has_kubevirt = true;
        fake.state().denied.insert("create virtualmachines".to_owned());
        self::refuse(rig, &fake, &machines, &["create virtualmachines", "--print-rbac"])?;
        fake.state().denied.insert("create pods".to_owned());
        refuse("rounds: 2", "rounds: 1", &["create pods", "--print-rbac"])
    });
}

#[test]
fn a_cluster_that_is_not_there_is_named() {
    with_rig(|rig| {
        let fake = Fake::start();
        let line = line(rig, &fake, &[])?;
        rig.refuse(&format!("{line} --context other"), &["other"])?;
        rig.refuse("cluster job.yaml --kubeconfig nowhere", &["nowhere"])?;
        rig.refuse("cluster nowhere.yaml", &["nowhere.yaml"])?;
        rig.refuse(&format!("{line} --resume"), &["no ringloom-report to resume"])?;
        let config = std::fs::read_to_string(&fake.kubeconfig)?;
        let port = config.split("127.0.0.1:").nth(1).and_then(|it| it.split('"').next());
        std::fs::write(&fake.kubeconfig, config.replace(port.context("a port")?, "1"))?;
        let said = rig.run(&line)?.stderr;
        let expected =
            ["the API server has not answered for 5 s at http://127.0.0.1:1/: ", "refused"];
        ensure!(expected.iter().all(|it| said.matches(it).count() == 1), "{said}");
        ensure!(!said.contains("ERROR"), "nobody but us says it: {said}");
        check_nothing_left(rig, &fake, &[])
    });
}

/// Runs `tune cluster` where it only prints.
fn printed(rig: &Rig, line: &str) -> Result<String> {
    let ran = rig.run(line)?;
    ensure!(ran.status.success(), "{line}: {ran:?}");
    Ok(ran.stdout)
}

#[test]
fn the_example_is_a_job_whose_rights_can_be_printed() {
    with_rig(|rig| {
        std::fs::write(rig.path("job.yaml"), printed(rig, "cluster --example")?)?;
        let rights = printed(rig, "cluster job.yaml --print-rbac")?;
        for words in ["kind: Role", "kind: RoleBinding", "kind: ClusterRole", "pods/exec"] {
            ensure!(rights.contains(words), "{words} is missing: {rights}");
        }
        let ran = rig.run("cluster job.yaml --dry-run")?;
        ensure!(ran.status.success() && ran.stderr.contains("starts"), "{ran:?}");
        let job = std::fs::read_to_string(rig.path("job.yaml"))?;
        std::fs::write(rig.path("job.yaml"), job.replace("[pod, vm]", "[vm]"))?;
        let ran = rig.run("cluster job.yaml --dry-run")?;
        ensure!(!ran.stderr.contains("of pods"), "{ran:?}");
        rig.check_nothing_left(&["job.yaml"])
    });
}
