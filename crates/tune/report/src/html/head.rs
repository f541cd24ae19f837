//! The top of the page: what was measured, what to use, and the figures that matter most. Pure functions.

use findings::stats::{Estimate, geometric_mean};
use findings::summary::{CellSummary, Row, compared};
use maud::{Markup, html};
use plan::contender::{Contender, Iothreads, Subject};
use plan::units::{counted, percent_gain};
use records::calendar::{Date, time_of_day};
use records::results::Header;

use super::{Figure, View, files};
use crate::advice::Advice;
use crate::pairs::sentence;
use crate::text::of_baseline;
use crate::{Findings, facts, sizes, unmeasured};

/// Where it was measured, in short.
fn machine(header: &Header) -> String {
    match &header.cluster {
        Some(cluster) => {
            format!("Kubernetes {}, {}", cluster.version, counted(cluster.nodes.len(), "node"))
        }
        None => format!("{}, {}", header.machine.cpu, counted(header.machine.cores, "core")),
    }
}

/// What was measured.
pub(super) fn title(findings: &Findings<'_>) -> String {
    if findings.header.is_unknown() {
        return "results of an unknown disk on an unknown machine".to_owned();
    }
    let [(_, disk), ..] = facts(findings);
    disk
}

pub(super) fn render(view: &View<'_>) -> Markup {
    let header = view.report.findings.header;
    let started = header.started_unix_s;
    html! {
        header class="top" {
            p class="brand" { "ringloom tune" }
            h1 { (title(view.report.findings)) }
            @if !header.is_unknown() {
                p class="when" {
                    (Date::of(started)) " " (time_of_day(started)) " UTC · " (machine(header)) " · seed "
                    (header.settings.seed)
                }
            }
            @if let Some(it) = unmeasured(header) { p class="hint" { (it) } }
            (verdict(view))
            (figures(view))
        }
    }
}

/// What to use, in a sentence and a line to paste for each subject.
fn verdict(view: &View<'_>) -> Markup {
    let advice = &view.report.advice;
    let sizes = sizes::sentences(&view.report.sizes);
    let notes = view.report.notes.len();
    html! {
        div class="verdict" id="verdict" {
            @if advice.is_empty() && view.report.pairs.is_empty() && sizes.is_empty() {
                p { (nothing(view)) }
            }
            @if advice.is_empty() {
                @for pair in &view.report.pairs { p { (together(&sentence(pair))) } }
            }
            @for sentence in &sizes { p { (together(sentence)) } }
            @for advice in advice { (advised(advice)) }
            @if notes > 0 || !view.report.configurations.files.is_empty() {
                p class="hint" {
                    @if !view.report.configurations.files.is_empty() {
                        a href="#configurations" { "Configurations" } " for " (files::targets(&view.report.configurations.files))
                    }
                    @if notes > 0 && !view.report.configurations.files.is_empty() { " · " }
                    @if notes > 0 {
                        a href="#notes" { (counted(notes, "note")) } " on how far to trust these figures"
                    }
                }
            }
        }
    }
}

fn advised(advice: &Advice) -> Markup {
    html! {
        p { (together(&advice.sentence)) }
        @if let Some(command) = &advice.command {
            (paste(&html! { code { (command) } }))
        }
        @if !advice.details.is_empty() {
            ul class="details" { @for it in &advice.details { li { (together(it)) } } }
        }
    }
}

/// What holds some `code`, and a button that copies it.
pub(super) fn paste(code: &Markup) -> Markup {
    html! {
        div class="paste" {
            (code)
            button type="button" class="copy" { "Copy" }
        }
    }
}

/// With each number in the line of its `%`.
fn together(text: &str) -> String {
    text.replace(" %", "\u{a0}%")
}

/// Why there is no advice.
fn nothing(view: &View<'_>) -> &'static str {
    match (
        view.report.cells.is_empty(),
        view.report.probes.is_empty() && view.report.curves.is_empty(),
    ) {
        (true, true) => "No run succeeded, so there is nothing to recommend.",
        (true, false) => "No numbers of iothreads were compared: the probes and curves are below.",
        (false, _) => "No numbers of iothreads were compared, so there is nothing to recommend.",
    }
}

fn figures(view: &View<'_>) -> Markup {
    let findings = view.report.findings;
    let failed = match findings.failures.len() {
        0 => "none failed".to_owned(),
        failed => format!("{failed} failed"),
    };
    let mut all: Vec<Figure> = Vec::new();
    if view.cells_in_all() > 0 {
        let subjects: Vec<_> = view.subjects.iter().map(ToString::to_string).collect();
        let count = view.cells_in_all().to_string();
        all.push(("Cells".to_owned(), count, subjects.join(", "), false));
    }
    all.push(("Runs".to_owned(), findings.runs.len().to_string(), failed, false));
    // Each subject begins a line, below the one before.
    for (number, subject) in compared(&view.report.cells).into_iter().enumerate() {
        let begins = |index| number > 0 && index == 0;
        let advice = view.report.advice.iter().map(|it| &it.answer);
        let answer = advice.filter(|it| it.recommends()).find(|it| it.subject == subject);
        let used = answer.map(|it| it.iothreads);
        let own = of_subject(subject, &view.report.cells, used).into_iter().enumerate();
        all.extend(
            own.map(|(index, (name, figure, meaning))| (name, figure, meaning, begins(index))),
        );
    }
    super::figures(&all)
}

/// What a number of iothreads for all cells brings: the one that is recommended, if one is. What the best of each cell brought
/// would flatter, since the best of several is partly the luckiest.
fn of_subject(
    subject: Subject,
    cells: &[CellSummary],
    used: Option<Iothreads>,
) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    let used = used.map(|iothreads| Contender::new(subject, iothreads));
    let rows = || cells.iter().flat_map(|cell| &cell.rows).filter(|it| Some(it.contender) == used);
    let is_none = used.is_some_and(|it| it.iothreads() == Some(Iothreads::NONE));
    let mean = |ratio: fn(&Row) -> Option<Estimate>| {
        let medians: Vec<f64> = rows().filter_map(ratio).map(|it| it.median).collect();
        Some((geometric_mean(medians.iter().copied())?, counted(medians.len(), "cell")))
    };
    let number = used.map_or_else(String::new, |it| it.to_string());
    if let Some((gain, cells)) = mean(|row| row.to_none).filter(|_| !is_none) {
        let meaning = format!("{number} over none, geometric mean of {cells}");
        all.push((format!("{subject}: gain"), percent_gain(gain), meaning));
    }
    if let Some((share, count)) = mean(|row| row.to_host) {
        let meaning = format!("IOPS of {number} to the bare file, geometric mean of {count}");
        let [name, meaning] =
            [format!("{subject}: of the host"), meaning].map(|words| of_baseline(&words, cells));
        all.push((name, format!("{:.0} %", share * 100.0), meaning));
    }
    let enough = cells.iter().flat_map(|cell| &cell.verdicts).filter(|it| it.0 == subject);
    let counts: Vec<_> = enough.map(|(_, verdict)| verdict.n90).collect();
    if let (Some(least), Some(most)) = (counts.iter().min(), counts.iter().max()) {
        let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let meaning = "fewest iothreads for 90 % of the best, over the cells".to_owned();
        all.push((format!("{subject}: n90"), range, meaning));
    }
    all
}
