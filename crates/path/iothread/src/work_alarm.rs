//! Wakes a control thread that sleeps as long as iothreads do hardly anything.
//!
//! Where it stands: whoever decides about placement arms it before it sleeps without a timer; event loops look at it when
//! they look at the clock anyway.
//!
//! Invariants: it rings at most once for each time that it is armed. Relaxed is enough: it carries no data, and an iothread
//! that sees it late rings late.
//! Limits: an iothread rings after [`WORK_MIN`] of work since it first saw it armed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// So much work of one iothread is worth a look.
const WORK_MIN: Duration = Duration::from_millis(1);

/// Armed or not, and whoever waits for it.
#[derive(Debug, Default)]
pub struct WorkAlarm {
    /// Even while nobody waits; grows by one each time that it is armed, rings or is called off.
    epoch: AtomicU64,
    has_rung: Mutex<bool>,
    rung: Condvar,
}

/// What an iothread knows of an alarm.
#[derive(Debug, Default)]
pub(crate) struct WorkSinceArmed {
    epoch: u64,
    work: Duration,
}

impl WorkAlarm {
    /// Sleeps until an iothread has worked for a millisecond, or somebody calls.
    pub fn sleep(&self) {
        let mut has_rung = self.has_rung.lock().expect("no holder of this lock panics");
        if !*has_rung {
            self.epoch.fetch_add(1, Ordering::Relaxed);
            has_rung = self
                .rung
                .wait_while(has_rung, |has_rung| !*has_rung)
                .expect("no holder of this lock panics");
        }
        *has_rung = false;
    }

    /// The same for so long at most.
    pub fn sleep_for(&self, time: Duration) {
        let has_rung = self.has_rung.lock().expect("no holder of this lock panics");
        let waited = self.rung.wait_timeout_while(has_rung, time, |has_rung| !*has_rung);
        *waited.expect("no holder of this lock panics").0 = false;
    }

    /// Ends a sleep, or keeps the next one from beginning.
    pub fn call(&self) {
        let mut has_rung = self.has_rung.lock().expect("no holder of this lock panics");
        let epoch = self.epoch.load(Ordering::Relaxed);
        // Nobody waits for iothreads any more.
        self.epoch.store(epoch + epoch % 2, Ordering::Relaxed);
        *has_rung = true;
        self.rung.notify_all();
    }

    /// An iothread has worked for so long more.
    pub(crate) fn worked(&self, known: &mut WorkSinceArmed, work: Duration) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        if epoch.is_multiple_of(2) {
            return;
        }
        if epoch != known.epoch {
            *known = WorkSinceArmed { epoch, work: Duration::ZERO };
        }
        known.work += work;
        if known.work >= WORK_MIN {
            known.work = Duration::ZERO;
            self.call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_sleeper_is_woken_by_a_millisecond_of_work() {
        let alarm = WorkAlarm::default();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| alarm.sleep());
            let mut known = WorkSinceArmed::default();
            while !sleeper.is_finished() {
                alarm.worked(&mut known, 10 * US);
                std::thread::yield_now();
            }
        });
        // Nobody waits: work is not counted.
        let mut known = WorkSinceArmed::default();
        alarm.worked(&mut known, Duration::from_secs(1));
        assert_eq!(known.work, Duration::ZERO);
    }

    #[test]
    fn a_call_before_a_sleep_keeps_it_from_beginning() {
        let alarm = WorkAlarm::default();
        alarm.call();
        alarm.sleep();
        alarm.call();
        alarm.sleep_for(Duration::from_secs(3600));
    }

    #[test]
    fn a_sleep_with_a_limit_ends_there() {
        WorkAlarm::default().sleep_for(US);
    }
}
