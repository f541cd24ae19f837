//! What the jobs count, second by second: each job keeps its own tally and hands it over when the second is over.
//!
//! `drive` counts with a `Counter` per job; `conduct` collects with one `Collector`.
//!
//! Invariants: every counted request is in exactly one interval; intervals come in order and none is missing; a run's sample
//! is their sum.
//! Threads: a counter belongs to its job's thread, the collector to the coordinator's; between them is a channel, used once
//! per job and second. Limits: a job that sleeps for longer than a second hands over late, and so its seconds are told late.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::{Interval, Latency, Sample};

/// A window ends with an interval of at least half a second, unless it is shorter itself.
const SHORTEST: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);

/// When, from the opening of a window of this length, its intervals end; the last ends with the window.
pub(crate) fn boundaries(runtime: Duration) -> impl Iterator<Item = Duration> {
    let starts = (1..).map(|count| SECOND * count);
    starts.take_while(move |end| *end + SHORTEST <= runtime).chain([runtime])
}

/// What one job did in one interval.
#[derive(Debug, Default)]
struct Tally {
    operations: u64,
    reads: u64,
    latency: Latency,
}

/// The tally of one interval, from one job. It has no more of earlier ones.
#[derive(Debug)]
struct HandedOver {
    job: u16,
    interval: u32,
    tally: Tally,
}

/// Counts the requests of one job.
#[derive(Debug)]
pub(crate) struct Counter {
    job: u16,
    /// The number of the interval that is being counted, from 0.
    interval: u32,
    tally: Tally,
    out: Sender<HandedOver>,
}

impl Counter {
    /// From now on requests belong to this interval; numbers never fall.
    pub(crate) fn enter(&mut self, interval: u32) {
        if interval != self.interval {
            self.hand_over();
            self.interval = interval;
        }
    }

    pub(crate) fn count(&mut self, is_read: bool, latency: Duration) {
        self.tally.operations += 1;
        self.tally.reads += u64::from(is_read);
        self.tally.latency.record(latency);
    }

    /// The job counts no more.
    pub(crate) fn finish(mut self) {
        self.hand_over();
    }

    fn hand_over(&mut self) {
        let tally = std::mem::take(&mut self.tally);
        let handed = HandedOver { job: self.job, interval: self.interval, tally };
        // Nobody listens once the run is given up, and then the figures are of no use.
        self.out.send(handed).unwrap_or_default();
    }
}

/// Adds up what the jobs hand over.
#[derive(Debug)]
pub(crate) struct Collector {
    from_jobs: Receiver<HandedOver>,
    /// Per job: the first interval that it has not handed over.
    missing: Vec<u32>,
    /// The bytes of one request.
    block: u64,
    /// Those that began and are not told; the first has the number `told`.
    open: VecDeque<Tally>,
    told: u32,
    /// The ends of the intervals that are over; first the opening of the window.
    ends: Vec<Instant>,
    sum: Sample,
}

impl Collector {
    /// A collector for so many jobs, with a counter for each.
    pub(crate) fn new(jobs: u16, block: u32) -> (Self, Vec<Counter>) {
        let (out, from_jobs) = channel();
        let counter = |job| Counter { job, interval: 0, tally: Tally::default(), out: out.clone() };
        let counters = (0..jobs).map(counter).collect();
        let sum = Sample {
            operations: 0,
            bytes: 0,
            elapsed: Duration::ZERO,
            latency: Latency::default(),
        };
        let collector = Self {
            from_jobs,
            missing: vec![0; usize::from(jobs)],
            block: u64::from(block),
            open: VecDeque::new(),
            told: 0,
            ends: Vec::new(),
            sum,
        };
        (collector, counters)
    }

    /// The window opens at the first call, an interval ends at every other.
    pub(crate) fn mark(&mut self, now: Instant) {
        self.ends.push(now);
    }

    /// The next interval that all jobs have handed over.
    pub(crate) fn next(&mut self) -> Option<Interval> {
        while let Ok(handed) = self.from_jobs.try_recv() {
            self.add(handed);
        }
        let all = self.missing.iter().all(|&missing| missing > self.told);
        if all { self.tell() } else { None }
    }

    /// The next interval when all jobs have ended.
    pub(crate) fn rest(&mut self) -> Option<Interval> {
        self.missing.fill(u32::MAX);
        self.next()
    }

    /// All intervals told so far.
    pub(crate) fn into_sample(self) -> Sample {
        self.sum
    }

    fn add(&mut self, HandedOver { job, interval, tally }: HandedOver) {
        let missing = &mut self.missing[usize::from(job)];
        *missing = (*missing).max(interval + 1);
        let index = usize::try_from(interval - self.told).expect("a u32 fits usize");
        while self.open.len() <= index {
            self.open.push_back(Tally::default());
        }
        let sum = &mut self.open[index];
        sum.operations += tally.operations;
        sum.reads += tally.reads;
        sum.latency.merge(&tally.latency);
    }

    fn tell(&mut self) -> Option<Interval> {
        let index = usize::try_from(self.told).expect("a u32 fits usize");
        let [opened, closed] = *self.ends.get(index..index + 2)? else { return None };
        let Tally { operations, reads, latency } = self.open.pop_front().unwrap_or_default();
        let (bytes, elapsed) = (operations * self.block, closed - opened);
        self.told += 1;
        self.sum.operations += operations;
        self.sum.bytes += bytes;
        self.sum.elapsed += elapsed;
        self.sum.latency.merge(&latency);
        Some(Interval { second: self.told, operations, bytes, reads, elapsed, latency })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn milliseconds(all: &[u64]) -> Vec<Duration> {
        all.iter().copied().map(Duration::from_millis).collect()
    }

    #[test]
    fn a_window_is_cut_into_seconds_and_the_last_is_not_short() {
        for (runtime, ends) in [
            (0, &[0][..]),
            (300, &[300]),
            (1499, &[1499]),
            (1500, &[1000, 1500]),
            (2000, &[1000, 2000]),
            (3499, &[1000, 2000, 3499]),
        ] {
            let found: Vec<_> = boundaries(Duration::from_millis(runtime)).collect();
            assert_eq!(found, milliseconds(ends), "{runtime} ms");
        }
    }

    #[test]
    fn a_second_is_told_when_all_jobs_have_left_it() {
        let (mut collector, mut counters) = Collector::new(2, 512);
        let (latency, opened) = (Duration::from_micros(100), clock::now());
        for end in milliseconds(&[0, 1000, 2100, 3100]) {
            collector.mark(opened + end);
        }
        let mut second = counters.pop().unwrap();
        let mut first = counters.pop().unwrap();
        first.count(true, latency);
        first.count(false, latency);
        first.enter(1);
        assert_eq!(collector.next(), None, "the second job is in the first interval still");
        second.count(true, latency);
        second.enter(2);
        let told = collector.next().unwrap();
        assert_eq!((told.second, told.operations, told.reads, told.bytes), (1, 3, 2, 1536));
        assert_eq!((told.elapsed, told.latency.count()), (Duration::from_secs(1), 3));
        assert_eq!(collector.next(), None, "the first job may count more of the second interval");
        first.count(true, latency);
        first.finish();
        second.count(true, latency);
        second.finish();
        let rest: Vec<_> = std::iter::from_fn(|| collector.rest()).collect();
        let counts: Vec<_> = rest.iter().map(|it| (it.second, it.operations)).collect();
        assert_eq!(counts, [(2, 1), (3, 1)]);
        let sum = collector.into_sample();
        assert_eq!((sum.operations, sum.bytes, sum.latency.count()), (5, 2560, 5));
        assert_eq!(sum.elapsed, Duration::from_millis(3100));
    }

    #[test]
    fn seconds_without_requests_are_told_too() {
        let (mut collector, counters) = Collector::new(1, 512);
        let opened = clock::now();
        for end in milliseconds(&[0, 1000, 2000]) {
            collector.mark(opened + end);
        }
        counters.into_iter().for_each(Counter::finish);
        let all: Vec<_> = std::iter::from_fn(|| collector.rest()).collect();
        assert!(all.len() == 2 && all.iter().all(|it| it.operations == 0), "{all:?}");
    }
}
