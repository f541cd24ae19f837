//! Block sizes over several guests and disks: that their figures are those of the parts, and what is refused beforehand.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{
    OUT, Rig, TWO_CPUS, check_sound, contender, emulated, list, number, with_guest, with_rig,
};

fn sum(parts: &[Value], name: &str) -> Result<f64> {
    parts.iter().map(|part| number(part, name)).sum()
}

/// Each disk did something, and all of them what the run did.
fn check_disks(line: &Value) -> Result<()> {
    let disks = list(line, "disk_parts")?;
    let places: Vec<_> = disks.iter().map(|it| (it["vm"].as_u64(), it["disk"].as_u64())).collect();
    let expected = [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(vm, disk)| (Some(vm), Some(disk)));
    ensure!(places == expected, "{places:?}");
    ensure!(sum(disks, "operations")? == number(line, "operations")?, "{line}");
    ensure!(sum(disks, "bytes")? == number(line, "bytes")?, "{line}");
    for disk in disks {
        ensure!(number(disk, "operations")? > 0.0, "{line}");
    }
    Ok(())
}

fn check_files(rig: &Rig) -> Result<()> {
    let read = |name: &str| std::fs::read_to_string(rig.path(OUT).join(name));
    let (text, page, csv) = (rig.report()?, read("report.html")?, read("report.csv")?);
    for part in [
        "## randread, 1 job × iodepth 4; 2 VMs, 2 disks: MB/s · IOPS",
        "MB/s of each disk · Jain's index",
        "| size | vm:qemu 1 † | vm:ringloom auto † |",
    ] {
        ensure!(text.contains(part), "{part} is missing in: {text}");
    }
    ensure!(page.contains("Throughput by block size") && page.matches("role=\"img\"").count() == 1);
    let names = csv.lines().next().unwrap_or_default();
    ensure!(names.contains(",vm_fairness,") && names.contains(",disk_fairness,"), "{names}");
    Ok(())
}

/// About 40 s.
#[test]
fn block_sizes_are_measured_over_guests_and_disks() {
    with_guest(|rig| {
        let line = "sizes --subject vm:qemu,vm:ringloom,host --vms 2 --disks 2 --bs 4k,256k --iodepth 4 \
                    --size 16M --repeats 1 --runtime 1.5 --ramp 0.5 --sentinel 0 --seed 3";
        let ran = rig.measure(&format!("{line} {TWO_CPUS} {}", emulated()))?;
        let lines = rig.lines()?;
        check_sound(&lines)?;
        ensure!(lines.len() == 6, "{} lines", lines.len());
        for line in &lines {
            check_disks(line)?;
            let guests = if line["subject"] == "host" { 0 } else { 2 };
            ensure!(list(line, "parts")?.len() == guests, "{line}");
        }
        ensure!(ran.stdout.contains("vm:ringloom auto reaches "), "{}", ran.stdout);
        ensure!(!ran.stdout.contains("ringloom serve"), "there is no answer: {}", ran.stdout);
        check_files(rig)
    });
}

/// About 10 s.
#[test]
fn block_sizes_are_gone_on_with_and_reported_again() {
    with_rig(|rig| {
        let line = "sizes --subject client,host --bs 512,64k --size 16M --repeats 2 --runtime 0.2 --ramp 0 --seed 3";
        rig.measure(&format!("{line} --json"))?;
        let path = rig.path(OUT).join("results.jsonl");
        let text = std::fs::read_to_string(&path)?;
        let whole = rig.lines()?.len();
        let some: String = text.lines().take(4).map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, some)?;
        let ran = rig.measure(&format!("{line} --resume"))?;
        ensure!(ran.stderr.contains("3 runs done already"), "{}", ran.stderr);
        ensure!(rig.lines()?.len() == whole && whole == 8, "{whole} lines");
        ensure!(rig.lines()?.iter().any(|line| contender(line) == "client auto"));
        ensure!(ran.stdout.contains("% of the host."), "{}", ran.stdout);
        let ran =
            rig.run("sizes --subject host --vms 10 --disks 9 --size 16M --bs 4k --dry-run")?;
        ensure!(ran.stderr.contains("1440M of scratch files, 16M a disk"), "{}", ran.stderr);
        Ok(())
    });
}

#[test]
fn what_block_sizes_cannot_be_measured_with_is_refused() {
    with_rig(|rig| {
        for (line, words) in [
            ("--vms 16 --disks 16 --size 16T --bs 4k", "for 256 disks of 16T does not fit"),
            ("--size 1M", "too small for 1 jobs with blocks of 2097152 bytes"),
            ("--profile oltp", "tune sizes varies the block size"),
            ("--disks 2 --load own", "--load fio several"),
            (
                "--bs 16M --iodepth 16 --vms 16 --disks 16 --size 1G --load fio",
                "of memory, and this host has",
            ),
        ] {
            rig.refuse(&format!("sizes --subject host {line}"), &[words])?;
        }
        rig.check_nothing_left(&[])
    });
}
