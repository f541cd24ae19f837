//! What reports must be read as, and which are refused.

use super::*;

/// A report as fio 3.33 prints it, without what is not used.
fn document(error: i32, read: &str, write: &str) -> String {
    format!(
        "{{\n  \"fio version\" : \"fio-3.33\",\n  \"timestamp_ms\" : 1795349566804,\n  \
         \"global options\" : {{ \"bs\" : \"4096\" }},\n  \"jobs\" : [ {{\n \"jobname\" : \"disk1\",\n \
         \"error\" : {error}, \"eta\" : 2147483647,\n \"read\" : {read},\n \"write\" : {write},\n \
         \"job_runtime\" : 4000, \"usr_cpu\" : 2.5, \"sys_cpu\" : 10.0, \"ctx\" : 77\n }} ],\n  \
         \"disk_util\" : [ {{ \"name\" : \"vda\", \"util\" : 82.25 }} ]\n}}\n"
    )
}

fn side(operations: u64, bytes: u64, bins: &str) -> String {
    format!(
        "{{ \"io_bytes\" : {bytes}, \"runtime\" : 2000, \"total_ios\" : {operations}, \"clat_ns\" : {{}}, \
         \"lat_ns\" : {{ \"min\" : 100, \"max\" : 900, \"mean\" : 250.5, \"stddev\" : 10.25, \
         \"N\" : {operations}, \"bins\" : {{ {bins} }} }} }}"
    )
}

fn good() -> String {
    let read = side(3, 3 * 4096, "\"100\" : 1, \"302\" : 2");
    document(0, &read, &side(1, 4096, "\"302\" : 1"))
}

#[test]
fn all_figures_are_taken_from_the_last_report() {
    let first = document(0, &side(1, 4096, "\"5\" : 1"), &side(0, 0, ""));
    let report = parse_report(&format!("{first}fio: a note\n{}", good())).unwrap();
    let Sample { operations, bytes, elapsed, latency } = report.sample;
    assert_eq!((operations, bytes, elapsed), (4, 4 * 4096, Duration::from_secs(2)));
    assert_eq!(latency, Latency::from_buckets(&[(100, 1), (302, 3)]));
    let read = Flow { operations: 3, bytes: 12_288, mean_ns: 250.5, stddev_ns: 10.25, max_ns: 900 };
    assert_eq!(report.read, read);
    assert_eq!((report.write.operations, report.write.bytes), (1, 4096));
    let cpu = LoadCpu { user_percent: 5.0, system_percent: 20.0, context_switches: 77 };
    assert_eq!(report.load_cpu, cpu);
    assert_eq!(report.ended_unix_ms, 1_795_349_566_804);
    assert_eq!(report.disks, [DiskUse { name: "vda".into(), busy_percent: 82.25 }]);
}

#[test]
fn files_are_told_apart_and_together() {
    let none = side(0, 0, "");
    let one = document(0, &side(3, 3 * 4096, "\"100\" : 3"), &none);
    let idle = document(0, &none, &none).replace("2000", "0");
    let group =
        |text: &str| text.split_once("[ {").unwrap().1.split_once("} ]").unwrap().0.to_owned();
    let all = format!("{{{} }}, {{{} }} ]", group(&good()), group(&idle));
    let text = one.replace("} ],\n  \"disk", &format!("}}, {all},\n  \"disk"));
    let report = parse_report(&text).unwrap();
    let count = |sample: &Sample| (sample.operations, sample.bytes, sample.elapsed.as_secs());
    assert_eq!(
        report.files.iter().map(count).collect::<Vec<_>>(),
        [(3, 12_288, 2), (4, 16_384, 2), (0, 0, 2)]
    );
    assert_eq!(count(&report.sample), (7, 28_672, 2));
    assert_eq!(report.sample.latency, Latency::from_buckets(&[(100, 4), (302, 3)]));
    assert_eq!((report.read.mean_ns, report.read.stddev_ns), (250.5, 10.25));
    // Three times as many jobs, as busy as before.
    assert_eq!(report.load_cpu.context_switches, 3 * 77);
    assert_eq!(report.load_cpu.user_percent, 15.0);
    assert!(parse_report(&good()).unwrap().files.is_empty());
}

#[test]
fn samples_of_two_reports_add_up() {
    let mut one = parse_report(&good()).unwrap().sample.latency;
    let two =
        parse_report(&document(0, &side(5, 5 * 4096, "\"9984\" : 5"), &side(0, 0, ""))).unwrap();
    one.merge(&two.sample.latency);
    assert_eq!(one.count(), 9);
}

#[test]
fn failures_are_told_in_the_words_of_fio() {
    let none = side(0, 0, "");
    let said =
        "fio: pid=7, err=28/file:io_u.c:1876, func=io_u error, error=No space left on device\n";
    let short = side(4, 4 * 4096 - 500, "\"302\" : 4");
    for (text, part) in [
        (format!("{said}{}", document(28, &none, &none)), "error=No space left on device"),
        (document(28, &none, &none), "No space left on device"),
        (format!("fio: bad luck\n{}", document(0, &none, &none)), "fio: bad luck"),
        (document(0, &none, &none), "no request completed in 2.0 s"),
        (document(0, &short, &none), "4 requests moved 15884 bytes instead of 16384"),
        (good().replace("bins", "nibs"), "no bins of total latencies"),
        (good().replace("\"bs\" : \"4096\"", ""), "does not tell bs"),
        (good().replace("\"timestamp_ms\"", "\"timestamp\""), "cannot be read"),
        (
            "Bad option <fooo=3>\nfio: job global dropped\n".into(),
            "Bad option <fooo=3>; job global",
        ),
        (String::new(), "printed no report, but: nothing"),
        ("{\n  \"cut\" : ".into(), "printed no report"),
    ] {
        let message = parse_report(&text).unwrap_err().to_string();
        assert!(message.contains(part), "{message}: expected {part}");
    }
}
