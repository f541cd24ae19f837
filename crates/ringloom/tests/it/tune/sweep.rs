//! Sweeps from end to end: what each line of the results says, and that one guest serves many runs.

use std::collections::BTreeSet;
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{
    BRIEF, OUT, Rig, TWO_CPUS, check_sound, contender, emulated, list, names, number, text,
    with_guest, with_rig,
};

/// All that `--subject host,vm:qemu,vm:ringloom --iothreads none,1,2` measures.
const CONTENDERS: [&str; 7] = [
    "host",
    "vm:qemu 1",
    "vm:qemu 2",
    "vm:qemu none",
    "vm:ringloom 1",
    "vm:ringloom 2",
    "vm:ringloom none",
];

/// The threads with this role in a group of a run's cost.
fn threads(line: &Value, group: &str, role: &str) -> Result<Vec<Value>> {
    let groups = list(&line["cost"], "groups")?;
    let Some(group) = groups.iter().find(|it| it["name"] == group) else { return Ok(Vec::new()) };
    let threads = list(group, "threads")?.iter();
    Ok(threads.filter(|it| it["role"] == role).cloned().collect())
}

/// How many iothreads a line says were there; `none` is served by a thread of its own in ringloom.
fn iothreads(line: &Value) -> Result<usize> {
    match text(line, "iothreads")? {
        "none" => Ok(0),
        count => count.parse().context("a number of iothreads"),
    }
}

fn check_cost(line: &Value) -> Result<()> {
    let count = |group: &str, role: &str| threads(line, group, role).map(|found| found.len());
    match text(line, "subject")? {
        "host" => ensure!(count("load", "worker")? >= 2, "fio's two jobs: {line}"),
        "vm:qemu" => {
            ensure!(count("qemu", "vcpu")? == 1, "emulated CPUs share a thread: {line}");
            ensure!(count("qemu", "iothread")? == iothreads(line)?, "iothreads: {line}");
            ensure!(count("daemon", "iothread")? == 0, "there is no daemon: {line}");
        }
        _ => {
            ensure!(count("qemu", "vcpu")? == 1, "emulated CPUs share a thread: {line}");
            ensure!(count("daemon", "iothread")? == iothreads(line)?.max(1), "iothreads: {line}");
        }
    }
    let of = number(&line["cost"]["host"], "of")?;
    let used = number(&line["cost"]["host"], "cpus_in_use")?;
    ensure!(used > 0.0 && used <= of * 1.01, "{used} of {of} CPUs: {line}");
    Ok(())
}

/// Its seconds are all of the measured time. On a busy machine that is longer than asked for, and cut elsewhere.
fn check_seconds(line: &Value) -> Result<()> {
    let seconds = list(line, "per_second")?;
    let sum = |place: usize| seconds.iter().map(|it| it[place].as_f64()).sum::<Option<f64>>();
    let elapsed = number(line, "elapsed_ns")?;
    ensure!(elapsed >= 1.9e9, "{elapsed} of 2e9 ns: {line}");
    let (told, requests) = (sum(0).context("lengths")?, sum(1).context("requests")?);
    ensure!((told - elapsed).abs() <= 1e6, "{told} ns in {seconds:?}, {elapsed} ns in all");
    let operations = number(line, "operations")?;
    ensure!(requests == operations, "{requests} in {seconds:?}, {operations} in all");
    Ok(())
}

/// The job files of a run are there, and fio understands them.
fn check_job_files(rig: &Rig, line: &Value, count: usize) -> Result<()> {
    let files = list(line, "job_files")?;
    ensure!(files.len() == count, "{count} job files: {line}");
    for file in files {
        let path = rig.path(OUT).join(file.as_str().context("a name")?);
        let output =
            Command::new("fio").arg("--parse-only").arg(&path).output().context("run fio")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{}: {said}", path.display());
        // A job file that cannot be parsed is not always told by the status.
        ensure!(std::fs::read_to_string(&path)?.contains("rw="), "{}", path.display());
    }
    Ok(())
}

/// About 40 s.
#[test]
fn one_guest_is_measured_with_every_number_of_iothreads() {
    with_guest(|rig| {
        let line = "--subject host,vm:qemu,vm:ringloom --iothreads none,1,2 --op randread --bs 4k \
                    --size 64M --repeats 1 --runtime 2 --ramp 1 --seed 1";
        let ran = rig.measure(&format!("{line} {TWO_CPUS} {}", emulated()))?;
        let header = rig.header()?;
        ensure!(header["programs"]["accelerator"] == "tcg", "{header}");
        let lines = rig.lines()?;
        check_sound(&lines)?;
        let measured: BTreeSet<String> = lines.iter().map(contender).collect();
        ensure!(measured.iter().eq(CONTENDERS.iter()), "{measured:?}");
        ensure!(lines.len() == CONTENDERS.len(), "{} lines", lines.len());
        for line in &lines {
            let is_guest = line["subject"] != "host";
            ensure!(line["emulated"] == is_guest, "{line}");
            ensure!(number(line, "queues")? == if is_guest { 2.0 } else { 0.0 }, "{line}");
            ensure!(text(line, "load")?.starts_with("fio-"), "{line}");
            check_seconds(line)?;
            check_cost(line)?;
            check_job_files(rig, line, 1)?;
        }
        // A busy machine makes single runs longer, but not all of them by as much as the ramp.
        let elapsed = lines.iter().map(|line| number(line, "elapsed_ns"));
        let elapsed = elapsed.collect::<Result<Vec<_>>>()?;
        ensure!(elapsed.iter().any(|it| *it < 2.9e9), "{elapsed:?} ns: the ramp does not count");
        for report in [rig.report()?, ran.stdout] {
            ensure!(report.contains("emulated"), "{report}");
            ensure!(report.contains("vm:ringloom 2"), "{report}");
        }
        let logs = names(&rig.path(OUT).join("guests"))?;
        ensure!(logs.iter().all(|name| name.starts_with("guest-1-")), "one boot: {logs:?}");
        Ok(())
    });
}

/// About 2 s.
#[test]
fn auto_is_measured_beside_numbers_where_ringloom_serves() {
    with_rig(|rig| {
        let ran =
            rig.measure(&format!("{BRIEF} --subject client --iothreads none,auto --jobs 2"))?;
        let measured: BTreeSet<String> = rig.lines()?.iter().map(contender).collect();
        ensure!(measured.iter().eq(["client auto", "client none"]), "{measured:?}");
        ensure!(ran.stdout.contains("client auto"), "{}", ran.stdout);
        let log = std::fs::read_to_string(rig.path(OUT).join("daemon.log"))?;
        ensure!(log.contains("served by pool auto"), "{log}");
        Ok(())
    });
}

/// A disk of the user that is not whole chunks long. About 8 s.
#[test]
fn a_disk_is_written_until_it_is_steady_before_it_is_measured() {
    with_rig(|rig| {
        let disk = rig.path("disk");
        std::fs::write(&disk, vec![0_u8; (5 << 20) + 4096])?;
        let line = format!(
            "{} --op randread,randwrite --bs 4k --jobs 1 --iodepth 4 --repeats 1 --runtime 0.1 --ramp 0 --subject host \
             --precondition",
            disk.display()
        );
        rig.refuse(&line, &["--precondition writes over PATH: --destructive allows it"])?;
        let ran = rig.run(&format!("{line} --destructive"))?;
        ensure!(ran.status.code() == Some(0), "{ran:?}");
        let lines = rig.lines()?;
        let before = lines.iter().take_while(|line| line["purpose"] == "precondition").count();
        ensure!((5..=25).contains(&before) && lines.len() == before + 2, "{before} of {lines:?}");
        ensure!(lines[..before].iter().all(|line| line["op"] == "randwrite"), "{lines:?}");
        let told = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let expected = format!("settled after {before} runs");
        ensure!(told.contains(&expected), "{expected:?} is missing in: {}", ran.stdout);
        let data = std::fs::read(&disk)?;
        ensure!(data.len() == (5 << 20) + 4096, "{} bytes", data.len());
        // Everywhere, in its last block too; fio's data have some zeros.
        let zeros = |block: &[u8]| block.iter().filter(|byte| **byte == 0).count();
        let unwritten: Vec<usize> = (0..)
            .zip(data.chunks(4096))
            .filter(|(_, it)| zeros(it) > 2048)
            .map(|(at, _)| at)
            .collect();
        ensure!(unwritten.is_empty(), "blocks that were not written: {unwritten:?}");
        rig.refuse(
            &format!("{} --precondition --image qcow2", BRIEF),
            &["--precondition writes raw disks, not qcow2"],
        )
    });
}

/// Guests and disks at once, written to and verified. About 30 s.
#[test]
fn several_guests_and_disks_are_measured_at_once_and_verified() {
    with_guest(|rig| {
        let line = "--subject host,vm:qemu,vm:ringloom --iothreads none --vms 2 --disks 2 \
                    --op randwrite --bs 4k --size 4M --verify --jobs 1 --iodepth 4 --repeats 1 \
                    --runtime 1 --ramp 0.2 --seed 2";
        rig.measure(&format!("{line} {}", emulated()))?;
        let lines = rig.lines()?;
        ensure!(lines.len() == 3, "{} lines", lines.len());
        check_sound(&lines)?;
        for line in &lines {
            let (vms, disks) = (number(line, "vms")?, number(line, "disks")?);
            let verified = number(line, "verified_bytes")?;
            ensure!(verified == vms * disks * f64::from(4 << 20), "{verified} verified: {line}");
            let guests = if line["subject"] == "host" { 1.0 } else { vms };
            let parts = list(line, "parts")?;
            ensure!(parts.len() == if guests > 1.0 { 2 } else { 0 }, "parts: {line}");
            for field in ["operations", "bytes"] {
                let sum: f64 = parts.iter().map(|it| number(it, field)).sum::<Result<f64>>()?;
                let all = number(line, field)?;
                ensure!(parts.is_empty() || sum == all, "{field}: {sum} in the parts of {all}");
            }
            check_job_files(rig, line, if guests > 1.0 { 2 } else { 1 })?;
        }
        let logs = names(&rig.path(OUT).join("guests"))?;
        ensure!(logs.len() == 4, "two boots: {logs:?}");
        Ok(())
    });
}

/// A process that keeps a CPU busy; killed by its own id when dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Result<Self> {
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        Ok(Self(child.context("start a shell")?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // An error means that it has ended already, which is what is wanted.
        let _already_ended = self.0.kill();
        let _already_reaped = self.0.wait();
    }
}

#[test]
fn a_busy_host_is_told_and_recorded() {
    with_rig(|rig| {
        // Beyond the tenth of the CPUs from which on a host is busy.
        let count = std::thread::available_parallelism()?.get().div_ceil(5).max(2);
        let busy = (0..count).map(|_| Busy::start()).collect::<Result<Vec<_>>>()?;
        let ran = rig.measure(&format!("{BRIEF} --subject host --load fio"))?;
        drop(busy);
        ensure!(ran.stderr.contains("Warning: the host is busy"), "{}", ran.stderr);
        let before = &rig.header()?["load_before"];
        ensure!(number(before, "cpus_in_use")? > 0.5, "{before}");
        let users = list(before, "users")?;
        // Beside other tests three may be busier, and no more are named.
        let is_named = users.iter().any(|it| it["comm"] == "sh");
        ensure!(is_named || users.len() == 3, "{before}");
        ensure!(rig.report()?.contains("busy"), "{}", rig.report()?);
        Ok(())
    });
}
