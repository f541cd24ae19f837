//! What limits a cell: from measured figures to one word, and what would change it. Pure functions.
//!
//! `answer` asks it of what is recommended, `report` tells it.
//!
//! Invariants: a resource is named only with evidence of its own: the host's rate for the disk, more requests in flight on
//! the host (where it is not measured, for what is compared first) for their number, busy threads and CPUs for the others. A
//! host that had no CPU left says nothing of its disk. Where none of it was measured, nothing is named.
//! Limits: a thread that looks for requests instead of sleeping is busy without being the limit, so the more the host gains with
//! more requests in flight, or if that is not known, the busier it must be.

use std::fmt;

use plan::cell::DEEPER;
use plan::contender::{Iothreads, Subject};

use crate::summary::{CellSummary, Row};

/// From this share of the time on a thread is the limit where more requests in flight bring the host nothing, and where they
/// bring it as many times as much. Those that make the requests are in doubt preferred: the others look for them, too.
const BUSY: (f64, f64) = (0.63, 0.95);
const IN_DOUBT: f64 = 0.9;
/// From this share of the CPUs on the host is.
const HOST_BUSY: f64 = 0.95;
/// What uses a smaller share of the CPUs in use is not what they are used for.
const OWN_CPUS: f64 = 0.5;
/// What uses a smaller share sleeps, and gets a CPU whenever it needs one, whatever others do.
const SLEEPS: f64 = 0.1;
/// What reaches this share of the rate of a host whose disk has no more to give has the disk as its limit, and so much more of it
/// where more requests in flight bring the host a multiple.
const OF_HOST: (f64, f64) = (0.89, 0.3);
/// Where more requests in flight bring the host less than this factor, its disk has no more to give.
const DEEPER_GAINS: f64 = 1.45;

/// What limits a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bottleneck {
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
    /// The same, most of which other programs use.
    OtherPrograms,
}

impl Bottleneck {
    /// What limits a number of iothreads in a cell; `None` where nothing shows it.
    pub fn of(summary: &CellSummary, row: &Row) -> Option<Self> {
        let subject = row.contender.subject();
        let (deeper, of_host) = (summary.deeper, row.to_host.map(|ratio| ratio.median));
        let has_cpu = |host: &Row| {
            (!is_full(host) || own_cpus(host) < SLEEPS) && host.submitting_busy < Some(BUSY.1)
        };
        let full_disk =
            deeper.filter(|gain| *gain < DEEPER_GAINS && summary.host().is_none_or(has_cpu));
        let enough = full_disk.map(|gain| OF_HOST.0 + OF_HOST.1 * (gain - 1.0).max(0.0));
        if enough.zip(of_host).is_some_and(|(enough, share)| share >= enough) {
            return Some(Self::Disk);
        }
        if is_full(row) {
            return Some(if own_cpus(row) < OWN_CPUS {
                Self::OtherPrograms
            } else {
                Self::HostCpu
            });
        }
        let busy = |busy: Option<f64>| busy.unwrap_or(0.0);
        let (serving, submitting) = (busy(row.serving_busy), busy(row.submitting_busy));
        // 0: the rate does not depend on how many are in flight; 1: it is proportional to them, as may be if that is not known.
        let by_depth = deeper.map_or(1.0, |gain| gain.ln() / f64::from(DEEPER).ln());
        let enough = BUSY.0 + (BUSY.1 - BUSY.0) * by_depth.clamp(0.0, 1.0);
        if serving.max(submitting) < enough {
            // Nothing is busy, so each request takes its time, or the disk does no more at once.
            let is_disk = |gain| gain < DEEPER_GAINS && of_host.is_none();
            return deeper.map(|gain| if is_disk(gain) { Self::Disk } else { Self::Latency });
        }
        if submitting >= IN_DOUBT * serving {
            return Some(makes(subject));
        }
        let iothreads = row.iothreads().unwrap_or(Iothreads::NONE);
        Some(if iothreads.busy() < row.queues { Self::Iothread } else { Self::Queues })
    }

    /// Whether its name is a plural.
    pub fn is_plural(self) -> bool {
        match self {
            Self::Disk | Self::Latency | Self::Queues => false,
            Self::Iothread | Self::GuestCpu | Self::ClientCpu => true,
            Self::HostCpu | Self::OtherPrograms => true,
        }
    }

    /// What would change it, without its full stop.
    pub fn remedy(self, subject: Subject) -> &'static str {
        match self {
            Self::Disk => "no number of iothreads helps, only a faster disk",
            Self::Latency => "more requests in flight (jobs, iodepth) would help, iothreads do not",
            Self::Iothread => "only more of them, or faster CPUs, would help",
            Self::Queues if subject.is_vm() => "more queues in the guest would help",
            Self::Queues => "more jobs, and so more queues, would help",
            Self::GuestCpu => "more or faster CPUs in the guest would help",
            Self::ClientCpu => "more jobs would help",
            Self::HostCpu => "a host with more CPUs would help",
            Self::OtherPrograms => {
                "the figures are those of a busy host: measure again when it is quiet"
            }
        }
    }
}

/// Whether no CPU of the host was free.
fn is_full(row: &Row) -> bool {
    row.cpus.is_some_and(|(in_use, of)| in_use + row.cpus_stolen >= HOST_BUSY * of as f64)
}

/// The share of the CPUs in use, or given to others, that the run itself uses.
fn own_cpus(row: &Row) -> f64 {
    let own = row.cpu_of_all_us.map(|cpu_us| cpu_us * row.iops.median / 1e6);
    let share = own.zip(row.cpus).map(|(own, (in_use, _))| own / (in_use + row.cpus_stolen));
    share.unwrap_or(1.0)
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
            Self::OtherPrograms => "other programs on the CPUs of the host",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plan::contender::Contender;
    use plan::runs::Purpose;
    use plan::testing::{cell, client};
    use records::meter::{GroupCost, GroupName, HostCpu, Role, ThreadCost};
    use records::testing::{host_cpu, run};

    use super::*;
    use crate::summary::summarise;

    /// What one iothread and two jobs of a client measured in a second.
    struct Measured {
        /// IOPS of the host, of the host with more in flight, and of the client.
        iops: [u64; 3],
        /// Shares of the time of the iothread and of the two jobs.
        busy: [f64; 2],
        /// Of 8 CPUs.
        cpus: f64,
        /// A hypervisor below withheld so many more.
        stolen: f64,
    }

    #[track_caller]
    fn check(measured: &Measured, expected: Option<Bottleneck>) {
        let Measured { iops: [host, deep, own], busy: [serving, submitting], cpus, stolen } =
            *measured;
        let shallow = cell("randread", 4096, 2, 16);
        let mut deeper = run(shallow.deeper().unwrap(), Contender::HOST, 0, deep);
        deeper.key.purpose = Purpose::Deeper;
        let mut served = run(shallow, client(1), 0, own);
        let group = |name, role, busy: f64| {
            let cpu_ns = u64::try_from(Duration::from_secs_f64(busy).as_nanos()).unwrap();
            let (voluntary, involuntary) = (0, 0);
            let thread = ThreadCost { name: String::new(), role, cpu_ns, voluntary, involuntary };
            GroupCost { name, cpu_ns, voluntary, involuntary, threads: vec![thread] }
        };
        served.queues = 2;
        let withheld = HostCpu { cpus_stolen: stolen, ..host_cpu(cpus, 8) };
        served.cost.host = Some(withheld);
        served.cost.groups = vec![
            group(GroupName::Daemon, Role::Iothread, serving),
            group(GroupName::Load, Role::Worker, 2.0 * submitting),
        ];
        let mut runs = vec![run(shallow, Contender::HOST, 0, host), served];
        runs.extend((deep > 0).then_some(deeper));
        let cells = summarise(&runs, 8);
        let row = cells[0].rows.iter().find(|row| row.contender == client(1)).unwrap();
        assert_eq!(Bottleneck::of(&cells[0], row), expected);
    }

    #[test]
    fn each_limit_shows_by_its_own_evidence() {
        let usual = Measured { iops: [1000, 1050, 950], busy: [0.2, 0.1], cpus: 1.0, stolen: 0.0 };
        check(&usual, Some(Bottleneck::Disk));
        let busy_too = Measured { busy: [0.99, 0.1], cpus: 8.0, ..usual };
        check(&busy_too, Some(Bottleneck::Disk));
        let full = Measured { iops: [1000, 1050, 500], busy: [1.0, 1.5], cpus: 7.9, stolen: 0.0 };
        check(&full, Some(Bottleneck::HostCpu));
        check(&Measured { busy: [1.0, 1.0], ..full }, Some(Bottleneck::OtherPrograms));
        let iothread =
            Measured { iops: [1000, 1050, 500], busy: [0.9, 0.2], cpus: 2.0, stolen: 0.0 };
        check(&iothread, Some(Bottleneck::Iothread));
        let jobs = Measured { busy: [0.4, 0.8], ..iothread };
        check(&jobs, Some(Bottleneck::ClientCpu));
        let more = Measured { iops: [1000, 3500, 900], ..usual };
        check(&more, Some(Bottleneck::Latency));
    }

    #[test]
    fn a_host_without_a_free_cpu_says_nothing_of_its_disk() {
        // Of 2 jobs that took 10 µs for each request.
        let memory = Measured {
            iops: [200_000, 200_000, 190_000],
            busy: [0.9, 0.5],
            cpus: 7.9,
            stolen: 0.0,
        };
        check(&memory, Some(Bottleneck::OtherPrograms));
        check(&Measured { cpus: 2.0, ..memory }, Some(Bottleneck::Iothread));
        // A hypervisor below had given them to others.
        check(&Measured { cpus: 5.0, stolen: 2.9, ..memory }, Some(Bottleneck::OtherPrograms));
        // Others had the CPUs, and it slept: 1000 times 10 µs.
        let asleep = Measured { iops: [1000, 1050, 950], busy: [0.2, 0.1], cpus: 7.9, stolen: 0.0 };
        check(&asleep, Some(Bottleneck::Disk));
    }

    #[test]
    fn without_the_host_with_more_in_flight_only_what_is_busy_is_named() {
        let idle = Measured { iops: [1000, 0, 950], busy: [0.2, 0.1], cpus: 1.0, stolen: 0.0 };
        check(&idle, None);
        check(&Measured { busy: [0.95, 0.1], ..idle }, Some(Bottleneck::Iothread));
    }
}
