//! Whether an iothread turns: it is asked to, and for how long it has not.
//!
//! Where it stands: beside the request path. Whoever watches a daemon asks all iothreads now and then
//! ([`SourceRegistry::ask_to_turn`](crate::SourceRegistry::ask_to_turn)); whoever shows how they do reads it
//! ([`IothreadUsage::unanswered`](crate::IothreadUsage::unanswered)).
//!
//! Invariants: an iothread has at most one such question to answer. One that has ended has none.
//! Threads: any control thread asks and reads, the iothread answers. Nobody waits.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Since when an iothread has been asked to turn and has not.
#[derive(Debug, Default)]
pub(crate) struct TurnProbe(Mutex<Option<Instant>>);

/// A question to an iothread. Dropped, on the iothread or because that has ended, it is answered.
#[derive(Debug)]
pub(crate) struct TurnQuestion(Arc<TurnProbe>);

impl TurnProbe {
    /// Asks; `None` if the last question was not answered.
    pub(crate) fn ask(self: &Arc<Self>, now: Instant) -> Option<TurnQuestion> {
        let mut asked = self.asked();
        let is_new = asked.is_none();
        is_new.then(|| {
            *asked = Some(now);
            TurnQuestion(Arc::clone(self))
        })
    }

    /// For how long there has been no answer.
    pub(crate) fn unanswered(&self, now: Instant) -> Duration {
        self.asked().map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked))
    }

    fn asked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl Drop for TurnQuestion {
    fn drop(&mut self) {
        *self.0.asked() = None;
    }
}

#[cfg(test)]
mod tests {
    use block::{Clock, SystemClock};

    use super::*;

    #[test]
    fn a_question_counts_until_it_is_answered_and_there_is_one_at_a_time() {
        let probe = Arc::<TurnProbe>::default();
        let start = SystemClock.now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(probe.unanswered(at(9)), Duration::ZERO);
        let question = probe.ask(at(10)).expect("the first one");
        assert!(probe.ask(at(12)).is_none());
        assert_eq!(probe.unanswered(at(13)), Duration::from_secs(3));
        drop(question);
        assert_eq!(probe.unanswered(at(13)), Duration::ZERO);
        assert!(probe.ask(at(20)).is_some());
    }
}
