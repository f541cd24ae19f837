//! Reads whatever can be read of a results file: for `ringloom report`, which must not give up on a damaged file.
//!
//! Reads formats 2 to 4. What cannot be used becomes a sentence (`problems`) with the numbers of its lines, and
//! nothing else of the file is lost by it. Runs under headers that forbid to mix them are kept apart (`Group`).
//!
//! Invariants: the rate of every run that is handed on is a number, and no sum over its figures overflows (`sane`).
//! Limits: `LINE_BYTES_MAX` for one line, `RUNS_MAX` runs; the file is read once and never held as a whole.
//! Not here: the strict reading of a file that is to be continued (`StoredResults`).

mod trouble;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

use self::trouble::{Kind, Troubles};
use super::{Failure, Header, Line, RecordedRuns, Run, sane};

/// The formats that can be read.
const FORMATS: RangeInclusive<u64> = 2..=4;
/// 128 workers of a cluster with full histograms and a day of seconds take some 10 MB.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Ten times the largest sweep: 1,440 points, 12 repeats each.
const RUNS_MAX: usize = 200_000;
/// Stands for a header that is missing, and for the fields that one lacks.
const UNKNOWN_HEADER: &str = include_str!("lenient/unknown-header.json");

/// What stands in a header and nowhere else.
const HEADER_MARK: &[u8] = br#""kind":"header""#;
/// How runs whose header cannot be read differ from the first group.
const UNKNOWN: &str = "machine, disk, programs and settings are not known";
const FIRST_UNKNOWN: &str = "machine, disk, programs and settings of number 1 are not known";

/// What could be read of a file.
#[derive(Debug)]
pub struct ReadableResults {
    /// In the order of the file; runs of one group compare with each other. At least one.
    pub groups: Vec<Group>,
    /// What is wrong with the file: a sentence without its full stop each.
    pub problems: Vec<String>,
}

/// Runs that may be summarised together.
#[derive(Debug)]
pub struct Group {
    /// What all runs have in common.
    pub header: Header,
    /// In the order of the file; of one that was done again the last.
    pub runs: Vec<Run>,
    /// Runs that failed and were not measured since.
    pub failures: Vec<Failure>,
    /// Why they do not compare with those of the first group.
    pub differences: Vec<String>,
}

impl ReadableResults {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is a device, is empty, or has not one line that can be used; then with what is wrong with it.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display();
        let file = File::open(path).with_context(|| format!("open {name}"))?;
        let kind = file.metadata().with_context(|| format!("open {name}"))?.file_type();
        // It may have no end.
        if kind.is_char_device() || kind.is_block_device() {
            bail!("read {name}: it is a device, results are in a file or a pipe");
        }
        Self::parse(BufReader::new(file)).with_context(|| format!("read {name}"))
    }

    /// The same of bytes.
    ///
    /// # Errors
    /// As `read`.
    pub fn parse(input: impl BufRead) -> Result<Self> {
        let mut reader = Reader::default();
        reader.read(input)?;
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
    /// What each header says, why its runs do not compare with those of the first, and what was measured under it.
    groups: Vec<(Header, Vec<String>, RecordedRuns)>,
    /// The group of the last header; none before the first, and after one that cannot be read.
    current: Option<usize>,
    runs: usize,
    lines: u64,
    formats: BTreeSet<u64>,
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
                input.skip_until(b'\n')?;
                continue;
            }
            self.line(line.trim_ascii(), ended);
        }
    }

    fn line(&mut self, line: &[u8], ended: bool) {
        let number = self.lines;
        // The mark that some editors put before a text.
        let bom = if number == 1 { b"\xef\xbb\xbf".as_slice() } else { b"" };
        let line = line.strip_prefix(bom).unwrap_or(line);
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
            other => self.troubles.add(Kind::Unknown, number, &shortened(other)),
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

    /// What follows a header that cannot be read does not belong to the header before it.
    fn lose_header(&mut self, line: &[u8]) {
        if line.windows(HEADER_MARK.len()).any(|part| part == HEADER_MARK) {
            self.current = None;
        }
    }

    /// Goes on with the group that this header belongs to, or a new one.
    fn begin(&mut self, header: Header) {
        let is_same = |old: &Header| !old.is_unknown() && header.differences(old).is_empty();
        let place = self.groups.iter().position(|(old, ..)| is_same(old));
        self.current = Some(place.unwrap_or_else(|| self.add(header)));
    }

    fn add(&mut self, header: Header) -> usize {
        let differences = match self.groups.first() {
            None => Vec::new(),
            Some(_) if header.is_unknown() => vec![UNKNOWN.to_owned()],
            Some((first, ..)) if first.is_unknown() => vec![FIRST_UNKNOWN.to_owned()],
            Some((first, ..)) => header.differences(first),
        };
        self.groups.push((header, differences, RecordedRuns::default()));
        self.groups.len() - 1
    }

    fn measured(&mut self, line: Line, format: u64) {
        let number = self.lines;
        if self.runs == RUNS_MAX {
            return self.troubles.add(Kind::TooMany, number, "");
        }
        let name = line.key().to_string();
        match (sane::check(&line), line.run()) {
            (Err(sane::Fault::NoTime), _) => return self.troubles.add(Kind::NoTime, number, &name),
            (Err(sane::Fault::Absurd(what)), _) => {
                return self.troubles.add(Kind::Absurd, number, &format!("{name}: {what}"));
            }
            (Ok(()), Some(run)) if run.operations == 0 => {
                self.troubles.add(Kind::NoAnswer, number, &name);
            }
            (Ok(()), _) => {}
        }
        self.runs += 1;
        self.formats.insert(format);
        let current = self.current.unwrap_or_else(|| self.add(unknown_header()));
        self.current = Some(current);
        let (header, _, recorded) = &mut self.groups[current];
        if header.is_unknown() {
            self.troubles.add(Kind::NoHeader, number, "");
        }
        let is_run = line.run().is_some();
        if recorded.push(line).is_some_and(|before| is_run && before.run().is_some()) {
            self.troubles.add(Kind::Again, number, &name);
        }
    }

    fn end(mut self) -> Result<ReadableResults> {
        if self.lines == 0 {
            bail!("it is empty: the command ended before anything was written");
        }
        if self.groups.iter().all(|(header, ..)| header.is_unknown()) {
            self.troubles.no_header();
        }
        if self.groups.is_empty() {
            bail!("nothing of it can be used: {}", self.troubles.sentences().join("; "));
        }
        let mut problems = self.troubles.sentences();
        if self.formats.len() > 1 {
            let formats: Vec<String> = self.formats.iter().map(u64::to_string).collect();
            problems.push(format!(
                "runs of the formats {} are mixed: several versions of ringloom wrote them",
                formats.join(" and ")
            ));
        }
        if self.runs == 0 {
            problems.push("nothing was measured".to_owned());
        }
        let groups = self.groups.into_iter().map(|(header, differences, recorded)| {
            let (runs, failures) = recorded.into_parts();
            Group { header, runs, failures, differences }
        });
        Ok(ReadableResults { groups: groups.collect(), problems })
    }
}

fn unknown_header() -> Header {
    serde_json::from_str(UNKNOWN_HEADER).expect("the stand-in is a header")
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
