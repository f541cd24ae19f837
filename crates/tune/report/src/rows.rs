//! The rows of all cells as records: a line each of `report.csv` and `report.jsonl`. Pure functions.
//!
//! Invariants: both files have the same fields with the same names, in this order; what is missing or no finite number is
//! empty in CSV and null in JSON.
//! Limits: of guests and disks that ran at once only the sum and how evenly they were served; probes and curves are not in it (results.jsonl has all).

use std::time::Duration;

use findings::stats::Estimate;
use findings::summary::{CellSummary, Row};
use plan::contender::Iothreads;
use plan::variant::Variant;
use serde::Serialize;

use super::text::in_us;

/// One contender in one cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "columns of a table, independent of each other")]
pub(super) struct Record {
    device: String,
    image: String,
    aio: String,
    fs: String,
    stripe: String,
    delay: String,
    vms: u16,
    disks: u16,
    op: String,
    /// In bytes.
    bs: u32,
    jobs: u16,
    iodepth: u16,
    subject: String,
    /// `none` or a count; missing where numbers are not compared.
    iothreads: Option<String>,
    queues: u16,
    /// `confirm` where it was measured again after the exploration, else `sweep`.
    purpose: String,
    samples: usize,
    iops: Option<f64>,
    iops_lowest: Option<f64>,
    iops_highest: Option<f64>,
    /// The interval of the median; missing with fewer than six samples.
    iops_low: Option<f64>,
    iops_high: Option<f64>,
    confidence: Option<f64>,
    bytes_per_second: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    p99_9_us: Option<f64>,
    /// The intervals of the medians of these three repeat by repeat; missing with fewer than six samples.
    p50_us_low: Option<f64>,
    p50_us_high: Option<f64>,
    p99_us_low: Option<f64>,
    p99_us_high: Option<f64>,
    p99_9_us_low: Option<f64>,
    p99_9_us_high: Option<f64>,
    cpu_us: Option<f64>,
    context_switches: Option<f64>,
    cpus_in_use: Option<f64>,
    cpus: Option<usize>,
    /// IOPS over none in percent, within a repeat, median.
    gain_percent: Option<f64>,
    gain_percent_low: Option<f64>,
    gain_percent_high: Option<f64>,
    /// IOPS relative to the host, likewise.
    to_host: Option<f64>,
    to_host_low: Option<f64>,
    to_host_high: Option<f64>,
    /// IOPS relative to the first contender with the same load that is not the host, likewise.
    to_first: Option<f64>,
    to_first_low: Option<f64>,
    to_first_high: Option<f64>,
    /// Of guests that ran at once: bytes per second of the least and the most served, and Jain's index.
    vm_least: Option<f64>,
    vm_most: Option<f64>,
    vm_fairness: Option<f64>,
    /// The same of all disks.
    disk_least: Option<f64>,
    disk_most: Option<f64>,
    disk_fairness: Option<f64>,
    cpu_bound: bool,
    emulated: bool,
    /// Whether a run was not steady.
    unsteady: bool,
    /// Whether the search gave it up.
    given_up: bool,
    /// Whether it is the best number of its subject in this cell.
    best: bool,
    /// Whether it is the fewest iothreads that reach 90 % of the best.
    n90: bool,
    /// The storage of a cluster.
    claim: Option<String>,
    /// Where those that were measured at once stood there.
    placement: Option<String>,
}

/// All rows in their order.
pub(super) fn records<'a>(cells: impl IntoIterator<Item = &'a CellSummary>) -> Vec<Record> {
    let cells = cells.into_iter();
    cells.flat_map(|cell| cell.rows.iter().map(|row| Record::new(cell, row))).collect()
}

/// `report.csv`: the names of the fields in the first line, quoted where need be (RFC 4180).
pub(super) fn csv(records: &[Record]) -> String {
    if records.is_empty() {
        // The names are written with the first record.
        let text = csv(&[Record::default()]);
        return text.lines().next().map(|names| format!("{names}\n")).unwrap_or_default();
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    for record in records {
        writer.serialize(record).expect("a record has only plain fields, and memory takes all");
    }
    let bytes = writer.into_inner().expect("memory takes all");
    String::from_utf8(bytes).expect("all fields are text")
}

/// `report.jsonl`.
pub(super) fn lines(records: &[Record]) -> String {
    let line = |record| serde_json::to_string(record).expect("a record has only plain fields");
    records.iter().map(|record| line(record) + "\n").collect()
}

impl Record {
    fn new(cell: &CellSummary, row: &Row) -> Self {
        let (variant, shape) = (&cell.variant, cell.cell.shape());
        let subject = row.contender.subject();
        let verdict = cell.verdicts.iter().find(|(it, _)| *it == subject).map(|(_, it)| it);
        let is = |count: Option<Iothreads>| count.is_some() && row.iothreads() == count;
        let gain = row.to_none.filter(|_| row.iothreads() != Some(Iothreads::NONE));
        let share = row.to_host.filter(|_| !row.contender.is_baseline());
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let median = |ratio: Option<Estimate>| ratio.map(|ratio| ratio.median);
        let low = |ratio: Option<Estimate>| ratio?.interval.map(|interval| interval.low);
        let high = |ratio: Option<Estimate>| ratio?.interval.map(|interval| interval.high);
        Self {
            op: shape.operation().to_string(),
            bs: shape.block().get(),
            jobs: shape.jobs(),
            iodepth: shape.iodepth(),
            subject: subject.to_string(),
            iothreads: row.iothreads().map(|iothreads| iothreads.to_string()),
            queues: row.queues,
            purpose: if row.is_confirmed() { "confirm" } else { "sweep" }.to_owned(),
            samples: row.iops.samples,
            iops: finite(Some(row.iops.median)),
            iops_lowest: finite(Some(row.iops.lowest)),
            iops_highest: finite(Some(row.iops.highest)),
            iops_low: row.iops.interval.map(|interval| interval.low),
            iops_high: row.iops.interval.map(|interval| interval.high),
            confidence: row.iops.interval.map(|interval| interval.confidence),
            bytes_per_second: finite(Some(row.bytes_per_second)),
            p50_us: us(row.p50),
            p99_us: us(row.p99),
            p99_9_us: us(row.p99_9),
            p50_us_low: low(row.percentiles[0]),
            p50_us_high: high(row.percentiles[0]),
            p99_us_low: low(row.percentiles[1]),
            p99_us_high: high(row.percentiles[1]),
            p99_9_us_low: low(row.percentiles[2]),
            p99_9_us_high: high(row.percentiles[2]),
            cpu_us: finite(row.cpu_us),
            context_switches: finite(row.switches),
            cpus_in_use: finite(row.cpus.map(|(in_use, _)| in_use)),
            cpus: row.cpus.map(|(_, of)| of),
            gain_percent: median(gain).map(percent),
            gain_percent_low: low(gain).map(percent),
            gain_percent_high: high(gain).map(percent),
            to_host: median(share),
            to_host_low: low(share),
            to_host_high: high(share),
            to_first: median(row.to_first),
            to_first_low: low(row.to_first),
            to_first_high: high(row.to_first),
            vm_least: row.vms.map(|vms| vms.least),
            vm_most: row.vms.map(|vms| vms.most),
            vm_fairness: row.vms.map(|vms| vms.jain),
            disk_least: row.disks.map(|disks| disks.least),
            disk_most: row.disks.map(|disks| disks.most),
            disk_fairness: row.disks.map(|disks| disks.jain),
            cpu_bound: row.cpu_bound,
            emulated: row.emulated,
            unsteady: row.unsteady_runs.are_most(),
            given_up: cell.is_given_up(row),
            best: is(verdict.map(|verdict| verdict.best)),
            n90: is(verdict.map(|verdict| verdict.n90)),
            ..Self::of_variant(variant)
        }
    }

    /// Where it was measured, and nothing else.
    fn of_variant(variant: &Variant) -> Self {
        Self {
            device: variant.device.to_string(),
            image: variant.image.to_string(),
            aio: variant.aio.to_string(),
            fs: variant.fs.to_string(),
            stripe: variant.stripe.to_string(),
            delay: variant.delay.to_string(),
            vms: variant.vms,
            disks: variant.disks,
            claim: variant.claim.map(|claim| claim.to_string()),
            placement: variant.claim.map(|_| variant.placement.to_string()),
            ..Self::default()
        }
    }
}

fn us(time: Option<Duration>) -> Option<f64> {
    time.map(in_us)
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use findings::summary::summarise;
    use plan::testing::{cell, client};
    use records::testing::run;

    use super::*;

    fn two_rows() -> Vec<Record> {
        let cell = cell("80/20", 4096, 2, 16);
        let runs = [run(cell, client(0), 0, 1000), run(cell, client(2), 0, 1500)];
        records(&summarise(&runs, 8))
    }

    #[test]
    fn a_row_is_a_line_of_csv_with_the_same_names_as_in_json() {
        let text = csv(&two_rows());
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let names: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        let field = |row: usize, name: &str| {
            let column = names.iter().position(|it| it == name).unwrap();
            rows[row][column].to_owned()
        };
        for (name, none, two) in [
            ("op", "80/20", "80/20"),
            ("bs", "4096", "4096"),
            ("subject", "client", "client"),
            ("iothreads", "none", "2"),
            ("iops", "1000.0", "1500.0"),
            ("gain_percent", "", "50.0"),
            ("to_host", "", ""),
            ("best", "false", "true"),
            ("n90", "false", "true"),
        ] {
            assert_eq!((field(0, name).as_str(), field(1, name).as_str()), (none, two), "{name}");
        }
        for line in lines(&two_rows()).lines() {
            let fields: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(line).unwrap();
            assert!(names.iter().all(|name| fields.contains_key(name)), "{line}");
            assert_eq!(fields.len(), names.len());
        }
    }

    #[test]
    fn commas_quotes_and_line_ends_are_quoted() {
        let mut record = two_rows().remove(0);
        record.image = "a,\"b\"\nc".to_owned();
        let text = csv(&[record]);
        assert!(text.contains("\"a,\"\"b\"\"\nc\""), "{text}");
    }

    #[test]
    fn what_is_no_number_is_empty_and_null() {
        let cell = cell("read", 4096, 1, 1);
        let mut cells = summarise(&[run(cell, client(1), 0, 5)], 8);
        cells[0].rows[0].iops.median = f64::NAN;
        cells[0].rows[0].bytes_per_second = f64::INFINITY;
        let records = records(&cells);
        assert_eq!(records[0].iops, None);
        assert!(lines(&records).contains("\"iops\":null"));
        assert!(lines(&records).contains("\"bytes_per_second\":null"));
        assert!(!csv(&records).contains("NaN") && !csv(&records).contains("inf"));
    }

    #[test]
    fn without_rows_there_are_the_names() {
        let text = csv(&[]);
        assert!(
            text.starts_with("device,image,") && text.ends_with(",n90,claim,placement\n"),
            "{text}"
        );
        assert_eq!(lines(&[]), "");
    }
}
