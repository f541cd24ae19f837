//! docs/results.md names exactly the fields that are written, docs/tune.md and docs/report.md exactly the options that can
//! be given: their tables are compared with lines that have everything, and with the command line.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args as _;
use load::Sample;
use plan::args::{ReportArgs, TuneArgs};
use plan::testing::{cell, client};
use plan::variant::Placement;
use records::domain::Domain;
use records::host_load::{HostLoad, User};
use records::meter::{Role, ThreadCost};
use records::results::{
    Cluster, ClusterNode, ClusterStorage, DiskPart, Failure, GivenDisk, GivenGuest, Header, Line,
    Part, Run,
};
use records::testing::{header, host_cpu, run};
use serde::Serialize;
use serde_json::Value;

const DOCUMENT: &str = include_str!("../../../../../docs/results.md");
const TUNE: &str = include_str!("../../../../../docs/tune.md");
const REPORT: &str = include_str!("../../../../../docs/report.md");
/// The sections with the fields of each kind of line.
const HEADER: &[&str] = &["The header"];
const RUN: &[&str] = &["Which run it is", "A run"];
const FAILURE: &[&str] = &["Which run it is", "A failure"];

/// A header in which no object or list is missing.
fn full_header() -> Header {
    let mut header = header("");
    let node = serde_json::from_str(r#"{"node":0,"cpus":null,"memory_kib":null}"#).unwrap();
    header.environment.numa.push(node);
    header.environment.disk.mounted_on = Some(Default::default());
    header.environment.disk.devices.push(Default::default());
    let user = User { pid: 1, comm: "fio".to_owned(), cpus: 0.5 };
    header.load_before = Some(HostLoad { users: vec![user], ..HostLoad::default() });
    header.given = Some(given());
    let of_domain = |text: &str| text.to_owned();
    header.domain = Some(Domain {
        name: of_domain("web"),
        disk: of_domain("vda"),
        xml: of_domain("<domain/>"),
    });
    let storage = ClusterStorage {
        name: "local".parse().unwrap(),
        class: of_domain("nvme"),
        provisioner: None,
        mode: of_domain("Block"),
        bytes: 1 << 30,
    };
    header.cluster = Some(Cluster {
        nodes: vec![ClusterNode::default()],
        storage: vec![storage],
        ..Cluster::default()
    });
    header.known.skipped.push(cell("randwrite", 4096, 1, 1));
    header
}

fn given() -> GivenGuest {
    let disk = GivenDisk {
        path: "/dev/vdb".to_owned(),
        bytes: 1 << 30,
        kind: "block device".to_owned(),
        model: None,
        queues: None,
        scheduler: None,
        rotational: None,
        direct: true,
        holes: false,
    };
    GivenGuest {
        host: "vm1".to_owned(),
        identity: None,
        kernel: "Linux 6.1.0 x86_64".to_owned(),
        cpu: None,
        cpus: 2,
        memory_kib: None,
        hypervisor: None,
        vendor: None,
        fio: "3.33".to_owned(),
        disk,
    }
}

/// A run in which no object or list is missing.
fn full_run() -> Run {
    let mut run = run(cell("randread", 4096, 2, 16), client(1), 0, 5);
    let sample = Sample {
        operations: 5,
        bytes: 5 * 4096,
        elapsed: Duration::from_secs(1),
        latency: run.latency(),
    };
    run.parts.push(Part { node: Some("one".to_owned()), ..Part::new(1, &sample) });
    run.kernel = Some("Linux 6.12.0 x86_64".to_owned());
    run.key.variant.claim = Some("local".parse().unwrap());
    run.key.variant.placement = Placement::Packed;
    run.disk_parts.push(DiskPart::new(0, 1, &sample));
    run.windows = vec![(1, 1); 5];
    run.cost.host = Some(host_cpu(1.5, 2));
    let (name, role) = ("IO iothread0".to_owned(), Role::Iothread);
    run.cost.groups[0].threads =
        vec![ThreadCost { name, role, cpu_ns: 1, voluntary: 1, involuntary: 0 }];
    run
}

/// The path of every value: `cost.groups[].name`.
fn paths(value: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path =
                    if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                found.insert(path.clone());
                paths(value, &path, found);
            }
        }
        Value::Array(items) => {
            for item in items {
                paths(item, &format!("{prefix}[]"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The first column of all tables in these sections.
fn documented(sections: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for section in sections {
        let heading = format!("\n## {section}\n");
        let (_, text) = DOCUMENT.split_once(&heading).expect("the section is there");
        let text = text.split("\n## ").next().unwrap_or_default();
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
        for name in rows.filter_map(|row| row.split('`').next()) {
            assert!(found.insert(name.to_owned()), "{name} is documented twice");
        }
    }
    found
}

#[track_caller]
fn check(line: &impl Serialize, sections: &[&str]) {
    let mut written = BTreeSet::new();
    paths(&serde_json::to_value(line).unwrap(), "", &mut written);
    let documented = documented(sections);
    let missing: Vec<_> = written.difference(&documented).collect();
    let stale: Vec<_> = documented.difference(&written).collect();
    assert!(missing.is_empty(), "docs/results.md, {sections:?}, lacks {missing:#?}");
    assert!(stale.is_empty(), "docs/results.md, {sections:?}, has what is not written: {stale:#?}");
}

#[test]
fn the_header_is_documented() {
    check(&full_header(), HEADER);
}

#[test]
fn a_run_is_documented() {
    check(&Line::Run(Box::new(full_run())), RUN);
}

#[test]
fn a_failure_is_documented() {
    let error = anyhow::anyhow!("the guest hangs");
    check(&Line::Failure(Failure::new(full_run().key, &error)), FAILURE);
}

#[test]
fn the_example_is_a_line_of_this_format() {
    let (_, text) = DOCUMENT.split_once("```json\n").expect("there is an example");
    let mut lines = text.lines().take_while(|line| !line.starts_with("```"));
    let line: Line = serde_json::from_str(lines.next().unwrap()).unwrap();
    let Line::Run(run) = &line else { panic!("{line:?} is no run") };
    assert_eq!(run.format, 4);
    assert_eq!(run.latency().count(), run.operations);
    assert_eq!(lines.next(), None);
}

/// `--out` of an option, hidden ones too, `PATH` of what has no name.
#[track_caller]
fn check_options(command: &clap::Command, document: &str) {
    let name = |option: &clap::Arg| match (option.get_long(), option.get_value_names()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some([name, ..])) => name.to_string(),
        (None, _) => option.get_id().as_str().to_uppercase(),
    };
    let names: BTreeSet<String> = command.get_arguments().map(name).collect();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    let first = rows.filter_map(|row| row.split(['`', ' ']).next());
    let is_operand = |name: &str| name.chars().all(|it| it.is_ascii_uppercase() || it.is_numeric());
    let documented: BTreeSet<String> = first
        .filter(|it| it.starts_with("--") || it.starts_with(char::is_uppercase) && is_operand(it))
        .map(str::to_owned)
        .collect();
    assert_eq!(documented, names);
}

#[test]
fn every_option_is_documented() {
    check_options(&TuneArgs::augment_args(clap::Command::new("tune")), TUNE);
    check_options(&ReportArgs::augment_args(clap::Command::new("report")), REPORT);
}
