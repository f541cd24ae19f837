//! A card per cell and variant: its verdict, its charts and their table. Pure functions.

use findings::summary::{CellSummary, FailedCell, Row};
use maud::{Markup, html};
use plan::contender::Contender;
use plan::lists::sorted;
use plan::units::counted;
use records::results::Run;

use super::{View, charts, filters, folded_table, framed};
use crate::cells::{columns, lines as own_lines, verdicts};
use crate::text::of_baseline;

const LEAD: &str = "By number of iothreads. Bars with caps are 95 % confidence intervals, thin bars only the lowest and highest of the repeats. \
     Hollow marks were explored and not measured again. Ring: n90. Dashed: the host, and the number of its CPUs. Latency: dot \
     p50, circle p99, tick p99.9.";

/// Nothing without a sweep.
pub(super) fn render(view: &View<'_>) -> Markup {
    if view.cells_in_all() == 0 {
        return Markup::default();
    }
    html! {
        section id="cells" {
            h2 { "Each cell" }
            p class="lead" { (of_baseline(LEAD, &view.report.cells)) }
            (filters::legend(view))
            @for cell in &view.report.cells { (card(view, cell)) }
            @for cell in view.lost() { (lost(cell)) }
        }
    }
}

fn card(view: &View<'_>, cell: &CellSummary) -> Markup {
    let verdicts = verdicts(cell);
    let doubtful = doubtful(view, cell);
    let unsteady: Vec<String> = cell
        .rows
        .iter()
        .filter(|row| row.unsteady_runs.are_most())
        .map(|row| row.contender.to_string())
        .collect();
    let inside = html! {
        @if !verdicts.is_empty() { p class="best" { (verdicts.join(" · ")) } }
        @if !unsteady.is_empty() { p class="best" { "~ not steady: " (unsteady.join(", ")) } }
        @if !doubtful.is_empty() {
            p class="warn" {
                "Not drawn, because the rate is no number or zero: " (doubtful.join(", ")) "."
            }
        }
        @if let Some(failed) = view.failed_of(cell) { p class="warn" { (failed_words(failed)) } }
        div class="charts" { (charts::render(view, cell)) }
        (folded_table("Table", &columns(cell), &rows(cell)))
    };
    let who: Vec<Contender> = cell.rows.iter().map(|row| row.contender).collect();
    framed("cell", cell.cell, &cell.variant, &who, &inside)
}

/// A cell of which no run succeeded.
fn lost(failed: &FailedCell) -> Markup {
    let inside = html! {
        p class="warn" { "No run of this cell succeeded. " (failed_words(failed)) }
    };
    let who: Vec<Contender> = failed.contenders.iter().map(|it| it.contender).collect();
    framed("cell", failed.cell, &failed.variant, &who, &inside)
}

/// `3 runs failed: client 4, client 8; the notes say why.`
fn failed_words(failed: &FailedCell) -> String {
    let runs = failed.contenders.iter().map(|it| it.count).sum();
    let names: Vec<String> = failed.contenders.iter().map(|it| it.contender.to_string()).collect();
    format!("{} failed: {}; the notes say why.", counted(runs, "run"), names.join(", "))
}

/// Those whose rate cannot be drawn or compared: zero, or no number in any run.
fn doubtful(view: &View<'_>, cell: &CellSummary) -> Vec<String> {
    let drawn = |contender: Contender| {
        let row = cell.rows.iter().find(|row| row.contender == contender);
        row.is_some_and(|row| row.iops.median > 0.0)
    };
    let here = |run: &&Run| {
        run.key.purpose.is_compared()
            && (run.key.variant, run.key.cell) == (cell.variant, cell.cell)
    };
    let runs = view.report.findings.runs.iter().filter(here);
    let doubtful = sorted(runs.map(|run| run.key.contender));
    doubtful.into_iter().filter(|it| !drawn(*it)).map(|it| it.to_string()).collect()
}

/// A line per contender and under it one per guest where several ran at once.
fn rows(cell: &CellSummary) -> Vec<(Option<String>, Vec<String>)> {
    let lines = |row: &Row| {
        let subject = row.contender.subject().to_string();
        own_lines(cell, row).into_iter().map(move |line| (Some(subject.clone()), line))
    };
    cell.rows.iter().flat_map(lines).collect()
}
