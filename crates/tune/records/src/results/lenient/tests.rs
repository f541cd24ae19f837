//! Files that are damaged, mixed or made up: what can be read of them is, the rest is told, and nothing panics.

use plan::contender::Contender;
use plan::runs::Purpose;
use plan::testing::{cell, client};

use super::*;
use crate::testing::{header, run};

fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap() + "\n"
}

fn line(run: Run) -> String {
    text(&Line::Run(Box::new(run)))
}

/// The host and the client with none and 1, three repeats.
fn runs() -> Vec<Run> {
    let cell = cell("randread", 4096, 4, 16);
    let contenders = [Contender::HOST, client(0), client(1)];
    let of = |repeat| {
        contenders.into_iter().zip(5..).map(move |(who, iops)| run(cell, who, repeat, iops * 100))
    };
    (0..3).flat_map(of).collect()
}

/// A header and all runs.
fn file() -> Vec<String> {
    std::iter::once(text(&header(""))).chain(runs().into_iter().map(line)).collect()
}

#[track_caller]
fn read(text: &str) -> ReadableResults {
    ReadableResults::parse(text.as_bytes()).unwrap()
}

#[track_caller]
fn check(text: &str, runs: usize, problems: &[&str]) {
    let found = read(text);
    assert_eq!(found.problems, problems);
    assert_eq!(found.groups.iter().map(|group| group.runs.len()).sum::<usize>(), runs);
}

#[track_caller]
fn refuse(bytes: &[u8], expected: &str) {
    let error = ReadableResults::parse(bytes).unwrap_err().to_string();
    assert!(error.contains(expected), "{expected:?} is missing in: {error}");
}

/// The file with the second line changed.
fn changed(change: impl FnOnce(&mut Run)) -> String {
    let mut lines = file();
    let mut run = runs().remove(0);
    change(&mut run);
    lines[1] = line(run);
    lines.concat()
}

/// The same by its text.
fn replaced(from: &str, to: &str) -> String {
    let mut lines = file();
    assert!(lines[1].contains(from), "{from} is missing in {}", lines[1]);
    lines[1] = lines[1].replacen(from, to, 1);
    lines.concat()
}

#[test]
fn a_sound_file_is_read_whole() {
    let found = read(&file().concat());
    assert_eq!(found.problems, [""; 0]);
    assert_eq!(found.groups.len(), 1);
    assert_eq!((&found.groups[0].header, &found.groups[0].runs), (&header(""), &runs()));
}

#[test]
fn a_file_cut_anywhere_keeps_what_is_before_the_cut() {
    let (lines, whole) = (file(), file().concat());
    for cut in lines[0].len() + 1..whole.len() - 1 {
        let complete = whole[..cut].matches('\n').count();
        let found = read(&whole[..cut]);
        // A line that lacks nothing but its end is whole.
        let full = usize::from(whole.as_bytes()[cut] == b'\n');
        assert_eq!(found.groups[0].runs.len(), complete - 1 + full, "cut at {cut}");
        let told = format!("the last line is cut off and left out: line {}", complete + 1);
        let torn = full == 0 && !whole[..cut].ends_with('\n');
        assert_eq!(found.problems.contains(&told), torn, "{:?}", found.problems);
    }
}

#[test]
fn what_cannot_be_read_is_named_with_its_lines() {
    let mut lines = file();
    for place in [1, 3, 4, 5, 6, 7] {
        lines[place] = lines[place].replacen("\"repeat\"", "repeat", 1);
    }
    check(
        &lines.concat(),
        3,
        &[
            "6 lines cannot be read and are left out: line 2 (key must be a string at column 44); line 4 \
           (key must be a string at column 44); line 5 (key must be a string at column 44); line 6 (key \
           must be a string at column 44); line 7 (key must be a string at column 44); …",
        ],
    );
    check(
        &replaced("\"operations\":500", "\"operations\":-1"),
        8,
        &[
            "1 line cannot be read and is left out: line 2 (invalid value: integer `-1`, expected u64)",
        ],
    );
    check(
        &replaced("\"operations\":500", "\"operations\":18446744073709551616"),
        8,
        &["1 line cannot be read and is left out: line 2 (invalid type: floating point \
           `1.8446744073709552e+19`, expected u64)"],
    );
    for (wrong, why) in [("NaN", "expected value"), ("1e999", "number out of range")] {
        let found = read(&replaced("\"rate_iops\":null", &format!("\"rate_iops\":{wrong}")));
        assert!(found.problems[0].contains(why), "{:?}", found.problems);
    }
    check(
        &replaced("\"kind\":\"run\"", "\"kind\":\"walk\""),
        8,
        &["1 line is of an unknown kind and left out: line 2 (walk)"],
    );
}

#[test]
fn bytes_that_are_no_text_are_named() {
    let whole = file().concat();
    for bytes in [b"\xff\xfe\x80\n".as_slice(), b"\0\0\0\0\n", b"{\"a\":\"\xff\"}\n"] {
        let with = [whole.as_bytes(), bytes, whole.as_bytes()].concat();
        let found = ReadableResults::parse(&with[..]).unwrap();
        assert_eq!(found.groups[0].runs.len(), 9);
        assert!(found.problems[0].starts_with("1 line cannot be read"), "{:?}", found.problems);
    }
    let zeros = [whole.as_bytes(), &[0; 4096]].concat();
    let found = ReadableResults::parse(&zeros[..]).unwrap();
    assert_eq!(found.problems, ["the last line is cut off and left out: line 11"]);
    check(&format!("\u{feff}{}\r\n\n  \n", whole.replace('\n', "\r\n")), 9, &[]);
}

#[test]
fn a_line_of_any_length_is_passed_over() {
    let lines = file();
    let limit = usize::try_from(LINE_BYTES_MAX).unwrap();
    let long = format!("{{\"x\":\"{}\"}}\n", "y".repeat(2 * limit));
    check(
        &format!("{}{long}{}", lines[0], lines[1..].concat()),
        9,
        &["1 line is longer than any result and left out: line 2"],
    );
    check(
        &format!("{}{}", lines.concat(), long.trim_end()),
        9,
        &["1 line is longer than any result and left out: line 11"],
    );
    check(
        &format!("{}{}\n{}", lines[0], "z".repeat(limit), lines[1]),
        1,
        &["1 line is longer than any result and left out: line 2"],
    );
}

#[test]
fn runs_without_a_rate_are_left_out_and_those_of_zero_count() {
    let name = "randread 4k jobs=4 iodepth=16";
    let found = read(&changed(|run| run.elapsed_ns = 0));
    assert_eq!(found.groups[0].runs.len(), 8);
    let told = "1 run was of no time, so without a rate, and is left out: line 2 (";
    assert!(found.problems[0].starts_with(told), "{:?}", found.problems);
    assert!(found.problems[0].contains(name), "{:?}", found.problems);
    let found = read(&changed(|run| run.operations = 0));
    assert_eq!(found.groups[0].runs.len(), 9);
    let told = "1 run did not one request, which counts as a rate of 0: line 2 (";
    assert!(found.problems[0].starts_with(told), "{:?}", found.problems);
}

/// What is changed, and what is told of it.
type Change<T> = (fn(&mut T), &'static str);

#[test]
fn figures_that_cannot_be_are_left_out() {
    let changes: [Change<Run>; 9] = [
        (|run| run.elapsed_ns = 1, "5e11 IOPS"),
        (|run| run.operations = u64::MAX, "18446744073709551615 requests"),
        (|run| run.bytes = u64::MAX, "18446744073709551615 bytes"),
        (|run| run.started_unix_s = u64::MAX, "18446744073709551615 s since 1970"),
        (|run| run.latency_ns = vec![(1, u64::MAX), (2, 9)], "requests in its histogram"),
        (|run| run.cost.groups[0].cpu_ns = u64::MAX, "ns of CPU time"),
        (|run| run.key.step = u32::MAX, "as its step"),
        (
            |run| (run.key.purpose, run.key.step) = (Purpose::Sentinel, u32::MAX),
            "sentinel 4294967295: 4294967295 as its step",
        ),
        (|run| run.rate_iops = Some(-1.0), "a rate of -1 was asked for"),
    ];
    for (change, expected) in changes {
        let found = read(&changed(change));
        assert_eq!(found.groups[0].runs.len(), 8);
        let problem = &found.problems[0];
        assert!(problem.starts_with("1 run has figures that cannot be"), "{problem}");
        assert!(problem.contains(expected), "{problem}");
    }
}

#[test]
fn a_failure_of_no_plan_is_left_out() {
    let mut key = runs().remove(0).key;
    (key.purpose, key.step) = (Purpose::Sentinel, u32::MAX);
    let failure = Line::Failure(Failure::new(key, &anyhow::anyhow!("it hangs")));
    let found = read(&(file().concat() + &text(&failure)));
    assert_eq!(found.groups[0].failures, []);
    assert!(found.problems[0].contains("4294967295 as its step"), "{:?}", found.problems);
}

#[test]
fn of_a_run_that_is_there_twice_the_last_counts() {
    let mut again = runs().remove(0);
    again.operations = 777;
    let found = read(&(file().concat() + &line(again)));
    assert_eq!((found.groups[0].runs.len(), found.groups[0].runs[0].operations), (9, 777));
    let told = "1 run is there more than once, of which the last counts: line 11 (";
    assert!(found.problems[0].starts_with(told), "{:?}", found.problems);
}

#[test]
fn a_failure_counts_until_its_run_is_measured_and_a_run_until_it_fails() {
    let failure = |run: &Run| {
        text(&Line::Failure(Failure::new(run.key.clone(), &anyhow::anyhow!("the guest hangs"))))
    };
    let (lines, all) = (file(), runs());
    let before = format!("{}{}{}", lines[0], failure(&all[0]), lines[1]);
    assert_eq!(read(&before).groups[0].failures.len(), 0);
    let after = format!("{}{}{}", lines[0], lines[1], failure(&all[0]));
    let group = &read(&after).groups[0];
    assert_eq!((group.runs.len(), group.failures.len()), (0, 1));
    let only = format!("{}{}{}", lines[0], failure(&all[0]), failure(&all[0]));
    let found = read(&only);
    assert_eq!((found.groups[0].runs.len(), found.groups[0].failures.len()), (0, 1));
    assert_eq!(found.problems, [""; 0]);
}

#[test]
fn runs_of_other_machines_settings_and_programs_are_kept_apart() {
    let changes: [Change<Header>; 4] = [
        (|it| it.environment.kernel.release = Some("7.1".to_owned()), "kernel is 7.1, was unknown"),
        (|it| it.programs.daemon = "daemon 2".to_owned(), "daemon is daemon 2, was daemon 1.0"),
        (|it| it.settings.seed = 9, "--seed is 9, was 42"),
        (|it| it.disk.bytes = 1, "size of the disk is 1, was 1073741824"),
    ];
    for (change, difference) in changes {
        let mut other = header("");
        change(&mut other);
        let lines = file();
        // And back to the first.
        let mixed = [lines[..4].concat(), text(&other), lines[4..6].concat(), lines[0].clone()];
        let found = read(&(mixed.concat() + &lines[6]));
        assert_eq!(found.groups.len(), 2);
        assert_eq!((found.groups[0].runs.len(), found.groups[1].runs.len()), (4, 2));
        assert_eq!(found.groups[1].differences, [difference]);
    }
}

#[test]
fn a_header_that_is_missing_or_lacks_something_is_told() {
    let lines = file();
    let found = read(&lines[1..].concat());
    assert!(found.groups[0].header.is_unknown());
    assert_eq!(found.groups[0].runs.len(), 9);
    let told = "there is no header that can be read, so machine, disk, programs and settings are not \
                known";
    assert_eq!(found.problems, [told]);
    let damaged = lines[0].replacen("\"seed\":42", "\"seed\":x", 1);
    let found = read(&(damaged + &lines[1..].concat()));
    assert_eq!(found.problems[0], told);
    assert!(found.problems[1].starts_with("1 line cannot be read"), "{:?}", found.problems);
    let lacking = lines[0].replacen("\"seed\":42,", "", 1);
    assert_ne!(lacking, lines[0]);
    check(
        &(lacking + &lines[1..].concat()),
        9,
        &["the header lacks 1 field, shown as unknown: line 1 (settings.seed)"],
    );
    check(&lines[0], 0, &["nothing was measured"]);
}

#[test]
fn runs_whose_header_cannot_be_read_are_nobody_elses() {
    let lines = file();
    let (first, second) = (&lines[1..4], lines[4..].concat());
    let mut other = header("");
    other.disk.bytes = 1;
    let other = text(&other);
    let broken = other.replacen("\"kind\":\"header\"", "\"kind\":\"header\",", 1);
    let mistyped = other.replacen("\"seed\":42", "\"seed\":\"x\"", 1);
    let newer = other.replacen("\"format\":4", "\"format\":5", 1);
    assert!(![&broken, &mistyped, &newer].contains(&&other));
    let told = "lines have no header that can be read: line ";
    for damaged in [broken, mistyped, newer] {
        for (begin, then, unknown) in [(&lines[0], &damaged, 1), (&damaged, &lines[0], 0)] {
            let found = read(&(begin.clone() + &first.concat() + then + &second));
            let of = |group: &Group| (group.header.is_unknown(), group.runs.len());
            let expected = if unknown == 0 {
                ([(true, 3), (false, 6)], FIRST_UNKNOWN)
            } else {
                ([(false, 3), (true, 6)], UNKNOWN)
            };
            assert_eq!(found.groups.iter().map(of).collect::<Vec<_>>(), expected.0);
            assert_eq!(found.groups[1].differences, [expected.1]);
            assert!(found.problems.iter().any(|it| it.contains(told)), "{:?}", found.problems);
        }
    }
    // And those before any.
    let found = read(&(first.concat() + &lines[0] + &second));
    assert_eq!(found.problems, ["3 lines have no header that can be read: line 1; line 2; line 3"]);
    let sizes: Vec<_> = found.groups.iter().map(|group| group.runs.len()).collect();
    assert_eq!(sizes, [3, 6]);
}

#[test]
fn a_file_without_anything_to_use_is_an_error_that_says_why() {
    refuse(b"", "it is empty");
    refuse(b"\n\n", "nothing of it can be used: there is no header");
    refuse(b"size,op,jobs\n1,2,3\n", "2 lines cannot be read");
    let old = file().concat().replace("\"format\":4", "\"format\":1");
    refuse(
        old.as_bytes(),
        "10 lines are of format 1, which this version of ringloom does not read",
    );
    let new = file().concat().replace("\"format\":4", "\"format\":5");
    refuse(new.as_bytes(), "10 lines are of format 5");
}

#[test]
fn formats_may_be_mixed_and_that_is_told() {
    let mut lines = file();
    for line in &mut lines[5..] {
        *line = line.replacen("\"format\":4", "\"format\":3", 1);
    }
    lines.push("{\"format\":1,\"kind\":\"run\"}\n".to_owned());
    check(
        &lines.concat(),
        9,
        &[
            "1 line is of format 1, which this version of ringloom does not read, and left out: line \
             11",
            "runs of the formats 3 and 4 are mixed: several versions of ringloom wrote them",
        ],
    );
}

#[test]
fn a_file_of_format_2_is_read() {
    let mut lines: Vec<Value> =
        file().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let settings = lines[0]["settings"].as_object_mut().unwrap();
    for new in ["search", "budget", "weights"] {
        assert!(settings.remove(new).is_some(), "{new}");
    }
    settings["repeats"] = 3.into();
    for run in &mut lines[1..] {
        assert!(run.as_object_mut().unwrap().remove("windows").is_some());
    }
    for line in &mut lines {
        line["format"] = 2.into();
    }
    check(&lines.iter().map(text).collect::<String>(), 9, &[]);
}
