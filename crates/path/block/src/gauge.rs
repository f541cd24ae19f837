//! Numbers that one thread counts and any other reads, without a word between them.
//!
//! Where it stands in the life of a request: beside it. Whoever carries something out counts once per batch or turn;
//! control, metrics and placement read whenever they like.
//!
//! Invariants: one writer, which is a value of its own that cannot be copied, so a number that only grows is never seen to
//! shrink. Numbers of one set are not read at one moment: two of them may be a turn apart.
//! Threads: the writer belongs to one thread at a time and may travel. A set has cache lines of its own, so that
//! readers, and writers of other sets, do not slow it down.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A counter of a set, written by one thread and read by any. It wraps around.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// What it says now.
    pub fn get(&self) -> u64 {
        // Nothing else is read because of it.
        self.0.load(Ordering::Relaxed)
    }
}

/// A time as gauges count it: in nanoseconds, at most 584 years.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A value in two cache lines of its own (processors fetch them in pairs), so that neighbours are not slowed down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded<S>(S);

/// A set of numbers, as readers see it. `S` is a struct of [`Gauge`]s.
#[derive(Debug)]
pub struct Gauges<S>(Arc<CachePadded<S>>);

impl<S> Clone for Gauges<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> Deref for Gauges<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0.0
    }
}

/// The only writer of a set of gauges.
///
/// There is no second one:
/// ```compile_fail
/// # #[derive(Debug, Default)]
/// # struct Set { requests: block::Gauge }
/// let writer = block::GaugeWriter::<Set>::default();
/// let second = writer.clone();
/// ```
/// and readers cannot count:
/// ```compile_fail
/// # #[derive(Debug, Default)]
/// # struct Set { requests: block::Gauge }
/// let gauges = block::GaugeWriter::<Set>::default().gauges();
/// gauges.add(|set| &set.requests, 1);
/// ```
#[derive(Debug, Default)]
pub struct GaugeWriter<S>(Arc<CachePadded<S>>);

impl<S> Deref for GaugeWriter<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0.0
    }
}

impl<S> GaugeWriter<S> {
    /// The set, for readers.
    pub fn gauges(&self) -> Gauges<S> {
        Gauges(Arc::clone(&self.0))
    }

    /// Adds to a number.
    pub fn add(&mut self, number: impl FnOnce(&S) -> &Gauge, count: u64) {
        let Gauge(number) = number(&self.0.0);
        // Nobody else stores.
        number.store(number.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Says what a number is now.
    pub fn set(&mut self, number: impl FnOnce(&S) -> &Gauge, value: u64) {
        let Gauge(number) = number(&self.0.0);
        number.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Set {
        first: Gauge,
        second: Gauge,
    }

    #[test]
    fn readers_see_what_was_counted_and_never_less_than_before() {
        const COUNTS: u64 = 10_000;
        let mut writer = GaugeWriter::<Set>::default();
        let gauges = writer.gauges();
        let reader = std::thread::spawn(move || {
            let mut last = 0;
            while last < COUNTS {
                let now = gauges.first.get();
                assert!(now >= last, "{now} after {last}");
                last = now;
            }
            gauges
        });
        for _ in 0..COUNTS {
            writer.add(|set| &set.first, 1);
        }
        writer.set(|set| &set.second, 7);
        let gauges = reader.join().unwrap();
        assert_eq!((gauges.first.get(), gauges.second.get()), (COUNTS, 7));
    }

    #[test]
    fn a_set_has_its_cache_lines_to_itself() {
        assert_eq!(align_of::<CachePadded<Set>>(), 128);
        assert_eq!(size_of::<CachePadded<Set>>() % 128, 0);
    }
}
