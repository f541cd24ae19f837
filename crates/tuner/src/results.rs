//! The file `results.jsonl`: a header line and one line per run or failure, written the moment it ends.
//!
//! Invariants: every line is complete or the last one (a torn last line is dropped); runs of another
//! machine, disk or setting are never appended.
//! Limits: format 2; files of another format are refused by name. docs/results.md lists the fields.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::{Latency, Sample};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::environment::Environment;
use crate::given::GivenGuest;
use crate::host_load::HostLoad;
use crate::machine::Machine;
use crate::meter::Cost;
use crate::plan::{PlannedRun, RunKey};
use crate::settings::Settings;
use crate::target::Origin;

const FORMAT: u32 = 2;
/// The name of the tuner's own load.
pub(crate) const OWN_LOAD: &str = "ringloom";
pub(crate) const FILE_NAME: &str = "results.jsonl";

/// The disk of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Disk {
    pub(crate) origin: Origin,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) description: String,
}

/// The programs that take part, as they name themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Programs {
    /// The first line of the daemon's `--version`.
    pub(crate) daemon: String,
    /// Missing where no guest is booted.
    pub(crate) qemu: Option<String>,
    /// Missing where it is not the load.
    pub(crate) fio: Option<String>,
    /// The kernel that guests boot.
    pub(crate) guest_kernel: Option<String>,
    /// `kvm` or `tcg`.
    pub(crate) accelerator: Option<String>,
    /// Why it is not KVM.
    pub(crate) emulated_because: Option<String>,
}

/// The first line: what all runs of the file have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) format: u32,
    pub(crate) kind: HeaderKind,
    pub(crate) ringloom: String,
    pub(crate) programs: Programs,
    pub(crate) started_unix_s: u64,
    pub(crate) machine: Machine,
    pub(crate) environment: Environment,
    /// What ran on the host before the start.
    pub(crate) load_before: Option<HostLoad>,
    pub(crate) disk: Disk,
    /// The user's own guest, if it is measured.
    pub(crate) given: Option<GivenGuest>,
    pub(crate) settings: Settings,
}

/// Tells the header line from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HeaderKind {
    /// The only value.
    #[default]
    Header,
}

/// What a header says of the host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) machine: Machine,
    pub(crate) environment: Environment,
    pub(crate) load_before: Option<HostLoad>,
}

impl Header {
    pub(crate) fn new(programs: Programs, host: Host, disk: Disk, settings: Settings) -> Self {
        let Host { machine, environment, load_before } = host;
        Self {
            format: FORMAT,
            kind: HeaderKind::Header,
            ringloom: env!("CARGO_PKG_VERSION").to_owned(),
            programs,
            started_unix_s: clock::since_epoch().as_secs(),
            machine,
            environment,
            load_before,
            disk,
            given: None,
            settings,
        }
    }

    /// With what is known of the user's own guest.
    pub(crate) fn with_given(self, given: Option<GivenGuest>) -> Self {
        Self { given, ..self }
    }

    /// What forbids to append runs under `self` to a file that began with `old`.
    fn differences(&self, old: &Self) -> Vec<String> {
        let mut differences = self.settings.differences(&old.settings);
        let mut compare = |name: &str, new: &str, old: &str| {
            if new != old {
                differences.push(format!("{name} is {new}, was {old}"));
            }
        };
        let programs = |header: &Self| {
            let Programs { daemon, guest_kernel, accelerator, .. } = header.programs.clone();
            let known = [Some(daemon), guest_kernel, accelerator];
            known.map(|program| program.unwrap_or_else(|| "not used".to_owned()))
        };
        let names = ["daemon", "kernel of the guests", "accelerator"];
        for ((name, new), old) in names.into_iter().zip(programs(self)).zip(programs(old)) {
            compare(name, &new, &old);
        }
        compare("disk", &self.disk.name(), &old.disk.name());
        compare("size of the disk", &self.disk.bytes.to_string(), &old.disk.bytes.to_string());
        if let (Some(given), Some(old)) = (&self.given, &old.given) {
            differences.extend(given.differences(old));
        }
        differences.extend(self.environment.differences(&old.environment));
        differences
    }
}

impl Disk {
    /// The path, but for a scratch file, whose name changes, its directory.
    fn name(&self) -> String {
        match self.origin {
            Origin::User | Origin::Guest => self.path.display().to_string(),
            Origin::Scratch => {
                let directory = self.path.parent().unwrap_or(&self.path);
                format!("a scratch file in {}", directory.display())
            }
        }
    }
}

/// What happened to one planned run: a line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Line {
    /// It was measured.
    Run(Box<Run>),
    /// It failed; a resumed command tries it again.
    Failure(Failure),
}

impl Line {
    pub(crate) fn key(&self) -> &RunKey {
        match self {
            Self::Run(run) => &run.key,
            Self::Failure(failure) => &failure.key,
        }
    }
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) format: u32,
    #[serde(flatten)]
    pub(crate) key: RunKey,
    pub(crate) failed_unix_s: u64,
    /// The sentence the user saw.
    pub(crate) error: String,
}

impl Failure {
    pub(crate) fn new(key: RunKey, error: &anyhow::Error) -> Self {
        let failed_unix_s = clock::since_epoch().as_secs();
        Self { format: FORMAT, key, failed_unix_s, error: format!("{error:#}") }
    }
}

/// A measured run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) format: u32,
    #[serde(flatten)]
    pub(crate) key: RunKey,
    /// Queues of each disk; 0 where there are none (host) or they are not known.
    pub(crate) queues: u16,
    /// What put the load on the disk: `fio-3.33 io_uring`, `ringloom`.
    pub(crate) load: String,
    /// Whether the guest's CPUs were emulated: the figures do not compare with the host's.
    pub(crate) emulated: bool,
    pub(crate) started_unix_s: u64,
    /// Requests and bytes of all parts.
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    /// The longest measured time of any part.
    pub(crate) elapsed_ns: u64,
    /// Of a curve: the requests per second that were asked for.
    pub(crate) rate_iops: Option<f64>,
    /// Pairs of latency and number of requests.
    pub(crate) latency_ns: Vec<(u64, u64)>,
    /// Pairs of length in ns and number of requests, for each second of the measured time.
    pub(crate) per_second: Vec<(u64, u64)>,
    /// The guests (or groups of files, for the host) that ran at once, where there were several.
    pub(crate) parts: Vec<Part>,
    /// CPU time and context switches in the measured time.
    pub(crate) cost: Cost,
    /// fio's job files, one per guest, relative to the directory of the results.
    pub(crate) job_files: Vec<String>,
    /// Bytes that were written, read back and compared before the run.
    pub(crate) verified_bytes: Option<u64>,
}

/// One of several guests that ran at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) vm: u16,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed_ns: u64,
    pub(crate) latency_ns: Vec<(u64, u64)>,
}

/// What a load and the meters say about one run.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) queues: u16,
    pub(crate) load: String,
    pub(crate) emulated: bool,
    /// All parts together.
    pub(crate) sample: Sample,
    pub(crate) rate_iops: Option<f64>,
    pub(crate) per_second: Vec<(u64, u64)>,
    pub(crate) parts: Vec<Part>,
    pub(crate) cost: Cost,
    pub(crate) job_files: Vec<String>,
    pub(crate) verified_bytes: Option<u64>,
}

impl Part {
    pub(crate) fn iops(&self) -> f64 {
        per_second(self.operations, self.elapsed_ns)
    }

    pub(crate) fn bytes_per_second(&self) -> f64 {
        per_second(self.bytes, self.elapsed_ns)
    }

    pub(crate) fn new(vm: u16, sample: &Sample) -> Self {
        let Sample { operations, bytes, elapsed, latency } = sample;
        let (operations, bytes, elapsed_ns) = (*operations, *bytes, nanoseconds(*elapsed));
        Self { vm, operations, bytes, elapsed_ns, latency_ns: latency.buckets() }
    }
}

impl Run {
    pub(crate) fn new(key: RunKey, measured: Measured) -> Self {
        let Sample { operations, bytes, elapsed, latency } = measured.sample;
        Self {
            format: FORMAT,
            key,
            queues: measured.queues,
            load: measured.load,
            emulated: measured.emulated,
            started_unix_s: clock::since_epoch().saturating_sub(elapsed).as_secs(),
            operations,
            bytes,
            elapsed_ns: nanoseconds(elapsed),
            rate_iops: measured.rate_iops,
            latency_ns: latency.buckets(),
            per_second: measured.per_second,
            parts: measured.parts,
            cost: measured.cost,
            job_files: measured.job_files,
            verified_bytes: measured.verified_bytes,
        }
    }

    pub(crate) fn iops(&self) -> f64 {
        if self.parts.is_empty() {
            return per_second(self.operations, self.elapsed_ns);
        }
        self.parts.iter().map(Part::iops).sum()
    }

    pub(crate) fn bytes_per_second(&self) -> f64 {
        if self.parts.is_empty() {
            return per_second(self.bytes, self.elapsed_ns);
        }
        self.parts.iter().map(Part::bytes_per_second).sum()
    }

    /// CPU time per request in µs of what serves the disk: the daemon, and of QEMU all but the guest's CPUs;
    /// for the host, of the load.
    pub(crate) fn cpu_us(&self) -> Option<f64> {
        Some(self.per_request(self.cost.serving_ns()?)? / 1000.0)
    }

    /// Context switches per request of the same threads.
    pub(crate) fn switches(&self) -> Option<f64> {
        self.per_request(self.cost.serving_switches()?)
    }

    /// What was counted in the time that the meters covered, which is less than the measured one where several guests did
    /// not begin and end together.
    fn per_request(&self, counted: u64) -> Option<f64> {
        let requests = self.iops() * Duration::from_nanos(self.cost.covered_ns).as_secs_f64();
        (requests > 0.0).then(|| counted as f64 / requests)
    }

    /// The share of the measured time in which all guests ran, where there were several.
    pub(crate) fn together(&self) -> Option<f64> {
        let shortest = self.parts.iter().map(|part| part.elapsed_ns).min()?;
        Some(self.cost.covered_ns as f64 / shortest.max(1) as f64)
    }

    /// Whether it was the tuner's own load, not fio.
    pub(crate) fn is_own_load(&self) -> bool {
        self.load == OWN_LOAD
    }

    pub(crate) fn latency(&self) -> Latency {
        Latency::from_buckets(&self.latency_ns)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn per_second(count: u64, elapsed_ns: u64) -> f64 {
    count as f64 / Duration::from_nanos(elapsed_ns).as_secs_f64()
}

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
