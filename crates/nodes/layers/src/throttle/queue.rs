//! One lane's queue on one way: what waits, and the lease that lets it go.
//!
//! Where it stands in the life of a request: while the lease lasts, a request is paid from it and passes,
//! without the clock and without a write to what is shared. When it is used up the lane reserves the next one,
//! and if that lies in the future, requests wait for it in the order in which they came.
//!
//! Invariants: while anything waits, [`ThrottleQueue::due`] has a time, at most [`LOOK_AGAIN`] after the last look.
//! Threads: the lane's own. Limits: what the asker has in flight.

use std::collections::VecDeque;

use block::{Answer, FailKind, Mapping};

use super::bucket::{Cost, LastReservation, Nanos};
use super::bucket_set::BucketSet;
use super::member::GroupMemberLane;

/// How long a waiting lane sleeps at most: limits may have changed since, and nobody wakes it for that.
/// 50 ms.
const LOOK_AGAIN: Nanos = Nanos(50_000_000);

/// What a queue needs to know besides its own: buckets, the lane's turn, its direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThrottleContext<'a> {
    pub(super) budget: &'a BucketSet,
    pub(super) lane: &'a GroupMemberLane,
}

/// A request that waits for its limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThrottledRequest {
    pub(super) mapping: Mapping,
    pub(super) cost: Cost,
    /// Tells which came first.
    pub(super) arrival: u64,
    /// Whether it may go before its time.
    pub(super) released: bool,
}

/// The credit that one lane has reserved from one bucket.
#[derive(Debug)]
struct Lease {
    bucket: usize,
    /// What may be used, in nanoseconds of the bucket's rate.
    credit: f64,
    /// What is reserved and may not be used yet.
    pending: Nanos,
    last: LastReservation,
}

/// One lane's queue of throttled requests in one direction (reads, writes, or both).
#[derive(Debug, Default)]
pub(super) struct ThrottleQueue {
    direction: usize,
    leases: Vec<Lease>,
    /// From when on what is pending may be used; `None` if nothing is.
    pending_from: Option<Nanos>,
    queue: VecDeque<ThrottledRequest>,
    look_at: Nanos,
}

impl ThrottleQueue {
    pub(super) fn new(direction: usize, payees: &[usize]) -> Self {
        let lease = |bucket: &usize| {
            let (pending, last) = (Nanos::default(), LastReservation::default());
            Lease { bucket: *bucket, credit: 0.0, pending, last }
        };
        Self { direction, leases: payees.iter().map(lease).collect(), ..Self::default() }
    }

    /// Whether a request may pass at once; it has paid then. Otherwise it is to be held.
    pub(super) fn admit(
        &mut self,
        cost: Cost,
        context: ThrottleContext<'_>,
        now: impl FnOnce() -> Nanos,
    ) -> bool {
        if !self.queue.is_empty() {
            return false;
        }
        if self.pay(cost, context.budget) {
            return true;
        }
        let now = now();
        match self.obtain(cost, context, now) {
            Ok(()) => true,
            Err(from) => {
                self.look_at(from, now);
                false
            }
        }
    }

    /// Puts a request behind what waits here.
    pub(super) fn hold(&mut self, request: ThrottledRequest, context: ThrottleContext<'_>) {
        if self.queue.is_empty() {
            context.lane.wait(self.direction);
        }
        self.queue.push_back(request);
    }

    /// When [`ThrottleQueue::resume`] has something to do.
    pub(super) fn due(&self) -> Option<Nanos> {
        let first = self.queue.front()?;
        Some(if first.released { Nanos::default() } else { self.look_at })
    }

    /// Moves what may go by now to `ready`.
    pub(super) fn resume(
        &mut self,
        context: ThrottleContext<'_>,
        now: Nanos,
        ready: &mut Vec<Mapping>,
    ) {
        if self.due().is_none_or(|due| due > now) {
            return;
        }
        while let Some(first) = self.queue.front() {
            let (cost, released) = (first.cost, first.released);
            if released {
                self.charge(cost, context.budget, now);
            } else if let Err(from) = self.obtain(cost, context, now) {
                self.look_at(from, now);
                return;
            }
            let first = self.queue.pop_front().expect("it was looked at");
            ready.push(Mapping { answer: Answer::Refused(FailKind::Io), ..first.mapping });
        }
        context.lane.done(self.direction);
        self.reserve_ahead(context, now);
    }

    /// Lets go what waits now, as soon as it is asked.
    pub(super) fn release(&mut self, context: ThrottleContext<'_>) {
        if self.queue.is_empty() {
            return;
        }
        for request in &mut self.queue {
            request.released = true;
        }
        self.cancel_reservation(context);
    }

    /// Takes out all that waits, and gives back what it has reserved.
    pub(super) fn empty(&mut self, context: ThrottleContext<'_>, into: &mut Vec<ThrottledRequest>) {
        self.cancel_reservation(context);
        if !self.queue.is_empty() {
            context.lane.done(self.direction);
        }
        into.extend(self.queue.drain(..));
    }

    /// Gives up the reservation that lies in the future.
    pub(super) fn cancel_reservation(&mut self, context: ThrottleContext<'_>) {
        if let Some(from) = self.pending_from.take() {
            for lease in &mut self.leases {
                context.budget.bucket(lease.bucket).refund(std::mem::take(&mut lease.pending));
            }
            context.lane.cancelled(self.direction, from);
        }
    }

    fn look_at(&mut self, from: Nanos, now: Nanos) {
        self.look_at = from.min(now.plus(LOOK_AGAIN));
    }

    /// Pays from the lease if that suffices.
    fn pay(&mut self, cost: Cost, budget: &BucketSet) -> bool {
        let price = |lease: &Lease| budget.bucket(lease.bucket).price(cost);
        if self.leases.iter().any(|lease| lease.credit < price(lease)) {
            return false;
        }
        for lease in &mut self.leases {
            lease.credit -= price(lease);
        }
        true
    }

    /// Pays, with new reservations if need be; otherwise says when to try again.
    fn obtain(
        &mut self,
        cost: Cost,
        context: ThrottleContext<'_>,
        now: Nanos,
    ) -> Result<(), Nanos> {
        while !self.pay(cost, context.budget) {
            self.grow(cost, context, now)?;
        }
        Ok(())
    }

    /// Makes the lease larger, or says from when on that may be possible. Every success brings some of
    /// what is short, and a reservation that is open now all of it or as much as is open.
    fn grow(&mut self, cost: Cost, context: ThrottleContext<'_>, now: Nanos) -> Result<(), Nanos> {
        let ThrottleContext { budget, lane } = context;
        let direction = self.direction;
        if let Some(from) = self.pending_from {
            if now < from {
                return Err(from);
            }
            self.credit();
            return Ok(());
        }
        lane.may_reserve(direction, now)?;
        // What lies in the future is reserved by one lane of the disk at a time.
        let short = self.leases.iter().filter(|lease| lease.shortage(cost, budget) > 0.0);
        let opens = short.map(|lease| budget.bucket(lease.bucket).opens()).max();
        let mut claimed = None;
        if opens.is_some_and(|opens| opens > now) {
            claimed = Some(
                lane.claim(direction, now).ok_or_else(|| GroupMemberLane::after_another(now))?,
            );
        }
        let from = self.reserve(cost, budget, now);
        if let Some(claimed) = claimed {
            lane.reserved(claimed, direction, from);
        }
        if from > now {
            return Err(from);
        }
        self.credit();
        Ok(())
    }

    /// Reserves what is short, and returns from when on all of it may be used.
    fn reserve(&mut self, cost: Cost, budget: &BucketSet, now: Nanos) -> Nanos {
        let mut from = Nanos::default();
        for lease in &mut self.leases {
            let shortage = lease.shortage(cost, budget);
            if shortage > 0.0 {
                from = from.max(lease.reserve(shortage, budget, now));
            }
        }
        self.pending_from = Some(from);
        from
    }

    /// Keeps the disk's place in the queue of the future although nothing waits just now. A guest that
    /// makes one request after the other would lose its turn otherwise whenever others wait as well.
    fn reserve_ahead(&mut self, context: ThrottleContext<'_>, now: Nanos) {
        let ThrottleContext { budget, lane } = context;
        let direction = self.direction;
        let contended = |lease: &Lease| budget.bucket(lease.bucket).is_contended(now, lease.last);
        if self.pending_from.is_some()
            || !self.leases.iter().any(contended)
            || lane.may_reserve(direction, now).is_err()
        {
            return;
        }
        if let Some(claimed) = lane.claim(direction, now) {
            let mut from = Nanos::default();
            for lease in self.leases.iter_mut().filter(|lease| contended(lease)) {
                from = from.max(lease.reserve(0.0, budget, now));
            }
            self.pending_from = Some(from);
            lane.reserved(claimed, direction, from);
        }
    }

    fn credit(&mut self) {
        self.pending_from = None;
        for lease in &mut self.leases {
            lease.credit += std::mem::take(&mut lease.pending).as_f64();
        }
    }

    /// Pays for a request that goes before its time.
    fn charge(&mut self, cost: Cost, budget: &BucketSet, now: Nanos) {
        for lease in &mut self.leases {
            let bucket = budget.bucket(lease.bucket);
            let shortage = lease.shortage(cost, budget);
            if shortage > 0.0 {
                bucket.charge(now, shortage);
                lease.credit = 0.0;
            } else {
                lease.credit = -shortage;
            }
        }
    }
}

impl Lease {
    /// Reserves at least something, and returns from when on it may be used.
    fn reserve(&mut self, shortage: f64, budget: &BucketSet, now: Nanos) -> Nanos {
        let reserved = budget.bucket(self.bucket).reserve(now, shortage, self.last);
        self.pending = reserved.amount;
        self.last = reserved.last;
        reserved.from
    }

    /// How much is missing for a request; negative if something would be left.
    fn shortage(&self, cost: Cost, budget: &BucketSet) -> f64 {
        budget.bucket(self.bucket).price(cost) - self.credit
    }
}
