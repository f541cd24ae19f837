//! `ringloom report A B`: two results files side by side.

use std::path::Path;

use anyhow::Result;
use findings::compare::Comparison;
use findings::summary::{CellSummary, summarise};
use records::results::{Group, Header, ReadableResults};
use report::{Compared, Side, Style, comparison_page, render_comparison};

use super::{PAGE, Source, files, findings, refuse_results, unwritten};
use crate::kept::COMPARISON;
use crate::output::print;

/// Prints the comparison; writes it too, also as a page, if a directory is named.
///
/// # Errors
/// If nothing of one of the two can be used, or the comparison cannot be written.
pub(super) fn report(a: &Source, b: &Source, out: Option<&Path>) -> Result<()> {
    refuse_results(out, None)?;
    let (read_a, read_b) = (ReadableResults::read(&a.path)?, ReadableResults::read(&b.path)?);
    let ComparisonText { text, markdown, page, .. } =
        rendered((&a.name, &read_a), (&b.name, &read_b));
    print(&text)?;
    let Some(out) = out else { return print(&unwritten(COMPARISON)) };
    print("\n")?;
    let files = [(COMPARISON.to_owned(), markdown), (PAGE.to_owned(), page)];
    print(&files::write(out, &[&a.path, &b.path], &files)?)
}

/// A comparison of two results files in all its forms.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ComparisonText {
    /// As `ringloom report` prints it.
    pub text: String,
    /// The content of `compare.md`.
    pub markdown: String,
    /// The content of `report.html`.
    pub page: String,
    /// How many rows are called faster or slower.
    pub changed: usize,
    /// How many rows only one of the two has.
    pub alone: usize,
}

/// What `ringloom report A B` makes of the contents of two results files. Pure, and whatever the bytes are; so the fuzz
/// target `results_file` calls it.
///
/// # Errors
/// If nothing of one of the two can be used.
pub fn rendered_pair(a: &[u8], b: &[u8]) -> Result<ComparisonText> {
    let (a, b) = (ReadableResults::parse(a)?, ReadableResults::parse(b)?);
    Ok(rendered(("a", &a), ("b", &b)))
}

/// A file has at least one group; the first is compared.
pub(super) fn rendered(a: (&str, &ReadableResults), b: (&str, &ReadableResults)) -> ComparisonText {
    let (Some(first), Some(second)) = (a.1.groups.first(), b.1.groups.first()) else {
        return ComparisonText::default();
    };
    let (cells_a, cells_b) = (cells(first), cells(second));
    let (notes_a, notes_b) = (problems(a.1), problems(b.1));
    let comparison = Comparison::new(&cells_a, &cells_b);
    let compared = Compared {
        a: Side { name: a.0, findings: findings(first, &notes_a), cells: &cells_a },
        b: Side { name: b.0, findings: findings(second, &notes_b), cells: &cells_b },
        differences: &differences(&first.header, &second.header),
        comparison: &comparison,
    };
    ComparisonText {
        text: render_comparison(Style::Plain, &compared),
        markdown: render_comparison(Style::Markdown, &compared),
        page: comparison_page(&compared),
        changed: comparison.rows().filter(|row| row.verdict.is_change()).count(),
        alone: comparison.only_a.len() + comparison.only_b.len(),
    }
}

fn cells(group: &Group) -> Vec<CellSummary> {
    summarise(&group.runs, group.header.machine.cores)
}

fn problems(read: &ReadableResults) -> Vec<String> {
    let more = (read.groups.len() > 1).then(|| {
        let kinds = read.groups.len();
        format!("it holds {kinds} kinds of runs that do not compare; only the first is shown here")
    });
    more.into_iter().chain(read.problems.iter().cloned()).collect()
}

/// What of B is not as in A. That two runs have other seeds is as it should be.
fn differences(a: &Header, b: &Header) -> Vec<String> {
    if a.is_unknown() || b.is_unknown() {
        return vec!["of at least one of them nothing is known".to_owned()];
    }
    let mut b = b.clone();
    b.settings.seed = a.settings.seed;
    b.differences(a)
}
