//! What is remembered of each export and queue from one interval to the next.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::rates::Rates;
use crate::snapshot::Snapshot;

/// How many intervals are remembered: as many as the widest screen shows.
const INTERVALS_MAX: usize = 240;

/// The past of a daemon's exports and queues.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// Requests in a second, of each export.
    iops: BTreeMap<String, VecDeque<f64>>,
    /// Since when queues have answered none of the requests that are open.
    stalled: BTreeMap<(String, u64), Duration>,
}

impl History {
    /// Adds an interval, which ended with this snapshot and began then.
    pub(crate) fn add(&mut self, began: Duration, now: &Snapshot, rates: &Rates) {
        self.iops.retain(|export, _| now.exports.iter().any(|it| it.id == *export));
        for export in &now.exports {
            let iops = rates.of_export(&export.id).map_or(0.0, |it| it.iops);
            let past = self.iops.entry(export.id.clone()).or_default();
            if past.len() == INTERVALS_MAX {
                past.pop_front();
            }
            past.push_back(iops);
        }
        let mut stalled = BTreeMap::new();
        for queue in &rates.queues {
            if queue.in_flight > 0 && queue.answered == 0 {
                let key = (queue.export.clone(), queue.queue);
                let since = self.stalled.get(&key).copied().unwrap_or(began);
                stalled.insert(key, since);
            }
        }
        self.stalled = stalled;
    }

    /// The daemon is gone: what was open is not any more.
    pub(crate) fn interrupt(&mut self) {
        self.stalled.clear();
    }

    /// Requests in a second of an export, oldest first.
    pub(crate) fn iops(&self, export: &str) -> impl DoubleEndedIterator<Item = f64> + '_ {
        self.iops.get(export).into_iter().flatten().copied()
    }

    /// Since when a queue has answered none of the requests that are open.
    pub(crate) fn stalled_since(&self, export: &str, queue: u64) -> Option<Duration> {
        self.stalled.get(&(export.to_owned(), queue)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Export, Queue};

    fn snapshot(second: u64, reads: u64, in_flight: u64) -> Snapshot {
        let export = "e".to_owned();
        Snapshot {
            at: Duration::from_secs(second),
            exports: vec![Export { id: export.clone(), ..Export::default() }],
            queues: Some(vec![Queue { export, reads, in_flight, ..Queue::default() }]),
            ..Snapshot::default()
        }
    }

    fn history(all: &[(u64, u64)]) -> History {
        let mut history = History::default();
        let at = |place: usize| snapshot(place as u64, all[place].0, all[place].1);
        for place in 1..all.len() {
            let (before, now) = (at(place - 1), at(place));
            let rates = Rates::between(&before, &now).expect("a second");
            history.add(before.at, &now, &rates);
        }
        history
    }

    #[test]
    fn a_queue_stalls_when_its_requests_stay_open_and_no_longer() {
        assert_eq!(history(&[(0, 0), (5, 3), (5, 0)]).stalled_since("e", 0), None);
        let stalled = history(&[(0, 0), (5, 3), (5, 3), (5, 3)]);
        assert_eq!(stalled.stalled_since("e", 0), Some(Duration::from_secs(1)));
        assert_eq!(history(&[(0, 0), (5, 3), (5, 3), (6, 3)]).stalled_since("e", 0), None);
    }

    #[test]
    fn the_past_is_bounded_and_forgotten_with_its_export() {
        let all: Vec<(u64, u64)> = (0..300).map(|it| (it * it, 0)).collect();
        let mut history = history(&all);
        assert_eq!(history.iops("e").count(), INTERVALS_MAX);
        let last = history.iops("e").next_back().expect("a rate");
        assert!((last - 597.0).abs() < 1e-9, "{last}");
        history.add(Duration::ZERO, &Snapshot::default(), &Rates::default());
        assert_eq!(history.iops("e").count(), 0);
    }
}
