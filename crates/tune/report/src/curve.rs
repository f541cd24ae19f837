//! Latency at fixed rates: a table per contender and cell. Pure functions.

use findings::summary::{Curve, Point};
use plan::units::percent_gain;

use super::text::{cpu_us, cpus, microseconds, or_missing, place, section, sections, short, who};
use super::{EMULATED, Style};
use crate::table::Table;

pub(super) const COLUMNS: [&str; 9] =
    ["asked", "rate", "reached", "mean", "p50", "p99", "p99.9", "CPU", "CPUs"];

/// The tables and what their words mean; nothing without a curve.
pub(super) fn render(style: Style, curves: &[Curve]) -> String {
    let shown = |curve: &Curve| {
        let table = Table::of(&COLUMNS, curve.points.iter().map(line));
        let notes: Vec<String> = curve.points.iter().filter_map(missed).collect();
        section(style, &title(curve), &table, &notes)
    };
    sections(style, curves, shown, meanings)
}

/// What the words of the tables mean.
pub(super) fn meanings(curves: &[Curve]) -> Vec<String> {
    let mut lines = vec![
        "asked: share of the maximum, and its rate in requests per second; reached: median of the \
         repeats."
            .to_owned(),
        "mean to p99.9: latency in µs, of all repeats together.".to_owned(),
        "CPU: µs of CPU time per request of what serves the disk (host: of the load). CPUs: in use \
         on the host, and how many there are."
            .to_owned(),
    ];
    if curves.iter().any(|curve| curve.emulated) {
        lines.push(format!("† {EMULATED}."));
    }
    lines
}

/// `client 2: randread 4k, 2 jobs × iodepth 16`.
pub(super) fn title(curve: &Curve) -> String {
    let place = place(curve.cell, &curve.variant);
    format!("{}: {place}", who(curve.contender, curve.emulated))
}

pub(super) fn share(point: &Point) -> String {
    if point.is_maximum() { "maximum".to_owned() } else { format!("{} %", point.percent) }
}

pub(super) fn line(point: &Point) -> Vec<String> {
    vec![
        share(point),
        or_missing(point.asked.map(short)),
        short(point.reached.median),
        microseconds(point.mean),
        microseconds(point.p50),
        microseconds(point.p99),
        microseconds(point.p99_9),
        cpu_us(point.cpu_us),
        cpus(point.cpus),
    ]
}

/// A latency at another rate than asked for must not be read as one at that rate.
pub(super) fn missed(point: &Point) -> Option<String> {
    let (ratio, asked) = (point.missed()?, point.asked?);
    let reached = short(point.reached.median);
    Some(format!(
        "{} % of the maximum was missed: {reached} reached, {} asked for, {}",
        point.percent,
        short(asked),
        percent_gain(ratio)
    ))
}

#[cfg(test)]
mod tests {
    use findings::summary::curves;
    use plan::contender::Contender;
    use plan::testing::client;
    use records::testing::curve_runs;

    use super::*;

    #[test]
    fn a_curve_is_a_table_and_a_note_where_a_rate_was_missed() {
        let mut runs = curve_runs(client(2), 0, [1000, 500, 700, 850]);
        runs.extend(curve_runs(client(2), 1, [1010, 500, 700, 860]));
        runs.extend(curve_runs(Contender::HOST, 0, [2000, 500, 700, 900]));
        let expected = "
client 2: randread 4k, 2 jobs × iodepth 16
  asked    rate  reached  mean  p50  p99  p99.9   CPU  CPUs
  50 %      500      500   100  100  100    100  10.0     –
  70 %      700      700   100  100  100    100  10.0     –
  90 %      900      855   100  100  100    100  10.0     –
  maximum     –    1.00k   100  100  100    100  10.0     –
  90 % of the maximum was missed: 855 reached, 900 asked for, −5 %

host: randread 4k, 2 jobs × iodepth 16
  asked    rate  reached  mean  p50  p99  p99.9   CPU  CPUs
  50 %      500      500   100  100  100    100  10.0     –
  70 %      700      700   100  100  100    100  10.0     –
  90 %      900      900   100  100  100    100  10.0     –
  maximum     –    2.00k   100  100  100    100  10.0     –

asked: share of the maximum, and its rate in requests per second; reached:
  median of the repeats.
mean to p99.9: latency in µs, of all repeats together.
CPU: µs of CPU time per request of what serves the disk (host: of the load).
  CPUs: in use on the host, and how many there are.
";
        assert_eq!(render(Style::Plain, &curves(&runs)), expected);
    }

    #[test]
    fn markdown_has_a_heading_and_a_table() {
        let text =
            render(Style::Markdown, &curves(&curve_runs(client(2), 0, [1000, 500, 700, 900])));
        let part = "\n## client 2: randread 4k, 2 jobs × iodepth 16\n\n| asked | rate |";
        assert!(text.contains(part), "{text}");
        assert!(text.contains("\n| maximum | – | 1.00k | 100 |"), "{text}");
    }

    #[test]
    fn without_a_curve_there_is_no_legend() {
        assert_eq!(render(Style::Plain, &[]), "");
    }
}
