//! One iothread's handle on a throttle node: what it lets pass and what it holds.
//!
//! Where it stands in the life of a request: asked by the engine or a layer above; what passes goes to
//! the lane below at once, what is held when it is due.
//!
//! Invariants: a request is held or has passed, and what is held is due at some time.
//! Threads: the iothread's own; it meets others in the buckets and at the seat.

use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{
    Answer, BatchPieces, Clock, FailKind, Lane, LaneCompletionDecision, Mapping, Outcome, Token,
    WakeTime,
};

use super::bucket::Nanos;
use super::bucket_set::{BucketSet, DIRECTIONS};
use super::group::ThrottleGroup;
use super::member::{GroupMember, GroupMemberLane};
use super::queue::{ThrottleContext, ThrottleQueue, ThrottledRequest};

/// How late a held request may go on: budget is not lost by it, and a thread need not look at the clock.
const SLACK: Duration = Duration::from_micros(200);

/// One iothread's handle on a throttle node: what passes and what waits.
#[derive(Debug)]
pub(super) struct ThrottleLane {
    group: Arc<ThrottleGroup>,
    clock: Arc<dyn Clock>,
    budget: Arc<BucketSet>,
    lane: GroupMemberLane,
    queues: [ThrottleQueue; DIRECTIONS],
    arrivals: u64,
    /// What goes on, on its way to the lane below. Empty between calls.
    ready: Vec<Mapping>,
    below: Box<dyn Lane>,
}

impl ThrottleLane {
    pub(super) fn new(
        group: &Arc<ThrottleGroup>,
        member: &Arc<GroupMember>,
        below: Box<dyn Lane>,
    ) -> Self {
        let budget = group.budget();
        Self {
            clock: group.clock(),
            group: Arc::clone(group),
            queues: queues(&budget),
            budget,
            lane: GroupMemberLane::take(member),
            arrivals: 0,
            ready: Vec::new(),
            below,
        }
    }

    /// Goes over to new limits, if there are some. What waits is looked at again under those.
    fn follow_limits(&mut self) {
        if self.group.generation() == self.budget.generation() {
            return;
        }
        let mut waiting = Vec::new();
        self.each_queue(|queue, context| queue.empty(context, &mut waiting));
        waiting.sort_by_key(|request| request.arrival);
        self.budget = self.group.budget();
        self.queues = queues(&self.budget);
        for mut request in waiting {
            // A flush never waits, and without limits all go the way of reads.
            let toll = self.budget.toll(&request.mapping.operation);
            let (direction, cost) = toll.unwrap_or((0, request.cost));
            request.cost = cost;
            let context = ThrottleContext { budget: &self.budget, lane: &self.lane };
            self.queues[direction].hold(request, context);
        }
    }

    fn each_queue(&mut self, mut each: impl FnMut(&mut ThrottleQueue, ThrottleContext<'_>)) {
        let context = ThrottleContext { budget: &self.budget, lane: &self.lane };
        self.queues.iter_mut().for_each(|queue| each(queue, context));
    }

    /// Whether the request passes; otherwise it is held.
    fn admit(&mut self, mapping: &Mapping, now: &mut Option<Nanos>) -> bool {
        let Some((direction, cost)) = self.budget.toll(&mapping.operation) else {
            return true;
        };
        let (group, clock) = (&self.group, &self.clock);
        let context = ThrottleContext { budget: &self.budget, lane: &self.lane };
        let now = || *now.get_or_insert_with(|| group.since_epoch(clock.now()));
        if self.queues[direction].admit(cost, context, now) {
            return true;
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        let request = ThrottledRequest { mapping: *mapping, cost, arrival, released: false };
        self.queues[direction].hold(request, context);
        false
    }
}

fn queues(budget: &BucketSet) -> [ThrottleQueue; DIRECTIONS] {
    std::array::from_fn(|direction| ThrottleQueue::new(direction, budget.payees(direction)))
}

impl Lane for ThrottleLane {
    fn map(&mut self, batch: &mut [Mapping], pieces: &mut BatchPieces) {
        self.follow_limits();
        if self.budget.is_unlimited() {
            self.below.map(batch, pieces);
            return;
        }
        let mut now = None;
        let mut held = 0;
        for mapping in batch.iter_mut() {
            if self.admit(mapping, &mut now) {
                mapping.answer = Answer::Refused(FailKind::Io);
            } else {
                mapping.answer = Answer::Held;
                held += 1;
            }
        }
        if held == 0 {
            self.below.map(batch, pieces);
            return;
        }
        for run in batch.split_mut(|mapping| mapping.answer == Answer::Held) {
            if !run.is_empty() {
                self.below.map(run, pieces);
            }
        }
    }

    fn due(&self) -> Option<WakeTime> {
        let own = self.queues.iter().filter_map(ThrottleQueue::due).min();
        let own = own.map(|at| WakeTime { at: self.group.instant(at), slack: SLACK });
        WakeTime::first(own, self.below.due())
    }

    fn resume(&mut self, now: Instant, late: &mut Vec<Mapping>, pieces: &mut BatchPieces) {
        self.follow_limits();
        let own_now = self.group.since_epoch(now);
        let mut ready = std::mem::take(&mut self.ready);
        self.each_queue(|queue, context| queue.resume(context, own_now, &mut ready));
        if !ready.is_empty() {
            self.below.map(&mut ready, pieces);
            // What is held below comes from there when it is due.
            late.extend(ready.drain(..).filter(|mapping| mapping.answer != Answer::Held));
        }
        self.ready = ready;
        self.below.resume(now, late, pieces);
    }

    fn release(&mut self) {
        self.each_queue(ThrottleQueue::release);
        self.below.release();
    }

    fn completed(&mut self, token: Token, outcome: Outcome) -> LaneCompletionDecision {
        self.below.completed(token, outcome)
    }
}

impl Drop for ThrottleLane {
    fn drop(&mut self) {
        self.each_queue(ThrottleQueue::cancel_reservation);
    }
}
