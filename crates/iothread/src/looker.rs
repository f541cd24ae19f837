//! The iothread's right to look before it sleeps, and how long.
//!
//! Where it stands: between the event loop, which looks, and the permits that all iothreads share.
//!
//! Invariants: whoever looks holds a permit, and has given it back when it sleeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel_io::{Cpus, thread_cpu_time};

use crate::permits::PollPermits;
use crate::polling::{Adaptive, PollSettings};

/// How often a thread that never sleeps accounts for its CPU time and looks whether it may go on.
const ACCOUNT_EVERY: Duration = Duration::from_millis(50);

/// What all iothreads of a process share about polling.
#[derive(Debug)]
pub struct Polling {
    permits: PollPermits,
    cpus: Cpus,
}

impl Polling {
    /// Permits for the CPUs that the process may use.
    pub fn of_process() -> std::io::Result<Self> {
        let cpus = Cpus::of_process()?;
        Ok(Self { permits: PollPermits::new(cpus.count()), cpus })
    }
}

/// One iothread's side of polling.
#[derive(Debug)]
pub(crate) struct Looker {
    settings: PollSettings,
    shared: Arc<Polling>,
    permit: Option<Account>,
    /// How long completions of the kernel are worth looking for.
    completions: Adaptive,
}

/// The CPU time used under a permit.
#[derive(Debug, Clone, Copy)]
struct Account {
    /// When it was noted last.
    at: Instant,
    /// The thread's CPU time then.
    used: Duration,
}

impl Looker {
    pub(crate) fn new(settings: PollSettings, shared: Arc<Polling>) -> Self {
        Self { settings, shared, permit: None, completions: Adaptive::default() }
    }

    pub(crate) fn settings(&self) -> &PollSettings {
        &self.settings
    }

    /// How long completions are worth looking for.
    pub(crate) fn completions_budget(&self) -> Duration {
        self.completions.budget()
    }

    /// A completion came that long after the loop had nothing to do.
    pub(crate) fn completed_after(&mut self, waited: Duration) {
        self.completions.called_after(waited, &self.settings);
    }

    /// Whether the thread may look now. What it may once, it may until it sleeps or the CPU is
    /// wanted by others.
    pub(crate) fn may_look(&mut self, now: Instant) -> bool {
        let Polling { permits, cpus } = &*self.shared;
        match self.permit {
            Some(account) if now.saturating_duration_since(account.at) < ACCOUNT_EVERY => true,
            Some(account) => {
                self.permit = Some(account_for(permits, account, now));
                permits.measure(now, || cpus.idle_time());
                if permits.too_many() {
                    self.permit = None;
                    permits.give_back();
                }
                self.permit.is_some()
            }
            None => {
                permits.measure(now, || cpus.idle_time());
                if permits.take() {
                    self.permit = Some(Account { at: now, used: thread_cpu_time() });
                }
                self.permit.is_some()
            }
        }
    }

    /// The thread goes to sleep.
    pub(crate) fn sleep(&mut self, now: Instant) {
        if let Some(account) = self.permit.take() {
            account_for(&self.shared.permits, account, now);
            self.shared.permits.give_back();
        }
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        if self.permit.is_some() {
            self.shared.permits.give_back();
        }
    }
}

fn account_for(permits: &PollPermits, account: Account, now: Instant) -> Account {
    let used = thread_cpu_time();
    permits.note_use(used.saturating_sub(account.used));
    Account { at: now, used }
}
