//! What more than was measured would bring: a section of its own, apart from all tables. Pure functions.
//!
//! Limits: a sentence for each cell and step, or one for all cells of which nothing is told for the same reason.

use findings::summary::CellSummary;

use super::text::{headed, place};
use super::{Findings, Style};
use crate::prediction::{Predicted, predicted};

/// Nothing where nothing is asked.
pub(super) fn all(findings: &Findings<'_>, cells: &[CellSummary]) -> Vec<Predicted> {
    let (steps, cores) = (&findings.header.settings.predict, findings.header.machine.cores);
    predicted(steps, (findings.runs, cores), cells, &|cell| place(cell.cell, &cell.variant))
}

/// The sentences.
pub(super) fn sentences(all: &[Predicted]) -> Vec<String> {
    let mut sentences = Vec::new();
    let mut untold: Vec<(&Predicted, usize)> = Vec::new();
    for one in all {
        let is_alike = |other: &Predicted| {
            let key = |it: &Predicted| (it.subject, it.step, it.told);
            one.told.is_err() && key(other) == key(one)
        };
        match untold.iter_mut().find(|(first, _)| is_alike(first)) {
            Some((_, count)) => *count += 1,
            None if one.told.is_err() => untold.push((one, 1)),
            None => sentences.push(one.sentence()),
        }
    }
    sentences.extend(untold.iter().map(|(first, count)| first.of_cells(*count).sentence()));
    sentences
}

/// As text, below a heading.
pub(super) fn render(style: Style, all: &[Predicted]) -> String {
    let text = headed(style, "Prediction", &sentences(all));
    if style == Style::Plain && !text.is_empty() { format!("\nPrediction{text}") } else { text }
}
