//! Two saved runs side by side. Pure.
//!
//! Ratios to the peer of the same run come first: they do not depend on the state of the machine on
//! that day, absolute figures do.

use crate::results::{Contender, Metric, Results, RowResult};
use crate::summary::{Change, Direction};

/// A series of a row, by the name it is printed with.
type Series = (&'static str, Metric, fn(&RowResult) -> Vec<f64>);

const SERIES: [Series; 13] = [
    ("ringloom / qsd", Metric::RequestsPerS, |row| {
        row.ratios(Contender::Ringloom, Contender::Qsd, Metric::RequestsPerS)
    }),
    ("ringloom / host", Metric::RequestsPerS, |row| {
        row.ratios(Contender::Ringloom, Contender::Host, Metric::RequestsPerS)
    }),
    ("ringloom / raw", Metric::RequestsPerS, |row| {
        row.ratios(Contender::Ringloom, Contender::Raw, Metric::RequestsPerS)
    }),
    ("requests/s", Metric::RequestsPerS, |row| {
        row.series(Contender::Ringloom, Metric::RequestsPerS)
    }),
    ("CPU ns per request", Metric::CpuNsPerRequest, |row| {
        row.series(Contender::Ringloom, Metric::CpuNsPerRequest)
    }),
    ("p99 µs", Metric::P99Us, |row| row.series(Contender::Ringloom, Metric::P99Us)),
    ("2 threads / 1", Metric::RequestsPerS, |row| {
        row.ratios(Contender::TwoThreads, Contender::OneThread, Metric::RequestsPerS)
    }),
    ("2 rings / 1", Metric::RequestsPerS, |row| {
        row.ratios(Contender::TwoRings, Contender::OneThread, Metric::RequestsPerS)
    }),
    ("p99 beside / alone", Metric::P99Us, |row| {
        row.ratios(Contender::QuietBeside, Contender::QuietAlone, Metric::P99Us)
    }),
    ("saturated/s, beside", Metric::RequestsPerS, |row| {
        row.series(Contender::SaturatedBeside, Metric::RequestsPerS)
    }),
    ("1 thread requests/s", Metric::RequestsPerS, |row| {
        row.series(Contender::OneThread, Metric::RequestsPerS)
    }),
    ("RssAnon MiB", Metric::RssAnonMib, |row| row.series(Contender::Ringloom, Metric::RssAnonMib)),
    ("ms to open", Metric::OpenMs, |row| row.series(Contender::Ringloom, Metric::OpenMs)),
];

/// One line per row and series that both runs have.
pub(crate) fn text(before: &Results, after: &Results) -> String {
    let mut text = String::new();
    if before.machine.cpu != after.machine.cpu || before.machine.kernel != after.machine.kernel {
        text.push_str("warning: the runs are from different machines or kernels\n");
    }
    if before.settings != after.settings {
        text.push_str("warning: the runs have different settings\n");
    }
    for old in &before.rows {
        let Some(new) = after.rows.iter().find(|row| row.name == old.name) else {
            continue;
        };
        for (name, metric, series) in SERIES {
            if let Some(change) = Change::between(&series(old), &series(new)) {
                text.push_str(&line(&old.name, name, metric, &change));
            }
        }
    }
    text
}

fn line(row: &str, name: &str, metric: Metric, change: &Change) -> String {
    let good = if metric.is_better_when_more() { Direction::More } else { Direction::Less };
    let verdict = match change.direction() {
        Direction::None => "no difference",
        Direction::Unknown => "too few repeats to tell",
        direction if direction == good => "better",
        Direction::More | Direction::Less => "worse",
    };
    let noise = change.noise.map_or("?".to_owned(), |noise| format!("{:.1}", noise * 100.0));
    format!(
        "{row:36} {name:20} {:>12.2} -> {:>12.2}  {:+6.1} %  (noise {noise} %)  {verdict}\n",
        change.before,
        change.after,
        change.relative() * 100.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(metric: Metric, before: f64, after: f64) -> String {
        let change = Change { before, after, noise: Some(0.05) };
        line("row", "name", metric, &change)
    }

    #[test]
    fn less_cpu_is_better_and_fewer_requests_are_worse() {
        assert!(verdict(Metric::CpuNsPerRequest, 300.0, 200.0).ends_with("better\n"));
        assert!(verdict(Metric::RequestsPerS, 300.0, 200.0).ends_with("worse\n"));
        assert!(verdict(Metric::RequestsPerS, 300.0, 290.0).ends_with("no difference\n"));
    }
}
