//! The file `results.jsonl`: a header line and one line per run or failure, written the moment it ends.
//!
//! Invariants: every line is complete or the last one (a torn last line is dropped); runs of another
//! machine, disk or setting are never appended.
//! Limits: format 2; files of another format are refused by name. docs/results.md lists the fields.

mod header;
mod line;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

pub(crate) use self::header::{Disk, Header, Host, Programs};
pub(crate) use self::line::{Failure, Line, Measured, OWN_LOAD, Part, Run};
use crate::plan::{PlannedRun, RunKey};

const FORMAT: u32 = 2;
pub(crate) const FILE_NAME: &str = "results.jsonl";

/// What an existing file holds.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) header: Header,
    pub(crate) lines: Vec<Line>,
    /// The length of all complete lines.
    complete_bytes: usize,
}

impl Stored {
    /// Reads the file of a directory.
    ///
    /// # Errors
    /// If it is missing, of another format, or damaged before its last line.
    pub(crate) fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE_NAME);
        let name = path.display();
        let bytes = std::fs::read(&path).with_context(|| format!("read {name}"))?;
        let text = String::from_utf8_lossy(&bytes);
        Self::parse(&text).with_context(|| format!("read {name}"))
    }

    fn parse(text: &str) -> Result<Self> {
        // Only a line with its end is complete: the end is written together with the line.
        let complete_bytes = text.rfind('\n').map_or(0, |end| end + 1);
        let mut lines = (1..).zip(text[..complete_bytes].lines());
        let Some((_, first)) = lines.next() else { bail!("there is no header line") };
        check_format(first).context("line 1")?;
        let header = serde_json::from_str(first).context("line 1")?;
        let parse = |(number, line): (usize, &str)| -> Result<Line> {
            check_format(line)
                .and_then(|()| Ok(serde_json::from_str(line)?))
                .with_context(|| format!("line {number}"))
        };
        let lines = lines.map(parse).collect::<Result<_>>()?;
        Ok(Self { header, lines, complete_bytes })
    }
}

fn check_format(line: &str) -> Result<()> {
    #[derive(Deserialize)]
    struct Versioned {
        format: u32,
    }
    let Versioned { format } = serde_json::from_str(line)?;
    if format != FORMAT {
        bail!(
            "format {format} was written by another version of ringloom, this one reads {FORMAT}: \
             use another --out"
        );
    }
    Ok(())
}

/// The file that lines are appended to.
#[derive(Debug)]
pub(crate) struct Results {
    file: File,
    lines: Vec<Line>,
}

impl Results {
    /// Starts a new file in an existing directory.
    ///
    /// # Errors
    /// If there is one already or it cannot be written.
    pub(crate) fn create(directory: &Path, header: &Header) -> Result<Self> {
        let path = directory.join(FILE_NAME);
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = file.with_context(|| format!("create {}", path.display()))?;
        let mut results = Self { file, lines: Vec::new() };
        results.write(header)?;
        Ok(results)
    }

    /// Goes on with a file.
    ///
    /// # Errors
    /// If its runs were measured with other settings, on another machine or disk.
    pub(crate) fn resume(directory: &Path, stored: Stored, header: &Header) -> Result<Self> {
        let differences = header.differences(&stored.header);
        if !differences.is_empty() {
            let (name, list) = (directory.display(), differences.join("\n  "));
            bail!("cannot resume {name}, its runs would not compare:\n  {list}");
        }
        let path = directory.join(FILE_NAME);
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.with_context(|| format!("open {}", path.display()))?;
        file.set_len(u64::try_from(stored.complete_bytes).expect("usize fits u64"))?;
        Ok(Self { file, lines: stored.lines })
    }

    /// Writes a line to the file at once.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn append(&mut self, line: Line) -> Result<()> {
        self.write(&line)?;
        self.lines.push(line);
        Ok(())
    }

    /// All measured runs; of one that was done again the last.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut places: HashMap<&RunKey, usize> = HashMap::new();
        for line in &self.lines {
            let Line::Run(run) = line else { continue };
            match places.entry(&run.key) {
                Entry::Occupied(place) => runs[*place.get()] = Run::clone(run),
                Entry::Vacant(place) => {
                    place.insert(runs.len());
                    runs.push(Run::clone(run));
                }
            }
        }
        runs
    }

    /// The runs that failed and were not measured since.
    pub(crate) fn failures(&self) -> Vec<Failure> {
        let mut failures: Vec<Failure> = Vec::new();
        for line in &self.lines {
            failures.retain(|failure| failure.key != *line.key());
            if let Line::Failure(failure) = line {
                failures.push(failure.clone());
            }
        }
        failures
    }

    /// The measured run with this key.
    pub(crate) fn run(&self, key: &RunKey) -> Option<&Run> {
        self.lines.iter().rev().find_map(|line| match line {
            Line::Run(run) if run.key == *key => Some(&**run),
            Line::Run(_) | Line::Failure(_) => None,
        })
    }

    /// The measured run of another step of the same contender, variant, repeat and cell, but for the jobs.
    pub(crate) fn before(&self, key: &RunKey, step: u32) -> Option<&Run> {
        let wanted = |other: &RunKey| {
            (other.purpose, other.repeat, other.step) == (key.purpose, key.repeat, step)
                && (other.contender, other.variant) == (key.contender, key.variant)
                && other.cell.is_alike(&key.cell)
        };
        self.lines.iter().rev().find_map(|line| match line {
            Line::Run(run) if wanted(&run.key) => Some(&**run),
            Line::Run(_) | Line::Failure(_) => None,
        })
    }

    pub(crate) fn has(&self, planned: &PlannedRun) -> bool {
        self.run(&planned.key).is_some()
    }

    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.file.write_all(&text).context("write the results")
    }
}

#[cfg(test)]
mod document;
#[cfg(test)]
pub(crate) mod tests;
