//! A reading with a line of nearly each family, as it is written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use block::{Clock, SystemClock};
use request_path::{Counters, LatencyTotals, SourceTotals};

use super::*;
use crate::families::{FAMILIES, FamilyKind};
use crate::inventory::{
    BitmapsOfNode, ExportPlacement, Inventory, JobEntry, NbdServerLoad, PoolEntry, ServedExport,
    StorageFinding,
};

fn queue(reads: u64) -> QueueSums {
    let counters = Counters { reads, read_bytes: reads * 4096, ..Counters::default() };
    let totals = SourceTotals { counters, open_ns: 1_500_000_000, ..SourceTotals::default() };
    QueueSums { totals, in_flight: 3, iothread: Some("t0".to_owned()) }
}

fn export(queues: u16) -> ExportSums {
    let queues = (0..queues).map(|number| (number, queue(7 + u64::from(number)))).collect();
    ExportSums { queues, latency: LatencyTotals::default() }
}

/// A reading with a line of each family but those of iothreads.
fn reading(exports: impl Iterator<Item = (String, ExportSums)>) -> Reading {
    let sums: BTreeMap<String, ExportSums> = exports.collect();
    let served = |id: &String| ServedExport {
        id: id.clone(),
        kind: "vhost-user-blk",
        node: "disk\n\"0\\".to_owned(),
        clients: 1,
        bytes: 1 << 30,
    };
    let placement = ExportPlacement {
        export: "vm1".to_owned(),
        iothreads: Some(2),
        gain_max: Some(0.25),
        is_trying: true,
    };
    let pool = PoolEntry {
        name: "auto".to_owned(),
        iothreads: 2,
        iothreads_max: 4,
        exports: vec![placement],
    };
    let job = JobEntry {
        id: "job0".to_owned(),
        kind: "mirror",
        status: "running",
        progress: Some((100, 400, 0)),
    };
    let inventory = Inventory {
        exports: sums.keys().map(served).collect(),
        iothreads: Vec::new(),
        pools: vec![pool],
        jobs: vec![job],
        nbd_server: Some(NbdServerLoad { connected: 5, negotiating: 1, connected_max: 100 }),
        nbd_nodes: vec![("far".to_owned(), Duration::from_millis(1500))],
        bitmaps: vec![BitmapsOfNode { node: "n".to_owned(), count: 2, bytes: 4096 }],
        thresholds: vec![("n".to_owned(), 1)],
    };
    let storage =
        StorageFinding { export: "vm1".to_owned(), is_removed: true, size_difference: -512 };
    Reading {
        version: "0.1.0",
        started: Duration::from_millis(1_700_000_000_500),
        at: SystemClock.now(),
        inventory: Arc::new(inventory),
        control_age: Duration::ZERO,
        sums,
        stalled: [(("vm1".to_owned(), 1), Duration::from_secs(40))].into(),
        storage: vec![storage],
    }
}

#[test]
fn a_reading_is_written_with_all_its_labels() {
    let text = text(reading([("vm1".to_owned(), export(2))].into_iter()));
    let lines = [
        "ringloom_build_info{version=\"0.1.0\"} 1",
        "process_start_time_seconds 1700000000.5",
        "ringloom_export_info{export=\"vm1\",type=\"vhost-user-blk\",node=\"disk\\n\\\"0\\\\\"} 1",
        "ringloom_export_image_removed{export=\"vm1\"} 1",
        "ringloom_export_size_difference_bytes{export=\"vm1\"} -512",
        "ringloom_queue_info{export=\"vm1\",queue=\"1\",iothread=\"t0\"} 1",
        "ringloom_queue_requests_total{export=\"vm1\",queue=\"1\",op=\"read\"} 8",
        "ringloom_queue_requests_total{export=\"vm1\",queue=\"0\",op=\"write_zeroes\"} 0",
        "ringloom_queue_bytes_total{export=\"vm1\",queue=\"0\",op=\"read\"} 28672",
        "ringloom_queue_in_flight{export=\"vm1\",queue=\"0\"} 3",
        "ringloom_queue_stalled_seconds{export=\"vm1\",queue=\"1\"} 40.0",
        "ringloom_queue_stalled_seconds{export=\"vm1\",queue=\"0\"} 0.0",
        "ringloom_queue_open_seconds_total{export=\"vm1\",queue=\"0\"} 1.5",
        "ringloom_request_duration_seconds_bucket{le=\"+Inf\",export=\"vm1\",op=\"flush\"} 0",
        "ringloom_request_duration_seconds_bucket{le=\"0.000016384\",export=\"vm1\",op=\"read\"} 0",
        "ringloom_export_placement_gain_max_ratio{export=\"vm1\",pool=\"auto\"} 0.25",
        "ringloom_job_info{job_id=\"job0\",type=\"mirror\",status=\"running\"} 1",
        "ringloom_job_length_bytes{job_id=\"job0\",type=\"mirror\"} 400",
        "ringloom_nbd_connections{state=\"connected\"} 5",
        "ringloom_nbd_connections_max 100",
        "ringloom_nbd_node_disconnected_seconds{node=\"far\"} 1.5",
        "ringloom_write_threshold_exceeded_total{node=\"n\"} 1",
        "# UNIT ringloom_queue_bytes bytes",
    ];
    for line in lines {
        assert!(text.lines().any(|found| found == line), "no line {line} in {text}");
    }
    assert!(text.ends_with("\n# EOF\n"));
}

/// Each family is written once, in the order of the table, with its type and its help.
#[test]
fn what_is_written_is_what_the_table_has() {
    let text = text(reading([("vm1".to_owned(), export(1))].into_iter()));
    let heads: Vec<&str> = text.lines().filter(|line| line.starts_with("# HELP ")).collect();
    assert_eq!(heads.len(), FAMILIES.len());
    for (head, family) in heads.into_iter().zip(FAMILIES) {
        let unit = family.unit.map(|unit| format!("_{unit}")).unwrap_or_default();
        assert_eq!(head, format!("# HELP {}{unit} {}", family.name, family.help));
        let name = family.full_name();
        let line = text.lines().find(|line| {
            let rest = line.strip_prefix(&name).unwrap_or_default();
            let rest = match family.kind {
                FamilyKind::Histogram => rest.strip_prefix("_count").unwrap_or_default(),
                FamilyKind::Counter | FamilyKind::Gauge | FamilyKind::Info => rest,
            };
            rest.starts_with(['{', ' '])
        });
        let has_iothreads = family.name.starts_with("ringloom_iothread");
        let Some(line) = line else {
            assert!(has_iothreads, "no line of {name}");
            continue;
        };
        let labels: Vec<&str> = match line.split_once('{') {
            Some((_, rest)) => rest.split("\",").filter_map(|it| it.split('=').next()).collect(),
            None => Vec::new(),
        };
        assert_eq!(labels, family.labels, "{line}");
    }
}

/// 250 disks of four queues, in a build that is not optimized; the time that counts is measured by ringloom's `metrics::thousand`.
#[test]
fn a_thousand_queues_are_written_soon() {
    let exports = || (0..250).map(|number| (format!("vm{number}"), export(4)));
    let start = SystemClock.now();
    let text = text(reading(exports()));
    let took = SystemClock.now() - start;
    let lines = text.lines().count();
    assert!(lines > 30_000 && text.len() < 8 << 20, "{lines} lines, {} bytes", text.len());
    assert!(took < Duration::from_secs(2), "{lines} lines took {took:?}");
}
