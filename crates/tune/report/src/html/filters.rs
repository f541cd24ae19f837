//! What of the page is shown: groups of buttons that the script answers, and how many cells are left. Pure functions.

use maud::{Markup, html};
use plan::cell::Cell;
use plan::contender::Subject;
use plan::lists::unique;

use super::{View, class, operation, plot, size};

/// Nothing where there are no cells.
pub(super) fn render(view: &View<'_>) -> Markup {
    let cells = view.report.cells.iter().map(|it| it.cell).chain(view.lost().map(|it| it.cell));
    bar(&cells.collect::<Vec<_>>(), &view.subjects, &Markup::default())
}

/// The groups for these cells and subjects, and others; nothing where there are no cells.
pub(super) fn bar(cells: &[Cell], subjects: &[Subject], others: &Markup) -> Markup {
    let mut sizes = cells.to_vec();
    sizes.sort_by_key(|cell| cell.shape().block().get());
    html! {
        @if !cells.is_empty() {
            nav class="filters" aria-label="Filters" {
                (group("filter-op", "Operation", &unique(cells.iter().copied().map(operation))))
                (group("filter-size", "Block size", &unique(sizes.into_iter().map(size))))
                (group("filter-subject", "Subject", &unique(subjects.iter().map(ToString::to_string))))
                (others)
                (shown(cells.len()))
            }
        }
    }
}

/// How many cells are shown.
fn shown(count: usize) -> Markup {
    html! {
        p class="count" aria-live="polite" {
            span id="shown" { (count) } " of " (count) " cells shown"
        }
    }
}

/// Buttons of all values, and one that takes the filter away.
pub(super) fn group(id: &str, name: &str, values: &[String]) -> Markup {
    html! {
        div class="filter" id=(id) role="group" aria-label=(name) {
            span class="name" { (name) }
            button type="button" data-value="" aria-pressed="true" { "all" }
            @for value in values {
                button type="button" data-value=(value) aria-pressed="false" { (value) }
            }
        }
    }
}

/// Which mark is whose.
pub(super) fn legend(view: &View<'_>) -> Markup {
    html! {
        ul class="legend" {
            @for subject in &view.subjects {
                li data-subject=(subject) { (plot::swatch(class(*subject))) (subject) }
            }
        }
    }
}
