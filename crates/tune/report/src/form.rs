//! All cells of a sweep in the form in which such sweeps are published, for Markdown. Pure functions.
//!
//! Not here: the figures (`summary::form`).

mod kinds;

use findings::summary::form::PublishedForm;
use findings::summary::{CellSummary, compared};
use plan::lists::unique;

pub(super) use self::kinds::{KINDS, Kind, PublishedTable};
use super::Style;
use super::text::{of_baseline, or_missing, section};
use crate::table::Table;

/// Our own sweep in this form, for each subject and variant that has several rows and columns; below those of KubeVirt's machines the
/// published one.
pub(super) fn render(style: Style, cells: &[CellSummary]) -> String {
    let mut text = String::new();
    for variant in unique(cells.iter().map(|cell| cell.variant)) {
        let own: Vec<CellSummary> =
            cells.iter().filter(|cell| cell.variant == variant).cloned().collect();
        for subject in compared(&own) {
            let on = super::text::on(subject.to_string(), &variant);
            for kind in &KINDS {
                let form = (kind.form)(subject, &own);
                if form.rows.len() > 1 && form.columns.len() > 1 {
                    let title = format!("{}: {on}", of_baseline(kind.title, &own));
                    text += &section(style, &title, &table(kind, &form), &[]);
                }
            }
        }
    }
    for subject in compared(cells) {
        for kind in &KINDS {
            if let Some(published) = kind.published(subject, cells) {
                let table = table(kind, &published.form);
                text += &section(style, &published.title, &table, &published.below);
            }
        }
    }
    text
}

/// Rows of size and operation with their totals, columns of jobs and iodepth.
fn table(kind: &Kind, form: &PublishedForm) -> Table {
    let columns = form.columns.iter().map(|it| format!("{} × {}", it.jobs, it.iodepth));
    let header: Vec<String> = ["jobs × iodepth".to_owned()]
        .into_iter()
        .chain(columns)
        .chain(["all".to_owned()])
        .collect();
    let mut table = Table::new(&header.iter().map(String::as_str).collect::<Vec<_>>());
    let figure = |value: &Option<f64>| or_missing(value.map(|value| kind.figure(value)));
    let mean = |value: &Option<f64>| or_missing(value.map(|value| kind.total(value)));
    let totals = |name: String, totals: &[Option<f64>], all: Option<f64>| {
        [name].into_iter().chain(totals.iter().chain([&all]).map(mean)).collect::<Vec<String>>()
    };
    for (size, of_size) in &form.size_totals {
        let own = || form.rows.iter().zip(&form.cells).zip(&form.row_totals);
        let own = own().filter(|((row, _), _)| row.size == *size);
        for ((row, cells), total) in own {
            let figures = cells.iter().map(figure).chain([mean(total)]);
            table.push([format!("{size} {}", row.op)].into_iter().chain(figures).collect());
        }
        table.push(totals(format!("{size} total"), of_size, form.size_total(kind.mean, *size)));
    }
    table.push(totals("total".to_owned(), &form.column_totals, form.total));
    table
}

#[cfg(test)]
mod tests;
