//! The tables of the rows of images. Pure functions.

use load::Spread;

use super::{Ratio, part};
use crate::results::{Contender, Metric, RowResult};
use crate::rows::qcow2::{
    LITERATURE, LITERATURE_DISKS, LITERATURE_OPERATIONS, PREFIX, literature_name,
};
use crate::summary::noise;

/// Whether a row of that name stands in one of these tables.
pub(super) fn has(name: &str) -> bool {
    name.starts_with(PREFIX) || name.starts_with(LITERATURE)
}

/// Images beside raw files and beside qemu-storage-daemon; empty without such rows.
pub(super) fn figures(rows: &[&RowResult]) -> String {
    let lines: String =
        rows.iter().filter(|row| row.name.starts_with(PREFIX)).map(|row| line(row)).collect();
    if lines.is_empty() {
        return lines;
    }
    "| row | wanted | ringloom | raw | qsd | ringloom / raw | CPU: ringloom / raw | \
     ringloom / qsd | CPU ns ringloom | CPU ns qsd | noise |\n\
     | :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        .to_owned()
        + &lines
}

fn line(row: &RowResult) -> String {
    use Contender::{Qsd, Raw, Ringloom};
    let opens = !row.series(Ringloom, Metric::OpenMs).is_empty();
    let main = if opens { Metric::OpenMs } else { Metric::RequestsPerS };
    let values = |contender| {
        let parts = [main, Metric::RssAnonMib].map(|metric| part(row, contender, metric));
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    let cpu = |contender| part(row, contender, Metric::CpuNsPerRequest).unwrap_or_default();
    let floor = noise(&row.series(Ringloom, main));
    let cells = [
        row.name.clone(),
        row.wanted.clone(),
        values(Ringloom),
        values(Raw),
        values(Qsd),
        ratio(row, Ringloom, Raw, main),
        ratio(row, Ringloom, Raw, Metric::CpuNsPerRequest),
        ratio(row, Ringloom, Qsd, main),
        cpu(Ringloom).replace(" ns CPU", ""),
        cpu(Qsd).replace(" ns CPU", ""),
        floor.map(|floor| format!("{:.0} %", floor * 100.0)).unwrap_or_default(),
    ];
    format!("| {} |\n", cells.join(" | "))
}

fn ratio(row: &RowResult, over: Contender, under: Contender, metric: Metric) -> String {
    let spread = Spread::of(row.ratios(over, under, metric));
    spread.map(|spread| Ratio { name: "", spread }.text()).unwrap_or_default()
}

/// Clusters and caches at depth 1: a line for each kind of file, of the rows that were measured; empty
/// without any.
pub(super) fn literature(rows: &[&RowResult]) -> String {
    let cells = |disk: &str, operation: &str| {
        let name = literature_name(disk, operation);
        let row = rows.iter().find(|row| row.name == name)?;
        let rate = |contender| part(row, contender, Metric::RequestsPerS).unwrap_or_default();
        let ratio = ratio(row, Contender::Ringloom, Contender::Qsd, Metric::RequestsPerS);
        Some(format!("{} | {} | {ratio}", rate(Contender::Ringloom), rate(Contender::Qsd)))
    };
    let mut lines = String::new();
    for (disk, _) in LITERATURE_DISKS {
        let found = LITERATURE_OPERATIONS.map(|operation| cells(disk, operation));
        if found.iter().any(Option::is_some) {
            let none = || " | | ".to_owned();
            let found = found.map(|cells| cells.unwrap_or_else(none));
            lines.push_str(&format!("| {disk} | {} |\n", found.join(" | ")));
        }
    }
    if lines.is_empty() {
        return lines;
    }
    let columns =
        LITERATURE_OPERATIONS.map(|name| format!("{name}: ringloom | qsd | ringloom / qsd"));
    format!(
        "| 4k, depth 1 | {} |\n| :--- | ---: | ---: | ---: | ---: | ---: | ---: |\n{lines}",
        columns.join(" | ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Sample;

    fn sample(contender: Contender, values: &[(Metric, f64)]) -> Sample {
        Sample { pair: 0, contender, values: values.iter().copied().collect() }
    }

    fn row(name: &str, samples: Vec<Sample>) -> RowResult {
        RowResult { name: name.to_owned(), wanted: String::new(), host: None, samples }
    }

    #[test]
    fn an_image_stands_beside_raw_and_its_peer() {
        use Metric::{CpuNsPerRequest, RequestsPerS};
        let of = |contender, rate, cpu| {
            sample(contender, &[(RequestsPerS, rate), (CpuNsPerRequest, cpu)])
        };
        let samples = vec![
            of(Contender::Ringloom, 190e3, 1100.0),
            of(Contender::Qsd, 95e3, 5000.0),
            of(Contender::Raw, 200e3, 1000.0),
        ];
        let row = row("qcow2-randread", samples);
        let text = figures(&[&row]);
        let line = "| qcow2-randread |  | 190.0 k/s | 200.0 k/s | 95.0 k/s | 0.95 (0.95–0.95) | \
                    1.10 (1.10–1.10) | 2.00 (2.00–2.00) | 1100 | 5000 |  |\n";
        assert!(text.ends_with(line), "{text}");
        assert_eq!(literature(&[&row]), "");
    }

    #[test]
    fn opening_has_a_time_and_memory() {
        use Metric::{OpenMs, RssAnonMib};
        let of = |contender, ms, memory| sample(contender, &[(OpenMs, ms), (RssAnonMib, memory)]);
        let samples = vec![of(Contender::Ringloom, 10.0, 2.0), of(Contender::Qsd, 40.0, 4.0)];
        let row = row("qcow2-open-1t", samples);
        let text = figures(&[&row]);
        let line = "| qcow2-open-1t |  | open in 10.0 ms, 2.0 MiB |  | open in 40.0 ms, 4.0 MiB | \
                    |  | 0.25 (0.25–0.25) |  |  |  |\n";
        assert!(text.ends_with(&line.replace("| |", "|  |")), "{text}");
    }

    #[test]
    fn kinds_of_files_are_lines_and_operations_columns() {
        let of = |operation, rate| {
            let samples = vec![
                sample(Contender::Ringloom, &[(Metric::RequestsPerS, 2.0 * rate)]),
                sample(Contender::Qsd, &[(Metric::RequestsPerS, rate)]),
            ];
            row(&literature_name("64k-16m", operation), samples)
        };
        let rows = [of("randread", 10e3), of("50/50", 20e3)];
        let text = literature(&rows.each_ref());
        let line = "| 64k-16m | 20.0 k/s | 10.0 k/s | 2.00 (2.00–2.00) | \
                    40.0 k/s | 20.0 k/s | 2.00 (2.00–2.00) |\n";
        assert!(text.ends_with(line), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}
