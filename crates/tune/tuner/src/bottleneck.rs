//! What limits a cell: from measured figures to one word, and what would change it. Pure functions.
//!
//! `answer` asks it of what is recommended, `report` tells it.
//!
//! Invariants: a resource is named only with evidence of its own: the host's rate for the disk, more requests in flight on
//! the host for their number, busy threads and CPUs for the others. Where none of it was measured, nothing is named.
//! Limits: a thread that looks for requests instead of sleeping is busy without being the limit, so iothreads are named only
//! if the disk has more to give.

use std::fmt;

use crate::cell::DEEPER;
use crate::contender::{Iothreads, Subject};
use crate::summary::{CellSummary, Row};

/// From this share of the time on a thread is the limit where more requests in flight bring the host nothing, and where they
/// bring it as many times as much. Those that make the requests are in doubt preferred: the others look for them, too.
const BUSY: (f64, f64) = (0.55, 0.95);
const IN_DOUBT: f64 = 0.9;
/// From this share of the CPUs on the host is.
const HOST_BUSY: f64 = 0.95;
/// What reaches this share of the rate of a host whose disk has no more to give has the disk as its limit.
const OF_HOST: f64 = 0.85;
/// Where more requests in flight bring the host less than this factor, its disk has no more to give.
const DEEPER_GAINS: f64 = 1.35;

/// What limits a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Bottleneck {
    /// The disk gives no more.
    Disk,
    /// Each request takes its time, and too few are in flight.
    Latency,
    /// The threads that serve the disk.
    Iothread,
    /// The threads that serve the disk, and there is no queue for another.
    Queues,
    /// The CPUs of the guest that make the requests.
    GuestCpu,
    /// The threads of the load.
    ClientCpu,
    /// All CPUs of the host.
    HostCpu,
}

impl Bottleneck {
    /// What limits a number of iothreads in a cell; `None` where nothing shows it.
    pub(crate) fn of(summary: &CellSummary, row: &Row) -> Option<Self> {
        let subject = row.contender.subject();
        let (deeper, of_host) = (summary.deeper, row.to_host.map(|ratio| ratio.median));
        if deeper.is_some_and(|gain| gain < DEEPER_GAINS) && of_host? >= OF_HOST {
            return Some(Self::Disk);
        }
        if row.cpus.is_some_and(|(in_use, of)| in_use >= HOST_BUSY * of as f64) {
            return Some(Self::HostCpu);
        }
        let busy = |busy: Option<f64>| busy.unwrap_or(0.0);
        let (serving, submitting) = (busy(row.serving_busy), busy(row.submitting_busy));
        // 0: the rate does not depend on how many are in flight; 1: it is proportional to them.
        let by_depth =
            deeper.map_or(0.0, |gain| gain.ln() / f64::from(DEEPER).ln()).clamp(0.0, 1.0);
        let enough = BUSY.0 + (BUSY.1 - BUSY.0) * by_depth;
        if serving.max(submitting) < enough {
            // Nothing is busy, so each request takes its time.
            return deeper.map(|_| Self::Latency);
        }
        if submitting >= IN_DOUBT * serving {
            return Some(makes(subject));
        }
        let iothreads = row.iothreads().unwrap_or(Iothreads::NONE);
        Some(if iothreads.busy() < row.queues { Self::Iothread } else { Self::Queues })
    }

    /// Whether its name is a plural.
    pub(crate) fn is_plural(self) -> bool {
        match self {
            Self::Disk | Self::Latency | Self::Queues => false,
            Self::Iothread | Self::GuestCpu | Self::ClientCpu | Self::HostCpu => true,
        }
    }

    /// What would change it, without its full stop.
    pub(crate) fn remedy(self, subject: Subject) -> &'static str {
        match self {
            Self::Disk => "no number of iothreads helps, only a faster disk",
            Self::Latency => "more requests in flight (jobs, iodepth) would help, iothreads do not",
            Self::Iothread => "more iothreads may help",
            Self::Queues if subject.is_vm() => "more queues in the guest would help",
            Self::Queues => "more jobs, and so more queues, would help",
            Self::GuestCpu => "more or faster CPUs in the guest would help",
            Self::ClientCpu => "more jobs would help",
            Self::HostCpu => "a host with more CPUs would help",
        }
    }
}

/// What makes the requests of a subject.
fn makes(subject: Subject) -> Bottleneck {
    if subject.is_vm() { Bottleneck::GuestCpu } else { Bottleneck::ClientCpu }
}

/// `the disk`.
impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "the disk",
            Self::Latency => "latency",
            Self::Iothread => "the threads that serve the disk",
            Self::Queues => "the number of queues",
            Self::GuestCpu => "the CPUs of the guest",
            Self::ClientCpu => "the CPUs of the client",
            Self::HostCpu => "the CPUs of the host",
        })
    }
}
