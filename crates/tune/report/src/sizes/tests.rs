//! Block sizes as text, as rows and as a page, of runs that are made up: the most guests and disks that anybody compares too.

use load::Sample;
use plan::cell::Cell;
use plan::contender::{Iothreads, Subject};
use plan::testing::{cell, client};
use records::results::{DiskPart, Failure, Part, Run};
use records::testing::{header, host_cpu, run};

use super::*;
use crate::tests::findings;
use crate::{Findings, Report};

const QEMU: Contender = Contender::new(Subject::VmQemu, Iothreads::new(1));
const RINGLOOM: Contender = Contender::new(Subject::VmRingloom, Iothreads::AUTO);

/// What one disk of the host reaches: a latency for each request, and a limit that all share.
fn rate(bs: u32, disks: u16) -> f64 {
    1.0 / (1.0 / 200_000.0 + f64::from(bs) / 3.2e9) / f64::from(disks)
}

/// A run of so many guests with so many disks each: the first disk of the second guest has half.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some thousands")]
fn on(cell: Cell, contender: Contender, repeat: u16, (vms, disks): (u16, u16)) -> Run {
    let bs = cell.shape().block().get();
    let (share, cpus) = match contender {
        QEMU => (0.7, 7.5),
        RINGLOOM => (0.9, 6.0),
        _ => (1.0, 3.0),
    };
    let noise = 1.0 + f64::from(repeat) * 0.01;
    let sample = |place: usize| {
        let own = if place == usize::from(disks) { 0.5 } else { 1.0 };
        let operations = (rate(bs, vms * disks) * share * own * noise) as u64;
        let bytes = operations * u64::from(bs);
        let elapsed = std::time::Duration::from_secs(1);
        Sample { operations, bytes, elapsed, ..Sample::default() }
    };
    let samples: Vec<Sample> = (0..usize::from(vms * disks)).map(sample).collect();
    let mut run = run(cell, contender, repeat, samples.iter().map(|it| it.operations).sum());
    run.load = "fio-3.33 io_uring".to_owned();
    (run.key.variant.vms, run.key.variant.disks) = (vms, disks);
    run.disk_parts =
        samples.iter().enumerate().map(|(n, it)| DiskPart::new(n, disks, it)).collect();
    if contender.subject().is_vm() {
        let part = |(vm, own): (u16, &[Sample])| {
            let operations = own.iter().map(|it| it.operations).sum();
            let bytes = own.iter().map(|it| it.bytes).sum();
            Part::new(vm, &Sample { operations, bytes, ..own[0].clone() })
        };
        run.parts = (1..).zip(samples.chunks(disks.into())).map(part).collect();
    }
    run.cost.host = Some(host_cpu(cpus, 16));
    run
}

/// All block sizes with these contenders.
pub(crate) fn measured(contenders: &[Contender], of: (u16, u16), repeats: u16) -> Vec<Run> {
    let mut runs = Vec::new();
    for repeat in 0..repeats {
        for power in 9..=22 {
            let cell = cell("randread", 1 << power, 1, 16);
            runs.extend(contenders.iter().map(|it| on(cell, *it, repeat, of)));
        }
    }
    runs
}

pub(crate) const ALL: [Contender; 3] = [Contender::HOST, QEMU, RINGLOOM];

fn text(style: Style, line: &str, runs: &[Run]) -> String {
    Report::new(&findings(&header(line), runs)).text(style, "")
}

#[test]
fn each_block_size_is_a_line_and_each_contender_a_column() {
    let sizes = [512, 65_536].map(|bs| cell("randread", bs, 1, 16));
    let runs = (0..3).flat_map(|repeat| sizes.map(|it| ALL.map(|who| on(it, who, repeat, (2, 2)))));
    let runs: Vec<Run> = runs.flatten().collect();
    let text = text(Style::Plain, "sizes --seed 7 --subject host,vm:qemu,vm:ringloom", &runs);
    let expected = "\
a scratch file: 1G on ext4, O_DIRECT
4 cores, Test CPU, Linux 6.1.0 x86_64
daemon 1.0
3 repeats of 2 s after 1 s of ramp, seed 7

randread, 1 job × iodepth 16; 2 VMs, 2 disks: MB/s · IOPS
  size           host      vm:qemu 1  vm:ringloom auto
  512     87.7 · 171k    61.4 · 120k       78.9 · 154k
  64k   2,273 · 34.7k  1,591 · 24.3k     2,046 · 31.2k
  host: VMs were served unevenly, most so with blocks of 64k: 974 to 1,299 MB/s,
  Jain's index 0.980; VM 2 had least.
  host: disks were served unevenly, most so with blocks of 64k: 325 to 649 MB/s,
  Jain's index 0.942; VM 2 disk 1 had least.
  vm:qemu 1: VMs were served unevenly, most so with blocks of 512: 26.3 to 35.1
  MB/s, Jain's index 0.980; VM 2 had least.
  vm:qemu 1: disks were served unevenly, most so with blocks of 512: 8.8 to 17.5
  MB/s, Jain's index 0.942; VM 2 disk 1 had least.
  vm:ringloom auto: VMs were served unevenly, most so with blocks of 512: 33.8 to
  45.1 MB/s, Jain's index 0.980; VM 2 had least.
  vm:ringloom auto: disks were served unevenly, most so with blocks of 512: 11.3
  to 22.5 MB/s, Jain's index 0.942; VM 2 disk 1 had least.

randread, 1 job × iodepth 16; 2 VMs, 2 disks: relative to the host
  size     vm:qemu 1  vm:ringloom auto
  512   70 % (70–70)      90 % (90–90)
  64k   70 % (70–70)      90 % (90–90)

randread, 1 job × iodepth 16; 2 VMs, 2 disks: relative to vm:qemu 1
  size  vm:ringloom auto
  512    129 % (129–129)
  64k    129 % (129–129)

randread, 1 job × iodepth 16; 2 VMs, 2 disks: CPU µs per request · CPUs in use
  size           host      vm:qemu 1  vm:ringloom auto
  512   10.0 · 3.0/16  10.0 · 7.5/16     10.0 · 6.0/16
  64k   10.0 · 3.0/16  10.0 · 7.5/16     10.0 · 6.0/16

randread, 1 job × iodepth 16; 2 VMs, 2 disks: MB/s of each VM · Jain's index
  size               host          vm:qemu 1   vm:ringloom auto
  512   37.6–50.1 · 0.980  26.3–35.1 · 0.980  33.8–45.1 · 0.980
  64k   974–1,299 · 0.980    682–909 · 0.980  877–1,169 · 0.980

randread, 1 job × iodepth 16; 2 VMs, 2 disks: MB/s of each disk · Jain's index
  size               host         vm:qemu 1   vm:ringloom auto
  512   12.5–25.1 · 0.942  8.8–17.5 · 0.942  11.3–22.5 · 0.942
  64k     325–649 · 0.942   227–455 · 0.942    292–584 · 0.942

MB/s: 10^6 bytes per second of all guests and disks together; IOPS likewise;
  medians of the repeats.
Ratios: of IOPS within a repeat, median; in brackets where the true median is in
  95 % of cases, or the lowest and highest of fewer than six repeats.
CPU: µs of CPU time per request of what serves the disks (host: of the load).
  CPUs: in use on the host, and how many there are.
Jain's index: how evenly guests, or disks, that ran at once were served, (Σx)² /
  (n Σx²) of their throughputs x: 1 if all had the same, 1/n if one of n had all.
  It is formed in each repeat, as are the least and the most; medians.

host reaches 2,273 MB/s with blocks of 64k, 171k IOPS with blocks of 512.
vm:qemu 1 reaches 1,591 MB/s with blocks of 64k, 120k IOPS with blocks of 512;
  70 % of the host.
vm:ringloom auto reaches 2,046 MB/s with blocks of 64k, 154k IOPS with blocks of
  512; 90 % of the host; 129 % of vm:qemu 1.
";
    assert_eq!(text, expected);
}

#[test]
fn ten_guests_with_nine_disks_are_one_report() {
    let runs = measured(&ALL, (10, 9), 6);
    let text = text(Style::Markdown, "sizes --subject host,vm:qemu,vm:ringloom", &runs);
    for part in [
        "\n## randread, 1 job × iodepth 16; 10 VMs, 9 disks: MB/s · IOPS\n",
        "\n| size | host | vm:qemu 1 | vm:ringloom auto |\n",
        "Jain's index 0.997; VM 2 disk 1 had least.",
        "\n## In short\n",
    ] {
        assert!(text.contains(part), "{part}\nis missing in\n{text}");
    }
    for absent in ["best:", "n90", "Use ", "No numbers of iothreads"] {
        assert!(!text.contains(absent), "{absent} in\n{text}");
    }
}

#[test]
fn rows_have_the_shares_of_guests_and_disks() {
    let runs = measured(&ALL, (2, 2), 6);
    let header = header("sizes");
    let findings = findings(&header, &runs);
    let report = Report::new(&findings);
    let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(json["answers"].as_array().unwrap().len(), 0);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 14 * 3);
    let row = rows.iter().find(|row| row["bs"] == 4096 && row["subject"] == "vm:ringloom").unwrap();
    for (name, low, high) in [
        ("to_first", 1.2, 1.3),
        ("to_first_low", 1.2, 1.3),
        ("to_host", 0.85, 0.95),
        ("vm_fairness", 0.9, 1.0),
        ("disk_fairness", 0.9, 1.0),
    ] {
        let value = row[name].as_f64().unwrap();
        assert!((low..high).contains(&value), "{name} {value}");
    }
    assert!(row["disk_least"].as_f64().unwrap() < row["disk_most"].as_f64().unwrap());
    assert!(rows[0]["vm_least"].is_number(), "of the host by its files: {}", rows[0]);
    assert!(rows.iter().all(|row| row["best"] == false && row["n90"] == false));
}

#[test]
fn a_block_size_of_which_all_runs_failed_is_told() {
    let mut runs = measured(&[Contender::HOST, client(1)], (1, 1), 3);
    let key = runs.remove(0).key;
    let is_lost = |run: &Run| run.key.cell == key.cell;
    let lost = Failure::new(key.clone(), &anyhow::anyhow!("no sectors of 512"));
    let half = Failure::new(runs[5].key.clone(), &anyhow::anyhow!("it hangs"));
    runs.retain(|run| !is_lost(run));
    let (header, failures) = (header("sizes"), [lost, half]);
    let findings = Findings { failures: &failures, ..findings(&header, &runs) };
    let text = Report::new(&findings).text(Style::Plain, "");
    assert_eq!(text.matches("nothing was measured").count(), 1, "{text}");
    assert!(text.contains("\n  1k    "), "{text}");
}

#[test]
fn several_operations_have_tables_of_their_own() {
    let mut runs = measured(&[Contender::HOST], (1, 1), 3);
    runs.push(run(cell("write", 4096, 1, 16), Contender::HOST, 0, 5));
    let text = text(Style::Plain, "sizes", &runs);
    assert!(text.contains("\nwrite, 1 job × iodepth 16: MB/s · IOPS\n"), "{text}");
    let end = "write, 1 job × iodepth 16: host reaches 0.0 MB/s with blocks of 4k, 5 IOPS with blocks of 4k.";
    assert!(text.replace("\n  ", " ").contains(end), "{text}");
}
