//! `report.html`: the whole report as one file that needs nothing else; of a comparison too. Pure functions.
//!
//! Each child renders one part; `plot` draws. The style sheet and the script are beside them and stand in the page. The
//! script only filters, copies and opens tables for print: without it everything is shown.
//!
//! Invariants: nothing refers outside of the file; all that comes from results is escaped (`maud` does, in text and
//! attributes), and the script reads it from attributes only.
//! Limits: 144 cells with 19 rows each, a full sweep of two subjects, make less than 2.5 MB, with 28 rows less than 3.5 MB; a
//! comparison of these less than 3 MB.
//!
//! Hooks for tests and for the script:
//! - `#filter-op`, `#filter-size`, `#filter-subject`, in a comparison `#filter-verdict`: groups of `button[data-value]`;
//!   `data-value=""` is all.
//! - `section.cell[data-op][data-size][data-subjects]`: one per cell and variant; the subjects are parted by spaces. In a
//!   comparison it is `.pairs`, and goes when none of its rows is left.
//! - `[data-op]`, `[data-size]`, `[data-subject]`, `[data-verdict]` elsewhere: rows, series and legends of one.
//! - `.off`: hidden by a filter. `#shown`: how many `section.cell` are not.

mod around;
mod cells;
mod charts;
mod compare;
mod curves;
mod files;
mod filters;
mod grids;
mod head;
mod pairs;
mod plot;
mod probes;
mod single;
mod sizes;
mod strip;
mod times;

use findings::summary::{CellSummary, FailedCell};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use plan::cell::Cell;
use plan::contender::{Contender, Iothreads, Subject};
use plan::lists::sorted;
use plan::units::{Bytes, counted};
use plan::variant::Variant;

pub use self::compare::page as comparison;
use super::text::place;
use super::{Report, predicted};

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");
/// Before anything is drawn, so that nothing jumps: the style sheet shows filters only with a script.
const MARK_SCRIPT: &str = "document.documentElement.classList.add('js')";

/// What several parts need.
struct View<'a> {
    report: &'a Report<'a>,
    /// All that were measured.
    subjects: Vec<Subject>,
    /// The x axis of all cells: host, your guest, none and the counts.
    categories: Vec<Category>,
    names: Vec<String>,
}

/// A place on the x axis: those without a count come first, then by count.
type Category = (u8, Iothreads);

/// Renders the page.
pub(super) fn page(report: &Report<'_>) -> String {
    let view = View::new(report);
    let title = format!("ringloom tune: {}", head::title(report.findings));
    let body = html! {
        (head::render(&view))
        (filters::render(&view))
        (grids::render(&view))
        (cells::render(&view))
        (pairs::render(&report.pairs))
        (probes::render(&report.probes))
        (curves::render(&report.curves))
        (predictions(report))
        (sizes::render(&report.sizes))
        (times::render(&view))
        (files::render(&view))
        (around::render(&view))
    };
    document(&title, &body)
}

/// What more than was measured would bring; nothing where that is not asked.
fn predictions(report: &Report<'_>) -> Markup {
    if report.predicted.is_empty() {
        return Markup::default();
    }
    html! {
        section id="prediction" {
            h2 { "Prediction" }
            p class="lead" { "Not measured: each line is a range, and says what it rests on." }
            (around::list(&predicted::sentences(&report.predicted)))
        }
    }
}

/// A whole file with this title and body.
fn document(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // So that it is known as one before it is removed (`kept`), whatever its title is.
                meta name="generator" content="ringloom report";
                title { (title) }
                style { (PreEscaped(STYLE)) }
                script { (PreEscaped(MARK_SCRIPT)) }
            }
            body {
                main { (body) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string()
}

impl<'a> View<'a> {
    fn new(report: &'a Report<'a>) -> Self {
        let rows = report.cells.iter().flat_map(|cell| &cell.rows).map(|row| row.contender);
        let others = report.failed.iter().flat_map(|cell| &cell.contenders);
        let contenders: Vec<Contender> = rows.chain(others.map(|it| it.contender)).collect();
        let categories = sorted(contenders.iter().map(|it| (category(*it), name(*it))));
        let (categories, names) = categories.into_iter().unzip();
        let runs = report.findings.runs.iter().map(|run| run.key.contender);
        let subjects = sorted(runs.chain(contenders).map(Contender::subject));
        Self { report, subjects, categories, names }
    }

    /// Where a contender is on the x axis.
    fn slot(&self, contender: Contender) -> Option<usize> {
        self.categories.iter().position(|it| *it == category(contender))
    }

    /// What failed of a cell.
    fn failed_of(&self, cell: &CellSummary) -> Option<&FailedCell> {
        self.report.failed.iter().find(|it| (it.variant, it.cell) == (cell.variant, cell.cell))
    }

    /// The cells of which nothing was measured.
    fn lost(&self) -> impl Iterator<Item = &FailedCell> {
        let measured = |it: &FailedCell| {
            self.report.cells.iter().any(|cell| (cell.variant, cell.cell) == (it.variant, it.cell))
        };
        self.report.failed.iter().filter(move |it| !measured(it))
    }

    /// Cells that are shown, with and without figures.
    fn cells_in_all(&self) -> usize {
        self.report.cells.len() + self.lost().count()
    }
}

fn category(contender: Contender) -> Category {
    match (contender.subject(), contender.iothreads()) {
        (Subject::Host | Subject::Pod, _) => (0, Iothreads::NONE),
        (Subject::VmGiven, _) => (1, Iothreads::NONE),
        (
            Subject::Client | Subject::VmQemu | Subject::VmRingloom | Subject::VmKubevirt,
            iothreads,
        ) => (2, iothreads.unwrap_or(Iothreads::NONE)),
    }
}

/// The label of a category.
fn name(contender: Contender) -> String {
    match (contender.subject(), contender.iothreads()) {
        (_, Some(iothreads)) => iothreads.to_string(),
        (Subject::VmGiven, None) => "given".to_owned(),
        (subject, None) => subject.to_string(),
    }
}

/// The colour and the mark of a subject.
fn class(subject: Subject) -> &'static str {
    match subject {
        Subject::Host | Subject::Pod => "s-host",
        Subject::Client => "s-client",
        Subject::VmQemu | Subject::VmKubevirt => "s-qemu",
        Subject::VmRingloom => "s-ringloom",
        Subject::VmGiven => "s-given",
    }
}

/// `randread`, as the filter names it.
fn operation(cell: Cell) -> String {
    cell.shape().operation().to_string()
}

/// `4k`, as the filter names it.
fn size(cell: Cell) -> String {
    Bytes(u64::from(cell.shape().block().get())).to_string()
}

/// What is told first: a sentence, others below it, and how many notes there are.
fn verdict(sentences: &[String], notes: usize, on: &str) -> Markup {
    html! {
        div class="verdict" id="verdict" {
            @if let Some((first, others)) = sentences.split_first() {
                p { (first) }
                @if !others.is_empty() { ul class="details" { @for it in others { li { (it) } } } }
            }
            @if notes > 0 {
                p class="hint" { a href="#notes" { (counted(notes, "note")) } " on " (on) }
            }
        }
    }
}

/// A name, a figure and what it means; and whether it begins a line.
type Figure = (String, String, String, bool);

fn figures(all: &[Figure]) -> Markup {
    html! {
        dl class="figures" {
            @for (name, figure, meaning, begins) in all {
                div class=[begins.then_some("next")] {
                    dt { (name) }
                    dd { strong { (figure) } span { (meaning) } }
                }
            }
        }
    }
}

/// A cell with what is shown of it, for the filters.
fn framed(
    class: &str,
    cell: Cell,
    variant: &Variant,
    who: &[Contender],
    inside: &Markup,
) -> Markup {
    let subjects = sorted(who.iter().map(|it| it.subject()));
    let subjects: Vec<String> = subjects.iter().map(ToString::to_string).collect();
    html! {
        section class=(class) data-op=(operation(cell)) data-size=(size(cell))
            data-subjects=(subjects.join(" "))
        {
            h3 { (place(cell, variant)) }
            (inside)
        }
    }
}

/// A picture with its caption; words where there is nothing to draw.
fn figure(caption: &str, svg: Option<Markup>) -> Markup {
    html! {
        figure {
            figcaption { (caption) }
            @match svg {
                Some(svg) => (svg),
                None => p class="empty" { "Nothing was measured for this." },
            }
        }
    }
}

/// A table that scrolls sideways by itself where the page is narrow. A row may name its subject.
///
/// A full sweep has thousands of rows, so rows of one subject name it together, and what may end by itself has no end tag
/// (HTML, 13.1.2.4).
fn table(columns: &[&str], rows: &[(Option<String>, Vec<String>)]) -> Markup {
    let table = html! {
        div class="scroll" tabindex="0" role="region" aria-label="Table" {
            table {
                thead { tr { @for column in columns { th scope="col" { (column) } } } }
                @for rows in rows.chunk_by(|(one, _), (other, _)| one == other) {
                    tbody data-subject=[&rows[0].0] {
                        @for (_, row) in rows {
                            tr {
                                @for (index, cell) in row.iter().enumerate() {
                                    @if index == 0 { th { (cell) } } @else { td { (cell) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    };
    // Of text from outside, `<` is escaped: these are none but the ends of elements.
    let ends = ["</td>", "</th>", "</tr>", "</tbody>", "</thead>"];
    PreEscaped(ends.iter().fold(table.into_string(), |text, end| text.replace(end, "")))
}

/// The same, folded.
fn folded_table(name: &str, columns: &[&str], rows: &[(Option<String>, Vec<String>)]) -> Markup {
    html! { details { summary { (name) } (table(columns, rows)) } }
}

#[cfg(test)]
mod tests;
