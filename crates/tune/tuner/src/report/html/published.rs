//! The page of a published sweep: what follows from it, its tables coloured, and curves over all cells. Pure functions.
//!
//! Not here: its sentences (`report::published`).

use maud::{Markup, html};

use super::plot::{Mark, Plot, Scale, Series};
use super::{Figure, around, charts, document, figure, filters, grids, plot, verdict};
use crate::cell::Cell;
use crate::lists::{sorted, unique};
use crate::published::{PublishedSweep, PublishedTable};
use crate::report::form::{GAINS, PUBLISHED_N90S};
use crate::report::published::{notes, totals, what_follows};
use crate::report::text::{enumerated, place};
use crate::summary::form::FormRow;
use crate::units::{Bytes, counted, percent_gain};
use crate::variant::Variant;

/// Of numbers of jobs, in their order; those beyond have no curve, and the page says so.
const CLASSES: [&str; 4] = ["s-client", "s-qemu", "s-ringloom", "s-given"];

/// Renders the page.
pub(crate) fn page(name: &str, sweep: &PublishedSweep) -> String {
    let tables = || sweep.gains.iter().chain(&sweep.n90s);
    let mut rows: Vec<FormRow> = tables().flat_map(|table| table.form.rows.clone()).collect();
    rows.sort();
    let sizes = unique(rows.iter().map(|row| row.size.to_string()));
    let operations = unique(rows.into_iter().map(|row| row.op));
    let notes = notes(sweep);
    let body = html! {
        header class="top" {
            p class="brand" { "ringloom report" }
            h1 { (name) }
            p class="when" { "A published sweep" }
            (verdict(&what_follows(sweep), notes.len(), "these tables"))
            (figures(sweep))
        }
        nav class="filters" aria-label="Filters" {
            (filters::group("filter-op", "Operation", &operations))
            (filters::group("filter-size", "Block size", &sizes))
        }
        section id="overview" {
            h2 { "All cells at a glance" }
            p class="lead" {
                "Block size and operation down, jobs and iodepth across. The stronger the colour, the more; \
                 totals and curves are of all cells, whatever the filters show."
            }
            div class="grids" {
                @if let Some(gains) = &sweep.gains {
                    (grids::figure(&GAINS, "best number of iothreads over none; totals: means", &gains.form))
                }
                @if let Some(n90s) = &sweep.n90s {
                    (grids::figure(&PUBLISHED_N90S, PUBLISHED_N90S.meaning, &n90s.form))
                }
            }
            @if let Some(gains) = &sweep.gains { p class="lead" { (totals(gains)) } }
        }
        (curves(sweep))
        @if !notes.is_empty() {
            section id="notes" { h2 { "Notes" } (around::list(&notes)) }
        }
    };
    document(&format!("{name}: a published sweep"), &body)
}

/// The cell with the highest figure.
fn highest(table: &PublishedTable) -> Option<(Cell, f64)> {
    table.cells.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a })
}

fn figures(sweep: &PublishedSweep) -> Markup {
    let mut all: Vec<Figure> = Vec::new();
    let mut push =
        |name: &str, figure, meaning| all.push((name.to_owned(), figure, meaning, false));
    let words = |cell| place(cell, &Variant::default());
    if let Some(table) = sweep.gains.as_ref().or(sweep.n90s.as_ref()) {
        let (sizes, columns) = (table.form.size_totals.len(), table.form.columns.len());
        let meaning = format!(
            "{}, {} of jobs and iodepth",
            counted(sizes, "block size"),
            counted(columns, "combination")
        );
        push("Cells", table.cells.len().to_string(), meaning);
    }
    if let Some(gains) = &sweep.gains {
        if let Some(mean) = gains.form.total {
            let meaning = "best number over none, arithmetic mean of the cells".to_owned();
            push("Gain", percent_gain(1.0 + mean / 100.0), meaning);
        }
        if let Some((cell, most)) = highest(gains) {
            push("Highest gain", percent_gain(1.0 + most / 100.0), words(cell));
        }
    }
    if let Some(n90s) = &sweep.n90s {
        let (cells, none) = n90s.at_most(0.0);
        let meaning = format!("of {} need no iothread", counted(cells, "cell"));
        push("None is enough", none.to_string(), meaning);
        if let Some((cell, most)) = highest(n90s) {
            let meaning = format!("iothreads for 90 % of the best: {}", words(cell));
            push("Highest n90", most.to_string(), meaning);
        }
    }
    super::figures(&all)
}

/// By numbers of jobs, since these decide most.
fn curves(sweep: &PublishedSweep) -> Markup {
    let mut jobs: Vec<u16> = Vec::new();
    for table in sweep.gains.iter().chain(&sweep.n90s) {
        jobs.extend(table.form.columns.iter().map(|column| column.jobs));
    }
    let mut jobs = sorted(jobs);
    let without = jobs.split_off(jobs.len().min(CLASSES.len()));
    html! {
        section id="curves" {
            h2 { "By number of jobs" }
            ul class="legend" {
                @for (jobs, class) in jobs.iter().zip(CLASSES) {
                    li { (plot::swatch(class)) (counted((*jobs).into(), "job")) }
                }
            }
            @if !without.is_empty() { p class="warn" { (not_drawn(&without)) } }
            div class="charts two" {
                @if let Some(n90s) = &sweep.n90s {
                    (figure("Cells for which so many iothreads are enough, %", enough(n90s, &jobs)))
                }
                @if let Some(gains) = &sweep.gains {
                    (figure("Gain over none by block size, mean, %", by_size(gains, &jobs)))
                }
            }
        }
    }
}

/// The numbers of jobs that have no curve.
fn not_drawn(jobs: &[u16]) -> String {
    let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    let (jobs, room) = (enumerated(&jobs), CLASSES.len());
    format!("No curve is drawn for {jobs} jobs: there is room for {room}.")
}

/// In how many of the cells with so many jobs each number of iothreads is enough.
fn enough(n90s: &PublishedTable, jobs: &[u16]) -> Option<Markup> {
    let mut counts: Vec<f64> = n90s.cells.iter().map(|(_, n90)| *n90).collect();
    counts.sort_by(f64::total_cmp);
    counts.dedup();
    let name = |count: &f64| if *count == 0.0 { "none".to_owned() } else { count.to_string() };
    let categories: Vec<String> = counts.iter().map(name).collect();
    let share = |jobs: u16, slot: usize| {
        let own = n90s.cells.iter().filter(|(cell, _)| cell.shape().jobs() == jobs);
        let all = own.clone().count();
        let enough = own.filter(|(_, n90)| *n90 <= counts[slot]).count();
        let share = enough as f64 * 100.0 / all as f64;
        let words = format!(
            "{}: {} enough in {share:.0} % of {}",
            counted(jobs.into(), "job"),
            categories[slot],
            counted(all, "cell")
        );
        (all > 0).then(|| Mark::new(slot, share, words))
    };
    let description = "By number of iothreads, a curve for each number of jobs";
    chart("Cells for which so many iothreads are enough", description, &categories, jobs, &share)
}

/// The mean gain of the cells of a block size with so many jobs.
fn by_size(gains: &PublishedTable, jobs: &[u16]) -> Option<Markup> {
    let sizes: Vec<Bytes> = gains.form.size_totals.iter().map(|(size, _)| *size).collect();
    let categories: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    let mean = |jobs: u16, slot: usize| {
        let is_own = |cell: &Cell| {
            let shape = cell.shape();
            shape.jobs() == jobs && u64::from(shape.block().get()) == sizes[slot].0
        };
        let own = gains.cells.iter().filter(|(cell, _)| is_own(cell)).map(|(_, gain)| *gain);
        let mean = own.clone().sum::<f64>() / own.count() as f64;
        let words = format!(
            "{}, {}: {} over none",
            categories[slot],
            counted(jobs.into(), "job"),
            percent_gain(1.0 + mean / 100.0)
        );
        // Below none, there is no room for it.
        mean.is_finite().then(|| Mark::new(slot, mean.max(0.0), words))
    };
    let description = "Mean gain over none by block size, a curve for each number of jobs";
    chart("Gain over none by block size", description, &categories, jobs, &mean)
}

fn chart(
    title: &str,
    description: &str,
    categories: &[String],
    jobs: &[u16],
    mark: &dyn Fn(u16, usize) -> Option<Mark>,
) -> Option<Markup> {
    let series = jobs.iter().zip(CLASSES).map(|(jobs, class)| Series {
        subject: counted((*jobs).into(), "job"),
        class,
        marks: (0..categories.len()).filter_map(|slot| mark(*jobs, slot)).collect(),
    });
    let series = series.collect();
    let (scale, label) = (Scale::Linear, charts::plain as fn(f64) -> String);
    Plot { title, description, categories, scale, label, limit: None, series }.svg()
}
