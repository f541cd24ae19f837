//! Jobs as users write them, and mistakes in them with their places.

use super::*;

const LEAST: &str = "\
namespace: perf
images: {agent: a:1, guest: g:1}
treatments: [vm, pod]
storage:
  - {name: local, size: 1Gi}
workload: {op: randread, bs: [4k, 64k]}
";

#[test]
fn the_example_is_a_job() {
    let job = ClusterJob::parse(example()).expect("the example is a job");
    assert_eq!(job.storage.len(), 2);
    assert_eq!(job.workload["op"], "randread,randwrite");
    assert_eq!(job.storage[0].bytes, 20 << 30);
    assert_eq!(job.nodes.node_selector["kubernetes.io/os"], "linux");
    let names: Vec<_> = job.all_treatments().iter().map(ToString::to_string).collect();
    let machines = ["vm", "vm with 1 iothread", "vm with 2 iothreads", "vm with 4 iothreads"];
    assert_eq!(names, [&["pod"], &machines[..]].concat());
}

#[test]
fn what_is_not_said_has_a_usual_value() {
    let job = ClusterJob::parse(LEAST).expect("a job");
    assert_eq!((job.rounds, job.security, &job.workers[..]), (1, Security::Auto, &[1_u16][..]));
    assert_eq!(job.workload["bs"], "4k,64k");
    let names: Vec<_> = job.all_treatments().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["vm", "pod"]);
    let text = LEAST.replace("storage:", "iothreads: [none, 1, 4]\nstorage:");
    let job = ClusterJob::parse(&text).expect("a job");
    let names: Vec<_> = job.all_treatments().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["vm", "vm with 1 iothread", "vm with 4 iothreads", "pod"]);
}

/// Of the least job with a change: the place and a part of the sentence.
#[track_caller]
fn refuse(from: &str, to: &str, place: (u64, u64), part: &str) {
    assert!(LEAST.contains(from), "{from}");
    let error = ClusterJob::parse(&LEAST.replacen(from, to, 1)).expect_err("a mistake");
    assert!(error.what.contains(part), "{error}");
    assert_eq!((error.line, error.column), place, "{error}");
}

#[test]
fn a_mistake_has_its_place() {
    refuse("namespace: perf\n", "", (1, 1), "the job lacks namespace");
    refuse("namespace: perf", "namespace: Perf", (1, 12), "'Perf', not a name");
    refuse("namespace: perf", "namespace: perf\nnamespace: x", (2, 1), "namespace");
    refuse("treatments: [vm, pod]", "treatmens: [vm]", (1, 1), "lacks treatments");
    refuse("workload:", "round: 3\nworkload:", (6, 1), "no field 'round'; did you mean 'rounds'?");
    refuse("workload:", "colour: 3\nworkload:", (6, 1), "there are namespace, ");
    refuse("[vm, pod]", "[vm, prod]", (3, 18), "no 'prod'; did you mean 'pod'?");
    refuse("[vm, pod]", "[vm, vm]", (3, 18), "twice");
    refuse("[vm, pod]", "[]", (3, 13), "treatments is empty");
    refuse("[vm, pod]", "vm", (3, 13), "a single value, not a list");
    refuse(", guest: g:1", "", (2, 9), "lacks guest");
    refuse("size: 1Gi", "size: 1Gb", (5, 25), "'1Gb', not a quantity");
    refuse("size: 1Gi", "size: 1Mi", (5, 25), "64Mi is the least");
    refuse("size: 1Gi", "size: 1Gi, accessMode: []", (5, 30), "did you mean 'accessModes'?");
    refuse("name: local", "name: a-name-that-is-longer-than-allowed", (5, 12), "at most 24");
    refuse("storage:", "iothreads: [none, 0]\nstorage:", (4, 19), "from 1 to 64, nor none");
    refuse("storage:", "workers: [1, 1]\nstorage:", (4, 14), "twice");
    refuse("storage:", "workers: [129]\nstorage:", (4, 11), "'129', not a number from 1 to 128");
    refuse("storage:", "rounds: many\nstorage:", (4, 9), "'many', not a number from 1");
    refuse("storage:", "createNamespace: maybe\nstorage:", (4, 18), "true or false");
    refuse("[vm, pod]", "[pod]\niothreads: [none]", (4, 12), "iothreads is of the treatment vm");
    refuse("[vm, pod]", "[pod]\nvm: {cpus: 2}", (4, 5), "vm is of the treatment vm");
    refuse("bs: [4k, 64k]", "bs: {x: 1}", (6, 30), "a map, not a single value");
}

#[test]
fn what_is_no_yaml_has_its_place() {
    let error = ClusterJob::parse("namespace: [\n").expect_err("no YAML");
    assert!(error.line >= 1 && !error.what.is_empty(), "{error}");
    assert!(ClusterJob::parse("").is_err());
    assert!(ClusterJob::parse(&" ".repeat(JOB_BYTES_MAX + 1)).is_err());
}
