//! Rates of literal snapshots: by hand what they should be.

use super::*;
use crate::histogram::Bucket;

fn queue(reads: u64, read_bytes: u64, open_ns: u64) -> Queue {
    Queue { export: "e".to_owned(), reads, read_bytes, open_ns, ..Queue::default() }
}

fn snapshot(at_ms: u64, queues: Vec<Queue>) -> Snapshot {
    Snapshot { at: Duration::from_millis(at_ms), queues: Some(queues), ..Snapshot::default() }
}

#[track_caller]
fn check(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-9, "{found} instead of {expected}");
}

#[test]
fn rates_are_differences_by_the_time_that_has_passed() {
    let before = snapshot(1000, vec![queue(100, 4096 * 100, 1_000_000)]);
    let mut after = queue(1100, 4096 * 1100, 3_001_000_000);
    after.writes = 50;
    after.errors = 4;
    after.in_flight = 7;
    after.latency = vec![Bucket { from_ns: 1000, to_ns: 2000, count: 1050 }];
    let rates = Rates::between(&before, &snapshot(3000, vec![after])).expect("two seconds");
    let found = &rates.queues[0];
    check(found.iops, 525.0);
    check(found.read_iops, 500.0);
    check(found.write_iops, 25.0);
    check(found.read_bytes, 500.0 * 4096.0);
    check(found.errors_per_s, 2.0);
    check(found.depth, 1.5);
    assert_eq!((found.answered, found.errors, found.in_flight), (1050, 4, 7));
    assert_eq!(found.latency.percentile(99), Some(2000));
    assert_eq!(found.wait, None);
}

#[test]
fn a_client_that_came_back_gives_no_absurd_rates() {
    let before = snapshot(0, vec![queue(1_000_000, 1 << 40, 1 << 50)]);
    let after = snapshot(1000, vec![queue(10, 40_960, 1000)]);
    let rates = Rates::between(&before, &after).expect("a second");
    check(rates.queues[0].iops, 10.0);
    check(rates.queues[0].read_bytes, 40_960.0);
    // It came back and has done more than before: one sum is enough to see it.
    let after = snapshot(1000, vec![queue(2_000_000, 4096, 1000)]);
    let rates = Rates::between(&before, &after).expect("a second");
    check(rates.queues[0].read_bytes, 4096.0);
    // One that was not there.
    let rates = Rates::between(&snapshot(0, Vec::new()), &after).expect("a second");
    check(rates.queues[0].iops, 2_000_000.0);
}

#[test]
fn without_time_there_are_no_rates() {
    let now = snapshot(1000, vec![queue(1, 1, 1)]);
    assert_eq!(Rates::between(&now, &now), None);
    assert_eq!(Rates::between(&now, &snapshot(0, Vec::new())), None);
}

#[test]
fn the_queues_of_an_export_add_up_and_those_of_others_do_not() {
    let waiting = |number: u64, export: &str, take: u64| Queue {
        export: export.to_owned(),
        queue: number,
        reads: 10,
        open_ns: 100,
        in_flight: 1,
        take_wait_ns: Some(take),
        answer_wait_ns: Some(0),
        ..Queue::default()
    };
    let all = vec![waiting(0, "e", 100), waiting(1, "e", 0), waiting(0, "f", 0)];
    let rates = Rates::between(&snapshot(0, Vec::new()), &snapshot(1000, all)).expect("a second");
    check(rates.queues[0].wait.expect("a share"), 0.5);
    let export = rates.of_export("e").expect("it is there");
    check(export.iops, 20.0);
    check(export.wait.expect("a share"), 1.0 / 3.0);
    assert_eq!(export.in_flight, 2);
    assert_eq!(rates.of_export("g"), None);
}

#[test]
fn an_iothread_that_sleeps_for_long_sleeps_in_each_interval() {
    let iothread = |work_ns, poll_ns, sleep_ns, cpu_ns| Iothread {
        name: "t0".to_owned(),
        work_ns,
        poll_ns,
        sleep_ns,
        cpu_ns: Some(cpu_ns),
        ..Iothread::default()
    };
    let at = |ms, it| Snapshot {
        at: Duration::from_millis(ms),
        iothreads: Some(vec![it]),
        ..Snapshot::default()
    };
    let asleep = at(0, iothread(5, 5, 0, 10));
    let rates = Rates::between(&asleep, &at(1000, iothread(5, 5, 0, 10))).expect("a second");
    check(rates.iothreads[0].sleep, 1.0);
    // It was woken after ten seconds.
    let woken = at(1000, iothread(250_000_005, 500_000_005, 9_000_000_000, 760_000_010));
    let rates = Rates::between(&asleep, &woken).expect("a second");
    let found = &rates.iothreads[0];
    check(found.work, 0.25);
    check(found.look, 0.5);
    check(found.sleep, 0.25);
    check(found.cpu.expect("it is known"), 0.76);
    assert_eq!(found.run_delay, None);
    // Another one of that name.
    let rates =
        Rates::between(&woken, &at(2000, iothread(100_000_000, 0, 0, 0))).expect("a second");
    check(rates.iothreads[0].work, 0.1);
}

#[test]
fn jobs_have_a_rate_and_an_end() {
    let at = |ms, current| Snapshot {
        at: Duration::from_millis(ms),
        jobs: vec![Job {
            id: "j".to_owned(),
            current_progress: current,
            total_progress: 1000,
            ..Job::default()
        }],
        ..Snapshot::default()
    };
    let rates = Rates::between(&at(0, 100), &at(2000, 300)).expect("two seconds");
    assert_eq!(rates.jobs[0].rate, Some(100.0));
    assert_eq!(rates.jobs[0].left, Some(Duration::from_secs(7)));
    for (before, now, rate) in [(300, 300, Some(0.0)), (300, 100, None), (900, 1000, Some(100.0))] {
        let rates = Rates::between(&at(0, before), &at(1000, now)).expect("a second");
        assert_eq!((rates.jobs[0].rate, rates.jobs[0].left), (rate, None));
    }
}

#[test]
fn requests_that_hang_are_open_in_each_interval_whenever_their_time_is_added() {
    let hung = |open_ns| Queue { in_flight: 8, ..queue(5, 0, open_ns) };
    for added in [0, 32_000_000_000] {
        let (before, now) = (snapshot(0, vec![hung(7)]), snapshot(2000, vec![hung(7 + added)]));
        let rates = Rates::between(&before, &now).expect("two seconds");
        check(rates.queues[0].depth, 8.0);
    }
}
