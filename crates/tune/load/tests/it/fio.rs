//! Jobs made here, run by the real fio: it must do what they mean and its reports must add up.

use std::fs;
use std::num::NonZeroU32;
use std::time::Duration;

use load::fio::{
    FioError, Intervals, Rate, VerifyJob, VerifyPhase, parse_report, parse_verify, series,
};
use load::{BlockBytes, Interval, Latency};

use crate::bench::{BLOCK, BLOCKS, Bench, Cell, log};

#[track_caller]
fn assert_near(found: f64, wanted: f64, share: f64, what: &str) {
    let off = (found - wanted).abs();
    assert!(off <= wanted * share, "{what}: {found}, expected {wanted} ± {} %", share * 100.0);
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run of a second")]
fn float(count: u64) -> f64 {
    count as f64
}

#[test]
fn percentiles_are_those_fio_prints() {
    let Some(bench) = Bench::new() else { return };
    let output = bench.run_job(&bench.job(Cell::new("randread", 1, 4), &["disk"]));
    let report = parse_report(&output).unwrap();
    // The last document, as fio users read it.
    let start = output.rfind("\n{\n").map_or(0, |at| at + 1);
    let value: serde_json::Value = serde_json::from_str(&output[start..]).unwrap();
    let lat = &value["jobs"][0]["read"]["lat_ns"];
    for percent in ["50.000000", "95.000000", "99.000000", "99.900000"] {
        let theirs = lat["percentile"][percent].as_f64().unwrap();
        let ours = report.sample.latency.percentile(percent.parse().unwrap()).unwrap();
        assert_near(ours.as_secs_f64() * 1e9, theirs, 0.02, percent);
    }
    let mean = report.sample.latency.mean().unwrap().as_secs_f64() * 1e9;
    assert_near(mean, report.read.mean_ns, 0.02, "mean");
    let max = report.sample.latency.max().unwrap().as_secs_f64() * 1e9;
    assert_near(max, float(report.read.max_ns), 0.02, "max");
    assert_near(
        float(report.sample.latency.count()),
        float(report.sample.operations),
        0.01,
        "count",
    );
}

#[test]
fn mixes_have_the_share_asked_for() {
    let Some(bench) = Bench::new() else { return };
    let report = parse_report(&bench.run_job(&bench.job(Cell::new("80/20", 2, 4), &["disk"])));
    let report = report.unwrap();
    let share = float(report.read.operations) / float(report.sample.operations);
    assert_near(share, 0.8, 0.05, "share of reads");
    assert_eq!(report.read.operations + report.write.operations, report.sample.operations);
    assert_eq!(report.sample.bytes, report.sample.operations * BLOCK);
}

#[test]
fn intervals_of_many_jobs_and_files_add_up_to_the_total() {
    let Some(bench) = Bench::new() else { return };
    bench.make("other", BLOCKS * BLOCK);
    let cell = Cell { runtime: Duration::from_secs(2), ..Cell::new("80/20", 8, 2) };
    let output = bench.run_job(&bench.job(cell, &["disk", "other"]));
    let report = parse_report(&output).unwrap();
    let all = series(&output);
    let mut latency = Latency::default();
    all.iter().for_each(|interval| latency.merge(&interval.latency));
    assert_eq!(latency, report.sample.latency);
    assert_eq!(all.iter().map(|i| i.elapsed).sum::<Duration>(), report.sample.elapsed);
    let sum = |of: fn(&Interval) -> u64| all.iter().map(of).sum::<u64>();
    assert_eq!(sum(|i| i.operations), report.sample.operations);
    assert_eq!(sum(|i| i.bytes), report.sample.bytes);
    assert_eq!(sum(|i| i.reads), report.read.operations);
    assert_near(report.sample.elapsed.as_secs_f64(), 2.0, 0.5, "seconds");
    assert!(all.len() >= 2, "{} intervals", all.len());
    // Each file by itself.
    assert_eq!(report.files.len(), 2);
    assert_eq!(report.files.iter().map(|it| it.operations).sum::<u64>(), report.sample.operations);
    assert!(report.files.iter().all(|it| it.operations > 0), "{:?}", report.files);
}

/// The rate of a run that was asked for `iops`.
fn reached(bench: &Bench, operation: &'static str, iops: u32) -> f64 {
    let cell = Cell { runtime: Duration::from_millis(1500), ..Cell::new(operation, 2, 16) };
    let rate = Rate(NonZeroU32::new(iops).unwrap());
    let job = bench.job(cell, &["disk"]).with_rate(rate).unwrap();
    let report = parse_report(&bench.run_job(&job)).unwrap();
    float(report.sample.operations) / report.sample.elapsed.as_secs_f64()
}

#[test]
fn a_rate_is_reached_and_not_passed() {
    let Some(bench) = Bench::new() else { return };
    for (operation, iops) in [("randread", 4000), ("randwrite", 3000), ("50/50", 4000)] {
        let mut found = reached(&bench, operation, iops);
        for _ in 0..4 {
            // Other processes may have had the CPUs; more than the rate is never right.
            if found < 0.95 * f64::from(iops) {
                found = reached(&bench, operation, iops);
            }
        }
        assert_near(found, f64::from(iops), 0.05, operation);
    }
}

#[test]
fn requests_of_a_rate_come_at_random_moments() {
    let Some(bench) = Bench::new() else { return };
    let rate = Rate(NonZeroU32::new(1000).unwrap());
    let cell = Cell { runtime: Duration::from_secs(2), ..Cell::new("randread", 1, 32) };
    let job = bench.job(cell, &["disk"]).with_rate(rate).unwrap();
    let text = job.file(bench.version).replace("[disk1]", "write_lat_log=log\n[disk1]");
    parse_report(&bench.run(&text, false)).unwrap();
    let rows = log(&bench.path("log_lat.1.log"));
    let mut counts = [0_usize; 180];
    for [ms, ..] in rows {
        if let Some(count) = counts.get_mut(usize::try_from(ms / 10).unwrap()) {
            *count += 1;
        }
    }
    let total: usize = counts.iter().sum();
    assert!((1600..2000).contains(&total), "{total} requests in 1.8 s");
    // A quarter of all windows of 10 ms is off by 4 or more; with an even rate those around a pause.
    let uneven = counts.iter().filter(|&&count| count.abs_diff(10) >= 4).count();
    assert!(uneven > 27, "{uneven} of 180 windows: {counts:?}");
}

/// The blocks that each job reads first, in order.
fn blocks(bench: &Bench, cell: Cell) -> Vec<Vec<u64>> {
    let job = bench.job(cell, &["disk"]);
    let options = "log_offset=1\nwrite_lat_log=log\nnumber_ios=400\n[disk1]";
    let text = job.file(bench.version).replace("[disk1]", options);
    parse_report(&bench.run(&text.replace("ramp_time=200ms\n", ""), false)).unwrap();
    let of_job = |number: u16| {
        let rows = log(&bench.path(&format!("log_lat.{number}.log")));
        rows.into_iter().take(400).map(|[.., offset]| offset / BLOCK).collect()
    };
    (1..=cell.jobs).map(of_job).collect()
}

#[test]
fn sequential_jobs_walk_their_own_slices() {
    let Some(bench) = Bench::new() else { return };
    let slice = BLOCKS / 16;
    let mut slices = Vec::new();
    for found in blocks(&bench, Cell::new("read", 16, 1)) {
        let count = u64::try_from(found.len()).unwrap();
        assert!(count > slice, "{count} requests are less than a round");
        let expected: Vec<_> = (0..count).map(|at| found[0] + at % slice).collect();
        assert_eq!(found, expected);
        slices.push(found[0]);
    }
    slices.sort_unstable();
    assert_eq!(slices, (0..16).map(|number| number * slice).collect::<Vec<_>>());
}

#[test]
fn a_seed_fixes_the_offsets_of_each_job() {
    let Some(bench) = Bench::new() else { return };
    let cell = Cell::new("randread", 2, 1);
    let first = blocks(&bench, cell);
    assert!(first.iter().all(|job| job.len() == 400));
    assert!(first.iter().flatten().all(|&block| block < BLOCKS));
    assert_ne!(first[0], first[1]);
    assert_eq!(first, blocks(&bench, cell));
    assert_ne!(first, blocks(&bench, Cell { seed: 8, ..cell }));
}

#[test]
fn what_is_written_does_not_compress() {
    let Some(bench) = Bench::new() else { return };
    parse_report(&bench.run_job(&bench.job(Cell::new("write", 1, 4), &["disk"]))).unwrap();
    let bytes = fs::read(bench.path("disk")).unwrap();
    let block = usize::try_from(BLOCK).unwrap();
    let mut blocks: Vec<&[u8]> = bytes.chunks(block).take(200).collect();
    for block in &blocks {
        let mut seen = [false; 256];
        block.iter().for_each(|&byte| seen[usize::from(byte)] = true);
        assert!(seen.iter().filter(|&&s| s).count() > 240, "a block of few different bytes");
    }
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), 200);
}

#[test]
fn failures_are_told_in_the_words_of_fio_and_cost_no_file() {
    let Some(bench) = Bench::new() else { return };
    let text = bench.job(Cell::new("80/20", 2, 1), &["disk"]).file(bench.version);
    let disk = bench.path("disk").display().to_string();
    let missing = text.replace(&disk, &format!("{disk}.none"));
    let full = text.replace(&disk, "/dev/full").replace("direct=1", "direct=0");
    for (text, part) in [
        (missing, "No such file or directory"),
        (full.replace("rwmixread=80", "rwmixread=0"), "No space left on device"),
        (text.replace("thread=1", "thread=1\nnonsense=1"), "Bad option <nonsense=1>"),
        (text.replace("ioengine=psync", "ioengine=nonsense"), "engine nonsense not loadable"),
    ] {
        let message = parse_report(&bench.run(&text, true)).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
    assert!(!bench.path("disk.none").exists());
}

#[test]
fn a_file_that_is_too_small_is_noticed_and_kept() {
    let Some(bench) = Bench::new() else { return };
    bench.make("small", BLOCKS * BLOCK / 4);
    let job = bench.job(Cell::new("randread", 1, 4), &["small"]);
    assert!(matches!(job.check_files(), Err(FioError::Small { .. })));
    let output = bench.run(&job.file(bench.version), false);
    let error = parse_report(&output).unwrap_err();
    assert!(matches!(error, FioError::Short { .. } | FioError::Failed { .. }), "{error}");
    assert_eq!(bench.path("small").metadata().unwrap().len(), BLOCKS * BLOCK / 4);
}

#[test]
fn a_changed_byte_fails_the_verification() {
    let Some(bench) = Bench::new() else { return };
    let disk = bench.path("disk");
    let block = BlockBytes::try_from(BLOCK).unwrap();
    let (engine, cache) = (bench.engine(), bench.cache());
    let job =
        VerifyJob::new(&disk.display().to_string(), block, 1 << 20, engine, cache, 3).unwrap();
    job.check_file().unwrap();
    let run = |phase| parse_verify(&bench.run(&job.file(bench.version, phase), false));
    assert_eq!(run(VerifyPhase::WriteAndRead).unwrap(), 1 << 20);
    assert_eq!(run(VerifyPhase::ReadOnly).unwrap(), 1 << 20);
    let mut bytes = fs::read(&disk).unwrap();
    assert!(bytes[1 << 20..].iter().all(|&byte| byte == 0x5a), "it wrote beyond its part");
    bytes[700_000] ^= 1;
    fs::write(&disk, bytes).unwrap();
    let message = run(VerifyPhase::ReadOnly).unwrap_err().to_string();
    assert!(message.contains("verify failed"), "{message}");
    assert!(message.contains("offset 696320"), "{message}");
    assert_eq!(run(VerifyPhase::WriteAndRead).unwrap(), 1 << 20);
}

#[test]
fn intervals_come_while_it_runs() {
    let Some(bench) = Bench::new() else { return };
    let cell = Cell { runtime: Duration::from_secs(2), ..Cell::new("randread", 1, 1) };
    let mut run = bench.start(&bench.job(cell, &["disk"]).file(bench.version), true);
    let (mut intervals, mut early) = (Intervals::default(), Vec::new());
    let finished = loop {
        if let Some(finished) = run.wait(Duration::from_millis(50)).unwrap() {
            break finished;
        }
        early.extend(intervals.feed(&run.partial().unwrap()));
    };
    assert!(finished.status.success(), "{}", finished.stderr);
    assert_eq!(finished.stderr, "");
    assert!(!early.is_empty(), "no interval before the end");
    let mut all = early;
    all.extend(intervals.feed(&run.partial().unwrap()));
    all.extend(intervals.finish());
    // What comes after the last second, if anything does, is an interval of its own here.
    let sums = |all: &[Interval]| {
        let elapsed: Duration = all.iter().map(|it| it.elapsed).sum();
        (all.iter().map(|it| it.operations).sum::<u64>(), elapsed)
    };
    assert_eq!(sums(&all), sums(&series(&finished.output)));
}

#[test]
fn a_run_that_is_dropped_leaves_no_process() {
    let Some(bench) = Bench::new() else { return };
    let cell = Cell { runtime: Duration::from_secs(600), ..Cell::new("randread", 2, 1) };
    let mut run = bench.start(&bench.job(cell, &["disk"]).file(bench.version), true);
    assert!(run.wait(Duration::from_millis(700)).unwrap().is_none(), "it ended by itself");
    let pid = run.pid();
    assert!(fs::exists(format!("/proc/{pid}")).unwrap());
    drop(run);
    assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
}
