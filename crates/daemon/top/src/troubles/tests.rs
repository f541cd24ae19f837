//! What is told of daemons that are well, and of those that are not.

use super::*;
use crate::fleet::News;
use crate::histogram::Bucket;
use crate::snapshot::{Export, Iothread, NbdNode, Queue, Storage};

const SECOND: Duration = Duration::from_secs(1);

fn queue(number: u64, change: impl FnOnce(&mut Queue)) -> Queue {
    let mut queue = Queue { export: "vm1".to_owned(), queue: number, ..Queue::default() };
    change(&mut queue);
    queue
}

fn snapshot(second: u64, queues: Vec<Queue>) -> Snapshot {
    Snapshot {
        at: Duration::from_secs(second),
        exports: vec![Export { id: "vm1".to_owned(), ..Export::default() }],
        queues: Some(queues),
        ..Snapshot::default()
    }
}

fn fleet(all: Vec<Snapshot>) -> Fleet {
    let mut fleet = Fleet::default();
    let number = fleet.add("/run/vm1/qmp.sock".into());
    for snapshot in all {
        let at = snapshot.at;
        fleet.hear(number, News::Told(Box::new(snapshot)), at);
    }
    fleet
}

/// What is said of it a moment after the last snapshot.
#[track_caller]
fn check(all: Vec<Snapshot>, expected: &[(Severity, &str)]) {
    let now = all.last().map_or(Duration::ZERO, |it| it.at);
    let fleet = fleet(all);
    let found = troubles(&fleet, now, SECOND);
    let found: Vec<(Severity, String)> = found
        .iter()
        .map(|it| (it.severity, format!("{}: {}", it.subject(&fleet), it.text)))
        .collect();
    let expected: Vec<(Severity, String)> =
        expected.iter().map(|(severity, text)| (*severity, (*text).to_owned())).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_quiet_daemon_has_no_trouble() {
    let idle = |second| snapshot(second, vec![queue(0, |it| it.reads = 5)]);
    check(vec![idle(0), idle(1)], &[]);
    check(vec![idle(0)], &[]);
    check(Vec::new(), &[]);
}

#[test]
fn requests_that_are_not_answered_are_told_and_then_are_bad() {
    let hung = |second| {
        snapshot(second, vec![queue(0, |it| it.reads = second), queue(1, |it| it.in_flight = 16)])
    };
    check((0..=1).map(hung).collect(), &[]);
    let text = "export vm1: queue 1: 16 requests open, none answered for 2 s";
    check((0..=2).map(hung).collect(), &[(Severity::Warning, text)]);
    let text = "export vm1: queue 1: 16 requests open, none answered for 12 s";
    check((0..=12).map(hung).collect(), &[(Severity::Bad, text)]);
    let all = |second| {
        let hung = |number| queue(number, |it| it.in_flight = 1);
        snapshot(second, vec![hung(0), hung(1)])
    };
    let text = "export vm1: 2 requests open, none answered for 2 s";
    check((0..=2).map(all).collect(), &[(Severity::Warning, text)]);
}

#[test]
fn errors_come_before_what_is_slow() {
    let before = snapshot(0, vec![queue(0, |_| {})]);
    let after = snapshot(
        1,
        vec![queue(0, |it| {
            it.reads = 10;
            it.errors = 2;
            it.latency = vec![Bucket { from_ns: 250_000_000, to_ns: 300_000_000, count: 10 }];
        })],
    );
    check(
        vec![before, after],
        &[
            (Severity::Bad, "export vm1: queue 0: 2 requests have failed in the last 1.0 s"),
            (Severity::Warning, "export vm1: slow: p50 300ms, p99 300ms"),
        ],
    );
}

#[test]
fn iothreads_that_are_full_or_get_no_cpu_are_told() {
    let at = |second: u64, work, delay| {
        let iothread = Iothread {
            name: "t0".to_owned(),
            queues: 2,
            work_ns: second * work,
            run_delay_ns: Some(second * delay),
            ..Iothread::default()
        };
        Snapshot { iothreads: Some(vec![iothread]), ..snapshot(second, Vec::new()) }
    };
    let text = "iothread t0: at work 98% of the time, for 2 queues";
    let full = |second| at(second, 980_000_000, 0);
    check(vec![full(0), full(1)], &[(Severity::Warning, text)]);
    let text = "iothread t0: ready, and without a CPU, 25% of the time";
    let delayed = |second| at(second, 500_000_000, 250_000_000);
    check(vec![delayed(0), delayed(1)], &[(Severity::Warning, text)]);
    let both = |second| {
        let mut both = delayed(second);
        let iothreads = both.iothreads.as_mut().expect("iothreads");
        let second = Iothread {
            name: "t1".to_owned(),
            run_delay_ns: Some(second * 300_000_000),
            ..iothreads[0].clone()
        };
        iothreads.push(second);
        both
    };
    let text = "iothreads t0, t1: ready, and without a CPU, 30% of the time";
    check(vec![both(0), both(1)], &[(Severity::Warning, text)]);
    let fine = |second| at(second, 900_000_000, 50_000_000);
    check(vec![fine(0), fine(1)], &[]);
}

#[test]
fn queues_that_take_each_others_time_are_told() {
    let crowded = |second: u64| {
        snapshot(
            second,
            vec![queue(0, |it| {
                it.reads = second * 1000;
                it.open_ns = second * 2_000_000_000;
                it.take_wait_ns = Some(second * 2_000_000_000);
                it.answer_wait_ns = Some(0);
            })],
        )
    };
    let text = "export vm1: requests wait 50% of their time while the iothread serves other queues";
    check(vec![crowded(0), crowded(1)], &[(Severity::Warning, text)]);
}

#[test]
fn jobs_that_failed_or_rest_are_told() {
    let with = |change: fn(&mut Job)| {
        let mut job = Job { id: "j".to_owned(), kind: "backup".to_owned(), ..Job::default() };
        change(&mut job);
        vec![Snapshot { jobs: vec![job], ..snapshot(0, Vec::new()) }]
    };
    check(with(|it| it.io_status = "ok".to_owned()), &[]);
    let text = "job j: backup has failed: No space left on device";
    let failed = with(|it| it.error = Some("No space left on device".to_owned()));
    check(failed, &[(Severity::Bad, text)]);
    let text = "job j: backup rests after an error of a disk (nospace)";
    check(with(|it| it.io_status = "nospace".to_owned()), &[(Severity::Bad, text)]);
}

#[test]
fn daemons_that_are_gone_or_silent_are_told_first() {
    let mut fleet = fleet(vec![snapshot(0, Vec::new())]);
    let at = Duration::from_secs;
    assert_eq!(troubles(&fleet, at(3), SECOND), []);
    let found = troubles(&fleet, at(5), SECOND);
    assert_eq!(found[0].text, "no answer for 5 s: it waits for a disk, or hangs");
    assert_eq!(troubles(&fleet, at(5), at(10)), []);
    fleet.hear(0, News::Gone("nobody serves it".to_owned()), at(6));
    let found = troubles(&fleet, at(70), SECOND);
    assert_eq!(found[0].text, "gone for 1 min 04 s: nobody serves it");
    assert_eq!(found[0].subject(&fleet), "daemon qmp.sock");
}

#[test]
fn rows_know_their_troubles() {
    let trouble = Trouble {
        severity: Severity::Bad,
        daemon: 0,
        of: Subject::Export("vm1".to_owned(), vec![1]),
        text: String::new(),
    };
    let all = [trouble];
    assert_eq!(of_export(&all, 0, "vm1", None), Some(Severity::Bad));
    assert_eq!(of_export(&all, 0, "vm1", Some(1)), Some(Severity::Bad));
    assert_eq!(of_export(&all, 0, "vm1", Some(0)), None);
    assert_eq!(of_export(&all, 1, "vm1", None), None);
    assert_eq!(of_iothread(&all, 0, "vm1"), None);
    assert_eq!(of_job(&all, 0, "vm1"), None);
}

#[test]
fn an_iothread_that_does_not_turn_is_bad_whatever_it_serves() {
    let at = |second, stalled_ns| Snapshot {
        iothreads: Some(vec![Iothread {
            name: "t0".to_owned(),
            stalled_ns,
            ..Iothread::default()
        }]),
        ..snapshot(second, Vec::new())
    };
    check(vec![at(0, 0), at(1, 1_000_000)], &[]);
    let text = "iothread t0: has not turned for 12 s: its queues are not served";
    check(vec![at(0, 0), at(1, 12_000_000_000)], &[(Severity::Bad, text)]);
    check(vec![at(0, 12_000_000_000)], &[(Severity::Bad, text)]);
}

#[test]
fn a_node_without_its_server_is_bad_after_a_moment() {
    let at = |second, disconnected_ns| Snapshot {
        nbd_nodes: vec![NbdNode {
            node_name: "far".to_owned(),
            server: "nbd://h:1/e".to_owned(),
            disconnected_ns,
        }],
        ..snapshot(second, Vec::new())
    };
    check(vec![at(0, 0), at(1, 900_000_000)], &[]);
    let text = "node far: no connection to nbd://h:1/e for 9 s";
    check(vec![at(0, 9_000_000_000)], &[(Severity::Bad, text)]);
}

#[test]
fn an_image_that_is_gone_or_has_another_size_is_told() {
    let at = |removed, size_difference| Snapshot {
        storage: vec![Storage { export: "e".to_owned(), removed, size_difference }],
        ..snapshot(0, Vec::new())
    };
    check(vec![at(false, 0)], &[]);
    let removed = "export e: image removed, renamed or replaced: do not stop the daemon";
    check(vec![at(true, 0)], &[(Severity::Bad, removed)]);
    check(vec![at(true, 5)], &[(Severity::Bad, removed)]);
    let shrunk = "export e: its image has shrunk: what was behind its end is lost";
    check(vec![at(false, -512)], &[(Severity::Bad, shrunk)]);
    let grown = "export e: its image has grown, and the guest has not been told";
    check(vec![at(false, 512)], &[(Severity::Warning, grown)]);
}
