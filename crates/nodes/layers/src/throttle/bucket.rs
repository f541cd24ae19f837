//! One limit that all iothreads share: a single number that says up to when it is spent.
//!
//! Where it stands in the life of a request: a lane that has used its lease up reserves the next one
//! here. The number is the *virtual time* of the generic cell rate algorithm: each reservation moves it
//! by what is reserved divided by the rate, and may be used once the time before the move, less a
//! tolerance, has come. So reservations of the future queue up behind each other by themselves.
//!
//! Invariants: what was reserved from time a to time b is at most the rate times b − a, and the
//! tolerance, and one reservation for each lane.
//! Threads: any; every step is one atomic exchange, and relaxed, because nothing but the number itself is
//! told by it. Limits: times end at [`Nanos::MAX`], 146 years.

use super::limits::{Limit, LimitKind};
use crate::sync::{AtomicU64, Ordering};

const SECOND: f64 = 1e9;

/// What a lane reserves at least, so that it seldom comes here: 1 ms of the rate, or one unit. While several
/// disks wait it is also the most, so that they take turns of equal size.
const QUANTUM: u64 = 1_000_000;

/// The most that one of several waiting disks takes to catch up: 10 ms of the rate.
const CATCH_UP_MAX: u64 = 10_000_000;

/// How long a lane remembers that others reserve as well: 50 ms.
const OTHERS_REMEMBERED: u64 = 50_000_000;

/// What may be saved up in a pause, if the user allows no bursts: 20 ms.
const TOLERANCE: u64 = 20_000_000;

/// How far behind, beyond that, threads may be without losing budget while it is scarce: 100 ms. On a busy host they
/// wake up late, and the requests of a guest with a short queue cannot make up for it at once.
const LATE_MAX: u64 = 100_000_000;

/// How long a bucket counts as scarce after somebody has waited for it: 250 ms.
const SCARCE_FOR: u64 = 250_000_000;

/// The same for the rate during a burst, as in QEMU: 100 ms.
const BURST_TOLERANCE: u64 = 100_000_000;

/// How long at most a new request waits for one that has passed: 1 s. What a larger request costs is paid
/// before it passes, and what is released before it was due is not paid in full. Otherwise a guest would stand
/// still after a reboot, or its neighbours after one large discard, for as long as that takes.
const DEBT_MAX: u64 = 1_000_000_000;

/// The unit of bytes.
const TURN_BYTES: f64 = 4096.0;

/// A time in nanoseconds since its group was made, or a span of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Nanos(pub(super) u64);

impl Nanos {
    /// No time is later, no span longer.
    pub(super) const MAX: Self = Self(1 << 62);

    /// A span of that many nanoseconds, rounded up.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between zero and the largest time, which fits"
    )]
    fn at_least(nanos: f64) -> Self {
        Self(nanos.ceil().clamp(0.0, Self::MAX.as_f64()) as u64)
    }

    pub(super) fn plus(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0)).min(Self::MAX)
    }

    pub(super) fn minus(self, span: Self) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    pub(super) fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

/// What a request costs, before any rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) bytes: f64,
    /// Fractions count, where `iops-size` makes some.
    pub(super) operations: f64,
}

/// A token bucket: a rate, and up to when it is spent (generic cell rate algorithm). Alone in its cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Bucket {
    kind: LimitKind,
    nanos_per_unit: f64,
    tolerance: Nanos,
    quantum: Nanos,
    spent_until: AtomicU64,
    /// When somebody waited for it last.
    waited_at: AtomicU64,
}

/// What a lane has reserved from a bucket: how much, and from when on it may be used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reservation {
    /// How much, as a span of the rate.
    pub(super) amount: Nanos,
    /// From when on it may be used.
    pub(super) from: Nanos,
    /// For the lane's next reservation.
    pub(super) last: LastReservation,
}

/// What a lane remembers of its last reservation from a bucket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LastReservation {
    /// Up to when the bucket was spent with it.
    spent_until: Nanos,
    /// When it was last seen that others have reserved as well.
    others_at: Nanos,
}

impl LastReservation {
    /// Whether others reserve as well. One of them may be late just now, so they are remembered.
    fn others(self, now: Nanos, spent_until: Nanos) -> bool {
        spent_until != self.spent_until || now.minus(Nanos(OTHERS_REMEMBERED)) < self.others_at
    }
}

impl Bucket {
    /// The buckets of a limit: one for the long run, and one for the burst if that has a length.
    pub(super) fn of(kind: LimitKind, limit: &Limit) -> impl Iterator<Item = Self> {
        let Limit { rate, burst, burst_seconds } = *limit;
        let tolerance = if burst == 0 {
            Nanos(TOLERANCE)
        } else {
            Nanos::at_least(burst as f64 * burst_seconds as f64 / rate as f64 * SECOND)
        };
        let long_run = (rate > 0).then(|| Self::new(kind, rate, tolerance));
        let in_burst = burst > 0 && burst_seconds > 1;
        let in_burst = in_burst.then(|| Self::new(kind, burst, Nanos(BURST_TOLERANCE)));
        long_run.into_iter().chain(in_burst)
    }

    fn new(kind: LimitKind, rate: u64, tolerance: Nanos) -> Self {
        let nanos_per_unit = SECOND / rate as f64;
        let turn = if kind.counts_bytes() { TURN_BYTES } else { 1.0 };
        let quantum = Nanos(QUANTUM).max(Nanos::at_least(nanos_per_unit * turn));
        let (spent_until, waited_at) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { kind, nanos_per_unit, tolerance, quantum, spent_until, waited_at }
    }

    pub(super) fn kind(&self) -> LimitKind {
        self.kind
    }

    /// What a request takes of this rate, in nanoseconds and fractions of them.
    pub(super) fn price(&self, cost: Cost) -> f64 {
        let units = if self.kind.counts_bytes() { cost.bytes } else { cost.operations };
        units * self.nanos_per_unit
    }

    /// From when on a reservation made now could be used.
    pub(super) fn opens(&self) -> Nanos {
        Nanos(self.spent_until.load(Ordering::Relaxed)).minus(self.tolerance)
    }

    /// Whether more is reserved than there is, and not only by the caller.
    pub(super) fn is_contended(&self, now: Nanos, last: LastReservation) -> bool {
        let spent_until = Nanos(self.spent_until.load(Ordering::Relaxed));
        spent_until.minus(self.tolerance) > now && last.others(now, spent_until)
    }

    /// Reserves something towards `need` nanoseconds: all of it or more, unless others wait as well or it is
    /// more than [`DEBT_MAX`].
    pub(super) fn reserve(&self, now: Nanos, need: f64, last: LastReservation) -> Reservation {
        let need = Nanos::at_least(need);
        let kept_since = self.kept_since(now);
        let mut seen = self.spent_until.load(Ordering::Relaxed);
        loop {
            let before = Nanos(seen);
            let amount = if before > kept_since && last.others(now, before) {
                self.share(now, before)
            } else {
                need.min(Nanos(DEBT_MAX)).max(self.quantum)
            };
            let spent_until = before.max(kept_since).plus(amount);
            match self.exchange(seen, spent_until) {
                Ok(()) => {
                    let from = before.minus(self.tolerance);
                    if from > now {
                        self.waited_at.store(from.0, Ordering::Relaxed);
                    }
                    let others_at = if before == last.spent_until { last.others_at } else { now };
                    return Reservation {
                        amount,
                        from,
                        last: LastReservation { spent_until, others_at },
                    };
                }
                Err(changed) => seen = changed,
            }
        }
    }

    /// What was not spent since then is not lost, besides the tolerance.
    fn kept_since(&self, now: Nanos) -> Nanos {
        let waited_at = Nanos(self.waited_at.load(Ordering::Relaxed));
        let is_scarce = waited_at != Nanos(0) && now < waited_at.plus(Nanos(SCARCE_FOR));
        if is_scarce { now.minus(Nanos(LATE_MAX)) } else { now }
    }

    /// What one of several waiting disks may reserve: one turn. More only to catch up, if threads were late, and not
    /// all of it: others were as well.
    fn share(&self, now: Nanos, before: Nanos) -> Nanos {
        let open = now.minus(before.minus(self.tolerance));
        self.quantum.max(Nanos(open.0 / 2).min(Nanos(CATCH_UP_MAX)))
    }

    /// Takes what a request costs that did not wait for its time. What comes next has to wait for
    /// that, but not longer than [`DEBT_MAX`].
    pub(super) fn charge(&self, now: Nanos, price: f64) {
        let price = Nanos::at_least(price);
        let latest = now.plus(self.tolerance).plus(Nanos(DEBT_MAX));
        self.update(|before| before.max(now).plus(price).min(latest).max(before));
    }

    /// Gives back what was reserved and will not be used.
    pub(super) fn refund(&self, amount: Nanos) {
        self.update(|before| before.minus(amount));
    }

    fn update(&self, change: impl Fn(Nanos) -> Nanos) {
        let mut seen = self.spent_until.load(Ordering::Relaxed);
        while let Err(changed) = self.exchange(seen, change(Nanos(seen))) {
            seen = changed;
        }
    }

    fn exchange(&self, seen: u64, next: Nanos) -> Result<(), u64> {
        let order = Ordering::Relaxed;
        self.spent_until.compare_exchange_weak(seen, next.0, order, order).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn many_threads_reserve_what_there_is_and_no_more() {
        const THREADS: u64 = 4;
        const EACH: u64 = 50_000;
        let limit = Limit { rate: 1_000_000, ..Limit::default() };
        let bucket = Bucket::of(LimitKind::IopsTotal, &limit).next().unwrap();
        let start = Barrier::new(4);
        let reserve = || {
            let mut last = LastReservation::default();
            start.wait();
            let mut sum = 0;
            for turn in 0..EACH {
                // Time stands still, so nothing comes back by itself.
                let reserved = bucket.reserve(Nanos(1), 5e3, last);
                last = reserved.last;
                sum += reserved.amount.0;
                if turn % 8 == 0 {
                    bucket.refund(reserved.amount);
                    sum -= reserved.amount.0;
                }
                bucket.charge(Nanos(1), 100.0);
            }
            sum
        };
        let reserved: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(reserve)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let spent = bucket.spent_until.load(Ordering::Relaxed) - 1;
        // Charges end where the debt is as large as it may become.
        assert!(
            spent >= reserved && spent <= reserved + THREADS * EACH * 100,
            "{spent} {reserved}"
        );
    }
}

/// `RUSTFLAGS="--cfg loom" cargo test -p layers --release --lib loom_`.
#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn loom_nothing_is_reserved_twice_or_forgotten() {
        loom::model(|| {
            let limit = Limit { rate: 1000, ..Limit::default() };
            let bucket = Bucket::of(LimitKind::IopsTotal, &limit).next().expect("it has a rate");
            let bucket = Arc::new(bucket);
            let others = Arc::clone(&bucket);
            let other = loom::thread::spawn(move || {
                let reserved = others.reserve(Nanos(1), 3e6, LastReservation::default());
                others.charge(Nanos(1), 5e6);
                (reserved.from, reserved.amount)
            });
            let first = bucket.reserve(Nanos(1), 7e6, LastReservation::default());
            let second = bucket.reserve(Nanos(1), 7e6, first.last);
            bucket.refund(second.amount);
            let (from, amount) = other.join().expect("it does not panic");
            let spent = bucket.spent_until.load(Ordering::Relaxed);
            assert_eq!(spent, 1 + first.amount.0 + amount.0 + 5_000_000);
            // One of them was first, and found an empty bucket.
            assert!(amount >= Nanos(1_000_000), "{amount:?} from {from:?}");
        });
    }
}
