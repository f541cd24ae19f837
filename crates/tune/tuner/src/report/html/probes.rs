//! The hysteresis probe: throughput and latency on the way up and down again. Pure functions.

use std::time::Duration;

use maud::{Markup, html};

use super::charts::{rounded, time};
use super::plot::{Mark, Range, Scale};
use super::single::Single;
use super::{View, figure, folded_table};
use crate::report::probe::{COLUMNS, line, meanings, phase_name, sentence, title};
use crate::report::text::{microseconds, range, short};
use crate::summary::{Phase, Probe};

/// Nothing without a probe.
pub(super) fn render(view: &View<'_>) -> Markup {
    if view.report.probes.is_empty() {
        return Markup::default();
    }
    html! {
        section id="probes" {
            h2 { "Hysteresis" }
            p class="lead" { "Few requests in flight, many, few again: the two lows should be the same." }
            div class="cards" { @for probe in &view.report.probes { (card(probe)) } }
            (super::around::list(&meanings(&view.report.probes)))
        }
    }
}

fn card(probe: &Probe) -> Markup {
    let rows: Vec<_> = probe.phases.iter().map(|phase| (None, line(phase))).collect();
    let (title, sentence) = (title(probe), sentence(probe));
    let name = |phase: &Phase| format!("{} ({})", phase_name(phase), phase.in_flight);
    let charts = Single {
        subject: probe.contender.subject(),
        title: &title,
        description: &format!("low, high and low again; {sentence}"),
        categories: probe.phases.iter().map(name).collect(),
        points: &probe.phases,
    };
    html! {
        section class="probe" data-subject=(probe.contender.subject()) {
            h3 { (title) }
            p class="best" { (sentence) }
            div class="charts two" {
                (figure("Throughput, IOPS", charts.svg(Scale::Linear, rounded, throughput)))
                (figure("Latency: dot mean, tick p99", charts.svg(Scale::Logarithmic, time, latency)))
            }
            (folded_table(&COLUMNS, &rows))
        }
    }
}

fn throughput(slot: usize, phase: &Phase) -> Option<Mark> {
    let spread = phase.iops;
    let title = format!("{}: {} IOPS ({})", phase_name(phase), short(spread.median), range(spread));
    let range = Some(Range::Spread { low: spread.lowest, high: spread.highest });
    Some(Mark { range, ..Mark::new(slot, spread.median, title) })
}

fn latency(slot: usize, phase: &Phase) -> Option<Mark> {
    let us = |latency: Duration| latency.as_secs_f64() * 1e6;
    let (mean, p99) = (microseconds(phase.mean), microseconds(phase.p99));
    let title = format!("{}: mean {mean} µs, p99 {p99} µs", phase_name(phase));
    let above = phase.p99.map(us).into_iter().collect();
    Some(Mark { above, ..Mark::new(slot, us(phase.mean?), title) })
}
