//! Whether the figures of a run can be: so that nothing that follows from them overflows or is no number. Pure.
//!
//! Both readers of a results file ask: of what one passes over, the other refuses to go on.
//! Limits: a run takes at most a day, as its options say; every bound here is far above what a machine does in one.

use crate::meter::{Cost, GroupCost};
use crate::results::{Line, Run};

/// Twelve million requests per second for a day.
const REQUESTS_MAX: u64 = 1_000_000_000_000;
/// A thousand times what memory does.
const IOPS_MAX: f64 = 1e11;
/// 11 TB/s for a day.
const BYTES_MAX: u64 = 1_000_000_000_000_000_000;
/// Eleven days.
const ELAPSED_NS_MAX: u64 = 1_000_000_000_000_000;
/// Ten thousand CPUs for a day.
const CPU_NS_MAX: u64 = 1_000_000_000_000_000_000;
/// The end of the year 9999.
const UNIX_S_MAX: u64 = 253_402_300_799;
/// Sentinels are counted, the others are below 101.
const STEP_MAX: u32 = 1_000_000;

/// Why a run cannot be used.
#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    /// No time went by, so it has no rate.
    NoTime,
    /// What cannot be.
    Absurd(String),
}

/// Whether a run can be summarised, and a failure can be one of a plan.
///
/// # Errors
/// Why not.
pub(super) fn check(line: &Line) -> Result<(), Fault> {
    at_most("as its step", line.key().step.into(), STEP_MAX.into())?;
    line.run().map_or(Ok(()), check_run)
}

fn check_run(run: &Run) -> Result<(), Fault> {
    let Run { operations, bytes, elapsed_ns, started_unix_s, .. } = *run;
    let histogram = |buckets: &[(u64, u64)]| total(buckets.iter().map(|(_, count)| *count));
    at_most("requests", operations, REQUESTS_MAX)?;
    at_most("bytes", bytes, BYTES_MAX)?;
    at_most("ns", elapsed_ns, ELAPSED_NS_MAX)?;
    at_most("s since 1970", started_unix_s, UNIX_S_MAX)?;
    at_most("requests in its histogram", histogram(&run.latency_ns), REQUESTS_MAX)?;
    at_most("requests in its seconds", histogram(&run.per_second), REQUESTS_MAX)?;
    at_most("requests in its windows", histogram(&run.windows), REQUESTS_MAX)?;
    for times in [&run.per_second, &run.windows] {
        let time = total(times.iter().map(|(length, _)| *length));
        at_most("ns in its windows", time, ELAPSED_NS_MAX)?;
    }
    for part in &run.parts {
        at_most("requests of a guest", part.operations, REQUESTS_MAX)?;
        at_most("bytes of a guest", part.bytes, BYTES_MAX)?;
        at_most("ns of a guest", part.elapsed_ns, ELAPSED_NS_MAX)?;
        at_most("requests in its histogram", histogram(&part.latency_ns), REQUESTS_MAX)?;
    }
    for disk in &run.disk_parts {
        at_most("requests of a disk", disk.operations, REQUESTS_MAX)?;
        at_most("bytes of a disk", disk.bytes, BYTES_MAX)?;
        at_most("ns of a disk", disk.elapsed_ns, ELAPSED_NS_MAX)?;
    }
    cost(&run.cost)?;
    if let Some(rate) = run.rate_iops.filter(|rate| !(*rate > 0.0 && rate.is_finite())) {
        return Err(Fault::Absurd(format!("a rate of {rate} was asked for")));
    }
    if !(run.iops().is_finite() && run.bytes_per_second().is_finite()) {
        return Err(Fault::NoTime);
    }
    if run.iops() > IOPS_MAX {
        return Err(Fault::Absurd(format!("{:.0e} IOPS", run.iops())));
    }
    Ok(())
}

fn cost(cost: &Cost) -> Result<(), Fault> {
    at_most("ns of metering", cost.covered_ns, ELAPSED_NS_MAX)?;
    let groups = || cost.groups.iter();
    at_most("ns of CPU time", total(groups().map(|group| group.cpu_ns)), CPU_NS_MAX)?;
    at_most("context switches", total(groups().flat_map(switches)), REQUESTS_MAX)?;
    for group in groups() {
        let threads = || group.threads.iter();
        at_most("ns of its threads", total(threads().map(|it| it.cpu_ns)), CPU_NS_MAX)?;
        let of_threads = threads().flat_map(|it| [it.voluntary, it.involuntary]);
        at_most("context switches of its threads", total(of_threads), REQUESTS_MAX)?;
    }
    Ok(())
}

fn switches(group: &GroupCost) -> [u64; 2] {
    [group.voluntary, group.involuntary]
}

fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

fn at_most(what: &str, figure: u64, most: u64) -> Result<(), Fault> {
    if figure <= most { Ok(()) } else { Err(Fault::Absurd(format!("{figure} {what}"))) }
}
