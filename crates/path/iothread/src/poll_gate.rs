//! The iothread's right to look before it sleeps, and how long.
//!
//! Where it stands: between the event loop, which looks, and the permits that all iothreads share.
//!
//! Invariants: whoever looks holds a permit, and has given it back when it sleeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kernel_io::{ProcessCpus, process_cpu_time};

use crate::permits::{CpuTimeTotals, PollPermits};
use crate::polling::{AdaptivePolling, PollSettings, PollTarget};

/// How often a thread that never sleeps asks whether it may go on.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Decides how many iothreads of a process may poll at once: permits, and CPU use.
#[derive(Debug)]
pub struct PollArbiter {
    permits: PollPermits,
    cpus: ProcessCpus,
}

impl PollArbiter {
    /// Permits for the CPUs that the process may use.
    pub fn of_process() -> std::io::Result<Self> {
        let cpus = ProcessCpus::of_process()?;
        Ok(Self { permits: PollPermits::new(cpus.count()), cpus })
    }
}

/// One iothread's permit to poll before it sleeps, and for how long.
#[derive(Debug)]
pub(crate) struct PollGate {
    settings: PollSettings,
    shared: Arc<PollArbiter>,
    /// When it was last asked for, if it is held.
    permit: Option<Instant>,
    /// How long completions of the kernel are worth looking for.
    completions: AdaptivePolling,
}

impl PollGate {
    pub(crate) fn new(settings: PollSettings, shared: Arc<PollArbiter>) -> Self {
        Self {
            settings,
            shared,
            permit: None,
            completions: AdaptivePolling::new(PollTarget::Completions),
        }
    }

    /// Looks by other settings from now on, and learns anew how long completions are worth it.
    pub(crate) fn set(&mut self, settings: PollSettings) {
        self.settings = settings;
        self.completions = AdaptivePolling::new(PollTarget::Completions);
    }

    pub(crate) fn settings(&self) -> &PollSettings {
        &self.settings
    }

    /// How long completions are worth looking for.
    pub(crate) fn completions_budget(&self) -> Duration {
        self.completions.budget()
    }

    /// Whether [`PollGate::completion_found`] wants to know of completions that were found by looking.
    pub(crate) fn is_trying_completions(&self) -> bool {
        self.completions.is_on_trial()
    }

    /// A completion was found by looking, that long after the loop had nothing to do.
    pub(crate) fn completion_found(&mut self, waited: Duration) {
        self.completions.found_after(waited, &self.settings);
    }

    /// A completion came that long after the loop had nothing to do.
    pub(crate) fn completed_after(&mut self, waited: Duration) {
        self.completions.called_after(waited, &self.settings);
    }

    /// Whether the thread may look now. What it may once, it may until it sleeps or the CPU is
    /// wanted by others.
    pub(crate) fn may_poll(&mut self, now: Instant) -> bool {
        let PollArbiter { permits, cpus } = &*self.shared;
        if self.permit.is_some_and(|asked| now.saturating_duration_since(asked) < ASK_EVERY) {
            return true;
        }
        permits.measure(now, || {
            Some(CpuTimeTotals { idle: cpus.idle_time()?, own: process_cpu_time() })
        });
        let held = self.permit.is_some();
        if held && permits.too_many() {
            permits.give_back();
            self.permit = None;
        } else if held || permits.take() {
            self.permit = Some(now);
        }
        self.permit.is_some()
    }

    /// The thread goes to sleep.
    pub(crate) fn sleep(&mut self) {
        if self.permit.take().is_some() {
            self.shared.permits.give_back();
        }
    }
}

impl Drop for PollGate {
    fn drop(&mut self) {
        self.sleep();
    }
}
