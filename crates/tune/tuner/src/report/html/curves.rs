//! Latency at fixed rates: percentiles and CPU time by share of the maximum. Pure functions.

use std::time::Duration;

use maud::{Markup, html};

use super::charts::{plain, time};
use super::plot::{Mark, Scale};
use super::single::Single;
use super::{View, figure, folded_table};
use crate::report::curve::{COLUMNS, line, meanings, missed, title};
use crate::report::text::{microseconds, short};
use crate::summary::{Curve, Point};

/// Nothing without a curve.
pub(super) fn render(view: &View<'_>) -> Markup {
    if view.report.curves.is_empty() {
        return Markup::default();
    }
    html! {
        section id="curves" {
            h2 { "Latency at fixed rates" }
            p class="lead" {
                "The maximum, and what latency is at shares of it. Dot p50, circle p99, tick p99.9."
            }
            div class="cards" { @for curve in &view.report.curves { (card(curve)) } }
            (super::around::list(&meanings(&view.report.curves)))
        }
    }
}

fn card(curve: &Curve) -> Markup {
    let rows: Vec<_> = curve.points.iter().map(|point| (None, line(point))).collect();
    let missed: Vec<String> = curve.points.iter().filter_map(missed).collect();
    let title = title(curve);
    let charts = Single {
        subject: curve.contender.subject(),
        title: &title,
        description: "by share of the maximum rate",
        categories: curve.points.iter().map(share).collect(),
        points: &curve.points,
    };
    html! {
        section class="curve" data-subject=(curve.contender.subject()) {
            h3 { (title) }
            @if !missed.is_empty() { p class="warn" { (missed.join("; ")) "." } }
            div class="charts two" {
                (figure("Latency", charts.svg(Scale::Logarithmic, time, latency)))
                (figure("CPU time per request, µs", charts.svg(Scale::Linear, plain, cpu)))
            }
            (folded_table(&COLUMNS, &rows))
        }
    }
}

fn share(point: &Point) -> String {
    if point.is_maximum() { "maximum".to_owned() } else { format!("{} %", point.percent) }
}

fn latency(slot: usize, point: &Point) -> Option<Mark> {
    let us = |latency: Duration| latency.as_secs_f64() * 1e6;
    let [p50, p99, p99_9] = [point.p50, point.p99, point.p99_9].map(microseconds);
    let title = format!(
        "{} ({} IOPS): p50 {p50} µs, p99 {p99} µs, p99.9 {p99_9} µs",
        share(point),
        short(point.reached.median)
    );
    let above = [point.p99, point.p99_9].into_iter().flatten().map(us).collect();
    Some(Mark { above, ..Mark::new(slot, us(point.p50?), title) })
}

fn cpu(slot: usize, point: &Point) -> Option<Mark> {
    let value = point.cpu_us?;
    let title = format!("{}: {value:.1} µs of CPU time per request", share(point));
    Some(Mark::new(slot, value, title))
}
