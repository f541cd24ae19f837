//! What each queue of an export has done in a session, for the operator.
//!
//! Threads: written by the session's thread when a ring is stopped; read when it ends.

use std::collections::BTreeMap;

use request_path::Counters;
use vhost_user::QueueIndex;

/// What each queue of a session has done, for the log.
#[derive(Debug, Default)]
pub(crate) struct QueueStatistics {
    queues: BTreeMap<QueueIndex, QueueEntry>,
}

/// One queue's counters, and the iothread that served it last.
#[derive(Debug, Default)]
struct QueueEntry {
    iothread: String,
    counters: Counters,
}

impl QueueStatistics {
    /// Adds what a queue has done until it was stopped on that iothread.
    pub(crate) fn add(&mut self, queue: QueueIndex, iothread: &str, counters: Counters) {
        let entry = self.queues.entry(queue).or_default();
        iothread.clone_into(&mut entry.iothread);
        let sum = &mut entry.counters;
        sum.reads += counters.reads;
        sum.writes += counters.writes;
        sum.flushes += counters.flushes;
        sum.discards += counters.discards;
        sum.write_zeroes += counters.write_zeroes;
        sum.errors += counters.errors;
        sum.read_bytes += counters.read_bytes;
        sum.written_bytes += counters.written_bytes;
    }

    /// One line for each queue.
    pub(crate) fn lines(&self, export: &str) -> Vec<String> {
        let line = |(queue, entry): (&QueueIndex, &QueueEntry)| {
            let Counters { reads, writes, flushes, discards, write_zeroes, errors, .. } =
                entry.counters;
            format!(
                "export {export}: queue {queue} on {}: reads={reads} writes={writes} \
                 flushes={flushes} discards={discards} write-zeroes={write_zeroes} errors={errors}",
                entry.iothread
            )
        };
        self.queues.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_was_served_twice_has_one_line_with_the_sums() {
        let mut statistics = QueueStatistics::default();
        let counters = Counters { reads: 2, errors: 1, ..Counters::default() };
        statistics.add(QueueIndex(1), "t0", counters);
        statistics.add(QueueIndex(1), "t1", counters);
        let line = "export e: queue 1 on t1: reads=4 writes=0 flushes=0 discards=0 write-zeroes=0 \
                    errors=2";
        assert_eq!(statistics.lines("e"), [line]);
    }
}
