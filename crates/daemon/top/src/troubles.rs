//! What is wrong, worst first: what an administrator has to see before anything else.
//!
//! Where it stands: after `fleet`; the screen has these above all tables, and sorts by them; `--once` prints them first.
//! Limits: what counts as trouble is in the constants below, and in docs/top.md.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fleet::{Daemon, Fleet, Link};
use crate::numbers::{self, duration};
use crate::rates::{IothreadRates, QueueRates, Rates};
use crate::snapshot::{Iothread, Job, NbdNode, Snapshot, Storage};

/// For so long none of the open requests of a queue is answered, before that is told.
const STALL_TOLD: Duration = Duration::from_secs(2);
/// After this it is bad: guests begin to complain.
const STALL_BAD: Duration = Duration::from_secs(10);
/// 99 % of requests below this are no trouble.
const SLOW_NS: u64 = 100_000_000;
/// An iothread that works for so much of its time has no room left.
const FULL: f64 = 0.95;
/// An iothread that is ready for so much of its time, without a CPU, needs one.
const DELAYED: f64 = 0.1;
/// Requests that wait for so much of their time because their iothread serves other queues.
const CROWDED: f64 = 0.3;
/// Fewer requests that are open on average are no crowd.
const CROWD_DEPTH: f64 = 1.0;
/// A daemon that says nothing for so many intervals, and at least for so long, hangs.
const SILENT_INTERVALS: u32 = 3;
const SILENT_MIN: Duration = Duration::from_secs(3);

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Something is slower than it could be.
    Warning,
    /// Guests have errors, wait, or are about to.
    Bad,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) severity: Severity,
    /// The daemon's number.
    pub(crate) daemon: usize,
    pub(crate) of: Subject,
    pub(crate) text: String,
}

/// What it is that something is wrong with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    Daemon,
    /// An export, and those of its queues, if not all.
    Export(String, Vec<u64>),
    Iothreads(Vec<String>),
    Job(String),
    Node(String),
}

impl Trouble {
    /// What it is wrong with, as people say it; with the daemon, if there are several.
    pub(crate) fn subject(&self, fleet: &Fleet) -> String {
        let daemon = fleet.get(self.daemon).map_or("", |it| it.label.as_str());
        let own = match &self.of {
            Subject::Daemon => return format!("daemon {daemon}"),
            Subject::Export(export, queues) => match queues.as_slice() {
                [] => format!("export {export}"),
                [queue] => format!("export {export}: queue {queue}"),
                queues => {
                    let all: Vec<String> = queues.iter().map(u64::to_string).collect();
                    format!("export {export}: queues {}", all.join(", "))
                }
            },
            Subject::Iothreads(names) => match names.as_slice() {
                [name] => format!("iothread {name}"),
                names => format!("iothreads {}", names.join(", ")),
            },
            Subject::Job(id) => format!("job {id}"),
            Subject::Node(name) => format!("node {name}"),
        };
        if fleet.all().len() > 1 { format!("{daemon}: {own}") } else { own }
    }

    fn is_of_export(&self, name: &str, queue: Option<u64>) -> bool {
        let Subject::Export(export, queues) = &self.of else { return false };
        let is_its = |queue| queues.is_empty() || queues.contains(&queue);
        export == name && queue.is_none_or(is_its)
    }
}

/// The worst that is wrong with an export, or one of its queues.
pub(crate) fn of_export(
    all: &[Trouble],
    daemon: usize,
    export: &str,
    queue: Option<u64>,
) -> Option<Severity> {
    let its = all.iter().filter(|it| it.daemon == daemon && it.is_of_export(export, queue));
    its.map(|it| it.severity).max()
}

/// The worst that is wrong with an iothread.
pub(crate) fn of_iothread(all: &[Trouble], daemon: usize, name: &str) -> Option<Severity> {
    let is_its = |it: &&Trouble| {
        let Subject::Iothreads(names) = &it.of else { return false };
        it.daemon == daemon && names.iter().any(|it| it == name)
    };
    all.iter().filter(is_its).map(|it| it.severity).max()
}

/// The worst that is wrong with a job.
pub(crate) fn of_job(all: &[Trouble], daemon: usize, id: &str) -> Option<Severity> {
    let is_its =
        |it: &&Trouble| it.daemon == daemon && matches!(&it.of, Subject::Job(job) if job == id);
    all.iter().filter(is_its).map(|it| it.severity).max()
}

/// All that is wrong now, worst first.
pub(crate) fn troubles(fleet: &Fleet, now: Duration, interval: Duration) -> Vec<Trouble> {
    let mut all: Vec<Trouble> =
        fleet.all().iter().flat_map(|daemon| of_daemon(daemon, now, interval)).collect();
    all.sort_by_key(|it| std::cmp::Reverse(it.severity));
    all
}

fn of_daemon(daemon: &Daemon, now: Duration, interval: Duration) -> Vec<Trouble> {
    let trouble = |severity, of, text| Trouble { severity, daemon: daemon.number, of, text };
    let about = |severity, text| vec![trouble(severity, Subject::Daemon, text)];
    match &daemon.link {
        Link::New(None) => return Vec::new(),
        Link::New(Some(why)) => return about(Severity::Warning, why.clone()),
        Link::Gone { since, why } => {
            let time = now.saturating_sub(*since);
            let text = format!("gone for {}: {why}", duration(time));
            return about(Severity::Bad, text);
        }
        Link::Up => {}
    }
    let Some(last) = &daemon.last else { return Vec::new() };
    let silent = now.saturating_sub(last.at);
    if silent > (interval * SILENT_INTERVALS).max(SILENT_MIN) {
        let text = format!("no answer for {}: it waits for a disk, or hangs", duration(silent));
        return about(Severity::Bad, text);
    }
    let mut found: Vec<(Severity, Subject, String)> = last.jobs.iter().filter_map(job).collect();
    if let Some(rates) = &daemon.rates {
        found.extend(exports(daemon, last, rates));
        found.extend(iothreads(&rates.iothreads));
    }
    found.extend(last.iothreads.iter().flatten().filter_map(standing_still));
    found.extend(last.nbd_nodes.iter().filter_map(disconnected));
    found.extend(last.storage.iter().filter_map(storage));
    found.into_iter().map(|(severity, of, text)| trouble(severity, of, text)).collect()
}

type Found = (Severity, Subject, String);

fn job(job: &Job) -> Option<Found> {
    let of = Subject::Job(job.id.clone());
    match (&job.error, job.io_status.as_str()) {
        (Some(error), _) => Some((Severity::Bad, of, format!("{} has failed: {error}", job.kind))),
        (None, "" | "ok") => None,
        (None, why) => {
            let text = format!("{} rests after an error of a disk ({why})", job.kind);
            Some((Severity::Bad, of, text))
        }
    }
}

fn exports(daemon: &Daemon, last: &Snapshot, rates: &Rates) -> Vec<Found> {
    let mut queues: BTreeMap<&str, Vec<&QueueRates>> = BTreeMap::new();
    for queue in &rates.queues {
        queues.entry(&queue.export).or_default().push(queue);
    }
    let mut found = Vec::new();
    for (export, queues) in queues {
        found.extend(stalled(daemon, last, export, &queues));
        found.extend(failed(rates, export, &queues));
        let Some(whole) = rates.of_export(export) else { continue };
        let of = || Subject::Export(export.to_owned(), Vec::new());
        if let Some(p99) = whole.latency.percentile(99).filter(|it| *it >= SLOW_NS) {
            let p50 = numbers::time(whole.latency.percentile(50));
            let text = format!("slow: p50 {p50}, p99 {}", numbers::time(Some(p99)));
            found.push((Severity::Warning, of(), text));
        }
        let is_crowd = whole.depth >= CROWD_DEPTH;
        if let Some(wait) = whole.wait.filter(|it| *it >= CROWDED && is_crowd) {
            let text = format!(
                "requests wait {} of their time while the iothread serves other queues",
                numbers::percent(Some(wait))
            );
            found.push((Severity::Warning, of(), text));
        }
    }
    found
}

fn stalled(
    daemon: &Daemon,
    last: &Snapshot,
    export: &str,
    queues: &[&QueueRates],
) -> Option<Found> {
    let since = |queue: &QueueRates| daemon.history.stalled_since(export, queue.queue);
    let of: Vec<&&QueueRates> = queues.iter().filter(|it| since(it).is_some()).collect();
    let longest = of.iter().filter_map(|it| since(it)).min()?;
    let time = last.at.saturating_sub(longest);
    if time < STALL_TOLD {
        return None;
    }
    let severity = if time >= STALL_BAD { Severity::Bad } else { Severity::Warning };
    let open: u64 = of.iter().map(|it| it.in_flight).fold(0, u64::saturating_add);
    let requests = if open == 1 { "1 request" } else { &format!("{open} requests") };
    let text = format!("{requests} open, none answered for {}", duration(time));
    Some((severity, subject(export, queues, &of), text))
}

fn failed(rates: &Rates, export: &str, queues: &[&QueueRates]) -> Option<Found> {
    let of: Vec<&&QueueRates> = queues.iter().filter(|it| it.errors > 0).collect();
    let count: u64 = of.iter().map(|it| it.errors).sum();
    if count == 0 {
        return None;
    }
    let requests = if count == 1 { "1 request has" } else { &format!("{count} requests have") };
    let seconds = rates.interval.as_secs_f64();
    let text = format!("{requests} failed in the last {seconds:.1} s");
    Some((Severity::Bad, subject(export, queues, &of), text))
}

/// Some queues of an export, or all.
fn subject(export: &str, all: &[&QueueRates], of: &[&&QueueRates]) -> Subject {
    let queues = of.iter().map(|it| it.queue);
    let queues = if of.len() == all.len() && all.len() > 1 { Vec::new() } else { queues.collect() };
    Subject::Export(export.to_owned(), queues)
}

/// A node whose requests wait for a server, or fail.
fn disconnected(node: &NbdNode) -> Option<Found> {
    let time = Duration::from_nanos(node.disconnected_ns);
    let text = || format!("no connection to {} for {}", node.server, duration(time));
    (time >= STALL_TOLD).then(|| (Severity::Bad, Subject::Node(node.node_name.clone()), text()))
}

/// Storage that is not what the next start, or the guest, expects.
fn storage(storage: &Storage) -> Option<Found> {
    let of = |severity, text: &str| {
        Some((severity, Subject::Export(storage.export.clone(), Vec::new()), text.to_owned()))
    };
    match storage.size_difference {
        _ if storage.removed => {
            of(Severity::Bad, "image removed, renamed or replaced: do not stop the daemon")
        }
        0 => None,
        ..0 => of(Severity::Bad, "its image has shrunk: what was behind its end is lost"),
        1.. => of(Severity::Warning, "its image has grown, and the guest has not been told"),
    }
}

/// One that serves nothing just now, whatever it has to serve.
fn standing_still(iothread: &Iothread) -> Option<Found> {
    let time = Duration::from_nanos(iothread.stalled_ns);
    let of = Subject::Iothreads(vec![iothread.name.clone()]);
    let text = || format!("has not turned for {}: its queues are not served", duration(time));
    (time >= STALL_TOLD).then(|| (Severity::Bad, of, text()))
}

/// Those that have no room left, and those that get no CPU; each told once, with the worst of them.
fn iothreads(all: &[IothreadRates]) -> Vec<Found> {
    let of = |is_so: &dyn Fn(&IothreadRates) -> bool| {
        all.iter().filter(|it| it.queues > 0 && is_so(it)).collect::<Vec<_>>()
    };
    let delay = |it: &IothreadRates| it.run_delay.unwrap_or(0.0);
    let is_delayed = |it: &IothreadRates| delay(it) >= DELAYED;
    let delayed = of(&is_delayed);
    let full = of(&|it| !is_delayed(it) && it.work >= FULL);
    let worst = |all: &[&IothreadRates], of: &dyn Fn(&IothreadRates) -> f64| {
        numbers::percent(all.iter().map(|it| of(it)).reduce(f64::max))
    };
    let found = |all: &[&IothreadRates], text| {
        let names = all.iter().map(|it| it.name.clone()).collect();
        (Severity::Warning, Subject::Iothreads(names), text)
    };
    let mut told = Vec::new();
    if !full.is_empty() {
        let queues: u64 = full.iter().map(|it| it.queues).sum();
        let queues = if queues == 1 { "1 queue" } else { &format!("{queues} queues") };
        let text = format!("at work {} of the time, for {queues}", worst(&full, &|it| it.work));
        told.push(found(&full, text));
    }
    if !delayed.is_empty() {
        let text = format!("ready, and without a CPU, {} of the time", worst(&delayed, &delay));
        told.push(found(&delayed, text));
    }
    told
}

#[cfg(test)]
mod tests;
