//! The report: a table per cell, the recommendation, and the line to paste. Pure functions.
//!
//! The same text goes to standard output (`Style::Plain`) and to `report.md` (`Style::Markdown`).

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use load::Spread;

use crate::cell::{Cell, Contender, Iothreads};
use crate::recommend::{Recommendation, percent_gain, recommend, sentence};
use crate::results::{Header, Run};
use crate::summary::{CellSummary, Row, summarise};
use crate::table::Table;
use crate::target::Origin;
use crate::units::{Bytes, counted, grouped};

/// The narrowest terminal that is common.
const TEXT_WIDTH: usize = 80;
const MISSING: &str = "–";
const COLUMNS: [&str; 10] =
    ["iothreads", "IOPS", "spread", "MB/s", "p50", "p99", "p99.9", "CPU", "gain", "/host"];

/// For whom the report is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Markdown,
}

/// Renders what the runs say. `notes` are what bends the numbers; `skipped` was not measured.
pub(crate) fn render(
    style: Style,
    header: &Header,
    runs: &[Run],
    skipped: &[Cell],
    notes: &[String],
) -> String {
    let cells = summarise(runs, header.machine.cores);
    let mut text = head(style, header);
    for cell in &cells {
        text.push_str(&section(style, cell));
    }
    text.push_str(&legend(style, header, &cells));
    for note in notes {
        text.push_str(&wrapped(style, &format!("Note: {note}.")));
    }
    if !skipped.is_empty() {
        let names: Vec<_> = skipped.iter().map(ToString::to_string).collect();
        let names = names.join(", ");
        let line = format!("Skipped, they write (--destructive allows it): {names}.");
        text.push_str(&wrapped(style, &line));
    }
    if let Some(recommendation) = recommend(&cells) {
        text.push_str(&advice(style, header, &recommendation, &cells));
    }
    text
}

fn head(style: Style, header: &Header) -> String {
    let Header { disk, machine, settings, .. } = header;
    let name = match disk.origin {
        Origin::Scratch => "a scratch file".to_owned(),
        Origin::User => disk.path.display().to_string(),
    };
    let title = format!("{name}: {}", disk.description);
    let machine =
        format!("{}, {}, {}", counted(machine.cores, "core"), machine.cpu, machine.kernel);
    let daemon = &header.daemon;
    let method = format!(
        "{} of {} s after {} s of ramp, seed {}",
        counted(usize::from(settings.repeats), "repeat"),
        settings.runtime,
        settings.ramp,
        settings.seed
    );
    match style {
        Style::Plain => format!("{title}\n{machine}\n{daemon}\n{method}\n"),
        Style::Markdown => {
            format!(
                "# ringloom tune\n\n- Disk: {title}\n- Machine: {machine}\n- Daemon: {daemon}\n\
                 - Method: {method}\n"
            )
        }
    }
}

fn section(style: Style, summary: &CellSummary) -> String {
    let shape = summary.cell.shape();
    let title = format!(
        "{} {}, {} × iodepth {}",
        shape.operation(),
        Bytes(u64::from(shape.block().get())),
        counted(usize::from(shape.jobs()), "job"),
        shape.iodepth()
    );
    let mut table = Table::new(&COLUMNS);
    for row in &summary.rows {
        table.push(line(row));
    }
    let verdict = match summary.verdict {
        Some(verdict) => format!("best: {}, n90: {}", verdict.best, n90(verdict.n90)),
        None => String::new(),
    };
    let verdict = match (style, verdict.is_empty()) {
        (_, true) => String::new(),
        (Style::Plain, false) => format!("  {verdict}\n"),
        (Style::Markdown, false) => format!("\n{verdict}\n"),
    };
    match style {
        Style::Plain => format!("\n{title}\n{}{verdict}", table.plain()),
        Style::Markdown => format!("\n## {title}\n\n{}{verdict}", table.markdown()),
    }
}

fn n90(iothreads: Iothreads) -> String {
    match iothreads {
        Iothreads::NONE => "0 (none)".to_owned(),
        count => count.to_string(),
    }
}

fn line(row: &Row) -> Vec<String> {
    let mark = if row.cpu_bound { " *" } else { "" };
    let gain = row.to_none.filter(|_| row.iothreads() != Some(Iothreads::NONE));
    let share = row.to_host.filter(|_| row.contender != Contender::Host);
    vec![
        format!("{}{mark}", row.contender),
        short(row.iops.median),
        format!("{}–{}", short(row.iops.lowest), short(row.iops.highest)),
        megabytes(row.bytes_per_second),
        microseconds(row.p50),
        microseconds(row.p99),
        microseconds(row.p99_9),
        or_missing(row.cpu_us.map(|cpu| format!("{cpu:.1}"))),
        or_missing(gain.map(|gain: Spread| percent_gain(gain.median))),
        or_missing(share.map(|share| format!("{:.0} %", share.median * 100.0))),
    ]
}

fn or_missing(text: Option<String>) -> String {
    text.unwrap_or_else(|| MISSING.to_owned())
}

/// Three digits: `950`, `9.50k`, `95.0k`, `950k`, `1.25M`.
fn short(number: f64) -> String {
    let (scaled, suffix) = if number < 999.5 {
        return format!("{number:.0}");
    } else if number < 999_500.0 {
        (number / 1e3, "k")
    } else {
        (number / 1e6, "M")
    };
    let decimals = if scaled < 9.995 { 2 } else { usize::from(scaled < 99.95) };
    format!("{scaled:.decimals$}{suffix}")
}

fn megabytes(bytes_per_second: f64) -> String {
    let megabytes = bytes_per_second / 1e6;
    if megabytes < 99.95 { format!("{megabytes:.1}") } else { grouped(megabytes) }
}

fn microseconds(latency: Option<Duration>) -> String {
    or_missing(latency.map(|latency| grouped(latency.as_secs_f64() * 1e6)))
}

fn legend(style: Style, header: &Header, cells: &[CellSummary]) -> String {
    let mut lines = [
        "IOPS: median of the repeats; spread: lowest and highest. p50 to p99.9: latency in µs.",
        "CPU: µs of CPU time per request, of the daemon (host: of the load).",
        "gain: IOPS over none; /host: IOPS relative to the bare file; both within a repeat, median.",
        "n90: fewest iothreads that reach 90 % of the best.",
    ]
    .join("\n");
    let bound = cells.iter().flat_map(|cell| &cell.rows).any(|row| row.cpu_bound);
    if bound {
        let star = if style == Style::Markdown { "\\*" } else { "*" };
        let cores = counted(header.machine.cores, "core");
        write!(
            lines,
            "\n{star} CPU-bound on this machine: jobs and iothreads are more than its {cores}, so\n  \
             these rows say little about a machine with more."
        )
        .expect("writing to a string cannot fail");
    }
    format!("\n{lines}\n")
}

fn advice(
    style: Style,
    header: &Header,
    recommendation: &Recommendation,
    cells: &[CellSummary],
) -> String {
    let sentence = wrapped(style, &sentence(recommendation, cells));
    let command = command(header, recommendation.iothreads);
    match style {
        Style::Plain => format!("\n{sentence}\n    {command}\n"),
        Style::Markdown => {
            format!("\n## Recommendation\n\n{sentence}\n```sh\n{command}\n```\n")
        }
    }
}

/// Breaks a text into lines for a terminal; a number stays with its `%`. Markdown needs no breaks.
fn wrapped(style: Style, text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.replace(" %", "\u{a0}%").split(' ') {
        let length = word.chars().count();
        if style == Style::Plain && width > 0 && width + 1 + length > TEXT_WIDTH {
            lines.push('\n');
            width = 0;
        }
        if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines.push('\n');
    lines.replace('\u{a0}', " ")
}

/// The line to paste. A scratch file is gone by then, so it names no path.
fn command(header: &Header, iothreads: Iothreads) -> String {
    let path = match header.disk.origin {
        Origin::Scratch => "PATH".to_owned(),
        Origin::User => quoted(&header.disk.path),
    };
    let threads = match iothreads {
        Iothreads::NONE => String::new(),
        count => format!(" --iothreads {count}"),
    };
    format!("ringloom serve {path} --socket /run/ringloom/disk.sock{threads}")
}

/// Quotes for a shell if need be.
fn quoted(path: &Path) -> String {
    let path = path.display().to_string();
    let harmless = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if path.chars().all(harmless) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests;
