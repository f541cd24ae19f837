//! What the jobs count, second by second and fifth by fifth of the window: each job keeps its own tally and hands over what
//! belongs to a slice of the window when the slice is over. Slices are what is left when the window is cut at both.
//!
//! `drive` counts with a `Counter` per job; `conduct` collects with one `Collector`.
//!
//! Invariants: every counted request is in exactly one slice, and so in one second and one fifth; slices come in order and
//! none is missing; a run's sample is their sum.
//! Threads: a counter belongs to its job's thread, the collector to the coordinator's; between them is a channel, used once
//! per job and slice; histograms, which are large, go through it once per job and second. Limits: a job that sleeps for
//! longer than a slice hands over late, and so its seconds and fifths are told late.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::{FIFTHS, Fifth, Interval, Latency, Sample};

/// A window ends with a second of at least half its length, unless it is shorter itself.
const SHORTEST: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);

/// The end of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// From the opening of the window.
    pub(crate) at: Duration,
    ends_second: bool,
    ends_fifth: bool,
}

/// Where a window of this length is cut; the last cut is its end.
pub(crate) fn cuts(runtime: Duration) -> Vec<Cut> {
    let seconds: Vec<Duration> = seconds(runtime).collect();
    let fifths: Vec<Duration> = fifths(runtime).collect();
    let mut all = [&seconds[..], &fifths[..]].concat();
    all.sort_unstable();
    all.dedup();
    let cut = |at: &Duration| Cut {
        at: *at,
        ends_second: seconds.binary_search(at).is_ok(),
        ends_fifth: fifths.binary_search(at).is_ok(),
    };
    all.iter().map(cut).collect()
}

/// The ends of the seconds; the last is that of the window.
fn seconds(runtime: Duration) -> impl Iterator<Item = Duration> {
    let ends = (1..).map(|count| SECOND * count);
    ends.take_while(move |end| *end + SHORTEST <= runtime).chain([runtime])
}

/// The ends of the fifths; none if the clock cannot tell them apart.
fn fifths(runtime: Duration) -> impl Iterator<Item = Duration> {
    let count = if (runtime / FIFTHS).is_zero() { 0 } else { FIFTHS };
    (1..=count).map(move |number| runtime * number / FIFTHS)
}

/// What was counted in one slice.
#[derive(Debug, Default)]
struct Tally {
    operations: u64,
    reads: u64,
    /// Of all slices of the second that it ends.
    latency: Option<Latency>,
}

impl Tally {
    fn merge(&mut self, other: Self) {
        self.operations += other.operations;
        self.reads += other.reads;
        match (&mut self.latency, other.latency) {
            (Some(all), Some(latency)) => all.merge(&latency),
            (none @ None, latency) => *none = latency,
            (Some(_), None) => {}
        }
    }
}

/// The tally of one slice, from one job. It has no more of earlier ones.
#[derive(Debug)]
struct HandedOver {
    job: u16,
    slice: u32,
    tally: Tally,
}

/// Counts the requests of one job.
#[derive(Debug)]
pub(crate) struct Counter {
    job: u16,
    /// The number of the slice that is being counted, from 0.
    slice: u32,
    operations: u64,
    reads: u64,
    /// Of the second that the slice belongs to.
    latency: Latency,
    cuts: Arc<[Cut]>,
    out: Sender<HandedOver>,
}

impl Counter {
    /// From now on requests belong to this slice; numbers never fall.
    pub(crate) fn enter(&mut self, slice: u32) {
        if slice == self.slice {
            return;
        }
        let left = self.cuts.get(index(self.slice)..index(slice)).unwrap_or_default();
        let second_is_over = left.iter().any(|cut| cut.ends_second);
        let latency = second_is_over.then(|| std::mem::take(&mut self.latency));
        self.hand_over(latency);
        self.slice = slice;
    }

    pub(crate) fn count(&mut self, is_read: bool, latency: Duration) {
        self.operations += 1;
        self.reads += u64::from(is_read);
        self.latency.record(latency);
    }

    /// The job counts no more.
    pub(crate) fn finish(mut self) {
        let latency = std::mem::take(&mut self.latency);
        self.hand_over(Some(latency));
    }

    fn hand_over(&mut self, latency: Option<Latency>) {
        let (operations, reads) = (self.operations, self.reads);
        (self.operations, self.reads) = (0, 0);
        let tally = Tally { operations, reads, latency };
        let handed = HandedOver { job: self.job, slice: self.slice, tally };
        // Nobody listens once the run is given up, and then the figures are of no use.
        self.out.send(handed).unwrap_or_default();
    }
}

/// A part of the window that is over.
#[derive(Debug, PartialEq)]
pub(crate) enum WindowPart {
    Second(Interval),
    Fifth(Fifth),
}

/// Adds up what the jobs hand over.
#[derive(Debug)]
pub(crate) struct Collector {
    from_jobs: Receiver<HandedOver>,
    /// Per job: the first slice that it has not handed over.
    missing: Vec<u32>,
    /// The bytes of one request.
    block: u64,
    cuts: Arc<[Cut]>,
    /// Those that began and are not passed; the first has the number `passed`.
    open: VecDeque<Tally>,
    passed: u32,
    /// The true ends of the slices that are over; first the opening of the window.
    ends: Vec<Instant>,
    /// The second and the fifth that the next slice belongs to.
    second: Interval,
    fifth: Fifth,
    /// What is over and was not given out.
    told: VecDeque<WindowPart>,
    sum: Sample,
}

impl Collector {
    /// A collector for so many jobs, with a counter for each.
    pub(crate) fn new(jobs: u16, block: u32, cuts: Vec<Cut>) -> (Self, Vec<Counter>) {
        let (out, from_jobs) = channel();
        let cuts: Arc<[Cut]> = cuts.into();
        let counter = |job| Counter {
            job,
            slice: 0,
            operations: 0,
            reads: 0,
            latency: Latency::default(),
            cuts: Arc::clone(&cuts),
            out: out.clone(),
        };
        let counters = (0..jobs).map(counter).collect();
        let collector = Self {
            from_jobs,
            missing: vec![0; usize::from(jobs)],
            block: u64::from(block),
            cuts,
            open: VecDeque::new(),
            passed: 0,
            ends: Vec::new(),
            second: empty(1),
            fifth: Fifth::default(),
            told: VecDeque::new(),
            sum: Sample::default(),
        };
        (collector, counters)
    }

    /// The window opens at the first call, a slice ends at every other.
    pub(crate) fn mark(&mut self, now: Instant) {
        self.ends.push(now);
    }

    /// The next second or fifth whose slices all jobs have handed over.
    pub(crate) fn next(&mut self) -> Option<WindowPart> {
        while let Ok(handed) = self.from_jobs.try_recv() {
            self.add(handed);
        }
        while self.missing.iter().all(|&missing| missing > self.passed) && self.pass() {}
        self.told.pop_front()
    }

    /// The next second or fifth when all jobs have ended.
    pub(crate) fn rest(&mut self) -> Option<WindowPart> {
        self.missing.fill(u32::MAX);
        self.next()
    }

    /// All seconds told so far.
    pub(crate) fn into_sample(self) -> Sample {
        self.sum
    }

    fn add(&mut self, HandedOver { job, slice, tally }: HandedOver) {
        let missing = &mut self.missing[usize::from(job)];
        *missing = (*missing).max(slice + 1);
        let index = index(slice - self.passed);
        while self.open.len() <= index {
            self.open.push_back(Tally::default());
        }
        self.open[index].merge(tally);
    }

    /// Puts the next slice into its second and its fifth; false if it is not over.
    fn pass(&mut self) -> bool {
        let index = index(self.passed);
        let Some(&[opened, closed]) = self.ends.get(index..index + 2) else { return false };
        let Some(cut) = self.cuts.get(index).copied() else { return false };
        let Tally { operations, reads, latency } = self.open.pop_front().unwrap_or_default();
        let elapsed = closed - opened;
        self.passed += 1;
        self.fifth.operations += operations;
        self.fifth.elapsed += elapsed;
        self.second.operations += operations;
        self.second.reads += reads;
        self.second.bytes += operations * self.block;
        self.second.elapsed += elapsed;
        if let Some(latency) = latency {
            self.second.latency.merge(&latency);
        }
        if cut.ends_fifth {
            self.told.push_back(WindowPart::Fifth(std::mem::take(&mut self.fifth)));
        }
        if cut.ends_second {
            let next = empty(self.second.second + 1);
            let second = std::mem::replace(&mut self.second, next);
            self.sum.operations += second.operations;
            self.sum.bytes += second.bytes;
            self.sum.elapsed += second.elapsed;
            self.sum.latency.merge(&second.latency);
            self.told.push_back(WindowPart::Second(second));
        }
        true
    }
}

/// A second in which nothing was counted yet.
fn empty(second: u32) -> Interval {
    Interval { second, ..Interval::default() }
}

fn index(number: u32) -> usize {
    usize::try_from(number).expect("a u32 fits usize")
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
            let found: Vec<_> = seconds(Duration::from_millis(runtime)).collect();
            assert_eq!(found, milliseconds(ends), "{runtime} ms");
        }
    }

    #[test]
    fn slices_end_with_seconds_and_fifths() {
        for (runtime, expected) in [
            (0, "0s"),
            (100, "20f 40f 60f 80f 100sf"),
            (1500, "300f 600f 900f 1000s 1200f 1500sf"),
            (5000, "1000sf 2000sf 3000sf 4000sf 5000sf"),
        ] {
            let cut = |cut: &Cut| {
                let second = if cut.ends_second { "s" } else { "" };
                let fifth = if cut.ends_fifth { "f" } else { "" };
                format!("{}{second}{fifth}", cut.at.as_millis())
            };
            let all = cuts(Duration::from_millis(runtime));
            let found: Vec<_> = all.iter().map(cut).collect();
            assert_eq!(found.join(" "), expected);
        }
    }

    /// A collector and counters of a window with these cuts, each of which came when it should.
    fn with_cuts(jobs: u16, cuts: Vec<Cut>) -> (Collector, Vec<Counter>) {
        let opened = clock::now();
        let ends: Vec<_> = cuts.iter().map(|cut| opened + cut.at).collect();
        let (mut collector, counters) = Collector::new(jobs, 512, cuts);
        collector.mark(opened);
        ends.into_iter().for_each(|end| collector.mark(end));
        (collector, counters)
    }

    fn only_seconds(all: &[u64]) -> Vec<Cut> {
        let cut = |at| Cut { at, ends_second: true, ends_fifth: false };
        milliseconds(all).into_iter().map(cut).collect()
    }

    #[track_caller]
    fn second(told: Option<WindowPart>) -> Interval {
        match told {
            Some(WindowPart::Second(interval)) => interval,
            other => panic!("{other:?} is no second"),
        }
    }

    #[test]
    fn a_second_is_told_when_all_jobs_have_left_it() {
        let (mut collector, mut counters) = with_cuts(2, only_seconds(&[1000, 2100, 3100]));
        let latency = Duration::from_micros(100);
        let mut other = counters.pop().unwrap();
        let mut first = counters.pop().unwrap();
        first.count(true, latency);
        first.count(false, latency);
        first.enter(1);
        assert_eq!(collector.next(), None, "the second job is in the first second still");
        other.count(true, latency);
        other.enter(2);
        let told = second(collector.next());
        assert_eq!((told.second, told.operations, told.reads, told.bytes), (1, 3, 2, 1536));
        assert_eq!((told.elapsed, told.latency.count()), (Duration::from_secs(1), 3));
        assert_eq!(collector.next(), None, "the first job may count more of the next second");
        first.count(true, latency);
        first.finish();
        other.count(true, latency);
        other.finish();
        let rest: Vec<_> = std::iter::from_fn(|| collector.rest()).collect();
        let rest: Vec<_> = rest.into_iter().map(|told| second(Some(told))).collect();
        let counts: Vec<_> = rest.iter().map(|it| (it.second, it.operations)).collect();
        assert_eq!(counts, [(2, 1), (3, 1)]);
        let sum = collector.into_sample();
        assert_eq!((sum.operations, sum.bytes, sum.latency.count()), (5, 2560, 5));
        assert_eq!(sum.elapsed, Duration::from_millis(3100));
    }

    #[test]
    fn seconds_without_requests_are_told_too() {
        let (mut collector, counters) = with_cuts(1, only_seconds(&[1000, 2000]));
        counters.into_iter().for_each(Counter::finish);
        let all: Vec<_> = std::iter::from_fn(|| collector.rest()).collect();
        assert_eq!(all.len(), 2);
        assert!(all.into_iter().all(|told| second(Some(told)).operations == 0));
    }

    #[test]
    fn fifths_and_seconds_are_told_of_the_same_requests() {
        let (mut collector, counters) = with_cuts(2, cuts(Duration::from_millis(1500)));
        for (job, mut counter) in counters.into_iter().enumerate() {
            for slice in 0..6 {
                // The second job sleeps through the end of the first second.
                if job == 0 || ![3, 4].contains(&slice) {
                    counter.enter(slice);
                }
                for _ in 0..=slice {
                    counter.count(slice == 3, Duration::from_micros(100));
                }
            }
            counter.finish();
        }
        let (mut seconds, mut fifths) = (Vec::new(), Vec::new());
        while let Some(told) = collector.rest() {
            match told {
                WindowPart::Second(it) => {
                    let length = it.elapsed.as_millis();
                    seconds.push((length, it.operations, it.reads, it.latency.count()));
                }
                WindowPart::Fifth(it) => fifths.push((it.elapsed.as_millis(), it.operations)),
            }
        }
        // The slices of the first job: 1 2 3 4 | 5 6, of the second: 1 2 3+4+5 0 | 0 6.
        assert_eq!(seconds, [(1000, 25, 8, 25), (500, 17, 0, 17)]);
        assert_eq!(fifths, [(300, 2), (300, 4), (300, 15), (300, 9), (300, 12)]);
        assert_eq!(collector.into_sample().operations, 42);
    }
}
