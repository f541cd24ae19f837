//! The steps of commands at which a crash is tried out.
//!
//! With the feature `fault-points` the process ends itself at the step that `RINGLOOM_CONTROL_FAULT` names, as `STEP:COUNT`.
//! In normal builds nothing is left of it.

/// A point of a command at which a test can crash the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandStep {
    /// The graph has changed, nothing is in flight, and the state file does not say so.
    Swapped,
    /// What is served with is about to be written to the state file.
    Keeping,
    /// It is durable there.
    Kept,
    /// Requests go on with what was changed.
    GoingOn,
    /// An export has its claim and its socket, and takes no client.
    Listening,
    /// An export is gone.
    Removed,
    /// A node has another size, and nobody was told.
    Resized,
}

/// Notes that a step was reached.
#[inline]
pub(crate) fn reached(step: CommandStep) {
    #[cfg(feature = "fault-points")]
    fault::reached(step);
    #[cfg(not(feature = "fault-points"))]
    let _nobody_listens = step;
}

#[cfg(feature = "fault-points")]
mod fault {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::CommandStep;

    const VARIABLE: &str = "RINGLOOM_CONTROL_FAULT";

    static REACHED: AtomicU64 = AtomicU64::new(0);

    /// Ends as suddenly as by SIGKILL, by a call that a sandboxed daemon may still make.
    pub(super) fn reached(step: CommandStep) {
        let Ok(fault) = std::env::var(VARIABLE) else { return };
        let (name, count) = fault.split_once(':').unwrap_or((&fault, "1"));
        if name == format!("{step:?}") {
            let count: u64 = count.parse().unwrap_or_else(|_| panic!("{VARIABLE}={fault}"));
            if REACHED.fetch_add(1, Ordering::Relaxed) + 1 == count {
                std::process::abort();
            }
        }
    }
}
