//! The results file: round trip, torn lines, refusal to mix runs. Also sample headers and runs for other tests.

use super::*;
use crate::args::tests::settings;
use crate::cell::tests::{cell, client};

pub(crate) fn header(line: &str) -> Header {
    let machine = Machine {
        cpu: "Test CPU".to_owned(),
        cores: 4,
        memory_kib: 1 << 20,
        kernel: "Linux 6.1.0 x86_64".to_owned(),
    };
    let disk = Disk {
        origin: Origin::Scratch,
        path: PathBuf::from("/disks/ringloom-scratch-7.img"),
        bytes: 1 << 30,
        description: "1G on ext4, O_DIRECT".to_owned(),
    };
    let mut header = Header::new("daemon 1.0".to_owned(), machine, disk, settings(line, 4));
    header.started_unix_s = 1_700_000_000;
    header.ringloom = "0.1.0".to_owned();
    header
}

/// A run of one second with `operations` requests of 100 µs each, 10 µs of CPU time per request.
pub(crate) fn run(cell: Cell, contender: Contender, repeat: u16, operations: u64) -> Run {
    Run {
        format: FORMAT,
        repeat,
        contender,
        cell,
        started_unix_s: 1_700_000_001,
        operations,
        bytes: operations * u64::from(cell.shape().block().get()),
        elapsed_ns: 1_000_000_000,
        cpu_ns: Some(operations * 10_000),
        latency_ns: vec![(100_000, operations)],
    }
}

fn filled(directory: &Path) -> (Header, Vec<Run>) {
    let header = header("");
    let cell = cell("randread", 4096, 4, 16);
    let runs = vec![run(cell, Contender::Host, 0, 900), run(cell, client(0), 0, 500)];
    let mut results = Results::create(directory, &header).unwrap();
    for run in &runs {
        results.append(run.clone()).unwrap();
    }
    (header, runs)
}

#[test]
fn what_is_written_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let (header, runs) = filled(directory.path());
    let stored = Stored::read(directory.path()).unwrap();
    assert_eq!((stored.header, stored.runs), (header, runs));
}

#[test]
fn a_run_has_the_documented_fields() {
    let line = serde_json::to_string(&run(cell("80/20", 512, 1, 2), client(2), 1, 3)).unwrap();
    let expected = r#"{"format":1,"repeat":1,"subject":"client","iothreads":"2","op":"80/20","bs":512,"jobs":1,"iodepth":2,"started_unix_s":1700000001,"operations":3,"bytes":1536,"elapsed_ns":1000000000,"cpu_ns":30000,"latency_ns":[[100000,3]]}"#;
    assert_eq!(line, expected);
}

#[test]
fn a_torn_last_line_is_dropped_and_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let (header, runs) = filled(directory.path());
    let path = directory.path().join(FILE_NAME);
    let whole = std::fs::read(&path).unwrap();
    for missing in [1, 20] {
        std::fs::write(&path, &whole[..whole.len() - missing]).unwrap();
        let stored = Stored::read(directory.path()).unwrap();
        assert_eq!(stored.runs, runs[..1]);
        let mut results = Results::resume(directory.path(), stored, &header).unwrap();
        results.append(runs[1].clone()).unwrap();
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
    let error = format!("{:#}", Stored::read(directory.path()).unwrap_err());
    assert!(error.contains("line 2"), "{error}");
    std::fs::write(&path, text.replacen("\"format\":1", "\"format\":9", 1)).unwrap();
    let error = format!("{:#}", Stored::read(directory.path()).unwrap_err());
    assert!(error.contains("format 9 is unknown"), "{error}");
    std::fs::write(&path, "{\"format\":1").unwrap();
    let error = format!("{:#}", Stored::read(directory.path()).unwrap_err());
    assert!(error.contains("no header line"), "{error}");
}

#[track_caller]
fn check_mismatch(change: impl FnOnce(&mut Header), expected: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (mut header, _) = filled(directory.path());
    change(&mut header);
    let stored = Stored::read(directory.path()).unwrap();
    let error = Results::resume(directory.path(), stored, &header).unwrap_err().to_string();
    assert!(error.contains(expected), "'{expected}' is missing in: {error}");
}

#[test]
fn runs_that_do_not_compare_are_not_mixed() {
    check_mismatch(|h| h.settings.seed = 43, "--seed is 43, was 42");
    check_mismatch(|h| h.settings.jobs = vec![1], "--jobs is [1], was [4]");
    check_mismatch(|h| h.machine.cores = 5, "number of cores is 5, was 4");
    check_mismatch(|h| h.machine.kernel = "Linux 7".to_owned(), "kernel is Linux 7, was Linux 6");
    check_mismatch(|h| h.daemon = "daemon 2".to_owned(), "daemon is daemon 2, was daemon 1.0");
    check_mismatch(|h| h.disk.bytes = 5, "size of the disk is 5, was 1073741824");
    check_mismatch(|h| h.disk.path = PathBuf::from("/b/s"), "disk is a scratch file in /b, was");
}

#[test]
fn a_new_name_of_the_scratch_file_does_not_matter() {
    let directory = tempfile::tempdir().unwrap();
    let (mut header, runs) = filled(directory.path());
    header.disk.path = PathBuf::from("/disks/ringloom-scratch-8.img");
    let stored = Stored::read(directory.path()).unwrap();
    let results = Results::resume(directory.path(), stored, &header).unwrap();
    assert_eq!(results.runs(), runs);
}

#[test]
fn an_existing_file_is_never_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let (header, _) = filled(directory.path());
    assert!(Results::create(directory.path(), &header).is_err());
}
