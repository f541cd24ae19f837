//! What a finished run of fio says, as a sample.
//!
//! Invariants: a report exists only for a run without an error, in which requests completed and each
//! moved a whole block. Pure.

use std::time::Duration;

use crate::fio::document::{Document, Group, Side, Splitter};
use crate::fio::error::FioError;
use crate::{Latency, Sample};

/// What fio measured in its window; the ramp is not in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// All requests, with their latencies from submission to completion.
    pub sample: Sample,
    /// The same of each file, in the order of the job, where there are several.
    pub files: Vec<Sample>,
    /// The reads among them.
    pub read: Flow,
    /// The writes among them.
    pub write: Flow,
    /// What the load itself cost.
    pub load_cpu: LoadCpu,
    /// When fio printed the report, after its last request: milliseconds since 1970 by the clock of
    /// the machine that ran fio.
    pub ended_unix_ms: u64,
    /// The disks below the files, as far as fio knows them.
    pub disks: Vec<DiskUse>,
}

/// The requests of one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flow {
    /// Completed requests. fio's own `total_ios` counts those that were started, a few more or less.
    pub operations: u64,
    /// The bytes they moved.
    pub bytes: u64,
    /// The mean latency in nanoseconds; 0 without requests, as the next two.
    pub mean_ns: f64,
    /// The standard deviation of the latency in nanoseconds.
    pub stddev_ns: f64,
    /// The longest latency in nanoseconds.
    pub max_ns: u64,
}

/// The CPU time of the threads of fio; the kernel's own threads are not in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadCpu {
    /// User time of all jobs together, in percent of one CPU.
    pub user_percent: f64,
    /// System time of all jobs together, in percent of one CPU.
    pub system_percent: f64,
    /// How often a job was taken from its CPU or gave it up.
    pub context_switches: u64,
}

/// How busy a disk was.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskUse {
    /// The kernel's name.
    pub name: String,
    /// The share of the time with a request in flight, in percent.
    pub busy_percent: f64,
}

/// Reads all that fio has printed; the last report counts.
///
/// # Errors
/// What fio said, if it failed; otherwise what is missing or wrong in its report.
pub fn parse_report(text: &str) -> Result<Report, FioError> {
    let (document, said) = last_document(text)?;
    let group = document.group()?;
    if group.error != 0 {
        return Err(FioError::Failed { said: said_or_errno(said, group.error) });
    }
    let started = group.read.total_ios + group.write.total_ios;
    let elapsed = Duration::from_millis(group.runtime_ms());
    match (started, said.is_empty()) {
        (0, false) => return Err(FioError::Failed { said }),
        (0, true) => return Err(FioError::Idle { seconds: elapsed.as_secs_f64() }),
        (_, _) => {}
    }
    let block = document.block()?;
    let (read, write) = (Flow::of(&group.read, block)?, Flow::of(&group.write, block)?);
    let latency = Latency::from_buckets(&bins(&group)?);
    let operations = read.operations + write.operations;
    let bytes = read.bytes + write.bytes;
    let files = match &document.jobs[..] {
        [_] => Vec::new(),
        several => several.iter().map(|group| sample(group, block, elapsed)).collect(),
    };
    Ok(Report {
        files,
        sample: Sample { operations, bytes, elapsed, latency },
        read,
        write,
        load_cpu: LoadCpu::of(&group),
        ended_unix_ms: document.timestamp_ms,
        disks: document.disk_util.iter().map(DiskUse::of).collect(),
    })
}

/// Of one file; one that did nothing did so all the time.
fn sample(group: &Group, block: u64, elapsed: Duration) -> Sample {
    let operations = group.read.completed() + group.write.completed();
    let own = Duration::from_millis(group.runtime_ms());
    Sample {
        operations,
        bytes: operations.saturating_mul(block),
        elapsed: if own.is_zero() { elapsed } else { own },
        latency: Latency::from_buckets(&pairs(group)),
    }
}

/// The last document and what was printed besides.
pub(super) fn last_document(text: &str) -> Result<(Document, String), FioError> {
    let mut splitter = Splitter::default();
    let mut documents = splitter.feed(text.as_bytes());
    documents.extend(splitter.finish());
    let said = splitter.said();
    match documents.last() {
        Some(document) => Ok((Document::parse(document)?, said)),
        None if said.is_empty() => Err(FioError::NoReport { said: "nothing".to_owned() }),
        None => Err(FioError::NoReport { said }),
    }
}

pub(super) fn said_or_errno(said: String, errno: i32) -> String {
    if said.is_empty() { std::io::Error::from_raw_os_error(errno).to_string() } else { said }
}

fn bins(group: &Group) -> Result<Vec<(u64, u64)>, FioError> {
    let bins = pairs(group);
    if bins.is_empty() {
        let lack = "has no bins of total latencies: it takes lat_percentiles=1 and json+";
        return Err(FioError::Foreign { lack });
    }
    Ok(bins)
}

fn pairs(group: &Group) -> Vec<(u64, u64)> {
    let bins = [&group.read, &group.write].into_iter().flat_map(|side| &side.lat_ns.bins);
    bins.map(|(&ns, &count)| (ns, count)).collect()
}

impl Flow {
    /// fio counts a read at the end of a file as done, although it moves nothing.
    fn of(side: &Side, block: u64) -> Result<Self, FioError> {
        let (operations, moved) = (side.completed(), side.io_bytes);
        let expected = side.total_ios.saturating_mul(block);
        if moved < expected - expected / 100 {
            return Err(FioError::Short { operations: side.total_ios, moved, expected });
        }
        Ok(Self {
            operations,
            bytes: operations.saturating_mul(block),
            mean_ns: side.lat_ns.mean,
            stddev_ns: side.lat_ns.stddev,
            max_ns: side.lat_ns.max,
        })
    }
}

impl LoadCpu {
    /// fio gives shares of the time of all jobs, one after the other.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of a run are far below 2^52")]
    fn of(group: &Group) -> Self {
        let busy_jobs = group.job_runtime as f64 / group.runtime_ms().max(1) as f64;
        Self {
            user_percent: group.usr_cpu * busy_jobs,
            system_percent: group.sys_cpu * busy_jobs,
            context_switches: group.ctx,
        }
    }
}

impl DiskUse {
    fn of(disk: &crate::fio::document::Disk) -> Self {
        Self { name: disk.name.clone(), busy_percent: disk.util }
    }
}

#[cfg(test)]
mod tests;
