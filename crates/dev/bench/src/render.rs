//! Results as text: a few lines per row while it runs, and tables for documents. Pure functions.

mod images;

use load::Spread;

use crate::results::{Contender, Metric, Results, RowResult};
use crate::summary::noise;

/// Where and with what the run was made.
pub(crate) fn head(results: &Results) -> String {
    let Results { machine, versions, settings, .. } = results;
    format!(
        "{}, {} cores, Linux {}, load {}\n{}\n{} pairs of {} s; servers on CPUs {:?}, client on {:?}\n",
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.load,
        versions.join("; "),
        settings.pairs,
        settings.sample_s,
        settings.server_cpus,
        settings.client_cpus,
    )
}

/// All there is to say about a row.
pub(crate) fn row(row: &RowResult) -> String {
    let mut text = format!("\n{}", row.name);
    if !row.wanted.is_empty() {
        text.push_str(&format!("  (wanted: {})", row.wanted));
    }
    text.push('\n');
    for (contender, name) in NAMES {
        let parts: Vec<String> =
            METRICS.iter().filter_map(|&metric| part(row, contender, metric)).collect();
        if !parts.is_empty() {
            let name = match (&row.host, contender) {
                (Some(choice), Contender::Host) => format!("host ({})", choice.best),
                _ => name.to_owned(),
            };
            text.push_str(&format!("  {name:17} {}\n", parts.join(", ")));
        }
    }
    for ratio in ratios(row) {
        text.push_str(&format!("  {:28} {}\n", ratio.name, ratio.text()));
    }
    let own = row.series(Contender::Ringloom, Metric::RequestsPerS);
    if let Some(floor) = noise(&own) {
        text.push_str(&format!("  noise floor                  {:.1} %\n", floor * 100.0));
    }
    text
}

const NAMES: [(Contender, &str); 16] = [
    (Contender::Ringloom, "ringloom"),
    (Contender::Qsd, "qsd"),
    (Contender::WithoutIothread, "no iothread"),
    (Contender::Raw, "ringloom, raw"),
    (Contender::Host, "host"),
    (Contender::Ceiling, "client's ceiling"),
    (Contender::Auto, "auto"),
    (Contender::OneThread, "1 thread"),
    (Contender::TwoThreads, "2 threads"),
    (Contender::TwoRings, "2 on 1 thread"),
    (Contender::Layered, "with the layer"),
    (Contender::Moved, "moved"),
    (Contender::QuietAlone, "depth 1, alone"),
    (Contender::QuietBeside, "depth 1, beside"),
    (Contender::SaturatedAlone, "saturated, alone"),
    (Contender::SaturatedBeside, "saturated, beside"),
];

const METRICS: [Metric; 9] = [
    Metric::RequestsPerS,
    Metric::CpuNsPerRequest,
    Metric::SyscallsPerRequest,
    Metric::P50Us,
    Metric::P99Us,
    Metric::IdleCpuMs,
    Metric::OpenMs,
    Metric::RssAnonMib,
    Metric::AfterOthersShare,
];

/// A median with its unit.
fn part(row: &RowResult, contender: Contender, metric: Metric) -> Option<String> {
    let value = Spread::of(row.series(contender, metric))?.median;
    Some(match metric {
        Metric::RequestsPerS => format!("{:.1} k/s", value / 1e3),
        Metric::CpuNsPerRequest => format!("{value:.0} ns CPU"),
        Metric::SyscallsPerRequest => format!("{value:.3} syscalls"),
        Metric::P50Us => format!("p50 {value:.1} µs"),
        Metric::P99Us => format!("p99 {value:.1} µs"),
        Metric::IdleCpuMs => format!("{value:.1} ms CPU in 10 s"),
        Metric::RssAnonMib => format!("{value:.1} MiB"),
        Metric::OpenMs => format!("open in {value:.1} ms"),
        Metric::AfterOthersShare => format!("{value:.2} of the rate before"),
    })
}

struct Ratio {
    name: &'static str,
    spread: Spread,
}

impl Ratio {
    fn text(&self) -> String {
        let Spread { median, lowest, highest } = self.spread;
        format!("{median:.2} ({lowest:.2}–{highest:.2})")
    }
}

fn ratios(row: &RowResult) -> Vec<Ratio> {
    use Contender::{
        Auto, Host, Layered, OneThread, Qsd, QuietAlone, QuietBeside, Raw, Ringloom,
        SaturatedAlone, SaturatedBeside, TwoRings, TwoThreads, WithoutIothread,
    };
    let of = [
        ("ringloom / qsd", Ringloom, Qsd, Metric::RequestsPerS),
        ("ringloom / host", Ringloom, Host, Metric::RequestsPerS),
        ("iothread / none", Ringloom, WithoutIothread, Metric::RequestsPerS),
        ("CPU: iothread / none", Ringloom, WithoutIothread, Metric::CpuNsPerRequest),
        ("p99: iothread / none", Ringloom, WithoutIothread, Metric::P99Us),
        ("ringloom / raw", Ringloom, Raw, Metric::RequestsPerS),
        ("CPU: ringloom / raw", Ringloom, Raw, Metric::CpuNsPerRequest),
        ("CPU: ringloom / qsd", Ringloom, Qsd, Metric::CpuNsPerRequest),
        ("p99: ringloom / qsd", Ringloom, Qsd, Metric::P99Us),
        ("time to open: ringloom / qsd", Ringloom, Qsd, Metric::OpenMs),
        ("auto / 1 thread", Auto, OneThread, Metric::RequestsPerS),
        ("auto / 2 threads", Auto, TwoThreads, Metric::RequestsPerS),
        ("CPU: auto / 1 thread", Auto, OneThread, Metric::CpuNsPerRequest),
        ("CPU: auto / 2 threads", Auto, TwoThreads, Metric::CpuNsPerRequest),
        ("2 threads / 1 thread", TwoThreads, OneThread, Metric::RequestsPerS),
        ("2 rings / 1, one thread", TwoRings, OneThread, Metric::RequestsPerS),
        ("with the layer / without", Layered, OneThread, Metric::RequestsPerS),
        ("depth 1 p50: beside / alone", QuietBeside, QuietAlone, Metric::P50Us),
        ("depth 1 p99: beside / alone", QuietBeside, QuietAlone, Metric::P99Us),
        ("saturated: beside / alone", SaturatedBeside, SaturatedAlone, Metric::RequestsPerS),
    ];
    of.into_iter()
        .filter_map(|(name, over, under, metric)| {
            Some(Ratio { name, spread: Spread::of(row.ratios(over, under, metric))? })
        })
        .collect()
}

/// One line per row: the first ratios, and what a request costs. Rows of images have tables of their own.
pub(crate) fn markdown(results: &Results) -> String {
    let is_image = |row: &&RowResult| images::has(&row.name);
    let (images, others): (Vec<_>, Vec<_>) = results.rows.iter().partition(is_image);
    let tables = [table(&others), images::figures(&images), images::literature(&images)];
    tables.into_iter().filter(|table| !table.is_empty()).collect::<Vec<_>>().join("\n")
}

fn table(rows: &[&RowResult]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = "| row | wanted | ringloom | qsd | host | ringloom / qsd | ringloom / host | \
                    CPU ns ringloom | CPU ns qsd | noise |\n\
                    | :--- | :--- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        .to_owned();
    for row in rows {
        text.push_str(&markdown_row(row));
    }
    text
}

fn markdown_row(row: &RowResult) -> String {
    use Contender::{
        Auto, Host, Layered, OneThread, Qsd, QuietAlone, QuietBeside, Ringloom, TwoThreads,
    };
    let is_fairness = !row.series(QuietAlone, Metric::P99Us).is_empty();
    let rate = if is_fairness { Metric::P99Us } else { Metric::RequestsPerS };
    let main = |contender| {
        let metrics = [rate, Metric::IdleCpuMs, Metric::RssAnonMib, Metric::AfterOthersShare];
        metrics.iter().find_map(|&metric| part(row, contender, metric)).unwrap_or_default()
    };
    let cpu = |contender| part(row, contender, Metric::CpuNsPerRequest).unwrap_or_default();
    let ratio = |over, under| {
        let spread = Spread::of(row.ratios(over, under, rate));
        spread.map(|spread| Ratio { name: "", spread }.text()).unwrap_or_default()
    };
    let is_refill = !row.series(OneThread, Metric::RequestsPerS).is_empty();
    let is_layer = !row.series(Layered, Metric::RequestsPerS).is_empty();
    let is_auto = !row.series(Auto, Metric::RequestsPerS).is_empty();
    // Two threads stand in ringloom's column, one in its peer's; likewise with and without a layer,
    // beside and alone, auto and one thread.
    let (own, peer) = match (is_layer, is_refill, is_fairness) {
        (true, _, _) => (Layered, OneThread),
        (_, true, _) if is_auto => (Auto, OneThread),
        (_, true, _) => (TwoThreads, OneThread),
        (_, _, true) => (QuietBeside, QuietAlone),
        (false, false, false) => (Ringloom, Qsd),
    };
    let floor = noise(&row.series(own, rate));
    let cells = [
        row.name.clone(),
        row.wanted.clone(),
        main(own),
        main(peer),
        main(Host),
        ratio(own, peer),
        ratio(own, Host),
        cpu(own).replace(" ns CPU", ""),
        cpu(peer).replace(" ns CPU", ""),
        floor.map(|floor| format!("{:.0} %", floor * 100.0)).unwrap_or_default(),
    ];
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{HostChoice, Sample};

    fn example() -> RowResult {
        let sample = |pair, contender, rate| Sample {
            pair,
            contender,
            values: [(Metric::RequestsPerS, rate), (Metric::CpuNsPerRequest, 1e9 / rate)].into(),
        };
        let host = HostChoice { best: "psync".to_owned(), tried: [].into() };
        RowResult {
            name: "tmpfs".to_owned(),
            wanted: "2 × qsd".to_owned(),
            host: Some(host),
            samples: vec![
                sample(0, Contender::Ringloom, 200_000.0),
                sample(0, Contender::Qsd, 100_000.0),
                sample(0, Contender::Host, 400_000.0),
                sample(1, Contender::Qsd, 100_000.0),
                sample(1, Contender::Ringloom, 300_000.0),
            ],
        }
    }

    #[test]
    fn ratios_are_formed_inside_pairs() {
        let text = row(&example());
        assert!(text.contains("ringloom / qsd               2.50 (2.00–3.00)"), "{text}");
        assert!(text.contains("ringloom / host              0.50 (0.50–0.50)"), "{text}");
        assert!(text.contains("host (psync)      400.0 k/s"), "{text}");
    }

    #[test]
    fn of_a_row_about_fairness_the_table_has_the_slow_requests() {
        let sample = |contender, p99| Sample {
            pair: 0,
            contender,
            values: [(Metric::RequestsPerS, 1e6), (Metric::P99Us, p99)].into(),
        };
        let samples = vec![sample(Contender::QuietBeside, 3.0), sample(Contender::QuietAlone, 2.0)];
        let (name, wanted) = ("fairness-null".to_owned(), "3 × alone".to_owned());
        let row = RowResult { name, wanted, host: None, samples };
        let line = "| fairness-null | 3 × alone | p99 3.0 µs | p99 2.0 µs |  | 1.50 (1.50–1.50) |";
        assert!(markdown_row(&row).starts_with(line), "{}", markdown_row(&row));
    }

    #[test]
    fn a_row_is_a_line_of_the_table() {
        assert_eq!(
            markdown_row(&example()),
            "| tmpfs | 2 × qsd | 250.0 k/s | 100.0 k/s | 400.0 k/s | 2.50 (2.00–3.00) | \
             0.50 (0.50–0.50) | 4167 | 10000 |  |\n"
        );
    }
}
