//! What a source has done, for whoever watches it: requests, bytes, errors, time, latency.
//!
//! Where it stands in the life of a request: after it. A source counts for itself and shows the sums at the end of a turn
//! that has done something.
//!
//! Invariants: the sums of one turn are shown together, but not at one moment. What is shown only grows, but for
//! `in_flight`.
//! Threads: one writer, the source where it is served; anybody reads.
//! Limits: see [`SourceGauges`] for what is sampled and how exact it is.

use std::time::Duration;

use block::{Gauge, GaugeWriter, Gauges};

use crate::Counters;

/// One turn in about so many is timed, and its requests are.
const SAMPLE_EVERY: u32 = 64;

/// How many octaves of time are told apart, from [`TICK`] on.
const OCTAVES: usize = 32;
/// In how many parts an octave is cut.
const PARTS: usize = 4;
const BUCKETS: usize = OCTAVES * PARTS;

/// The unit of latencies: 256 ns, so that 2³² of them are 18 minutes.
const TICK_SHIFT: u32 = 8;

/// What one source has done since it was made, wherever it was served.
#[derive(Debug, Default)]
pub struct SourceGauges {
    /// Reads that were answered.
    pub reads: Gauge,
    /// Writes that were answered.
    pub writes: Gauge,
    /// Flushes that were answered.
    pub flushes: Gauge,
    /// Discards that were answered.
    pub discards: Gauge,
    /// Write-zeroes that were answered.
    pub write_zeroes: Gauge,
    /// Requests that were answered with an error, whatever their kind.
    pub errors: Gauge,
    /// Bytes of reads that were answered without an error.
    pub read_bytes: Gauge,
    /// Bytes of writes that were answered without an error.
    pub written_bytes: Gauge,
    /// Requests taken and not answered yet, at the end of the last turn.
    pub in_flight: Gauge,
    /// Turns that took or answered something.
    pub turns: Gauge,
    /// Those that ended though there was more.
    pub turns_cut: Gauge,
    /// Nanoseconds in turns, from every 64th of them: a sum over few turns may be far off.
    pub turn_ns: Gauge,
    /// How long requests took.
    pub latency: Latency,
}

/// A histogram of how long requests took, from when they were taken until their answer was ready to be shown.
///
/// A request that left for the kernel, or is held, counts from when its batch was submitted: too short by the time of
/// that, some microseconds. Of those that are carried out at once, only the requests of one turn in 64 are in it. A
/// bucket is at most a quarter as wide as what is in it is long.
#[derive(Debug)]
pub struct Latency([Gauge; BUCKETS]);

impl Default for Latency {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Gauge::default()))
    }
}

impl Latency {
    /// The requests that took at least the first and less than the second, for all that are not empty, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, Duration, u64)> {
        self.0.iter().enumerate().filter_map(|(place, count)| {
            let count = count.get();
            (count > 0).then(|| (edge(place), edge(place + 1), count))
        })
    }
}

/// When the bucket begins.
fn edge(place: usize) -> Duration {
    let (octave, part) = (place / PARTS, (place % PARTS) as u64);
    let ticks = match octave {
        0 => part,
        _ => (PARTS as u64 + part) << (octave - 1),
    };
    Duration::from_nanos(ticks << TICK_SHIFT)
}

/// The bucket for what took so many ticks.
fn bucket(ticks: u32) -> usize {
    match ticks.checked_ilog2() {
        None | Some(0 | 1) => ticks as usize,
        Some(log) => (log as usize - 1) * PARTS + (ticks >> (log - 2)) as usize - PARTS,
    }
}

/// A time in ticks. It wraps around after 18 minutes: what takes longer counts as shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticks(u32);

impl Ticks {
    /// That long after a beginning that is always the same.
    #[expect(clippy::cast_possible_truncation, reason = "it wraps around")]
    pub(crate) fn after(passed: Duration) -> Self {
        Self((passed.as_nanos() >> TICK_SHIFT) as u32)
    }
}

/// Keeps a source's gauges.
#[derive(Debug)]
pub(crate) struct Meter {
    writer: GaugeWriter<SourceGauges>,
    shown: Counters,
    /// Turns until one is timed.
    until_sample: u32,
    /// Says by how much that varies, so that what comes at regular intervals is not always or never seen.
    jitter: u32,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let writer = GaugeWriter::default();
        Self { writer, shown: Counters::default(), until_sample: 1, jitter: 0x9e37_79b9 }
    }

    pub(crate) fn gauges(&self) -> Gauges<SourceGauges> {
        self.writer.gauges()
    }

    /// Whether this turn is to be timed.
    pub(crate) fn is_sampled(&mut self) -> bool {
        self.until_sample -= 1;
        if self.until_sample > 0 {
            return false;
        }
        // xorshift
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 17;
        self.jitter ^= self.jitter << 5;
        self.until_sample = SAMPLE_EVERY / 2 + 1 + self.jitter % SAMPLE_EVERY;
        true
    }

    /// A sampled turn took so long.
    pub(crate) fn timed(&mut self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.writer.add(|it| &it.turn_ns, took.saturating_mul(u64::from(SAMPLE_EVERY)));
    }

    /// A request that began then is answered.
    pub(crate) fn answered(&mut self, begun: Ticks, now: Ticks) {
        let bucket = bucket(now.0.wrapping_sub(begun.0));
        self.writer.add(|it| &it.latency.0[bucket], 1);
    }

    /// A turn is over, after which so many requests are open.
    pub(crate) fn show(&mut self, counters: &Counters, in_flight: usize, is_cut: bool) {
        if self.shown == *counters && self.writer.in_flight.get() == in_flight as u64 {
            return;
        }
        self.shown = *counters;
        let writer = &mut self.writer;
        writer.set(|it| &it.reads, counters.reads);
        writer.set(|it| &it.writes, counters.writes);
        writer.set(|it| &it.flushes, counters.flushes);
        writer.set(|it| &it.discards, counters.discards);
        writer.set(|it| &it.write_zeroes, counters.write_zeroes);
        writer.set(|it| &it.errors, counters.errors);
        writer.set(|it| &it.read_bytes, counters.read_bytes);
        writer.set(|it| &it.written_bytes, counters.written_bytes);
        writer.set(|it| &it.in_flight, in_flight as u64);
        writer.add(|it| &it.turns, 1);
        writer.add(|it| &it.turns_cut, u64::from(is_cut));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_are_at_most_a_quarter_wide() {
        let mut last = 0;
        for ticks in (0..5000).chain((1..20).map(|shift| (1 << (shift + 12)) - 1)) {
            let place = bucket(ticks);
            assert!(place >= last || ticks < 5000, "{ticks}");
            last = place;
            let time = Duration::from_nanos(u64::from(ticks) << TICK_SHIFT);
            let (from, to) = (edge(place), edge(place + 1));
            assert!(from <= time && time < to, "{ticks} in {place}: {from:?} to {to:?}");
            assert!(ticks < 4 || (to - from) * 4 <= from, "{from:?} to {to:?}");
        }
        assert!(bucket(u32::MAX) < BUCKETS);
    }

    #[test]
    fn one_turn_in_64_is_timed_and_not_every_64th() {
        let mut meter = Meter::new();
        let sampled: Vec<usize> = (0..64_000).filter(|_| meter.is_sampled()).collect();
        assert!((900..1100).contains(&sampled.len()), "{}", sampled.len());
        let mut steps: Vec<usize> = sampled.windows(2).map(|pair| pair[1] - pair[0]).collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() > 32, "{steps:?}");
    }

    #[test]
    fn a_turn_that_did_nothing_is_none() {
        let mut meter = Meter::new();
        let gauges = meter.gauges();
        let mut counters = Counters::default();
        meter.show(&counters, 0, false);
        assert_eq!(gauges.turns.get(), 0);
        counters.reads = 3;
        meter.show(&counters, 2, true);
        meter.show(&counters, 2, false);
        let found = [&gauges.turns, &gauges.turns_cut, &gauges.reads, &gauges.in_flight];
        assert_eq!(found.map(Gauge::get), [1, 1, 3, 2]);
    }

    #[test]
    fn a_time_that_wraps_around_is_still_a_difference() {
        let mut meter = Meter::new();
        meter.answered(Ticks(u32::MAX - 1), Ticks(6));
        let gauges = meter.gauges();
        let found: Vec<_> = gauges.latency.buckets().collect();
        let ticks = |count: u64| Duration::from_nanos(count << TICK_SHIFT);
        assert_eq!(found, [(ticks(8), ticks(10), 1)]);
    }
}
