//! Latency at fixed rates: percentiles and CPU time by share of the maximum. Pure functions.

use findings::summary::{Curve, Point};
use maud::{Markup, html};

use super::charts::{plain, time};
use super::plot::{Mark, Scale};
use super::single::{Single, section};
use crate::curve::{COLUMNS, line, meanings, missed, share, title};
use crate::text::{in_us, microseconds, short};

/// Nothing without a curve.
pub(super) fn render(curves: &[Curve]) -> Markup {
    let lead = "The maximum, and what latency is at shares of it. Dot p50, circle p99, tick p99.9.";
    section(("curves", "Latency at fixed rates", lead), curves, card, meanings)
}

fn card(curve: &Curve) -> Markup {
    let missed: Vec<String> = curve.points.iter().filter_map(missed).collect();
    let said = html! { @if !missed.is_empty() { p class="warn" { (missed.join("; ")) "." } } };
    let single = Single {
        subject: curve.contender.subject(),
        title: &title(curve),
        description: "by share of the maximum rate",
        categories: curve.points.iter().map(share).collect(),
        points: &curve.points,
        columns: &COLUMNS,
        line,
    };
    let charts = [
        ("Latency", single.svg(Scale::Logarithmic, time, latency)),
        ("CPU time per request, µs", single.svg(Scale::Linear, plain, cpu)),
    ];
    single.card("curve", &said, charts)
}

fn latency(slot: usize, point: &Point) -> Option<Mark> {
    let [p50, p99, p99_9] = [point.p50, point.p99, point.p99_9].map(microseconds);
    let title = format!(
        "{} ({} IOPS): p50 {p50} µs, p99 {p99} µs, p99.9 {p99_9} µs",
        share(point),
        short(point.reached.median)
    );
    let above = [point.p99, point.p99_9].into_iter().flatten().map(in_us).collect();
    Some(Mark { above, ..Mark::new(slot, in_us(point.p50?), title) })
}

fn cpu(slot: usize, point: &Point) -> Option<Mark> {
    let value = point.cpu_us?;
    let title = format!("{}: {value:.1} µs of CPU time per request", share(point));
    Some(Mark::new(slot, value, title))
}
