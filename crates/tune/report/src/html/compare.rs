//! The page of two runs side by side: what changed, each cell at a glance, and all ratios against their noise. Pure functions.
//!
//! Not here: which rows changed (`findings::compare`), the sentences (`report::compare`).

use findings::compare::{ChangeVerdict, ComparedCell, ComparedRow, Comparison};
use findings::stats::{factor, geometric_mean};
use findings::summary::form::{self, FormColumn, FormRow, Mean, PublishedForm};
use maud::{Markup, html};
use plan::cell::Cell;
use plan::contender::{Contender, Subject};
use plan::lists::{sorted, unique};
use plan::units::counted;
use plan::variant::Variant;

use super::grids::Grid;
use super::strip::Ruler;
use super::{around, class, document, filters, framed, plot, verdict};
use crate::compare::{COLUMNS, Compared, Side, line, meanings, notes, summary, word};
use crate::facts;

/// In the order in which they are told.
const VERDICTS: [ChangeVerdict; 4] =
    [ChangeVerdict::Faster, ChangeVerdict::Slower, ChangeVerdict::Noise, ChangeVerdict::CannotTell];
/// Factors from which on a darker shade is used.
const SHADES: [f64; 3] = [1.02, 1.1, 1.3];

/// Renders the page.
pub fn page(compared: &Compared<'_>) -> String {
    let comparison = compared.comparison;
    let notes = notes(compared);
    let body = html! {
        header class="top" {
            p class="brand" { "ringloom report" }
            h1 { "Two runs side by side" }
            dl class="sides" { (side("A", &compared.a)) (side("B", &compared.b)) }
            (verdict(&summary(compared), notes.len(), "how far to trust this comparison"))
            (figures(comparison))
        }
        @if !comparison.cells.is_empty() {
            (filters(comparison))
            (overview(comparison))
            (cells(comparison))
        }
        section id="notes" {
            h2 { "Notes" }
            @if notes.is_empty() { p { "Nothing that bends this comparison was seen, neither in A nor in B." } }
            (around::list(&notes))
        }
        @if !comparison.cells.is_empty() {
            section id="legend" { h2 { "What the words mean" } (around::list(&meanings(comparison))) }
        }
        section id="method" {
            h2 { "How they were measured" }
            (method("A", &compared.a))
            (method("B", &compared.b))
        }
    };
    document(&format!("{} and {}: two runs side by side", compared.a.name, compared.b.name), &body)
}

fn side(letter: &str, side: &Side<'_>) -> Markup {
    html! {
        div {
            dt { (letter) }
            dd {
                strong { (side.name) }
                @if let Some(when) = side.when() { span { (when) } }
                span { (side.disk()) }
            }
        }
    }
}

fn method(letter: &str, side: &Side<'_>) -> Markup {
    html! {
        h3 { (letter) ": " (side.name) }
        dl class="facts" { @for (name, fact) in facts(&side.findings) { dt { (name) } dd { (fact) } } }
    }
}

fn figures(comparison: &Comparison) -> Markup {
    let all = comparison.rows().count();
    let meaning = |verdict| match verdict {
        ChangeVerdict::Faster | ChangeVerdict::Slower => {
            format!("in B, of {}", counted(all, "row"))
        }
        ChangeVerdict::Noise => "no more than the repeats stray".to_owned(),
        ChangeVerdict::CannotTell => "too few repeats, or one that did nothing".to_owned(),
    };
    let shown = VERDICTS.into_iter().filter(|it| {
        *it != ChangeVerdict::CannotTell || comparison.count(ChangeVerdict::CannotTell) > 0
    });
    html! {
        dl class="figures" {
            @for verdict in shown {
                div {
                    dt class="capital" { (word(verdict)) }
                    dd class=(colour(verdict)) {
                        strong { (comparison.count(verdict)) } span { (meaning(verdict)) }
                    }
                }
            }
            @for (subject, mean, rows) in &comparison.means {
                div {
                    dt { (subject) ": B/A" }
                    dd {
                        strong { (format!("{mean:.2}")) }
                        span { "geometric mean of " (counted(*rows, "row")) }
                    }
                }
            }
        }
    }
}

/// The colour of a verdict.
fn colour(verdict: ChangeVerdict) -> &'static str {
    match verdict {
        ChangeVerdict::Faster => "v-faster",
        ChangeVerdict::Slower => "v-slower",
        ChangeVerdict::Noise | ChangeVerdict::CannotTell => "v-noise",
    }
}

/// As the filter names it: without a blank.
fn value(verdict: ChangeVerdict) -> String {
    word(verdict).replace(' ', "-")
}

fn subjects(comparison: &Comparison) -> Vec<Subject> {
    sorted(comparison.rows().map(|row| row.contender.subject()))
}

fn filters(comparison: &Comparison) -> Markup {
    let cells: Vec<Cell> = comparison.cells.iter().map(|it| it.cell).collect();
    let verdicts = VERDICTS.into_iter().filter(|it| comparison.count(*it) > 0).map(value);
    let verdicts = filters::group("filter-verdict", "Verdict", &verdicts.collect::<Vec<_>>());
    filters::bar(&cells, &subjects(comparison), &verdicts)
}

/// The ratio of each cell; nothing where that is but one.
fn overview(comparison: &Comparison) -> Markup {
    if comparison.cells.len() < 2 {
        return Markup::default();
    }
    let variants = unique(comparison.cells.iter().map(|cell| cell.variant));
    html! {
        section id="overview" {
            h2 { "All cells at a glance" }
            p class="lead" {
                "B/A of each cell, geometric mean over the numbers of iothreads. Coloured where a number \
                 of iothreads is faster or slower, grey where all is noise. Totals are of all cells, \
                 whatever the filters show."
            }
            @for variant in variants {
                @let name = variant.to_string();
                @if !name.is_empty() { h3 { (name) } }
                div class="grids" {
                    @for subject in subjects(comparison) { (grid(comparison, variant, subject)) }
                }
            }
        }
    }
}

fn grid(comparison: &Comparison, variant: Variant, subject: Subject) -> Markup {
    let own = |cell: &ComparedCell| -> Vec<ComparedRow> {
        let rows = cell.rows.iter().filter(|row| row.contender.subject() == subject);
        rows.copied().collect()
    };
    let cells = || comparison.cells.iter().filter(|cell| cell.variant == variant);
    let mean = |cell: &ComparedCell| {
        let ratios = own(cell).into_iter().filter_map(|row| row.ratio).map(|it| it.ratio);
        Some((cell.cell, geometric_mean(ratios)?))
    };
    let form = PublishedForm::new(Mean::Geometric, cells().filter_map(mean));
    if form.is_empty() {
        return Markup::default();
    }
    let changed = |row: &FormRow, column: FormColumn| {
        let is_here = |it: &&ComparedCell| form::place(it.cell) == (row.clone(), column);
        let mut rows = cells().filter(is_here).flat_map(own);
        rows.any(|row| row.verdict.is_change())
    };
    let shade = |row: &FormRow, column: FormColumn, ratio: f64| {
        let shade = SHADES.iter().filter(|limit| factor(ratio) >= **limit).count();
        match () {
            () if !changed(row, column) => "none".to_owned(),
            () if ratio > 1.0 => format!("f{shade}"),
            () => format!("l{shade}"),
        }
    };
    let written = |ratio: f64| format!("{ratio:.2}");
    let title = subject.to_string();
    html! {
        div data-subject=(subject) {
            (Grid { title: &title, meaning: "B/A", mean: Mean::Geometric, form: &form,
                figure: &written, total: &written, class: &shade }.figure())
        }
    }
}

fn cells(comparison: &Comparison) -> Markup {
    let ruler = Ruler::of(comparison.rows().filter_map(|row| row.ratio));
    html! {
        section id="cells" {
            h2 { "Each cell" }
            p class="lead" {
                "Left of the line B is slower than A, right of it faster. Dot: the ratio of the medians; \
                 bar: its 95 % interval; band: two commands differ by as much. What is noise is grey."
            }
            @for cell in &comparison.cells { (card(cell, ruler)) }
        }
    }
}

fn card(cell: &ComparedCell, ruler: Ruler) -> Markup {
    let [who, a, b, ratio, interval, verdict] = COLUMNS;
    let inside = html! {
        div class="scroll" tabindex="0" role="region" aria-label="Table" {
            table {
                thead { tr {
                    th scope="col" { (who) }
                    th scope="col" { (ratio) }
                    th scope="col" class="drawn" { (ruler.scale()) }
                    @for name in [verdict, interval, a, b] { th scope="col" { (name) } }
                } }
                tbody { @for it in &cell.rows { (row(it, ruler)) } }
            }
        }
    };
    let who: Vec<Contender> = cell.rows.iter().map(|row| row.contender).collect();
    framed("cell pairs", cell.cell, &cell.variant, &who, &inside)
}

fn row(row: &ComparedRow, ruler: Ruler) -> Markup {
    let [who, a, b, ratio, interval, verdict] = line(row);
    let words = format!("{who}: B/A {ratio} ({interval}): {verdict}");
    let subject = row.contender.subject();
    html! {
        tr class=(colour(row.verdict)) data-subject=(subject) data-verdict=(value(row.verdict)) {
            th scope="row" { (plot::swatch(class(subject))) (who) }
            td { (ratio) }
            td class="drawn" { @if let Some(it) = row.ratio { (ruler.strip(&words, it)) } }
            @for text in [verdict, interval, a, b] { td { (text) } }
        }
    }
}
