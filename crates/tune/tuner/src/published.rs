//! A sweep that others published, as tables in CSV: `size,op,jobs,iodepth,value`. Reading only.
//!
//! `ringloom report` recognises a directory with such tables; `report::published` renders them.
//!
//! Invariants: every figure is a number that the table can have (a gain not below -100 %, a number of iothreads up
//! to 256); a line that is not is told with its number and left out.
//! Limits: `BYTES_MAX` for one table.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use load::{BlockBytes, Shape};

use crate::cell::Cell;
use crate::summary::form::{Mean, PublishedForm};
use crate::units::counted;

const HEADER: &str = "size,op,jobs,iodepth,value";
/// A thousand times the published tables.
const BYTES_MAX: u64 = 4 << 20;
/// As many queues as a disk has.
const IOTHREADS_MAX: f64 = 256.0;
/// Lines that are named when they cannot be read.
const NAMED_MAX: usize = 5;

/// Which of the two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// What the best number of iothreads gains over none, in percent.
    Gains,
    /// The fewest iothreads that are enough; 0 is none.
    N90s,
}

impl Kind {
    fn file_name(self) -> &'static str {
        match self {
            Self::Gains => "improvement.csv",
            Self::N90s => "min-iothreads.csv",
        }
    }

    fn allows(self, figure: f64) -> bool {
        match self {
            Self::Gains => figure.is_finite() && figure >= -100.0,
            Self::N90s => figure.fract() == 0.0 && (0.0..=IOTHREADS_MAX).contains(&figure),
        }
    }
}

/// What was published.
#[derive(Debug)]
pub(crate) struct PublishedSweep {
    pub(crate) gains: Option<PublishedTable>,
    pub(crate) n90s: Option<PublishedTable>,
    /// What is wrong with the tables, a sentence without its full stop each.
    pub(crate) problems: Vec<String>,
}

/// One table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PublishedTable {
    pub(crate) form: PublishedForm,
    /// In the order of the file.
    pub(crate) cells: Vec<(Cell, f64)>,
}

impl PublishedTable {
    fn new(cells: Vec<(Cell, f64)>) -> Self {
        Self { form: PublishedForm::new(Mean::Arithmetic, cells.iter().copied()), cells }
    }

    /// Whether all figures are whole numbers: then they were rounded, and the totals are uncertain by half of one.
    pub(crate) fn is_rounded(&self) -> bool {
        self.cells.iter().all(|(_, figure)| figure.fract() == 0.0)
    }

    /// How many figures there are, and how many are at most this.
    pub(crate) fn at_most(&self, most: f64) -> (usize, usize) {
        let figures = || self.cells.iter().map(|(_, figure)| *figure);
        (figures().count(), figures().filter(|figure| *figure <= most).count())
    }
}

impl PublishedSweep {
    /// The tables of a directory; `None` if it has none.
    ///
    /// # Errors
    /// If a table cannot be read, has another header, or no line that can be used.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        let mut problems = Vec::new();
        let mut table = |kind: Kind| -> Result<Option<PublishedTable>> {
            let path = directory.join(kind.file_name());
            let Some(text) = text(&path)? else { return Ok(None) };
            let (table, trouble) =
                parse(&text, kind).with_context(|| format!("read {}", path.display()))?;
            let name = kind.file_name();
            problems.extend(trouble.into_iter().map(|sentence| format!("{name}: {sentence}")));
            Ok(Some(table))
        };
        let (gains, n90s) = (table(Kind::Gains)?, table(Kind::N90s)?);
        if gains.is_none() && n90s.is_none() {
            return Ok(None);
        }
        Ok(Some(Self { gains, n90s, problems }))
    }
}

/// `None` if there is no such file.
fn text(path: &Path) -> Result<Option<String>> {
    let name = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("open {name}")),
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| format!("read {name}"))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > BYTES_MAX {
        bail!("{name} is larger than {BYTES_MAX} bytes: it is no table of a sweep");
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Whether there is no such file, or no directory that it could be in.
fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The table, and what is wrong with it.
fn parse(text: &str, kind: Kind) -> Result<(PublishedTable, Vec<String>)> {
    let mut lines = (1..).zip(text.trim_start_matches('\u{feff}').lines());
    match lines.next() {
        Some((_, header)) if header.trim_end() == HEADER => {}
        Some(_) | None => bail!("its first line is not {HEADER}"),
    }
    let mut cells: Vec<(Cell, f64)> = Vec::new();
    let mut places: HashMap<Cell, usize> = HashMap::new();
    let (mut wrong, mut again) = (Vec::new(), Vec::new());
    for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        match figure(line, kind) {
            Err(error) => wrong.push(format!("line {number} ({error:#})")),
            Ok((cell, _)) if places.contains_key(&cell) => {
                again.push(format!("line {number} ({cell})"));
            }
            Ok((cell, figure)) => {
                places.insert(cell, cells.len());
                cells.push((cell, figure));
            }
        }
    }
    let problems: Vec<String> = [(wrong, "cannot be read"), (again, "repeat a cell")]
        .into_iter()
        .filter_map(left_out)
        .collect();
    if cells.is_empty() {
        let why: String = problems.iter().map(|problem| format!(": {problem}")).collect();
        bail!("no line of it can be used{why}");
    }
    Ok((PublishedTable::new(cells), problems))
}

fn left_out((lines, why): (Vec<String>, &str)) -> Option<String> {
    let more = if lines.len() > NAMED_MAX { "; …" } else { "" };
    let named = lines[..lines.len().min(NAMED_MAX)].join("; ");
    let count = counted(lines.len(), "line");
    (!lines.is_empty()).then(|| format!("left out, as they {why}, {count}: {named}{more}"))
}

fn figure(line: &str, kind: Kind) -> Result<(Cell, f64)> {
    let fields: Vec<&str> = line.trim_end().split(',').collect();
    let [size, op, jobs, iodepth, value] = fields[..] else {
        bail!("it has {} fields, not 5", fields.len());
    };
    let size: u64 = size.parse().with_context(|| format!("size '{size}'"))?;
    let jobs: u16 = jobs.parse().with_context(|| format!("jobs '{jobs}'"))?;
    let iodepth: u16 = iodepth.parse().with_context(|| format!("iodepth '{iodepth}'"))?;
    let shape = Shape::new(op.parse()?, BlockBytes::try_from(size)?, jobs, iodepth)?;
    let figure: f64 = value.parse().with_context(|| format!("value '{value}'"))?;
    if !kind.allows(figure) {
        bail!("value '{value}' cannot be");
    }
    Ok((Cell::new(shape), figure))
}

#[cfg(test)]
mod tests;
