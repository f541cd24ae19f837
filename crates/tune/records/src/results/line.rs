//! The other lines of a results file: runs and failures, and what follows from one run alone.

use std::time::Duration;

use load::{Latency, Sample};
use plan::question::Figures;
use plan::runs::{PlannedRun, RunKey, STRETCH};
use serde::{Deserialize, Serialize};
use storage::clock;

use super::FORMAT;
use crate::meter::{Cost, GroupName, Role};
use crate::steady::{Steady, judge, windows};

/// The name of the tuner's own load.
pub const OWN_LOAD: &str = "ringloom";

/// What happened to one planned run: a line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// It was measured.
    Run(Box<Run>),
    /// It failed; a resumed command tries it again.
    Failure(Failure),
}

impl Line {
    /// Which run it is of.
    pub fn key(&self) -> &RunKey {
        match self {
            Self::Run(run) => &run.key,
            Self::Failure(failure) => &failure.key,
        }
    }

    /// What was measured, if it was.
    pub fn run(&self) -> Option<&Run> {
        match self {
            Self::Run(run) => Some(run),
            Self::Failure(_) => None,
        }
    }
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The format of the line.
    pub format: u32,
    /// Which run.
    #[serde(flatten)]
    pub key: RunKey,
    /// When it failed.
    pub failed_unix_s: u64,
    /// The sentence the user saw.
    pub error: String,
}

impl Failure {
    /// Of a run that failed now.
    pub fn new(key: RunKey, error: &anyhow::Error) -> Self {
        let failed_unix_s = clock::since_epoch().as_secs();
        Self { format: FORMAT, key, failed_unix_s, error: format!("{error:#}") }
    }
}

/// A measured run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The format of the line.
    pub format: u32,
    /// Which run.
    #[serde(flatten)]
    pub key: RunKey,
    /// Whether ramp and measured time were longer than the settings say, because the cell had not been steady.
    #[serde(default)]
    pub stretched: bool,
    /// The round that it was measured in: before each one, guests are booted and scratch files filled anew. Missing where
    /// nothing was, as up to format 3.
    #[serde(default)]
    pub round: Option<u16>,
    /// Queues of each disk; 0 where there are none (host) or they are not known.
    pub queues: u16,
    /// What put the load on the disk: `fio-3.33 io_uring`, `ringloom`.
    pub load: String,
    /// The kernel that the load ran on, in a cluster: of a pod's node, of a virtual machine's guest. Missing elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Whether the guest's CPUs were emulated: the figures do not compare with the host's.
    pub emulated: bool,
    /// When it began.
    pub started_unix_s: u64,
    /// Requests and bytes of all parts.
    pub operations: u64,
    /// Bytes that were read or written.
    pub bytes: u64,
    /// The longest measured time of any part.
    pub elapsed_ns: u64,
    /// Of a curve: the requests per second that were asked for.
    pub rate_iops: Option<f64>,
    /// Pairs of latency and number of requests.
    pub latency_ns: Vec<(u64, u64)>,
    /// Pairs of length in ns and number of requests, for each second of the measured time.
    pub per_second: Vec<(u64, u64)>,
    /// The same for five equal parts of the measured time; none where they are not known.
    #[serde(default)]
    pub windows: Vec<(u64, u64)>,
    /// The guests (or groups of files, for the host) that ran at once, where there were several.
    pub parts: Vec<Part>,
    /// The disks that were measured at once by one load, where there were several.
    #[serde(default)]
    pub disk_parts: Vec<DiskPart>,
    /// CPU time and context switches in the measured time.
    pub cost: Cost,
    /// fio's job files, one per guest, relative to the directory of the results.
    pub job_files: Vec<String>,
    /// Bytes that were written, read back and compared before the run.
    pub verified_bytes: Option<u64>,
    /// How qemu-storage-daemon ended, if it crashed when it was stopped after the run; of several guests each.
    #[serde(default)]
    pub crashes: Vec<String>,
}

/// One of several guests that ran at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Which guest, from 0 on.
    pub vm: u16,
    /// Requests.
    pub operations: u64,
    /// Bytes that were read or written.
    pub bytes: u64,
    /// How long it was measured.
    pub elapsed_ns: u64,
    /// Requests by their latency.
    pub latency_ns: Vec<(u64, u64)>,
    /// The node of a cluster on which it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// One of several disks that were measured at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskPart {
    /// The guest that has it, from 1; for the host, the one that would.
    pub vm: u16,
    /// Which of its disks, from 1.
    pub disk: u16,
    /// Requests.
    pub operations: u64,
    /// Bytes that were read or written.
    pub bytes: u64,
    /// How long it was measured.
    pub elapsed_ns: u64,
}

impl DiskPart {
    /// The rate.
    pub fn bytes_per_second(&self) -> f64 {
        per_second(self.bytes, self.elapsed_ns)
    }

    /// The one in this place of all disks, those of the first guest first, if each guest has so many.
    pub fn new(place: usize, disks: u16, sample: &Sample) -> Self {
        let place = u16::try_from(place).unwrap_or(u16::MAX);
        let &Sample { operations, bytes, elapsed, .. } = sample;
        let (vm, disk) = (place / disks.max(1) + 1, place % disks.max(1) + 1);
        Self { vm, disk, operations, bytes, elapsed_ns: nanoseconds(elapsed) }
    }
}

impl Part {
    /// The rate.
    pub fn iops(&self) -> f64 {
        per_second(self.operations, self.elapsed_ns)
    }

    /// The rate.
    pub fn bytes_per_second(&self) -> f64 {
        per_second(self.bytes, self.elapsed_ns)
    }

    /// Of a guest.
    pub fn new(vm: u16, sample: &Sample) -> Self {
        let Sample { operations, bytes, elapsed, latency } = sample;
        let (operations, bytes, elapsed_ns) = (*operations, *bytes, nanoseconds(*elapsed));
        let latency_ns = latency.buckets();
        Self { vm, operations, bytes, elapsed_ns, latency_ns, node: None }
    }
}

impl Run {
    /// Of a load that has ended just now. What not every load knows is to be added.
    pub fn new(planned: &PlannedRun, load: String, sample: Sample, cost: Cost) -> Self {
        let Sample { operations, bytes, elapsed, latency } = sample;
        Self {
            format: FORMAT,
            key: planned.key.clone(),
            stretched: planned.stretch > 1,
            round: planned.round,
            queues: 0,
            load,
            kernel: None,
            emulated: false,
            started_unix_s: clock::since_epoch().saturating_sub(elapsed).as_secs(),
            operations,
            bytes,
            elapsed_ns: nanoseconds(elapsed),
            rate_iops: None,
            latency_ns: latency.buckets(),
            per_second: Vec::new(),
            windows: Vec::new(),
            parts: Vec::new(),
            disk_parts: Vec::new(),
            cost,
            job_files: Vec::new(),
            verified_bytes: None,
            crashes: Vec::new(),
        }
    }

    /// The first second in which it was not measured any more.
    pub fn ended_unix_s(&self) -> u64 {
        self.started_unix_s + self.elapsed_ns.div_ceil(1_000_000_000)
    }

    /// How many times as long as the settings say it was.
    pub fn stretch(&self) -> u32 {
        if self.stretched { STRETCH } else { 1 }
    }

    /// The rate of all together.
    pub fn iops(&self) -> f64 {
        if self.parts.is_empty() {
            return per_second(self.operations, self.elapsed_ns);
        }
        self.parts.iter().map(Part::iops).sum()
    }

    /// The rate of all together.
    pub fn bytes_per_second(&self) -> f64 {
        if self.parts.is_empty() {
            return per_second(self.bytes, self.elapsed_ns);
        }
        self.parts.iter().map(Part::bytes_per_second).sum()
    }

    /// CPU time per request in µs of what serves the disk: the daemon, and of QEMU all but the guest's CPUs;
    /// for the host, of the load.
    pub fn cpu_us(&self) -> Option<f64> {
        Some(self.per_request(self.cost.serving_ns()?)? / 1000.0)
    }

    /// CPU time per request in µs of everything that takes part: what serves the disk, the guests' CPUs and the load.
    pub fn cpu_of_all_us(&self) -> Option<f64> {
        Some(self.per_request(self.cost.of_all_ns()?)? / 1000.0)
    }

    /// CPU time per request in µs of the threads of a role in one group or in all.
    pub fn cpu_us_of(&self, group: Option<GroupName>, role: Option<Role>) -> Option<f64> {
        Some(self.per_request(self.cost.ns_of(group, role)?)? / 1000.0)
    }

    /// How busy the threads are that make the requests: each job of a client, and of a guest each CPU that has a job.
    pub fn submitting_busy(&self) -> Option<f64> {
        let (key, jobs) = (&self.key, self.key.cell.shape().jobs());
        let of_disks = jobs.saturating_mul(key.variant.disks);
        let one =
            if key.contender.subject().is_vm() { of_disks.min(self.queues) } else { of_disks };
        self.cost.submitting_busy(one.saturating_mul(key.variant.vms))
    }

    /// Context switches per request of the threads that serve the disk.
    pub fn switches(&self) -> Option<f64> {
        self.per_request(self.cost.serving_switches()?)
    }

    /// What was counted in the time that the meters covered, which is less than the measured one where several guests did
    /// not begin and end together.
    fn per_request(&self, counted: u64) -> Option<f64> {
        let requests = self.iops() * Duration::from_nanos(self.cost.covered_ns).as_secs_f64();
        (requests > 0.0).then(|| counted as f64 / requests)
    }

    /// What questions are asked of.
    pub fn figures(&self) -> Figures {
        Figures {
            iops: self.iops(),
            p99_us: p99_ns(&self.latency_ns).map(|ns| ns as f64 / 1e3),
            cpu_us: self.cpu_of_all_us(),
        }
    }

    /// The share of the measured time in which all guests ran, where there were several.
    pub fn together(&self) -> Option<f64> {
        let shortest = self.parts.iter().map(|part| part.elapsed_ns).min()?;
        Some(self.cost.covered_ns as f64 / shortest.max(1) as f64)
    }

    /// Whether its rate was steady, as far as can be told: of runs without windows from their seconds.
    pub fn steadiness(&self) -> Steady {
        match &self.windows[..] {
            [] => judge(&windows(&self.per_second)),
            windows => judge(windows),
        }
    }

    /// Whether it was the tuner's own load, not fio.
    pub fn is_own_load(&self) -> bool {
        self.load == OWN_LOAD
    }

    /// Of all requests.
    pub fn latency(&self) -> Latency {
        Latency::from_buckets(&self.latency_ns)
    }
}

/// More than 584 years are as many.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What 99 % of the requests did not exceed, of pairs of latency and number of requests. It needs no histogram, of which a
/// report of many runs would make one for each.
fn p99_ns(latency_ns: &[(u64, u64)]) -> Option<u64> {
    let mut pairs = latency_ns.to_vec();
    pairs.sort_unstable();
    let all: u128 = pairs.iter().map(|(_, count)| u128::from(*count)).sum();
    let mut up_to = 0;
    let is_enough = |(_, count): &&(u64, u64)| {
        up_to += u128::from(*count);
        up_to > 0 && up_to * 100 >= all * 99
    };
    pairs.iter().find(is_enough).map(|(ns, _)| *ns)
}

fn per_second(count: u64, elapsed_ns: u64) -> f64 {
    count as f64 / Duration::from_nanos(elapsed_ns).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_p99_of_a_run_is_that_of_its_histogram() {
        assert_eq!([p99_ns(&[]), p99_ns(&[(5, 0)])], [None, None]);
        for pairs in [&[(7, 1)][..], &[(9, 1), (5, 98), (7, 1)], &[(100, 50), (120, 49), (90, 1)]] {
            let expected = Latency::from_buckets(pairs).percentile(99.0).unwrap();
            assert_eq!(p99_ns(pairs).map(u128::from), Some(expected.as_nanos()), "{pairs:?}");
        }
    }
}
