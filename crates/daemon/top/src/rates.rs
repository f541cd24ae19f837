//! What happened between two snapshots of a daemon: rates, shares and percentiles of that time.
//!
//! Invariants: a sum that is smaller than before belongs to something new (a client that came back, an iothread that was started
//! again), whose whole sum came since: rates are never negative, nor made of two different things. What was not there before has
//! come since.
//! Not here: histories, and what takes part in several intervals (`fleet`).

use std::time::Duration;

use crate::histogram::Histogram;
use crate::snapshot::{Iothread, Job, Queue, Snapshot};

/// What happened in an interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) interval: Duration,
    pub(crate) queues: Vec<QueueRates>,
    pub(crate) iothreads: Vec<IothreadRates>,
    pub(crate) jobs: Vec<JobRates>,
}

/// What a queue, or all queues of an export, did.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct QueueRates {
    pub(crate) export: String,
    pub(crate) queue: u64,
    pub(crate) iothread: String,
    /// Answered in the interval.
    pub(crate) answered: u64,
    /// Those with an error.
    pub(crate) errors: u64,
    /// All of these in a second.
    pub(crate) iops: f64,
    pub(crate) read_iops: f64,
    pub(crate) write_iops: f64,
    pub(crate) read_bytes: f64,
    pub(crate) written_bytes: f64,
    pub(crate) errors_per_s: f64,
    /// Taken and not answered at the end of the interval.
    pub(crate) in_flight: u64,
    /// Open on average, by Little's law; of a queue that answered none, those that are open.
    pub(crate) depth: f64,
    /// The part of their time that requests wait because the iothread serves other queues.
    pub(crate) wait: Option<f64>,
    /// What that is made of: nanoseconds of waiting, and of all.
    waits_ns: Option<(u64, u64)>,
    pub(crate) latency: Histogram,
    pub(crate) moves: u64,
    /// Requests since the client came.
    pub(crate) requests: u64,
}

/// How an iothread spent its time, as shares of the interval.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct IothreadRates {
    pub(crate) name: String,
    pub(crate) queues: u64,
    pub(crate) cpu: Option<f64>,
    pub(crate) work: f64,
    pub(crate) look: f64,
    pub(crate) sleep: f64,
    /// Ready to run, while others had the CPU.
    pub(crate) run_delay: Option<f64>,
    /// Requests that its queues answered in a second.
    pub(crate) iops: f64,
}

/// How a job gets on.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct JobRates {
    pub(crate) id: String,
    /// What was done in a second; none if it began anew.
    pub(crate) rate: Option<f64>,
    /// Until all is done at that rate.
    pub(crate) left: Option<Duration>,
}

impl Rates {
    /// What happened since; none if no time has passed.
    pub(crate) fn between(before: &Snapshot, now: &Snapshot) -> Option<Self> {
        let interval = now.at.checked_sub(before.at).filter(|it| !it.is_zero())?;
        let then = |queue: &Queue| {
            let all = before.queues.iter().flatten();
            all.into_iter().find(|it| it.export == queue.export && it.queue == queue.queue)
        };
        let queues: Vec<QueueRates> = now
            .queues
            .iter()
            .flatten()
            .map(|queue| QueueRates::between(then(queue), queue, interval))
            .collect();
        let iothreads = now.iothreads.iter().flatten().map(|iothread| {
            let then = before.iothreads.iter().flatten().find(|it| it.name == iothread.name);
            let served = queues.iter().filter(|queue| queue.iothread == iothread.name);
            let iops = served.map(|queue| queue.iops).fold(0.0, |sum, it| sum + it);
            IothreadRates { iops, ..IothreadRates::between(then, iothread, interval) }
        });
        let iothreads = iothreads.collect();
        let jobs = now.jobs.iter().map(|job| {
            let then = before.jobs.iter().find(|it| it.id == job.id);
            JobRates::between(then, job, interval)
        });
        let jobs = jobs.collect();
        Some(Self { interval, queues, iothreads, jobs })
    }

    /// The sum over the queues of each export, by name.
    pub(crate) fn of_export(&self, export: &str) -> Option<QueueRates> {
        let mut all = self.queues.iter().filter(|it| it.export == export);
        let first = all.next()?.clone();
        Some(all.fold(first, QueueRates::with))
    }
}

/// Something whose sums only grow.
trait Sums {
    /// The sums by which it is known that it is still the same.
    fn sums(&self) -> Vec<u64>;

    /// Whether it cannot be what it was.
    fn is_another(&self, before: &Self) -> bool {
        self.sums().into_iter().zip(before.sums()).any(|(now, before)| now < before)
    }
}

impl Sums for Queue {
    fn sums(&self) -> Vec<u64> {
        let kinds = [self.reads, self.writes, self.flushes, self.discards, self.write_zeroes];
        let rest = [self.errors, self.read_bytes, self.written_bytes, self.open_ns, self.moves];
        [kinds, rest].concat()
    }
}

impl Sums for Iothread {
    fn sums(&self) -> Vec<u64> {
        vec![self.work_ns, self.poll_ns, self.sleep_ns]
    }
}

/// That many in a second.
fn per_second(count: u64, interval: Duration) -> f64 {
    count as f64 / interval.as_secs_f64()
}

/// A part of the whole, from 0 to 1.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| (part as f64 / whole as f64).min(1.0))
}

fn nanoseconds(interval: Duration) -> u64 {
    u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX)
}

impl QueueRates {
    fn between(before: Option<&Queue>, now: &Queue, interval: Duration) -> Self {
        let nothing = Queue::default();
        let before = before.filter(|it| !now.is_another(it)).unwrap_or(&nothing);
        let grown = |of: fn(&Queue) -> u64| of(now).saturating_sub(of(before));
        let rate = |of: fn(&Queue) -> u64| per_second(grown(of), interval);
        let waits = |of: &Queue| Some((of.take_wait_ns?, of.answer_wait_ns?));
        let open = grown(|it| it.open_ns);
        let waits_ns = waits(now).map(|(take, answer)| {
            let (take_before, answer_before) = waits(before).unwrap_or_default();
            let take = take.saturating_sub(take_before);
            let waited = take.saturating_add(answer.saturating_sub(answer_before));
            (waited, open.saturating_add(take))
        });
        // The daemon adds the time of requests that are open when it looks at them, which may be after the interval.
        let is_stalled = grown(Queue::requests) == 0 && now.in_flight > 0;
        let depth = match is_stalled {
            true => before.in_flight.midpoint(now.in_flight) as f64,
            false => per_second(open, interval) / 1e9,
        };
        Self {
            export: now.export.clone(),
            queue: now.queue,
            iothread: now.iothread.clone(),
            answered: grown(Queue::requests),
            errors: grown(|it| it.errors),
            iops: rate(Queue::requests),
            read_iops: rate(|it| it.reads),
            write_iops: rate(|it| it.writes),
            read_bytes: rate(|it| it.read_bytes),
            written_bytes: rate(|it| it.written_bytes),
            errors_per_s: rate(|it| it.errors),
            in_flight: now.in_flight,
            depth,
            wait: waits_ns.and_then(|(waited, all)| share(waited, all)),
            waits_ns,
            latency: Histogram::between(&before.latency, &now.latency),
            moves: grown(|it| it.moves),
            requests: now.requests(),
        }
    }

    /// Both together.
    fn with(mut self, other: &Self) -> Self {
        self.answered += other.answered;
        self.errors += other.errors;
        self.iops += other.iops;
        self.read_iops += other.read_iops;
        self.write_iops += other.write_iops;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.errors_per_s += other.errors_per_s;
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.depth += other.depth;
        self.waits_ns = self.waits_ns.zip(other.waits_ns).map(|((waited, all), (more, whole))| {
            (waited.saturating_add(more), all.saturating_add(whole))
        });
        self.wait = self.waits_ns.and_then(|(waited, all)| share(waited, all));
        self.latency.add(&other.latency);
        self.moves += other.moves;
        self.requests = self.requests.saturating_add(other.requests);
        self
    }

    /// Bytes in a second, both ways.
    pub(crate) fn bytes(&self) -> f64 {
        self.read_bytes + self.written_bytes
    }
}

impl IothreadRates {
    /// A sleep is counted when it is over, so what is neither work nor looking was sleep.
    fn between(before: Option<&Iothread>, now: &Iothread, interval: Duration) -> Self {
        let nothing = Iothread::default();
        let before = before.filter(|it| !now.is_another(it)).unwrap_or(&nothing);
        let part = |now: u64, before: u64| {
            share(now.saturating_sub(before), nanoseconds(interval)).unwrap_or(0.0)
        };
        let work = part(now.work_ns, before.work_ns);
        let look = part(now.poll_ns, before.poll_ns).min(1.0 - work);
        Self {
            name: now.name.clone(),
            queues: now.queues,
            cpu: now.cpu_ns.map(|it| part(it, before.cpu_ns.unwrap_or(0))),
            work,
            look,
            sleep: 1.0 - work - look,
            run_delay: now.run_delay_ns.map(|it| part(it, before.run_delay_ns.unwrap_or(0))),
            iops: 0.0,
        }
    }
}

/// More than this is no time that somebody waits for: a year.
const LEFT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl JobRates {
    fn between(before: Option<&Job>, now: &Job, interval: Duration) -> Self {
        let done = before.and_then(|it| now.current_progress.checked_sub(it.current_progress));
        let rate = done.map(|done| per_second(done, interval));
        let open = now.total_progress.saturating_sub(now.current_progress);
        let left = rate.filter(|rate| *rate > 0.0 && open > 0).and_then(|rate| {
            let seconds = per_second(open, Duration::from_secs(1)) / rate;
            Duration::try_from_secs_f64(seconds).ok().filter(|left| *left < LEFT_MAX)
        });
        Self { id: now.id.clone(), rate, left }
    }
}

#[cfg(test)]
mod tests;
