//! What of the page is shown: groups of buttons that the script answers, and how many cells are left. Pure functions.

use maud::{Markup, html};

use super::{View, class, operation, plot, size};
use crate::cell::Cell;

/// Nothing where there are no cells.
pub(super) fn render(view: &View<'_>) -> Markup {
    let count = view.cells_in_all();
    if count == 0 {
        return Markup::default();
    }
    let cells = || view.report.cells.iter().map(|it| it.cell).chain(view.lost().map(|it| it.cell));
    let mut sizes: Vec<Cell> = cells().collect();
    sizes.sort_by_key(|cell| cell.shape().block().get());
    html! {
        nav class="filters" aria-label="Filters" {
            (group("filter-op", "Operation", &unique(cells().map(operation))))
            (group("filter-size", "Block size", &unique(sizes.into_iter().map(size))))
            (group("filter-subject", "Subject", &unique(view.subjects.iter().map(ToString::to_string))))
            (shown(count))
        }
    }
}

/// How many cells are shown.
pub(super) fn shown(count: usize) -> Markup {
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

/// In the order in which they first appear.
pub(super) fn unique(values: impl Iterator<Item = String>) -> Vec<String> {
    let mut unique = Vec::new();
    for value in values {
        if !unique.contains(&value) {
            unique.push(value);
        }
    }
    unique
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
