//! Which intervals follow from which reports.

use super::*;

/// A report after `runtime` ms with reads and writes in one bin each.
fn report(runtime: u64, reads: u64, writes: u64) -> String {
    counted(runtime, [reads, writes], [reads, writes])
}

fn counted(runtime: u64, operations: [u64; 2], timed: [u64; 2]) -> String {
    let side = |operations: u64, timed: u64, bin: u64| {
        let bins = if timed > 0 { format!("\"{bin}\" : {timed}") } else { String::new() };
        format!(
            "{{ \"io_bytes\" : {}, \"runtime\" : {runtime}, \"total_ios\" : {operations}, \
             \"lat_ns\" : {{ \"max\" : 0, \"mean\" : 0.0, \"stddev\" : 0.0, \"bins\" : {{ {bins} }} }} }}",
            operations * 512
        )
    };
    let (read, write) = (side(operations[0], timed[0], 1000), side(operations[1], timed[1], 9000));
    format!(
        "{{\n \"timestamp_ms\" : 1, \"global options\" : {{ \"bs\" : \"512\" }}, \"jobs\" : [ {{ \"error\" : 0, \"read\" : {read}, \"write\" : {write}, \
         \"job_runtime\" : 1, \"usr_cpu\" : 1.0, \"sys_cpu\" : 1.0, \"ctx\" : 1 }} ]\n}}\n"
    )
}

fn interval(second: u32, ms: u64, reads: u64, writes: u64) -> Interval {
    let bins = [(1000, reads), (9000, writes)];
    let bins: Vec<_> = bins.into_iter().filter(|&(_, count)| count > 0).collect();
    Interval {
        second,
        operations: reads + writes,
        bytes: (reads + writes) * 512,
        reads,
        elapsed: Duration::from_millis(ms),
        latency: Latency::from_buckets(&bins),
    }
}

#[test]
fn intervals_are_the_differences_of_reports() {
    let text = [report(1000, 10, 4), report(2001, 25, 4), report(3001, 30, 9)].concat();
    let expected = [interval(1, 1000, 10, 4), interval(2, 1001, 15, 0), interval(3, 1000, 5, 5)];
    assert_eq!(series(&text), expected);
}

#[test]
fn a_short_rest_belongs_to_the_last_second() {
    let text = [report(1000, 10, 4), report(1003, 12, 4)].concat();
    assert_eq!(series(&text), [interval(1, 1003, 12, 4)]);
    assert_eq!(series(&report(300, 2, 1)), [interval(1, 300, 2, 1)]);
}

#[test]
fn early_reports_are_joined_with_the_next() {
    let text = [report(1000, 10, 0), report(1003, 12, 0), report(2000, 20, 0)].concat();
    assert_eq!(series(&text), [interval(1, 1000, 10, 0), interval(2, 1000, 10, 0)]);
}

#[test]
fn a_second_without_completions_is_an_interval() {
    let text = [report(1000, 10, 0), report(2000, 10, 0), report(3000, 11, 0)].concat();
    assert_eq!(series(&text)[1], interval(2, 1000, 0, 0));
}

#[test]
fn the_ramp_is_no_interval() {
    let ramp = counted(796, [500, 100], [0, 0]);
    let mixed = counted(1000, [500, 0], [30, 0]); // Some of the jobs have left their ramp.
    let text = [ramp, mixed, report(1000, 40, 2)].concat();
    assert_eq!(series(&text), [interval(1, 1000, 40, 2)]);
}

#[test]
fn pieces_and_foreign_text_change_nothing() {
    let text = ["note\n", &report(1000, 1, 2), "{\n}\n", &report(2000, 3, 4)].concat();
    for length in [1, 5, 100] {
        let mut intervals = Intervals::default();
        let mut found: Vec<_> =
            text.as_bytes().chunks(length).flat_map(|piece| intervals.feed(piece)).collect();
        found.extend(intervals.finish());
        assert_eq!(found, [interval(1, 1000, 1, 2), interval(2, 1000, 2, 2)]);
    }
}

#[test]
fn intervals_of_several_machines_add_up() {
    let merged = Interval::merge(&[interval(2, 1000, 10, 1), interval(2, 1002, 5, 0)]);
    assert_eq!(merged, Some(interval(2, 1002, 15, 1)));
    assert_eq!(Interval::merge(&[]), None);
}
