//! Words, numbers and tables as the report writes them. Pure functions.

use std::borrow::Borrow;
use std::time::Duration;

use findings::stats::{Estimate, Interval};
use findings::summary::CellSummary;
use plan::cell::Cell;
use plan::contender::Contender;
use plan::units::{Bytes, counted, grouped};
use plan::variant::Variant;

use super::Style;
use crate::markdown::escaped;
use crate::table::Table;
pub(super) use plan::units::short;

/// The narrowest terminal that is common: sentences are broken there.
const TEXT_WIDTH: usize = 80;
/// What no plain table is wider than.
pub(super) const TABLE_WIDTH: usize = 100;
const MISSING: &str = "–";

/// Breaks a text into lines for a terminal; a number stays with its `%`. Markdown needs no breaks, and takes nothing of it
/// as markup.
pub(super) fn wrapped(style: Style, text: &str) -> String {
    if style == Style::Markdown {
        return format!("{}\n", escaped(text));
    }
    let mut lines = String::new();
    let mut width = 0;
    for word in text.replace(" %", "\u{a0}%").split(' ') {
        let length = word.chars().count();
        if width > 0 && width + 1 + length > TEXT_WIDTH {
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

/// A heading, its table, and lines below it.
pub(super) fn section(style: Style, title: &str, table: &Table, below: &[String]) -> String {
    match style {
        Style::Plain => {
            let below: String = below.iter().map(|line| indented(line)).collect();
            format!("\n{}{}{below}", wrapped(style, title), table.plain())
        }
        Style::Markdown => {
            let below: String = below.iter().map(|line| format!("\n{}\n", escaped(line))).collect();
            format!("\n## {}\n\n{}{below}", escaped(title), table.markdown())
        }
    }
}

/// A section for each of these, and below all what the words of their tables mean; nothing where there are none.
pub(super) fn sections<T>(
    style: Style,
    all: &[T],
    section: impl Fn(&T) -> String,
    meanings: impl Fn(&[T]) -> Vec<String>,
) -> String {
    if all.is_empty() {
        return String::new();
    }
    all.iter().map(section).collect::<String>() + &legend(style, &meanings(all))
}

/// A list, in Markdown below a heading; nothing for an empty one.
pub(super) fn headed(style: Style, heading: &str, lines: &[String]) -> String {
    let heading = match style {
        Style::Plain => String::new(),
        Style::Markdown => format!("\n## {heading}\n"),
    };
    if lines.is_empty() { String::new() } else { heading + &legend(style, lines) }
}

/// What the words of tables mean, a sentence each.
pub(super) fn legend(style: Style, lines: &[String]) -> String {
    format!("\n{}", listed(style, lines))
}

/// With line breaks and other control characters as they are escaped: a path may have them.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
    }
    line
}

/// A list, each entry on one line of its own; in Markdown with its marks.
pub(super) fn listed(style: Style, lines: &[String]) -> String {
    let line = |line: &String| match (style, one_line(line)) {
        (Style::Plain, line) => {
            format!("{}\n", wrapped(style, &line).trim_end().replace('\n', "\n  "))
        }
        (Style::Markdown, line) => format!("- {}\n", escaped(&line)),
    };
    lines.iter().map(line).collect()
}

/// `QEMU, libvirt and KubeVirt`.
pub(super) fn enumerated(words: &[impl Borrow<str>]) -> String {
    match words {
        [] => String::new(),
        [one] => one.borrow().to_owned(),
        [some @ .., last] => format!("{} and {}", some.join(", "), last.borrow()),
    }
}

fn indented(text: &str) -> String {
    wrapped(Style::Plain, text).lines().map(|line| format!("  {line}\n")).collect()
}

/// `randread 4k`.
pub(super) fn operation(cell: Cell) -> String {
    let shape = cell.shape();
    format!("{} {}", shape.operation(), Bytes(u64::from(shape.block().get())))
}

/// `randread 4k, 2 jobs × iodepth 16; nvme, 2 VMs`.
pub(super) fn place(cell: Cell, variant: &Variant) -> String {
    let shape = cell.shape();
    let jobs = counted(usize::from(shape.jobs()), "job");
    let place = format!("{}, {jobs} × iodepth {}", operation(cell), shape.iodepth());
    on(place, variant)
}

/// A contender, marked where its guest was emulated.
pub(super) fn who(contender: Contender, emulated: bool) -> String {
    let mark = if emulated { " †" } else { "" };
    format!("{contender}{mark}")
}

/// Adds what differs from the usual variant.
pub(super) fn on(place: String, variant: &Variant) -> String {
    let variant = variant.to_string();
    if variant.is_empty() { place } else { format!("{place}; {variant}") }
}

/// Whether they were measured on a cluster.
pub(super) fn is_of_cluster(cells: &[CellSummary]) -> bool {
    let mut rows = cells.iter().flat_map(|cell| &cell.rows);
    rows.any(|row| row.contender.subject().is_of_cluster())
}

/// Words of what figures are compared with: in a cluster that is the pod, not the host.
pub(super) fn of_baseline(words: &str, cells: &[CellSummary]) -> String {
    if !is_of_cluster(cells) {
        return words.to_owned();
    }
    words.replace("bare file", "pod").replace("host", "pod").replace("Host", "Pod")
}

pub(super) fn or_missing(text: Option<String>) -> String {
    text.unwrap_or_else(|| MISSING.to_owned())
}

/// `9.50k–10.1k`.
pub(super) fn range(spread: Estimate) -> String {
    format!("{}–{}", short(spread.lowest), short(spread.highest))
}

/// The interval, or in brackets the range of too few repeats.
pub(super) fn interval(estimate: Estimate) -> String {
    match estimate.interval {
        Some(Interval { low, high, .. }) => format!("{}–{}", short(low), short(high)),
        None => format!("({})", range(estimate)),
    }
}

pub(super) fn megabytes(bytes_per_second: f64) -> String {
    let megabytes = bytes_per_second / 1e6;
    if megabytes < 99.95 { format!("{megabytes:.1}") } else { grouped(megabytes) }
}

pub(super) fn microseconds(latency: Option<Duration>) -> String {
    or_missing(latency.map(|latency| grouped(in_us(latency))))
}

pub(super) fn in_us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// CPU time per request in µs.
pub(super) fn cpu_us(time: Option<f64>) -> String {
    or_missing(time.map(|time| format!("{time:.1}")))
}

/// `1.9/2`: CPUs in use, and how many there are.
pub(super) fn cpus(in_use: Option<(f64, usize)>) -> String {
    or_missing(in_use.map(|(in_use, of)| format!("{in_use:.1}/{of}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        for (number, text) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (9_994.0, "9.99k"),
            (9_996.0, "10.0k"),
            (99_949.0, "99.9k"),
            (99_951.0, "100k"),
            (999_499.0, "999k"),
            (999_501.0, "1.00M"),
            (12_345_678.0, "12.3M"),
        ] {
            assert_eq!(short(number), text);
        }
    }

    #[test]
    fn long_sentences_are_broken_for_a_terminal() {
        let text = format!("{} +123 % of it", "word ".repeat(15).trim_end());
        let lines = wrapped(Style::Plain, &text);
        assert_eq!(lines, format!("{}\n+123 % of it\n", "word ".repeat(15).trim_end()));
        assert_eq!(wrapped(Style::Markdown, &text), format!("{text}\n"));
    }
}
