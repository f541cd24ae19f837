//! `ringloom report`: renders what was measured before, or compares two runs.
//!
//! Reads with `results::ReadableResults`, summarises and renders as `run` does after measuring. What is wrong with the file
//! stands among the notes of the report.
//!
//! Another question than was asked then is answered from the same runs; what was written stays as it is.
//!
//! Invariants: the results are only read; a file of theirs is never written over. What is printed
//! (`output`) or written beside `config/` (`kept`) has no control characters, whatever the results say.

mod files;
mod pair;

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use plan::args::ReportArgs;
use plan::settings::Step;
use records::results::{FILE_NAME, Group, ReadableResults};
use report::{Findings, Part, Report, Style};

pub use self::pair::{ComparisonText, rendered_pair};
use crate::output::print;

const PAGE: &str = "report.html";

/// Runs `ringloom report`.
///
/// # Errors
/// If nothing of the results can be used, or the report cannot be written; what is wrong with a part of the
/// results is no error but told in the report.
#[expect(
    clippy::needless_pass_by_value,
    reason = "options are for one run; so `ringloom` moves them in"
)]
pub fn report(args: ReportArgs) -> Result<()> {
    let out = args.out.as_deref();
    let source = Source::find(&args.results)?;
    match &args.other {
        Some(_) if args.question.is_asked() => {
            bail!(
                "a question (--want, --p99-max, --iops-min, --weights, --tolerance, --predict) is asked of one result, not of two"
            )
        }
        Some(other) => pair::report(&source, &Source::find(other)?, out),
        None if args.question.is_asked() || args.json => asked(&source, &args, out),
        None => single(&source, out.map_or_else(|| source.directory(), Ok)?),
    }
}

/// What is said where no directory is named.
fn unwritten(name: &str) -> String {
    format!("\nNothing is written; --out DIR keeps this as {name} and as a page, {PAGE}.\n")
}

/// The page of results stands beside them, and no other takes its place; `own` are the results that it is of.
fn refuse_results(out: Option<&Path>, own: Option<&Path>) -> Result<()> {
    let Some(out) = out else { return Ok(()) };
    let there = out.join(FILE_NAME);
    if there.exists() && !own.is_some_and(|own| storage::machine::is_same(own, &there)) {
        bail!("{} has results, and so a {PAGE} of its own: name another --out", out.display());
    }
    Ok(())
}

fn single(source: &Source, out: &Path) -> Result<()> {
    refuse_results(Some(out), Some(&source.path))?;
    let all = printed(&ReadableResults::read(&source.path)?, false)?;
    print(&files::write(out, &[&source.path], &all)?)
}

/// Asks something else of the same runs, or for programs. The report beside them stays that of what was asked when they were measured.
fn asked(source: &Source, args: &ReportArgs, out: Option<&Path>) -> Result<()> {
    refuse_results(out, None)?;
    let mut lenient = ReadableResults::read(&source.path)?;
    for group in &mut lenient.groups {
        group.header.settings.ask(&args.question)?;
        Step::check_all(&group.header.settings, group.header.machine.cores)?;
    }
    let all = printed(&lenient, args.json)?;
    match out {
        Some(out) => {
            let written = files::write(out, &[&source.path], &all)?;
            if args.json { Ok(()) } else { print(&written) }
        }
        None if args.json => Ok(()),
        None => print(
            "\nNothing is written, and the config/ beside the results is for what was asked when they were \
             measured; --out DIR keeps this report with its page and its config/.\n",
        ),
    }
}

/// Prints all reports of a file and returns what is to be written of them.
fn printed(lenient: &ReadableResults, as_json: bool) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for ReportText { text, json, files } in parts_of(lenient) {
        print(&if as_json { json } else { format!("{text}\n") })?;
        all.extend(files);
    }
    Ok(all)
}

/// A report in all its forms, before `output` and `kept` take from it what a terminal obeys.
#[derive(Debug, PartialEq, Eq)]
pub struct ReportText {
    /// What `ringloom report` prints.
    pub text: String,
    /// What it prints with `--json`.
    pub json: String,
    /// By name, which is a path below the directory of the report.
    pub files: Vec<(String, String)>,
}

/// What `ringloom report` makes of the content of a results file: a report for each kind of runs in it. Pure, and
/// whatever the bytes are; so the fuzz target `results_file` calls it.
///
/// # Errors
/// If nothing of it can be used.
pub fn rendered(results: &[u8]) -> Result<Vec<ReportText>> {
    let lenient = ReadableResults::parse(results)?;
    Ok(parts_of(&lenient).collect())
}

/// One after the other, for a file may have many.
fn parts_of(lenient: &ReadableResults) -> impl Iterator<Item = ReportText> {
    let ReadableResults { groups, problems } = lenient;
    Part::all(groups.len()).zip(groups).map(|(part, group)| {
        let notes = notes(group, problems, part.number(), groups.len());
        let findings = findings(group, &notes);
        let report = Report::of_part(part, &findings);
        let (text, json) = (report.text(Style::Plain, ""), report.json());
        ReportText { text, json, files: report.files() }
    })
}

/// A results file.
struct Source {
    /// As the user named it.
    name: String,
    path: PathBuf,
}

impl Source {
    /// Of a directory its results, or the file itself.
    fn find(given: &Path) -> Result<Self> {
        let name = given.display().to_string();
        let about = std::fs::metadata(given).with_context(|| format!("results {name}"))?;
        if !about.is_dir() {
            return Ok(Self { name, path: given.to_path_buf() });
        }
        let path = given.join(FILE_NAME);
        if !path.exists() {
            bail!("{name} has no {FILE_NAME}: ringloom tune did not write it");
        }
        Ok(Self { name, path })
    }

    /// Where the report goes unless the user says otherwise.
    ///
    /// # Errors
    /// For a pipe, and for a file that is named by a descriptor (`/dev/stdin`).
    fn directory(&self) -> Result<&Path> {
        let directory = match self.path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => directory,
            Some(_) | None => Path::new("."),
        };
        let kind = self.path.metadata().with_context(|| format!("results {}", self.name))?;
        let is_of_descriptors = || {
            let directory = directory.canonicalize();
            directory.is_ok_and(|it| it == Path::new("/dev") || it.starts_with("/proc"))
        };
        if kind.file_type().is_fifo() || kind.is_file() && is_of_descriptors() {
            bail!(
                "{} is in no directory that the report could go to: name one with --out",
                self.name
            );
        }
        Ok(directory)
    }
}

fn findings<'a>(group: &'a Group, notes: &'a [String]) -> Findings<'a> {
    let Group { header, runs, failures, .. } = group;
    let (skipped, pruned) = (&header.known.skipped[..], &header.known.left_out[..]);
    Findings { header, runs, failures, skipped, pruned, notes }
}

/// What the reader must know of the file, and of the part that this is.
fn notes(group: &Group, problems: &[String], number: usize, parts: usize) -> Vec<String> {
    let mut notes = Vec::new();
    if parts > 1 {
        notes.push(format!(
            "the file holds {parts} kinds of runs that do not compare with each other, so each has a \
             report of its own; this is number {number}"
        ));
    }
    if !group.differences.is_empty() {
        let differences = group.differences.join("; ");
        notes.push(format!("what differs from number 1: {differences}"));
    }
    notes.extend_from_slice(problems);
    notes.extend_from_slice(&group.header.known.notes);
    notes
}

#[cfg(test)]
mod tests;
