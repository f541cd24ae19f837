//! What all threads of a campaign know of the daemon: which process serves, since when, and when nobody did because the
//! rig itself had killed or stopped it.
//!
//! Invariants: whatever looks wrong is a suspicion with its time; it counts only if it did not happen in a gap that the
//! rig has made. A gap is open while it is not known yet whether its kill hit the process that serves, and nothing is
//! judged meanwhile.
//! Threads: all of them; each lock is held for a few lines.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow, bail};

use crate::deadline::now;
use crate::rawring::Span;

/// How long a client may wait for the next server after a kill: the lock of a killed process lasts as long as its I/O.
const RESTART_LIMIT: Duration = Duration::from_secs(60);

/// Where a campaign is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Only bystanders: how long their requests take when nobody attacks.
    Quiet,
    /// Everybody.
    Attack,
    /// Attackers have left.
    Rest,
    /// Bystanders leave, too.
    Over,
}

/// A time in which nobody served by the rig's own doing.
#[derive(Clone, Copy, Debug)]
struct Gap {
    start: Instant,
    /// Nothing while it is open.
    end: Option<Instant>,
}

/// Something that must not be, unless it was in a gap.
#[derive(Clone, Debug)]
struct Suspicion {
    what: String,
    span: Span,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    gaps: Vec<Gap>,
    suspicions: Vec<Suspicion>,
    fault: Option<Error>,
    /// How often a daemon was started afresh: clients have to connect again.
    starts: u64,
}

/// The daemon as everybody knows it.
#[derive(Debug)]
pub(super) struct Service {
    process: AtomicU32,
    state: Mutex<State>,
    changed: Condvar,
}

impl Service {
    pub(super) fn new(process: u32) -> Self {
        let state = State {
            phase: Phase::Quiet,
            gaps: Vec::new(),
            suspicions: Vec::new(),
            fault: None,
            starts: 0,
        };
        Self { process: AtomicU32::new(process), state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process that serves.
    pub(super) fn process(&self) -> u32 {
        self.process.load(Ordering::Relaxed)
    }

    /// Another process serves now, with the connections of the last one.
    pub(super) fn taken_over(&self, process: u32) {
        self.process.store(process, Ordering::Relaxed);
    }

    pub(super) fn phase(&self) -> Phase {
        self.lock().phase
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.lock().phase = phase;
        self.changed.notify_all();
    }

    /// Whether threads that work up to this phase go on.
    pub(super) fn goes_on(&self, last: Phase) -> bool {
        let state = self.lock();
        state.phase <= last && state.fault.is_none()
    }

    /// Sleeps for so long, or until the campaign is in a later phase or has failed.
    pub(super) fn rest(&self, time: Duration, last: Phase) {
        let done = |state: &mut State| state.phase <= last && state.fault.is_none();
        drop(self.changed.wait_timeout_while(self.lock(), time, done));
    }

    /// The first fault is the one that is told.
    pub(super) fn fail(&self, error: Error) {
        self.lock().fault.get_or_insert(error);
        self.changed.notify_all();
    }

    pub(super) fn has_failed(&self) -> bool {
        self.lock().fault.is_some()
    }

    pub(super) fn fault(&self) -> Option<Error> {
        self.lock().fault.take()
    }

    /// From here on nobody may be serving, because the rig kills or stops somebody.
    pub(super) fn open_gap(&self) {
        self.lock().gaps.push(Gap { start: now(), end: None });
    }

    /// Somebody serves again who did not.
    pub(super) fn close_gap(&self) {
        for gap in &mut self.lock().gaps {
            gap.end.get_or_insert_with(now);
        }
    }

    /// The one who served was not hit, and has no excuse.
    pub(super) fn withdraw_gap(&self) {
        self.lock().gaps.retain(|gap| gap.end.is_some());
    }

    /// A daemon was started afresh and serves.
    pub(super) fn started(&self, process: u32) {
        self.process.store(process, Ordering::Relaxed);
        // Whoever connects now has no excuse.
        self.close_gap();
        self.lock().starts += 1;
        self.changed.notify_all();
    }

    /// How often a daemon was started afresh.
    pub(super) fn starts(&self) -> u64 {
        self.lock().starts
    }

    /// Waits until the daemon after that one serves; an error if the campaign ends instead.
    pub(super) fn wait_for_start(&self, last: u64) -> Result<()> {
        let wait = |state: &mut State| state.starts == last && state.fault.is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), RESTART_LIMIT, wait);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match state.starts == last {
            false => Ok(()),
            true => bail!("the daemon hung up and no other one came"),
        }
    }

    /// Whether a gap was open at some time of it.
    pub(super) fn is_excused(&self, span: Span) -> bool {
        is_excused(&self.lock().gaps, span)
    }

    /// Notes what must not be.
    pub(super) fn suspect(&self, what: String, span: Span) {
        self.lock().suspicions.push(Suspicion { what, span });
    }

    /// Judges what was suspected, once it is known what was in a gap.
    pub(super) fn judge(&self) -> Result<()> {
        let mut state = self.lock();
        if state.gaps.iter().any(|gap| gap.end.is_none()) {
            return Ok(());
        }
        let suspicions = std::mem::take(&mut state.suspicions);
        let guilty = suspicions.into_iter().find(|it| !is_excused(&state.gaps, it.span));
        guilty.map_or(Ok(()), |it| Err(anyhow!(it.what)))
    }
}

fn is_excused(gaps: &[Gap], span: Span) -> bool {
    gaps.iter().any(|gap| gap.start <= span.end && gap.end.is_none_or(|end| span.start <= end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(service: &Service, start: Instant) -> Span {
        let span = Span { start, end: now() };
        service.suspect("late".to_owned(), span);
        span
    }

    #[test]
    fn what_happens_in_a_gap_of_the_rig_is_excused() {
        let service = Service::new(1);
        let start = now();
        service.open_gap();
        span(&service, start);
        service.judge().expect("nothing is judged before it is known who was hit");
        service.close_gap();
        service.judge().expect("the rig did it");
    }

    #[test]
    fn a_kill_that_hit_somebody_else_excuses_nothing() {
        let service = Service::new(1);
        let start = now();
        service.open_gap();
        let span = span(&service, start);
        assert!(service.is_excused(span));
        service.withdraw_gap();
        assert!(!service.is_excused(span));
        service.judge().expect_err("it was late");
        service.judge().expect("it was told");
    }

    #[test]
    fn what_comes_after_a_gap_is_judged() {
        let service = Service::new(1);
        service.open_gap();
        service.started(2);
        let after = now() + Duration::from_millis(1);
        service.suspect("late".to_owned(), Span { start: after, end: after });
        service.judge().expect_err("it was late");
    }
}
