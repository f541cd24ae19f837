//! What the lines of job files must be.

use std::time::Duration;

use super::*;
use crate::{BlockBytes, Shape};

fn workload(operation: &str, jobs: u16, iodepth: u16, bytes: u64) -> Workload {
    let block = BlockBytes::try_from(4096).unwrap();
    let shape = Shape::new(operation.parse().unwrap(), block, jobs, iodepth).unwrap();
    Workload::new(shape, bytes, 7).unwrap()
}

fn job(workload: Workload, files: &[&str], engine: Engine) -> Result<Job, FioError> {
    let timing = Timing { ramp: Duration::from_millis(500), runtime: Duration::from_secs(2) };
    let files = files.iter().map(|&name| name.to_owned()).collect();
    Job::new(workload, files, engine, CacheMode::Direct, timing)
}

fn text(operation: &str, jobs: u16) -> String {
    let workload = workload(operation, jobs, 8, 10 * 4096 + 5);
    job(workload, &["/dev/vdb"], Engine::IoUring).unwrap().file(FIO_OLDEST)
}

#[track_caller]
fn check(text: &str, lines: &[&str]) {
    for &line in lines {
        assert!(text.lines().any(|l| l == line), "no line {line} in\n{text}");
    }
}

#[test]
fn every_operation_has_its_lines() {
    check(&text("randread", 2), &["rw=randread", "size=40960", "norandommap=1", "numjobs=2"]);
    check(&text("randwrite", 2), &["rw=randwrite", "iodepth=8", "bs=4096", "direct=1"]);
    check(&text("80/20", 2), &["rw=randrw", "rwmixread=80", "size=40960", "norandommap=1"]);
    check(&text("read", 3), &["rw=read", "size=12288", "offset_increment=12288"]);
    check(&text("write", 1), &["rw=write", "size=40960", "ramp_time=500ms", "runtime=2000ms"]);
}

#[test]
fn the_comment_says_how_to_repeat_it_and_what_it_destroys() {
    let reads = text("randread", 2);
    assert!(
        reads.starts_with("# randread with blocks of 4096 bytes, 2 jobs × iodepth 8"),
        "{reads}"
    );
    assert!(reads.contains("fio --output-format=json+ FILE"), "{reads}");
    assert!(!reads.contains("overwrites"), "{reads}");
    assert!(text("80/20", 2).contains("# It overwrites the files."));
}

#[test]
fn each_file_has_a_section() {
    let workload = workload("randread", 2, 1, 1 << 20);
    let job = job(workload, &["/a b", "/x:1"], Engine::Psync).unwrap();
    let text = job.file(FIO_OLDEST);
    assert!(
        text.ends_with("\n[disk1]\nfilename=/a b\n\n[disk2]\nfilename=/x\\:1\nnew_group=1\n"),
        "{text}"
    );
}

#[test]
fn what_fio_cannot_run_is_refused() {
    let deep = workload("randread", 1, 2, 1 << 20);
    let message = job(deep, &["/a"], Engine::Psync).unwrap_err().to_string();
    assert!(message.contains("iodepth 2 with psync"), "{message}");
    assert!(matches!(job(deep, &[], Engine::Libaio), Err(FioError::NoFile)));
    for name in ["", " a", "a ", "a#b", "a;b", "a\nb", "$HOME/a", "a\\b", "\"a\""] {
        let refused = job(deep, &["/good", name], Engine::Libaio);
        assert!(matches!(refused, Err(FioError::Name { .. })), "{name:?}");
    }
}

#[test]
fn a_rate_is_split_over_jobs_files_and_directions() {
    for (operation, jobs, iops, line) in [
        ("randread", 2, 1000, Some("rate_iops=250,")),
        ("randwrite", 2, 1000, Some("rate_iops=,250")),
        ("80/20", 2, 1000, Some("rate_iops=200,50")),
        ("read", 3, 1000, Some("rate_iops=167,")),
        ("randread", 2, 2, Some("rate_iops=1,")),
        ("randread", 2, 1, None),
        ("99/1", 2, 100, None),
    ] {
        let job =
            job(workload(operation, jobs, 1, 1 << 20), &["/a", "/b"], Engine::Libaio).unwrap();
        let rate = Rate(NonZeroU32::new(iops).unwrap());
        match (job.with_rate(rate), line) {
            (Ok(job), Some(line)) => check(&job.file(FIO_OLDEST), &[line, "rate_process=poisson"]),
            (Err(FioError::Rate { .. }), None) => {}
            (found, _) => panic!("{operation} {iops}: {found:?}"),
        }
    }
}

#[test]
fn seeds_give_different_offsets_and_are_never_zero() {
    let seed = |seed| {
        let text = common(Engine::IoUring, CacheMode::Buffered, seed);
        let line = text.lines().find_map(|line| line.strip_prefix("randseed=")).unwrap().to_owned();
        line.parse::<i64>().unwrap()
    };
    let mut seeds: Vec<_> = (0..50).map(seed).collect();
    assert!(seeds.iter().all(|&seed| seed > 0), "{seeds:?}");
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 50);
}

#[test]
fn missing_and_small_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk").display().to_string();
    let job = job(workload("randread", 1, 1, 8192), &[&path], Engine::Psync).unwrap();
    assert!(job.check_files().unwrap_err().to_string().contains(&path));
    std::fs::write(&path, [0; 8191]).unwrap();
    let message = job.check_files().unwrap_err().to_string();
    assert!(message.contains("has 8191 bytes, the fio job needs 8192"), "{message}");
    std::fs::write(&path, [0; 8192]).unwrap();
    job.check_files().unwrap();
}
