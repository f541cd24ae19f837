//! Charts of one contender: a value for each point of a curve or phase of a probe. Pure functions.

use maud::Markup;

use super::class;
use super::plot::{Mark, Plot, Scale, Series};
use crate::contender::Subject;

/// What the charts of one contender have in common.
#[derive(Clone, Debug)]
pub(super) struct Single<'a, T> {
    pub(super) subject: Subject,
    pub(super) title: &'a str,
    pub(super) description: &'a str,
    /// One for each point.
    pub(super) categories: Vec<String>,
    pub(super) points: &'a [T],
}

impl<T> Single<'_, T> {
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
            marks: marks.collect(),
        };
        let plot = Plot {
            title: self.title,
            description: self.description,
            categories: &self.categories,
            scale,
            label,
            limit: None,
            series: vec![series],
        };
        plot.svg()
    }
}
