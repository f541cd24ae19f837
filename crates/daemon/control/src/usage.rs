//! What iothreads and queues did in the time since it was last asked, as lines of the log (SIGUSR1).
//!
//! Where it stands: beside the request path. It reads the gauges that iothreads and queues keep anyway; nothing is counted
//! for it.
//!
//! Threads: the one that asks. Limits: the busiest [`QUEUES_MAX`] queues have a line each.

mod lines;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::nanoseconds;
use iothread::{Iothread, PlacedSource, SourceName};

use self::lines::{IothreadUse, QueueUse};
use crate::DaemonState;

/// How many queues have a line.
const QUEUES_MAX: usize = 100;

/// What was seen the last time.
#[derive(Debug)]
pub struct UsageReport {
    at: Instant,
    iothreads: HashMap<String, IothreadCounts>,
    queues: HashMap<SourceName, QueueCounts>,
}

/// An iothread's sums since its start, in nanoseconds.
#[derive(Debug, Default, Clone, Copy)]
struct IothreadCounts {
    work: u64,
    poll: u64,
    cpu: u64,
    run_delay: u64,
}

/// A queue's sums since it was first served.
#[derive(Debug, Default, Clone)]
struct QueueCounts {
    requests: u64,
    bytes: u64,
    errors: u64,
    open_ns: u64,
    wait_ns: u64,
    moves: u64,
    /// Upper edge and number of each bucket of latency, in order.
    latency: Vec<(Duration, u64)>,
}

impl UsageReport {
    /// Nothing was seen yet: the first report is of the time from now on.
    pub fn since(now: Instant) -> Self {
        Self { at: now, iothreads: HashMap::new(), queues: HashMap::new() }
    }

    /// What was done since the last time, a line for each iothread and each queue that had requests.
    pub fn lines(&mut self, state: &DaemonState, now: Instant) -> Vec<String> {
        let passed = now.saturating_duration_since(self.at);
        self.at = now;
        let iothreads = state.iothreads();
        let mut sources = state.sources();
        sources.sort_by(|one, other| {
            (&one.name().export, one.name().queue).cmp(&(&other.name().export, other.name().queue))
        });
        let mut lines = vec![format!("in the last {:.1} s:", passed.as_secs_f64())];
        let mut known = HashMap::new();
        for iothread in &iothreads {
            let counts = IothreadCounts::of(iothread);
            let before = self.iothreads.get(iothread.name()).copied().unwrap_or_default();
            let queues = sources.iter().filter(|it| it.iothread_name() == iothread.name()).count();
            let used = counts.used_since(before, passed);
            lines.push(format!("iothread {}: {queues} queues; {used}", iothread.name()));
            known.insert(iothread.name().to_owned(), counts);
        }
        self.iothreads = known;
        lines.extend(self.queue_lines(&sources, passed));
        let pools = state.pools().flat_map(|pool| {
            let (pool, exports) = (pool.pool(), pool.exports());
            lines::of_pool(pool.name(), pool.running().len(), pool.slots(), &exports)
        });
        lines.extend(pools);
        lines
    }

    fn queue_lines(&mut self, sources: &[Arc<PlacedSource>], passed: Duration) -> Vec<String> {
        let mut known = HashMap::new();
        let mut used = Vec::new();
        for source in sources {
            let counts = QueueCounts::of(source);
            let before = self.queues.remove(source.name()).unwrap_or_default();
            let queue = counts.used_since(&before, passed, source.gauges().in_flight.get());
            if queue.requests > 0 || queue.in_flight > 0 {
                used.push((format!("{} on {}", source.name(), source.iothread_name()), queue));
            }
            known.insert(source.name().clone(), counts);
        }
        self.queues = known;
        let idle = sources.len() - used.len();
        // The busiest, in the order of their names.
        let mut rates: Vec<u64> = used.iter().map(|(_, queue)| queue.requests).collect();
        rates.sort_unstable_by(|one, other| other.cmp(one));
        let least = rates.get(QUEUES_MAX - 1).copied().unwrap_or_default();
        let shown = used.iter().filter(|(_, queue)| queue.requests >= least).take(QUEUES_MAX);
        let mut lines: Vec<_> = shown.map(|(name, queue)| format!("{name}: {queue}")).collect();
        let left_out = used.len() - lines.len();
        if left_out > 0 {
            lines.push(format!("{left_out} queues with fewer requests are not shown"));
        }
        if idle > 0 {
            lines.push(format!("{idle} queues had no requests"));
        }
        lines
    }
}

impl IothreadCounts {
    fn of(iothread: &Iothread) -> Self {
        let (gauges, times) = (iothread.usage().gauges(), iothread.usage().thread_times());
        Self {
            work: gauges.work_ns.get(),
            poll: gauges.poll_ns.get(),
            cpu: times.map_or(0, |it| nanoseconds(it.cpu)),
            run_delay: times.map_or(0, |it| nanoseconds(it.run_delay)),
        }
    }

    fn used_since(self, before: Self, passed: Duration) -> IothreadUse {
        let of = |now: u64, then: u64| Duration::from_nanos(now.saturating_sub(then));
        IothreadUse {
            passed,
            work: of(self.work, before.work),
            poll: of(self.poll, before.poll),
            cpu: of(self.cpu, before.cpu),
            run_delay: of(self.run_delay, before.run_delay),
        }
    }
}

impl QueueCounts {
    fn of(source: &PlacedSource) -> Self {
        let gauges = source.gauges();
        Self {
            requests: gauges.requests(),
            bytes: gauges.bytes(),
            errors: gauges.errors.get(),
            open_ns: gauges.open_ns.get(),
            wait_ns: gauges.take_wait_ns.get() + gauges.answer_wait_ns.get(),
            moves: gauges.moves.get(),
            latency: gauges.latency.buckets().map(|(_, to, count)| (to, count)).collect(),
        }
    }

    /// What it did in that time. If it did more before, it is another queue of the same name.
    fn used_since(&self, before: &Self, passed: Duration, in_flight: u64) -> QueueUse {
        let nothing = Self::default();
        let before = if before.requests > self.requests { &nothing } else { before };
        let known: HashMap<Duration, u64> = before.latency.iter().copied().collect();
        let new = |(to, count): &(Duration, u64)| {
            (*to, count.saturating_sub(known.get(to).copied().unwrap_or_default()))
        };
        QueueUse {
            passed,
            requests: self.requests - before.requests,
            bytes: self.bytes.saturating_sub(before.bytes),
            errors: self.errors.saturating_sub(before.errors),
            open: Duration::from_nanos(self.open_ns.saturating_sub(before.open_ns)),
            wait: Duration::from_nanos(self.wait_ns.saturating_sub(before.wait_ns)),
            moves: self.moves.saturating_sub(before.moves),
            in_flight,
            latency: self.latency.iter().map(new).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(requests: u64, latency: &[(u64, u64)]) -> QueueCounts {
        let latency = latency.iter().map(|(us, count)| (Duration::from_micros(*us), *count));
        QueueCounts { requests, latency: latency.collect(), ..QueueCounts::default() }
    }

    #[test]
    fn a_report_has_what_came_since_the_last_one() {
        let (before, now) = (counts(10, &[(50, 10)]), counts(30, &[(50, 25), (70, 5)]));
        let used = now.used_since(&before, Duration::from_secs(1), 2);
        assert_eq!((used.requests, used.in_flight), (20, 2));
        let us = Duration::from_micros;
        assert_eq!(used.latency, [(us(50), 15), (us(70), 5)]);
    }

    #[test]
    fn another_queue_of_the_same_name_begins_anew() {
        let (before, now) = (counts(1000, &[(50, 1000)]), counts(30, &[(50, 30)]));
        let used = now.used_since(&before, Duration::from_secs(1), 0);
        assert_eq!(used.requests, 30);
        assert_eq!(used.latency, [(Duration::from_micros(50), 30)]);
    }
}
