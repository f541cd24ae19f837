//! Tables of a small fleet; others make theirs of it, too.

use std::time::Duration;

use super::*;
use crate::fleet::News;
use crate::histogram::Bucket;
use crate::snapshot::{Export, Iothread, Job, Placement, Pool, Queue, Snapshot};
use crate::troubles::troubles;

/// A daemon with an export of two queues on two iothreads, one without a client, a job and a pool.
pub(crate) fn snapshot(second: u64) -> Snapshot {
    let queue = |number: u64, per_second: u64| Queue {
        export: "vm1".to_owned(),
        queue: number,
        iothread: format!("t{number}"),
        reads: second * per_second,
        read_bytes: second * per_second * 4096,
        open_ns: second * per_second * 250_000,
        in_flight: number * 3,
        latency: vec![Bucket { from_ns: 200_000, to_ns: 256_000, count: second * per_second }],
        ..Queue::default()
    };
    let iothread = |number: u64| Iothread {
        name: format!("t{number}"),
        queues: 1,
        work_ns: second * 250_000_000 * (number + 1),
        poll_ns: second * 125_000_000,
        cpu_ns: Some(second * 300_000_000),
        ..Iothread::default()
    };
    let export = |id: &str| Export {
        id: id.to_owned(),
        kind: "vhost-user-blk".to_owned(),
        node_name: format!("{id}-disk"),
    };
    Snapshot {
        at: Duration::from_secs(second),
        exports: vec![export("vm1"), export("vm2")],
        queues: Some(vec![queue(0, 1000), queue(1, 20_000)]),
        iothreads: Some(vec![iothread(0), iothread(1)]),
        pools: vec![Pool {
            name: "p".to_owned(),
            max: 4,
            mode: Some("auto".to_owned()),
            iothreads: vec!["t0".to_owned(), "t1".to_owned()],
            exports: vec![Placement {
                export: "vm1".to_owned(),
                iothreads: Some(2),
                gain_max: Some(0.2),
                trying: true,
                tries: Some(3),
                gain_predicted: Some(0.18),
                note: Some("2 iothreads (was 1): +90 %".to_owned()),
            }],
        }],
        nbd_nodes: Vec::new(),
        storage: Vec::new(),
        jobs: vec![Job {
            id: "backup-vm1".to_owned(),
            kind: "backup".to_owned(),
            status: "running".to_owned(),
            current_progress: second << 20,
            total_progress: 100 << 20,
            speed: 1 << 30,
            io_status: "ok".to_owned(),
            ..Job::default()
        }],
    }
}

pub(crate) fn fleet(daemons: &[&str], seconds: u64) -> Fleet {
    let mut fleet = Fleet::default();
    for name in daemons {
        let number = fleet.add(format!("/run/{name}/qmp.sock").into());
        for second in 0..=seconds {
            let news = News::Told(Box::new(snapshot(second)));
            fleet.hear(number, news, Duration::from_secs(second));
        }
    }
    fleet
}

pub(crate) fn wanted() -> Wanted {
    Wanted { sort: SortKey::Trouble, is_reversed: false, filter: String::new(), export: None }
}

/// The cells of the columns that fit, without blanks around them.
fn shown(view: View, fleet: &Fleet, wanted: &Wanted, width: usize) -> Vec<String> {
    let troubles = troubles(fleet, Duration::from_secs(2), Duration::from_secs(1));
    let table = table(view, fleet, &troubles, wanted);
    let fit = table.fit(width);
    let titles: Vec<&str> = fit.columns.iter().map(|(it, _)| table.columns[*it].title).collect();
    let line = |row: &Row| {
        let cells: Vec<&str> = fit.columns.iter().map(|(it, _)| row.cells[*it].as_str()).collect();
        cells.join(" | ")
    };
    [titles.join(" | ")].into_iter().chain(table.rows.iter().map(line)).collect()
}

#[track_caller]
fn check(view: View, width: usize, expected: &[&str]) {
    assert_eq!(shown(view, &fleet(&["vm"], 2), &wanted(), width), expected);
}

#[test]
fn exports_show_what_their_queues_do_together() {
    check(
        View::Exports,
        77,
        &[
            "EXPORT | IOPS | READ/s | WRITE/s | P50 | P99 | OPEN | ERR/s | Q | IOTHREADS",
            "vm1 | 21.0k | 82M | 0 | 256µs | 256µs | 3 | 0 | 2 | t0,t1",
            "vm2 | - | - | - | - | - | - | - | 0 | no client",
        ],
    );
    let wide = shown(View::Exports, &fleet(&["vm"], 2), &wanted(), 200);
    assert!(wide[1].ends_with("| t0,t1 | 2 of 4 tries | vhost-user-blk | vm1-disk"), "{wide:?}");
    let narrow = shown(View::Exports, &fleet(&["vm"], 2), &wanted(), 60);
    assert_eq!(narrow[0], "EXPORT | IOPS | READ/s | WRITE/s | P50 | P99 | OPEN | ERR/s | Q");
}

#[test]
fn queues_show_where_they_are_served() {
    check(
        View::Queues,
        77,
        &[
            "EXPORT | Q | IOTHREAD | IOPS | READ/s | WRITE/s | P50 | P99 | OPEN | DEPTH | ERR/s | WAIT",
            "vm1 | 1 | t1 | 20.0k | 78M | 0 | 256µs | 256µs | 3 | 5 | 0 | -",
            "vm1 | 0 | t0 | 1.0k | 3.9M | 0 | 256µs | 256µs | 0 | 0.2 | 0 | -",
        ],
    );
    let export = Some(RowKey { daemon: 0, name: "vm2".to_owned(), queue: None });
    let of_one = Wanted { export, ..wanted() };
    assert_eq!(shown(View::Queues, &fleet(&["vm"], 2), &of_one, 80).len(), 1);
}

#[test]
fn iothreads_show_their_time() {
    check(
        View::Iothreads,
        80,
        &[
            "IOTHREAD | Q | IOPS | CPU | WORK | LOOK | SLEEP | NO CPU",
            "t1 | 1 | 20.0k | 30% | 50% | 12% | 38% | -",
            "t0 | 1 | 1.0k | 30% | 25% | 12% | 62% | -",
        ],
    );
}

#[test]
fn jobs_show_when_they_end() {
    check(
        View::Jobs,
        120,
        &[
            "JOB | TYPE | STATUS | DONE | OF |  | RATE | LEFT | LIMIT | ERROR",
            "backup-vm1 | backup | running | 2.0M | 100M | 2% | 1.0M/s | 1 min 38 s | 1.0G/s | -",
        ],
    );
}

#[test]
fn placement_shows_what_is_tried_and_why() {
    check(
        View::Placement,
        100,
        &[
            "EXPORT | POOL | MODE | ON | MAX | MORE BRING | NOW | WHAT WAS FOUND LAST",
            "vm1 | p | auto | 2 | 4 | ≤ +20% | tries 3: +18%? | 2 iothreads (was 1): +90 %",
        ],
    );
}

#[test]
fn rows_are_sorted_and_filtered() {
    let fleet = fleet(&["a", "b"], 2);
    let first = |sort, is_reversed, filter: &str| {
        let wanted = Wanted { sort, is_reversed, filter: filter.to_owned(), ..wanted() };
        let rows = shown(View::Queues, &fleet, &wanted, 200);
        (rows.len() - 1, rows.get(1).map(|it| it[..11].to_owned()).unwrap_or_default())
    };
    let found = |count, text: &str| (count, text.to_owned());
    assert_eq!(first(SortKey::Name, false, ""), found(4, "a | vm1 | 0"));
    assert_eq!(first(SortKey::Iops, false, ""), found(4, "a | vm1 | 1"));
    assert_eq!(first(SortKey::Name, true, ""), found(4, "b | vm1 | 1"));
    assert_eq!(first(SortKey::Name, false, "B"), found(2, "b | vm1 | 0"));
    assert_eq!(first(SortKey::Name, false, "T1"), found(2, "a | vm1 | 1"));
    assert_eq!(first(SortKey::Name, false, "nothing"), found(0, ""));
    let filter = "nothing".to_owned();
    let none = table(View::Queues, &fleet, &[], &Wanted { filter, ..wanted() });
    assert!(none.nothing.starts_with("no name here has the text of the filter"));
}

#[test]
fn what_is_wrong_comes_first() {
    let mut fleet = fleet(&["vm"], 2);
    let mut bad = snapshot(3);
    let queues = bad.queues.as_mut().expect("queues");
    queues.push(Queue { export: "vm2".to_owned(), errors: 1, ..Queue::default() });
    fleet.hear(0, News::Told(Box::new(bad)), Duration::from_secs(3));
    let troubles = troubles(&fleet, Duration::from_secs(3), Duration::from_secs(1));
    let table = table(View::Exports, &fleet, &troubles, &wanted());
    let names: Vec<_> = table.rows.iter().map(|it| (it.key.name.as_str(), it.severity)).collect();
    assert_eq!(names, [("vm2", Some(Severity::Bad)), ("vm1", None)]);
}

#[test]
fn texts_are_cut_and_obey_nobody() {
    assert_eq!(padded("abc", Side::Right, 5), "  abc");
    assert_eq!(padded("abcdef", Side::Left, 4), "abc…");
    let mut fleet = Fleet::default();
    let number = fleet.add("/run/s".into());
    let mut hostile = snapshot(0);
    hostile.exports[0].id = "a\u{1b}[2J".to_owned();
    fleet.hear(number, News::Told(Box::new(hostile)), Duration::ZERO);
    let table = table(View::Exports, &fleet, &[], &wanted());
    assert!(table.rows.iter().any(|row| row.cells[0] == "a\u{fffd}[2J"));
}

#[test]
fn views_go_round() {
    assert_eq!(View::Exports.next(-1), View::Placement);
    assert_eq!(View::Placement.next(1), View::Exports);
}
