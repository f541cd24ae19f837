//! Guests are interrupted, and some of them not so often ([`crate::tempo`]).
//!
//! Where it stands in the life of a request: when its ring has published what is answered.
//!
//! Invariants: an interrupt that is put off is owed by its ring, which gets a turn when the pause is over.
//! Limits: a note for each ring that owes one.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use block::Due;
use kernel_io::thread_cpu_time;

use super::{Engine, Signal};
use crate::tempo::{Pace, Tempo};
use crate::{Seat, SourceKey};

/// How much later an interrupt does no harm that is put off anyway.
const SLACK: Duration = Duration::from_millis(1);

/// The pauses of rings that owe an interrupt.
#[derive(Debug, Default)]
pub(super) struct Owed(Vec<(Instant, SourceKey)>);

impl Owed {
    pub(super) fn due(&self) -> Option<Due> {
        let first = self.0.iter().map(|(at, _)| *at).min()?;
        Some(Due { at: first, slack: SLACK })
    }

    /// The rings whose pause is over.
    pub(super) fn take(&mut self, now: Instant) -> impl Iterator<Item = Signal> + '_ {
        let over = self.0.extract_if(.., move |(at, _)| *at <= now);
        over.map(|(_, key)| Signal::Finished(key))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Engine {
    /// Interrupts a ring's guest, or does not yet: then the ring gets a turn when it is time. Returns whether it did.
    pub(crate) fn interrupt(
        &mut self,
        tempo: &mut Tempo,
        call: BorrowedFd<'_>,
        seat: Seat,
    ) -> bool {
        match tempo.pace() {
            Pace::Ring => self.signal(call, "call"),
            Pace::Timed => {
                let start = self.clock.now();
                self.signal(call, "call");
                tempo.timed(self.clock.now().saturating_duration_since(start));
            }
            Pace::Measured => {
                let now = self.clock.now();
                if let Some(at) = tempo.pause(now) {
                    if tempo.note() {
                        self.owed.0.extend(self.seats.key(seat).map(|key| (at, key)));
                    }
                    return false;
                }
                let start = thread_cpu_time();
                self.signal(call, "call");
                let took = thread_cpu_time().saturating_sub(start);
                tempo.measured(took, self.clock.now());
            }
        }
        true
    }
}
