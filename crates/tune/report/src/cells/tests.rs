//! Tables of guests: several at once, emulated, and too wide for a terminal.

use findings::summary::{CellSummary, Verdict, summarise};
use plan::contender::{Contender, Subject};
use plan::runs::Purpose;
use plan::testing::cell;
use plan::variant::Variant;
use records::meter::{GroupName, Role, ThreadCost};
use records::results::{Part, Run};
use records::testing::{header, run};

use super::*;

/// Two guests, of which the first got two thirds of the requests.
fn two_guests(repeat: u16, operations: u64) -> Run {
    let contender = Contender::new(Subject::VmRingloom, Iothreads::new(2));
    let mut run = run(cell("randread", 4096, 2, 16), contender, repeat, operations);
    (run.queues, run.emulated, run.key.variant.vms) = (2, true, 2);
    let part = |vm: u16, operations: u64, latency| Part {
        vm,
        operations,
        bytes: operations * 4096,
        elapsed_ns: 1_000_000_000,
        latency_ns: vec![(latency, operations)],
        node: None,
    };
    let first = operations / 3 * 2;
    run.parts = vec![part(1, first, 50_000), part(2, operations - first, 1_500_000)];
    let vcpu = ThreadCost {
        name: "CPU 0/TCG".to_owned(),
        role: Role::Vcpu,
        cpu_ns: operations * 8_000,
        voluntary: operations,
        involuntary: 0,
    };
    let group = &mut run.cost.groups[0];
    (group.name, group.threads, group.voluntary) = (GroupName::Qemu, vec![vcpu], operations * 3);
    run
}

fn text(style: Style, runs: &[Run]) -> String {
    render(style, &header("--repeats 3"), &summarise(runs, 2))
}

#[test]
fn guests_that_ran_at_once_have_a_line_each() {
    let runs: Vec<_> =
        [(0, 30_000), (1, 33_000), (2, 36_000)].map(|(r, n)| two_guests(r, n)).into();
    let expected = "
randread 4k, 2 jobs × iodepth 16; 2 VMs
  subject           IOPS       interval  MB/s  p50    p99  p99.9  CPU   ctx  CPUs  gain  /host
  vm:ringloom 2 †  33.0k  (30.0k–36.0k)   135  100    100    100  2.0  2.00     –     –      –
    VM 1           22.0k                 90.1          50
    VM 2           11.0k                 45.1       1,507
  best: 2, n90: 2

IOPS: median of the repeats; interval: contains the true median in 95 % of
  cases, or in brackets the lowest and highest of fewer than six repeats.
p50 to p99.9: latency in µs.
CPU: µs of CPU time per request, of the daemon and QEMU without its guests' CPUs
  (host: of the load).
ctx: context switches per request, of the same. CPUs: in use on the host, and
  how many there are.
gain: IOPS over none; /host: IOPS relative to the bare file; both within a
  repeat, median.
n90: fewest iothreads that reach 90 % of the best; in brackets what it is in
  95 % of resamplings, if that varies.
Queues of each disk: vm:ringloom 2.
† emulated, not comparable with the host.
";
    assert_eq!(text(Style::Plain, &runs), expected);
}

#[test]
fn spare_columns_are_left_out_where_the_terminal_is_too_narrow() {
    let mut runs = vec![two_guests(0, 30_000)];
    let narrow = text(Style::Plain, &runs);
    assert!(narrow.contains("   ctx  CPUs  ") && narrow.contains("\nctx: "), "{narrow}");
    runs[0].latency_ns = vec![(1_234_567_890, 10)];
    let fewer = text(Style::Plain, &runs);
    assert!(!fewer.contains("ctx") && !fewer.contains("  CPUs"), "{fewer}");
    assert!(fewer.lines().all(|line| line.chars().count() <= TABLE_WIDTH), "{fewer}");
    let markdown = text(Style::Markdown, &runs);
    assert!(markdown.contains("| ctx | CPUs |"), "{markdown}");
}

#[test]
fn marks_and_the_spread_of_n90_are_explained() {
    let mut runs = Vec::new();
    for (repeat, two) in (0..).zip([89_000, 92_000, 88_000, 93_000, 89_500, 91_000]) {
        for (count, iops) in [(1, 50_000), (2, two), (4, 100_000)] {
            let contender = Contender::new(Subject::VmRingloom, Iothreads::new(count));
            let mut run = run(cell("randread", 4096, 2, 16), contender, repeat, iops);
            run.key.purpose = Purpose::Confirm;
            run.windows = [10, 10, 10, 10, 30].map(|operations| (1000, operations)).into();
            runs.push(run);
        }
    }
    let contender = Contender::new(Subject::VmRingloom, Iothreads::new(8));
    runs.push(run(cell("randread", 4096, 2, 16), contender, 0, 80_000));
    let text = render(Style::Plain, &header(""), &summarise(&runs, 16));
    for part in [
        "\n  vm:ringloom 2 ~  90.2k    88.0k–93.0k ",
        "\n  vm:ringloom 8 °  80.0k  (80.0k–80.0k) ",
        "\n  best: 4, n90: 2 (2–4)",
        "\n~ not steady: ",
        "\n° only explored: ",
    ] {
        assert!(text.contains(part), "{part}\nis missing in\n{text}");
    }
}

#[test]
fn nothing_measured_has_no_legend() {
    assert_eq!(text(Style::Plain, &[]), "");
}

#[test]
fn what_is_best_and_enough_is_told_in_words() {
    let verdict = |spread: [u16; 2], stays: Option<u16>| Verdict {
        best: Iothreads::NONE,
        n90: Iothreads::NONE,
        n90_stays: stays.map(Iothreads::new),
        n90_spread: Some(spread.map(Iothreads::new).into()),
    };
    for (verdict, expected) in [
        (verdict([0, 0], Some(0)), "best: none, n90: none"),
        (verdict([0, 1], Some(2)), "best: none, n90: none (none–1); all from 2 on"),
        (verdict([0, 1], None), "best: none, n90: none (none–1); the highest is below 90 %"),
    ] {
        let verdicts = vec![(Subject::Client, verdict)];
        let cell = cell("randread", 4096, 2, 16);
        let (variant, rows) = (Variant::default(), Vec::new());
        let summary = CellSummary { variant, cell, rows, deeper: None, verdicts };
        assert_eq!(super::verdicts(&summary), [expected]);
    }
}
