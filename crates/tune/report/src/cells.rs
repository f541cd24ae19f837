//! The tables of a sweep: one per cell and variant, a line per contender, and under it one per guest where several
//! ran at once. Pure functions.

mod parts;

use findings::summary::{CellSummary, Row, Verdict};
use plan::contender::{Iothreads, Subject};
use plan::lists::sorted;
use plan::units::{counted, percent_gain};
use records::results::Header;

use super::text::{
    TABLE_WIDTH, cpu_us, cpus, interval, is_of_cluster, legend as legend_of, megabytes,
    microseconds, of_baseline, or_missing, place, section, short,
};
use super::{EMULATED, EMULATED_BESIDE_PODS, Style};
use crate::table::Table;

const COLUMNS: [&str; 12] = [
    "subject", "IOPS", "interval", "MB/s", "p50", "p99", "p99.9", "CPU", "ctx", "CPUs", "gain",
    "/host",
];
/// The columns that a table of a terminal has only if it does not get too wide by them.
const SPARE: [&str; 2] = ["ctx", "CPUs"];

/// The tables and what their words mean; nothing without a sweep.
pub(super) fn render(style: Style, header: &Header, cells: &[CellSummary]) -> String {
    if cells.is_empty() {
        return String::new();
    }
    let mut tables: Vec<Table> = cells.iter().map(table).collect();
    // All tables or none, so that they can be compared and one legend explains them.
    let spare = style == Style::Markdown || tables.iter().all(|it| it.width() <= TABLE_WIDTH);
    if !spare {
        tables = tables.iter().map(|table| table.without(&SPARE)).collect();
    }
    let sections = cells.iter().zip(&tables).map(|(cell, table)| {
        let below = match (verdicts(cell), style) {
            (lines, Style::Plain) => lines,
            (lines, Style::Markdown) if lines.is_empty() => lines,
            (lines, Style::Markdown) => vec![lines.join("; ")],
        };
        section(style, &place(cell.cell, &cell.variant), table, &below)
    });
    sections.collect::<String>() + &legend_of(style, &legend(header, cells, spare))
}

/// The heading of a cell's table.
pub(super) fn columns(cell: &CellSummary) -> [&'static str; COLUMNS.len()] {
    let is_of_cluster = is_of_cluster(std::slice::from_ref(cell));
    COLUMNS.map(|it| if it == "/host" && is_of_cluster { "/pod" } else { it })
}

fn table(cell: &CellSummary) -> Table {
    Table::of(&columns(cell), cell.rows.iter().flat_map(|row| lines(cell, row)))
}

/// That of the contender, and below it those of several guests that ran at once.
pub(super) fn lines(cell: &CellSummary, row: &Row) -> Vec<Vec<String>> {
    std::iter::once(line(cell, row)).chain(parts::lines(&row.parts)).collect()
}

fn line(cell: &CellSummary, row: &Row) -> Vec<String> {
    let mark = mark(cell, row);
    let gain = row.to_none.filter(|_| row.iothreads() != Some(Iothreads::NONE));
    let share = row.to_host.filter(|_| !row.contender.is_baseline());
    vec![
        format!("{}{mark}", row.contender),
        short(row.iops.median),
        interval(row.iops),
        megabytes(row.bytes_per_second),
        microseconds(row.p50),
        microseconds(row.p99),
        microseconds(row.p99_9),
        cpu_us(row.cpu_us),
        or_missing(row.switches.map(|switches| format!("{switches:.2}"))),
        cpus(row.cpus),
        or_missing(gain.map(|gain| percent_gain(gain.median))),
        or_missing(share.map(|share| format!("{:.0} %", share.median * 100.0))),
    ]
}

/// ` †`, ` *~`: what is to be said of a row, as the legend explains it.
pub(super) fn mark(cell: &CellSummary, row: &Row) -> String {
    let marks: String = [
        (row.emulated, '†'),
        (row.cpu_bound && !row.emulated, '*'),
        (row.unsteady_runs.are_most(), '~'),
        (cell.is_given_up(row), '°'),
    ]
    .into_iter()
    .filter_map(|(is_so, mark)| is_so.then_some(mark))
    .collect();
    if marks.is_empty() { marks } else { format!(" {marks}") }
}

/// `best: 2, n90: 1 (1–2)`, with the subject where there are several, and from where on all numbers reach 90 %, if that
/// is another.
pub(super) fn verdicts(cell: &CellSummary) -> Vec<String> {
    let many = cell.verdicts.len() > 1;
    let sentence = |(subject, verdict): &(Subject, Verdict)| {
        let who = if many { format!("{subject}: ") } else { String::new() };
        let spread = match verdict.n90_spread {
            Some((low, high)) if low != high => format!(" ({low}–{high})"),
            Some(_) | None => String::new(),
        };
        let stays = match verdict.n90_stays {
            Some(stays) if stays == verdict.n90 => String::new(),
            Some(stays) => format!("; all from {stays} on"),
            None => "; the highest is below 90 %".to_owned(),
        };
        format!("{who}best: {}, n90: {}{spread}{stays}", verdict.best, verdict.n90)
    };
    cell.verdicts.iter().map(sentence).collect()
}

/// What the words and marks of the tables mean.
pub(super) fn legend(header: &Header, cells: &[CellSummary], spare: bool) -> Vec<String> {
    let rows = || cells.iter().flat_map(|cell| &cell.rows);
    let guests = rows().any(|row| row.contender.subject().is_vm());
    let serving =
        if guests { "the daemon and QEMU without its guests' CPUs" } else { "the daemon" };
    let mut lines = vec![
        "IOPS: median of the repeats; interval: contains the true median in 95 % of cases, or in \
         brackets the lowest and highest of fewer than six repeats."
            .to_owned(),
        "p50 to p99.9: latency in µs.".to_owned(),
    ];
    if is_of_cluster(cells) {
        lines.push(
            "CPU, ctx: what serves a claim is not seen. CPUs: in use on the nodes of the pods, and how many there are."
                .to_owned(),
        );
    } else {
        lines.push(format!("CPU: µs of CPU time per request, of {serving} (host: of the load)."));
        if spare {
            lines.push(
                "ctx: context switches per request, of the same. CPUs: in use on the host, and how \
                 many there are."
                    .to_owned(),
            );
        }
    }
    let baseline = "/host: IOPS relative to the bare file";
    lines.push(format!(
        "gain: IOPS over none; {}; both within a repeat, median.",
        of_baseline(baseline, cells)
    ));
    lines.push(
        "n90: fewest iothreads that reach 90 % of the best; in brackets what it is in 95 % of \
         resamplings, if that varies."
            .to_owned(),
    );
    let queues = queues(cells);
    if !queues.is_empty() {
        lines.push(format!("Queues of each disk: {}.", queues.join(", ")));
    }
    if rows().any(|row| row.parts.len() > parts::EACH_MAX) {
        lines.push(parts::LEGEND.to_owned());
    }
    if rows().any(|row| row.emulated) {
        let what = if is_of_cluster(cells) { EMULATED_BESIDE_PODS } else { EMULATED };
        lines.push(format!("† {what}."));
    }
    if rows().any(|row| row.unsteady_runs.are_most()) {
        lines.push("~ not steady: most runs rose, fell or varied within themselves.".to_owned());
    }
    if cells.iter().any(|cell| cell.rows.iter().any(|row| cell.is_given_up(row))) {
        lines.push(
            "° only explored: too far from the best to be measured again, so not very exact."
                .to_owned(),
        );
    }
    if rows().any(|row| row.cpu_bound && !row.emulated) {
        let cores = counted(header.machine.cores, "core");
        lines.push(format!(
            "* CPU-bound on this machine: jobs and iothreads are more than its {cores}, so \
             these rows say little about a machine with more."
        ));
    }
    lines
}

/// `client 4`, `vm:qemu 2`: the queues each subject had.
fn queues(cells: &[CellSummary]) -> Vec<String> {
    let rows = cells.iter().flat_map(|cell| &cell.rows).filter(|row| row.queues > 0);
    let all = sorted(rows.map(|row| (row.contender.subject(), row.queues)));
    all.iter().map(|(subject, queues)| format!("{subject} {queues}")).collect()
}

#[cfg(test)]
mod tests;
