//! What is saved: machine, versions, settings and every raw sample.
//!
//! Limits: format 1. A reader of a later format must still read it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;

const FORMAT: u32 = 1;

/// A saved run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    format: u32,
    pub(crate) started_unix_s: u64,
    pub(crate) machine: Machine,
    pub(crate) versions: Vec<String>,
    pub(crate) settings: Settings,
    pub(crate) rows: Vec<RowResult>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) pairs: u32,
    pub(crate) sample_s: f64,
    pub(crate) server_cpus: Vec<usize>,
    pub(crate) client_cpus: Vec<usize>,
    pub(crate) seed: u64,
}

/// All samples of a row, in the order in which they were taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RowResult {
    pub(crate) name: String,
    /// What must be reached, in words.
    pub(crate) wanted: String,
    /// By which method the bare host was best, with the requests per second of each.
    pub(crate) host: Option<HostChoice>,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostChoice {
    pub(crate) best: String,
    pub(crate) tried: BTreeMap<String, f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) pair: u32,
    pub(crate) contender: Contender,
    pub(crate) values: BTreeMap<Metric, f64>,
}

/// Who was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Contender {
    Ringloom,
    Qsd,
    /// Ringloom without an iothread: its internal one, which does not poll.
    WithoutIothread,
    Host,
    /// Ringloom on a raw file, beside an image.
    Raw,
    /// The polling client against itself.
    Ceiling,
    /// One iothread; of self-refilling rings where nothing else is said.
    OneThread,
    /// On two.
    TwoThreads,
    /// Ringloom with `iothread=auto`, beside one and two iothreads.
    Auto,
    /// Two self-refilling rings on one iothread.
    TwoRings,
    /// One self-refilling ring on one iothread, and a layer above the disk.
    Layered,
    /// Self-refilling rings that move; latencies are those of the moves.
    Moved,
    /// Rings of depth 1 on an iothread of their own.
    QuietAlone,
    /// Beside a saturated ring.
    QuietBeside,
    /// A saturated ring on an iothread of its own.
    SaturatedAlone,
    /// Beside rings of depth 1.
    SaturatedBeside,
}

/// What was measured, with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    RequestsPerS,
    CpuNsPerRequest,
    SyscallsPerRequest,
    P50Us,
    P99Us,
    IdleCpuMs,
    RssAnonMib,
    /// From the start of a process until its socket accepts.
    OpenMs,
    /// Requests in the first second after another program has had the server's CPU, of those in a second before it.
    AfterOthersShare,
}

impl Metric {
    /// Whether more of it is better.
    pub(crate) fn is_better_when_more(self) -> bool {
        match self {
            Self::RequestsPerS | Self::AfterOthersShare => true,
            Self::CpuNsPerRequest
            | Self::SyscallsPerRequest
            | Self::P50Us
            | Self::P99Us
            | Self::IdleCpuMs
            | Self::RssAnonMib
            | Self::OpenMs => false,
        }
    }
}

impl Results {
    pub(crate) fn new(machine: Machine, versions: Vec<String>, settings: Settings) -> Self {
        let started_unix_s = crate::clock::unix_seconds();
        Self { format: FORMAT, started_unix_s, machine, versions, settings, rows: Vec::new() }
    }

    /// Replaces the file at once, so that a reader never sees half of it.
    pub(crate) fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("write the results as JSON")?;
        let fresh = path.with_extension("json.new");
        fs::write(&fresh, text).with_context(|| format!("write {}", fresh.display()))?;
        fs::rename(&fresh, path).with_context(|| format!("write {}", path.display()))
    }

    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let results: Self = serde_json::from_slice(&text)
            .with_context(|| format!("{}: no results of the bench", path.display()))?;
        let format = results.format;
        ensure!(format == FORMAT, "{}: format {format}, not {FORMAT}", path.display());
        Ok(results)
    }
}

impl RowResult {
    /// A metric of a contender, in the order of the pairs.
    pub(crate) fn series(&self, contender: Contender, metric: Metric) -> Vec<f64> {
        let own = self.samples.iter().filter(|sample| sample.contender == contender);
        own.filter_map(|sample| sample.values.get(&metric).copied()).collect()
    }

    /// A metric of one contender divided by another's of the same pair.
    pub(crate) fn ratios(&self, over: Contender, under: Contender, metric: Metric) -> Vec<f64> {
        let value = |sample: &Sample| sample.values.get(&metric).copied();
        let of = |pair: u32| {
            let mut same = self.samples.iter().filter(|s| s.pair == pair && s.contender == under);
            same.find_map(value)
        };
        let own = self.samples.iter().filter(|sample| sample.contender == over);
        own.filter_map(|sample| Some(value(sample)? / of(sample.pair)?))
            .filter(|ratio| ratio.is_finite())
            .collect()
    }
}
