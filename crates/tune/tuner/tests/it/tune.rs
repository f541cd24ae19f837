//! What a user may expect of `ringloom tune`.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Bed, QEMU_STORAGE_DAEMON, Ran};

const QUICK: &str = "--daemon /usr/bin/qemu-storage-daemon --iothreads none,1 --jobs 1 --repeats 2 \
                     --runtime 0.1 --ramp 0.05 --seed 5 --iodepth 4";
/// Whatever guests this machine can run.
const BOTH: &str = "--subject client,host";

#[test]
fn a_scratch_file_is_measured_reported_and_removed() {
    let Some(bed) = Bed::with_qemu() else { return };
    // Others on the CPUs may let a run of 0.1 s pass without a request.
    let quick = QUICK.replace("--runtime 0.1", "--runtime 0.5");
    let ran = bed.run(&format!("{quick} {BOTH} --size 16M --op randread,80/20,write --bs 4k"));
    let ran = ran.expect_success();
    assert!(
        ran.stderr.contains("18 runs (3 cells, 2 repeats), after filling 16M"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains(" 18/18  "), "{}", ran.stderr);
    let file = |name: &str| {
        std::fs::read_to_string(bed.path().join("ringloom-report").join(name)).unwrap()
    };
    assert_eq!(file("report.html").matches("<section class=\"cell\"").count(), 3);
    // Of three cells: the host, none and the counts; CSV has the names of the columns before them.
    assert_eq!(file("report.csv").lines().count(), file("report.jsonl").lines().count() + 1);
    assert_eq!(file("report.jsonl").lines().count() % 3, 0);
    for part in [
        "80/20 4k, 1 job × iodepth 4",
        "  host ",
        "  client none ",
        "n90: ",
        "cannot tell how many",
    ] {
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
        // The load counts in what a request takes, of a client too.
        let groups = run["cost"]["groups"].as_array().unwrap();
        let load = groups.iter().find(|it| it["name"] == "load").expect("the load is metered");
        let threads = load["threads"].as_array().unwrap();
        assert!(threads.iter().any(|it| it["role"] == "worker"), "{run}");
        let elapsed = run["elapsed_ns"].as_u64().unwrap();
        assert!((500_000_000..800_000_000).contains(&elapsed), "the ramp is not in {elapsed}");
    }
}

#[test]
fn a_dry_run_tells_the_time_and_leaves_nothing() {
    let Some(bed) = Bed::with_qemu() else { return };
    let ran = bed.run(&format!("{QUICK} {BOTH} --size 16M --op randread --bs 4k --dry-run"));
    let ran = ran.expect_success();
    let told = "6 runs (1 cell, 2 repeats), after filling 16M";
    assert!(ran.stderr.contains(told) && !ran.stdout.contains("best"), "{}", ran.stderr);
    assert!(bed.scratch_files().is_empty() && !bed.path().join("ringloom-report").exists());
}

#[test]
fn a_search_measures_again_what_matters_and_keeps_to_its_time() {
    let Some(bed) = Bed::with_qemu() else { return };
    let options = QUICK.replace("--repeats 2", "--repeats 3-12 --budget 20s") + " " + BOTH;
    let ran = bed.run(&format!("{options} --size 16M --op randread --bs 4k")).expect_success();
    assert!(ran.stderr.contains("About 20 s: some "), "{}", ran.stderr);
    let lines = bed.results("ringloom-report");
    let started = |line: &serde_json::Value| line["started_unix_s"].as_u64().unwrap();
    let took = started(lines.last().unwrap()) - started(&lines[0]);
    assert!(took <= 21, "{took} s");
    let count = |purpose: &str| lines.iter().filter(|line| line["purpose"] == purpose).count();
    assert!(count("sweep") >= 3 && count("confirm") >= 9, "{lines:?}");
    assert!(lines[1..].iter().all(|run| run["windows"].as_array().unwrap().len() == 5));
    // The answer is the last, or that there is none.
    let end = ran.stdout.trim_end().lines().last().unwrap();
    let is_told = ran.stdout.contains("Your machine cannot tell");
    assert!(is_told != end.contains("ringloom serve PATH --socket"), "{}", ran.stdout);
    assert_eq!(is_told, !bed.path().join("ringloom-report/config/ringloom/qemu.args").exists());
    let options = options.replace("--budget 20s", "--budget 1s");
    let refused = bed.run(&format!("{options} --size 16M --out other"));
    refused.expect_refusal(&["--budget"]);
}

#[test]
fn a_disk_of_the_user_is_only_read() {
    let Some(bed) = Bed::with_qemu() else { return };
    let disk = bed.disk(8);
    let ran = bed
        .run(&format!("{QUICK} {BOTH} --op randread,randwrite,50/50 --bs 4k {}", disk.display()));
    let ran = ran.expect_success();
    assert!(ran.stderr.contains("Skipped: randwrite 4k jobs=1 iodepth=4"), "{}", ran.stderr);
    assert!(ran.stdout.contains("50/50 4k jobs=1 iodepth=4"), "{}", ran.stdout);
    assert_eq!(std::fs::read(&disk).unwrap(), vec![0x5a; 8 << 20]);
}

#[test]
fn a_disk_is_overwritten_only_when_asked() {
    let Some(bed) = Bed::with_qemu() else { return };
    let disk = bed.disk(4);
    let options = format!("{QUICK} {BOTH} --op write --bs 64k --destructive {}", disk.display());
    bed.run(&options).expect_success();
    let data = std::fs::read(&disk).unwrap();
    assert_eq!(data.len(), 4 << 20);
    assert!(data.chunks(64 << 10).all(|block| block[..512] != [0x5a; 512]), "a block is untouched");
}

#[test]
fn an_interrupt_leaves_the_results_and_nothing_else() {
    let Some(bed) = Bed::with_qemu() else { return };
    let options = QUICK.replace("--runtime 0.1", "--runtime 1")
        + " --subject client,host --size 16M --op randread --bs 4k";
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
    let refused = bed.run(&other);
    refused.expect_refusal(&["--jobs is [2], was [1]"]);
    assert!(!refused.stderr.contains("About "), "{}", refused.stderr);
    let resumed = bed.run(&format!("{options} --resume")).expect_success();
    assert!(
        resumed.stderr.contains(&format!("{} runs done already", kept.len() - 1)),
        "{resumed:?}"
    );
    let left = 7 - kept.len();
    let told = format!(": {left} {} left (", if left == 1 { "run" } else { "runs" });
    assert!(resumed.stderr.contains(&told), "{told}: {}", resumed.stderr);
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
fn another_machine_is_told_before_anything_is_filled() {
    let Some(bed) = Bed::with_qemu() else { return };
    let options = format!("{QUICK} --size 16M --subject client --op randread --bs 4k");
    bed.run(&options).expect_success();
    let results = bed.path().join("ringloom-report/results.jsonl");
    let text = std::fs::read_to_string(&results).unwrap();
    let kernel = |line: &serde_json::Value| line["environment"]["kernel"]["release"].clone();
    let here = kernel(&bed.results("ringloom-report")[0]);
    let there = format!("\"release\":{here}");
    assert!(text.contains(&there), "{text}");
    std::fs::write(&results, text.replace(&there, "\"release\":\"2.6.32\"")).unwrap();
    let refused = bed.run(&format!("{options} --resume"));
    refused.expect_refusal(&["cannot resume ringloom-report", "kernel is", "was 2.6.32"]);
    assert!(!refused.stderr.contains("About "), "{}", refused.stderr);
    std::fs::write(&results, text).unwrap();
    let larger = bed.run(&format!("{} --resume", options.replace("--size 16M", "--size 32M")));
    larger.expect_refusal(&["size of the disk is 33554432, was 16777216"]);
    assert!(!larger.stderr.contains("About "), "{}", larger.stderr);
    bed.run(&format!("{options} --resume")).expect_success();
}

#[test]
fn a_command_that_is_done_writes_its_report_again_and_no_scratch_file() {
    let Some(bed) = Bed::with_qemu() else { return };
    let options = format!("{QUICK} --size 16M --subject client --op randread --bs 4k");
    let first = bed.run(&options).expect_success();
    let out = bed.path().join("ringloom-report");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    let (report, results) = (read("report.md"), read("results.jsonl"));
    std::fs::remove_file(out.join("report.md")).unwrap();
    // Whatever is made in it, even if it goes again, changes its time.
    let touched = || std::fs::metadata(bed.path()).unwrap().modified().unwrap();
    let before = touched();
    let again = bed.run(&format!("{options} --resume")).expect_success();
    assert_eq!(touched(), before, "{}", again.stderr);
    assert!(again.stderr.contains("Nothing is left to be measured."), "{}", again.stderr);
    assert!(!again.stderr.contains("About "), "{}", again.stderr);
    assert_eq!((read("report.md"), read("results.jsonl")), (report, results));
    assert_eq!(again.stdout, first.stdout);
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
fn two_at_once_do_not_share_a_directory() {
    if load::host::available().is_err() {
        return skip("this host forbids io_uring");
    }
    let bed = Bed::new();
    let options = "--daemon /bin/true --subject host --load own --size 4M --op read --bs 4k --jobs 1 --iodepth 4 \
                   --seed 1 --repeats 1 --ramp 0 --runtime";
    let first = bed.start(&format!("{options} 600"));
    let results = bed.path().join("ringloom-report/results.jsonl");
    wait_until(&|| results.exists());
    bed.run(&format!("{options} 0.1")).expect_success();
    wait_until(&|| std::fs::metadata(&results).is_ok_and(|file| file.len() > 0));
    let resumed = bed.run(&format!("{options} 600 --resume --out ringloom-report"));
    resumed.expect_refusal(&["ringloom-report/results.jsonl: another ringloom tune is writing it"]);
    kill_process(Pid::from_child(&first), Signal::INT).unwrap();
    assert_eq!(Ran::from(first.wait_with_output().unwrap()).code, Some(130));
    let lines = bed.results("ringloom-report").len() + bed.results("ringloom-report-2").len();
    assert_eq!(lines, 3, "two headers and one run");
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

/// Serves as qemu-storage-daemon does, and crashes when it is told to end.
const CRASHES_AT_ITS_END: &str = r#"#!/bin/sh
[ "$1" = serve ] && shift
[ "$1" = --version ] && exec /usr/bin/qemu-storage-daemon --version
/usr/bin/qemu-storage-daemon "$@" &
daemon=$!
trap 'kill $daemon; wait $daemon; kill -SEGV $$' TERM
wait $daemon
"#;

const TWO_RUNS: &str = "--iothreads none --jobs 1 --repeats 2 --runtime 0.1 --ramp 0.05 --iodepth 4 \
                        --size 4M --subject client --op read --bs 4k";

#[test]
fn runs_count_though_the_peer_crashes_when_they_are_over() {
    let Some(bed) = Bed::with_qemu() else { return };
    let daemon = bed.program("qemu-storage-daemon", CRASHES_AT_ITS_END);
    let ran = bed.run(&format!("--daemon {} {TWO_RUNS}", daemon.display())).expect_success();
    let told = ran.stderr.matches("Note: qemu-storage-daemon crashed (signal: 11").count();
    assert_eq!(told, 2, "{}", ran.stderr);
    let runs = bed.results("ringloom-report");
    let crashes: Vec<String> = runs
        .iter()
        .filter(|line| line["kind"] == "run")
        .map(|line| line["crashes"].to_string())
        .collect();
    assert!(crashes.len() == 2 && crashes.iter().all(|it| it.starts_with("[\"signal: 11")));
    let told = ran.stdout.replace("\n  ", " ");
    let warning = "Warning: qemu-storage-daemon crashed 2 times (signal: 11";
    assert!(told.contains(warning), "{told}");
    for file in ["report.md", "report.html"] {
        let text = std::fs::read_to_string(bed.path().join("ringloom-report").join(file)).unwrap();
        assert!(text.contains(warning), "{file}");
    }
    assert!(bed.scratch_files().is_empty());
}

#[test]
fn a_run_fails_if_ringloom_crashes_when_it_is_over() {
    let Some(bed) = Bed::with_qemu() else { return };
    let daemon = bed.program("ringloom", CRASHES_AT_ITS_END);
    let ran = bed.run(&format!("--daemon {} {TWO_RUNS}", daemon.display()));
    ran.expect_refusal(&["client none: the daemon ended with signal: 11", "after SIGTERM"]);
}

#[test]
fn a_run_fails_if_the_peer_crashes_in_it() {
    let Some(bed) = Bed::with_qemu() else { return };
    let script = "#!/bin/sh\n[ \"$1\" = --version ] || echo $$ > daemon.pid\nexec /usr/bin/qemu-storage-daemon \"$@\"\n";
    let daemon = bed.program("qemu-storage-daemon", script);
    let options =
        TWO_RUNS.replace("--runtime 0.1", "--runtime 60").replace("--repeats 2", "--repeats 1");
    let child = bed.start(&format!("--daemon {} {options}", daemon.display()));
    let pid = || {
        let text = std::fs::read_to_string(bed.path().join("daemon.pid")).ok()?;
        Pid::from_raw(text.trim_end().parse().ok()?)
    };
    // It has served for a while once it has used some time of a CPU, which is counted in hundredths of a second.
    let serves = || {
        let Some(pid) = pid() else { return false };
        let path = format!("/proc/{}/stat", pid.as_raw_nonzero());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let times = text.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        times.filter_map(|it| it.parse::<u32>().ok()).sum::<u32>() >= 20
    };
    wait_until(&serves);
    kill_process(pid().unwrap(), Signal::SEGV).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    ran.expect_refusal(&["client none: the daemon ended early (signal: 11"]);
    let lines = bed.results("ringloom-report");
    assert!(lines.iter().all(|line| line["kind"] != "run"), "{lines:?}");
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
    bed.run("--daemon /no/daemon --out a/b").expect_refusal(&["/no/daemon"]);
    let disk = bed.disk(4);
    let disk = disk.display();
    bed.run(&format!("{daemon} --op write {disk}")).expect_refusal(&["--destructive"]);
    bed.run(&format!("{daemon} --out {disk}")).expect_refusal(&["disk.img: it is no directory"]);
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
        "                           rate  1000**2     i/o    pct     time      max  stddev  depth sys+u   sys"
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
