//! The bench itself, with runs of a moment, so that it does not rot.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::report::skipped;

/// The program of the same build, which cargo makes for the tests of the workspace.
fn ringloom() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_ringloom-bench")).with_file_name("ringloom")
}

fn missing() -> Option<String> {
    first_missing(&[&ringloom(), Path::new("qemu-storage-daemon")])
}

fn first_missing(programs: &[&Path]) -> Option<String> {
    programs.iter().find_map(|program| {
        let started = Command::new(program).arg("--version").output();
        started.err().map(|error| format!("{} cannot be started: {error}", program.display()))
    })
}

#[track_caller]
fn bench(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ringloom-bench"))
        .args(arguments)
        .args(["--ringloom", ringloom().to_str().unwrap(), "--work", env!("CARGO_TARGET_TMPDIR")])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaint}\n{text}");
    text
}

#[test]
fn a_small_run_measures_saves_and_compares() {
    if let Some(reason) = missing() {
        return skipped(&reason);
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("results.json");
    let file = file.to_str().unwrap();
    let rows = "null-randread-4k-d64-r1-polling,null-randread-4k-d16-r1-sleeping,\
                null-randread-4k-d4-r1-poisson20000,null-randwrite-4k-d64-r4-polling,\
                refill-null,memory";
    let text = bench(&["--rows", rows, "--pairs", "4", "--seconds", "0.05", "--out", file]);
    for part in ["ringloom / qsd", "client's ceiling", "ns CPU", "2 threads / 1 thread", "MiB"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    let text = bench(&["--compare", file, file]);
    assert!(text.lines().count() > 5, "{text}");
    // On a busy machine a short sample may have nothing to take a percentile of.
    let equal = |line: &str| line.ends_with("no difference") || line.ends_with("repeats to tell");
    assert!(text.lines().filter(|line| line.contains("4k")).all(equal), "{text}");
    assert!(text.contains("no difference"), "{text}");
}

#[test]
fn files_are_compared_with_the_bare_host() {
    if let Some(reason) = missing() {
        return skipped(&reason);
    }
    let rows = "tmpfs-randread-4k-d16-r1-polling,work-randwrite-512-d16-r1-polling";
    let text = bench(&["--rows", rows, "--pairs", "1", "--seconds", "0.05"]);
    assert_eq!(text.matches("ringloom / host   ").count(), 2, "{text}");
}

#[test]
fn images_are_compared_with_raw_and_with_the_peer() {
    let missing = missing().or_else(|| first_missing(&["qemu-img", "qemu-io"].map(Path::new)));
    if let Some(reason) = missing {
        return skipped(&reason);
    }
    let rows = "qcow2-randread-4k-d64-r1-polling,qcow2-chain4-*,qcow2-new-randwrite-4k-d64-r1-*,\
                literature-2m-*";
    let text = bench(&["--rows", rows, "--pairs", "1", "--seconds", "0.05"]);
    // Not their ratios: on a busy machine a short sample may have nothing in it.
    assert_eq!(text.matches("\n  ringloom, raw ").count(), 5, "{text}");
    assert_eq!(text.matches("\n  qsd ").count(), 5, "{text}");
    assert!(text.contains("| 2m | "), "{text}");
}

#[test]
fn rows_are_listed_and_wrong_ones_refused() {
    assert!(bench(&["--list"]).contains("work-randread-4k-d64-r1-polling"));
    let wrong = ["--rows", "nonsense"];
    let output = Command::new(env!("CARGO_BIN_EXE_ringloom-bench")).args(wrong).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no row is called nonsense"));
}
