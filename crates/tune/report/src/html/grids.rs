//! The published form: gain, n90 and ratio to the host of all cells of a subject, coloured by their size. Pure functions.

use findings::summary::form::{FormColumn, FormRow, Mean, PublishedForm};
use findings::summary::{CellSummary, compared};
use maud::{Markup, html};
use plan::contender::Subject;
use plan::lists::unique;
use plan::variant::Variant;

use super::View;
use crate::form::{KINDS, Kind, PublishedTable};
use crate::text::of_baseline;

/// Nothing where no numbers of iothreads are compared.
pub(super) fn render(view: &View<'_>) -> Markup {
    let subjects = compared(&view.report.cells);
    if subjects.is_empty() {
        return Markup::default();
    }
    html! {
        section id="overview" {
            h2 { "All cells at a glance" }
            p class="lead" {
                "Block size and operation down, jobs and iodepth across. The stronger the colour, the \
                 more; totals are of all cells, whatever the filters show."
            }
            @for subject in subjects {
                @for variant in unique(view.report.cells.iter().map(|cell| cell.variant)) { (tables(view, subject, variant)) }
                (published(view, subject))
            }
        }
    }
}

fn tables(view: &View<'_>, subject: Subject, variant: Variant) -> Markup {
    let here = |cell: &&CellSummary| {
        cell.variant == variant && cell.verdicts.iter().any(|(it, _)| *it == subject)
    };
    let cells: Vec<CellSummary> = view.report.cells.iter().filter(here).cloned().collect();
    if cells.is_empty() {
        return Markup::default();
    }
    let variant = variant.to_string();
    html! {
        div class="subject" data-subject=(subject) {
            h3 { (subject) @if !variant.is_empty() { ": " (variant) } }
            div class="grids" {
                @for kind in &KINDS {
                    (figure(kind, &cells, &(kind.form)(subject, &cells)))
                }
            }
        }
    }
}

/// The published sweep, below that of KubeVirt's machines.
fn published(view: &View<'_>, subject: Subject) -> Markup {
    let tables: Vec<(&Kind, PublishedTable)> = KINDS
        .iter()
        .filter_map(|kind| Some((kind, kind.published(subject, &view.report.cells)?)))
        .collect();
    if tables.is_empty() {
        return Markup::default();
    }
    html! {
        div class="subject" data-subject=(subject) {
            h3 { "Published sweep" }
            div class="grids" {
                @for (kind, published) in &tables {
                    div {
                        (coloured(kind, &published.title, kind.meaning, &published.form))
                        @for sentence in &published.below { p class="lead" { (sentence) } }
                    }
                }
            }
        }
    }
}

/// One of the tables that sweeps are published in.
fn figure(kind: &Kind, cells: &[CellSummary], form: &PublishedForm) -> Markup {
    let [title, meaning, missing] =
        [kind.title, kind.meaning, kind.missing].map(|words| of_baseline(words, cells));
    if form.is_empty() {
        return html! { figure { figcaption { (title) } p class="empty" { (missing) } } };
    }
    coloured(kind, &title, &meaning, form)
}

/// A table that is coloured by the size of its figures.
fn coloured(kind: &Kind, title: &str, meaning: &str, form: &PublishedForm) -> Markup {
    let grid = Grid {
        title,
        meaning,
        mean: kind.mean,
        form,
        figure: &|value| kind.figure(value),
        total: &|value| kind.total(value),
        class: &|_, _, value| format!("h{}", kind.shade(value)),
    };
    grid.figure()
}

/// A table whose cells are coloured.
pub(super) struct Grid<'a> {
    pub(super) title: &'a str,
    pub(super) meaning: &'a str,
    pub(super) mean: Mean,
    /// With at least one cell.
    pub(super) form: &'a PublishedForm,
    /// How the figure of a cell is written.
    pub(super) figure: &'a dyn Fn(f64) -> String,
    pub(super) total: &'a dyn Fn(f64) -> String,
    /// The colour of a cell.
    pub(super) class: &'a dyn Fn(&FormRow, FormColumn, f64) -> String,
}

impl Grid<'_> {
    pub(super) fn figure(&self) -> Markup {
        let form = self.form;
        html! {
            figure {
                figcaption { (self.title) small { (self.meaning) } }
                div class="scroll" tabindex="0" role="region" aria-label=(self.title) {
                    table class="grid" {
                        (heading(form))
                        (self.body())
                        tfoot { tr {
                            th scope="row" { "all" }
                            @for sum in &form.column_totals { (self.sum(*sum)) }
                            (self.sum(form.total))
                        } }
                    }
                }
            }
        }
    }

    /// The operations of each block size, and their totals where there are several.
    fn body(&self) -> Markup {
        let form = self.form;
        html! {
            tbody {
                @for (size, totals) in &form.size_totals {
                    @let rows: Vec<usize> = (0..form.rows.len()).filter(|it| form.rows[*it].size == *size).collect();
                    @for row in &rows { (self.row(*row)) }
                    @if rows.len() > 1 && form.size_totals.len() > 1 {
                        tr class="sum" data-size=(size) {
                            th scope="row" { (size) " all" }
                            @for sum in totals.iter().chain([&form.size_total(self.mean, *size)]) {
                                (self.sum(*sum))
                            }
                        }
                    }
                }
            }
        }
    }

    fn row(&self, row: usize) -> Markup {
        let form = self.form;
        let FormRow { size, op } = &form.rows[row];
        let figures = form.columns.iter().zip(&form.cells[row]);
        html! {
            tr data-op=(op) data-size=(size) {
                th scope="row" { (size) " " (op) }
                @for (column, value) in figures {
                    @match value {
                        Some(value) => {
                            td class=((self.class)(&form.rows[row], *column, *value)) { ((self.figure)(*value)) }
                        }
                        None => { td class="none" { "–" } }
                    }
                }
                (self.sum(form.row_totals[row]))
            }
        }
    }

    fn sum(&self, value: Option<f64>) -> Markup {
        html! { td class="total" { (value.map_or_else(|| "–".to_owned(), self.total)) } }
    }
}

/// Jobs above the iodepths they were measured with.
fn heading(form: &PublishedForm) -> Markup {
    let mut jobs: Vec<(u16, usize)> = Vec::new();
    for column in &form.columns {
        match jobs.last_mut() {
            Some((last, columns)) if *last == column.jobs => *columns += 1,
            Some(_) | None => jobs.push((column.jobs, 1)),
        }
    }
    html! {
        thead {
            tr {
                th scope="col" { "jobs" }
                @for (count, columns) in &jobs {
                    th scope="colgroup" class="jobs" colspan=(columns) { (count) }
                }
                th class="total" {}
            }
            tr {
                th scope="col" { "iodepth" }
                @for column in &form.columns { th scope="col" { (column.iodepth) } }
                th scope="col" class="total" { "all" }
            }
        }
    }
}
