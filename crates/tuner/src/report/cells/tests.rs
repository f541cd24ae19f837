//! Tables of guests: several at once, emulated, and too wide for a terminal.

use super::*;
use crate::cell::tests::cell;
use crate::contender::Contender;
use crate::meter::{GroupName, Role, ThreadCost};
use crate::results::tests::{header, run};
use crate::results::{Part, Run};
use crate::summary::summarise;

/// Two guests, of which the first got two thirds of the requests.
fn two_guests(repeat: u16, operations: u64) -> Run {
    let contender = Contender::VmRingloom { iothreads: Iothreads::new(2) };
    let mut run = run(cell("randread", 4096, 2, 16), contender, repeat, operations);
    (run.queues, run.emulated, run.key.variant.vms) = (2, true, 2);
    let part = |vm: u16, operations: u64, latency| Part {
        vm,
        operations,
        bytes: operations * 4096,
        elapsed_ns: 1_000_000_000,
        latency_ns: vec![(latency, operations)],
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
  subject           IOPS       spread  MB/s  p50    p99  p99.9  CPU   ctx  CPUs  gain  /host
  vm:ringloom 2 †  33.0k  30.0k–36.0k   135  100    100    100  2.0  2.00     –     –      –
    VM 1           22.0k               90.1          50
    VM 2           11.0k               45.1       1,507
  best: 2, n90: 2

IOPS: median of the repeats; spread: lowest and highest. p50 to p99.9: latency
  in µs.
CPU: µs of CPU time per request, of the daemon and QEMU without its guests' CPUs
  (host: of the load).
ctx: context switches per request, of the same. CPUs: in use on the host, and
  how many there are.
gain: IOPS over none; /host: IOPS relative to the bare file; both within a
  repeat, median.
n90: fewest iothreads that reach 90 % of the best.
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
fn nothing_measured_has_no_legend() {
    assert_eq!(text(Style::Plain, &[]), "");
}
