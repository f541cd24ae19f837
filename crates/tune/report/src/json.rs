//! The report for programs: one JSON object with what to use, the rows of all cells, ways against each other and the notes. Pure functions.
//!
//! Invariants: what is missing or no finite number is null; sentences are those of the text. docs/report.md lists the fields.
//! Limits: probes and curves are not in it (results.jsonl has all).

use findings::answer::Limit;
use findings::stats::Estimate;
use findings::summary::{Pair, PairRow};
use serde::Serialize;

use super::advice::Advice;
use super::rows::Record;
use crate::prediction::Predicted;

/// What is printed.
#[derive(Debug, Serialize)]
struct Document<'a> {
    answers: Vec<Use<'a>>,
    rows: &'a [Record],
    pairs: Vec<Paired>,
    predictions: Vec<Told>,
    notes: &'a [String],
}

/// What to use for one subject.
#[derive(Debug, Serialize)]
struct Use<'a> {
    subject: String,
    /// `none`, a number or `auto`; missing where nothing is recommended.
    iothreads: Option<String>,
    /// `sure`, `likely` or `in doubt`; missing where nothing is recommended.
    certainty: Option<&'static str>,
    /// The share of resamplings in which no number is better by more than the tolerance.
    within: f64,
    sentence: &'a str,
    details: &'a [String],
    /// The line to paste.
    command: Option<&'a str>,
    limits: Vec<Limited>,
}

/// What more than was measured would bring.
#[derive(Debug, Serialize)]
struct Told {
    subject: String,
    cell: String,
    /// As `--predict` has it.
    step: String,
    /// Missing, with the next three, where nothing is predicted.
    iothreads: Option<u16>,
    iops_low: Option<f64>,
    iops_high: Option<f64>,
    n90: Option<String>,
    /// What it rests on, or why there is none.
    assumption: String,
    sentence: String,
}

/// What limits the number in a cell.
#[derive(Debug, Serialize)]
struct Limited {
    cell: String,
    limit: String,
    iops: f64,
    host_iops: Option<f64>,
}

/// A contender one way against another.
#[derive(Debug, Serialize)]
struct Paired {
    base: String,
    other: String,
    cell: String,
    variant: String,
    contender: String,
    /// Of the other relative to the base, as are the next two: 1 is equal.
    iops: f64,
    /// From six repeats on.
    iops_interval: Option<[f64; 2]>,
    p99: Option<f64>,
    cpu: Option<f64>,
}

/// The report as a line of JSON.
pub(super) fn render(
    advice: &[Advice],
    rows: &[Record],
    (pairs, predicted): (&[Pair], &[Predicted]),
    notes: &[String],
) -> String {
    let answers = advice.iter().map(Use::of).collect();
    let pairs = pairs.iter().flat_map(|pair| pair.rows.iter().map(|row| Paired::of(pair, row)));
    let predictions = predicted.iter().map(Told::of).collect();
    let document = Document { answers, rows, pairs: pairs.collect(), predictions, notes };
    serde_json::to_string(&document).expect("a report has only plain fields") + "\n"
}

impl<'a> Use<'a> {
    fn of(advice: &'a Advice) -> Self {
        let answer = &advice.answer;
        let recommends = answer.recommends();
        Self {
            subject: answer.subject.to_string(),
            iothreads: recommends.then(|| answer.iothreads.to_string()),
            certainty: recommends.then(|| answer.certainty().name()),
            within: answer.within,
            sentence: &advice.sentence,
            details: &advice.details,
            command: advice.command.as_deref(),
            limits: answer.limits.iter().map(Limited::of).collect(),
        }
    }
}

impl Paired {
    fn of(pair: &Pair, row: &PairRow) -> Self {
        let median = |ratio: Option<Estimate>| ratio.map(|it| it.median);
        Self {
            base: pair.base.clone(),
            other: pair.other.clone(),
            cell: row.cell.to_string(),
            variant: row.variant.to_string(),
            contender: row.contender.to_string(),
            iops: row.iops.median,
            iops_interval: row.iops.interval.map(|it| [it.low, it.high]),
            p99: median(row.p99),
            cpu: median(row.cpu),
        }
    }
}

impl Told {
    fn of(predicted: &Predicted) -> Self {
        let told = predicted.told.ok();
        Self {
            subject: predicted.subject.to_string(),
            cell: predicted.place.clone(),
            step: predicted.step.to_string(),
            iothreads: told.map(|it| it.iothreads),
            iops_low: told.map(|it| it.iops.low),
            iops_high: told.map(|it| it.iops.high),
            n90: predicted.n90(),
            assumption: predicted.assumption(),
            sentence: predicted.sentence(),
        }
    }
}

impl Limited {
    fn of(limit: &Limit) -> Self {
        let Limit { spot, bottleneck, iops, host } = limit;
        let (cell, limit) = (spot.to_string(), bottleneck.to_string());
        Self { cell, limit, iops: *iops, host_iops: *host }
    }
}
