//! Reads whatever can be read of a results file: for `ringloom report`, which must not give up on a damaged file.
//!
//! Reads formats 2 and 3. What cannot be used becomes a sentence (`problems`) with the numbers of its lines, and
//! nothing else of the file is lost by it. Runs under headers that forbid to mix them are kept apart (`Group`).
//!
//! Invariants: the rate of every run that is handed on is a number, and no sum over its figures overflows (`sane`).
//! Limits: `LINE_BYTES_MAX` for one line, `RUNS_MAX` runs, `APART_MAX` places of doubt; the file is read once and never held as a whole.
//! Not here: the strict reading of a file that is to be continued (`Stored`).

mod trouble;

use std::borrow::Borrow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use self::trouble::{Kind, Troubles};
use super::latest::Latest;
use super::{Failure, Header, Line, Run, sane};
use crate::plan::RunKey;

/// The formats that can be read.
const FORMATS: RangeInclusive<u64> = 2..=3;
/// Sixteen guests with full histograms and a day of seconds take some 3 MB.
const LINE_BYTES_MAX: u64 = 8 << 20;
/// Ten times the largest sweep: 1,440 points, 12 repeats each.
const RUNS_MAX: usize = 200_000;
/// So many groups at most are kept apart for a while: a file is damaged in a few places, or it is no file of ours.
const APART_MAX: usize = 100;
/// Stands for a header that is missing, and for the fields that one lacks.
const UNKNOWN_HEADER: &str = include_str!("lenient/unknown-header.json");

/// What stands in a header and nowhere else.
const HEADER_MARK: &[u8] = br#""kind":"header""#;
/// What one of stands in every other line.
const OTHER_MARKS: [&[u8]; 2] = [br#""kind":"run""#, br#""kind":"failure""#];
/// How runs whose header cannot be read differ from the first group.
const UNKNOWN: &str = "machine, disk, programs and settings are not known";
const FIRST_UNKNOWN: &str = "machine, disk, programs and settings of number 1 are not known";

/// What could be read of a file.
#[derive(Debug)]
pub(crate) struct Lenient {
    /// In the order of the file; runs of one group compare with each other. At least one.
    pub(crate) groups: Vec<Group>,
    /// What is wrong with the file: a sentence without its full stop each.
    pub(crate) problems: Vec<String>,
}

/// Runs that may be summarised together.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) header: Header,
    /// In the order of the file; of one that was done again the last.
    pub(crate) runs: Vec<Run>,
    /// Runs that failed and were not measured since.
    pub(crate) failures: Vec<Failure>,
    /// Why they do not compare with those of the first group.
    pub(crate) differences: Vec<String>,
    /// Until all lines are there.
    latest: Latest<Numbered>,
    /// The group whose header it may have: a line before it cannot be read.
    perhaps_of: Option<usize>,
}

/// A line with its number in the file.
#[derive(Clone, Debug)]
struct Numbered {
    number: u64,
    line: Line,
}

impl Borrow<Line> for Numbered {
    fn borrow(&self) -> &Line {
        &self.line
    }
}

impl Lenient {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is a device, is empty, or has not one line that can be used; then with what is wrong with it.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let file = File::open(path).with_context(|| format!("open {name}"))?;
        let kind = file.metadata().with_context(|| format!("open {name}"))?.file_type();
        // It may have no end.
        if kind.is_char_device() || kind.is_block_device() {
            bail!("read {name}: it is a device, results are in a file or a pipe");
        }
        let mut reader = Reader::default();
        reader.read(BufReader::new(file)).with_context(|| format!("read {name}"))?;
        reader.end().with_context(|| format!("read {name}"))
    }

    /// The same of bytes.
    ///
    /// # Errors
    /// As `read`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::default();
        reader.read(bytes)?;
        reader.end()
    }
}

/// What all lines have.
#[derive(Deserialize)]
struct Versioned {
    format: u64,
    kind: String,
}

#[derive(Default)]
struct Reader {
    groups: Vec<Group>,
    /// The group of the last header; none before the first, and after one that cannot be read.
    current: Option<usize>,
    runs: usize,
    lines: u64,
    formats: Vec<u64>,
    troubles: Troubles,
}

impl Reader {
    fn read(&mut self, mut input: impl BufRead) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            if length == 0 {
                return Ok(());
            }
            self.lines += 1;
            let ended = line.ends_with(b"\n");
            if !ended && u64::try_from(length).unwrap_or(u64::MAX) == LINE_BYTES_MAX {
                self.troubles.add(Kind::TooLong, self.lines, "");
                self.lose_header(&line);
                skip_line(&mut input)?;
                continue;
            }
            self.line(line.trim_ascii(), ended);
        }
    }

    fn line(&mut self, line: &[u8], ended: bool) {
        let number = self.lines;
        let line = if number == 1 { line.trim_prefix_bom() } else { line };
        if line.is_empty() {
            return;
        }
        let versioned: Versioned = match serde_json::from_slice(line) {
            Ok(versioned) => versioned,
            Err(_) if !ended => return self.troubles.add(Kind::Torn, number, ""),
            Err(error) => {
                self.lose_header(line);
                return self.troubles.add(Kind::Unreadable, number, &reason(&error));
            }
        };
        if !FORMATS.contains(&versioned.format) {
            self.lose_header(line);
            return self.troubles.add(Kind::Format(versioned.format), number, "");
        }
        match versioned.kind.as_str() {
            "header" => self.header(line),
            "run" | "failure" => match serde_json::from_slice::<Line>(line) {
                Ok(line) => self.measured(line, versioned.format),
                Err(error) => self.troubles.add(Kind::Unreadable, number, &reason(&error)),
            },
            other => {
                self.keep_apart();
                self.troubles.add(Kind::Unknown, number, &shortened(other));
            }
        }
    }

    fn header(&mut self, line: &[u8]) {
        match header(line) {
            Ok((header, lacks)) => {
                for field in lacks {
                    self.troubles.add(Kind::HeaderLacks, self.lines, &field);
                }
                self.begin(header);
            }
            Err(error) => {
                self.current = None;
                self.troubles.add(Kind::Unreadable, self.lines, &reason(&error));
            }
        }
    }

    /// What follows a header that cannot be read does not belong to the header before it; what follows a line of which not
    /// even the kind can be read does not if most of it is there again (`settle`).
    fn lose_header(&mut self, line: &[u8]) {
        let has = |mark: &[u8]| line.windows(mark.len()).any(|part| part == mark);
        if has(HEADER_MARK) {
            self.current = None;
        } else if !OTHER_MARKS.iter().any(|mark| has(mark)) {
            self.keep_apart();
        }
    }

    /// Keeps what follows apart until all is read, unless that was done too often to be worth it.
    fn keep_apart(&mut self) {
        let Some(current) = self.current else { return };
        let Group { header, differences, perhaps_of, latest, .. } = &self.groups[current];
        let is_begun = perhaps_of.is_some() && latest.lines().is_empty();
        if is_begun || self.groups.len() >= APART_MAX {
            return;
        }
        let apart = Group::new(header.clone(), differences.clone());
        let perhaps_of = Some(perhaps_of.unwrap_or(current));
        self.current = Some(self.groups.len());
        self.groups.push(Group { perhaps_of, ..apart });
    }

    /// The groups, when all is read: what was kept apart joins the group whose header it may have, or has none.
    fn settle(&mut self) -> Vec<Group> {
        let mut settled: Vec<Group> = Vec::new();
        // Where each group is now.
        let mut places: Vec<usize> = Vec::new();
        for group in std::mem::take(&mut self.groups) {
            let home = group.perhaps_of.map(|index| places[index]);
            match home.filter(|place| !group.repeats(&settled[*place])) {
                Some(place) => {
                    places.push(place);
                    for line in group.latest.into_lines() {
                        let number = line.number;
                        if let Some(again) = settled[place].add(line) {
                            self.troubles.add(Kind::Again, number, &again.to_string());
                        }
                    }
                }
                None => {
                    places.push(settled.len());
                    settled.push(if home.is_some() { group.without_header() } else { group });
                }
            }
        }
        settled.into_iter().map(Group::settled).collect()
    }

    /// Goes on with the group that this header belongs to, or a new one.
    fn begin(&mut self, header: Header) {
        let is_same = |it: &Group| {
            it.perhaps_of.is_none()
                && !it.header.is_unknown()
                && header.differences(&it.header).is_empty()
        };
        let place = self.groups.iter().position(is_same);
        self.current = Some(place.unwrap_or_else(|| self.add(header)));
    }

    fn add(&mut self, header: Header) -> usize {
        let differences = match self.groups.first() {
            None => Vec::new(),
            Some(_) if header.is_unknown() => vec![UNKNOWN.to_owned()],
            Some(first) if first.header.is_unknown() => vec![FIRST_UNKNOWN.to_owned()],
            Some(first) => header.differences(&first.header),
        };
        self.groups.push(Group::new(header, differences));
        self.groups.len() - 1
    }

    fn measured(&mut self, line: Line, format: u64) {
        let number = self.lines;
        if self.runs == RUNS_MAX {
            return self.troubles.add(Kind::TooMany, number, "");
        }
        let name = line.key().to_string();
        let found = match &line {
            Line::Run(run) => sane::check(run),
            Line::Failure(failure) => sane::check_key(&failure.key),
        };
        match (found, &line) {
            (Err(sane::Fault::NoTime), _) => return self.troubles.add(Kind::NoTime, number, &name),
            (Err(sane::Fault::Absurd(what)), _) => {
                return self.troubles.add(Kind::Absurd, number, &format!("{name}: {what}"));
            }
            (Ok(()), Line::Run(run)) if run.operations == 0 => {
                self.troubles.add(Kind::Nothing, number, &name);
            }
            (Ok(()), Line::Run(_) | Line::Failure(_)) => {}
        }
        self.runs += 1;
        if !self.formats.contains(&format) {
            self.formats.push(format);
        }
        let current = self.current.unwrap_or_else(|| self.add(unknown_header()));
        self.current = Some(current);
        let group = &mut self.groups[current];
        if group.header.is_unknown() {
            self.troubles.add(Kind::NoHeader, number, "");
        }
        if let Some(again) = group.add(Numbered { number, line }) {
            self.troubles.add(Kind::Again, number, &again.to_string());
        }
    }

    fn end(mut self) -> Result<Lenient> {
        let groups = self.settle();
        if self.lines == 0 {
            bail!("it is empty: the command ended before anything was written");
        }
        if groups.iter().all(|group| group.header.is_unknown()) {
            self.troubles.no_header();
        }
        if groups.is_empty() {
            bail!("nothing of it can be used: {}", self.troubles.sentences().join("; "));
        }
        let mut problems = self.troubles.sentences();
        if self.formats.len() > 1 {
            self.formats.sort_unstable();
            let formats: Vec<String> = self.formats.iter().map(u64::to_string).collect();
            problems.push(format!(
                "runs of the formats {} are mixed: several versions of ringloom wrote them",
                formats.join(" and ")
            ));
        }
        if self.runs == 0 {
            problems.push("nothing was measured".to_owned());
        }
        Ok(Lenient { groups, problems })
    }
}

impl Group {
    fn new(header: Header, differences: Vec<String>) -> Self {
        let (runs, failures, latest) = (Vec::new(), Vec::new(), Latest::new());
        Self { header, runs, failures, differences, latest, perhaps_of: None }
    }

    /// Whether most of it are measured runs of another again, as of a second command; one that failed is tried again.
    fn repeats(&self, other: &Self) -> bool {
        let of = |it: &&Numbered| other.latest.get(it.line.key()).map(|it| &it.line);
        let is_run = |it: &&Numbered| matches!(of(it), Some(Line::Run(_)));
        let lines = self.latest.lines();
        2 * lines.iter().filter(is_run).count() > lines.len()
    }

    fn without_header(self) -> Self {
        Self { header: unknown_header(), differences: vec![UNKNOWN.to_owned()], ..self }
    }

    /// Adds a line; the key of a run that is there already and is replaced by another, which is to be told.
    fn add(&mut self, line: Numbered) -> Option<RunKey> {
        let is_run = matches!(line.line, Line::Run(_));
        match self.latest.add(line)?.line {
            Line::Run(run) if is_run => Some(run.key),
            Line::Run(_) | Line::Failure(_) => None,
        }
    }

    /// When all lines are there.
    fn settled(mut self) -> Self {
        let latest = std::mem::replace(&mut self.latest, Latest::new());
        for Numbered { line, .. } in latest.into_lines() {
            match line {
                Line::Run(run) => self.runs.push(*run),
                Line::Failure(failure) => self.failures.push(failure),
            }
        }
        self
    }
}

fn unknown_header() -> Header {
    serde_json::from_str(UNKNOWN_HEADER).expect("the stand-in is a header")
}

/// Reads to the end of a line without keeping it.
fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let (length, ended) = end.map_or((buffer.len(), buffer.is_empty()), |it| (it + 1, true));
        input.consume(length);
        if ended {
            return Ok(());
        }
    }
}

trait TrimBom {
    fn trim_prefix_bom(&self) -> &Self;
}

impl TrimBom for [u8] {
    /// Without the mark that some editors put before a text.
    fn trim_prefix_bom(&self) -> &Self {
        self.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(self)
    }
}

/// A header, and the fields that it lacks, for which the stand-in's are taken.
fn header(line: &[u8]) -> serde_json::Result<(Header, Vec<String>)> {
    if let Ok(header) = serde_json::from_slice(line) {
        return Ok((header, Vec::new()));
    }
    let mut value: Value = serde_json::from_slice(line)?;
    let mut lacks = Vec::new();
    fill(&mut value, &serde_json::from_str(UNKNOWN_HEADER)?, "", &mut lacks);
    serde_json::from_value(value).map(|header| (header, lacks))
}

/// Puts into an object what it lacks of another; tells the paths.
fn fill(value: &mut Value, from: &Value, path: &str, lacks: &mut Vec<String>) {
    let (Value::Object(fields), Value::Object(from)) = (value, from) else { return };
    for (name, from) in from {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match fields.get_mut(name) {
            Some(value) => fill(value, from, &path, lacks),
            None => {
                fields.insert(name.clone(), from.clone());
                lacks.push(path);
            }
        }
    }
}

/// What is wrong with a line, without the number of the line, which is always 1 to `serde_json`.
fn reason(error: &serde_json::Error) -> String {
    shortened(&error.to_string().replace(" at line 1 column", " at column"))
}

/// What of a file is told in a sentence.
fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 120;
    let clean = text.chars().map(|it| if it.is_control() { '\u{fffd}' } else { it });
    let mut short: String = clean.clone().take(CHARACTERS_MAX).collect();
    if clean.count() > CHARACTERS_MAX {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests;
