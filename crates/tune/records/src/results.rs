//! The file `results.jsonl`: a header line and one line per run or failure, written the moment it ends.
//!
//! Invariants: every line is complete or the last one (a torn last line is dropped); runs of another
//! machine, disk or setting are never appended.
//! Limits: format 4; files of another format are refused by name. docs/results.md lists the fields.

mod claim;
mod cluster;
mod given;
mod header;
mod lenient;
mod line;
mod recorded;
mod sane;

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::claim::Claim;
pub use self::cluster::{Cluster, ClusterNode, ClusterStorage, UNKNOWN};
pub use self::given::{GivenDisk, GivenGuest};
pub use self::header::{Disk, DiskAccess, Header, Host, Programs, StartNotes};
pub use self::lenient::{Group, ReadableResults};
pub use self::line::{DiskPart, Failure, Line, OWN_LOAD, Part, Run, nanoseconds};
pub use self::recorded::RecordedRuns;

pub(crate) const FORMAT: u32 = 4;
/// The name of the file.
pub const FILE_NAME: &str = "results.jsonl";
/// What to do with a file that has a line that cannot be read.
const DAMAGED: &str = "nothing can go on with it, but ringloom report shows what can be read, and another --out \
                       begins anew";

/// What an existing file holds.
#[derive(Debug)]
pub struct StoredResults {
    /// What all runs have in common.
    pub header: Header,
    /// The runs.
    pub recorded: RecordedRuns,
    /// The length of all complete lines.
    complete_bytes: usize,
    /// Nobody else writes it for as long as it is open.
    file: File,
}

impl StoredResults {
    /// Reads the file of a directory and keeps others from writing it.
    ///
    /// # Errors
    /// If it is missing, of another format, or damaged before its last line; if another command writes it.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE_NAME);
        let name = path.display();
        let mut file = claim::open(OpenOptions::new().read(true).append(true), &path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(|| format!("read {name}"))?;
        let Parsed { header, recorded, complete_bytes } =
            Parsed::of(&bytes).with_context(|| format!("read {name}"))?;
        Ok(Self { header, recorded, complete_bytes, file })
    }
}

/// What the complete lines of a file say.
#[derive(Debug)]
struct Parsed {
    header: Header,
    recorded: RecordedRuns,
    complete_bytes: usize,
}

impl Parsed {
    /// All lines.
    ///
    /// # Errors
    /// Why nothing can go on with them, and what to do.
    fn of(bytes: &[u8]) -> Result<Self> {
        // Only a line with its end is complete: the end is written together with the line.
        let complete_bytes = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut lines = (1_usize..).zip(bytes[..complete_bytes].split_inclusive(|it| *it == b'\n'));
        let Some((_, first)) = lines.next() else {
            bail!("it has no whole line, so nothing to go on with: remove it or use another --out")
        };
        let header = whole(first).context("line 1").context(DAMAGED)?;
        let parse = |(number, line): (usize, &[u8])| {
            let line = whole(line).and_then(check_figures);
            line.with_context(|| format!("line {number}")).context(DAMAGED)
        };
        let recorded = lines.map(parse).collect::<Result<RecordedRuns>>()?;
        Ok(Self { header, recorded, complete_bytes })
    }
}

/// What a line of this format says.
fn whole<T: DeserializeOwned>(line: &[u8]) -> Result<T> {
    // JSON alone would pass over what is no text in a field that nobody knows.
    let line = std::str::from_utf8(line).context("it is damaged")?;
    check_format(line)?;
    Ok(serde_json::from_str(line)?)
}

/// Refuses what would overflow a sum; a run without a rate is one all the same.
fn check_figures(line: Line) -> Result<Line> {
    match sane::check(&line) {
        Ok(()) | Err(sane::Fault::NoTime) => Ok(line),
        Err(sane::Fault::Absurd(what)) => bail!("{}: {what}, which cannot be", line.key()),
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
            "format {format} was written by another version of ringloom, this one reads {FORMAT}"
        );
    }
    Ok(())
}

/// The file that lines are appended to.
#[derive(Debug)]
pub struct Results {
    file: File,
    recorded: RecordedRuns,
    /// How many lines it had when it was opened.
    opened_at: usize,
}

impl Results {
    /// Starts a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(mut claim: Claim, header: &Header) -> Result<Self> {
        write(claim.file(), header)?;
        Ok(Self { file: claim.keep(), recorded: RecordedRuns::default(), opened_at: 0 })
    }

    /// Goes on with a file.
    ///
    /// # Errors
    /// If its runs were measured with other settings, on another machine or disk.
    pub fn resume(directory: &Path, stored: StoredResults, header: &Header) -> Result<Self> {
        check_same(directory, &header.differences(&stored.header))?;
        let file = stored.file;
        file.set_len(u64::try_from(stored.complete_bytes).expect("usize fits u64"))?;
        let opened_at = stored.recorded.len();
        Ok(Self { file, recorded: stored.recorded, opened_at })
    }

    /// Writes a line to the file at once.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn append(&mut self, line: Line) -> Result<()> {
        write(&mut self.file, &line)?;
        self.recorded.push(line);
        Ok(())
    }

    /// The lines that are in the file.
    pub fn recorded(&self) -> &RecordedRuns {
        &self.recorded
    }

    /// The runs that failed since the file was opened and were not measured since. What failed before and is not asked for
    /// any more is not among them.
    pub fn failed_now(&self) -> usize {
        self.recorded.failures_from(self.opened_at).len()
    }
}

fn write(file: &mut File, line: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    file.write_all(&text).context("write the results")
}

/// Refuses to go on where something differs.
///
/// # Errors
/// All that does.
pub fn check_same(directory: &Path, differences: &[String]) -> Result<()> {
    if differences.is_empty() {
        return Ok(());
    }
    let (name, list) = (directory.display(), differences.join("\n  "));
    bail!("cannot resume {name}, its runs would not compare:\n  {list}")
}

#[cfg(test)]
mod tests;
