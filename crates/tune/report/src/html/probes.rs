//! The hysteresis probe: throughput and latency on the way up and down again. Pure functions.

use findings::summary::{Phase, Probe};
use maud::{Markup, html};

use super::charts::{rounded, time};
use super::plot::{Mark, Range, Scale};
use super::single::{Single, section};
use crate::probe::{COLUMNS, line, meanings, phase_name, sentence, title};
use crate::text::{in_us, microseconds, range, short};

/// Nothing without a probe.
pub(super) fn render(probes: &[Probe]) -> Markup {
    let lead = "Few requests in flight, many, few again: the two lows should be the same.";
    section(("probes", "Hysteresis", lead), probes, card, meanings)
}

fn card(probe: &Probe) -> Markup {
    let sentence = sentence(probe);
    let name = |phase: &Phase| format!("{} ({})", phase_name(phase), phase.in_flight);
    let single = Single {
        subject: probe.contender.subject(),
        title: &title(probe),
        description: &format!("low, high and low again; {sentence}"),
        categories: probe.phases.iter().map(name).collect(),
        points: &probe.phases,
        columns: &COLUMNS,
        line,
    };
    let charts = [
        ("Throughput, IOPS", single.svg(Scale::Linear, rounded, throughput)),
        ("Latency: dot mean, tick p99", single.svg(Scale::Logarithmic, time, latency)),
    ];
    single.card("probe", &html! { p class="best" { (sentence) } }, charts)
}

fn throughput(slot: usize, phase: &Phase) -> Option<Mark> {
    let spread = phase.iops;
    let title = format!("{}: {} IOPS ({})", phase_name(phase), short(spread.median), range(spread));
    let range = Some(Range::Spread { low: spread.lowest, high: spread.highest });
    Some(Mark { range, ..Mark::new(slot, spread.median, title) })
}

fn latency(slot: usize, phase: &Phase) -> Option<Mark> {
    let (mean, p99) = (microseconds(phase.mean), microseconds(phase.p99));
    let title = format!("{}: mean {mean} µs, p99 {p99} µs", phase_name(phase));
    let above = phase.p99.map(in_us).into_iter().collect();
    Some(Mark { above, ..Mark::new(slot, in_us(phase.mean?), title) })
}
