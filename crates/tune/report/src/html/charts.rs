//! The four charts of a cell: throughput, latency, CPU time of a request, CPUs in use. Pure functions.

use std::time::Duration;

use findings::stats::{Estimate, Interval};
use findings::summary::{CellSummary, Row};
use maud::{Markup, html};
use plan::contender::Subject;
use plan::units::{counted, grouped};

use super::plot::{Across, Limit, Mark, Plot, Range, Scale, Series};
use super::{View, class, figure};
use crate::cells::mark as marks;
use crate::text::{in_us, interval, microseconds, place, short};

/// One kind of chart.
struct Kind {
    caption: &'static str,
    scale: Scale,
    label: fn(f64) -> String,
    mark: fn(&Row) -> Option<Figures>,
    /// The subject whose value is drawn across, and the value.
    limit: fn(&CellSummary) -> Option<Limit>,
}

/// What a mark shows of a row.
struct Figures {
    value: f64,
    range: Option<Range>,
    above: Vec<f64>,
    words: String,
}

const KINDS: [Kind; 4] = [
    Kind {
        caption: "Throughput, IOPS",
        scale: Scale::Linear,
        label: rounded,
        mark: throughput,
        limit: |cell| {
            let host = cell.host()?;
            Some((host.iops.median, Some(host.contender.to_string())))
        },
    },
    Kind {
        caption: "Latency",
        scale: Scale::Logarithmic,
        label: time,
        mark: latency,
        limit: |_| None,
    },
    Kind {
        caption: "CPU time per request, µs",
        scale: Scale::Linear,
        label: plain,
        mark: |row| figures(row.cpu_us?, |value| format!("{value:.1} µs")),
        limit: |_| None,
    },
    Kind {
        caption: "CPUs of the host in use",
        scale: Scale::Linear,
        label: plain,
        mark: |row| {
            let (in_use, of) = row.cpus?;
            figures(in_use, |value| format!("{value:.1} of {of}"))
        },
        limit: |cell| {
            let of = cell.rows.iter().find_map(|row| row.cpus)?.1;
            Some((of as f64, None))
        },
    },
];

pub(super) fn render(view: &View<'_>, cell: &CellSummary) -> Markup {
    html! { @for kind in &KINDS { (figure(kind.caption, chart(view, cell, kind))) } }
}

fn chart(view: &View<'_>, cell: &CellSummary, kind: &Kind) -> Option<Markup> {
    let mut subjects: Vec<Subject> = cell.rows.iter().map(|row| row.contender.subject()).collect();
    subjects.dedup();
    let series = subjects.into_iter().map(|subject| Series {
        subject: subject.to_string(),
        class: class(subject),
        nth: 0,
        marks: cell.rows_of(subject).filter_map(|row| mark(view, cell, kind, row)).collect(),
    });
    let description =
        format!("{} by number of iothreads, {}", kind.caption, place(cell.cell, &cell.variant));
    let plot = Plot {
        title: kind.caption,
        description: &description,
        categories: &view.names,
        scale: kind.scale,
        label: kind.label,
        limit: (kind.limit)(cell),
        across: Across::Names,
        series: series.collect(),
    };
    plot.svg()
}

fn mark(view: &View<'_>, cell: &CellSummary, kind: &Kind, row: &Row) -> Option<Mark> {
    let Figures { value, range, above, words } = (kind.mark)(row)?;
    let subject = row.contender.subject();
    let enough =
        cell.verdicts.iter().find(|(it, _)| *it == subject).map(|(_, verdict)| verdict.n90);
    Some(Mark {
        slot: view.slot(row.contender)?,
        value,
        range,
        above,
        title: format!("{}{}: {words}", row.contender, marks(cell, row)),
        ringed: range.is_some() && row.iothreads().is_some() && row.iothreads() == enough,
        joined: row.contender.number().is_some(),
        hollow: cell.is_given_up(row),
    })
}

fn figures(value: f64, words: impl Fn(f64) -> String) -> Option<Figures> {
    let words = words(value);
    Some(Figures { value, range: None, above: Vec::new(), words })
}

fn throughput(row: &Row) -> Option<Figures> {
    // A rate of nothing is said in words.
    let value = Some(row.iops.median).filter(|median| *median > 0.0)?;
    let repeats = counted(row.iops.samples, "repeat");
    let words = format!("{} IOPS, {}, {repeats}", short(value), interval(row.iops));
    Some(Figures { value, range: Some(range_of(row.iops)), above: Vec::new(), words })
}

/// How sure a rate is.
fn range_of(estimate: Estimate) -> Range {
    match estimate.interval {
        Some(Interval { low, high, .. }) => Range::Interval { low, high },
        None => Range::Spread { low: estimate.lowest, high: estimate.highest },
    }
}

fn latency(row: &Row) -> Option<Figures> {
    let word = |name: &str, of_all: Option<Duration>, repeats: Option<Estimate>| {
        let repeats = repeats.map_or_else(String::new, |it| format!(" ({})", in_repeats(it)));
        format!("{name} {}{repeats}", microseconds(of_all))
    };
    let [p50, p99, p99_9] = row.percentiles;
    let words =
        [word("p50", row.p50, p50), word("p99", row.p99, p99), word("p99.9", row.p99_9, p99_9)];
    let words = format!("{} µs", words.join(", "));
    let above = [row.p99, row.p99_9].into_iter().flatten().map(in_us).collect();
    Some(Figures { value: in_us(row.p50?), range: None, above, words })
}

/// `380–450`: the interval of the median of the repeats, or of too few their range.
fn in_repeats(estimate: Estimate) -> String {
    let (low, high) = estimate.ends();
    format!("{}–{}", grouped(low), grouped(high))
}

/// As `short` writes it, without decimals that say nothing: `50k`, `2.5k`.
pub(super) fn rounded(value: f64) -> String {
    let text = short(value);
    let Some(digits) = text.strip_suffix(['k', 'M']).filter(|digits| digits.contains('.')) else {
        return text;
    };
    let suffix = &text[digits.len()..];
    format!("{}{suffix}", digits.trim_end_matches('0').trim_end_matches('.'))
}

/// `0`, `2.5`, `10`: whatever decimals a round number has.
pub(super) fn plain(value: f64) -> String {
    if value >= 999.5 { short(value) } else { format!("{}", (value * 1e3).round() / 1e3) }
}

/// `50 µs`, `2 ms`, `1 s`, from µs.
pub(super) fn time(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{} µs", plain(us)),
        us if us < 999_500.0 => format!("{} ms", plain(us / 1e3)),
        us => format!("{} s", plain(us / 1e6)),
    }
}
