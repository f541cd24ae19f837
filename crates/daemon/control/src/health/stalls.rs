//! Which queues have requests in flight and get no answer. Decides; the time and what was seen are arguments.
//!
//! Invariants: a stall is said once when it has lasted [`TOLD_AFTER`], and its end once if it was said. Gauges of a quiet queue
//! may lack its last turns, so a queue is asked to bring them up to date before anything is said of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iothread::{PlacedSource, SourceName};

/// How long a queue gets no answer before that is said.
const TOLD_AFTER: Duration = Duration::from_secs(30);

/// How long before its gauges are asked to be brought up to date, at each look: more than from one look to the next, so that
/// one that gets answers is not asked.
const ASKED_AFTER: Duration = Duration::from_secs(3);

/// What is known of queues.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    queues: HashMap<SourceName, QueueProgress>,
}

/// When a queue was answered last, as far as that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QueueProgress {
    answered: u64,
    in_flight: u64,
    /// Since when no answer was seen while something was in flight.
    since: Instant,
    is_told: bool,
}

/// What has changed of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueEvent {
    Stalled,
    GoesOn(Duration),
}

impl QueueProgress {
    /// It is seen again.
    fn see(&mut self, answered: u64, in_flight: u64, now: Instant) -> Option<QueueEvent> {
        let before = *self;
        self.in_flight = in_flight;
        if in_flight == 0 || answered != before.answered || before.in_flight == 0 {
            *self = Self { answered, in_flight, since: now, is_told: false };
            let lasted = now.saturating_duration_since(before.since);
            return before.is_told.then_some(QueueEvent::GoesOn(lasted));
        }
        if self.is_told || self.stalled(now) < TOLD_AFTER {
            return None;
        }
        self.is_told = true;
        Some(QueueEvent::Stalled)
    }

    fn stalled(&self, now: Instant) -> Duration {
        match self.in_flight {
            0 => Duration::ZERO,
            _ => now.saturating_duration_since(self.since),
        }
    }
}

/// What has changed of the queues of an export.
#[derive(Debug, Default, PartialEq, Eq)]
struct ExportNews {
    /// With the iothreads that serve them.
    stalled: Vec<(u16, String)>,
    /// Requests of those in flight.
    in_flight: u64,
    /// With how long they got no answer.
    going_on: Vec<(u16, Duration)>,
}

/// What has changed, by export.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct StallNews(BTreeMap<String, ExportNews>);

impl StallWatch {
    /// The queues whose gauges may lack something.
    pub(super) fn unsure<'a>(
        &self,
        sources: &'a [Arc<PlacedSource>],
        now: Instant,
    ) -> impl Iterator<Item = &'a Arc<PlacedSource>> {
        let is_unsure = move |source: &&Arc<PlacedSource>| {
            let known = self.queues.get(source.name());
            known.is_some_and(|known| known.stalled(now) >= ASKED_AFTER)
        };
        sources.iter().filter(is_unsure)
    }

    /// Sees all queues that are served.
    pub(super) fn look(&mut self, sources: &[Arc<PlacedSource>], now: Instant) -> StallNews {
        let mut news = StallNews::default();
        let mut before = std::mem::take(&mut self.queues);
        for source in sources {
            let (name, gauges) = (source.name(), source.gauges());
            let (answered, in_flight) = (gauges.requests(), gauges.in_flight.get());
            let new = QueueProgress { answered, in_flight, since: now, is_told: false };
            let mut known = before.remove(name).unwrap_or(new);
            if let Some(event) = known.see(answered, in_flight, now) {
                news.add(name, (event, in_flight), || source.iothread_name());
            }
            self.queues.insert(name.clone(), known);
        }
        news
    }

    /// The queues that get no answer.
    pub(super) fn stalled(&self, now: Instant) -> Vec<(SourceName, Duration)> {
        let all = self.queues.iter().map(|(name, known)| (name, known.stalled(now)));
        let stalled = all.filter(|(_, time)| *time > Duration::ZERO);
        stalled.map(|(name, time)| (name.clone(), time)).collect()
    }
}

impl StallNews {
    fn add(
        &mut self,
        name: &SourceName,
        (event, in_flight): (QueueEvent, u64),
        iothread: impl FnOnce() -> String,
    ) {
        let export = self.0.entry(name.export.clone()).or_default();
        match event {
            QueueEvent::Stalled => {
                export.stalled.push((name.queue, iothread()));
                export.in_flight += in_flight;
            }
            QueueEvent::GoesOn(lasted) => export.going_on.push((name.queue, lasted)),
        }
    }

    /// A sentence for each export that gets no answer.
    pub(super) fn stalls(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(export, news)| stalled(export, news))
    }

    /// A sentence for each export that gets answers again.
    pub(super) fn ends(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(export, news)| over(export, news))
    }
}

fn stalled(export: &str, news: &ExportNews) -> Option<String> {
    let queues = news.stalled.iter().map(|(queue, iothread)| format!("{queue} on {iothread}"));
    let queues: Vec<_> = queues.collect();
    let (queues, count) = (named(&queues)?, news.in_flight);
    let requests = if count == 1 { "1 request" } else { &format!("{count} requests") };
    let (seconds, verb) =
        (TOLD_AFTER.as_secs(), if news.stalled.len() == 1 { "has" } else { "have" });
    Some(format!(
        "export {export}: {queues} {verb} {requests} in flight and got no answer for {seconds} s: storage does not answer, \
         or a limit holds them"
    ))
}

fn over(export: &str, news: &ExportNews) -> Option<String> {
    let queues: Vec<_> = news.going_on.iter().map(|(queue, _)| queue.to_string()).collect();
    let queues = named(&queues)?;
    let longest = news.going_on.iter().map(|(_, lasted)| lasted.as_secs()).max()?;
    let verb = if news.going_on.len() == 1 { "goes" } else { "go" };
    Some(format!("export {export}: {queues} {verb} on, after {longest} s without an answer"))
}

/// `queue 1`, or `queues 1, 2`; `None` if there are none.
fn named(queues: &[String]) -> Option<String> {
    match queues {
        [] => None,
        [one] => Some(format!("queue {one}")),
        several => Some(format!("queues {}", several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Clock, SystemClock};

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_stall_is_said_once_and_so_is_its_end() {
        let start = SystemClock.now();
        let mut queue = QueueProgress { answered: 7, in_flight: 2, since: start, is_told: false };
        assert_eq!(queue.see(7, 2, at(start, 5)), None);
        assert_eq!(queue.stalled(at(start, 5)), Duration::from_secs(5));
        assert_eq!(queue.see(7, 3, at(start, 30)), Some(QueueEvent::Stalled));
        assert_eq!(queue.see(7, 3, at(start, 60)), None);
        let lasted = Duration::from_secs(65);
        assert_eq!(queue.see(8, 2, at(start, 65)), Some(QueueEvent::GoesOn(lasted)));
        assert_eq!(queue.see(8, 0, at(start, 70)), None);
        assert_eq!(queue.stalled(at(start, 500)), Duration::ZERO);
        // What comes after a rest is new.
        assert_eq!(queue.see(8, 1, at(start, 200)), None);
        assert_eq!(queue.stalled(at(start, 210)), Duration::from_secs(10));
    }

    #[test]
    fn a_slow_queue_that_gets_answers_is_not_stalled() {
        let start = SystemClock.now();
        let mut queue = QueueProgress { answered: 0, in_flight: 1, since: start, is_told: false };
        for answered in 1..20 {
            assert_eq!(queue.see(answered, 1, at(start, answered * 25)), None);
        }
    }

    #[test]
    fn queues_of_an_export_share_a_line() {
        let mut news = StallNews::default();
        for queue in [0, 3] {
            let name = SourceName { export: "vm1".to_owned(), queue };
            news.add(&name, (QueueEvent::Stalled, 4), || "t0".to_owned());
        }
        let name = SourceName { export: "vm2".to_owned(), queue: 1 };
        news.add(&name, (QueueEvent::GoesOn(Duration::from_secs(47)), 1), || "t1".to_owned());
        let stalls: Vec<String> = news.stalls().collect();
        let expected = "export vm1: queues 0 on t0, 3 on t0 have 8 requests in flight and got no answer for 30 s: \
                        storage does not answer, or a limit holds them";
        assert_eq!(stalls, [expected]);
        let ends: Vec<String> = news.ends().collect();
        assert_eq!(ends, ["export vm2: queue 1 goes on, after 47 s without an answer"]);
    }
}
