//! What a group allows under its present limits: the buckets, and who pays into which.
//!
//! Requests wait on *ways*. If every limit is one for all requests there is one way, and requests go on
//! as they came. Otherwise reads and writes have ways of their own, so that a limit of one does not hold
//! the other.
//!
//! Invariants: limits do not change under a budget. New limits are a new budget, so that what
//! was reserved by the old rate never counts by the new one.
//! Threads: shared by all; only the buckets change.

use block::Operation;

use super::bucket::{Bucket, Cost};
use super::limits::{LimitKind, ThrottleLimits};

/// How many ways there are at most: one for reads and one for writes.
pub(super) const DIRECTIONS: usize = 2;

/// The buckets of a throttle group under its present limits, and which of them reads and writes pay into.
#[derive(Debug)]
pub(super) struct BucketSet {
    generation: u64,
    limits: ThrottleLimits,
    buckets: Vec<Bucket>,
    /// The buckets that those who go that way pay into.
    payees: [Vec<usize>; DIRECTIONS],
    write_direction: usize,
}

impl BucketSet {
    pub(super) fn new(limits: ThrottleLimits, generation: u64) -> Self {
        let each = |kind: LimitKind| Bucket::of(kind, limits.settings().limit(kind));
        let buckets: Vec<Bucket> = LimitKind::ALL.into_iter().flat_map(each).collect();
        let places = |pays: fn(LimitKind) -> bool| {
            let all = buckets.iter().enumerate();
            all.filter(|(_, bucket)| pays(bucket.kind())).map(|(place, _)| place).collect()
        };
        let payees: [Vec<usize>; DIRECTIONS] =
            [places(LimitKind::limits_reads), places(LimitKind::limits_writes)];
        let write_direction = usize::from(payees[0] != payees[1]);
        Self { generation, limits, buckets, payees, write_direction }
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn limits(&self) -> &ThrottleLimits {
        &self.limits
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.buckets.is_empty()
    }

    pub(super) fn payees(&self, direction: usize) -> &[usize] {
        &self.payees[direction]
    }

    pub(super) fn bucket(&self, place: usize) -> &Bucket {
        &self.buckets[place]
    }

    /// On which way an operation waits, and what it costs. `None` for what is free, as in QEMU: a flush, for which
    /// guests wait with everything else, and a status, which moves no bytes.
    pub(super) fn toll(&self, operation: &Operation) -> Option<(usize, Cost)> {
        let direction = match operation {
            Operation::Read(_) => 0,
            Operation::Write(..) | Operation::Discard(..) | Operation::WriteZeroes(..) => {
                self.write_direction
            }
            Operation::Flush | Operation::Status(_) => return None,
        };
        let bytes = operation.extent()?.count().0;
        let size = self.limits.settings().iops_size;
        let operations = if size > 0 && bytes > size { bytes as f64 / size as f64 } else { 1.0 };
        Some((direction, Cost { bytes: bytes as f64, operations }))
    }
}
