//! What a source has done, for whoever watches it: requests, bytes, errors, time, latency.
//!
//! Where it stands in the life of a request: after it. A source counts for itself and shows the sums after a few turns,
//! and when it may rest, leaves or stops.
//!
//! Invariants: the sums are shown together, but not at one moment; what they lack is done by at most [`TURNS_UNSHOWN_MAX`]
//! turns, and nothing while the iothread sleeps. What is shown only grows, but for `in_flight`.
//! Threads: one writer, the source where it is served; anybody reads.
//! Limits: see [`SourceGauges`] for what is sampled and how exact it is.
//!
//! From these a watcher has the wait share of a source in a window, the part of the time requests spend here in which
//! they wait because the iothread serves others: the increase of `take_wait_ns` and `answer_wait_ns` by that of
//! `open_ns` and `take_wait_ns`. An iothread of its own would take at most that much away.

use std::num::NonZeroU64;
use std::time::Duration;

use block::{Gauge, GaugeWriter, Gauges, nanoseconds};

use crate::Counters;
use crate::open_requests::RequestKind;

/// How many turns there may be that the gauges do not show. A turn beside other sources may have two requests, and
/// showing it would cost more than a tenth of them.
const TURNS_UNSHOWN_MAX: u32 = 8;

/// What is seen in one turn or round of so many stands for all of them.
const SAMPLED: u64 = Sampler::EVERY as u64;

/// How many octaves of time are told apart, from one tick on.
const OCTAVES: usize = 32;
/// In how many parts an octave is cut.
const PARTS: usize = 4;
pub(crate) const BUCKETS: usize = OCTAVES * PARTS;

/// The unit of latencies: 256 ns, so that 2³² of them, as far as they are told apart, are 18 minutes.
const TICK_SHIFT: u32 = 8;

/// The statistics of one source (a ring): requests, bytes, errors, latency, since it was made.
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
    /// Requests taken and not answered yet.
    pub in_flight: Gauge,
    /// How often it went to another iothread.
    pub moves: Gauge,
    /// Nanoseconds in which nothing was taken because it was on its way, in all moves.
    pub move_ns: Gauge,
    /// Turns that took or answered something.
    pub turns: Gauge,
    /// Those that ended though there was more.
    pub turns_cut: Gauge,
    /// Nanoseconds in turns, from every 64th of them: a sum over few turns may be far off.
    pub turn_ns: Gauge,
    /// Nanoseconds that requests were open, from when they were taken until they were answered, summed over all of them, also
    /// those that are open still: by Little's law its growth is how many are open on average. Measured for the requests
    /// that are in `latency`, and weighted as they are. Up to when the clock was looked at last: a source in which nothing
    /// happens has to be brought up to date.
    pub open_ns: Gauge,
    /// Nanoseconds that new requests waited for a turn while the iothread served others, summed over all of them. From
    /// one round in 64, with requests taken to come evenly.
    pub take_wait_ns: Gauge,
    /// The same of requests that were carried out and waited for a turn to be answered in.
    pub answer_wait_ns: Gauge,
    /// How long requests took.
    pub latency: LatencyHistograms,
}

impl SourceGauges {
    /// What was answered.
    pub fn counters(&self) -> Counters {
        Counters {
            reads: self.reads.get(),
            writes: self.writes.get(),
            flushes: self.flushes.get(),
            discards: self.discards.get(),
            write_zeroes: self.write_zeroes.get(),
            errors: self.errors.get(),
            read_bytes: self.read_bytes.get(),
            written_bytes: self.written_bytes.get(),
        }
    }

    /// Requests of all kinds that were answered.
    pub fn requests(&self) -> u64 {
        let kinds = [&self.reads, &self.writes, &self.flushes, &self.discards, &self.write_zeroes];
        kinds.map(Gauge::get).iter().sum()
    }

    /// Bytes of reads and writes that were answered without an error.
    pub fn bytes(&self) -> u64 {
        self.read_bytes.get() + self.written_bytes.get()
    }
}

/// How long requests took, for each kind of them. Each has memory of its own: all together would be made on the stack of the
/// thread that serves a client, and stay there.
#[derive(Debug, Default)]
pub struct LatencyHistograms([Box<LatencyHistogram>; RequestKind::ALL.len()]);

impl LatencyHistograms {
    /// Of the requests of one kind.
    pub fn of(&self, kind: RequestKind) -> &LatencyHistogram {
        &self.0[kind as usize]
    }

    /// Of all kinds together: see [`LatencyHistogram::buckets`].
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, Duration, u64)> {
        non_empty(|place| self.0.iter().map(|kind| kind.0[place].get()).sum())
    }
}

/// Histogram of request latencies, from when requests were taken until their answers were ready.
///
/// A request that left for the kernel, or is held, counts from when its batch was submitted: too short by the time of
/// that, some microseconds. Of those that are carried out at once, the requests of about one turn in 64 are timed, and each
/// counts for the turns since the one before that was timed. A bucket is at most a quarter as wide as what is in it is
/// long; the last one has all that took longer than 18 minutes.
#[derive(Debug)]
pub struct LatencyHistogram([Gauge; BUCKETS]);

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Gauge::default()))
    }
}

impl LatencyHistogram {
    /// The requests that took at least the first and less than the second, for all that are not empty, in order.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, Duration, u64)> {
        non_empty(|place| self.0[place].get())
    }

    /// How many there are in each bucket, in order.
    pub(crate) fn counts(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(Gauge::get)
    }
}

/// The buckets that are not empty, by what is in each place.
fn non_empty(count: impl Fn(usize) -> u64) -> impl Iterator<Item = (Duration, Duration, u64)> {
    (0..BUCKETS).filter_map(move |place| {
        let count = count(place);
        (count > 0).then(|| (edge(place), edge(place + 1), count))
    })
}

/// When the bucket begins.
pub(crate) fn edge(place: usize) -> Duration {
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

/// A time in units of 256 ns. Never 0, so that none takes no more room than one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticks(NonZeroU64);

impl Ticks {
    /// That long after a beginning that is always the same.
    pub(crate) fn after(passed: Duration) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanoseconds(passed) >> TICK_SHIFT))
    }

    pub(crate) fn get(self) -> u64 {
        self.0.get()
    }
}

/// So many ticks in nanoseconds.
fn ticks_ns(ticks: u64) -> u64 {
    ticks.saturating_mul(1 << TICK_SHIFT)
}

/// Picks about one event in [`Sampler::EVERY`], at intervals that vary, so that what comes at regular intervals is not
/// always or never picked.
#[derive(Debug)]
pub struct Sampler {
    until_next: u32,
    /// How many there are from one that is picked to the next.
    interval: u32,
    /// For how many the one that was picked last stands.
    weight: u32,
    jitter: u32,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { until_next: 1, interval: 1, weight: 1, jitter: 0x9e37_79b9 }
    }
}

impl Sampler {
    /// How many events each picked one stands for.
    pub const EVERY: u32 = 64;

    /// Whether this event is picked; the first one is.
    pub fn picks(&mut self) -> bool {
        self.until_next -= 1;
        if self.until_next > 0 {
            return false;
        }
        // xorshift
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 17;
        self.jitter ^= self.jitter << 5;
        self.weight = self.interval;
        self.interval = Self::EVERY / 2 + 1 + self.jitter % Self::EVERY;
        self.until_next = self.interval;
        true
    }

    /// For how many events the one that was picked last stands: those since the one before it, and itself.
    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }
}

/// How many requests a timed one stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleWeight {
    /// Itself: all like it are timed.
    One,
    /// Those of the turns since the one before that was timed.
    Sampled,
}

/// Requests that are open and have a time at which they began.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimedRequests {
    /// How many there are.
    pub(crate) count: u64,
    /// When they began, summed over all of them. Wraps around.
    begun: u64,
    /// What the clock said when it was looked at last.
    latest: u64,
}

impl TimedRequests {
    /// The clock was looked at.
    pub(crate) fn see(&mut self, now: Ticks) {
        self.latest = self.latest.max(now.get());
    }

    /// There is one more, which began then.
    pub(crate) fn enter(&mut self, begun: Ticks) {
        self.count += 1;
        self.begun = self.begun.wrapping_add(begun.get());
    }

    /// One of them that began then is answered.
    pub(crate) fn leave(&mut self, begun: Ticks) {
        self.count -= 1;
        self.begun = self.begun.wrapping_sub(begun.get());
    }

    /// How long they have been open by then, summed over all of them.
    fn ticks(self) -> u64 {
        self.count.wrapping_mul(self.latest).wrapping_sub(self.begun)
    }
}

/// How many requests of a source were there when a turn began: left by the turn before, come since, carried out since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnStartCounts {
    /// New ones that the turn before it has left.
    pub(crate) left: u32,
    /// New ones that have come since.
    pub(crate) came: u32,
    /// Those that were carried out since.
    pub(crate) carried_out: u32,
}

/// Writes a source's gauges after some turns and before its iothread sleeps, and samples latencies.
#[derive(Debug)]
pub(crate) struct SourceMeter {
    writer: GaugeWriter<SourceGauges>,
    turns: Sampler,
    /// How long requests were open that are answered, summed over all of them.
    answered_ns: u64,
    /// Turns that the gauges do not show yet, and those among them that were cut.
    turns_unshown: u32,
    cut_unshown: u32,
}

impl SourceMeter {
    pub(crate) fn new() -> Self {
        Self {
            writer: GaugeWriter::default(),
            turns: Sampler::default(),
            answered_ns: 0,
            turns_unshown: 0,
            cut_unshown: 0,
        }
    }

    pub(crate) fn gauges(&self) -> Gauges<SourceGauges> {
        self.writer.gauges()
    }

    /// Whether this turn is to be timed.
    pub(crate) fn is_sampled(&mut self) -> bool {
        self.turns.picks()
    }

    /// A sampled turn took so long.
    pub(crate) fn timed(&mut self, took: Duration) {
        self.writer.add(|it| &it.turn_ns, nanoseconds(took).saturating_mul(SAMPLED));
    }

    /// It has come from another iothread, and nothing was taken for so long.
    pub(crate) fn moved(&mut self, pause: Duration) {
        self.writer.add(|it| &it.moves, 1);
        self.writer.add(|it| &it.move_ns, nanoseconds(pause));
    }

    /// In a sampled round the turn came so long after the one before it, while the iothread served others.
    pub(crate) fn waited(&mut self, time: Duration, waits: TurnStartCounts) {
        let TurnStartCounts { left, came, carried_out } = waits;
        let half = nanoseconds(time) / 2;
        let of_each = |count: u64| half.saturating_mul(count).saturating_mul(SAMPLED);
        // Those that were left have waited all the time, the others half of it.
        self.writer.add(|it| &it.take_wait_ns, of_each(2 * u64::from(left) + u64::from(came)));
        self.writer.add(|it| &it.answer_wait_ns, of_each(u64::from(carried_out)));
    }

    /// A request of that kind that began then is answered.
    pub(crate) fn answered(
        &mut self,
        kind: RequestKind,
        (begun, now): (Ticks, Ticks),
        weight: SampleWeight,
    ) {
        let ticks = now.get().saturating_sub(begun.get());
        let each = match weight {
            SampleWeight::One => 1,
            SampleWeight::Sampled => u64::from(self.turns.weight()),
        };
        let place = bucket(u32::try_from(ticks).unwrap_or(u32::MAX));
        self.writer.add(|it| &it.latency.of(kind).0[place], each);
        self.answered_ns = self.answered_ns.wrapping_add(ticks_ns(ticks).saturating_mul(each));
    }

    /// A turn is over that has taken or answered something.
    #[inline]
    pub(crate) fn turn_over(
        &mut self,
        counters: &Counters,
        (in_flight, timed): (usize, TimedRequests),
        is_cut: bool,
    ) {
        self.turns_unshown += 1;
        self.cut_unshown += u32::from(is_cut);
        if self.turns_unshown == TURNS_UNSHOWN_MAX {
            self.show(counters, (in_flight, timed));
        }
    }

    /// Shows what the turns since the last time have done, after which so many requests are open.
    pub(crate) fn show(&mut self, counters: &Counters, (in_flight, timed): (usize, TimedRequests)) {
        let turns = std::mem::take(&mut self.turns_unshown);
        if turns == 0 {
            return;
        }
        self.show_open(timed);
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
        writer.add(|it| &it.turns, u64::from(turns));
        writer.add(|it| &it.turns_cut, u64::from(std::mem::take(&mut self.cut_unshown)));
    }

    /// Shows how long requests were open, and how long those have been that are.
    pub(crate) fn show_open(&mut self, timed: TimedRequests) {
        let open_ns = self.answered_ns.wrapping_add(ticks_ns(timed.ticks()));
        self.writer.set(|it| &it.open_ns, open_ns);
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
        let mut sampler = Sampler::default();
        let sampled: Vec<usize> = (0..64_000).filter(|_| sampler.picks()).collect();
        assert!((900..1100).contains(&sampled.len()), "{}", sampled.len());
        let mut steps: Vec<usize> = sampled.windows(2).map(|pair| pair[1] - pair[0]).collect();
        steps.sort_unstable();
        steps.dedup();
        assert!(steps.len() > 32, "{steps:?}");
    }

    #[test]
    fn turns_are_shown_after_a_few_of_them_and_when_asked() {
        let mut meter = SourceMeter::new();
        let gauges = meter.gauges();
        let shown =
            || [&gauges.turns, &gauges.turns_cut, &gauges.reads, &gauges.in_flight].map(Gauge::get);
        let counters = Counters { reads: 3, ..Counters::default() };
        let open = |count| (count, TimedRequests::default());
        meter.show(&counters, open(2));
        assert_eq!(shown(), [0; 4]);
        for _ in 1..TURNS_UNSHOWN_MAX {
            meter.turn_over(&counters, open(2), true);
        }
        assert_eq!(shown(), [0; 4]);
        meter.turn_over(&counters, open(1), false);
        assert_eq!(shown(), [8, 7, 3, 1]);
        meter.turn_over(&counters, open(0), true);
        meter.show(&counters, open(0));
        assert_eq!(shown(), [9, 8, 3, 0]);
    }

    fn ticks(count: u64) -> Ticks {
        Ticks::after(Duration::from_nanos(count << TICK_SHIFT))
    }

    #[test]
    fn what_takes_longer_than_the_last_bucket_begins_is_in_it() {
        let mut meter = SourceMeter::new();
        let begun = ticks(7);
        for took in [8, 1 << 32, 1 << 40] {
            meter.answered(RequestKind::Read, (begun, ticks(7 + took)), SampleWeight::One);
        }
        // A clock that goes back is none.
        meter.answered(RequestKind::Read, (begun, ticks(6)), SampleWeight::One);
        let gauges = meter.gauges();
        let found: Vec<_> =
            gauges.latency.buckets().map(|(from, _, count)| (from, count)).collect();
        let expected = [(0, 1), (8, 1), (7 << 29, 2)];
        assert_eq!(
            found,
            expected.map(|(from, count)| { (Duration::from_nanos(from << TICK_SHIFT), count) })
        );
    }

    /// 64 turns with 1, 2 or 3 requests each, all carried out at once.
    #[test]
    fn requests_that_are_sampled_count_for_those_that_are_not() {
        let mut meter = SourceMeter::new();
        let (mut requests, mut turns) = (0, 0);
        for turn in 0_u64..64_000 {
            let is_sampled = meter.is_sampled();
            for _ in 0..=turn % 3 {
                requests += 1;
                if is_sampled {
                    let took = (ticks(turn), ticks(turn + 4));
                    meter.answered(RequestKind::Read, took, SampleWeight::Sampled);
                }
            }
            turns += u64::from(is_sampled);
            // The first one stands for itself alone.
            if turn == 0 {
                assert_eq!(meter.gauges().latency.buckets().next().map(|it| it.2), Some(1));
            }
        }
        // One of 1000 that all stay in the kernel for longer.
        let slow = requests / 1000;
        for _ in 0..slow {
            meter.answered(RequestKind::Read, (ticks(0), ticks(400)), SampleWeight::One);
        }
        let gauges = meter.gauges();
        let found: Vec<_> = gauges.latency.buckets().map(|it| it.2).collect();
        let [fast, found_slow] = found[..] else { panic!("{found:?}") };
        assert!(fast.abs_diff(requests) < requests / 20, "{fast} of {requests}, {turns} turns");
        assert_eq!(found_slow, slow);
    }

    #[test]
    fn requests_that_are_open_count_as_long_as_they_are_and_once() {
        let mut meter = SourceMeter::new();
        let gauges = meter.gauges();
        let open = |begun: &[u64], latest| TimedRequests {
            count: begun.len() as u64,
            begun: begun.iter().sum(),
            latest,
        };
        let shown = || gauges.open_ns.get() >> TICK_SHIFT;
        meter.show_open(open(&[10, 12], 20));
        assert_eq!(shown(), 10 + 8);
        meter.show_open(open(&[10, 12], 120));
        assert_eq!(shown(), 110 + 108);
        meter.answered(RequestKind::Read, (ticks(10), ticks(125)), SampleWeight::One);
        meter.show_open(open(&[12], 125));
        assert_eq!(shown(), 115 + 113);
        meter.answered(RequestKind::Read, (ticks(12), ticks(125)), SampleWeight::One);
        meter.show_open(open(&[], 125));
        assert_eq!(shown(), 115 + 113);
    }

    #[test]
    fn each_kind_has_a_histogram_and_all_have_one_together() {
        let mut meter = SourceMeter::new();
        let kinds = [RequestKind::Read, RequestKind::Write, RequestKind::Write, RequestKind::Other];
        for kind in kinds {
            meter.answered(kind, (ticks(0), ticks(2)), SampleWeight::One);
        }
        meter.answered(RequestKind::Flush, (ticks(0), ticks(3)), SampleWeight::One);
        let gauges = meter.gauges();
        let count = |kind| gauges.latency.of(kind).buckets().map(|it| it.2).sum::<u64>();
        assert_eq!(RequestKind::ALL.map(count), [1, 2, 1, 0, 0, 1]);
        let all: Vec<_> = gauges.latency.buckets().map(|(_, _, count)| count).collect();
        assert_eq!(all, [4, 1]);
    }

    #[test]
    fn new_requests_wait_half_of_the_time_and_those_that_were_left_all_of_it() {
        let mut meter = SourceMeter::new();
        let gauges = meter.gauges();
        let time = Duration::from_nanos(100);
        meter.waited(time, TurnStartCounts { left: 0, came: 3, carried_out: 5 });
        assert_eq!([&gauges.take_wait_ns, &gauges.answer_wait_ns].map(Gauge::get), [9600, 16_000]);
        meter.waited(time, TurnStartCounts { left: 1, came: 0, carried_out: 0 });
        assert_eq!([&gauges.take_wait_ns, &gauges.answer_wait_ns].map(Gauge::get), [16_000; 2]);
    }
}
