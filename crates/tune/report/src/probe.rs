//! The hysteresis probe: a table per contender, and whether it remembers the high load. Pure functions.

use findings::stats::Estimate;
use findings::summary::{Memory, Phase, Probe, REMEMBERS_FROM};
use plan::units::{counted, percent_gain};

use super::text::{
    cpus, microseconds, on, operation, or_missing, range, section, sections, short, who,
};
use super::{EMULATED, Style};
use crate::table::Table;

pub(super) const COLUMNS: [&str; 9] =
    ["load", "in flight", "IOPS", "spread", "mean", "p99", "Little", "off", "CPUs"];

/// The tables and what their words mean; nothing without a probe.
pub(super) fn render(style: Style, probes: &[Probe]) -> String {
    let shown = |probe: &Probe| {
        let table = Table::of(&COLUMNS, probe.phases.iter().map(line));
        section(style, &title(probe), &table, &[sentence(probe)])
    };
    sections(style, probes, shown, meanings)
}

/// What the words of the tables mean.
pub(super) fn meanings(probes: &[Probe]) -> Vec<String> {
    let mut lines = vec![
        "in flight: jobs × iodepth × disks × VMs. IOPS: median of the repeats; spread: lowest and \
         highest."
            .to_owned(),
        "mean, p99: latency in µs, of all repeats together.".to_owned(),
        "Little: IOPS by Little's law, requests in flight ÷ mean latency; off: how far the measured \
         IOPS are from it."
            .to_owned(),
        "CPUs: in use on the host, and how many there are.".to_owned(),
    ];
    if probes.iter().any(|probe| probe.emulated) {
        lines.push(format!("† {EMULATED}."));
    }
    lines
}

/// `vm:qemu 1: randread 4k, 48 → 480 → 48 jobs × iodepth 1`.
pub(super) fn title(probe: &Probe) -> String {
    let jobs = |phase: &Phase| phase.cell.shape().jobs().to_string();
    let jobs: Vec<String> = probe.phases.iter().map(jobs).collect();
    let who = who(probe.contender, probe.emulated);
    let shape = probe.phases.first().map(|phase| (phase.cell, phase.cell.shape().iodepth()));
    let place = shape.map_or_else(String::new, |(cell, iodepth)| {
        format!(": {}, {} jobs × iodepth {iodepth}", operation(cell), jobs.join(" → "))
    });
    on(format!("{who}{place}"), &probe.variant)
}

pub(super) fn phase_name(phase: &Phase) -> &'static str {
    match phase.step {
        0 => "low",
        1 => "high",
        _ => "low again",
    }
}

pub(super) fn line(phase: &Phase) -> Vec<String> {
    vec![
        phase_name(phase).to_owned(),
        phase.in_flight.to_string(),
        short(phase.iops.median),
        range(phase.iops),
        microseconds(phase.mean),
        microseconds(phase.p99),
        or_missing(phase.little.map(short)),
        or_missing(phase.to_little.map(percent_gain)),
        cpus(phase.cpus),
    ]
}

pub(super) fn sentence(probe: &Probe) -> String {
    let times = |ratio: f64| format!("the second low is {ratio:.2} × the first");
    let over = |Estimate { median, lowest, highest, .. }: Estimate| {
        format!("{} (spread {lowest:.2}–{highest:.2})", times(median))
    };
    match probe.memory {
        Memory::Unknown => "no repeat has both lows, so nothing can be said".to_owned(),
        Memory::Once(ratio) => {
            format!(
                "{}; {} does not show how much of that is noise",
                times(ratio),
                counted(1, "repeat")
            )
        }
        Memory::InsideSpread(spread) => {
            format!("{}, within the spread of the repeats: no hysteresis seen", over(spread))
        }
        Memory::Small(spread) => {
            let limit = REMEMBERS_FROM * 100.0;
            format!("{}, less than {limit:.0} % apart: no hysteresis seen", over(spread))
        }
        Memory::MayRemember(spread, repeats) => format!(
            "{}: it may remember, but {} cannot rule out noise",
            over(spread),
            counted(repeats, "repeat")
        ),
        Memory::Remembers(spread) => format!("{}: it remembers", over(spread)),
    }
}

#[cfg(test)]
mod tests {
    use findings::summary::probes;
    use plan::contender::{Contender, Iothreads, Subject};
    use plan::testing::client;
    use records::testing::host_cpu;
    use records::testing::probe_runs;

    use super::*;

    #[test]
    fn a_probe_is_a_table_and_a_sentence() {
        let qemu = Contender::new(Subject::VmQemu, Iothreads::new(1));
        let mut runs = Vec::new();
        for (repeat, again) in [(0, 76_000), (1, 84_000), (2, 92_000)] {
            runs.extend(probe_runs(qemu, repeat, [40_000, 100_000, again]));
            runs.extend(probe_runs(
                client(0),
                repeat,
                [40_000, 380_000, 39_500 + u64::from(repeat) * 500],
            ));
        }
        for run in &mut runs {
            run.emulated = run.key.contender == qemu;
            run.cost.host = Some(host_cpu(1.5, 2));
        }
        let expected = "
vm:qemu 1 †: randread 4k, 4 → 40 → 4 jobs × iodepth 1
  load       in flight   IOPS       spread  mean  p99  Little     off   CPUs
  low                4  40.0k  40.0k–40.0k   100  100   40.0k    ±0 %  1.5/2
  high              40   100k    100k–100k   100  100    400k   −75 %  1.5/2
  low again          4  84.0k  76.0k–92.0k   100  100   40.0k  +110 %  1.5/2
  the second low is 2.10 × the first (spread 1.90–2.30): it may remember, but 3
  repeats cannot rule out noise

client none: randread 4k, 4 → 40 → 4 jobs × iodepth 1
  load       in flight   IOPS       spread  mean  p99  Little   off   CPUs
  low                4  40.0k  40.0k–40.0k   100  100   40.0k  ±0 %  1.5/2
  high              40   380k    380k–380k   100  100    400k  −5 %  1.5/2
  low again          4  40.0k  39.5k–40.5k   100  100   40.0k  ±0 %  1.5/2
  the second low is 1.00 × the first (spread 0.99–1.01), within the spread of the
  repeats: no hysteresis seen

in flight: jobs × iodepth × disks × VMs. IOPS: median of the repeats; spread:
  lowest and highest.
mean, p99: latency in µs, of all repeats together.
Little: IOPS by Little's law, requests in flight ÷ mean latency; off: how far
  the measured IOPS are from it.
CPUs: in use on the host, and how many there are.
† emulated, not comparable with the host.
";
        assert_eq!(render(Style::Plain, &probes(&runs, &[4, 40])), expected);
    }

    #[test]
    fn markdown_has_a_heading_a_table_and_the_sentence() {
        let runs = probe_runs(client(0), 0, [40_000, 380_000, 80_000]);
        let text = render(Style::Markdown, &probes(&runs, &[4, 40]));
        for part in [
            "\n## client none: randread 4k, 4 → 40 → 4 jobs × iodepth 1\n\n| load | in flight |",
            "\n| low again | 4 | 80.0k | 80.0k–80.0k |",
            "|\n\nthe second low is 2.00 × the first; 1 repeat does not show how much of that is noise\n",
        ] {
            assert!(text.contains(part), "{part}\nis missing in\n{text}");
        }
    }

    #[test]
    fn every_verdict_has_its_sentence() {
        let spread = Estimate::of([1.01, 1.02, 1.03]).unwrap();
        let higher = Estimate::of([1.1, 1.2, 1.3]).unwrap();
        let mut probe = probes(&probe_runs(client(0), 0, [1, 2, 1]), &[4, 40]).remove(0);
        for (memory, text) in [
            (Memory::Unknown, "no repeat has both lows, so nothing can be said"),
            (
                Memory::Small(spread),
                "the second low is 1.02 × the first (spread 1.01–1.03), less than 5 % apart: no \
                 hysteresis seen",
            ),
            (
                Memory::Remembers(higher),
                "the second low is 1.20 × the first (spread 1.10–1.30): it remembers",
            ),
            (
                Memory::MayRemember(higher, 3),
                "the second low is 1.20 × the first (spread 1.10–1.30): it may remember, but 3 \
                 repeats cannot rule out noise",
            ),
        ] {
            probe.memory = memory;
            assert_eq!(sentence(&probe), text);
        }
    }

    #[test]
    fn without_a_probe_there_is_no_legend() {
        assert_eq!(render(Style::Plain, &[]), "");
    }
}
