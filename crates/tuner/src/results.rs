//! The file `results.jsonl`: a header line and one line per run, written the moment the run ends.
//!
//! Invariants: every line is complete or the last one (a torn last line is dropped); runs of another
//! machine, disk or setting are never appended.
//! Limits: format 1. A reader of a later format must still read it; docs/tune.md lists the fields.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::{Latency, Sample};
use serde::{Deserialize, Serialize};

use crate::args::Settings;
use crate::cell::{Cell, Contender};
use crate::clock;
use crate::machine::Machine;
use crate::plan::PlannedRun;
use crate::target::Origin;

const FORMAT: u32 = 1;
pub(crate) const FILE_NAME: &str = "results.jsonl";

/// The disk of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    pub(crate) origin: Origin,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) description: String,
}

/// The first line: what all runs of the file have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) format: u32,
    pub(crate) ringloom: String,
    pub(crate) daemon: String,
    pub(crate) started_unix_s: u64,
    pub(crate) machine: Machine,
    pub(crate) disk: Disk,
    pub(crate) settings: Settings,
}

impl Header {
    pub(crate) fn new(daemon: String, machine: Machine, disk: Disk, settings: Settings) -> Self {
        let ringloom = env!("CARGO_PKG_VERSION").to_owned();
        let started_unix_s = clock::since_epoch().as_secs();
        Self { format: FORMAT, ringloom, daemon, started_unix_s, machine, disk, settings }
    }

    /// What forbids to append runs under `self` to a file that began with `old`.
    fn differences(&self, old: &Self) -> Vec<String> {
        let mut differences = self.settings.differences(&old.settings);
        let mut compare = |name: &str, new: &str, old: &str| {
            if new != old {
                differences.push(format!("{name} is {new}, was {old}"));
            }
        };
        compare("daemon", &self.daemon, &old.daemon);
        compare("kernel", &self.machine.kernel, &old.machine.kernel);
        compare("CPU", &self.machine.cpu, &old.machine.cpu);
        let cores = |header: &Self| header.machine.cores.to_string();
        compare("number of cores", &cores(self), &cores(old));
        compare("disk", &self.disk.name(), &old.disk.name());
        compare("size of the disk", &self.disk.bytes.to_string(), &old.disk.bytes.to_string());
        differences
    }
}

impl Disk {
    /// The path, but for a scratch file, whose name changes, its directory.
    fn name(&self) -> String {
        match self.origin {
            Origin::User => self.path.display().to_string(),
            Origin::Scratch => {
                let directory = self.path.parent().unwrap_or(&self.path);
                format!("a scratch file in {}", directory.display())
            }
        }
    }
}

/// One line: one daemon start and one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) format: u32,
    pub(crate) repeat: u16,
    #[serde(flatten)]
    pub(crate) contender: Contender,
    #[serde(flatten)]
    pub(crate) cell: Cell,
    pub(crate) started_unix_s: u64,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed_ns: u64,
    /// CPU time of the daemon, or of the load for the host; missing where the kernel does not tell.
    pub(crate) cpu_ns: Option<u64>,
    /// Pairs of latency and number of requests.
    pub(crate) latency_ns: Vec<(u64, u64)>,
}

impl Run {
    pub(crate) fn new(planned: &PlannedRun, sample: &Sample, cpu: Option<Duration>) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            format: FORMAT,
            repeat: planned.repeat,
            contender: planned.contender,
            cell: planned.cell,
            started_unix_s: clock::since_epoch().saturating_sub(sample.elapsed).as_secs(),
            operations: sample.operations,
            bytes: sample.bytes,
            elapsed_ns: nanoseconds(sample.elapsed),
            cpu_ns: cpu.map(nanoseconds),
            latency_ns: sample.latency.buckets(),
        }
    }

    pub(crate) fn is(&self, planned: &PlannedRun) -> bool {
        (self.repeat, self.contender, self.cell)
            == (planned.repeat, planned.contender, planned.cell)
    }

    pub(crate) fn iops(&self) -> f64 {
        self.operations as f64 / Duration::from_nanos(self.elapsed_ns).as_secs_f64()
    }

    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / Duration::from_nanos(self.elapsed_ns).as_secs_f64()
    }

    /// CPU time per request.
    pub(crate) fn cpu_us(&self) -> Option<f64> {
        let used = self.cpu_ns.filter(|_| self.operations > 0)?;
        Some(used as f64 / 1000.0 / self.operations as f64)
    }

    pub(crate) fn latency(&self) -> Latency {
        Latency::from_buckets(&self.latency_ns)
    }
}

/// What an existing file holds.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) header: Header,
    pub(crate) runs: Vec<Run>,
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
        let parse = |(number, line): (usize, &str)| -> Result<Run> {
            check_format(line)
                .and_then(|()| Ok(serde_json::from_str(line)?))
                .with_context(|| format!("line {number}"))
        };
        let runs = lines.map(parse).collect::<Result<_>>()?;
        Ok(Self { header, runs, complete_bytes })
    }
}

fn check_format(line: &str) -> Result<()> {
    #[derive(Deserialize)]
    struct Versioned {
        format: u32,
    }
    let Versioned { format } = serde_json::from_str(line)?;
    if format != FORMAT {
        bail!("format {format} is unknown, this program reads {FORMAT}");
    }
    Ok(())
}

/// The file that runs are appended to.
#[derive(Debug)]
pub(crate) struct Results {
    file: File,
    runs: Vec<Run>,
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
        let mut results = Self { file, runs: Vec::new() };
        results.write(header)?;
        Ok(results)
    }

    /// Goes on with a file; the returned header is the one in the file.
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
        Ok(Self { file, runs: stored.runs })
    }

    /// Writes a run to the file at once.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn append(&mut self, run: Run) -> Result<()> {
        self.write(&run)?;
        self.runs.push(run);
        Ok(())
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn has(&self, planned: &PlannedRun) -> bool {
        self.runs.iter().any(|run| run.is(planned))
    }

    fn write(&mut self, line: &impl Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.file.write_all(&text).context("write the results")
    }
}

#[cfg(test)]
pub(crate) mod tests;
