//! Ways to serve a disk against each other: a table per pair. Pure functions.

use findings::summary::{Pair, PairRow};
use maud::{Markup, html};

use super::table;
use crate::pairs::{COLUMNS, finding, line, meanings, title};

/// Nothing where only one way was measured.
pub(super) fn render(pairs: &[Pair]) -> Markup {
    if pairs.is_empty() {
        return Markup::default();
    }
    let row = |row: &PairRow| (Some(row.contender.subject().to_string()), line(row));
    html! {
        section id="pairs" {
            h2 { "One way against another" }
            p class="lead" { (meanings().concat()) }
            @for pair in pairs {
                div class="subject" {
                    h3 { (title(pair)) }
                    p class="best" { (finding(pair)) }
                    (table(&COLUMNS, &pair.rows.iter().map(row).collect::<Vec<_>>()))
                }
            }
        }
    }
}
