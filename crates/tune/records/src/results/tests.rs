//! The results file: round trip, torn lines, refusal to mix runs.

use std::path::PathBuf;
use std::time::Duration;

use plan::contender::Contender;
use plan::runs::{PlannedRun, Purpose, RunKey};
use plan::testing::{cell, client};

use super::*;
use crate::meter::Cost;
use crate::testing::{header, run};

fn measured(run: &Run) -> Line {
    Line::Run(Box::new(run.clone()))
}

fn create(directory: &Path, header: &Header) -> Results {
    Results::create(Claim::take(directory).unwrap(), header).unwrap()
}

fn filled(directory: &Path) -> (Header, Vec<Run>) {
    let header = header("");
    let cell = cell("randread", 4096, 4, 16);
    let runs = vec![run(cell, Contender::HOST, 0, 900), run(cell, client(0), 0, 500)];
    let mut results = create(directory, &header);
    for run in &runs {
        results.append(measured(run)).unwrap();
    }
    (header, runs)
}

#[test]
fn what_is_written_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let (header, runs) = filled(directory.path());
    let stored = StoredResults::read(directory.path()).unwrap();
    let lines: Vec<Line> = runs.iter().map(measured).collect();
    assert_eq!((stored.header, stored.recorded), (header, RecordedRuns::from_iter(lines)));
}

#[test]
fn a_run_has_the_documented_fields() {
    let run = run(cell("80/20", 512, 1, 2), client(2), 1, 3);
    let line = serde_json::to_string(&measured(&run)).unwrap();
    let expected = concat!(
        r#"{"kind":"run","format":4,"purpose":"sweep","repeat":1,"step":0,"#,
        r#""subject":"client","iothreads":"2","#,
        r#""device":"virtio-blk","image":"raw","aio":"auto","fs":"here","stripe":"none","delay":"0","vms":1,"disks":1,"#,
        r#""op":"80/20","bs":512,"jobs":1,"iodepth":2,"#,
        r#""stretched":false,"round":null,"queues":0,"load":"ringloom","emulated":false,"started_unix_s":1700000001,"#,
        r#""operations":3,"bytes":1536,"elapsed_ns":1000000000,"rate_iops":null,"latency_ns":[[100000,3]],"#,
        r#""per_second":[],"windows":[],"parts":[],"disk_parts":[],"#,
        r#""cost":{"covered_ns":1000000000,"host":null,"groups":[{"name":"daemon","cpu_ns":30000,"voluntary":0,"involuntary":0,"threads":[]}]},"#,
        r#""job_files":[],"verified_bytes":null,"crashes":[]}"#
    );
    assert_eq!(line, expected);
}

#[test]
fn a_run_is_stretched_if_it_was_planned_so() {
    for (stretch, stretched) in [(1, false), (2, true)] {
        let key = run(cell("read", 4096, 1, 1), client(2), 0, 3).key;
        let planned = PlannedRun { key: key.clone(), jobs_max: 1, seed: 1, round: None, stretch };
        let sample = load::Sample {
            operations: 0,
            bytes: 0,
            elapsed: Duration::from_secs(1),
            latency: load::Latency::default(),
        };
        let run = Run::new(&planned, OWN_LOAD.to_owned(), sample, Cost::default());
        assert_eq!((run.key, run.stretched), (key, stretched));
    }
}

#[test]
fn a_line_from_before_steadiness_was_judged_is_read() {
    let run = run(cell("read", 4096, 1, 1), client(2), 0, 3);
    let line = serde_json::to_string(&measured(&run)).unwrap();
    let old =
        line.replace(r#""windows":[],"#, "").replace(r#""stretched":false,"round":null,"#, "");
    assert!(!old.contains("windows") && !old.contains("stretched"), "{old}");
    assert_eq!(serde_json::from_str::<Line>(&old).unwrap(), measured(&run));
}

#[test]
fn a_header_that_only_knows_qcow2_images_is_read() {
    let mut value = serde_json::to_value(header("")).unwrap();
    for (old, expected) in [(true, Some("qcow2")), (false, None)] {
        let disk = value["disk"].as_object_mut().unwrap();
        disk.remove("looks_like");
        disk.insert("looks_like_qcow2".to_owned(), old.into());
        let read: Header = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(read.disk.looks_like.as_deref(), expected);
    }
    value["disk"]["looks_like"] = "vdi".into();
    value["disk"].as_object_mut().unwrap().remove("looks_like_qcow2");
    let read: Header = serde_json::from_value(value).unwrap();
    assert_eq!(read.disk.looks_like.as_deref(), Some("vdi"));
}

#[test]
fn a_torn_last_line_is_dropped_and_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let (header, runs) = filled(directory.path());
    let path = directory.path().join(FILE_NAME);
    let whole = std::fs::read(&path).unwrap();
    for missing in [1, 20] {
        std::fs::write(&path, &whole[..whole.len() - missing]).unwrap();
        let stored = StoredResults::read(directory.path()).unwrap();
        assert_eq!(stored.recorded, RecordedRuns::from_iter(vec![measured(&runs[0])]));
        let mut results = Results::resume(directory.path(), stored, &header).unwrap();
        results.append(measured(&runs[1])).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }
}

#[test]
fn damage_elsewhere_is_an_error_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let path = directory.path().join(FILE_NAME);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"repeat\":0", "\"repeat\":-", 1)).unwrap();
    let error = format!("{:#}", StoredResults::read(directory.path()).unwrap_err());
    assert!(error.contains("line 2"), "{error}");
    std::fs::write(&path, text.replacen("\"format\":4", "\"format\":9", 1)).unwrap();
    let error = format!("{:#}", StoredResults::read(directory.path()).unwrap_err());
    assert!(error.contains("format 9 was written by another version"), "{error}");
    std::fs::write(&path, "{\"format\":4").unwrap();
    let error = format!("{:#}", StoredResults::read(directory.path()).unwrap_err());
    assert!(error.contains("no whole line"), "{error}");
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_line_and_the_file_stays() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let path = directory.path().join(FILE_NAME);
    let text = std::fs::read_to_string(&path).unwrap();
    // Inside a text, and in a field that nobody knows.
    for (place, damage) in
        [("\"load\":\"", b"\xff".as_slice()), ("\"format\":4", b",\"new\":\"\xff\"")]
    {
        let at = text.rfind(place).unwrap() + place.len();
        let bytes = [&text.as_bytes()[..at], damage, &text.as_bytes()[at..]].concat();
        std::fs::write(&path, &bytes).unwrap();
        let error = format!("{:#}", StoredResults::read(directory.path()).unwrap_err());
        assert!(error.contains("line 3: it is damaged: invalid utf-8"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn a_torn_last_line_of_any_bytes_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let (header, runs) = filled(directory.path());
    let path = directory.path().join(FILE_NAME);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], b"{\"load\":\"\xff\xff"].concat()).unwrap();
    let stored = StoredResults::read(directory.path()).unwrap();
    let results = Results::resume(directory.path(), stored, &header).unwrap();
    assert_eq!((results.recorded().runs(), std::fs::read(&path).unwrap()), (runs, whole));
}

#[test]
fn figures_that_cannot_be_are_not_gone_on_with() {
    let cell = cell("randread", 4096, 4, 16);
    let mut absurd = run(cell, client(0), 1, 5);
    (absurd.key.purpose, absurd.key.step) = (Purpose::Sentinel, u32::MAX);
    let failure = Line::Failure(Failure::new(absurd.key.clone(), &anyhow::anyhow!("it hangs")));
    let mut many = run(cell, client(0), 1, 5);
    many.operations = u64::MAX;
    for (line, expected) in [
        (measured(&absurd), "sentinel 4294967295: 4294967295 as its step, which cannot be"),
        (failure, "4294967295 as its step, which cannot be"),
        (measured(&many), "18446744073709551615 requests, which cannot be"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let header = header("");
        let mut results = create(directory.path(), &header);
        results.append(line).unwrap();
        drop(results);
        let error = format!("{:#}", StoredResults::read(directory.path()).unwrap_err());
        assert!(error.contains("line 2: ") && error.contains(expected), "{error}");
    }
    let mut still = run(cell, client(0), 1, 5);
    still.elapsed_ns = 0;
    let directory = tempfile::tempdir().unwrap();
    let mut results = create(directory.path(), &header(""));
    results.append(measured(&still)).unwrap();
    drop(results);
    let stored = StoredResults::read(directory.path()).unwrap();
    assert_eq!(stored.recorded, RecordedRuns::from_iter(vec![measured(&still)]));
}

#[track_caller]
fn check_mismatch(change: impl FnOnce(&mut Header), expected: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (mut header, _) = filled(directory.path());
    change(&mut header);
    let stored = StoredResults::read(directory.path()).unwrap();
    let error = Results::resume(directory.path(), stored, &header).unwrap_err().to_string();
    assert!(error.contains(expected), "'{expected}' is missing in: {error}");
}

#[test]
fn runs_that_do_not_compare_are_not_mixed() {
    check_mismatch(|h| h.settings.seed = 43, "--seed is 43, was 42");
    check_mismatch(|h| h.settings.jobs = vec![1], "--jobs is [1], was [4]");
    check_mismatch(|h| h.environment.cpu.threads = Some(5), "number of CPUs is 5, was");
    check_mismatch(|h| h.environment.kernel.release = Some("7.1".to_owned()), "kernel is 7.1, was");
    check_mismatch(
        |h| h.programs.accelerator = Some("kvm".to_owned()),
        "accelerator is kvm, was not used",
    );
    check_mismatch(
        |h| h.programs.qemu_io_uring = Some(false),
        "io_uring of QEMU is not usable, was not used",
    );
    check_mismatch(|h| h.environment.memory_kib = Some(1 << 20), "memory is 1024 MiB, was unknown");
    check_mismatch(
        |h| h.programs.daemon = "daemon 2".to_owned(),
        "daemon is daemon 2, was daemon 1.0",
    );
    check_mismatch(|h| h.disk.bytes = 5, "size of the disk is 5, was 1073741824");
    check_mismatch(|h| h.disk.path = PathBuf::from("/b/s"), "disk is a scratch file in /b, was");
}

#[test]
fn a_new_name_of_the_scratch_file_does_not_matter() {
    let directory = tempfile::tempdir().unwrap();
    let (mut header, runs) = filled(directory.path());
    header.disk.path = PathBuf::from("/disks/ringloom-scratch-8.img");
    let stored = StoredResults::read(directory.path()).unwrap();
    let results = Results::resume(directory.path(), stored, &header).unwrap();
    assert_eq!(results.recorded().runs(), runs);
}

#[test]
fn only_one_command_writes_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let (header, runs) = filled(directory.path());
    let refused = || {
        let error = StoredResults::read(directory.path()).unwrap_err().to_string();
        assert!(error.ends_with("results.jsonl: another ringloom tune is writing it"), "{error}");
    };
    let stored = StoredResults::read(directory.path()).unwrap();
    refused();
    let results = Results::resume(directory.path(), stored, &header).unwrap();
    refused();
    drop(results);
    assert_eq!(StoredResults::read(directory.path()).unwrap().recorded.runs(), runs);
    let other = tempfile::tempdir().unwrap();
    let results = create(other.path(), &header);
    assert!(StoredResults::read(other.path()).is_err());
    drop(results);
    assert!(StoredResults::read(other.path()).is_ok());
}

#[test]
fn an_existing_file_is_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    filled(directory.path());
    let path = directory.path().join(FILE_NAME);
    let whole = std::fs::read(&path).unwrap();
    let error = Claim::take(directory.path()).unwrap_err().to_string();
    assert!(error.contains("has results already"), "{error}");
    assert_eq!(std::fs::read(path).unwrap(), whole);
}

#[test]
fn a_failure_is_kept_until_its_run_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let header = header("");
    let run = run(cell("randread", 4096, 4, 16), client(0), 0, 500);
    let mut results = create(directory.path(), &header);
    let error = anyhow::anyhow!("the guest hangs").context("randread 4k");
    results.append(Line::Failure(Failure::new(run.key.clone(), &error))).unwrap();
    let planned =
        PlannedRun { key: run.key.clone(), jobs_max: 4, seed: 1, round: None, stretch: 1 };
    assert!(!results.recorded().has(&planned), "it is tried again");
    assert_eq!(results.recorded().failures()[0].error, "randread 4k: the guest hangs");
    assert_eq!(results.failed_now(), 1);
    drop(results);
    let stored = StoredResults::read(directory.path()).unwrap();
    let mut results = Results::resume(directory.path(), stored, &header).unwrap();
    assert_eq!((results.failed_now(), results.recorded().failures().len()), (0, 1), "told only");
    results.append(Line::Failure(Failure::new(run.key.clone(), &error))).unwrap();
    assert_eq!((results.failed_now(), results.recorded().failures().len()), (1, 1));
    results.append(measured(&run)).unwrap();
    assert_eq!(results.failed_now(), 0);
    assert!(results.recorded().has(&planned) && results.recorded().failures().is_empty());
    assert_eq!(results.recorded().runs(), [run]);
}

#[test]
fn only_results_that_can_be_gone_on_with_are_said_to_be() {
    let directory = tempfile::tempdir().unwrap();
    let (header, _) = filled(directory.path());
    let path = directory.path().join(FILE_NAME);
    let whole = std::fs::read_to_string(&path).unwrap();
    let (head, runs) = whole.split_once('\n').unwrap();
    let cut = &head[..head.len() / 2];
    let anew = "another --out begins anew: line 1: ";
    for (text, expected) in [
        (cut.to_owned(), "it has no whole line, so nothing to go on with: remove it"),
        (format!("{cut}\n{runs}"), anew),
        (format!("{}\n{runs}", &head[head.len() / 2..]), anew),
        (runs.to_owned(), anew),
        (format!("{cut}{runs}"), anew),
        (
            whole.replacen("\"format\":4", "\"format\":2", 1),
            "format 2 was written by another version",
        ),
    ] {
        std::fs::write(&path, &text).unwrap();
        let claimed = format!("{:#}", Claim::take(directory.path()).unwrap_err());
        let resumed = format!("{:#}", StoredResults::read(directory.path()).unwrap_err());
        for error in [claimed, resumed] {
            assert!(error.contains(expected), "'{expected}' is missing in: {error}");
            assert!(error.contains("another --out") && !error.contains("--resume"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    // What was said to be possible is.
    let torn = &whole[..whole.len() - 1];
    std::fs::write(&path, torn).unwrap();
    let error = format!("{:#}", Claim::take(directory.path()).unwrap_err());
    assert!(error.contains("--resume goes on with them"), "{error}");
    let stored = StoredResults::read(directory.path()).unwrap();
    Results::resume(directory.path(), stored, &header).unwrap();
}

/// A measured run of the key, so many requests, or the failure with this sentence.
fn became(key: &RunKey, what: Result<u64, &str>) -> Line {
    match what {
        Ok(operations) => {
            let mut run = run(key.cell, key.contender, key.repeat, operations);
            run.key = key.clone();
            measured(&run)
        }
        Err(error) => {
            let error = anyhow::anyhow!(error.to_owned());
            Line::Failure(Failure::new(key.clone(), &error))
        }
    }
}

#[test]
fn the_last_line_of_a_key_counts_whoever_reads_it() {
    type Read = (Vec<u64>, Vec<String>);
    let cell = cell("randread", 4096, 4, 16);
    let keys = [client(0), client(1)].map(|contender| run(cell, contender, 0, 1).key);
    let read = |runs: &[Run], failures: &[Failure]| -> Read {
        let runs = runs.iter().map(|run| run.operations).collect();
        (runs, failures.iter().map(|failure| failure.error.clone()).collect())
    };
    // What became of the first key and of the second, in the order of the lines.
    type Told = (usize, Result<u64, &'static str>);
    let cases: [(&[Told], &[u64], &[&str]); 5] = [
        (&[(0, Ok(5)), (1, Ok(6)), (0, Ok(7))], &[7, 6], &[]),
        (&[(0, Err("it hangs")), (1, Ok(6)), (0, Ok(7))], &[7, 6], &[]),
        (&[(0, Err("it hangs")), (1, Err("no")), (0, Err("again"))], &[], &["again", "no"]),
        (&[(0, Err("it hangs")), (0, Ok(7)), (0, Ok(8)), (1, Ok(6))], &[8, 6], &[]),
        (&[(0, Ok(5)), (0, Ok(7)), (1, Ok(6)), (0, Err("it hangs"))], &[6], &["it hangs"]),
    ];
    for (told, runs, failures) in cases {
        let expected: Read =
            (runs.to_vec(), failures.iter().map(|error| (*error).to_owned()).collect());
        let lines: Vec<Line> = told.iter().map(|(key, what)| became(&keys[*key], *what)).collect();
        let text = |line: &Line| serde_json::to_string(line).unwrap() + "\n";
        let header = serde_json::to_string(&header("")).unwrap() + "\n";
        let lenient = ReadableResults::parse(
            (header + &lines.iter().map(text).collect::<String>()).as_bytes(),
        );
        let group = lenient.unwrap().groups.swap_remove(0);
        assert_eq!(read(&group.runs, &group.failures), expected, "report: {told:?}");
        let recorded = RecordedRuns::from_iter(lines);
        let found = read(&recorded.runs(), &recorded.failures());
        assert_eq!(found, expected, "--resume: {told:?}");
    }
}
