//! The report: what was measured how, the tables, what bends them, and what to use. Pure functions.
//!
//! Each child renders one part; `text` has the words and numbers of all.
//! The same text goes to standard output (`Style::Plain`) and to `report.md` (`Style::Markdown`); `html` makes a page of it,
//! `rows` CSV and lines of JSON, `json` what `--json` prints instead of the text.
#![forbid(unsafe_code)]

mod advice;
mod around;
mod cells;
mod compare;
mod configurations;
mod curve;
mod failed;
mod form;
mod html;
mod json;
mod least;
mod markdown;
mod pairs;
mod part;
mod predicted;
pub mod prediction;
mod probe;
mod programs;
mod rows;
mod sizes;
mod steadiness;
mod table;
mod text;

use findings::answer::NoAnswer;
use findings::drift::flagged;
use findings::summary::{
    CellSummary, Curve, FailedCell, Pair, Probe, curves, failed as failed_cells, pairs as paired,
    probes, summarise,
};
use plan::cell::Cell;
use plan::contender::Subject;
use plan::repeats::Repeats;
use plan::settings::{Mode, Settings};
use plan::units::counted;
use records::results::{ClusterNode, ClusterStorage, Failure, Header, Run};
use storage::target::Origin;

use self::advice::Advice;
use self::configurations::Configurations;
pub use self::configurations::names as configuration_names;
pub use self::part::Part;
use self::sizes::BySize;
use crate::markdown::escaped;
use crate::prediction::Predicted;
pub use compare::{Compared, Side, render as render_comparison};
pub use html::comparison as comparison_page;
use rows::Record;
use text::{headed, one_line, wrapped};

/// What every guest figure says where KVM does not work.
pub const EMULATED: &str = "emulated, not comparable with the host";
/// The same on a cluster.
const EMULATED_BESIDE_PODS: &str = "emulated, not comparable with the pod";

/// For whom the report is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A terminal.
    Plain,
    /// A file in Markdown.
    Markdown,
}

/// All that a report is made of.
#[derive(Clone, Copy, Debug)]
pub struct Findings<'a> {
    /// What all runs have in common.
    pub header: &'a Header,
    /// Those that were measured.
    pub runs: &'a [Run],
    /// Runs that failed and were not measured since.
    pub failures: &'a [Failure],
    /// Cells that write, where that is not allowed.
    pub skipped: &'a [Cell],
    /// What else was left out, a sentence without its full stop each.
    pub pruned: &'a [String],
    /// What bends the numbers, likewise.
    pub notes: &'a [String],
}

/// What the runs say, worked out once for all that is rendered of it.
#[derive(Debug)]
pub struct Report<'a> {
    part: Part,
    findings: &'a Findings<'a>,
    cells: Vec<CellSummary>,
    /// In which runs failed.
    failed: Vec<FailedCell>,
    /// Ways to serve a disk against each other.
    pairs: Vec<Pair>,
    probes: Vec<Probe>,
    curves: Vec<Curve>,
    /// Block sizes, where they were asked for; `cells` is then empty.
    sizes: Vec<BySize>,
    /// What bends the numbers, what failed and what was left out, a sentence each.
    notes: Vec<String>,
    /// What to use, for each subject that compares numbers of iothreads.
    advice: Vec<Advice>,
    configurations: Configurations,
    /// What more than was measured would bring, if that is asked.
    predicted: Vec<Predicted>,
}

impl<'a> Report<'a> {
    /// Of results that all compare with each other.
    pub fn new(findings: &'a Findings<'a>) -> Self {
        Self::of_part(Part::FIRST, findings)
    }

    /// Of one part of a results file; its files, and all that points to them, have its names.
    pub fn of_part(part: Part, findings: &'a Findings<'a>) -> Self {
        let Findings { header, runs, failures, .. } = *findings;
        let cells = summarise(runs, header.machine.cores);
        let pairs = paired(&cells);
        let mut failed = failed_cells(failures);
        let (cells, sizes) = match header.settings.mode {
            Mode::Sizes => {
                let is_lost = |it: &FailedCell| {
                    !cells.iter().any(|cell| (cell.variant, cell.cell) == (it.variant, it.cell))
                };
                failed.retain(is_lost);
                (Vec::new(), sizes::by_size(cells))
            }
            Mode::Sweep | Mode::Hysteresis | Mode::Curve => (cells, Vec::new()),
        };
        let drift = flagged(runs);
        let mut advice = advice::all(part, findings, &drift, &cells);
        // What was asked then is which way is better.
        let one_number = |it: &Advice| it.answer.nothing == Some(NoAnswer::OneNumber);
        advice.retain(|it| pairs.is_empty() || !one_number(it));
        Self {
            part,
            findings,
            failed,
            pairs,
            probes: probes(runs, &header.settings.jobs),
            curves: curves(runs),
            sizes,
            notes: around::sentences(findings, &drift),
            configurations: Configurations::of(part, findings, &cells, &advice),
            predicted: predicted::all(findings, &cells),
            advice,
            cells,
        }
    }

    /// The report as text. `written` is told before the answer, so that this is the last.
    pub fn text(&self, style: Style, written: &str) -> String {
        let Self { findings, cells, .. } = self;
        let written = written.to_owned() + &self.configurations.render(style);
        let written = if written.is_empty() { written } else { format!("\n{written}") };
        let text = [
            head(style, findings),
            cells::render(style, findings.header, cells),
            failed::render(style, &self.failed, cells),
            pairs::render(style, &self.pairs),
            // A terminal is too narrow for it.
            if style == Style::Markdown { form::render(style, cells) } else { String::new() },
            probe::render(style, &self.probes),
            curve::render(style, &self.curves),
            predicted::render(style, &self.predicted),
            sizes::render(style, &self.sizes),
            headed(style, "Notes", &self.notes),
            written,
        ]
        .concat();
        // The last thing that is read is what was asked.
        let paired =
            if self.advice.is_empty() { pairs::last(style, &self.pairs) } else { String::new() };
        let sizes = sizes::conclusion(style, &self.sizes);
        text + &paired + &advice::render(style, &self.advice) + &sizes
    }

    /// The report as a line of JSON.
    pub fn json(&self) -> String {
        let Self { advice, pairs, predicted, notes, .. } = self;
        json::render(advice, &self.records(), (pairs, predicted), notes)
    }

    fn records(&self) -> Vec<Record> {
        let by_size = self.sizes.iter().flat_map(|it| &it.cells);
        rows::records(self.cells.iter().chain(by_size))
    }

    /// The files of the report, by name: Markdown, the page, the rows as CSV and as lines of JSON, and the configurations.
    pub fn files(&self) -> Vec<(String, String)> {
        let rows = self.records();
        let mut files = self.configurations.files.clone();
        files.extend(
            [
                ("report.md", self.text(Style::Markdown, "")),
                ("report.html", html::page(self)),
                ("report.csv", rows::csv(&rows)),
                ("report.jsonl", rows::lines(&rows)),
            ]
            .map(|(name, text)| (self.part.named(name), text)),
        );
        files
    }
}

fn head(style: Style, findings: &Findings<'_>) -> String {
    let facts = facts(findings).map(|(name, fact)| (name, one_line(&fact)));
    let unmeasured = unmeasured(findings.header).map(|it| wrapped(style, it));
    match style {
        Style::Plain => {
            let facts = facts.iter().map(|(_, fact)| wrapped(style, fact));
            unmeasured.into_iter().chain(facts).collect()
        }
        Style::Markdown => {
            let unmeasured = unmeasured.map_or_else(String::new, |it| format!("{it}\n"));
            let fact = |(name, fact): &(&str, String)| format!("- {name}: {}\n", escaped(fact));
            let facts: String = facts.iter().map(fact).collect();
            format!("# ringloom tune\n\n{unmeasured}{facts}")
        }
    }
}

/// What a reader who thinks of virtual machines must know first.
fn unmeasured(header: &Header) -> Option<&'static str> {
    let has = |is_it: fn(&Subject) -> bool| header.settings.subject.iter().any(is_it);
    // Who measures pods knows what a virtual machine is.
    if header.is_unknown() || has(|it| it.is_vm() || *it == Subject::Pod) {
        None
    } else if has(|it| *it == Subject::Client) {
        Some("No guest was measured, but a client of ringloom serve on this host.")
    } else {
        Some("No guest was measured, but this host alone.")
    }
}

/// What was measured where, with what and how.
fn facts(findings: &Findings<'_>) -> [(&'static str, String); 4] {
    let header = findings.header;
    if header.is_unknown() {
        return [
            ("Disk", "an unknown disk".to_owned()),
            ("Machine", "an unknown machine".to_owned()),
            ("Programs", "unknown programs".to_owned()),
            ("Method", "unknown settings".to_owned()),
        ];
    }
    let Header { disk, machine, settings, .. } = header;
    let (programs, method) = (programs::sentence(findings), method(settings));
    if let Some(cluster) = &header.cluster {
        let storage = cluster.storage.iter().map(ClusterStorage::description);
        let nodes = cluster.nodes.iter().map(ClusterNode::description);
        let storage = storage.collect::<Vec<_>>().join("; ");
        let nodes = one_line(&nodes.collect::<Vec<_>>().join("; "));
        return [
            ("Storage", storage),
            ("Nodes", nodes),
            ("Programs", programs),
            ("Method", method),
        ];
    }
    let name = match disk.origin {
        Origin::Scratch => "a scratch file".to_owned(),
        Origin::User | Origin::Guest => one_line(&disk.path.display().to_string()),
    };
    let title = format!("{name}: {}", disk.description);
    let machine =
        format!("{}, {}, {}", counted(machine.cores, "core"), machine.cpu, machine.kernel);
    [("Disk", title), ("Machine", machine), ("Programs", programs), ("Method", method)]
}

fn method(settings: &Settings) -> String {
    let Settings { runtime, ramp, seed, .. } = settings;
    let repeats = repeats(settings.repeats);
    format!("{repeats} of {runtime} s after {ramp} s of ramp, seed {seed}")
}

/// `3 repeats`, `1 repeat`, `3-12 repeats`.
pub fn repeats(repeats: Repeats) -> String {
    match repeats {
        Repeats::Fixed(number) => counted(usize::from(number), "repeat"),
        Repeats::Until { .. } => format!("{repeats} repeats"),
    }
}

#[cfg(test)]
pub(crate) use self::tests::rendered as render_for_tests;
#[cfg(test)]
mod tests;
