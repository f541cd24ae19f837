//! Whatever a results file says, a report of it is rendered.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;

use plan::args::QuestionArgs;
use plan::contender::{Contender, Iothreads, Subject};
use plan::runs::Purpose;
use plan::testing::{cell, client};
use proptest::prelude::*;
use records::meter::{Role, ThreadCost};
use records::results::{self, Failure, Line, Run};
use records::testing::{header, host_cpu, run};
use serde_json::Value;
use storage::target::Origin;

use super::*;
use crate::kept::COMPARISON;

/// A file in which everything that a report shows is there once.
fn lines() -> Vec<String> {
    let mut runs: Vec<Run> = Vec::new();
    let (low, high) = (cell("randread", 4096, 4, 16), cell("randread", 4096, 8, 16));
    let qemu = Contender::new(Subject::VmQemu, Iothreads::new(1));
    for repeat in 0..3 {
        for (who, iops) in [(Contender::HOST, 900), (client(0), 500), (client(2), 800), (qemu, 700)]
        {
            runs.push(run(low, who, repeat, iops + u64::from(repeat)));
        }
        for (step, cell) in [(0, low), (1, high), (2, low)] {
            let mut run = run(cell, client(1), repeat, 100);
            (run.key.purpose, run.key.step) = (Purpose::Probe, step);
            runs.push(run);
        }
        for percent in [100, 50, 70, 90] {
            let mut run = run(high, client(1), repeat, u64::from(percent));
            (run.key.purpose, run.key.step) = (Purpose::Curve, percent);
            run.rate_iops = (percent < 100).then(|| f64::from(percent));
            runs.push(run);
        }
        let mut sentinel = run(low, Contender::HOST, 0, 900 - u64::from(repeat) * 100);
        (sentinel.key.purpose, sentinel.key.step) = (Purpose::Sentinel, repeat.into());
        sentinel.started_unix_s += u64::from(repeat) * 60;
        runs.push(sentinel);
    }
    let (name, role) = ("CPU 0/KVM".to_owned(), Role::Vcpu);
    for run in &mut runs {
        run.per_second = vec![(1_000_000_000, run.operations)];
        run.cost.host = Some(host_cpu(1.5, 2));
        let thread =
            ThreadCost { name: name.clone(), role, cpu_ns: 1, voluntary: 1, involuntary: 0 };
        run.cost.groups[0].threads = vec![thread];
        if run.key.contender == qemu {
            run.emulated = true;
            let (operations, bytes) = (run.operations, run.bytes);
            let (elapsed_ns, latency_ns) = (run.elapsed_ns, run.latency_ns.clone());
            run.parts.push(results::Part {
                vm: 1,
                operations,
                bytes,
                elapsed_ns,
                latency_ns,
                node: None,
            });
        }
    }
    let error = anyhow::anyhow!("the guest hangs");
    let failed = Failure::new(run(high, client(2), 0, 1).key, &error);
    let lines = runs.into_iter().map(|run| Line::Run(Box::new(run)));
    let lines = lines.chain([Line::Failure(failed)]);
    let text = |line: Line| serde_json::to_string(&line).unwrap();
    std::iter::once(serde_json::to_string(&header("--jobs 4,8")).unwrap())
        .chain(lines.map(text))
        .collect()
}

/// All forms of a comparison.
fn compared(a: &ReadableResults, b: &ReadableResults) -> String {
    let ComparisonText { text, markdown, page, .. } = pair::rendered(("a", a), ("b", b));
    [text, markdown, page].concat()
}

/// Renders all that is rendered of a file; `None` if nothing of it can be used.
fn everything(bytes: &[u8]) -> Option<String> {
    let read = ReadableResults::parse(bytes).ok()?;
    let sound = ReadableResults::parse(lines().join("\n").as_bytes()).unwrap();
    let mut all = compared(&read, &sound);
    let ReadableResults { groups, problems } = read;
    for (part, group) in Part::all(groups.len()).zip(&groups) {
        let notes = notes(group, &problems, part.number(), groups.len());
        let findings = findings(group, &notes);
        let report = Report::of_part(part, &findings);
        all += &report.text(Style::Plain, "");
        all.extend(report.files().into_iter().map(|(_, text)| text));
    }
    Some(all)
}

/// What a number, text or list of a line is replaced with.
const STRANGE: [&str; 16] = [
    "0",
    "-1",
    "1",
    "65535",
    "4294967295",
    "1000000000000",
    "18446744073709551615",
    "1e308",
    "1e-308",
    "1e999",
    "NaN",
    "null",
    "\"\"",
    "\"\\u001b[2J<script>\"",
    "[]",
    "{}",
];

/// The places of the values of a line: after each colon or inside a list.
fn values(line: &str) -> Vec<(usize, usize)> {
    let starts = line.match_indices([':', '[', ',']).map(|(place, _)| place + 1);
    let end = |start: usize| {
        let length = line[start..].find([',', '}', ']']).unwrap_or(line.len() - start);
        (start, start + length)
    };
    starts.map(end).filter(|(start, end)| end > start).collect()
}

/// One change of a file.
#[derive(Clone, Debug)]
enum Change {
    /// A value of a line becomes a strange one.
    Value(usize, usize, usize),
    /// A byte of a line becomes another.
    Byte(usize, usize, u8),
    /// A line is cut.
    Cut(usize, usize),
    /// A line is there again, elsewhere.
    Again(usize, usize),
    /// A line is gone.
    Gone(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let place = 0..10_000_usize;
    prop_oneof![
        8 => (place.clone(), place.clone(), 0..STRANGE.len()).prop_map(|(a, b, c)| Change::Value(a, b, c)),
        2 => (place.clone(), place.clone(), any::<u8>()).prop_map(|(a, b, c)| Change::Byte(a, b, c)),
        1 => (place.clone(), place.clone()).prop_map(|(a, b)| Change::Cut(a, b)),
        1 => (place.clone(), place.clone()).prop_map(|(a, b)| Change::Again(a, b)),
        1 => place.prop_map(Change::Gone),
    ]
}

fn apply(lines: &mut Vec<Vec<u8>>, change: &Change) {
    if lines.is_empty() {
        return;
    }
    let count = lines.len();
    match *change {
        Change::Value(line, value, strange) => {
            let Ok(text) = String::from_utf8(lines[line % count].clone()) else { return };
            let places = values(&text);
            let Some(&(start, end)) = places.get(value % places.len().max(1)) else { return };
            lines[line % count] =
                [&text[..start], STRANGE[strange], &text[end..]].concat().into_bytes();
        }
        Change::Byte(line, place, byte) => {
            let line = &mut lines[line % count];
            let length = line.len();
            if let Some(at) = line.get_mut(place % length.max(1)) {
                *at = byte;
            }
        }
        Change::Cut(line, place) => {
            let line = &mut lines[line % count];
            line.truncate(place % (line.len() + 1));
        }
        Change::Again(line, place) => {
            let line = lines[line % count].clone();
            lines.insert(place % (count + 1), line);
        }
        Change::Gone(line) => drop(lines.remove(line % count)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_file_is_rendered_or_refused(changes in prop::collection::vec(change(), 1..8)) {
        let mut all: Vec<Vec<u8>> = lines().into_iter().map(String::into_bytes).collect();
        for change in &changes {
            apply(&mut all, change);
        }
        let bytes = all.join(&b'\n');
        if let Some(text) = everything(&bytes) {
            prop_assert!(!text.is_empty());
        }
    }

    #[test]
    fn bytes_of_any_kind_are_rendered_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        everything(&bytes);
    }
}

#[test]
fn the_file_that_is_changed_is_sound_itself() {
    let text = everything(lines().join("\n").as_bytes()).unwrap();
    for part in ["client 2", "low again", "maximum", "the sentinel fell", "nothing was measured:"] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    assert!(!text.contains("cannot be read"), "{text}");
}

#[test]
fn an_answer_that_is_no_more_leaves_no_configurations() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source { name: String::new(), path: directory.path().join(FILE_NAME) };
    let served = directory.path().join("config/ringloom/serve.sh");
    for (repeats, expected) in [(3, true), (2, false)] {
        let mut text = serde_json::to_string(&header("")).unwrap();
        for (repeat, count) in (0..repeats).flat_map(|it| [(it, 0), (it, 2)]) {
            let iops = 100 + 50 * u64::from(count);
            let run = run(cell("randread", 4096, 2, 16), client(count), repeat, iops);
            text += &format!("\n{}", serde_json::to_string(&Line::Run(Box::new(run))).unwrap());
        }
        std::fs::write(&source.path, text + "\n").unwrap();
        single(&source, directory.path()).unwrap();
        assert_eq!(served.exists(), expected);
    }
    assert!(!directory.path().join("config").exists());
    assert!(source.path.exists());
}

/// All paths below a directory of configurations that a text names.
fn configurations_in(text: &str) -> Vec<String> {
    let words = text.split(|it: char| !(it.is_ascii_alphanumeric() || "/.-".contains(it)));
    let named = words.filter(|word| word.starts_with("config") && word.contains('.'));
    named.map(str::to_owned).collect()
}

#[test]
fn each_part_points_to_configurations_of_its_own_disk() {
    let directory = tempfile::tempdir().unwrap();
    let source = Source { name: String::new(), path: directory.path().join(FILE_NAME) };
    let disks = ["/disks/first", "/disks/second"];
    let mut text = String::new();
    for disk in disks {
        let mut header = header("--aio native");
        (header.disk.origin, header.disk.path) = (Origin::User, disk.into());
        text += &format!("{}\n", serde_json::to_string(&header).unwrap());
        for (repeat, count) in (0..3).flat_map(|it| [(it, 0), (it, 2)]) {
            let iops = 100 + 50 * u64::from(count);
            let mut run = run(cell("randread", 4096, 2, 16), client(count), repeat, iops);
            run.key.variant.aio = "native".parse().unwrap();
            text += &format!("{}\n", serde_json::to_string(&Line::Run(Box::new(run))).unwrap());
        }
    }
    std::fs::write(&source.path, text).unwrap();
    let out = directory.path().join("out");
    single(&source, &out).unwrap();
    for (disk, names) in disks.iter().zip([
        ["report.md", "report.html", "config/ringloom/serve.sh"],
        ["report-2.md", "report-2.html", "config-2/ringloom/serve.sh"],
    ]) {
        for name in &names[..2] {
            let text = std::fs::read_to_string(out.join(name)).unwrap();
            assert!(text.contains(&format!("sh {}  # in the directory of the report", names[2])));
            let pointers = configurations_in(&text);
            assert!(pointers.len() >= 4, "{name}: {pointers:?}");
            for pointer in pointers {
                let file = std::fs::read_to_string(out.join(&pointer)).expect(&pointer);
                let is_of_disk = !pointer.ends_with("serve.sh") || file.contains(disk);
                assert!(is_of_disk, "{name} points to {pointer}: {file}");
            }
        }
    }
}

#[test]
fn without_a_header_there_is_no_configuration_and_no_line_to_paste() {
    let of = |lines: &[String]| rendered(lines.join("\n").as_bytes()).unwrap().remove(0);
    let has_files = |it: &ReportText| it.files.iter().any(|(name, _)| name.starts_with("config/"));
    let lines = lines();
    let known = of(&lines);
    assert!(has_files(&known) && known.text.contains("ringloom serve"), "{}", known.text);
    let unknown = of(&lines[1..]);
    assert!(unknown.text.contains("Use 2 iothreads"), "{}", unknown.text);
    assert!(unknown.text.contains("no configuration is written"), "{}", unknown.text);
    let said = ["ringloom serve", "serve.sh", "1970", "ramp of"];
    assert!(!said.iter().any(|it| unknown.text.contains(it)), "{}", unknown.text);
    assert!(!has_files(&unknown));
}

#[test]
fn two_runs_may_have_other_seeds_but_no_other_options() {
    let with = |options: &str| {
        let [a, b] = ["--seed 1", options].map(|options| {
            let lines = [serde_json::to_string(&header(options)).unwrap(), lines()[1..].join("\n")];
            ReadableResults::parse(lines.join("\n").as_bytes()).unwrap()
        });
        compared(&a, &b)
    };
    let warning = "the two were not measured alike";
    assert!(!with("--seed 2").contains(warning));
    let differ = with("--seed 2 --runtime 9");
    assert!(differ.contains(warning) && differ.contains("--runtime is 9.0"), "{differ}");
    assert!(!differ.contains("--seed is"), "{differ}");
}

#[test]
fn a_file_compared_with_itself_has_nothing_that_changed() {
    let own = lines().join("\n");
    let pair = rendered_pair(own.as_bytes(), own.as_bytes()).unwrap();
    assert_eq!((pair.changed, pair.alone), (0, 0), "{}", pair.text);
    let without: Vec<String> =
        lines().into_iter().filter(|line| !line.contains("\"emulated\":true")).collect();
    let pair = rendered_pair(own.as_bytes(), without.join("\n").as_bytes()).unwrap();
    assert_eq!(pair.alone, 1, "{}", pair.text);
    assert!(rendered_pair(own.as_bytes(), b"").is_err());
}

/// A results file with a part for each of these disks.
fn results_of(disks: &[&str]) -> String {
    let mut text = String::new();
    for disk in disks {
        let mut header = header("");
        (header.disk.origin, header.disk.path) = (Origin::User, disk.into());
        text += &format!("{}\n", serde_json::to_string(&header).unwrap());
        for (repeat, count) in (0..3).flat_map(|it| [(it, 0), (it, 2)]) {
            let iops = 100 + 50 * u64::from(count);
            let run = run(cell("randread", 4096, 2, 16), client(count), repeat, iops);
            text += &format!("{}\n", serde_json::to_string(&Line::Run(Box::new(run))).unwrap());
        }
    }
    text
}

/// Writes results into a directory, which is made.
fn stored(directory: &Path, name: &str, disks: &[&str]) -> PathBuf {
    std::fs::create_dir_all(directory).unwrap();
    let path = directory.join(name);
    std::fs::write(&path, results_of(disks)).unwrap();
    path
}

/// `ringloom report` of one of them.
fn reported(results: &Path, out: Option<&Path>) -> Result<()> {
    let out = out.map(Path::to_path_buf);
    report(ReportArgs {
        results: results.to_path_buf(),
        other: None,
        out,
        json: false,
        question: QuestionArgs::default(),
    })
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_report_of_other_results_is_not_written_over() {
    let parent = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| parent.path().join(name));
    let copy = stored(&a, "before.jsonl", &["/disks/first"]);
    let own = stored(&a, FILE_NAME, &["/disks/second"]);
    stored(&b, FILE_NAME, &["/disks/third"]);
    for (results, out) in [(&a, Some(&b)), (&own, Some(&b)), (&copy, Some(&a)), (&copy, None)] {
        let error = reported(results, out.map(PathBuf::as_path)).unwrap_err().to_string();
        assert!(error.contains("has results") && error.contains("name another --out"), "{error}");
    }
    assert_eq!(names(&b), [FILE_NAME]);
    for out in [None, Some(&a)] {
        reported(&a, out.map(PathBuf::as_path)).unwrap();
        reported(&own, out.map(PathBuf::as_path)).unwrap();
    }
    assert!(a.join(PAGE).exists());
}

/// The path of a pipe that holds results.
fn piped(disks: &[&str]) -> (io::PipeReader, PathBuf) {
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(results_of(disks).as_bytes()).unwrap();
    let path = format!("/dev/fd/{}", reader.as_raw_fd()).into();
    (reader, path)
}

#[test]
fn results_may_come_through_a_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let (_reader, path) = piped(&["/disks/first"]);
    reported(&path, Some(&out)).unwrap();
    assert!(out.join(PAGE).exists() && out.join("config/ringloom/serve.sh").exists());
    let [(_a, a), (_b, b)] = [piped(&["/disks/first"]), piped(&["/disks/second"])];
    let out = directory.path().join("pair");
    report(ReportArgs {
        results: a,
        other: Some(b),
        out: Some(out.clone()),
        json: false,
        question: QuestionArgs::default(),
    })
    .unwrap();
    assert_eq!(names(&out), ["compare.md", PAGE]);
}

#[test]
fn what_has_no_directory_needs_one() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, path) = piped(&["/disks/first"]);
    let file = File::open(stored(directory.path(), FILE_NAME, &["/disks/first"])).unwrap();
    for path in [path, format!("/dev/fd/{}", file.as_raw_fd()).into()] {
        let error = reported(&path, None).unwrap_err().to_string();
        assert!(error.contains("/dev/fd/") && error.contains("name one with --out"), "{error}");
    }
    // Nothing was read of it.
    assert_eq!(io::read_to_string(reader).unwrap(), results_of(&["/disks/first"]));
}

#[test]
fn parts_that_are_no_more_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path();
    let disks = ["/disks/first", "/disks/second", "/disks/third"];
    let source = stored(out, FILE_NAME, &disks[..1]);
    reported(&source, None).unwrap();
    let of_one = names(out);
    stored(out, FILE_NAME, &disks);
    reported(&source, None).unwrap();
    assert!(out.join("config-3/ringloom/serve.sh").exists() && out.join("report-3.csv").exists());
    // What the user put there stays.
    std::fs::write(out.join("config-2/mine"), "").unwrap();
    std::fs::write(out.join("report-4.html"), "").unwrap();
    stored(out, FILE_NAME, &disks[..1]);
    reported(&source, None).unwrap();
    assert_eq!(names(&out.join("config-2")), ["mine"]);
    let mut expected = of_one;
    expected.extend(["config-2", "report-4.html"].map(str::to_owned));
    expected.sort_unstable();
    assert_eq!(names(out), expected);
}

#[test]
fn a_directory_has_the_files_of_one_report() {
    let parent = tempfile::tempdir().unwrap();
    let [a, b, out] = ["a", "b", "out"].map(|name| parent.path().join(name));
    stored(&a, FILE_NAME, &["/disks/first"]);
    stored(&b, FILE_NAME, &["/disks/second", "/disks/third"]);
    let of = |results: &Path, other: Option<&PathBuf>| {
        let (results, out) = (results.to_path_buf(), Some(out.clone()));
        report(ReportArgs {
            results,
            other: other.cloned(),
            out,
            json: false,
            question: QuestionArgs::default(),
        })
        .unwrap();
        names(&parent.path().join("out"))
    };
    let of_one = ["config", "report.csv", "report.html", "report.jsonl", "report.md"];
    let of_two = [COMPARISON, PAGE];
    assert_eq!(of(&b, None).len(), 10);
    assert_eq!(of(&a, Some(&b)), of_two);
    assert_eq!(of(&a, None), of_one);
    assert_eq!(of(&a, Some(&b)), of_two);
    assert_eq!(of(&a, None), of_one);
    // What the user wrote stays, whatever its name.
    for name in ["report.csv", "report.jsonl", "report.md"] {
        std::fs::write(out.join(name), "mine").unwrap();
    }
    let own = [COMPARISON, "report.csv", PAGE, "report.jsonl", "report.md"];
    assert_eq!(of(&a, Some(&b)), own);
}

/// Nothing that a terminal obeys.
#[track_caller]
fn assert_clean(directory: &Path, expected: &[&str]) {
    assert_eq!(names(directory), expected);
    for name in expected {
        let text = std::fs::read_to_string(directory.join(name)).unwrap();
        assert!(text.contains("[2J"), "what it should not obey is not in {name}");
        let control = text.chars().find(|it| it.is_control() && *it != '\n');
        assert_eq!(control, None, "{name}");
    }
}

#[test]
fn nothing_that_is_written_has_control_characters() {
    let parent = tempfile::tempdir().unwrap();
    let out = |name: &str| parent.path().join(name);
    let [a, b] = ["a", "b"].map(|it| out(&format!("{it}\u{1b}[2J")));
    stored(&a, FILE_NAME, &["/disks/\u{1b}[2J"]);
    let path = stored(&b, FILE_NAME, &["/disks/first"]);
    let noted = std::fs::read_to_string(&path).unwrap().replacen("x86_64", "\\u001b[2J\\t\\r", 1);
    std::fs::write(&path, noted).unwrap();
    reported(&a, Some(&out("single"))).unwrap();
    std::fs::remove_dir_all(out("single/config")).unwrap();
    for name in ["single/report.csv", "single/report.jsonl"] {
        std::fs::remove_file(out(name)).unwrap();
    }
    assert_clean(&out("single"), &[PAGE, "report.md"]);
    report(ReportArgs {
        results: a,
        other: Some(b),
        out: Some(out("pair")),
        json: false,
        question: QuestionArgs::default(),
    })
    .unwrap();
    assert_clean(&out("pair"), &["compare.md", PAGE]);
}

#[test]
fn programs_read_the_same_as_one_line_of_json() {
    const DOCUMENT: &str = include_str!("../../../../../docs/report.md");
    let all = rendered(results_of(&["/disks/first", "/disks/second"]).as_bytes()).unwrap();
    assert_eq!(all.len(), 2);
    for ReportText { text, json, .. } in all {
        assert_eq!(json.find('\n'), Some(json.len() - 1));
        let document: Value = serde_json::from_str(&json).unwrap();
        for name in document.as_object().unwrap().keys() {
            assert!(DOCUMENT.contains(&format!("| `{name}` |")), "{name}");
        }
        let answer = &document["answers"][0];
        for name in answer.as_object().unwrap().keys() {
            let is_told = DOCUMENT.contains(&format!("`answers[].{name}`")) || name == "details";
            assert!(is_told, "{name}");
        }
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat(&text).contains(&flat(answer["sentence"].as_str().unwrap())), "{json}");
        let command = answer["command"].as_str().unwrap();
        assert!(text.contains(command) && command.contains("ringloom serve"), "{json}");
        assert!(answer["iothreads"].is_string() && answer["certainty"].is_string(), "{json}");
        let rows = document["rows"].as_array().unwrap();
        assert!(rows.iter().any(|row| row["iothreads"] == answer["iothreads"]), "{json}");
    }
}

#[test]
fn a_configuration_names_its_disk_byte_for_byte() {
    let directory = tempfile::tempdir().unwrap();
    reported(&stored(directory.path(), FILE_NAME, &["/disks/a\tb"]), None).unwrap();
    let served = directory.path().join("config/ringloom/serve.sh");
    let text = std::fs::read_to_string(served).unwrap();
    assert!(text.contains("/disks/a\tb"), "{text}");
}

#[test]
fn another_question_is_answered_and_what_was_written_stays() {
    let directory = tempfile::tempdir().unwrap();
    let source = stored(&directory.path().join("a"), FILE_NAME, &["/disks/first"]);
    let ask = |line: &str, other: Option<&Path>, out: Option<&Path>| {
        let question = plan::testing::parse(line).unwrap().question;
        let [other, out] = [other, out].map(|it| it.map(Path::to_path_buf));
        report(ReportArgs { results: source.clone(), other, out, json: false, question })
    };
    ask("--want latency", None, None).unwrap();
    assert_eq!(names(&directory.path().join("a")), [FILE_NAME], "nothing is written");
    let out = directory.path().join("out");
    ask("--want cpu --tolerance 7", None, Some(&out)).unwrap();
    let text = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(text.contains("For the least CPU per request use no iothread"), "{text}");
    let error = ask("--want cpu", Some(&source), None).unwrap_err().to_string();
    assert!(error.contains("is asked of one result, not of two"), "{error}");
    let error = ask("--iops-min 5k", None, None).unwrap_err().to_string();
    assert!(error.starts_with("--iops-min is for --want cpu"), "{error}");
}
