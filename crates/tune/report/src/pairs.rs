//! Ways to serve a disk against each other: a table per pair. Pure functions.

use findings::stats::{Estimate, geometric_mean};
use findings::summary::{Pair, PairRow};
use plan::contender::Contender;
use plan::lists::sorted;
use plan::units::{counted, percent_gain};

use super::Style;
use super::text::{or_missing, section, sections, wrapped};
use crate::table::Table;

pub(super) const COLUMNS: [&str; 5] = ["cell", "IOPS", "interval", "p99", "CPU"];
/// More lines say too much on a terminal.
const LINES_MAX: usize = 24;

/// The tables and what their words mean; nothing where only one way was measured.
pub(super) fn render(style: Style, pairs: &[Pair]) -> String {
    let shown = |pair: &Pair| {
        let fits = style == Style::Markdown || pair.rows.len() <= LINES_MAX;
        let lines = if fits { pair.rows.iter().map(line).collect() } else { means(pair) };
        section(style, &title(pair), &Table::of(&COLUMNS, lines), &[finding(pair)])
    };
    sections(style, pairs, shown, |_| meanings())
}

/// What was found, a sentence each.
pub(super) fn last(style: Style, pairs: &[Pair]) -> String {
    pairs.iter().map(|pair| format!("\n{}", wrapped(style, &sentence(pair)))).collect()
}

pub(super) fn meanings() -> Vec<String> {
    vec![
        "Each against the same repeat of the other, so that what a boot did to both cancels; median, and interval as of \
         IOPS. p99 and CPU time per request of everything that takes part: less is better."
            .to_owned(),
    ]
}

/// `qcow2 against raw`.
pub(super) fn title(pair: &Pair) -> String {
    format!("{} against {}", pair.other, pair.base)
}

pub(super) fn line(row: &PairRow) -> Vec<String> {
    let variant = row.variant.to_string();
    let on = if variant.is_empty() { variant } else { format!("; {variant}") };
    let change = |ratio: Option<Estimate>| or_missing(ratio.map(|it| percent_gain(it.median)));
    vec![
        format!("{}, {}{on}", row.cell, row.contender),
        percent_gain(row.iops.median),
        interval(row.iops),
        change(row.p99),
        change(row.cpu),
    ]
}

/// A line per contender, with the geometric mean of all its cells; their figures are in report.md and on the page.
fn means(pair: &Pair) -> Vec<Vec<String>> {
    let contenders = sorted(pair.rows.iter().map(|row| row.contender));
    let line = |contender: Contender| {
        let rows = || pair.rows.iter().filter(|row| row.contender == contender);
        let mean = |figure: fn(&PairRow) -> Option<Estimate>| {
            let medians = rows().filter_map(figure).map(|it| it.median);
            or_missing(geometric_mean(medians).map(percent_gain))
        };
        let (iops, interval) = (mean(|row| Some(row.iops)), or_missing(None));
        let cells = counted(rows().count(), "cell");
        vec![
            format!("{cells}, {contender}"),
            iops,
            interval,
            mean(|row| row.p99),
            mean(|row| row.cpu),
        ]
    };
    contenders.into_iter().map(line).collect()
}

/// `−3 % to +8 %`, in brackets the range of too few repeats.
fn interval(ratio: Estimate) -> String {
    let (low, high) = ratio.ends();
    let range = format!("{} to {}", percent_gain(low), percent_gain(high));
    if ratio.interval.is_some() { range } else { format!("({range})") }
}

/// The same with its title before it.
pub(super) fn sentence(pair: &Pair) -> String {
    format!("{}: {}", title(pair), finding(pair))
}

/// How often it is faster and slower, as far as that is known.
pub(super) fn finding(pair: &Pair) -> String {
    let known = || pair.rows.iter().filter_map(|row| row.iops.interval);
    let faster = known().filter(|it| it.low > 1.0).count();
    let slower = known().filter(|it| it.high < 1.0).count();
    let apart = known().count() - faster - slower;
    let rows = pair.rows.len();
    let mean = geometric_mean(pair.rows.iter().map(|row| row.iops.median));
    let mean = mean.map_or_else(String::new, |mean| {
        format!("{} IOPS as geometric mean; ", percent_gain(mean))
    });
    let unknown = rows - known().count();
    if unknown == rows {
        return format!("{mean}too few repeats to tell in any of {}.", counted(rows, "row"));
    }
    let few = if unknown == 0 {
        String::new()
    } else {
        format!(", of too few repeats to tell in {unknown}")
    };
    format!(
        "{mean}faster in {faster}, slower in {slower}, not told apart in {apart} of {}{few}.",
        counted(rows, "row")
    )
}

#[cfg(test)]
mod tests;
