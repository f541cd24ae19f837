//! Cards of one contender: charts with a value for each point of a curve or phase of a probe. Pure functions.

use maud::{Markup, html};
use plan::contender::Subject;

use super::plot::{Across, Mark, Plot, Scale, Series};
use super::{around, class, figure, folded_table};

/// A section with a card for each of these, and what the words on them mean; nothing where there are none.
pub(super) fn section<T>(
    (id, title, lead): (&str, &str, &str),
    all: &[T],
    card: fn(&T) -> Markup,
    meanings: fn(&[T]) -> Vec<String>,
) -> Markup {
    html! {
        @if !all.is_empty() {
            section id=(id) {
                h2 { (title) }
                p class="lead" { (lead) }
                div class="cards" { @for it in all { (card(it)) } }
                (around::list(&meanings(all)))
            }
        }
    }
}

/// What the charts of one contender have in common.
#[derive(Clone, Debug)]
pub(super) struct Single<'a, T> {
    pub(super) subject: Subject,
    pub(super) title: &'a str,
    pub(super) description: &'a str,
    /// One for each point.
    pub(super) categories: Vec<String>,
    pub(super) points: &'a [T],
    /// Of the table, and what stands in them.
    pub(super) columns: &'a [&'a str],
    pub(super) line: fn(&T) -> Vec<String>,
}

impl<T> Single<'_, T> {
    /// What is said of it, its charts with their captions, and their table.
    pub(super) fn card(
        &self,
        class: &str,
        said: &Markup,
        charts: [(&str, Option<Markup>); 2],
    ) -> Markup {
        let rows: Vec<_> = self.points.iter().map(|point| (None, (self.line)(point))).collect();
        html! {
            section class=(class) data-subject=(self.subject) {
                h3 { (self.title) }
                (said)
                div class="charts two" { @for (caption, svg) in charts { (figure(caption, svg)) } }
                (folded_table("Table", self.columns, &rows))
            }
        }
    }

    /// The chart of one value of each point; `None` if no point has it.
    pub(super) fn svg(
        &self,
        scale: Scale,
        label: fn(f64) -> String,
        mark: fn(usize, &T) -> Option<Mark>,
    ) -> Option<Markup> {
        let marks = self.points.iter().enumerate().filter_map(|(slot, point)| mark(slot, point));
        let series = Series {
            subject: self.subject.to_string(),
            class: class(self.subject),
            nth: 0,
            marks: marks.collect(),
        };
        let plot = Plot {
            title: self.title,
            description: self.description,
            categories: &self.categories,
            scale,
            label,
            limit: None,
            across: Across::Names,
            series: vec![series],
        };
        plot.svg()
    }
}
