//! What a user may expect of `ringloom tune`.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Bed, QEMU_STORAGE_DAEMON, Ran};

const QUICK: &str = "--daemon /usr/bin/qemu-storage-daemon --iothreads none,1 --jobs 1 --repeats 2 \
                     --runtime 0.1 --ramp 0.05 --seed 5 --iodepth 4";

#[test]
fn a_scratch_file_is_measured_reported_and_removed() {
    let Some(bed) = Bed::with_qemu() else { return };
    let ran = bed.run(&format!("{QUICK} --size 16M --op randread,80/20,write --bs 4k"));
    let ran = ran.expect_success();
    assert!(
        ran.stderr.contains("18 runs (3 cells, 2 repeats), after filling 16M"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains(" 18/18  "), "{}", ran.stderr);
    for part in
        ["80/20 4k, 1 job × iodepth 4", "  host ", "  client none ", "n90: ", "ringloom serve PATH"]
    {
        assert!(ran.stdout.contains(part), "'{part}' is missing in: {}", ran.stdout);
    }
    assert!(bed.scratch_files().is_empty());
    let markdown = std::fs::read_to_string(bed.path().join("ringloom-report/report.md")).unwrap();
    assert!(markdown.contains("## Recommendation"), "{markdown}");
    let lines = bed.results("ringloom-report");
    assert_eq!(lines.len(), 19);
    assert_eq!(lines[0]["settings"]["seed"], 5);
    for run in &lines[1..] {
        assert!(run["operations"].as_u64().unwrap() > 0, "{run}");
        let latencies = run["latency_ns"].as_array().unwrap();
        let counted: u64 = latencies.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
        assert_eq!(run["operations"], counted, "{run}");
        assert_eq!(run["bytes"], counted * 4096, "{run}");
        let elapsed = run["elapsed_ns"].as_u64().unwrap();
        assert!((100_000_000..400_000_000).contains(&elapsed), "the ramp is not in {elapsed}");
    }
}

#[test]
fn a_disk_of_the_user_is_only_read() {
    let Some(bed) = Bed::with_qemu() else { return };
    let disk = bed.disk(8);
    let ran = bed.run(&format!("{QUICK} --op randread,randwrite,50/50 --bs 4k {}", disk.display()));
    let ran = ran.expect_success();
    assert!(ran.stderr.contains("Skipped: randwrite 4k jobs=1 iodepth=4"), "{}", ran.stderr);
    assert!(ran.stdout.contains("50/50 4k jobs=1 iodepth=4"), "{}", ran.stdout);
    assert!(ran.stdout.contains(&format!("ringloom serve {}", disk.display())), "{}", ran.stdout);
    assert_eq!(std::fs::read(&disk).unwrap(), vec![0x5a; 8 << 20]);
}

#[test]
fn a_disk_is_overwritten_only_when_asked() {
    let Some(bed) = Bed::with_qemu() else { return };
    let disk = bed.disk(4);
    let options = format!("{QUICK} --op write --bs 64k --destructive {}", disk.display());
    bed.run(&options).expect_success();
    let data = std::fs::read(&disk).unwrap();
    assert_eq!(data.len(), 4 << 20);
    assert!(data.chunks(64 << 10).all(|block| block[..512] != [0x5a; 512]), "a block is untouched");
}

#[test]
fn an_interrupt_leaves_the_results_and_nothing_else() {
    let Some(bed) = Bed::with_qemu() else { return };
    let options =
        QUICK.replace("--runtime 0.1", "--runtime 1") + " --size 16M --op randread --bs 4k";
    let child = bed.start(&options);
    let results = bed.path().join("ringloom-report/results.jsonl");
    let two_runs = || {
        let text = std::fs::read_to_string(&results).unwrap_or_default();
        text.lines().count() >= 3
    };
    wait_until(&two_runs);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(ran.stderr.contains("--resume"), "{}", ran.stderr);
    assert!(bed.scratch_files().is_empty());
    let kept = bed.results("ringloom-report");

    let other = options.replace("--jobs 1", "--jobs 2") + " --resume";
    bed.run(&other).expect_refusal(&["--jobs is [2], was [1]"]);
    let resumed = bed.run(&format!("{options} --resume")).expect_success();
    assert!(
        resumed.stderr.contains(&format!("{} of 6 runs are done", kept.len() - 1)),
        "{resumed:?}"
    );
    let all = bed.results("ringloom-report");
    assert_eq!(all.len(), 7);
    assert_eq!(all[..kept.len()], kept);
}

#[expect(clippy::disallowed_methods, reason = "waits for another process, which sends no event")]
pub(crate) fn wait_until(condition: &dyn Fn() -> bool) {
    for _ in 0..3000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nothing happened for 30 s");
}

#[test]
fn a_second_tune_does_not_touch_the_first() {
    let Some(bed) = Bed::with_qemu() else { return };
    let once = QUICK.replace("--repeats 2", "--repeats 1");
    let options = format!("{once} --size 4M --subject host --op read --bs 4k");
    for directory in ["ringloom-report", "ringloom-report-2"] {
        bed.run(&options).expect_success();
        assert_eq!(bed.results(directory).len(), 2);
    }
    bed.run(&format!("{options} --out ringloom-report")).expect_refusal(&["--resume", "--out"]);
}

#[test]
fn a_daemon_that_dies_is_quoted() {
    let Some(bed) = Bed::with_qemu() else { return };
    // qemu-storage-daemon knows no list of iothreads: it refuses and ends.
    let options = "--daemon /usr/bin/qemu-storage-daemon --iothreads 2 --jobs 2 --size 4M \
                   --subject client --op read --bs 4k --runtime 0.1";
    let ran = bed.run(options);
    ran.expect_refusal(&["client 2: the daemon ended early", "daemon.log", "iothread"]);
    assert!(bed.scratch_files().is_empty());
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_written() {
    let bed = Bed::new();
    let daemon = "--daemon /bin/true";
    let here = bed.path().display();
    bed.run(&format!("{daemon} {here}")).expect_refusal(&["is a directory"]);
    bed.run(&format!("{daemon} {here}/no.img")).expect_refusal(&["no.img", "No such file"]);
    bed.run(&format!("{daemon} --size 900T")).expect_refusal(&["900T does not fit"]);
    bed.run(&format!("{daemon} --op rw")).expect_refusal(&["'rw'", "randread, randwrite"]);
    bed.run(&format!("{daemon} --resume")).expect_refusal(&["no ringloom-report to resume"]);
    bed.run("--daemon /no/daemon").expect_refusal(&["/no/daemon"]);
    let disk = bed.disk(4);
    let disk = disk.display();
    bed.run(&format!("{daemon} --op write {disk}")).expect_refusal(&["--destructive"]);
    let line = format!("{daemon} --bs 2M --jobs 4 --op read {disk}");
    bed.run(&line).expect_refusal(&["cell read 2M jobs=4", "too small"]);
    assert_eq!(std::fs::read_dir(bed.path()).unwrap().count(), 1, "only the disk is there");
}

#[test]
fn a_file_nobody_may_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let bed = Bed::new();
    let disk = bed.disk(2);
    std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(&disk).is_ok() {
        return; // Root may read everything.
    }
    let line = format!("--daemon {QEMU_STORAGE_DAEMON} {}", disk.display());
    bed.run(&line).expect_refusal(&["open for reading", "Permission denied"]);
}

/// The form of vdbench. Digits and the day differ from run to run, the columns do not.
#[test]
fn every_second_has_a_line_if_asked() {
    let bed = Bed::new();
    let options = "--daemon /bin/true --subject host --load own --size 4M --op 70/30 --bs 4k --jobs 1 --repeats 1 \
                   --runtime 3 --ramp 0 --interval --seed 1";
    let ran = bed.run(options);
    if ran.stderr.contains("forbids io_uring") {
        return skip("this host forbids io_uring");
    }
    let ran = ran.expect_success();
    let name = "70/30 4k jobs=1 iodepth=16, host";
    let from = ran.stderr.find(&format!("\n{name}\n")).unwrap();
    let lines: Vec<&str> = ran.stderr[from..].trim().lines().collect();
    let [_, titles, units, seconds @ .., average, end] = &lines[..] else { panic!("{lines:?}") };
    let (day, titles) = titles.split_at(12);
    assert!(day.contains(", 20"), "{day}");
    assert_eq!(
        titles,
        " interval       i/o   MB/sec   bytes   read     resp     resp    resp  queue  cpu%  cpu%"
    );
    assert_eq!(
        *units,
        "                           rate  1024**2     i/o    pct     time      max  stddev  depth sys+u   sys"
    );
    assert_eq!(seconds.len(), 3, "{seconds:?}");
    for (number, line) in ["1", "2", "3", "avg_2-3"].iter().zip(seconds.iter().chain([average])) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words.len(), &words[1]), (12, number), "{line}");
        assert_eq!(line.len(), units.len(), "{line}");
        let [rate, read, depth] =
            [2, 5, 9].map(|column: usize| words[column].parse::<f64>().unwrap());
        assert_eq!(words[4], "4096", "{line}");
        assert!(
            rate > 0.0 && (60.0..80.0).contains(&read) && (8.0..17.0).contains(&depth),
            "{line}"
        );
    }
    assert!(end.starts_with(&format!("  1/1  {name}: ")), "{end}");
    let run = &bed.results("ringloom-report")[1];
    let per_second = run["per_second"].as_array().unwrap();
    let sum: u64 = per_second.iter().map(|it| it[1].as_u64().unwrap()).sum();
    assert_eq!((per_second.len(), run["operations"].as_u64()), (3, Some(sum)));
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
pub(crate) fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
}
